"""LLaDA 2.0 and 2.1: recognised by `model_type` "llada2_moe".

A mixture of experts that makes text block after block. Logits are about their own position. Of a head only the first
half knows where it is. Its configuration says neither the mask token, which is in the tokenizer, nor the size of a
block: 32 for the published models.
"""

from pathlib import Path
from typing import Any

import torch

from infodis.models.adapters.decoder import Wiring, check_fixed, decoder_shape, load_decoder
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.weights import Weights, needed
from infodis.models.nets.experts import ExpertShape
from infodis.models.nets.llama import LlamaShape
from infodis.models.options import ModelOptions

HONOURS = ("block_size", "block_origin", "mask_token")
NAMES = {
    "model.word_embeddings.": "model.embed_tokens.",
    ".attention.dense.": ".self_attn.o_proj.",
    ".attention.query_layernorm.": ".self_attn.q_norm.",
    ".attention.key_layernorm.": ".self_attn.k_norm.",
    ".mlp.gate.expert_bias": ".mlp.bias",
    ".mlp.shared_experts.": ".mlp.shared.",
}
FUSED = ".attention.query_key_value."
FIXED = {
    "use_qkv_bias": False,
    "use_qk_norm": True,
    "use_bias": False,
    "norm_head": False,
    "score_function": "sigmoid",
    "norm_topk_prob": True,
    "moe_router_enable_expert_bias": True,
}
"""What all published models have; another value is another network."""
MASK_RATES = (0.3, 0.8)
"""Shares of a block that were masked while it was fine-tuned."""


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("model_type") == "llada2_moe"


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    check_fixed(directory, config, FIXED)
    blocks = options.block_layout(config.get("block_size"))
    shape = decoder_shape(
        directory,
        config,
        query_norms=True,
        turned=config.get("partial_rotary_factor", 0.5),
        experts=_experts(config),
        dense=config.get("first_k_dense_replace", 0),
    )
    wiring = Wiring("llada2", ("<|mask|>",), blocks, mask_rates=MASK_RATES)
    return load_decoder(directory, config, options, shape, wiring, prepare=lambda weights: _prepared(weights, shape))


def _experts(config: dict[str, Any]) -> ExpertShape:
    count, chosen, inner = needed(config, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    groups, kept, scale = needed(config, "n_group", "topk_group", "routed_scaling_factor")
    return ExpertShape(
        count,
        chosen,
        inner,
        shared=inner * (config.get("num_shared_experts") or 0),
        scoring="sigmoid",
        groups=groups,
        groups_kept=kept,
        normalised=chosen > 1,
        scale=scale,
    )


def _prepared(weights: Weights, shape: LlamaShape) -> Weights:
    """Under the names of other decoders, with queries, keys and values apart."""
    found: Weights = {}
    for key, tensor in weights.items():
        if FUSED in key:
            kept = shape.head * shape.key_heads
            parts = torch.split(tensor, [tensor.shape[0] - 2 * kept, kept, kept])
            found |= {key.replace(FUSED, f".self_attn.{n}_proj."): p for n, p in zip("qkv", parts, strict=True)}
            continue
        for theirs, ours in NAMES.items():
            key = key.replace(theirs, ours)
        found[key] = tensor
    return found
