"""What parts of a text tell about each other: span and span, every context token and every target token.

For spans it takes two `nll`s that meet the same masks. For tokens, masks are drawn over target and context: the target
as for `nll`, the context so that every token's share in what the context tells can be read off. All context tokens and
all target tokens share the same forward passes.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import SupportsIndex

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.auto import Auto
from infodis.blocks import check_sees_all
from infodis.control import Control, Surrogate
from infodis.design import LONGEST_ENUMERATION, Enumerate, MaskDesign, Tiled, numbers
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.evaluate import Batching, ItemBatch, run
from infodis.item import Item, OneSequence, Positions, as_positions, as_sequence, read_item
from infodis.predictor import Predictor
from infodis.quantities.ratio import Comparison, Ratio, Side
from infodis.result import Replicated, Stopped, standard_error
from infodis.rng import check_seed, stream, uniforms

DEFAULT_EVALUATIONS = 1024

PARTS = 4
"""Forward passes for a mask: with all of the context, with nothing, with a random part and with its complement."""

Visible = Bool[Tensor, "replicates rows parts context"]
Shares = Float64[Tensor, "replicates rows parts context"]


@dataclasses.dataclass(frozen=True, eq=False)
class Information(Replicated):
    """Some information in nats, with its standard error."""

    def __repr__(self) -> str:
        return f"Information({self.quantity} = {self.value:.4f} nats, {self._precision()})"


def mutual_information(
    predictor: Predictor,
    tokens: Iterable[int] | Tensor,
    a: Positions,
    b: Positions,
    *,
    given: Positions = (),
    evaluations: int | None = None,
    standard_error: float | None = None,
    design: MaskDesign = Auto(),
    control: Control | None = Surrogate(),
    coupled: bool = True,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> Ratio:
    """Pointwise mutual information of two spans of a text: nll(A | given) - nll(A | B, given) [eq:correlations].

    Both sides meet the same masks on A, so that most of their noise cancels. Positions in none of the sets are summed
    out. The result holds both sides: `denominator` is nll(A | given), `numerator` is nll(A | B, given).

    Args:
        predictor: any `Predictor`.
        tokens: one sequence of token ids.
        a, b, given: disjoint sets of positions. A is what gets masked: the shorter span is the cheaper one.
        evaluations, standard_error, design, control, seed, batch_size: as for `nll`, for each side.
        coupled: share the masks. `False` draws the two sides independently, for comparison.

    >>> from infodis import oracle
    >>> coin = oracle.Independent(torch.tensor([0.25, 0.75]))
    >>> mutual_information(coin, [0, 1, 1, 0], a=[0, 1], b=[2], given=[3]).value
    0.0
    """
    check_sees_all(predictor, "Mutual information of spans")
    sequence = as_sequence(tokens)
    first, second, known = (
        as_positions(part, length=sequence.numel(), name=name) for part, name in ((a, "a"), (b, "b"), (given, "given"))
    )
    for name, one, other in (("a and b", first, second), ("a and given", first, known), ("b and given", second, known)):
        both = one[torch.isin(one, other)]
        if both.numel():
            raise InputError(f"{name} must be disjoint, both hold position {int(both[0])}.")
    if first.numel() == 0 or second.numel() == 0:
        raise InputError("a and b must each hold at least one position.")
    without, informed = (
        Item.read(sequence, target=first, context=context) for context in (known, torch.cat([known, second]))
    )
    informed.check_vocabulary(vocab_size=predictor.vocab_size, mask_token=predictor.mask_token)
    request = Request(design, control, evaluations, standard_error, batch_size)
    sides = (Side(predictor, informed), Side(predictor, without, -1))
    return Comparison(sides, request, coupled, check_seed(seed), "mutual_information").ratio()


@dataclasses.dataclass(frozen=True, eq=False)
class Influence:
    """How much each context token lowers the surprisal of each target token, in nats, from independent replicates.

    An entry is the Shapley value of context token j in the game "credit of target token i, given some of the context"
    [eq:influence]. So a row adds up to what the whole context does for its token, and all entries together to the
    pointwise mutual information of context and target.
    """

    effects: Float64[Tensor, "replicates target context"]
    credits: Float64[Tensor, "replicates target"]
    """Of every target token given all of the context, as in `nll`."""
    target: Int[Tensor, " target"]
    context: Int[Tensor, " context"]
    evaluations: int
    seed: int
    stopped: Stopped

    @property
    def value(self) -> Float64[Tensor, "target context"]:
        """Positive where a context token makes a target token less surprising."""
        return self.effects.mean(0)

    @property
    def standard_error(self) -> Float64[Tensor, "target context"]:
        """Of `value`, from the spread of the replicates; 0 if everything was enumerated."""
        return standard_error(self.effects)

    @property
    def per_token(self) -> Float64[Tensor, " target"]:
        """Credits: they add up to the `nll` given the context."""
        return self.credits.mean(0)

    @property
    def per_token_error(self) -> Float64[Tensor, " target"]:
        """Standard errors of `per_token`."""
        return standard_error(self.credits)

    @property
    def nll(self) -> Information:
        """The sum of the credits: as unbiased as `infodis.nll`, which spends all rows on it and is more precise."""
        return Information("nll", self.credits.sum(1), self.evaluations, self.seed, self.stopped)

    @property
    def information(self) -> Information:
        """The pointwise mutual information of context and target: all effects together."""
        total = self.effects.sum((1, 2))
        return Information("mutual_information", total, self.evaluations, self.seed, self.stopped)

    def __repr__(self) -> str:
        return (
            f"Influence({self.context.numel()} context on {self.target.numel()} target tokens, mutual_information = "
            f"{self.information.value:.4f} nats, standard_error={self.information.standard_error:.2g}, "
            f"replicates={len(self.effects)}, evaluations={self.evaluations})"
        )


def influence(
    predictor: Predictor,
    tokens: OneSequence | Tensor,
    *,
    prompt: str = "",
    context: Positions | None = None,
    target: Positions | None = None,
    evaluations: int | None = None,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> Influence:
    """How much each context token lowers the surprisal of each target token, and the credits of target tokens.

    Every target mask is looked at with all of the context, with none of it, with a random part and with the rest: four
    forward passes. If all masks and all parts fit the budget they are enumerated, and the result is exact. Unbiased for
    every predictor.

    Args:
        predictor: any `Predictor`.
        tokens: one sequence of token ids, or a text.
        prompt: for a text, the prompt whose influence is wanted.
        context: for token ids, positions whose influence is wanted.
        target: positions to score; by default all that are not context.
        evaluations: forward passes to spend, 1024 by default.
        seed: the same seed gives the same masks for the same sequence.
        batch_size: at most so many rows per call of the predictor. It changes no result.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=1, vocab_size=3, seed=1)
    >>> found = influence(chain, [0, 1, 2, 0, 1], context=[0, 2])
    >>> gained = chain.log_prob([0, 1, 2, 0, 1], context=[0, 2]) - chain.log_prob([0, 1, 2, 0, 1], target=[1, 3, 4])
    >>> abs(found.information.value - gained) < 1e-9
    True
    """
    check_sees_all(predictor, "The influence of a context")
    request = Request(evaluations=evaluations, batch_size=batch_size)
    rows = DEFAULT_EVALUATIONS if request.evaluations is None else request.evaluations
    number = check_seed(seed)
    item = read_item(predictor, tokens, prompt=prompt, target=target, context=context)
    if item.context.numel() == 0:
        raise InputError(
            "The context is empty: there is nothing whose influence could be measured. Give prompt= or context=."
        )
    looks = _enumerated(item, rows) or _drawn(item, rows, number)
    return looks.combine(item, _ask(predictor, item, looks, Batching(batch_size)), number)


@dataclasses.dataclass(frozen=True, eq=False)
class _Looks:
    """Target masks with their weights, and for each of them some visible parts of the context with their shares."""

    masked: Bool[Tensor, "replicates rows target"]
    weight: Float64[Tensor, "replicates rows target"]
    visible: Visible
    shares: Shares

    def combine(self, item: Item, surprisal: Float64[Tensor, "replicates rows parts target"], seed: int) -> Influence:
        if bool(surprisal.isinf().any()):
            raise InputError("The text has probability zero under this predictor, so influence on it is not defined.")
        weighted = surprisal * self.weight.unsqueeze(2)
        effects = -torch.bmm(weighted.flatten(1, 2).transpose(1, 2), self.shares.flatten(1, 2))  # [eq:influence]
        everything = self.visible.all(-1, keepdim=True)
        return Influence(
            effects,
            (weighted * everything).sum((1, 2)),
            item.target,
            item.context,
            self.visible[..., 0].numel(),
            seed,
            "exact" if len(effects) == 1 else "budget spent",
        )


def _ask(predictor: Predictor, item: Item, looks: _Looks, batching: Batching) -> Tensor:
    """Surprisals at the target for every mask and visible part."""
    visible = looks.visible.flatten(0, 2)
    masked = looks.masked.unsqueeze(2).expand(-1, -1, looks.visible.shape[2], -1)
    count = len(visible)
    hidden = item.hidden.expand(count, -1).scatter(1, item.context.expand(count, -1), ~visible)
    batch = ItemBatch(predictor, item.clean.expand(count, -1), item.target.expand(count, -1), hidden)
    return run(batch.surprisals(torch.arange(count), masked.flatten(0, 2)), batching).view(masked.shape)


def _enumerated(item: Item, rows: int) -> _Looks | None:
    """All masks with all parts of the context, if there are rows enough."""
    length, count = item.target.numel(), item.context.numel()
    if length + count > LONGEST_ENUMERATION or (2**length - 1) * 2**count > rows:
        return None
    masked, weight = _masks(Enumerate(), item, 2**length - 1, seed=0)
    visible = (torch.arange(2**count).unsqueeze(-1) >> torch.arange(count)) & 1 == 1
    ways = torch.tensor([math.comb(count, size) for size in range(count + 1)], dtype=torch.float64)
    shares = _shapley(visible) / ways[visible.sum(-1)].unsqueeze(-1)
    shape = (*masked.shape[:2], -1, -1)
    return _Looks(masked, weight, visible.expand(shape), shares.expand(shape))


def _drawn(item: Item, rows: int, seed: int) -> _Looks:
    """`Tiled` masks, each with all of the context, with nothing, with a random part and with its complement."""
    count = item.context.numel()
    parts = PARTS if count > 1 else 2  # a single token has no other part than all and nothing
    check_influence_budget(rows, parts)
    masked, weight = _masks(Tiled(), item, rows // parts, seed=seed)
    everything = torch.ones(*masked.shape[:2], 1, count, dtype=torch.bool)
    ends = torch.cat([everything, ~everything], dim=2)
    if parts == 2:
        return _Looks(masked, weight, ends, _shapley(ends))
    some = torch.stack(
        [_parts(masked.shape[1], count, generator=stream(seed, item.key, "context", n)) for n in range(len(masked))]
    ).unsqueeze(2)
    pair = torch.cat([some, ~some], dim=2)
    shares = torch.cat([_shapley(ends), _shapley(pair) * (count - 1) / 2], dim=2)
    return _Looks(masked, weight, torch.cat([ends, pair], dim=2), shares)


def check_influence_budget(rows: int, parts: int = PARTS) -> None:
    """Refuse a budget that is too small for any context of several tokens, or of one."""
    if rows < 2 * parts:
        raise InputError(
            f"Influence takes {parts} forward passes for a mask, and two masks for a standard error: evaluations must "
            f"be at least {2 * parts}, got {rows}."
        )


def _masks(design: MaskDesign, item: Item, rows: int, *, seed: int) -> tuple[Tensor, Tensor]:
    layout = design.layout(item.target.numel(), rows)
    generators = [stream(seed, item.key, "influence", replicate) for replicate in range(layout.replicates)]
    return design.masks(*numbers(item.target.numel(), layout, generators))


def _parts(rows: int, count: int, *, generator: torch.Generator) -> Bool[Tensor, "rows context"]:
    """A random part of the context for every row: its size uniform on 1..count - 1, stratified over the rows.

    Strata are dealt to rows at random. Rows are sorted by the size of their mask, which must not decide on the part.
    """
    stratum = torch.randperm(rows, generator=generator)
    level = (stratum + uniforms(rows, generator=generator)) / rows
    size = 1 + (level * (count - 1)).long().clamp(max=count - 2)
    place = uniforms(rows, count, generator=generator).argsort(-1)
    return place < size.unsqueeze(-1)


def _shapley(visible: Bool[Tensor, "... context"]) -> Float64[Tensor, "... context"]:
    """The share of each context token in a game's value at a visible part of size s, before averaging over such parts:
    1/s for tokens of the part, -1/(n - s) for the others [eq:influence].
    """
    count = visible.shape[-1]
    size = visible.sum(-1, keepdim=True).double()
    return torch.where(visible, 1 / size.clamp(min=1), -1 / (count - size).clamp(min=1))
