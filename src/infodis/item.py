"""One thing to score: a sequence, the positions to predict (target) and the positions to predict them from (context).

Positions in neither set stay masked throughout: they are summed out, and what their tokens are does not matter.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from infodis.errors import InputError
from infodis.rng import key

Positions = Iterable[int] | Int[Tensor, "..."] | Bool[Tensor, " length"]
"""A set of positions: indices in any order, a range, or one boolean per token."""

Tokens = Iterable[int] | Iterable[Iterable[int]] | Iterable[Tensor] | Tensor
"""One sequence of token ids, or many."""


@runtime_checkable
class Vocabulary(Protocol):
    """What a predictor says about its tokens."""

    vocab_size: int
    mask_token: int


def _as_tensor(values: Any, *, must: str) -> Tensor:
    """Read numbers of any kind into a CPU tensor; `must` begins the error."""
    try:
        return torch.as_tensor(values if isinstance(values, Tensor) else list(values)).cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{must}, got {values!r} ({error}).") from None


def as_sequence(tokens: Iterable[int] | Tensor) -> Int[Tensor, " length"]:
    """Read one sequence of token ids into a CPU tensor of int64."""
    sequence = _as_tensor(tokens, must="A sequence must be a flat list of token ids")
    if sequence.ndim != 1 or sequence.numel() == 0:
        raise InputError(f"A sequence must be a non-empty list of token ids, got shape {tuple(sequence.shape)}.")
    if sequence.is_floating_point() or sequence.is_complex() or sequence.dtype == torch.bool:
        raise InputError(f"Token ids must be whole numbers, got {sequence.dtype}.")
    return sequence.long()


def as_positions(positions: Positions, *, length: int, name: str) -> Int[Tensor, " positions"]:
    """Read a set of positions into a sorted tensor; `name` is how an error calls it."""
    read = _as_tensor(positions, must=f"{name} must be a flat list of positions, a range or one boolean per token")
    if read.dtype == torch.bool:
        if read.shape != (length,):
            raise InputError(
                f"{name}: a boolean mask must have one entry per token ({length}), got {tuple(read.shape)}."
            )
        return read.nonzero().squeeze(-1)
    if read.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    if read.ndim != 1 or read.is_floating_point() or read.is_complex():
        raise InputError(
            f"{name} must be a flat list of whole positions, got {read.dtype} of shape {tuple(read.shape)}."
        )
    outside = read[(read < 0) | (read >= length)]
    if outside.numel():
        raise InputError(f"{name}: positions must lie in 0..{length - 1}, got {int(outside[0])}.")
    found = read.long().unique(sorted=True)
    if found.numel() < read.numel():
        raise InputError(f"{name} names a position twice; list each position once.")
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Item:
    """A checked sequence with its target and context. Make one with `Item.read`."""

    tokens: Int[Tensor, " length"]
    target: Int[Tensor, " target"]
    context: Int[Tensor, " context"]

    @staticmethod
    def read(
        tokens: Iterable[int] | Tensor, *, target: Positions | None = None, context: Positions | None = None
    ) -> "Item":
        """Check and normalise. No context means none; no target means every position that is not context."""
        sequence = as_sequence(tokens)
        length = sequence.numel()
        given = as_positions(context if context is not None else (), length=length, name="context")
        if target is None:
            free = torch.ones(length, dtype=torch.bool)
            free[given] = False
            wanted = free.nonzero().squeeze(-1)
        else:
            wanted = as_positions(target, length=length, name="target")
        if wanted.numel() == 0:
            raise InputError("The target is empty: there is nothing to score. Name at least one target position.")
        both = wanted[torch.isin(wanted, given)]
        if both.numel():
            raise InputError(f"target and context must be disjoint, both hold position {int(both[0])}.")
        return Item(sequence, wanted, given)

    @property
    def length(self) -> int:
        return self.tokens.numel()

    @property
    def complete(self) -> bool:
        """Whether every position is in one of the sets."""
        return self.target.numel() + self.context.numel() == self.tokens.numel()

    @functools.cached_property
    def hidden(self) -> Bool[Tensor, " length"]:
        """True at the positions that are masked in every row: those in neither set."""
        if self.complete:
            return torch.zeros(self.length, dtype=torch.bool)
        hidden = torch.ones(self.length, dtype=torch.bool)
        hidden[self.target] = False
        hidden[self.context] = False
        return hidden

    @functools.cached_property
    def clean(self) -> Int[Tensor, " length"]:
        """The tokens with a harmless 0 where they do not matter."""
        if self.complete:
            return self.tokens
        return torch.where(self.hidden, 0, self.tokens)

    @functools.cached_property
    def key(self) -> int:
        """A hash of the content, the item's name in random streams: equal items meet equal masks."""
        parts = (self.clean, self.target, self.context)
        return key(*(part.numpy().tobytes() for part in parts))

    def check_vocabulary(self, *, vocab_size: int, mask_token: int) -> None:
        """Raise `InputError` if a token that matters is the mask token or no token of the vocabulary."""
        if all_known(self.clean, vocab_size=vocab_size, mask_token=mask_token):
            return
        used = ~self.hidden
        masks = used & (self.tokens == mask_token)
        if masks.any():
            raise InputError(
                f"The data hold the mask token {mask_token} at position {int(masks.nonzero()[0])}. A likelihood of the "
                "mask token is not defined: leave such positions out of target and context to sum them out."
            )
        outside = used & ((self.tokens < 0) | (self.tokens >= vocab_size))
        if outside.any():
            at = int(outside.nonzero()[0])
            raise InputError(
                f"Tokens must lie in 0..{vocab_size - 1}, got {int(self.tokens[at])} at position {at}. "
                "Was the text encoded with this model's tokenizer?"
            )


