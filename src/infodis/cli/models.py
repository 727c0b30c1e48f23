"""Commands about models: train them, sample from them, score long texts with them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infodis.cli.options import Seed, with_options
from infodis.cli.screen import load_model, progress_console, write_line
from infodis.errors import InputError
from infodis.models.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from infodis.models.tokenizers import Tokenizer

BatchSize = Annotated[int | None, typer.Option(min=1, help="At most so many rows per forward pass.")]
ChatTemplate = Annotated[bool, typer.Option("--chat-template", help="Put prompts into the model's chat template.")]


def train(
    config: Annotated[Path, typer.Argument(help="A TOML file; see docs/training.md.")],
    out: Annotated[Path, typer.Option(help="Directory for checkpoints and metrics.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last checkpoint in --out, if any.")] = False,
) -> None:
    """Train a RADD or SEDD network. Kill it at any moment: --resume continues after the last checkpoint.

    Example: [bold]infodis train recipes/text8-tiny-1.toml --out runs/text8[/bold]

    Several processes: [bold]accelerate launch --num_processes 2 -m infodis train CONFIG --out OUT[/bold]
    """
    from infodis import train as training
    from infodis.train.display import console_reporter

    settings = training.read_config(config)
    with console_reporter(progress_console) as reporter:
        best = training.train(settings, out, base=config.parent, resume=resume, reporter=reporter)
    if os.environ.get("RANK", "0") == "0":
        write_line(f"Best checkpoint: {best}")


def export(
    run: Annotated[Path, typer.Argument(help="A training run or a checkpoint.")],
    out: Annotated[Path, typer.Argument(help="A new directory.")],
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16: what weights are stored in.")] = "float32",
) -> None:
    """Write the best checkpoint of a run without what only training needs, in fewer bytes if asked.

    Example: [bold]infodis export runs/text8 my-model --dtype float16[/bold]
    """
    import torch

    from infodis.files import atomic_directory
    from infodis.models import checkpoint
    from infodis.models.files import locate

    kinds = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if dtype not in kinds:
        raise InputError(f"dtype is one of {', '.join(kinds)}; got {dtype!r}.")
    if os.path.lexists(out):
        raise InputError(f"{out} already exists. Choose another directory.")
    network, spec = checkpoint.load(locate(run))
    weights = {name: tensor.to(kinds[dtype]) for name, tensor in network.state_dict().items()}
    with atomic_directory(out) as directory:
        checkpoint.save(directory, spec, weights)
    size = sum(file.stat().st_size for file in out.iterdir())
    write_line(f"{out}: {sum(t.numel() for t in weights.values()):,} parameters, {size / 1e6:.2f} MB")


@with_options
def sample(
    model: ModelSpec,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=2**31, help="How many sequences.")] = 4,
    length: Annotated[
        int | None, typer.Option(min=1, max=2**31, help="Tokens in a sequence; as trained unless given.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="A text with _ (or --gap) for every token to fill in: prompt or infill."),
    ] = None,
    gap: Annotated[str, typer.Option(help="The character of --template that stands for a token to fill in.")] = "_",
    sampler: Annotated[
        str | None,
        typer.Option(
            help="random (default), left-to-right, right-to-left, most-confident, lowest-entropy, largest-margin "
            "(=2: two tokens a pass), above-threshold=0.9, ancestral; in blocks like random:32. For models of uniform "
            "noise tweedie (default) or tau-leaping."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Forward passes. Unless given: 64 of ancestral, tweedie and tau-leaping, one a token of others."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Below 1: more typical text.")] = 1.0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token instead of drawing one.")] = False,
    seed: Seed = 0,
    batch_size: BatchSize = None,
) -> None:
    """Draw sequences from a model, one per line.

    Example: [bold]infodis sample --template "the capital of ______" --sampler most-confident[/bold]
    """
    import torch

    from infodis import sampling
    from infodis.device import device_named
    from infodis.models import checkpoint
    from infodis.models.adapters.radd_sedd import is_uniform
    from infodis.models.files import locate

    if template is not None and length is not None:
        raise InputError("A --template has its own length. Leave --length out.")
    words = model.options.named_tokenizer
    if is_uniform(locate(model.name)):
        if temperature != 1 or greedy:
            raise InputError("Models of uniform noise know no --temperature and no --greedy.")
        network, spec = checkpoint.load(locate(model.name))
        network.to(device_named(model.options.device))
        words = words or spec.tokenizer
        wanted = _wanted(words, template, gap, length or spec.length, model.name)
        rows = sampling.sample_uniform(
            network,
            count,
            wanted.shape[1],
            vocab_size=spec.vocab_size,
            fixed=(wanted != GAP, wanted),
            reverse=sampling.ReverseStep(sampler or "tweedie", steps or 64),
            seed=seed,
            batch_size=batch_size or 64,
        )
    else:
        sampling.sampler_named(sampler or "random")  # what is wrong with it is told before the model is loaded
        loaded = load_model(model)
        words = loaded.loaded.tokenizer
        wanted = _wanted(words, template, gap, length or loaded.length or 128, model.name)
        start = torch.where(wanted == GAP, loaded.mask_token, wanted).expand(count, -1)
        rule = sampling.sampler_named(sampler or "random", steps=steps, tokens=int((wanted == GAP).sum()))
        rows = sampling.sample(
            loaded,
            start,
            rule=rule,
            greedy=greedy,
            temperature=temperature,
            seed=seed,
            batch_size=batch_size or 64,
        )
    assert words is not None  # or there would be no rows
    for row in rows:
        write_line(words.decode(row.tolist()))


GAP = -1
"""Stands for a token to fill in, whatever the model calls its mask."""


def _wanted(words: "Tokenizer | None", template: str | None, gap: str, length: int, model: str) -> "Tensor":
    """One row: what is given, and gaps."""
    import torch

    if words is None:
        raise InputError(f"{model} has no tokenizer to write text with. Name one by --tokenizer.")
    return torch.full((1, length), GAP) if template is None else torch.tensor([_template(words, template, gap)])


def _template(tokenizer: "Tokenizer", template: str, gap: str) -> list[int]:
    """The tokens of a template."""
    if not template:
        raise InputError("--template is empty. Write a text with a gap (_) for every token to fill in.")
    if len(gap) != 1:
        raise InputError(f"--gap is one character, got {gap!r}.")
    found: list[int] = []
    for number, part in enumerate(template.split(gap)):
        found += [GAP] * (number > 0)
        found += tokenizer.encode(part).tolist() if part else []
    return found
