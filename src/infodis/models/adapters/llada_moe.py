"""LLaDA-MoE: recognised by its architecture, "LLaDAMoEModelLM"; its `model_type` is that of LLaDA.

LLaDA with experts: it sees a row at once, and logits are about their own position. The scores of the chosen experts
are not divided by their sum, whatever its configuration says of that: its code does not either. The mask token is in
the tokenizer.
"""

from pathlib import Path
from typing import Any

from infodis.models.adapters.decoder import Wiring, check_fixed, decoder_shape, load_decoder
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.weights import needed
from infodis.models.nets.experts import ExpertShape
from infodis.models.options import ModelOptions

HONOURS = ("mask_token",)
FIXED = {
    "qk_layernorm": True,
    "clip_qkv": None,
    "shared_expert_intermediate_size": None,
    "moe_router_enable_expert_bias": False,
    "moe_router_score_function": "softmax",
    "partial_rotary_factor": 1,
}
"""What all published models have; another value is another network."""


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return "LLaDAMoEModelLM" in (config.get("architectures") or ())


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    check_fixed(directory, config, FIXED)
    names = ("num_hidden_layers", "num_experts", "num_experts_per_tok", "expert_intermediate_size")
    layers, count, chosen, inner = needed(config, *names)
    check_fixed(directory, config, {"moe_layer_freq": [1] * layers})
    experts = ExpertShape(count, chosen, inner, normalised=False)
    shape = decoder_shape(directory, {**config, "intermediate_size": inner}, query_norms=True, experts=experts)
    return load_decoder(directory, config, options, shape, Wiring("llada-moe", ("<|mask|>",)))
