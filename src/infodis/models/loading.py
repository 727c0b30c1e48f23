"""`infodis.load`: a model by its name, or one that is in memory."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn

from infodis.device import device_named
from infodis.errors import InputError
from infodis.models import adapters
from infodis.models.adapters import LoadedModel
from infodis.models.adapters.tokenizer import token_count
from infodis.models.files import ModelFiles, locate
from infodis.models.in_memory import wrap
from infodis.models.model import Model
from infodis.models.nets.block_network import BlockNetwork
from infodis.models.nets.network import Network
from infodis.models.options import ModelOptions
from infodis.models.tokenizers import Tokenizer

IN_MEMORY = ("tokenizer", "mask_token", "vocab_size", "causal", "allow_unknown")
"""Options of a model that is in memory."""


def load(spec: str | Path | nn.Module | Model, **options: Any) -> Model:
    """A model by name (one that ships with infodis, a directory, a name on the Hugging Face hub), or one in memory.

    A model in memory is neither copied nor changed: it stays on its device, and is scored in evaluation mode, after
    which it is in the mode that it was in.

    Args:
        spec: a bundled name; a directory with a `config.json` (a checkpoint of ours, of RADD or SEDD, LLaDA, Dream,
            MDLM, a model of uniform or mixed noise such as Duo or GIDD, a block diffusion model such as SDAR, or any
            masked or autoregressive language model of transformers);
            a training run; `owner/name` on the hub; a model of transformers; any torch module from token ids (rows x
            length) to logits (rows x length x tokens).
        trainable: whether weights that are read from files get gradients (`infodis.log_likelihood`). Those of a model
            in memory keep what they have.
        tokenizer: for models that come without one: `text8`, `dna`, `characters:<alphabet>`, the path of a
            tokenizer.json, or a tokenizer of transformers.
        mask_token: the number of the mask token, where neither the model's files nor its tokenizer say it.
        vocab_size: of a model in memory, where neither its configuration nor its tokenizer says it.
        device: `auto` (an NVIDIA GPU, an Apple one (mps) or the CPU, the first that is there), `cpu`, `cuda`, ...
        dtype: what the network computes in: float32, bfloat16 or float16. Softmax is always float32.
        autocast: compute in bfloat16 where torch thinks that is safe.
        compile: run the network through torch.compile; the first batches take longer.
        batch_tokens: tokens of a batch, padding included; on a GPU it is found out by a probe unless given.
        trust_remote_code: run code that comes with the model. Nothing of the kind is needed for the families above.
        block_size: tokens of a block, for models of block diffusion whose configuration does not say it; 0 for one that
            sees a row at once, where its files do not tell (A2D).
        block_origin: where their blocks are counted from: `global`, the first token of the row, which is the default,
            or `response`, the first token that is scored.
        causal: the model is autoregressive: its logits are about the next token. Known of a GPT-2, a Llama, a Qwen, ...
        allow_unknown: read texts of which more than a tenth is unknown to the tokenizer, instead of refusing them.

    >>> model = load("text8-tiny")
    >>> model.decode(model.encode("some text"))
    'some text'

    >>> net = torch.nn.Sequential(torch.nn.Embedding(28, 8), torch.nn.Linear(8, 27))
    >>> load(net, tokenizer="text8", mask_token=27)
    Model('Sequential', in memory, 27 tokens, mask token 27, Characters, on cpu)
    """
    trainable = bool(options.pop("trainable", False))
    if isinstance(spec, str | Path):
        if options.pop("vocab_size", None) is not None:
            raise InputError(
                f"vocab_size is for a model in memory, got it with {spec!r}, whose files say it. Leave it out."
            )
        model = load_with(spec, ModelOptions(**options))
        model.network.requires_grad_(trainable)
        return model
    if isinstance(spec, Model) and not options:
        return spec
    if not isinstance(spec, nn.Module):
        raise InputError(
            f"A model must be a name, a directory or a torch module, got a {type(spec).__name__}. A predictor of your "
            "own needs no loading: give it to infodis.nll as it is."
        )
    beyond = sorted(set(options) - set(IN_MEMORY))
    if beyond:
        raise InputError(
            f"A model in memory is taken as it is, with {', '.join(IN_MEMORY)} at most, got {', '.join(beyond)}. Move "
            "or convert the model before: model.to(...)."
        )
    return wrap(spec, **options)


load.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what help() and editors show
    [
        inspect.signature(load).parameters["spec"],
        inspect.Parameter("trainable", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool),
        *(
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in inspect.signature(ModelOptions).parameters.values()
        ),
        inspect.Parameter("vocab_size", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=int | None),
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
    if options.compile:
        _compile(loaded.network)
    return Model(
        str(spec),
        loaded,
        device,
        options.autocast,
        files,
        options.batch_tokens,
        options.wiring,
        options.allow_unknown,
    )


def _compile(network: Network) -> None:
    """Replace what a network is run by with what torch makes of it."""
    parts = ("features", "encode", "block_features") if isinstance(network, BlockNetwork) else ("features",)
    for part in parts:
        setattr(network, part, torch.compile(getattr(network, part), dynamic=True))
    network.resumes = isinstance(network, BlockNetwork)  # the cache of transformers is not compiled


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