def all_known(tokens: Int[Tensor, " tokens"], *, vocab_size: int, mask_token: int) -> bool:
    """Whether every token is of the vocabulary and none is the mask token."""
    numbers = tokens.numpy()  # a third of the time of tensors
    return bool(numbers.min() >= 0 and numbers.max() < vocab_size and not (numbers == mask_token).any())


def read_items(
    tokens: Tokens, *, target: Positions | Sequence[Positions] | None, context: Positions | Sequence[Positions] | None
) -> tuple[list[Item], bool]:
    """Items from one sequence or many, and whether it was one."""
    try:
        whole = tokens if isinstance(tokens, Tensor) else list(tokens)
        count = len(whole)
    except TypeError:
        raise InputError(f"tokens must be a sequence of token ids or a list of sequences, got {tokens!r}.") from None
    single = whole.ndim == 1 if isinstance(whole, Tensor) else bool(whole) and _is_number(whole[0])
    if count == 0:
        raise InputError("There is nothing to score: no tokens were given.")
    sequences = [whole] if single else list(whole)
    targets, contexts = (
        _one_for_each(sets, len(sequences), n) for sets, n in ((target, "target"), (context, "context"))
    )
    items = []
    for number, (sequence, wanted, given) in enumerate(zip(sequences, targets, contexts, strict=True)):
        try:
            items.append(Item.read(sequence, target=wanted, context=given))
        except InputError as error:
            raise error if single else InputError(f"Sequence {number}: {error}") from None
    return items, single


def _is_number(value: object) -> bool:
    return not isinstance(value, Iterable) or (isinstance(value, Tensor) and value.ndim == 0)


def _one_for_each(sets: Any, count: int, name: str) -> list:
    """One set of positions for all sequences, or one for each."""
    if sets is None or (isinstance(sets, Tensor) and sets.ndim < 2):
        return [sets] * count
    if not isinstance(sets, Iterable):
        raise InputError(f"{name} must be a set of positions, like range(4) or [0, 2], got {sets!r}.")
    whole = list(sets)
    if all(part is not None and _is_number(part) for part in whole):
        return [whole] * count
    if len(whole) != count:
        raise InputError(
            f"{name}: give one set of positions, or one for each of the {count} sequences; got {len(whole)}."
        )
    return whole


def check_items(predictor: Vocabulary, items: Sequence[Item]) -> None:
    """Raise `InputError` if an item holds what the predictor does not know; many are told apart by number."""
    vocabulary = {"vocab_size": predictor.vocab_size, "mask_token": predictor.mask_token}
    if all_known(torch.cat([item.clean for item in items]), **vocabulary):  # all at once is much quicker
        return
    for number, item in enumerate(items):
        try:
            item.check_vocabulary(**vocabulary)
        except InputError as error:
            raise error if len(items) == 1 else InputError(f"Sequence {number}: {error}") from None
