"""Dream (and DiffuCoder): recognised by `model_type` "Dream".

Qwen2 without causal mask, run by our own code. It was grown from an autoregressive model and keeps its habit: logits at
a position are about the next one. They are shifted here, so nothing is said about the first token of a row; a text
starts with the begin token. No end token is appended unless you put it there. The mask and the columns that pad the
vocabulary have probability zero.
"""

from pathlib import Path
from typing import Any

import torch

from infodis.errors import InputError
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import special_token, token_count, tokenizer_of, transformers_tokenizer
from infodis.models.adapters.weights import check_weights, fill, needed
from infodis.models.nets.llama import Llama, LlamaShape
from infodis.models.options import ModelOptions

NAMES = {
    "model.": "",
    "lm_head.": "head.",
    "embed_tokens.": "embed.",
    "layers.": "blocks.",
    "input_layernorm.": "norm1.",
    "post_attention_layernorm.": "norm2.",
    "self_attn.": "",
    "mlp.": "",
    "q_proj.": "query.",
    "k_proj.": "key.",
    "v_proj.": "value.",
    "o_proj.": "out.",
    "gate_proj.": "gate.",
    "up_proj.": "up.",
    "down_proj.": "down.",
}
TRAINED_LENGTH = 2048
"""What its authors state; `max_position_embeddings` is Qwen's."""


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("model_type") == "Dream"


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    if config.get("tie_word_embeddings") or config.get("rope_scaling") or config.get("use_sliding_window"):
        raise InputError(f"{directory} is a Dream that this code does not know: tied, scaled or with sliding windows.")
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    columns, width, blocks, heads, key_heads = needed(config, *sizes)
    inner, base, epsilon, mask_token = needed(
        config, "intermediate_size", "rope_theta", "rms_norm_eps", "mask_token_id"
    )
    shape = LlamaShape(
        columns, width, blocks, heads, key_heads, inner, base, epsilon, query_bias=True, exact_rotation=False
    )
    tokenizer, missing = tokenizer_of(directory), None
    if tokenizer is None:  # as published: Qwen's files, under a class of their own
        tokenizer, missing = transformers_tokenizer(directory, kind="Qwen2Tokenizer")
    check_weights(directory, config)
    with torch.device("meta"):
        network = Llama(shape, mask_token=mask_token, tokens=token_count(tokenizer, columns), shifted=True)
    fill(network, directory, options, _rename)
    begin = special_token(directory, tokenizer, "bos_token")
    return LoadedModel(
        "dream",
        network,
        tokenizer,
        min(TRAINED_LENGTH, config.get("max_position_embeddings") or TRAINED_LENGTH),
        config.get("max_position_embeddings"),
        config.get("pad_token_id") or 0,
        begin_token=config.get("bos_token_id") if begin is None else begin,
        notes=() if missing is None else (missing,),
    )


def _rename(key: str) -> str:
    name = key
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours, 1)
    return name
