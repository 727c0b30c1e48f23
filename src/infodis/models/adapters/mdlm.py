"""MDLM: recognised by `model_type` "mdlm".

SEDD's network (its keys have the prefix `backbone.`), trained without time: the noise it is told is always zero. With
`time_conditioning` it is told the total noise at which as many tokens are masked as in the row. The last token of the
vocabulary is the mask, at probability zero. Its tokenizer is GPT-2's, which comes with no mask; some loaders add a
padding token under the number of the mask, and then read padding as masks.
"""

from pathlib import Path
from typing import Any

import torch

from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import tokenizer_of
from infodis.models.adapters.weights import check_weights, fill, needed
from infodis.models.nets import SEDD, NetworkShape
from infodis.models.nets.network import Features, Places, Tokens
from infodis.models.nets.sedd import TimedByMasks
from infodis.models.options import ModelOptions

HONOURS = ()


class MDLM(SEDD):
    """A SEDD that always hears of no noise."""

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        found = self.hidden(tokens, torch.zeros(len(tokens), device=tokens.device), visible)
        return found if at is None else found[at]


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return config.get("model_type") == "mdlm"


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    columns, width, condition, blocks, heads = needed(
        config, "vocab_size", "hidden_dim", "cond_dim", "n_blocks", "n_heads"
    )
    shape = NetworkShape(width=width, blocks=blocks, heads=heads, condition=condition)
    check_weights(directory, config)
    with torch.device("meta"):
        timed = bool(config.get("time_conditioning"))
        network = TimedByMasks(columns - 1, shape) if timed else MDLM(columns - 1, shape, scaled=False)
    fill(network, directory, options, lambda key: key.removeprefix("backbone."))
    return LoadedModel("mdlm", network, tokenizer_of(directory), config.get("model_length"), limit=None)
