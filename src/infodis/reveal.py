"""Which masked tokens a decoder reveals next: the one home of these rules, for samplers and for likelihoods.

A rule is a value. It sees which positions are still masked, uniform numbers, and, if it asks for that, how certain the
predictor is at every masked position. It never sees the tokens that are about to be revealed. So a decoder that draws
them from their conditionals writes a text with the product, over its steps, of the probabilities of the tokens revealed
together given what was visible before [eq:decoder-nll]. `infodis.order_nll` computes it, and `infodis.sampling.sample`
draws from it.
"""

import abc
import dataclasses
import math
import re
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from infodis.blocks import BlockLayout
from infodis.errors import InputError

Masks = Bool[Tensor, "rows length"]
Numbers = Float[Tensor, "rows length"]
Certainty = Callable[[Tensor], Tensor]
"""From log-probabilities (... x vocabulary) to how certain they are (...): more is more certain."""


def confidence(log_conditionals: Float[Tensor, "*places vocab"]) -> Float[Tensor, "*places"]:
    """The log-probability of the likeliest token."""
    return log_conditionals.amax(-1)


def negative_entropy(log_conditionals: Float[Tensor, "*places vocab"]) -> Float[Tensor, "*places"]:
    """Minus the entropy, in nats."""
    return -torch.special.entr(log_conditionals.exp()).sum(-1)


def margin(log_conditionals: Float[Tensor, "*places vocab"]) -> Float[Tensor, "*places"]:
    """The probability of the likeliest token minus that of the second; 1 where there is only one token."""
    best = log_conditionals.topk(min(2, log_conditionals.shape[-1]), dim=-1).values.exp()
    return best[..., 0] - best[..., 1:].sum(-1)


class RevealRule(abc.ABC):
    """Which masked positions to reveal next. Final subclasses are frozen dataclasses."""

    @property
    def certainty(self) -> Certainty | None:
        """What it wants to know at every masked position. None: its steps do not depend on the predictor."""
        return None

    @property
    def draws(self) -> bool:
        """Whether its steps are random."""
        return False

    def open(self, left: Masks, whole: Masks) -> Masks:
        """Of what is `left` of the `whole` mask, what may be revealed now: all of it, except for `InBlocks`."""
        return left

    @abc.abstractmethod
    def reveal(self, masked: Masks, keys: Numbers, certainty: Numbers | None, step: Int[Tensor, " rows"]) -> Masks:
        """The positions to reveal, of those masked; `step` counts from 0 in every row, anew in every block."""


@dataclasses.dataclass(frozen=True)
class Ranked(RevealRule):
    """The first `per_step` positions by some priority."""

    per_step: int = 1

    def __post_init__(self) -> None:
        if type(self.per_step) is not int or self.per_step < 1:
            name = type(self).__name__
            raise InputError(f"{name} reveals a whole number of tokens a step, 1 or more; got {self.per_step!r}.")

    @abc.abstractmethod
    def priority(self, keys: Numbers, certainty: Numbers | None) -> Numbers:
        """Positions with lower numbers come first; of equal ones the leftmost."""

    def reveal(self, masked: Masks, keys: Numbers, certainty: Numbers | None, step: Int[Tensor, " rows"]) -> Masks:
        return _first(masked, self.priority(keys, certainty), self.per_step)


def _first(masked: Masks, priority: Numbers, count: int) -> Masks:
    order = torch.where(masked, priority.double(), math.inf).argsort(dim=-1, stable=True)
    return masked & torch.zeros_like(masked).scatter(-1, order[..., :count], True)


@dataclasses.dataclass(frozen=True)
class LeftToRight(Ranked):
    """From left to right, as autoregressive models do.

    >>> import infodis
    >>> from infodis.oracle import Independent
    >>> coin = Independent(torch.tensor([0.25, 0.75]))
    >>> round(infodis.order_nll(coin, [1, 1, 0], order=infodis.LeftToRight()).value, 6)
    1.961659
    """

    def priority(self, keys: Numbers, certainty: Numbers | None) -> Numbers:
        return torch.arange(keys.shape[-1], dtype=torch.float64).expand(keys.shape)


