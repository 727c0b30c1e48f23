"""Several processes, as `accelerate launch` and `torchrun` start them."""

import atexit
import dataclasses
import datetime
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = datetime.timedelta(weeks=4)
"""How long a process waits for the slowest one."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """One process among others: its number over all machines, and how many there are."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @staticmethod
    def join() -> "Processes":
        """From the environment; alone if it says nothing."""
        rank, size, local = (int(os.environ.get(name, n)) for name, n in _DEFAULTS.items())
        if size <= 1:
            return Processes()
        if not dist.is_initialized():
            both = torch.cuda.is_available() and dist.is_nccl_available()
            dist.init_process_group("cpu:gloo,cuda:nccl" if both else "gloo", timeout=PATIENCE)
            atexit.register(_leave)
        return Processes(rank, size, local)

    def device(self, wanted: str) -> str:
        """What the harness asks for, if it is there: it says cuda:0 by default, and so does every process."""
        if wanted.startswith("cuda") and not torch.cuda.is_available():
            return "auto"
        if self.size > 1 and wanted in ("auto", "cuda", "cuda:0") and torch.cuda.is_available():
            torch.cuda.set_device(self.local_rank)
            return f"cuda:{self.local_rank}"
        return wanted

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, one behind the other."""
        if self.size == 1:
            return tensor
        flat = torch.atleast_1d(tensor)
        parts = [torch.empty_like(flat) for _ in range(self.size)]
        dist.all_gather(parts, flat)
        return torch.cat(parts)

    def gather(self, thing: Any, to: int = 0) -> list[Any] | None:
        """What every process has, at one of them."""
        if self.size == 1:
            return [thing]
        found: list[Any] | None = [None] * self.size if self.rank == to else None
        dist.gather_object(thing, found, dst=to)
        return found

    def barrier(self) -> None:
        """Wait for all others."""
        if self.size > 1:
            dist.barrier()


_DEFAULTS = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
