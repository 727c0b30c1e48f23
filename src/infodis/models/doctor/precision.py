"""What computing in another precision changes, found out in a process that may die of it."""

import copy
import dataclasses
import multiprocessing
import signal
import sys
from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.models.doctor.examples import ModelUnderTest, alternate_surprisals
from infodis.models.model import Model

CHILD_SECONDS = 600
"""For a process that computes in another precision."""

Numbers = list[list[float]]


def dtype_of(model: Model) -> torch.dtype:
    """What its network computes in."""
    return next(model.network.parameters()).dtype


def is_half(subject: ModelUnderTest) -> bool:
    """Whether it is a network that computes in less than float32."""
    return subject.model is not None and dtype_of(subject.model) != torch.float32


def both_precisions(subject: ModelUnderTest) -> tuple[Float64[Tensor, " wanted"], Float64[Tensor, " wanted"]] | str:
    """Surprisals as the model computes, and in the other precision; a string is why there are none."""
    model, first = subject.model, subject.inside(subject.rows[0]).start
    assert model is not None

    def compute() -> list[list[float]]:
        other = _in_float32(model) if is_half(subject) else dataclasses.replace(model, autocast=True)
        found = [torch.cat([alternate_surprisals(one, [row], first) for row in subject.rows]) for one in (model, other)]
        return [numbers.tolist() for numbers in found]

    found = _in_child(compute) if model.device.type == "cpu" else _try(compute)
    if isinstance(found, str):
        return found
    return torch.tensor(found[0], dtype=torch.float64), torch.tensor(found[1], dtype=torch.float64)


def _in_child(compute: Callable[[], Numbers]) -> Numbers | str:
    """What a process of its own computes, or what became of it: some processors announce what kills who uses it."""
    if sys.platform != "linux":  # a fork of a process with threads is safe nowhere else
        return _try(compute)
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)

    def work() -> None:
        torch.set_num_threads(1)  # those of the parent are not here
        there.send(_try(compute))

    child = fork.Process(target=work)
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(CHILD_SECONDS) else f"it did not end within {CHILD_SECONDS} seconds"
    except EOFError:
        child.join()
        code = child.exitcode or 0
        return f"the process died of {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
    finally:
        child.kill()
        child.join()


def _try(compute: Callable[[], Numbers]) -> Numbers | str:
    try:
        return compute()
    except (RuntimeError, MemoryError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def _in_float32(model: Model) -> Model:
    loaded = dataclasses.replace(model.loaded, network=copy.deepcopy(model.network).float())
    return dataclasses.replace(model, loaded=loaded)
