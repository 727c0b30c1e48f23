"""Where the information of a text lies: along the noise level, between its tokens, between its parts.

All of it follows from one list of numbers, the **profile** g(k): what a token costs on average when k of the m target
tokens are masked [eq:nll]. Its sum is the `nll`. Its tail sums say how much a noised text still tells. Its two ends say
how much the tokens have in common. Its growth says how many tokens may be revealed at once.

What is estimated are the **gains** g(m) - g(k): what m - k visible tokens tell about a masked one. The surprisals of
the fully masked row are taken off first; so gains of independent tokens are exactly zero, whatever was drawn.

Information between parts of one text is in `infodis.quantities.influence`; its names are here too.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import SupportsIndex

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.blocks import check_sees_all
from infodis.design import LONGEST_ENUMERATION, Enumerate, Layout, MaskDesign, Tiled, numbers
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.evaluate import Batching, Coroutine, ItemBatch, Observations, run_batched
from infodis.item import Item, Positions, Prompt, Tokens, read_items
from infodis.predictor import Predictor
from infodis.quantities.influence import Influence as Influence
from infodis.quantities.influence import Information as Information
from infodis.quantities.influence import influence as influence
from infodis.quantities.influence import mutual_information as mutual_information
from infodis.result import Rate, Stopped, standard_error
from infodis.rng import check_seed, key, stream, uniforms

DEFAULT_EVALUATIONS = 64
SMALLEST = 16
"""Forward passes that pay for two replicates and the ends of a profile."""

TOGETHER = 16
"""Texts under way at a time: enough to fill batches, few enough to show progress."""


@dataclasses.dataclass(frozen=True, eq=False)
class TextProfile:
    """The profile of one text, from independent unbiased replicates."""

    gains: Float64[Tensor, "replicates sizes"]
    """Of g(m) - g(k) at column k - 1. A replicate need not meet every size: look at sums over sizes, like `groups`."""
    single: Float64[Tensor, " replicates"]
    """Of g(m) - g(1), from more rows than `gains` has for that size."""
    full: float
    """g(m), exactly."""
    tops: Int[Tensor, " groups"]
    """The largest size of every group of neighbouring sizes that all replicates look at equally much."""
    evaluations: int
    seed: int
    stopped: Stopped

    @property
    def tokens(self) -> int:
        """Target tokens, m."""
        return self.gains.shape[1]

    @property
    def nll(self) -> Information:
        """The sum of the profile: as unbiased as `infodis.nll`, which spends all rows on it and is more precise."""
        return self._information("nll", self.tokens * self.full - self.gains.sum(1))

    @property
    def total_correlation(self) -> Information:
        """How much more the tokens cost one by one than together: m g(m) - nll [eq:correlations]."""
        return self._information("total_correlation", self.gains.sum(1))

    @property
    def dual_total_correlation(self) -> Information:
        """How much of the text is not private to single tokens: nll - m g(1) [eq:correlations]."""
        return self._information("dual_total_correlation", self.tokens * self.single - self.gains.sum(1))

    def curve(self, levels: Float64[Tensor, " levels"]) -> Float64[Tensor, "replicates levels"]:
        """Information about the text that is left at each noise level, in nats, for every replicate."""
        return (self.full - self.gains) @ visible_shares(self.tokens, levels).T  # [eq:information-left]

    def groups(self) -> Float64[Tensor, "replicates groups"]:
        """The mean of g over each group of sizes: unbiased, like `gains`, and less noisy."""
        ends = torch.nn.functional.pad(self.gains.cumsum(1)[:, self.tops - 1], (1, 0))
        return self.full - ends.diff(dim=1) / self.widths

    @property
    def widths(self) -> Int[Tensor, " groups"]:
        """How many sizes each group holds."""
        return self.tops.diff(prepend=torch.tensor([0]))

    def _information(self, quantity: str, replicates: Float64[Tensor, " replicates"]) -> Information:
        return Information(quantity, replicates, self.evaluations, self.seed, self.stopped)


def visible_shares(tokens: int, levels: Float64[Tensor, " levels"]) -> Float64[Tensor, "levels sizes"]:
    """P(fewer than k of the tokens are masked) at each noise level, for k = 1..tokens [eq:information-left].

    It is the integral of what size k contributes to the I-MDCE relation, from the level up to 1.
    """
    from scipy.special import bdtr  # imported here: it takes a while

    return torch.from_numpy(bdtr(np.arange(tokens), tokens, levels.unsqueeze(-1).numpy()))


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """The profiles of some texts, and what they add up to. Averages are per token: lengths may differ."""

    texts: tuple[TextProfile, ...]

    @property
    def tokens(self) -> int:
        return sum(text.tokens for text in self.texts)

    @property
    def evaluations(self) -> int:
        return sum(text.evaluations for text in self.texts)

    @property
    def nll(self) -> Rate:
        return self._rate([text.nll.replicates for text in self.texts])

    @property
    def total_correlation(self) -> Rate:
        return self._rate([text.total_correlation.replicates for text in self.texts])

    @property
    def dual_total_correlation(self) -> Rate:
        return self._rate([text.dual_total_correlation.replicates for text in self.texts])

    def curve(self, levels: Iterable[float] | Tensor) -> Rate:
        """I(x_0; x_level) per token: what a text tells about itself when each token is masked with that probability.

        At level 0 it is the `nll`, at level 1 it is 0. Unbiased at every level [eq:information-left].
        """
        checked = _checked_shares(levels, name="levels")
        return self._rate([text.curve(checked) for text in self.texts])

    def at_shares(self, shares: Iterable[float] | Tensor) -> Rate:
        """The profile against the share of masked tokens, by groups of sizes: its integral over 0..1 is the `nll`.

        Group means are unbiased. Within a group the profile is drawn flat, which it need not be.
        """
        checked = _checked_shares(shares, name="shares")
        found = []
        for text in self.texts:
            size = (checked * text.tokens).ceil().long().clamp(min=1)
            group = torch.searchsorted(text.tops, size)
            found.append(text.tokens * text.groups()[:, group])
        return self._rate(found)

    def surprisals(self) -> Float64[Tensor, " sizes"]:
        """A guess of the mean g(k) for every size k: non-decreasing, between group means and both ends drawn straight.

        A smooth guess, not an estimate without bias: what `schedule` needs. All texts must have one target length.
        """
        first = self.texts[0]
        lengths = sorted({text.tokens for text in self.texts})
        if len(lengths) > 1:
            raise InputError(
                f"A profile by size needs targets of one length, got {lengths[0]} to {lengths[-1]} tokens. "
                "Cut the texts to one length, or use at_shares."
            )
        groups = torch.stack([text.groups().mean(0) for text in self.texts]).mean(0)
        full = sum(text.full for text in self.texts) / len(self.texts)
        single = full - sum(float(text.single.mean()) for text in self.texts) / len(self.texts)
        centres = first.tops - (first.widths - 1) / 2
        places, values = [1.0, *centres.tolist(), float(first.tokens)], [single, *groups.tolist(), full]
        return torch.from_numpy(np.interp(np.arange(1, first.tokens + 1), places, _rising(values)))

    def schedule(self, steps: int) -> list[int]:
        """How many tokens to reveal in each of `steps` sampling steps; see `unmasking_schedule`."""
        return unmasking_schedule(self.surprisals(), steps)

    def _rate(self, texts: Sequence[Float64[Tensor, "..."]]) -> Rate:
        """Replicates (first axis) of nats per text to nats per token of all texts together."""
        means = torch.stack([text.mean(0) for text in texts])
        tokens = torch.tensor([text.tokens for text in self.texts], dtype=torch.float64)
        return Rate.over(means, tokens, torch.stack([standard_error(text).square() for text in texts]))

    def __repr__(self) -> str:
        nll = self.nll
        return (
            f"Profile({len(self.texts)} texts, {self.tokens} tokens, nll = {float(nll.value):.4f} nats per token, "
            f"standard_error={float(nll.monte_carlo_error):.2g} from masks, evaluations={self.evaluations})"
        )


def _checked_shares(values: Iterable[float] | Tensor, *, name: str) -> Float64[Tensor, " values"]:
    read = torch.as_tensor(values if isinstance(values, Tensor) else list(values), dtype=torch.float64).cpu()
    if read.ndim != 1 or not bool(((read >= 0) & (read <= 1)).all()):
        raise InputError(f"{name} must be a flat list of numbers in 0..1, got {read.tolist()}.")
    return read


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest non-decreasing list: neighbours that fall are replaced by their mean, again and again."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        block = (value, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, count = blocks.pop()
            block = ((mean * count + block[0] * block[1]) / (count + block[1]), count + block[1])
        blocks.append(block)
    return [mean for mean, count in blocks for _ in range(count)]


def profile(
    predictor: Predictor,
    tokens: Tokens,
    *,
    prompt: Prompt = "",
    target: Positions | Sequence[Positions] | None = None,
    context: Positions | Sequence[Positions] | None = None,
    evaluations: int | None = None,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """The profile g(k) of one text or many, and with it all that this module derives from it.

    A target of m tokens with 2^m - 1 <= `evaluations` is enumerated: everything is exact. Otherwise one row has all
    masked, a quarter of the rows mask a single token (all m of them, if they are as few), and the rest are
    `Tiled` masks in independent replicates. Curves, nll and correlations are unbiased whatever the predictor; they
    are what their names say if its conditionals come from one joint distribution.

    Args:
        predictor: any `Predictor`.
        tokens: a text or a sequence of token ids, or many of any lengths.
        prompt, target, context: as for `nll`. Only the target is noised; the context is always visible.
        evaluations: forward passes to spend on each text, 64 by default.
        seed: the same seed gives the same masks for the same text, whatever else is looked at; equal texts get masks
            of their own.
        batch_size: at most so many rows per call of the predictor. It changes no result.
        progress: called with the texts done and their number, from time to time.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=2, vocab_size=4, seed=1)
    >>> found = profile(chain, [[0, 1, 2, 3, 0, 1], [3, 3, 2, 1, 0, 0]])
    >>> abs(found.texts[0].nll.value + chain.log_prob([0, 1, 2, 3, 0, 1])) < 1e-9
    True
    >>> [round(float(nats), 3) for nats in found.curve([0.0, 0.5, 1.0]).value]
    [1.429, 0.702, 0.0]
    """
    check_sees_all(predictor, "An information profile")
    request = Request(evaluations=evaluations, batch_size=batch_size)
    rows = DEFAULT_EVALUATIONS if request.evaluations is None else request.evaluations
    number = check_seed(seed)
    items, single = read_items(predictor, tokens, prompt=prompt, target=target, context=context)
    plans = {count: _Plan.of(count, rows) for count in {item.target.numel() for item in items}}
    for place, item in enumerate(items):
        try:
            item.check_vocabulary(vocab_size=predictor.vocab_size, mask_token=predictor.mask_token)
        except InputError as error:
            raise error if single else InputError(f"Sequence {place}: {error}") from None
    coroutines = (
        plans[item.target.numel()].profiling(predictor, item, seed=number, name=name)
        for item, name in zip(items, _names(items), strict=True)
    )
    found: list[TextProfile] = []
    for text in run_batched(coroutines, Batching(batch_size, together=TOGETHER)):
        found.append(text)
        if progress is not None:
            progress(len(found), len(items))
    return Profile(tuple(found))


def _names(items: Sequence[Item]) -> Iterator[int]:
    """What items are called in random streams. Equal ones must not share masks, or their errors would add up."""
    met: collections.Counter[int] = collections.Counter()
    for item in items:
        yield key("profile", item.key, met[item.key])
        met[item.key] += 1


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The rows to look at in a text: those of a design, `singles` masks of one token a replicate, and the full mask."""

    length: int
    design: MaskDesign
    layout: Layout
    singles: int

    @staticmethod
    def of(length: int, rows: int) -> "_Plan":
        if length <= LONGEST_ENUMERATION and 2**length - 1 <= rows:
            return _Plan(length, Enumerate(), Enumerate().layout(length, rows), singles=length)
        if rows < SMALLEST:
            raise InputError(
                f"A profile of {length} target tokens takes at least {SMALLEST} forward passes, got evaluations={rows}."
            )
        share = rows // 4
        left = rows - 1 - min(length, share)
        layout = Tiled().layout(length, left - left % 4)  # four replicates: each wants some of the single masks
        return _Plan(length, Tiled(), layout, length if length <= share else share // layout.replicates)

    @functools.cached_property
    def tops(self) -> Int[Tensor, " groups"]:
        """The largest size of every group that has the same total weight in all replicates: found by the least and the
        most that each row may mask.
        """
        if self.layout.replicates == 1:
            return torch.arange(1, self.length + 1)
        keys = torch.linspace(0, 1, self.length, dtype=torch.float64).expand(2, self.layout.rows, -1)
        levels = torch.tensor([[0.0], [1 - 1e-9]], dtype=torch.float64).expand(-1, self.layout.rows)
        least, most = self.design.masks(levels, keys)[0].sum(-1)
        return most[torch.cat([least[1:] > most[:-1], torch.tensor([True])])]

    def single_masks(self, generators: Sequence[torch.Generator]) -> Bool[Tensor, "replicates singles length"]:
        """Masks of one token each; all of them, once, if there are enough rows."""
        unit = torch.eye(self.length, dtype=torch.bool)
        if self.singles == self.length:
            return unit.unsqueeze(0)
        keys = torch.stack([uniforms(self.length, generator=generator) for generator in generators])
        return unit[keys.argsort(-1)[:, : self.singles]]

    def profiling(self, predictor: Predictor, item: Item, *, seed: int, name: int) -> Coroutine[TextProfile]:
        """The coroutine that looks at one text."""
        replicates = self.layout.replicates
        generators = [stream(seed, name, replicate) for replicate in range(replicates)]
        masked, weight = self.design.masks(*numbers(self.length, self.layout, generators))
        singles = self.single_masks(generators)
        full = torch.ones(1, self.length, dtype=torch.bool)
        rows = torch.cat([full, singles.flatten(0, 1), masked.flatten(0, 1)])
        seen = yield from Observations.none(1, self.length).extend(ItemBatch.of(predictor, [item]), rows.unsqueeze(0))
        surprisal = seen.surprisal[0]
        if bool(surprisal.isinf().any()):
            raise InputError(
                f"The text {item.tokens[:8].tolist()}... has probability zero under this predictor, so information "
                "about it is not defined. Leave it out."
            )
        gain = torch.where(rows, surprisal[0] - surprisal, 0.0)
        alone, rest = gain[1:].split([singles.shape[0] * singles.shape[1], masked.shape[0] * masked.shape[1]])
        total = (weight * rest.view(weight.shape)).sum(-1)
        gains = torch.zeros(replicates, self.length, dtype=torch.float64).scatter_add(1, masked.sum(-1) - 1, total)
        return TextProfile(
            gains,
            alone.sum(-1).view(singles.shape[:2]).mean(1).expand(replicates),
            float(surprisal[0].mean()),
            self.tops,
            int(seen.cost[0]),
            seed,
            "exact" if replicates == 1 else "budget spent",
        )


def unmasking_schedule(surprisal: Iterable[float] | Tensor, steps: int) -> list[int]:
    """How many tokens to reveal in each step, so that revealing in parallel costs least in total [eq:unmasking].

    `surprisal` holds g(1), ..., g(m). Exact, by dynamic programming over the tokens that are still masked.

    >>> unmasking_schedule([0.1, 0.2, 0.4, 1.5, 1.6, 1.7], steps=3)
    [3, 1, 2]
    """
    profiled = _checked_profile(surprisal)
    length = profiled.numel()
    if not 1 <= steps <= length:
        raise InputError(f"steps must lie in 1..{length}, one token a step at most, got {steps}.")
    masked = torch.arange(length + 1)
    revealed = masked.unsqueeze(1) - masked
    paid = torch.nn.functional.pad(profiled, (1, 0)).unsqueeze(1) * revealed
    price = torch.where(revealed > 0, paid, math.inf)  # from so many masked tokens (row) down to so many (column)
    best = torch.where(masked == 0, 0.0, math.inf).double()
    choices = []
    for _ in range(steps):
        best, choice = (price + best).min(1)
        choices.append(choice)
    left, counts = length, []
    for choice in reversed(choices):
        counts.append(left - int(choice[left]))
        left = int(choice[left])
    return counts


def unmasking_cost(surprisal: Iterable[float] | Tensor, counts: Sequence[int]) -> float:
    """What a schedule loses against one token at a time, in nats: tokens of one step are drawn blindly [eq:unmasking].

    >>> round(unmasking_cost([0.1, 0.2, 0.4, 1.5, 1.6, 1.7], [3, 1, 2]), 6)
    0.4
    """
    profiled = _checked_profile(surprisal)
    if min(counts, default=0) < 1 or sum(counts) != profiled.numel():
        raise InputError(f"Steps must reveal at least one token each, {profiled.numel()} in all, got {list(counts)}.")
    before = profiled.numel() - torch.tensor([0, *itertools.accumulate(counts)][:-1])
    return float((profiled[before - 1] * torch.tensor(counts)).sum() - profiled.sum())


def _checked_profile(surprisal: Iterable[float] | Tensor) -> Float64[Tensor, " sizes"]:
    values = surprisal if isinstance(surprisal, Tensor) else list(surprisal)
    read = torch.as_tensor(values, dtype=torch.float64).cpu()
    if read.ndim != 1 or read.numel() == 0 or not bool(read.isfinite().all()):
        raise InputError(f"A profile must be a flat list of finite numbers g(1), ..., g(m), got {read.tolist()}.")
    return read