@dataclasses.dataclass(frozen=True)
class RightToLeft(Ranked):
    """From right to left.

    >>> import infodis
    >>> from infodis.oracle import Independent
    >>> coin = Independent(torch.tensor([0.25, 0.75]))
    >>> round(infodis.order_nll(coin, [1, 1, 0], order=infodis.RightToLeft(per_step=2)).value, 6)
    1.961659
    """

    def priority(self, keys: Numbers, certainty: Numbers | None) -> Numbers:
        return -torch.arange(keys.shape[-1], dtype=torch.float64).expand(keys.shape)


@dataclasses.dataclass(frozen=True)
class RandomOrder(Ranked):
    """In uniformly random order.

    >>> import infodis
    >>> from infodis.oracle import Independent
    >>> coin = Independent(torch.tensor([0.25, 0.75]))
    >>> round(infodis.order_nll(coin, [1, 1, 0], order=infodis.RandomOrder()).value, 6)
    1.961659
    """

    @property
    def draws(self) -> bool:
        return True

    def priority(self, keys: Numbers, certainty: Numbers | None) -> Numbers:
        return keys


@dataclasses.dataclass(frozen=True)
class MostConfident(Ranked):
    """Where the likeliest token is most probable (LLaDA's low-confidence remasking, MaskGIT without noise).

    >>> import infodis
    >>> from infodis.oracle import Independent
    >>> coin = Independent(torch.tensor([0.25, 0.75]))
    >>> round(infodis.order_nll(coin, [1, 1, 0], order=infodis.MostConfident()).value, 6)
    1.961659
    """

    @property
    def certainty(self) -> Certainty:
        return confidence

    def priority(self, keys: Numbers, certainty: Numbers | None) -> Numbers:
        return -_known(certainty)


@dataclasses.dataclass(frozen=True)
class LowestEntropy(MostConfident):
    """Where the distribution over the vocabulary has the lowest entropy (Dream's `entropy`).

    >>> import infodis
    >>> from infodis.oracle import Independent
    >>> coin = Independent(torch.tensor([0.25, 0.75]))
    >>> round(infodis.order_nll(coin, [1, 1, 0], order=infodis.LowestEntropy(per_step=2)).value, 6)
    1.961659
    """

    @property
    def certainty(self) -> Certainty:
        return negative_entropy


@dataclasses.dataclass(frozen=True)
class LargestMargin(MostConfident):
    """Where the likeliest token leads by most over the second (probability margin, Kim et al. 2025).

    >>> import infodis
    >>> from infodis.oracle import Independent
    >>> coin = Independent(torch.tensor([0.25, 0.75]))
    >>> round(infodis.order_nll(coin, [1, 1, 0], order=infodis.LargestMargin()).value, 6)
    1.961659
    """

    @property
    def certainty(self) -> Certainty:
        return margin


