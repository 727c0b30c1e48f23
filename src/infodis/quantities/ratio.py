"""Log-likelihood ratios with shared randomness.

log p(y) - log p(x) is a difference of two `nll`s. Each side alone is unbiased, so the difference is unbiased however
the two are drawn; drawn from the same uniform numbers, their errors go up and down together and cancel. The numbers are
shared, not the masks, so the lengths need not be equal: the same level gives each side the same share of masked
positions, the same keys decide which [eq:ratio].

A `Comparison` is a sum of such sides, each added or subtracted: two for a ratio, four for a reward margin. `compare`
makes many of them side by side, so that their rows share batches.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, TypedDict, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from infodis.auto import Auto
from infodis.control import Control, Surrogate
from infodis.design import MaskDesign
from infodis.errors import InputError
from infodis.estimate import Combination, Combined, Request, Term, estimate_combinations
from infodis.item import Item, ManySequences, OneSequence, Positions, TextReader, Tokens, read_items
from infodis.predictor import Predictor
from infodis.result import Estimate, Replicated
from infodis.rng import check_seed, key

Sign = Literal[1, -1]


@dataclasses.dataclass(frozen=True, eq=False)
class Ratio(Replicated):
    """A sum of sign x log p in nats, in most cases log p(y) - log p(x), with the `nll` of every side.

    >>> import infodis
    >>> from infodis.oracle import MarkovChain
    >>> ratio = infodis.log_ratio(MarkovChain.random(order=1, vocab_size=3), [0, 1, 2], [2, 1, 0])
    >>> y, x = ratio.sides
    >>> abs(ratio.value - (x.value - y.value)) < 1e-9
    True
    """

    sides: tuple[Estimate, ...]
    signs: tuple[Sign, ...]
    coupled: bool

    @property
    def numerator(self) -> Estimate:
        """The `nll` of y, where two sides are compared."""
        return self._only(1)

    @property
    def denominator(self) -> Estimate:
        """The `nll` of x, where two sides are compared."""
        return self._only(-1)

    def _only(self, sign: Sign) -> Estimate:
        found = [side for side, its in zip(self.sides, self.signs, strict=True) if its == sign]
        if len(found) != 1:
            raise InputError(f"{len(self.sides)} sides have no single numerator and denominator: read `sides`.")
        return found[0]

    def _facts(self) -> list[tuple[str, str]]:
        pairs = zip(self.signs, self.sides, strict=True)
        sides = (("log p, added" if sign == 1 else "log p, subtracted", side.shown()) for sign, side in pairs)
        return [*super()._facts(), *((name, f"-({value})") for name, value in sides)]

    def __repr__(self) -> str:
        return f"Ratio({self.quantity} = {self.value:.4f} nats, {self._precision()}, coupled={self.coupled})"


Outcome = Ratio | InputError
"""A ratio, or why there is none."""


class RatioOptions(TypedDict, total=False):
    """The keywords of `log_ratio`, for type checkers."""

    reference: Predictor | None
    prompt: str
    target: Positions | None
    context: Positions | None
    evaluations: int | None
    standard_error: float | None
    design: MaskDesign
    control: Control | None
    coupled: bool
    seed: SupportsIndex
    batch_size: int | None


Base = OneSequence | Tensor | None


@overload
def log_ratio(predictor: Predictor, y: Tensor, x: Base = None, **options: Unpack[RatioOptions]) -> Any: ...
@overload
def log_ratio(  # type: ignore[overload-overlap]  # a text is an iterable of texts, too
    predictor: Predictor, y: OneSequence, x: Base = None, **options: Unpack[RatioOptions]
) -> Ratio: ...
@overload
def log_ratio(
    predictor: Predictor, y: ManySequences, x: Base = None, **options: Unpack[RatioOptions]
) -> list[Ratio]: ...
def log_ratio(
    predictor: Predictor,
    y: Tokens,
    x: Base = None,
    *,
    prompt: str = "",
    reference: Predictor | None = None,
    target: Positions | None = None,
    context: Positions | None = None,
    evaluations: int | None = None,
    standard_error: float | None = None,
    design: MaskDesign = Auto(),
    control: Control | None = Surrogate(),
    coupled: bool = True,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> "Ratio | list[Ratio]":
    """Log p(y) - log p(x), or log p(y) under `predictor` minus log p(y) under `reference`, with its standard error.

    Args:
        predictor: a model (`infodis.load`) or any other `Predictor`.
        y: a text or a sequence of token ids, or a list of candidates (then a list of ratios comes back), of any
            lengths.
        x: the text or sequence to compare with; leave it out if you give a `reference`.
        prompt: a text that all texts come after.
        reference: another predictor, to compare with on the same tokens.
        target, context: positions, the same for every sequence; by default everything is target.
        evaluations, standard_error, design, control, seed, batch_size: as for `nll`, for each side.
        coupled: share the randomness. `False` draws the two sides independently, for comparison.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=1, vocab_size=3)
    >>> ratio = log_ratio(chain, [0, 1, 2, 0, 1], [2, 2, 0])
    >>> abs(ratio.value - (chain.log_prob([0, 1, 2, 0, 1]) - chain.log_prob([2, 2, 0]))) < 1e-9
    True

    >>> import infodis
    >>> model = infodis.load("text8-tiny")
    >>> log_ratio(model, "the cat", "teh cat").value > 0
    True
    """
    if (x is None) == (reference is None):
        raise InputError(
            "Compare y with another sequence x, or with a reference predictor on the same tokens: give one."
        )
    request = Request(design, control, evaluations, standard_error, batch_size=batch_size)
    numerators, single = read_items(predictor, y, prompt=prompt, target=target, context=context)
    if x is None:
        denominators = numerators
        _check_same_rows(reference, y, numerators, prompt)
    else:
        base, _ = read_items(predictor, x, prompt=prompt, target=target, context=context)
        if len(base) != 1:
            raise InputError(f"x must be one sequence, got {len(base)}. For many candidates give a list as y.")
        denominators = base * len(numerators)
    other = predictor if reference is None else reference
    number = check_seed(seed)
    comparisons = [
        Comparison((Side(predictor, above), Side(other, below, -1)), request, coupled, number)
        for above, below in zip(numerators, denominators, strict=True)
    ]
    found = [_defined(outcome) for outcome in compare(comparisons)]
    return found[0] if single else found


def _check_same_rows(reference: Predictor | None, y: Tokens, rows: Sequence[Item], prompt: str) -> None:
    """Text must be the same tokens to both models."""
    texts = [y] if isinstance(y, str) else [] if isinstance(y, Tensor | Item) else list(y)
    if not isinstance(reference, TextReader) or not all(isinstance(text, str) for text in texts):
        return
    for text, row in zip(texts, rows, strict=False):
        other = reference.read(str(text), prompt=prompt)
        if not (torch.equal(row.tokens, other.tokens) and torch.equal(row.target, other.target)):
            raise InputError(
                f"The model and its reference must read a text as the same tokens, got {row.length} and "
                f"{other.length} tokens for {text!r}. Take a reference with the model's tokenizer."
            )


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """One log p of a comparison, added or subtracted."""

    predictor: Predictor
    item: Item
    sign: Sign = 1


def margin(policy: Predictor, chosen: Item, rejected: Item, *, reference: Predictor | None = None) -> tuple[Side, ...]:
    """The sides of log p(chosen) - log p(rejected); with a reference, minus the same under the reference.

    The latter is the reward margin of direct preference optimisation, in units of its temperature beta.
    """
    sides = (Side(policy, chosen), Side(policy, rejected, -1))
    return sides if reference is None else (*sides, Side(reference, chosen, -1), Side(reference, rejected))


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """The sum of sign x log p over some sides, drawn from the same uniform numbers.

    The first side that is subtracted is the **base**. A pilot on it decides the design of all sides. The numbers are
    named after it, so that all candidates that are compared with one sequence share them.
    """

    sides: tuple[Side, ...]
    request: Request = Request()
    coupled: bool = True
    """`False` draws every side independently, for comparison."""
    seed: int = 0
    quantity: str = "log_ratio"

    def __post_init__(self) -> None:
        if all(side.sign == 1 for side in self.sides):
            raise InputError(f"A comparison needs a side that is subtracted; all {len(self.sides)} are added.")
        for side in self.sides:
            side.item.check_vocabulary(vocab_size=side.predictor.vocab_size, mask_token=side.predictor.mask_token)

    @property
    def base(self) -> Side:
        return next(side for side in self.sides if side.sign == -1)

    def names(self) -> list[int]:
        """The random stream of every side."""
        shared = last = key(self.base.item.key, "ratio", 0)
        names = []
        for side in self.sides:
            if side is self.base or self.coupled:
                names.append(shared)
            else:
                last = key(last, "apart")
                names.append(last)
        return names

    def combination(self) -> Combination:
        """The same as a sum of nlls: log p is minus one."""
        terms = (
            Term(side.predictor, side.item, name, -side.sign)
            for side, name in zip(self.sides, self.names(), strict=True)
        )
        return Combination(tuple(terms), self.request, self.seed)

    def outcome(self, found: Combined | InputError) -> Outcome:
        """What the estimates of its sides come to."""
        if isinstance(found, InputError):
            return found
        infinite = {side.sign for side, one in zip(self.sides, found.estimates, strict=True) if one.impossible}
        if len(infinite) == 2:
            return InputError("Both sides of the ratio hold a probability of zero, so it is not defined.")
        return Ratio(
            self.quantity,
            found.replicates,
            found.evaluations,
            self.seed,
            found.stopped,
            found.estimates,
            tuple(side.sign for side in self.sides),
            self.coupled,
            first=found.first,
        )

    def ratio(self) -> Ratio:
        """The outcome of this comparison alone."""
        return _defined(compare([self])[0])


def _defined(outcome: Outcome) -> Ratio:
    if isinstance(outcome, InputError):
        raise outcome
    return outcome


def compare(comparisons: Sequence[Comparison]) -> list[Outcome]:
    """Make many comparisons side by side; what came of each, in order.

    Their rows share batches, and what several of them need is evaluated once. A comparison that has no answer, since
    two probabilities of zero meet or its budget is too small for its design, gives the `InputError` that says so.
    """
    found = estimate_combinations([comparison.combination() for comparison in comparisons])
    return [comparison.outcome(one) for comparison, one in zip(comparisons, found, strict=True)]
