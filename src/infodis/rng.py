"""Random streams: the only place in infodis where a generator is made.

A stream is named, not passed along: ``stream(seed, item, replicate)`` gives the same numbers for the same item and
replicate whatever was drawn before it. That is why an estimate does not depend on the batch size, on the order of the
sequences, on the number of workers or on a restart. Streams live on the CPU: the same masks on every device.
"""

import hashlib
import operator
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.errors import InputError

Name = int | str | bytes


def key(*path: Name) -> int:
    """Hash a path of names to 63 bits. Equal paths give equal keys on every platform and Python version."""
    digest = hashlib.blake2b(repr(path).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(seed: int, *path: Name) -> torch.Generator:
    """The generator for one purpose, e.g. ``stream(seed, item, replicate)``.

    >>> bool(torch.equal(torch.rand(3, generator=stream(0, "a")), torch.rand(3, generator=stream(0, "a"))))
    True
    """
    return torch.Generator().manual_seed(key(seed, *path))


def uniforms(*shape: int, generator: torch.Generator) -> Float64[Tensor, "..."]:
    """Independent numbers, uniform on [0, 1), with 53 random bits each (ties among them never happen in practice)."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def uniforms_of(seed: int, paths: Sequence[tuple[Name, ...]], *shape: int) -> Float64[Tensor, "..."]:
    """What `uniforms` draws from `stream(seed, *path)`, for many paths: a generator that is seeded anew for each."""
    generator = torch.Generator()
    found = torch.empty(len(paths), *shape, dtype=torch.float64)
    for numbers, path in zip(found, paths, strict=True):
        numbers.uniform_(generator=generator.manual_seed(key(seed, *path)))
    return found


def seed_global(seed: int, *path: Name) -> None:
    """Name the stream of draws that take no generator: dropout layers, weights that foreign libraries make."""
    torch.manual_seed(key(seed, *path))


def check_seed(seed: Any) -> int:
    """A seed as a plain integer: equal numbers of different types must not name different streams."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise InputError(f"A seed must be a whole number, got {seed!r}.")
    return operator.index(seed)
