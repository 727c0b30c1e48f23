"""Dream (and DiffuCoder): recognised by `model_type` "Dream".

Qwen2 without causal mask, run by our own code. It was grown from an autoregressive model and keeps its habit: logits at
a position are about the next one. They are shifted here, so nothing is said about the first token of a row; a text
starts with the begin token. No end token is appended unless you put it there. The mask and the columns that pad the
vocabulary have probability zero.
"""

import dataclasses
from pathlib import Path
from typing import Any

from infodis.models.adapters.decoder import Wiring, decoder_shape, load_decoder
from infodis.models.adapters.family import LoadedModel
from infodis.models.options import ModelOptions

HONOURS = ("mask_token",)
TRAINED_LENGTH = 2048
"""What its authors state; `max_position_embeddings` is Qwen's."""


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("model_type") == "Dream"


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    shape = decoder_shape(directory, config, query_bias=True)
    found = load_decoder(directory, config, options, shape, Wiring("dream", ("<|mask|>",), shifted=True))
    return dataclasses.replace(found, length=min(TRAINED_LENGTH, found.limit or TRAINED_LENGTH))
