"""One thing to score: a sequence, the positions to predict (target) and the positions to predict them from (context).

Positions in neither set stay masked throughout: they are summed out, and what their tokens are does not matter.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Union, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from infodis.blocks import blocks_of
from infodis.errors import InputError
from infodis.rng import key

Positions = Iterable[int] | Int[Tensor, "..."] | Bool[Tensor, " length"]
"""A set of positions: indices in any order, a range, or one boolean per token."""

OneSequence = Union[str, "Item", Iterable[int]]
"""Something to score: a text, what `Model.read` makes of one, or token ids."""

ManySequences = Iterable[str] | Iterable["Item"] | Iterable[Iterable[int]] | Iterable[Tensor]

Tokens = OneSequence | ManySequences | Tensor
"""One sequence, or many. A tensor of one axis is one sequence, of two axes many."""

Prompt = str | Sequence[str]
"""What text is scored given: one prompt for all texts, or one for each."""


@runtime_checkable
class Vocabulary(Protocol):
    """What a predictor says about its tokens."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def mask_token(self) -> int: ...


@runtime_checkable
class TextReader(Protocol):
    """A predictor that takes text: it has a tokenizer. `infodis.models.model.Model` is one."""

    length: int | None
    """Tokens in a row as it was trained: what long texts are cut into."""

    def read(self, text: str, *, prompt: str = "") -> "Item":
        """A text after a prompt, with the special tokens that the model expects."""
        ...

    def encode(self, text: str) -> Int[Tensor, " tokens"]:
        """The tokens of a text and nothing else."""
        ...

    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and behind a text."""
        ...


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
    words: Int[Tensor, " target"] | None = None
    """For every target token the number of the word that it is a piece of; None where no tokenizer has said it."""

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
    predictor: object,
    tokens: Tokens,
    *,
    prompt: Prompt = "",
    target: Positions | Sequence[Positions] | None = None,
    context: Positions | Sequence[Positions] | None = None,
) -> tuple[list[Item], bool]:
    """Items from one sequence or many, and whether it was one. Text is read by the predictor, token ids stay."""
    check_is_predictor(predictor)
    sequences, single = list_sequences(tokens)
    count = len(sequences)
    places = (_one_for_each(sets, count, name) for sets, name in ((target, "target"), (context, "context")))
    items = []
    for number, (one, words, *sets) in enumerate(zip(sequences, _prompts(prompt, count), *places, strict=True)):
        try:
            items.append(_read(predictor, one, words, *sets))
        except InputError as error:
            raise error if single else InputError(f"Sequence {number}: {error}") from None
    return items, single


def read_item(
    predictor: object,
    tokens: Tokens,
    *,
    prompt: str = "",
    target: Positions | None = None,
    context: Positions | None = None,
) -> Item:
    """One item that the predictor knows all tokens of, where only one is taken."""
    items, single = read_items(predictor, tokens, prompt=prompt, target=target, context=context)
    if not single:
        raise InputError(f"One sequence is taken here, got a list of {len(items)}. Call this for each of them.")
    check_items(predictor, items)  # type: ignore[arg-type]  # `read_items` has seen that it is one
    return items[0]


def check_is_predictor(predictor: object) -> None:
    """Raise `InputError` for what is no predictor, with the line to type for a name or a module."""
    if isinstance(predictor, Vocabulary):
        return
    what = f"the text {predictor!r}" if isinstance(predictor, str) else f"a {type(predictor).__name__}"
    fix = f"infodis.load({predictor!r})" if isinstance(predictor, str) else "infodis.load(model, tokenizer=...)"
    raise InputError(
        f"The first argument must be a model or any other predictor, got {what}. Load it once: model = {fix}."
    )


def list_sequences(tokens: Any) -> tuple[list, bool]:
    """A list of sequences, and whether it was one sequence."""
    if isinstance(tokens, str | Item):
        return [tokens], True
    if isinstance(tokens, bytes | Mapping):
        what = "bytes: decode them" if isinstance(tokens, bytes) else "a mapping: infodis.score takes rows of fields"
        raise InputError(f"What is scored must be text, token ids, or a list of them, got {what}.")
    try:
        whole = tokens if isinstance(tokens, Tensor) else list(tokens)
        count = len(whole)
    except TypeError:
        raise InputError(
            f"What is scored must be a text, a sequence of token ids, or a list of them, got {tokens!r}."
        ) from None
    if count == 0:
        raise InputError("There is nothing to score: no text and no tokens were given.")
    single = whole.ndim == 1 if isinstance(whole, Tensor) else _is_number(whole[0])
    return ([whole] if single else list(whole)), single


def _read(predictor: object, one: Any, prompt: str, target: Any, context: Any) -> Item:
    """A text as the predictor reads it, an item as it is, token ids with their positions."""
    if not isinstance(one, str | Item):
        if prompt:
            raise InputError(
                f"A prompt goes before a text, got the prompt {prompt!r} with token ids. Put the prompt's ids before "
                "them, and name their positions: context=range(...)."
            )
        return Item.read(one, target=target, context=context)
    if target is not None or context is not None:
        raise InputError(
            "target and context are positions of token ids, got them with text. Give prompt=..., or the ids: "
            "model.read(text).tokens."
        )
    if isinstance(one, str):
        return _read_text(predictor, one, prompt)
    if prompt:
        raise InputError("A row that was read has its prompt in it, got another one. Leave prompt out.")
    return one


def text_reader(predictor: object) -> TextReader:
    """The predictor, if it takes text."""
    if isinstance(predictor, TextReader):
        return predictor
    raise InputError(
        f"Text needs a model with a tokenizer, got a {type(predictor).__name__}, which knows token ids only. "
        "Give token ids, or load the model with infodis.load(..., tokenizer=...)."
    )


def _read_text(predictor: object, text: str, prompt: str) -> Item:
    found = text_reader(predictor).read(text, prompt=prompt)
    if not found.target.numel():
        raise InputError(f"A text must have at least one token, got {text!r}. Leave it out.")
    return found


def _prompts(prompt: Any, count: int) -> list[str]:
    """One prompt for all texts, or one for each."""
    prompts = [prompt] * count if isinstance(prompt, str) else list(prompt)
    if len(prompts) != count:
        raise InputError(f"prompt: give one for all texts, or one for each of the {count}; got {len(prompts)}.")
    for number, one in enumerate(prompts):
        if not isinstance(one, str):
            raise InputError(f"A prompt must be a text, got {one!r} as number {number}. Give a str, or leave it out.")
    return prompts


def _is_number(value: object) -> bool:
    return not isinstance(value, Iterable | Item) or (isinstance(value, Tensor) and value.ndim == 0)


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
    """Raise `InputError` if an item is not one that the predictor can speak about; many are told apart by number."""
    vocabulary, blocks = {"vocab_size": predictor.vocab_size, "mask_token": predictor.mask_token}, blocks_of(predictor)
    known = all_known(torch.cat([item.clean for item in items]), **vocabulary)  # all at once is much quicker
    if known and blocks is None:
        return
    for number, item in enumerate(items):
        try:
            item.check_vocabulary(**vocabulary)
            if blocks is not None:
                blocks.check(item.target, item.context, length=item.length)
        except InputError as error:
            raise error if len(items) == 1 else InputError(f"Sequence {number}: {error}") from None
