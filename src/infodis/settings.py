"""What a result depends on, by name: read off the fields of values, so that a new field cannot be forgotten."""

import abc
import dataclasses
import importlib.metadata
from typing import Any

from infodis import __version__

UNCOMPARED = "uncompared"


def uncompared(reason: str) -> dict[str, str]:
    """The metadata of a field on which no result depends, and why."""
    return {UNCOMPARED: reason}


def option(default: Any, help: str, *flags: str, **more: Any) -> Any:
    """A field that is an option of the command line too, under its own name or these flags.

    More about it there: its limits `min` and `max`; its `kind`, where that is less than the type of the field.
    """
    return dataclasses.field(default=default, metadata={"help": help, "flags": flags, **more})


class Named(abc.ABC):
    """Something that stands for what it names: not its fields are compared, but what they lead to."""

    @abc.abstractmethod
    def settings(self, name: str) -> dict[str, Any]:
        """What a result depends on, where a field of this name holds it."""


def settings_of(value: Any) -> dict[str, Any]:
    """Every field of a dataclass by name, as JSON gives it back, but those that are `uncompared`.

    Fields of plain values are told as if they were its own. Members of an abstract family (a design, a control) are
    leaves: their text shows all of their fields.

    >>> from infodis.quantities.perplexity import Windows
    >>> settings_of(Windows(length=64, stride=32))
    {'length': 64, 'stride': 32}
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        if UNCOMPARED in field.metadata:
            continue
        told = _told(field.name, getattr(value, field.name))
        if twice := found.keys() & told.keys():
            raise ValueError(f"{type(value).__name__} has two settings called {', '.join(sorted(twice))}.")
        found |= told
    return found


def _told(name: str, part: Any) -> dict[str, Any]:
    if isinstance(part, Named):
        return part.settings(name)
    if dataclasses.is_dataclass(part) and not isinstance(type(part), abc.ABCMeta):
        return settings_of(part)
    return {name: part if part is None or isinstance(part, bool | int | float | str | dict) else str(part)}


def versions() -> dict[str, str | None]:
    """Of what numbers come from."""
    import torch

    found: dict[str, str | None] = {"infodis": __version__, "torch": torch.__version__}
    for name in ("transformers", "tokenizers"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
