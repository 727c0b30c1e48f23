"""Options that commands share, in groups: a group is a value, and a command that takes one gets all of its options."""

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

if TYPE_CHECKING:
    from infodis.estimate import Request
    from infodis.jobs.inputs import InputSpec, Reading
    from infodis.jobs.jobs import ModelSpec


MOST = 2**63 - 1
"""As much as a column of a table, or a counter of a library, can hold."""

Seed = Annotated[int, typer.Option(min=-(2**63), max=MOST, help="The same seed gives the same masks for the same row.")]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are groups are replaced by the options in them."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    signature = inspect.signature(command)
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        kinds = typing.get_type_hints(groups[name], include_extras=True)
        for field in dataclasses.fields(groups[name]):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            kind = _in_panel(kinds[field.name], groups[name].PANEL)
            parameters.append(
                inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            )

    @functools.wraps(command)
    def expanded(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    expanded.__doc__ = _flowing(inspect.getdoc(command) or "")
    del expanded.__wrapped__
    return expanded


def _in_panel(kind: Any, panel: str) -> Any:
    """An option's type, shown under a heading of its own in --help."""
    option = copy.copy(kind.__metadata__[0])
    option.rich_help_panel = panel
    return Annotated[kind.__origin__, option]


def _flowing(text: str) -> str:
    """Paragraphs without line ends, which --help would keep."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Which model, and how it computes."""

    PANEL: ClassVar = "Model"

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="A model that ships with infodis, a directory, or a name on the hub.",
            show_default=True,
        ),
    ] = "text8-tiny"
    tokenizer: Annotated[
        str | None,
        typer.Option(help="For models that come without one: text8, dna, characters:<alphabet>, or a tokenizer.json."),
    ] = None
    device: Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, mps, ...")] = "auto"
    dtype: Annotated[str, typer.Option(help="What the network computes in: float32, bfloat16 or float16.")] = "float32"
    autocast: Annotated[bool, typer.Option("--autocast", help="Compute in bfloat16 where torch thinks it safe.")] = (
        False
    )
    compile: Annotated[bool, typer.Option("--compile", help="Run the network through torch.compile.")] = False
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a batch, padding included. On a GPU found by a probe.")
    ] = None
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False

    def spec(self, name: str | None = None) -> "ModelSpec":
        """As the engine takes it; `name` for another model in the same manner."""
        from infodis.jobs.jobs import ModelSpec

        return ModelSpec(
            name or self.model,
            device=self.device,
            dtype=self.dtype,
            tokenizer=self.tokenizer,
            trust_remote_code=self.trust_remote_code,
            autocast=self.autocast,
            compile=self.compile,
            batch_tokens=self.batch_tokens,
        )


@dataclasses.dataclass(frozen=True)
class PrecisionOptions:
    """How much to spend."""

    PANEL: ClassVar = "Precision"

    evaluations: Annotated[
        int | None, typer.Option(min=1, help="Forward rows for each row: 128; with a standard error at most 4,096.")
    ] = None
    standard_error: Annotated[
        float | None, typer.Option(help="Spend on each row what this standard error takes, in nats.")
    ] = None
    relative: Annotated[float | None, typer.Option(help="The same, as a share of the value, e.g. 0.01.")] = None
    design: Annotated[
        str, typer.Option(help="auto, tiled, orders, enumerate, pairs, stratified, uniform, time-free, time-integral.")
    ] = "auto"
    seed: Seed = 0

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

    PANEL: ClassVar = "Rows"

    fields: Annotated[
        list[str] | None, typer.Option("--field", help="Where a field has another name: text=sentence. Repeatable.")
    ] = None
    format: Annotated[
        str | None, typer.Option(help="jsonl, csv, tsv, parquet or text, where the name does not say it.")
    ] = None
    chat_template: Annotated[
        bool, typer.Option("--chat-template", help="Put prompts into the model's chat template.")
    ] = False
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Longest row in tokens. Default: what the model was trained with.")
    ] = None
    truncate: Annotated[
        str | None, typer.Option(help="left or right: cut longer rows there instead of rejecting them.")
    ] = None

    def reading(self) -> "Reading":
        from infodis.jobs.inputs import Reading

        return Reading(chat=self.chat_template, max_length=self.max_length, truncate=self.truncate)

    def input(self, name: str, *, shard_rows: int, limit: int | None) -> "InputSpec":
        """As the engine takes it."""
        from infodis.jobs.inputs import InputSpec, field_names

        return InputSpec(name, shard_rows, limit, self.format, field_names(self.fields or []))


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Where results go, and who does the work."""

    PANEL: ClassVar = "Run"

    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=".jsonl or .parquet. Without it records go to standard output.")
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, max=MOST, help="At most so many rows.")] = None
    resume: Annotated[bool, typer.Option(help="Go on where an earlier run ended, or begin anew and replace it.")] = True
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first row that cannot be scored.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done and how long it takes.")] = (
        False
    )
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of a shard: what a crash costs at most. Default: by --evaluations.")
    ] = None
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local"
    workers: Annotated[int, typer.Option(min=1, help="Processes that each hold the model.")] = 1
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=2**10, help="Of a worker on CPU. Default: cores / workers. Changes only rounding."),
    ] = None
    ray_address: Annotated[str | None, typer.Option(help="Join this Ray cluster instead of starting a local one.")] = (
        None
    )
    worker_cpus: Annotated[float, typer.Option(help="CPUs that Ray sets aside for a worker.")] = 1.0
    worker_gpus: Annotated[
        float, typer.Option(help="GPUs that Ray sets aside for a worker; 0.5 lets two share one.")
    ] = 0.0
