"""Commands about models: train them, sample from them, score long texts with them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from infodis.cli.screen import console, progress_console
from infodis.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from infodis.model import Model

ModelName = Annotated[str, typer.Option("--model", "-m", help="A model that ships with infodis, or a directory.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]


def train(
    config: Annotated[Path, typer.Argument(help="A TOML file; see docs/training.md.")],
    out: Annotated[Path, typer.Option(help="Directory for checkpoints and metrics.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last checkpoint in --out, if any.")] = False,
) -> None:
    """Train a RADD or SEDD network. Kill it at any moment; --resume goes on as if nothing had happened.

    Example: [bold]infodis train recipes/text8-tiny-1.toml --out runs/text8[/bold]

    Several processes: [bold]accelerate launch --num_processes 2 -m infodis train CONFIG --out OUT[/bold]
    """
    from infodis import train as training
    from infodis.train.watch import watching

    settings = training.read_config(config)
    with watching(progress_console) as watcher:
        best = training.train(settings, out, base=config.parent, resume=resume, watcher=watcher)
    console.print(f"Best checkpoint: {best}")


def export(
    run: Annotated[Path, typer.Argument(help="A training run or a checkpoint.")],
    out: Annotated[Path, typer.Argument(help="A new directory.")],
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16: what weights are stored in.")] = "float32",
) -> None:
    """Write the best checkpoint of a run without what only training needs, in fewer bytes if asked.

    Example: [bold]infodis export runs/text8 my-model --dtype float16[/bold]
    """
    import torch

    from infodis import checkpoint, model

    kinds = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if dtype not in kinds:
        raise InputError(f"dtype is one of {', '.join(kinds)}; got {dtype!r}.")
    if out.exists():
        raise InputError(f"{out} already exists. Choose another directory.")
    network, spec = checkpoint.load(model.locate(run))
    weights = {name: tensor.to(kinds[dtype]) for name, tensor in network.state_dict().items()}
    with checkpoint.atomic_directory(out) as directory:
        checkpoint.save(directory, spec, weights)
    size = sum(file.stat().st_size for file in out.iterdir())
    console.print(f"{out}: {sum(t.numel() for t in weights.values()):,} parameters, {size / 1e6:.2f} MB")


def sample(
    model: ModelName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many sequences.")] = 4,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens in a sequence; as trained unless given.")] = None,
    template: Annotated[
        str | None,
        typer.Option(help="A text with _ (or --gap) for every token to fill in: prompt or infill."),
    ] = None,
    gap: Annotated[str, typer.Option(help="The character of --template that stands for a token to fill in.")] = "_",
    sampler: Annotated[
        str, typer.Option(help="one-by-one, ancestral, confident, or one of them in blocks, like one-by-one:32.")
    ] = "one-by-one",
    steps: Annotated[int, typer.Option(min=1, help="Forward passes of the ancestral sampler.")] = 64,
    at_once: Annotated[int, typer.Option(min=1, help="Tokens that the confident sampler reveals in a pass.")] = 1,
    temperature: Annotated[float, typer.Option(help="Below 1: more typical text.")] = 1.0,
    greedy: Annotated[bool, typer.Option(help="Take the likeliest token instead of drawing one.")] = False,
    seed: Seed = 0,
    device: Device = "cpu",
) -> None:
    """Draw sequences from a model.

    Example: [bold]infodis sample -m runs/text8 --template "the capital of ______" --sampler confident[/bold]
    """
    from infodis import sampling
    from infodis.model import load
    from infodis.predictor import Tempered

    loaded = load(model, device=device)
    start = _start(loaded, template, gap, length or loaded.spec.length)
    chosen = sampling.by_name(sampler, steps=steps, at_once=at_once, greedy=greedy)
    predictor = loaded if temperature == 1 else Tempered(loaded, temperature)
    for row in sampling.sample(predictor, start.expand(count, -1), sampler=chosen, seed=seed):
        console.print(loaded.decode(row), markup=False, highlight=False, soft_wrap=True)


def _start(loaded: "Model", template: str | None, gap: str, length: int) -> "Tensor":
    """One row to begin with: masks only, or the template."""
    import torch

    if template is None:
        return torch.full((1, length), loaded.mask_token)
    if len(gap) != 1:
        raise InputError(f"--gap is one character, got {gap!r}.")
    parts = template.split(gap)
    pieces = []
    for number, part in enumerate(parts):
        if number:
            pieces.append(torch.tensor([loaded.mask_token]))
        if part:
            pieces.append(loaded.encode(part))
    return torch.cat(pieces).unsqueeze(0)


def perplexity(
    file: Annotated[Path, typer.Argument(help="Text or JSONL, either gzipped.")],
    model: ModelName,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens in a window; as in training unless given.")] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens scored per window, given the rest. Default: all, given nothing.")
    ] = None,
    windows: Annotated[int | None, typer.Option(min=1, help="Score so many, evenly spread. Default: all.")] = None,
    evaluations: Annotated[int, typer.Option(min=2, help="Forward rows per window.")] = 32,
    seed: Seed = 0,
    device: Device = "cpu",
) -> None:
    """Bits per token of a long text, with the error from masks and the error from text.

    Example: [bold]infodis perplexity novel.txt --model runs/text8 --windows 200[/bold]
    """
    import torch

    from infodis import perplexity as rolling
    from infodis.data import encode_file
    from infodis.model import load

    loaded = load(model, device=device)
    tokens = torch.from_numpy(encode_file(file, loaded.tokenizer))
    cut = rolling.Windows(length or loaded.spec.length, stride)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("windows"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console, transient=True) as bar:
        task = bar.add_task("", total=None)
        found = rolling.perplexity(
            loaded,
            tokens,
            windows=cut,
            limit=windows,
            evaluations=evaluations,
            seed=seed,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    table = Table("quantity", "value", title=f"{file.name} under {model}", show_header=False)
    table.add_row("nll", f"{found.bits_per_token:.4f} bits per token")
    table.add_row("standard error, masks", f"{found.per_token(found.monte_carlo_error):.4f} bits per token")
    if found.sampling_error is not None:
        table.add_row("standard error, text and masks", f"{found.per_token(found.sampling_error):.4f} bits per token")
    table.add_row("perplexity", f"{found.perplexity:.3f}")
    table.add_row("tokens scored", f"{found.tokens:,} in {found.windows:,} windows of {cut.length}")
    table.add_row("forward rows", f"{found.evaluations:,}")
    table.add_row("model", loaded.fingerprint)
    console.print(table)
