"""SDAR, TraDo and models trained from them: recognised by `model_type` "sdar" or "sdar_moe".

Qwen3 (or its mixture of experts) that makes text block after block. Logits are about their own position. Most published
configurations say neither the mask token, which is in the tokenizer, nor the size of a block, which the user then has
to say: 4 for the models that are called after no other size.
"""

from pathlib import Path
from typing import Any

from infodis.models.adapters.decoder import Wiring, check_fixed, decoder_shape, load_decoder
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.weights import needed
from infodis.models.nets.experts import ExpertShape
from infodis.models.options import ModelOptions

HONOURS = ("block_size", "block_origin", "mask_token")
MASKS = ("<|MASK|>", "<MASK>", "<|mask|>")


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("model_type") in ("sdar", "sdar_moe")


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    blocks = options.block_layout(config.get("block_size"))
    experts = _experts(directory, config) if config["model_type"] == "sdar_moe" else None
    shape = decoder_shape(directory, config, query_norms=True, experts=experts)
    return load_decoder(directory, config, options, shape, Wiring("sdar", MASKS, blocks))


def _experts(directory: Path, config: dict[str, Any]) -> ExpertShape:
    check_fixed(directory, config, {"decoder_sparse_step": 1, "mlp_only_layers": []})
    count, chosen, inner = needed(config, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    return ExpertShape(count, chosen, inner, normalised=bool(config.get("norm_topk_prob")))
