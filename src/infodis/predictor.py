"""What infodis asks of a model: the conditional distribution of every masked token given the visible ones.

A `Predictor` is four names: `vocab_size`, `mask_token`, `log_conditionals` and `surprisal`. Anything that has them can
be scored. `from_function` makes one from a callable; the wrappers change a predictor by standing in front of it.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from infodis.errors import InputError, PredictorError

Tokens = Int[Tensor, "rows length"]
Masks = Bool[Tensor, "rows length"]
Surprisals = Float[Tensor, "rows length"]
LogConditionals = Float[Tensor, "rows length vocab"]

LARGEST = torch.finfo(torch.float32).max
"""Nats of a token that can happen: of more, squares and sums overflow, and an error would come out as NaN."""

TOLERANCE = 1e-3
"""How far a distribution's log total may lie from 0: float32 log-softmax over 10^5 columns stays far inside."""


@runtime_checkable
class Predictor(Protocol):
    """Conditional distributions of masked tokens. Subclass it, or just have these four names.

    Attributes:
        vocab_size: number of tokens, 0 .. vocab_size - 1, that data may contain.
        mask_token: the token that stands for "unknown" in a row.
    """

    vocab_size: int
    mask_token: int

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        """Log p(x_i = v | visible tokens) for every row, position i and token v; read only where a row is masked."""
        ...

    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        """-log p(x_i | tokens that are not masked) in nats where `masked`, 0 elsewhere.

        `tokens` are clean; this default hides the masked ones, calls `log_conditionals` and gathers. Override it where
        a model can do better, for example by computing its output head at the masked positions only.
        """
        rows = torch.where(masked, self.mask_token, tokens)
        return gather_surprisal(self.log_conditionals(rows), tokens, masked, vocab_size=self.vocab_size)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """A batch of rows of unequal lengths, padded on the right.

    `tokens` are clean; `hidden` ones are to be masked; `wanted` ones are hidden, and are what is asked about. What lies
    beyond a row's length is padding: it is not to be seen.
    """

    tokens: Int[Tensor, "rows length"]
    hidden: Bool[Tensor, "rows length"]
    wanted: Bool[Tensor, "rows length"]
    lengths: Int[Tensor, " rows"]


@runtime_checkable
class RowPredictor(Predictor, Protocol):
    """A predictor that answers about exactly what is wanted: cheaper where the vocabulary is large.

    Attributes:
        pads: True if rows of unequal lengths may share a batch; otherwise all rows of a batch have one length.
        tokens_at_once: how many tokens, padding included, a batch should hold.
    """

    pads: bool
    tokens_at_once: int

    def surprisals(self, rows: Rows) -> Float[Tensor, " wanted"]:
        """-log p in nats of the wanted tokens, row by row."""
        ...


def gather_surprisal(log_conditionals: Any, tokens: Tokens, masked: Masks, *, vocab_size: int) -> Surprisals:
    """Pick -log p of the clean tokens at the masked positions, after checking that they are log-probabilities."""
    check_log_conditionals(log_conditionals, masked, vocab_size=vocab_size)
    device = log_conditionals.device
    picked = log_conditionals.gather(-1, tokens.to(device).unsqueeze(-1)).squeeze(-1)
    found = torch.where(masked.to(device), -picked, 0.0)
    check_surprisal(found, masked)
    return found


def check_log_conditionals(log_conditionals: Any, masked: Masks, *, vocab_size: int) -> None:
    """Raise `PredictorError` unless every masked position holds a normalised distribution. -inf is a legal log 0."""
    if not isinstance(log_conditionals, Tensor):
        raise PredictorError(f"log_conditionals must return a tensor, got {type(log_conditionals).__name__}.")
    expected = (*masked.shape, vocab_size)
    if tuple(log_conditionals.shape) != expected:
        raise PredictorError(
            f"log_conditionals must return rows x length x vocab = {expected}, got {tuple(log_conditionals.shape)}. "
            "Drop columns of tokens that data cannot contain (the mask token, padding) and renormalise."
        )
    if not log_conditionals.is_floating_point():
        raise PredictorError(f"log_conditionals must return floating point numbers, got {log_conditionals.dtype}.")
    totals = torch.logsumexp(log_conditionals.float(), dim=-1)
    bad = masked.to(totals.device) & ~(totals.abs() <= TOLERANCE)  # NaN compares false, so it counts as bad
    if bad.any():
        row, position = (int(n) for n in bad.nonzero()[0])
        values = log_conditionals[row, position]
        found = (
            "NaN" if values.isnan().any() else
            "+inf" if (values == math.inf).any() else
            f"probabilities that sum to {math.exp(min(float(totals[row, position]), 700.0)):.6g}"
        )  # fmt: skip
        raise PredictorError(
            f"log_conditionals must hold a log-probability for every token at masked positions; row {row}, position "
            f"{position} holds {found} ({int(bad.sum())} such positions in this batch). Apply log_softmax in float32 "
            "over the vocabulary, with columns that data cannot contain at -inf or removed."
        )


