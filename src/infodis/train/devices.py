"""One process or many: what the training loop needs of them, with `accelerate` behind it where there are many."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from infodis.device import device_named
from infodis.errors import InputError

T = TypeVar("T")


class Devices:
    """The processes of a run. Alone unless started by `accelerate launch` or `torchrun`."""

    def __init__(self, device: str) -> None:
        self._accelerator: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            try:
                from accelerate import Accelerator
            except ImportError as error:
                raise InputError("Several processes need accelerate: pip install 'infodis[train]'.") from error
            on_processor = device_named(device).type == "cpu"  # accelerate does not look for itself
            self._accelerator = Accelerator(cpu=on_processor)
            self.device = self._accelerator.device
            self.rank, self.count = self._accelerator.process_index, self._accelerator.num_processes
            return
        self.device = device_named(device)
        self.rank, self.count = 0, 1

    @property
    def first(self) -> bool:
        """True in the one process that writes."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, its gradients averaged over processes in the backward pass."""
        return module if self._accelerator is None else self._accelerator.prepare(module)

    def accumulating(self, module: nn.Module, *, more: bool) -> contextlib.AbstractContextManager[None]:
        """While more backward passes of this step are to come, gradients stay in their process."""
        if isinstance(module, DistributedDataParallel) and more:
            return module.no_sync()
        return contextlib.nullcontext()

    def mean(self, number: Tensor) -> Tensor:
        """The average over processes."""
        return number if self._accelerator is None else self._accelerator.reduce(number, reduction="mean")

    def wait(self) -> None:
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()

    @contextlib.contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The writing process runs the block, then the others do, even if it failed: they find the same fault."""
        if not self.first:
            self.wait()
        try:
            yield
        finally:
            if self.first:
                self.wait()

    def from_first(self, make: Callable[[], T]) -> T:
        """What the writing process makes, in all of them."""
        if self._accelerator is None:
            return make()
        from accelerate.utils import broadcast_object_list

        made: list[Any] = [make() if self.first else None]
        broadcast_object_list(made)
        return made[0]

    def close(self) -> None:
        if self._accelerator is not None:
            self._accelerator.end_training()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
