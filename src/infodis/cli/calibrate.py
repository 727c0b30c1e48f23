"""`infodis calibrate`: a surrogate for a model, stored beside it."""

from pathlib import Path
from typing import Annotated

import typer

from infodis.cli.options import with_options
from infodis.cli.screen import check_places, console, counting, load_model
from infodis.models.spec import ModelSpec


@with_options
def calibrate(
    name: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model that ships with infodis, a directory, or a name on the hub."),
    ],
    corpus: Annotated[Path, typer.Argument(help="Text like that to be scored, but none of it: plain, gzip or JSONL.")],
    model: ModelSpec,
    field: Annotated[str, typer.Option(help="Of JSONL rows: the one with the text.")] = "text",
    states: Annotated[
        int | None, typer.Option(min=2, help="Of the hidden Markov model. Default: 256, fewer for a short corpus.")
    ] = None,
    texts: Annotated[int, typer.Option(min=8, help="Texts of 64 tokens at the corpus' end, to fit beta to.")] = 64,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: surrogate.safetensors beside it.")] = None,
) -> None:
    """Fit a hidden Markov model to text and store it beside a model: scores subtract it, and vary less.

    Example: [bold]infodis calibrate out/my-run text8.txt.gz[/bold]
    """
    import torch

    from infodis import __version__
    from infodis.errors import InputError
    from infodis.files import digest_of
    from infodis.models.calibration import calibrate as calibrated
    from infodis.models.surrogate_file import SURROGATE, SurrogateFile
    from infodis.models.text_files import encode_file

    loaded = load_model(model)
    if loaded.blocks is not None or loaded.directory is None:
        raise InputError(f"{name} works block by block, where a surrogate is of no use.")
    path = loaded.directory / SURROGATE if out is None else out
    check_places(None if SurrogateFile.is_one(path) else path)  # an older one is replaced, anything else is not
    tokens = torch.from_numpy(encode_file(corpus, loaded.tokenizer, field)).long()
    with counting("steps") as progress:
        found = calibrated(loaded, tokens, states=states, texts=texts, progress=progress)
    about = {"corpus": corpus.name, "hash": digest_of(corpus), "tokens": len(tokens), "infodis": __version__}
    SurrogateFile(found, loaded.fingerprint, about).save(path)
    console.print(f"{found.predictor}, beta {found.beta}: {path}", soft_wrap=True)
