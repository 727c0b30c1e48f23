"""LLaDA: recognised by `model_type` "llada".

A Llama without causal mask, run by our own code. Its published code needs old versions of transformers, and until
October 2025 ignored attention masks without a word. The mask token is in the configuration, not in the tokenizer; the
output has more columns than there are tokens, and neither those nor the mask are excluded there. Here both have
probability zero, and the rest is renormalised. Logits are about their own position.
"""

from pathlib import Path
from typing import Any

import torch

from infodis.errors import InputError
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import token_count, tokenizer_of
from infodis.models.adapters.weights import check_weights, fill, needed
from infodis.models.nets.llama import Llama, LlamaShape
from infodis.models.options import ModelOptions

HONOURS = ("mask_token",)
NAMES = {
    "wte.": "embed.",
    "ln_f.": "norm.",
    "attn_norm.": "norm1.",
    "ff_norm.": "norm2.",
    "q_proj.": "query.",
    "k_proj.": "key.",
    "v_proj.": "value.",
    "attn_out.": "out.",
    "ff_proj.": "mlp.gate.",
    "up_proj.": "mlp.up.",
}
FIXED = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "attention_layer_norm": False,
    "weight_tying": False,
    "scale_logits": False,
    "input_emb_norm": False,
    "block_group_size": 1,
}
"""What all published models have; another value is another network."""


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("model_type") == "llada"


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    other = [f"{key} = {config[key]!r}" for key, value in FIXED.items() if config.get(key, value) != value]
    if other:
        raise InputError(f"{directory} is a LLaDA that this code does not know: {', '.join(other)}.")
    sizes = ("d_model", "n_layers", "n_heads", "mlp_hidden_size", "vocab_size", "rope_theta", "rms_norm_eps")
    width, blocks, heads, inner, vocabulary, base, epsilon = needed(config, *sizes)
    shape = LlamaShape(
        columns=config.get("embedding_size") or vocabulary,
        width=width,
        blocks=blocks,
        heads=heads,
        key_heads=config.get("n_kv_heads") or (1 if config.get("multi_query_attention") else heads),
        inner=inner,
        base=base,
        epsilon=epsilon,
        query_bias=bool(config.get("include_qkv_bias")),
        exact_rotation=bool(config.get("rope_full_precision", True)),
    )
    tokenizer = tokenizer_of(directory)
    mask_token = needed(config, "mask_token_id")[0] if options.mask_token is None else options.mask_token
    check_weights(directory, config)
    with torch.device("meta"):
        network = Llama(shape, mask_token=mask_token, tokens=token_count(tokenizer, min(vocabulary, shape.columns)))
    fill(network, directory, options, _rename)
    longest = config.get("max_sequence_length")
    return LoadedModel("llada", network, tokenizer, longest, longest, config.get("pad_token_id") or 0)


def _rename(key: str) -> str:
    name = key.removeprefix("model.").removeprefix("transformer.")
    if name.startswith("ff_out."):  # the same name is the output here, and the last layer within a block
        return name.replace("ff_out.", "head.")
    name = name.replace(".ff_out.", ".mlp.down.")
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours) if name.startswith(theirs) else name.replace(f".{theirs}", f".{ours}")
    return name
