"""Several processes, as `accelerate launch` and `torchrun` start them. The harness deals documents to them."""

import atexit
import datetime
import os
from typing import Any

import torch
import torch.distributed as dist
from lm_eval.api.model import LM
from torch import Tensor

TIMEOUT = datetime.timedelta(weeks=4)
"""How long a process waits for the slowest one."""


class DistributedLM(LM):
    """A model of the harness that knows its rank, its world size and how to gather what other processes have."""

    def __init__(self) -> None:
        super().__init__()
        self._world_size = int(os.environ.get("WORLD_SIZE", 1))
        if self._world_size > 1:
            self._rank = int(os.environ.get("RANK", 0))
            _join_process_group()

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, concatenated."""
        if self.world_size == 1:
            return tensor
        flat = torch.atleast_1d(tensor)
        parts = [torch.empty_like(flat) for _ in range(self.world_size)]
        dist.all_gather(parts, flat)
        return torch.cat(parts)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """The objects of all processes, at process `dst`; None at the others."""
        if self.world_size == 1:
            return [obj]
        found: list[Any] | None = [None] * self.world_size if self.rank == dst else None
        dist.gather_object(obj, found, dst=dst)
        return found

    def barrier(self) -> None:
        """Wait for all other processes."""
        if self.world_size > 1:
            dist.barrier()


def _join_process_group() -> None:
    if not dist.is_initialized():
        both = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if both else "gloo", timeout=TIMEOUT)
        atexit.register(_leave_process_group)


def _leave_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def local_device(wanted: str) -> str:
    """The device of this process. The harness asks every process for cuda:0, even where there is no GPU."""
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        return "auto"
    several = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if several and wanted in ("auto", "cuda", "cuda:0") and torch.cuda.is_available():
        torch.cuda.set_device(local_rank := int(os.environ.get("LOCAL_RANK", 0)))
        return f"cuda:{local_rank}"
    return wanted
