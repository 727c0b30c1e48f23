"""`infodis.load`: a model by its name."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import torch

from infodis.device import device_named
from infodis.errors import InputError
from infodis.models import adapters
from infodis.models.adapters import LoadedModel
from infodis.models.adapters.tokenizer import token_count
from infodis.models.files import ModelFiles, locate
from infodis.models.model import Model
from infodis.models.options import ModelOptions
from infodis.models.tokenizers import Tokenizer


def load(spec: str | Path, **options: Any) -> Model:
    """A model by name: one that ships with infodis, a directory, or a name on the Hugging Face hub.

    Args:
        spec: a bundled name; a directory with a `config.json` (a checkpoint of ours, of RADD or SEDD, LLaDA, Dream,
            MDLM, or any masked language model of transformers); a training run; `owner/name` on the hub.
        tokenizer: for checkpoints that come without one: `text8`, `dna`, `characters:<alphabet>`, the path of a
            tokenizer.json, or a `Tokenizer`.
        device: `auto` (an NVIDIA GPU, an Apple one (mps) or the CPU, the first that is there), `cpu`, `cuda`, ...
        dtype: what the network computes in: float32, bfloat16 or float16. Softmax is always float32.
        autocast: compute in bfloat16 where torch thinks that is safe.
        compile: run the network through torch.compile; the first batches take longer.
        batch_tokens: tokens of a batch, padding included; on a GPU it is found out by a probe unless given.
        trust_remote_code: run code that comes with the model. Nothing of the kind is needed for the families above.

    >>> model = load("text8-tiny")
    >>> model.decode(model.encode("some text"))
    'some text'
    """
    return load_with(spec, ModelOptions(**options))


load.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what help() and editors show
    [
        inspect.signature(load).parameters["spec"],
        *(
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in inspect.signature(ModelOptions).parameters.values()
        ),
    ]
)


def load_with(spec: str | Path, options: ModelOptions) -> Model:
    """`load`, with its options as one value."""
    directory, device = locate(spec), device_named(options.device)
    files = ModelFiles.of(directory, options)
    loaded = adapters.load_model(directory, dataclasses.replace(options, device=str(device)))
    files.check_unchanged()
    tokenizer = options.named_tokenizer
    if tokenizer is not None:
        loaded = with_tokenizer(loaded, tokenizer, where=directory)
    if options.compile:  # a bound method is replaced by a compiled one, which mypy takes for a mistake
        loaded.network.features = torch.compile(loaded.network.features, dynamic=True)  # type: ignore[method-assign]
    return Model(str(spec), loaded, device, options.autocast, files, options.batch_tokens)


def with_tokenizer(loaded: LoadedModel, tokenizer: Tokenizer, *, where: Path) -> LoadedModel:
    """A model that came without a tokenizer, with the one that the user names."""
    if loaded.tokenizer not in (None, tokenizer):
        raise InputError(f"{where} has a tokenizer of its own. Leave the other one out.")
    if tokenizer.vocab_size > loaded.network.vocab_size:
        raise InputError(
            f"The tokenizer knows {tokenizer.vocab_size} tokens, {where} only {loaded.network.vocab_size}. "
            "Name the right one."
        )
    loaded.network.tokens = token_count(tokenizer, loaded.network.tokens)
    return dataclasses.replace(loaded, tokenizer=tokenizer)
