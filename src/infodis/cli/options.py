"""Options that commands share, in groups: a group is a value, and a command that takes one gets all of its options."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infodis.cli.screen import load_torch
from infodis.models.options import ModelOptions
from infodis.models.spec import ModelSpec
from infodis.settings import option

if TYPE_CHECKING:
    from infodis.estimate import Request
    from infodis.jobs.inputs import Reading


MOST = 2**63 - 1
"""As much as a column of a table, or a counter of a library, can hold."""

SEED_HELP = "The same seed gives the same masks for the same row."
_DEVICE = next(field for field in dataclasses.fields(ModelOptions) if field.name == "device")
Device = Annotated[str, typer.Option(help=_DEVICE.metadata["help"])]
"""Alone, for a command that chooses its models by itself."""

Seed = Annotated[int, typer.Option(min=-(2**63), max=MOST, help=SEED_HELP)]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are groups are replaced by the options in them.

    A parameter of the command that has the name of an option takes its place.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    signature = inspect.signature(command)
    own = signature.parameters.keys() - groups.keys()
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters += [one for one in _options(groups[name], _panel(groups[name])) if one.name not in own]
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def expanded(**given: Any) -> None:
        load_torch()
        made = {name: _made(group, given) for name, group in groups.items()}
        command(**{name: given[name] for name in own}, **made)

    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    expanded.__doc__ = _flowing(inspect.getdoc(command) or "")
    del expanded.__wrapped__
    return expanded


def _options(group: Any, panel: str) -> Iterator[inspect.Parameter]:
    """The options of a group and of groups in it, shown under one heading in --help."""
    kinds = typing.get_type_hints(group)
    for field in dataclasses.fields(group):
        if dataclasses.is_dataclass(kinds[field.name]):
            yield from _options(kinds[field.name], panel)
            continue
        about = dict(field.metadata)
        kind, flags = about.pop("kind", kinds[field.name]), about.pop("flags")
        if field.default is False:
            flags = flags or ("--" + field.name.replace("_", "-"),)  # without a --no- that says nothing
        shown = typer.Option(*flags, rich_help_panel=panel, **about)
        annotation = Annotated[kind, shown]
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation
        )


def _made(group: Any, given: dict[str, Any]) -> Any:
    """A group with the values that were given."""
    kinds = typing.get_type_hints(group)
    names = [field.name for field in dataclasses.fields(group)]
    return group(
        **{name: _made(kinds[name], given) if dataclasses.is_dataclass(kinds[name]) else given[name] for name in names}
    )


def _panel(group: Any) -> str:
    return next(PANELS[kind] for kind in group.__mro__ if kind in PANELS)


def _flowing(text: str) -> str:
    """Paragraphs without line ends, which --help would keep."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


@dataclasses.dataclass(frozen=True)
class PrecisionOptions:
    """How much to spend."""

    evaluations: int | None = option(
        None, "Forward passes for each row: 128; with a standard error at most 4,096.", min=1
    )
    standard_error: float | None = option(None, "Spend on each row what this standard error takes, in nats.")
    relative: float | None = option(None, "The same, as a share of the value, e.g. 0.01.")
    design: str = option(
        "auto", "auto, tiled, orders, enumerate, pairs, stratified, uniform, time-free, time-integral."
    )
    seed: int = option(0, SEED_HELP, min=-(2**63), max=MOST)

    def request(self) -> "Request":
        from infodis.auto import design_named
        from infodis.estimate import Request

        return Request(
            design_named(self.design),
            evaluations=self.evaluations,
            standard_error=self.standard_error,
            relative=self.relative,
        )


@dataclasses.dataclass(frozen=True)
class ReadingOptions:
    """How rows are read."""

    fields: list[str] | None = option(None, "Where a field has another name: text=sentence. Repeatable.", "--field")
    keep: list[str] | None = option(
        None, "Other fields to carry into the records: names, or all. Repeatable. One of our names becomes input_NAME."
    )
    format: str | None = option(None, "jsonl, csv, tsv, parquet or text, where the name does not say it.")
    chat_template: bool = option(False, "Put prompts into the model's chat template.")
    max_length: int | None = option(None, "Longest row in tokens. Default: what the model was trained with.", min=1)
    truncate: str | None = option(None, "left or right: cut longer rows there instead of rejecting them.")

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of fields to keep, however they were given: --keep a,b or --keep a --keep b."""
        names = (name.strip() for given in self.keep or [] for name in given.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    def reading(self) -> "Reading":
        from infodis.jobs.inputs import Reading

        return Reading(chat=self.chat_template, max_length=self.max_length, truncate=self.truncate)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Where results go, and who does the work."""

    out: Path | None = option(None, ".jsonl, .csv or .parquet. Default: records on standard output.", "--out", "-o")
    limit: int | None = option(None, "At most so many rows.", min=1, max=MOST)
    resume: bool = option(True, "Go on where an earlier run ended, or begin anew and replace it.")
    strict: bool = option(False, "Stop at the first row that cannot be scored.")
    dry_run: bool = option(False, "Only say what would be done and how long it takes.")
    shard_rows: int | None = option(
        None, "Rows of a shard: what a crash costs at most. Default: by --evaluations.", min=1
    )
    engine: str = option("local", "local or ray.")
    workers: int = option(1, "Processes that each hold the model.", min=1)
    threads: int | None = option(
        None, "Of a worker on CPU. Default: cores / workers. Changes only rounding.", min=1, max=2**10
    )
    ray_address: str | None = option(None, "Join this Ray cluster instead of starting a local one.")
    worker_cpus: float = option(1.0, "CPUs that Ray sets aside for a worker.")
    worker_gpus: float = option(0.0, "GPUs that Ray sets aside for a worker; 0.5 lets two share one.")


PANELS = {ModelSpec: "Model", PrecisionOptions: "Precision", ReadingOptions: "Rows", RunOptions: "Run"}
"""Headings of the groups in --help."""
