"""Decoders in the layout of transformers (Llama, Qwen2, Qwen3): what Dream and most block diffusion models are made of.

Such a family differs in its mask token, its blocks, and whether its output is about the next position; sizes, names of
weights and tokenizer are read here.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import (
    begin_token,
    special_token,
    token_count,
    tokenizer_of,
    transformers_tokenizer,
)
from infodis.models.adapters.weights import Weights, check_weights, fill, needed
from infodis.models.nets.llama import Llama, LlamaShape
from infodis.models.options import ModelOptions
from infodis.models.tokenizers import Tokenizer

NAMES = {
    "model.": "",
    "lm_head.": "head.",
    "embed_tokens.": "embed.",
    "layers.": "blocks.",
    "input_layernorm.": "norm1.",
    "post_attention_layernorm.": "norm2.",
    "self_attn.": "",
    "q_proj.": "query.",
    "k_proj.": "key.",
    "v_proj.": "value.",
    "q_norm.": "query_norm.",
    "k_norm.": "key_norm.",
    "o_proj.": "out.",
    "mlp.gate.weight": "mlp.router.weight",
    "gate_proj.": "gate.",
    "up_proj.": "up.",
    "down_proj.": "down.",
}
FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False}
"""What all published models have; another value is another network."""


@dataclasses.dataclass(frozen=True)
class Wiring:
    """In what a family of decoders differs from others."""

    family: str
    mask_pieces: tuple[str, ...]
    """What its mask may be called in a tokenizer."""
    blocks: BlockLayout | None = None
    shifted: bool = False
    mask_rates: tuple[float, float] = (0.0, 1.0)


def decoder_shape(directory: Path, config: dict[str, Any], **more: Any) -> LlamaShape:
    """The sizes that a configuration says, and what is known of the family."""
    check_fixed(directory, config, FIXED)
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    columns, width, blocks, heads, key_heads = needed(config, *sizes)
    inner, epsilon = needed(config, "intermediate_size", "rms_norm_eps")
    base, head_width = rotary_base(directory, config), config.get("head_dim") or 0
    how: dict[str, Any] = {"exact_rotation": False, "head_width": head_width, **more}
    return LlamaShape(columns, width, blocks, heads, key_heads, inner, base, epsilon, **how)


def check_fixed(directory: Path, config: dict[str, Any], fixed: dict[str, Any]) -> None:
    """Refuse a network that is not the published one."""
    other = [f"{key} = {config[key]!r}" for key, value in fixed.items() if config.get(key, value) != value]
    if other:
        raise InputError(
            f"{directory} is a {config.get('model_type')} that this code does not know: {', '.join(other)}. Only what "
            f"is published is read ({', '.join(f'{key} = {value!r}' for key, value in fixed.items())})."
        )


def rotary_base(directory: Path, config: dict[str, Any]) -> float:
    """Of the rotary frequencies, which must not be stretched. Recent versions of transformers put it into a table."""
    said = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = said.get("rope_type", said.get("type", "default"))
    if kind != "default":
        raise InputError(
            f"Rotary positions must be plain, {directory} stretches them (rope_type {kind!r}), which this code does "
            "not do. Take a model without."
        )
    base = said.get("rope_theta", config.get("rope_theta"))
    return needed({**config, "rope_theta": base}, "rope_theta")[0]


def load_decoder(
    directory: Path,
    config: dict[str, Any],
    options: ModelOptions,
    shape: LlamaShape,
    wiring: Wiring,
    *,
    prepare: Callable[[Weights], Weights] = dict,
) -> LoadedModel:
    """Read weights and tokenizer. `prepare` turns weights of a file that have another layout into this one."""
    tokenizer, missing = decoder_tokenizer(directory, options)
    mask_token = mask_token_of(directory, config, options, tokenizer, wiring.mask_pieces)
    tied = bool(config.get("tie_word_embeddings"))
    check_weights(directory, config)
    with torch.device("meta"):
        network = Llama(
            shape,
            mask_token=mask_token,
            tokens=token_count(tokenizer, shape.columns),
            shifted=wiring.shifted,
            block_size=0 if wiring.blocks is None else wiring.blocks.size,
        )
    fill(network, directory, options, rename, lambda weights: with_head(prepare(weights)) if tied else prepare(weights))
    if tied:
        tie(network, directory)
    begins = special_token(directory, tokenizer, "bos_token"), config.get("bos_token_id")
    longest = config.get("max_position_embeddings")
    return LoadedModel(
        wiring.family,
        network,
        tokenizer,
        longest,
        longest,
        pad_token=config.get("pad_token_id") or 0,
        begin_token=begin_token(begins, tokenizer, shape.columns) if wiring.shifted else None,
        notes=() if missing is None else (missing,),
        blocks=wiring.blocks,
        mask_rates=wiring.mask_rates,
    )


def decoder_tokenizer(directory: Path, options: ModelOptions) -> tuple[Tokenizer | None, str | None]:
    """The tokenizer of a directory, or that which the user names; and why there is none."""
    found, missing = tokenizer_of(directory), None
    if found is None:  # some are published with Qwen's files only, under a class of their own
        found, missing = transformers_tokenizer(directory, kind="Qwen2Tokenizer")
    if found is None and options.named_tokenizer is not None:
        return options.named_tokenizer, None
    return found, missing


def mask_token_of(
    directory: Path,
    config: dict[str, Any],
    options: ModelOptions,
    tokenizer: Tokenizer | None,
    pieces: tuple[str, ...],
) -> int:
    """What the user says, else the configuration, the tokenizer's settings, or the tokenizer itself."""
    number = getattr(tokenizer, "number", lambda piece: None)
    known = [options.mask_token, config.get("mask_token_id"), special_token(directory, tokenizer, "mask_token")]
    found = next((one for one in (*known, *map(number, pieces)) if one is not None), None)
    if found is None:
        raise InputError(
            f"Something must say which token is the mask; neither config.json nor a tokenizer of {directory} does "
            f"(looked for {', '.join(pieces)}). Give mask_token=... (--mask-token ...), or add the model's tokenizer."
        )
    return found


def rename(key: str) -> str:
    """What a weight of a checkpoint is called here."""
    name = key
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours, 1)
    return name


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def with_head(weights: Weights) -> Weights:
    """The embedding is the last layer too, of models that do not hold the latter."""
    return {HEAD: weights[EMBEDDING], **weights} if EMBEDDING in weights else weights


def tie(network: Llama, directory: Path) -> None:
    """Make one of embedding and last layer. A file that holds two which differ contradicts its configuration."""
    if not torch.equal(network.embed.weight, network.head.weight):
        raise InputError(
            f"{directory} says tie_word_embeddings, but its lm_head is not its embedding. If the lm_head is meant, put "
            '"tie_word_embeddings": false into config.json; else take lm_head.weight out of the weights.'
        )
    network.head.weight = network.embed.weight
