"""Devices: which one to compute on, and whether what is computed there fits into its memory.

Apple's GPUs (mps) have no float64, and casting on the way to the CPU casts on the device. So results come as float32,
`.cpu().double()` in this order, and sums are taken in float64 on the CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from infodis.errors import InputError

OUT_OF_MEMORY = (
    "out of memory",  # CUDA, HIP, XPU, MPS where it is not an OutOfMemoryError
    "Invalid buffer size",  # MPS: a single tensor is larger than it allows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",  # Windows
    "std::bad_alloc",
)
"""What errors of torch say where memory is too small: most are plain RuntimeErrors."""


def resolve_device(name: str) -> str:
    """The device that `auto` stands for on this machine; any other name as it is."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def device_named(name: str) -> torch.device:
    """A device that is there; `auto` is a GPU if there is one."""
    try:
        device = torch.device(resolve_device(name))
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"The device {name!r} cannot be used: {reason} Try auto or cpu.") from error
    return device


def device_of(network: object) -> torch.device:
    """Where a network computes, by its first parameter; the CPU for whatever has none."""
    first = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


def fits(step: Callable[..., Any], *args: Any) -> bool:
    """Run `step(*args)`. False if memory was too small for it; torch has then given back what it keeps in reserve."""
    try:
        step(*args)
    except (RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
    else:
        return True
    if torch.cuda.is_available():  # not earlier: the error held on to the tensors of the step.
        torch.cuda.empty_cache()  # Libraries like cuBLAS need memory that is not in torch's reserve
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    return False


def _out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in OUT_OF_MEMORY)
