"""Fast-dLLM v2: recognised by its architecture, "Fast_dLLM_QwenForCausalLM".

Qwen2 that makes text block after block, and keeps a habit of the autoregressive model that it was grown from: its
output is about the next position. What it says about the first token of a block is read, as its own sampler does, from
the finished block before, whatever is masked in this one. So it says nothing about the first token of a row.
"""

from pathlib import Path
from typing import Any

from infodis.models.adapters.decoder import Wiring, decoder_shape, load_decoder
from infodis.models.adapters.family import LoadedModel
from infodis.models.options import ModelOptions

HONOURS = ("block_size", "block_origin", "mask_token")


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return (
        "Fast_dLLM_QwenForCausalLM" in (config.get("architectures") or ())
        or config.get("model_type") == "Fast_dLLM_Qwen"
    )


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    blocks = options.block_layout(config.get("bd_size"))
    shape = decoder_shape(directory, config, query_bias=True)
    return load_decoder(directory, config, options, shape, Wiring("fast-dllm", ("|<MASK>|",), blocks, shifted=True))
