"""dllm's A2D (autoregressive to diffusion): recognised by a `model_type` that begins with "a2d-".

Llama, Qwen2 or Qwen3 without causal mask; logits are about their own position. There are two kinds that look alike:
`mdlm` sees a row at once, `bd3lm` makes text block after block. Nothing in their files tells one from the other, and
either run as the other gives numbers that look well and are wrong. So the user says which: `block_size`, 0 for the
first kind.
"""

from pathlib import Path
from typing import Any

from infodis.errors import InputError
from infodis.models.adapters.decoder import Wiring, decoder_shape, load_decoder
from infodis.models.adapters.family import LoadedModel
from infodis.models.options import ModelOptions

HONOURS = ("block_size", "block_origin", "mask_token")
BACKBONES: dict[str, dict[str, bool]] = {
    "a2d-llama": {},
    "a2d-qwen2": {"query_bias": True},
    "a2d-qwen3": {"query_norms": True},
}


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return str(config.get("model_type")).startswith("a2d-")


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    kind = config["model_type"]
    if kind not in BACKBONES:
        raise InputError(f"{directory} must be one of {', '.join(BACKBONES)}, its model_type is {kind!r}.")
    if options.block_size is None and config.get("block_size") is None:
        raise InputError(
            f"{directory} must be said to see a row at once or block by block: models of both kinds have the same "
            "files. Give block_size=0 (--block-size 0) for one that was trained by MDLM, or the size of a block for "
            "one that was trained by BD3LM (32 unless its authors say another)."
        )
    blocks = None if options.block_size == 0 else options.block_layout(config.get("block_size"))
    shape = decoder_shape(directory, config, **BACKBONES[kind])
    return load_decoder(directory, config, options, shape, Wiring("a2d", ("<|mask|>",), blocks))
