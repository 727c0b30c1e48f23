"""What infodis asks of a model: the conditional distribution of every masked token given the visible ones.

A `Predictor` is four names: `vocab_size`, `mask_token`, `log_conditionals` and `surprisal`. Anything that has them can
be scored. One that works block by block says so by a fifth, `blocks`. `from_function` makes one from a callable; the
wrappers change a predictor by standing in front of it.
"""

import dataclasses
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from infodis.blocks import BlockLayout, blocks_of
from infodis.errors import InputError, PredictorError

Tokens = Int[Tensor, "rows length"]
Masks = Bool[Tensor, "rows length"]
Surprisals = Float[Tensor, "rows length"]
LogConditionals = Float[Tensor, "rows length vocab"]

LARGEST = torch.finfo(torch.float32).max
"""Nats of a token that can happen: of more, squares and sums overflow, and an error would come out as NaN."""

REMEMBERED = 2**26
"""Probabilities that `SharedRows` remembers at most."""

BATCHES = 32
"""Batches that `SharedRows` looks through at a time for rows that it has not met."""

NO_MASKS = (
    "This model knows noise on tokens, not masks: it has no conditionals of masked tokens. Its likelihood is dse_nll: "
    "infodis.score, infodis.log_ratio and infodis.perplexity, or infodis score, ratio and perplexity, estimate it."
)
"""What a model of noise says where a masked predictor is needed."""

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


@runtime_checkable
class Distribution(Predictor, Protocol):
    """A predictor whose conditionals come from one joint distribution, and which knows it in closed form."""

    def log_prob(self, tokens: Any, *, target: Any = None, context: Any = None) -> float:
        """Log p(target tokens | context tokens) of one sequence, everything else summed out."""
        ...


@runtime_checkable
class ManyDistribution(Distribution, Protocol):
    """A distribution that answers about many items of one length at once."""

    def log_probs(self, items: Any) -> Float[Tensor, " items"]:
        """Log p(target tokens | context tokens) of each."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """A batch of rows of unequal lengths, padded on the right.

    `tokens` are clean; `hidden` ones are to be masked; `wanted` ones are hidden, and are what is asked about. What lies
    beyond a row's length is padding: it is not to be seen. `starts` are the positions that blocks are counted from, for
    predictors that have blocks.
    """

    tokens: Int[Tensor, "rows length"]
    hidden: Bool[Tensor, "rows length"]
    wanted: Bool[Tensor, "rows length"]
    lengths: Int[Tensor, " rows"]
    starts: Int[Tensor, " rows"]


@runtime_checkable
class BlockPredictor(Predictor, Protocol):
    """A predictor that may work block by block: then it is asked about a mask in every block at once.

    `surprisal` gives -log p of a token given the clean tokens of all blocks before its own and what is not masked
    inside its own; masks elsewhere change nothing. Only blocks that are counted from the first token of a row can be
    told from its arguments; a `RowPredictor` may have others.

    Attributes:
        blocks: where the blocks of a row begin and end; None if there are none. See `infodis.blocks.blocks_of`.
    """

    blocks: BlockLayout | None


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


@runtime_checkable
class CertaintyPredictor(RowPredictor, Protocol):
    """A row predictor that also says how certain it is, without ever holding all distributions of a batch."""

    def certainties(
        self, rows: Rows, certainty: Callable[[Tensor], Tensor]
    ) -> tuple[Float[Tensor, " wanted"], Float[Tensor, " wanted"]]:
        """-log p of the wanted tokens, and `certainty` of log-probabilities (some x vocabulary) where they stand."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class NoisedRows:
    """A batch of noised rows of unequal lengths, padded on the right: what score entropies are asked about.

    `tokens` are clean, `noised` is what the network sees after a total noise of `totals`; `wanted` positions were
    exposed to the noise and are asked about.
    """

    tokens: Int[Tensor, "rows length"]
    noised: Int[Tensor, "rows length"]
    wanted: Bool[Tensor, "rows length"]
    lengths: Int[Tensor, " rows"]
    totals: Float64[Tensor, " rows"]


