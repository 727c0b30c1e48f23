"""Models that the user holds in memory: wrapped, not copied, and left in their mode and on their device."""

import types
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.models.adapters import LoadedModel, dream
from infodis.models.adapters.masked_lm import MaskedLM, longest_row, mask_tokens
from infodis.models.model import Model
from infodis.models.nets.network import Network, evaluation_mode
from infodis.models.tokenizers import Tokenizer, as_tokenizer
from infodis.rng import stream


def wrap(
    network: nn.Module, *, tokenizer: Any = None, mask_token: int | None = None, vocab_size: int | None = None
) -> Model:
    """A network of the user's as a `Model`: one of transformers, or any module from tokens to logits.

    Args:
        network: takes token ids (rows x length) and returns logits or log-probabilities (rows x length x tokens), or
            something with such `logits`, as models of transformers do.
        tokenizer: as for `infodis.load`; without one the model takes token ids only.
        mask_token: the token that stands for "unknown"; by default what the tokenizer or the configuration says.
        vocab_size: tokens that data may contain; by default what the configuration or the tokenizer says.
    """
    words = None if tokenizer is None else as_tokenizer(tokenizer)
    config: Any = getattr(network, "config", None)
    said = config.to_dict() if callable(getattr(config, "to_dict", None)) else {}
    name = getattr(config, "_name_or_path", "") or type(network).__name__
    if dream.recognises(said):
        raise InputError(
            f"A Dream in memory answers about the next position, which infodis undoes only for one that it loads, got "
            f"{name}. Load it by its directory or name: infodis.load(...)."
        )
    pad = said.get("pad_token_id")
    pad = pad if isinstance(pad, int) else 0
    if isinstance(network, Network) and (mask_token, vocab_size) != (None, None):
        raise InputError(f"A {name} knows its mask_token and vocab_size, got others. Leave them out.")
    with evaluation_mode(network), torch.no_grad():
        made = network if isinstance(network, Network) else _network(network, words, said, mask_token, vocab_size, pad)
        _check_looks_ahead(made, name)
    first = next(network.parameters(), torch.zeros(0))
    length = longest_row(config, pad) if said else None
    loaded = LoadedModel("in memory", made, words, length, length, pad)
    return Model(name, loaded, first.device)


def _network(
    network: nn.Module,
    tokenizer: Tokenizer | None,
    config: dict[str, Any],
    mask_token: int | None,
    vocab_size: int | None,
    pad: int,
) -> Network:
    """A module with the last layer found, if it has one, and its padding tried out."""
    sizes = (vocab_size, None if tokenizer is None else tokenizer.vocab_size, config.get("vocab_size"))
    masks = (mask_token, *mask_tokens(tokenizer), config.get("mask_index"), config.get("mask_token_id"))
    tokens, mask = (next((one for one in some if isinstance(one, int)), None) for some in (sizes, masks))
    for value, what in ((tokens, "vocab_size"), (mask, "mask_token")):
        if value is None:
            raise InputError(
                f"A model in memory needs its {what}: neither its configuration nor its tokenizer says it, got a "
                f"{type(network).__name__}. Give infodis.load(model, {what}=...)."
            )
    assert tokens is not None
    assert mask is not None
    called = network if config else _Plain(network)
    _check_answer(called, tokens, mask)
    columns = config.get("vocab_size")
    known = min(tokens, columns) if isinstance(columns, int) else tokens
    return MaskedLM(called, mask_token=mask, tokens=known, pad_token=pad)


class _Plain(nn.Module):
    """A module from tokens to logits, called as models of transformers are."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.training = network, network.training

    def forward(self, input_ids: Int[Tensor, "rows length"]) -> Any:
        found = self.network(input_ids)
        return found if not isinstance(found, Tensor) else types.SimpleNamespace(logits=found)


def _check_answer(network: nn.Module, tokens: int, mask: int) -> None:
    """Raise `InputError` unless a few tokens give logits of the right shape."""
    device = next(network.parameters(), torch.zeros(0)).device
    row = torch.full((2, 5), mask, device=device)
    row[:, ::2] = 0
    try:
        found = network(input_ids=row).logits
        shape = tuple(found.shape)
    except Exception as error:  # whatever the user's code raises
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"A model in memory must take token ids (rows x length) and return logits, got {type(error).__name__} "
            f"on a few tokens: {reason}. Give a masked language model (AutoModelForMaskedLM), or wrap yours with "
            "infodis.from_function."
        ) from error
    if len(shape) != 3 or shape[:2] != (2, 5) or shape[2] < tokens:
        raise InputError(
            f"A model in memory must return logits of rows x length x tokens, here (2, 5, {tokens}) or more, got "
            f"{shape}. Give a model with its last layer, and the vocab_size that it has."
        )


def _check_looks_ahead(network: Network, name: str) -> None:
    """Raise `InputError` if tokens see those before them only: such a model answers about the next one."""
    device = next(network.parameters(), torch.zeros(0)).device
    row = torch.randint(network.tokens, (8,), generator=stream(0, "looks ahead")).to(device)
    rows = row.repeat(3, 1)
    for number, place in ((1, 7), (2, 0)):
        rows[number, place] = (row[place] + 1) % network.tokens
    found: Float[Tensor, "rows length vocab"] = network.log_conditionals(rows)
    if torch.allclose(found[0, :7], found[1, :7], atol=1e-4) and not torch.allclose(
        found[0, 1:], found[2, 1:], atol=1e-4
    ):
        raise InputError(
            f"infodis needs a model that sees the tokens before and behind a masked one, got {name}, which sees only "
            "those before: a causal language model. Load a masked language model or a diffusion model."
        )
