"""BD3-LM: recognised by `model_type` "bd3lm".

MDLM's network, which makes text block after block and hears of no noise. Since the noise is always zero, its
modulation is a constant, and is multiplied into the weights once: what remains is RADD's network. The last token of
the vocabulary is the mask. The first token of a row was always visible in training (`ignore_bos`), so nothing is said
about it; a text starts with the begin token, which is GPT-2's <|endoftext|>.
"""

import dataclasses
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from infodis.errors import InputError
from infodis.models.adapters.decoder import check_fixed
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import tokenizer_of
from infodis.models.adapters.weights import check_weights, fill, needed
from infodis.models.nets import RADD, SEDD, NetworkShape
from infodis.models.nets.radd import Block
from infodis.models.nets.sedd import ModulatedBlock
from infodis.models.options import ModelOptions

HONOURS = ("block_origin",)
FIXED = {"time_conditioning": False, "cross_attn": True, "adaln": True, "causal": False}
"""What all published models have; another value is another network."""
CLIPPED = ("sampling_eps_min", "sampling_eps_max")
"""Noise levels of its training, which lie among the weights."""
GPT2 = 50257
"""Tokens of GPT-2, of which the last stands at the beginning of a text."""


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("model_type") == "bd3lm"


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    check_fixed(directory, config, FIXED)
    columns, width, condition, layers, heads, size = needed(
        config, "vocab_size", "hidden_dim", "cond_dim", "n_blocks", "n_heads", "block_size"
    )
    blocks = options.block_layout(size)
    if blocks.size < 2:
        raise InputError(f"Blocks of a BD3-LM must have at least 2 tokens, {directory} says {blocks.size}.")
    shape = NetworkShape(width=width, blocks=layers, heads=heads, condition=condition, block_size=blocks.size)
    check_weights(directory, config)
    with torch.device("meta"):
        modulated, network = SEDD(columns - 1, shape, scaled=False), RADD(columns - 1, shape)
    fill(
        modulated,
        directory,
        dataclasses.replace(options, dtype="float32"),
        lambda key: None if key in CLIPPED else key.removeprefix("backbone."),
    )
    fold(modulated, network.to_empty(device=options.device))
    network.to(options.torch_dtype).eval().requires_grad_(False)
    network.first_predicted = 1
    begin = GPT2 - 1 if network.vocab_size == GPT2 else None
    length = config.get("model_length")
    return LoadedModel("bd3lm", network, tokenizer_of(directory), length, None, begin_token=begin, blocks=blocks)


@torch.no_grad()
def fold(modulated: SEDD, network: RADD) -> None:
    """Give a network without noise the weights of one that hears of zero noise, whose modulation is then a constant."""
    sigma = torch.zeros(1, device=modulated.vocab_embed.embedding.device)
    condition = F.silu(modulated.sigma_map(sigma))[0]
    network.vocab_embed.load_state_dict(modulated.vocab_embed.state_dict())
    for given, made in zip(modulated.blocks, network.blocks, strict=True):
        _fold_block(cast(ModulatedBlock, given), cast(Block, made), condition)
    last = modulated.output_layer
    shift, scale = last.adaLN_modulation(condition).chunk(2)
    _fold_norm(last.norm_final, network.output_layer.norm_final, shift, scale)
    network.output_layer.linear.load_state_dict(last.linear.state_dict())


def _fold_block(given: ModulatedBlock, made: Block, condition: torch.Tensor) -> None:
    shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = given.adaLN_modulation(condition).chunk(6)
    _fold_norm(given.norm1, made.norm1, shift, scale)
    _fold_norm(given.norm2, made.norm2, shift_mlp, scale_mlp)
    made.attn_qkv.load_state_dict(given.attn_qkv.state_dict())
    made.mlp.load_state_dict(given.mlp.state_dict())
    made.attn_out.weight.copy_(gate.unsqueeze(1) * given.attn_out.weight)
    second = cast(nn.Linear, made.mlp[2])
    second.weight.mul_(gate_mlp.unsqueeze(1))
    second.bias.mul_(gate_mlp)


def _fold_norm(given: nn.LayerNorm, made: nn.LayerNorm, shift: torch.Tensor, scale: torch.Tensor) -> None:
    made.weight.copy_(given.weight * (1 + scale))
    made.bias.copy_(shift)