def check_surprisal(surprisal: Any, masked: Masks) -> None:
    """Raise `PredictorError` unless every masked position holds a surprisal: not NaN, not negative, not beyond float32.

    inf is legal: it says that a token cannot happen.
    """
    if not isinstance(surprisal, Tensor):
        raise PredictorError(f"surprisal must return a tensor, got {type(surprisal).__name__}.")
    if surprisal.shape != masked.shape:
        raise PredictorError(
            f"surprisal must return rows x length = {tuple(masked.shape)}, got {tuple(surprisal.shape)}."
        )
    fine = ((surprisal >= -TOLERANCE) & (surprisal <= LARGEST)) | (surprisal == math.inf)  # NaN compares false
    bad = masked.to(surprisal.device) & ~fine
    if bad.any():
        row, position = (int(n) for n in bad.nonzero()[0])
        raise PredictorError(
            f"surprisal must be -log of a probability: at least 0, and at most {LARGEST:.3g}, or inf for a token that "
            f"cannot happen; row {row}, position {position} holds {float(surprisal[row, position]):.6g} "
            f"({int(bad.sum())} such positions in this batch)."
        )


@dataclasses.dataclass(frozen=True)
class FunctionPredictor(Predictor):
    """A predictor made of a callable; see `from_function`."""

    function: Callable[[Tensor], Any]
    vocab_size: int
    mask_token: int

    def log_conditionals(self, tokens: Tokens) -> Any:  # whatever it is: `surprisal` checks it
        return self.function(tokens)


def from_function(function: Callable[[Tensor], Any], *, vocab_size: int, mask_token: int) -> FunctionPredictor:
    """Wrap any callable that maps masked rows (rows x length) to log-probabilities (rows x length x vocab_size).

    >>> fair = from_function(lambda t: torch.full((*t.shape, 2), 0.5).log(), vocab_size=2, mask_token=2)
    >>> fair.surprisal(torch.tensor([[0, 1]]), torch.tensor([[True, False]]))
    tensor([[0.6931, 0.0000]])
    """
    if vocab_size < 1:
        raise InputError(f"vocab_size must be at least 1, got {vocab_size}.")
    return FunctionPredictor(function, vocab_size, mask_token)


@dataclasses.dataclass(frozen=True)
class Wrapper(Predictor):
    """A predictor that stands in front of another one and speaks its vocabulary."""

    predictor: Predictor
    vocab_size: int = dataclasses.field(init=False)
    mask_token: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocab_size", self.predictor.vocab_size)
        object.__setattr__(self, "mask_token", self.predictor.mask_token)


@dataclasses.dataclass(frozen=True)
class Tempered(Wrapper):
    """`predictor` with its distributions raised to the power 1 / temperature and renormalised."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.temperature < math.inf:
            raise InputError(f"A temperature must be positive and finite, got {self.temperature}.")

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        return torch.log_softmax(self.predictor.log_conditionals(tokens) / self.temperature, dim=-1)


@dataclasses.dataclass(frozen=True)
class Guided(Wrapper):
    """Classifier-free guidance: log p is proportional to (1 + scale) log p(. | prompt) - scale log p(. | no prompt).

    `prompt` holds the positions to hide for the second term. Every row costs two rows of `predictor`. Tokens of
    probability zero with or without the prompt keep probability zero.
    """

    prompt: tuple[int, ...] = ()
    scale: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.scale):
            raise InputError(f"A guidance scale must be finite, got {self.scale}.")
        object.__setattr__(self, "prompt", tuple(self.prompt))

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        length = tokens.shape[1]
        if any(not 0 <= position < length for position in self.prompt):
            raise InputError(f"Guidance: prompt positions must lie in 0..{length - 1}, got {self.prompt}.")
        hidden = tokens.clone()
        hidden[:, list(self.prompt)] = self.mask_token
        given, free = self.predictor.log_conditionals(torch.cat([tokens, hidden])).chunk(2)
        impossible = (given == -math.inf) | (free == -math.inf)
        mixed = torch.where(impossible, -math.inf, given + self.scale * (given - free))
        return torch.log_softmax(mixed, dim=-1)


class Counting(Predictor):
    """Counts what passes through: `calls`, and `rows` of all calls together."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.vocab_size = predictor.vocab_size
        self.mask_token = predictor.mask_token
        self.calls = 0
        self.rows = 0

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        self._count(tokens)
        return self.predictor.log_conditionals(tokens)

    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        self._count(tokens)
        return self.predictor.surprisal(tokens, masked)

    def _count(self, tokens: Tokens) -> None:
        self.calls += 1
        self.rows += tokens.shape[0]