@dataclasses.dataclass(frozen=True)
class AboveThreshold(RevealRule):
    """All positions whose likeliest token has at least this probability; where there is none, the most confident one.

    So every step reveals a token or more (Fast-dLLM's confidence-aware parallel decoding).

    >>> import infodis
    >>> from infodis.oracle import Independent
    >>> coin = Independent(torch.tensor([0.25, 0.75]))
    >>> round(infodis.order_nll(coin, [1, 1, 0], order=infodis.AboveThreshold(0.7)).value, 6)
    1.961659
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise InputError(f"A threshold is a probability above 0 and at most 1, got {self.threshold!r}.")

    @property
    def certainty(self) -> Certainty:
        return confidence

    def reveal(self, masked: Masks, keys: Numbers, certainty: Numbers | None, step: Int[Tensor, " rows"]) -> Masks:
        found = _known(certainty)
        return masked & ((found >= math.log(self.threshold)) | _first(masked, -found, 1))


@dataclasses.dataclass(frozen=True)
class GivenOrder(RevealRule):
    """One position after another, as they are listed."""

    positions: tuple[int, ...]

    def reveal(self, masked: Masks, keys: Numbers, certainty: Numbers | None, step: Int[Tensor, " rows"]) -> Masks:
        turn = torch.full((keys.shape[-1],), math.inf, dtype=torch.float64)
        turn[list(self.positions)] = torch.arange(len(self.positions), dtype=torch.float64)
        return _first(masked, turn.expand(keys.shape), 1)


@dataclasses.dataclass(frozen=True)
class InBlocks(RevealRule):
    """Blocks of `size` positions from left to right, each revealed by another rule before the next begins.

    `origin` says where blocks are counted from: the first token of the row (`global`), or the first token that was
    masked (`response`), as LLaDA's generation does.

    >>> import infodis
    >>> from infodis.oracle import Independent
    >>> coin = Independent(torch.tensor([0.25, 0.75]))
    >>> round(infodis.order_nll(coin, [1, 1, 0], order=infodis.InBlocks(infodis.MostConfident(), 2)).value, 6)
    1.961659
    """

    inner: RevealRule = RandomOrder()
    size: int = 32
    origin: str = "global"

    def __post_init__(self) -> None:
        BlockLayout(self.size, self.origin)  # it knows what is wrong with them

    @property
    def certainty(self) -> Certainty | None:
        return self.inner.certainty

    @property
    def draws(self) -> bool:
        return self.inner.draws

    def open(self, left: Masks, whole: Masks) -> Masks:
        place = torch.arange(left.shape[-1]).expand(left.shape)
        if self.origin == "response":
            place = place - whole.int().argmax(-1, keepdim=True)
        block = torch.where(left, place // self.size, left.shape[-1])
        return self.inner.open(left & (block == block.amin(-1, keepdim=True)), whole)

    def reveal(self, masked: Masks, keys: Numbers, certainty: Numbers | None, step: Int[Tensor, " rows"]) -> Masks:
        return self.inner.reveal(masked, keys, certainty, step)


def _known(certainty: Numbers | None) -> Numbers:
    assert certainty is not None  # whoever asks for it gets it
    return certainty


@dataclasses.dataclass(frozen=True, eq=False)
class DecoderState:
    """How far the rows of a decoder are, each at its own pace."""

    whole: Masks
    """What was masked at the beginning."""
    left: Masks
    step: Int[Tensor, " rows"]

    @staticmethod
    def start(masked: Masks) -> "DecoderState":
        return DecoderState(masked, masked, torch.zeros(len(masked), dtype=torch.int64))

    @property
    def done(self) -> bool:
        return not bool(self.left.any())

    def subset(self, rows: Int[Tensor, " some"]) -> "DecoderState":
        return DecoderState(self.whole[rows], self.left[rows], self.step[rows])

    def updated(self, rows: Int[Tensor, " some"], some: "DecoderState") -> "DecoderState":
        """With some rows further on."""
        return DecoderState(
            self.whole, self.left.index_copy(0, rows, some.left), self.step.index_copy(0, rows, some.step)
        )

    def advance(self, rule: RevealRule, keys: Numbers, certainty: Numbers | None) -> tuple[Masks, "DecoderState"]:
        """The positions that a rule reveals in one step, and what is then left."""
        masked = rule.open(self.left, self.whole)
        revealed = rule.reveal(masked, keys, certainty, self.step)
        step = torch.where((masked & ~revealed).any(-1), self.step + 1, 0)
        return revealed, DecoderState(self.whole, self.left & ~revealed, step)


RULES: dict[str, type[RevealRule]] = {
    "left-to-right": LeftToRight,
    "right-to-left": RightToLeft,
    "random": RandomOrder,
    "most-confident": MostConfident,
    "lowest-entropy": LowestEntropy,
    "largest-margin": LargestMargin,
    "above-threshold": AboveThreshold,
}


def rule_named(name: str, rules: dict[str, type[RevealRule]] = RULES) -> RevealRule:
    """A rule by name, as a command line gives it: `NAME`, `NAME=NUMBER`, and `:SIZE` behind it for blocks.

    The number is a rule's only one: tokens a step, or a threshold.

    >>> rule_named("most-confident=2:32")
    InBlocks(inner=MostConfident(per_step=2), size=32, origin='global')
    >>> rule_named("above-threshold=0.8")
    AboveThreshold(threshold=0.8)
    """
    found = re.fullmatch(r"(?P<word>[a-z-]+)(=(?P<number>\d+)|=(?P<share>\d*\.\d+))?(:(?P<size>\d+))?", name)
    if found is None or found["word"] not in rules or (found["share"] and found["word"] != "above-threshold"):
        raise InputError(
            f"A rule is one of {', '.join(rules)}, with =NUMBER for its number and :SIZE for blocks, like "
            f"most-confident=2:32; got {name!r}."
        )
    given = found["number"] or found["share"]
    kind = float if found["word"] == "above-threshold" else int
    rule = rules[found["word"]](*([] if given is None else [kind(given)]))
    return rule if found["size"] is None else InBlocks(rule, int(found["size"]))
