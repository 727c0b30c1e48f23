"""Models that the user holds in memory: wrapped, not copied, and left in their mode and on their device."""

import types
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.models.adapters import LoadedModel, a2d, bd3lm, causal_lm, dream, fast_dllm, llada2, sdar
from infodis.models.adapters.causal_lm import CausalLM, loaded_causal
from infodis.models.adapters.masked_lm import MaskedLM, mask_tokens
from infodis.models.adapters.transformers_model import longest_row
from infodis.models.model import Model
from infodis.models.nets import RADD
from infodis.models.nets.network import Network, evaluation_mode
from infodis.models.tokenizers import Tokenizer, as_tokenizer
from infodis.rng import stream

BY_FILES = (dream, bd3lm, sdar, a2d, fast_dllm, llada2)
"""Families whose output is not about each position given all of a row: their adapters know how to read it."""


def wrap(
    network: nn.Module,
    *,
    tokenizer: Any = None,
    mask_token: int | None = None,
    vocab_size: int | None = None,
    causal: bool = False,
    allow_unknown: bool = False,
) -> Model:
    """A network of the user's as a `Model`: one of transformers, or any module from tokens to logits.

    Args:
        network: takes token ids (rows x length) and returns logits or log-probabilities (rows x length x tokens), or
            something with such `logits`, as models of transformers do.
        tokenizer: as for `infodis.load`; without one the model takes token ids only.
        mask_token: the token that stands for "unknown"; by default what the tokenizer or the configuration says.
        vocab_size: tokens that data may contain; by default what the configuration or the tokenizer says.
        causal: its logits are about the next token, given those up to there. Known of a GPT-2, a Llama, a Qwen, ...
        allow_unknown: read texts of which more than a tenth is unknown to the tokenizer.
    """
    words = None if tokenizer is None else as_tokenizer(tokenizer)
    config: Any = getattr(network, "config", None)
    said = config.to_dict() if callable(getattr(config, "to_dict", None)) else {}
    name = getattr(config, "_name_or_path", "") or type(network).__name__
    if any(family.recognises(said) for family in BY_FILES):
        raise InputError(
            f"A {said['model_type']} in memory is not wired as its output has to be read (about the next position, or "
            f"block by block), which infodis does only for one that it loads, got {name}. Load it by its directory or "
            "name: infodis.load(...)."
        )
    device = next(network.parameters(), torch.zeros(0)).device
    pad = said.get("pad_token_id")
    pad = pad if isinstance(pad, int) else 0
    if isinstance(network, Network) and (mask_token, vocab_size, causal) != (None, None, False):
        raise InputError(f"A {name} knows its mask_token and vocab_size and whether it is causal. Leave them out.")
    if causal or causal_lm.recognises(said | {"architectures": [type(network).__name__]}):
        if mask_token is not None:
            raise InputError(f"An autoregressive model masks nothing, got mask_token={mask_token} too. Leave it out.")
        return Model(name, _causal(network, tokenizer, said, vocab_size), device, allow_unknown=allow_unknown)
    with evaluation_mode(network), torch.no_grad():
        made = network if isinstance(network, Network) else _network(network, words, said, mask_token, vocab_size, pad)
        if made is not network:  # one of ours says itself whether it is causal
            _check_looks_ahead(made, name)
    length = longest_row(config, pad) if said else _positions(network)
    blocks = BlockLayout(made.block_size) if made.block_size else None
    loaded = LoadedModel("in memory", made, words, length, length, pad, blocks=blocks)
    return Model(name, loaded, device, allow_unknown=allow_unknown)


def _positions(network: nn.Module) -> int | None:
    """Places of a row that one of our networks has learned vectors for, if it has."""
    return network.shape.positions or None if isinstance(network, RADD) else None


def _network(
    network: nn.Module,
    tokenizer: Tokenizer | None,
    config: dict[str, Any],
    mask_token: int | None,
    vocab_size: int | None,
    pad: int,
) -> Network:
    """A module with the last layer found, if it has one, and its padding tried out."""
    masks = (mask_token, *mask_tokens(tokenizer), config.get("mask_index"), config.get("mask_token_id"))
    tokens, mask = _tokens(network, tokenizer, config, vocab_size), _said(network, "mask_token", *masks)
    called = network if config else _Plain(network)
    _check_answer(called, tokens, mask)
    return MaskedLM(called, mask_token=mask, tokens=tokens, pad_token=pad)


def _causal(network: nn.Module, tokenizer: Any, config: dict[str, Any], vocab_size: int | None) -> LoadedModel:
    """An autoregressive model. What a tokenizer of transformers calls its begin token is known before it is read."""
    words = None if tokenizer is None else as_tokenizer(tokenizer)
    tokens = _tokens(network, words, config, vocab_size)
    called = network if config else _Plain(network)
    with evaluation_mode(network), torch.no_grad():
        _check_answer(called, tokens, 0)
        made = CausalLM(called, tokens=tokens)
    begins = [getattr(tokenizer, "bos_token_id", None), config.get("bos_token_id")]
    begins += [getattr(tokenizer, "eos_token_id", None), config.get("eos_token_id")]
    return loaded_causal("in memory", made, words, begins)


def _tokens(network: nn.Module, tokenizer: Tokenizer | None, config: dict[str, Any], vocab_size: int | None) -> int:
    """How many tokens data may contain."""
    own = None if tokenizer is None else tokenizer.vocab_size
    tokens, columns = _said(network, "vocab_size", vocab_size, own, config.get("vocab_size")), config.get("vocab_size")
    return min(tokens, columns) if isinstance(columns, int) else tokens


def _said(network: nn.Module, what: str, *numbers: Any) -> int:
    """The first that is a number."""
    found = next((one for one in numbers if isinstance(one, int)), None)
    if found is None:
        raise InputError(
            f"A model in memory needs its {what}: neither its configuration nor its tokenizer says it, got a "
            f"{type(network).__name__}. Give infodis.load(model, {what}=...)."
        )
    return found


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
            f"on a few tokens: {reason}. Give a masked language model (AutoModelForMaskedLM) or a causal one "
            "(AutoModelForCausalLM), or wrap yours with infodis.from_function."
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
            f"A model that fills in masks must see the tokens before and behind a masked one, got {name}, which sees "
            "only those before: a causal language model. Say that it is one: infodis.load(model, causal=True)."
        )