@runtime_checkable
class NoisePredictor(Predictor, Protocol):
    """A model of noise on tokens: scores at any noise, or what gives scores. `dse_nll` is its likelihood.

    It has no conditionals of masked tokens; whoever asks for them gets an `InputError`.

    Attributes:
        vocab_size: number of tokens, 0 .. vocab_size - 1, that data may contain.
        mask_token: a number that no token of the data has.
        noise: the noise that it was made for; see `infodis.noise.design.Noise`. None if it predicts masked tokens.
        pads, tokens_at_once: as for a `RowPredictor`.
    """

    noise: Any
    pads: bool
    tokens_at_once: int

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        raise InputError(NO_MASKS)

    def entropies(self, rows: NoisedRows) -> Float64[Tensor, " wanted"]:
        """The score entropy at the wanted positions, row by row, per unit of total noise [eq:score-entropy]."""
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


def check_entropies(entropies: Float[Tensor, " wanted"]) -> None:
    """Raise `PredictorError` unless every entropy is a number; inf says that something cannot happen."""
    if bool(entropies.isnan().any()):
        raise PredictorError(
            f"A score entropy must be a number, got NaN for {int(entropies.isnan().sum())} of {entropies.numel()}. "
            "Look at what the network returns for NaN or inf."
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
    blocks: BlockLayout | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocab_size", self.predictor.vocab_size)
        object.__setattr__(self, "mask_token", self.predictor.mask_token)
        object.__setattr__(self, "blocks", blocks_of(self.predictor))


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


class SharedRows(RowPredictor):
    """Evaluates equal masked rows once, whatever is asked about in them.

    A sequence and its mutant are the same row wherever the mutated position is masked. `asked` counts the rows that
    were asked about, `made` those that the predictor was run on. What is remembered is bounded; what was forgotten is
    made again. No number changes beyond rounding.
    """

    pads = False

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.vocab_size = predictor.vocab_size
        self.mask_token = predictor.mask_token
        self._at_once = predictor.tokens_at_once if isinstance(predictor, RowPredictor) else 2**12
        self.tokens_at_once = BATCHES * self._at_once
        self.asked = self.made = 0
        self._known: OrderedDict[bytes, Tensor] = OrderedDict()
        self._size = 0

    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        self.asked += len(tokens)
        self.made += len(tokens)
        return self.predictor.log_conditionals(tokens)

    def surprisals(self, rows: Rows) -> Float[Tensor, " wanted"]:
        """-log p of the wanted tokens, from what is known about their rows."""
        masked = torch.where(rows.hidden, self.mask_token, rows.tokens)
        names = [row.tobytes() for row in masked.numpy()]
        self.asked += len(names)
        known = self._learned(names, masked)
        at_hidden = torch.cat([known[name] for name in names])
        found = torch.zeros(masked.shape)
        found[rows.hidden] = -at_hidden.gather(1, rows.tokens[rows.hidden].unsqueeze(1)).squeeze(1)
        return found[rows.wanted]

    def _learned(self, names: Sequence[bytes], masked: Tokens) -> dict[bytes, Tensor]:
        """For every name the log-probabilities at the masked positions of its row."""
        found = {name: self._known[name] for name in names if name in self._known}
        fresh = [(name, place) for name, place in dict(zip(names, itertools.count())).items() if name not in found]
        step = max(1, self._at_once // masked.shape[1])
        for start in range(0, len(fresh), step):
            some = fresh[start : start + step]
            answers = self._made(masked[[place for _, place in some]])
            found |= {name: answer for (name, _), answer in zip(some, answers, strict=True)}
        self._remember(found)
        return found

    def _made(self, masked: Tokens) -> Sequence[Tensor]:
        """Log-probabilities at the masked positions of some rows, one forward pass each."""
        self.made += len(masked)
        hidden = masked == self.mask_token
        answer = self.predictor.log_conditionals(masked)
        check_log_conditionals(answer, hidden, vocab_size=self.vocab_size)
        return answer[hidden.to(answer.device)].float().cpu().split(hidden.sum(1).tolist())

    def _remember(self, found: dict[bytes, Tensor]) -> None:
        """What was met last is forgotten last."""
        for name, answer in found.items():
            self._size += 0 if name in self._known else answer.numel()
            self._known[name] = answer
            self._known.move_to_end(name)
        while self._size > REMEMBERED:
            _, forgotten = self._known.popitem(last=False)
            self._size -= forgotten.numel()
