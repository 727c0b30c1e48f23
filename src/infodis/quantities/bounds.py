"""What a predictor says about a sequence when its conditionals disagree: one number per reveal order, and bounds.

The chain rule along a reveal order gives a likelihood. If the conditionals come from one joint distribution, all orders
give the same; a learned network's do not. A model that draws its order at random has the **mixture** of them as its
likelihood, `mixture_nll`: -log of the mean over orders of exp(-order_nll). It cannot be estimated without bias, but it
can be enclosed, from the same random orders:

    tangent_nll <= mixture_nll <= importance_nll <= nll

All four are equal if the conditionals agree. Short targets are not sampled: where all masks cost no more forward passes
than the orders would, all orders are summed and everything is exact.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypedDict, overload

import torch
from jaxtyping import Float64
from torch import Tensor
from typing_extensions import Unpack

from infodis import notebook
from infodis.errors import InputError
from infodis.estimate import CHUNK, WINDOW, Request
from infodis.evaluate import Batching, Coroutine, ItemBatch, Observations, run_batched
from infodis.item import (
    Item,
    ManySequences,
    OneSequence,
    Positions,
    Prompt,
    Tokens,
    check_items,
    read_items,
)
from infodis.predictor import Predictor
from infodis.quantities.orders import Decoded, all_masks, block_sizes, decode, draw_turns, follow, sum_blocks
from infodis.result import Measured, Rate, Replicated, sum_errors
from infodis.reveal import MostConfident
from infodis.rng import check_seed

TOGETHER = 16
"""Sequences worked on at a time: enough to fill batches, few enough to show progress."""

LARGEST_EXPONENT = 200.0
"""Of a weight relative to the mean of the others. Past it a tangent bound says nothing, finite or not."""


@dataclasses.dataclass(frozen=True, eq=False)
class Bound(Replicated):
    """A quantity in nats with one line that says what it is. `evaluations` are the forward passes that it rests on.

    Quantities of one call share rows, so what was spent in all is `Bounds.evaluations`, not a sum of these.
    """

    meaning: str

    def __repr__(self) -> str:
        return f"Bound({self.quantity} = {self.value:.4f} nats, {self._precision()}; {self.meaning})"


@dataclasses.dataclass(frozen=True, eq=False)
class Bounds:
    """What reveal orders say about one sequence."""

    item: Item
    nll: Bound
    importance_nll: Bound
    tangent_nll: Bound
    mixture_nll: Bound | None
    """Known exactly, or only by its bounds."""
    best_order: Bound | None
    """The least order_nll of all orders, where all were summed: chosen knowing the text, so nobody's likelihood."""
    left_to_right: Bound
    most_confident_first: Bound
    spread: Measured
    """The standard deviation of order_nll over orders."""
    evaluations: int
    """Forward passes spent on all of it."""

    @property
    def quantities(self) -> tuple[Bound, ...]:
        """All that were found, the upper bounds of mixture_nll first."""
        found = (self.nll, self.importance_nll, self.mixture_nll, self.tangent_nll, self.best_order)
        return (*(bound for bound in found if bound is not None), self.left_to_right, self.most_confident_first)

    @property
    def tokens(self) -> int:
        """The size of the target."""
        return self.item.target.numel()

    @property
    def exact(self) -> bool:
        """True if all orders were summed."""
        return self.mixture_nll is not None

    @property
    def least_gap(self) -> Measured:
        """A lower bound of the Jensen gap nll - mixture_nll: nll - importance_nll, on the same orders."""
        if self.nll.impossible:
            return Measured(math.inf if math.isfinite(self.likeliest) else 0.0, 0.0)
        groups = self.nll.replicates.unflatten(0, (self.importance_nll.replicates.numel(), -1))
        return Measured.mean(groups.mean(1) - self.importance_nll.replicates)

    @property
    def most_gap(self) -> Measured:
        """An upper bound of the Jensen gap nll - mixture_nll: nll - tangent_nll, on the same orders."""
        if self.nll.impossible:
            return Measured(math.inf, 0.0)
        return Measured.mean(self.nll.replicates - self.tangent_nll.replicates)

    @property
    def likeliest(self) -> float:
        """The least order_nll met; where all orders were summed, their mixture_nll."""
        return float(self.nll.replicates.min()) if self.mixture_nll is None else self.mixture_nll.value

    def _repr_html_(self) -> str:
        bars = [(one.value, *one.interval()) for one in self.quantities]
        rows = [
            (notebook.text(one.quantity), notebook.text(one.shown()), notebook.error_bar(bar, notebook.ends(bars)))
            for one, bar in zip(self.quantities, bars, strict=True)
        ]
        caption = f"{self.tokens} tokens, {self.evaluations} forward passes; mixture_nll lies below nll"
        return notebook.table(("quantity", "nats", "95 % interval"), rows, caption=caption)

    def __repr__(self) -> str:
        numbers = ", ".join(f"{b.quantity} = {b.value:.4f} +- {b.standard_error:.2g}" for b in self.quantities)
        return f"Bounds({numbers}, in nats; tokens={self.tokens}, evaluations={self.evaluations})"


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many reveal orders to draw, and how many of them an importance-weighted bound averages at a time."""

    orders: int = 32
    particles: int = 8

    def __post_init__(self) -> None:
        for name in ("orders", "particles"):
            number = getattr(self, name)
            if isinstance(number, bool) or not hasattr(number, "__index__"):
                raise InputError(f"{name} must be a whole number, got {number!r}.")
        if self.orders < 4:
            raise InputError(f"Bounds need at least 4 orders, two for each half, got {self.orders}. Raise orders.")
        if self.particles < 1:
            raise InputError(f"A group must hold at least one order, got particles={self.particles}.")
        if self.orders % self.particles or self.orders < 2 * self.particles:
            wanted = self.particles * max(2, -(-self.orders // self.particles))
            raise InputError(
                f"A standard error needs two or more groups of {self.particles} orders (particles) each, none of them "
                f"cut short; {self.orders} orders do not make them. Ask for orders={wanted}, or for fewer particles."
            )

    @property
    def groups(self) -> int:
        return self.orders // self.particles

    def enumerates(self, length: int) -> bool:
        """Whether all masks of a target take no more rows than the orders would."""
        return 2**length - 1 <= self.orders * (length - 1) + 1


class BoundsOptions(TypedDict, total=False):
    """The keywords of `bounds`, for type checkers."""

    prompt: Prompt
    target: Positions | Sequence[Positions] | None
    context: Positions | Sequence[Positions] | None
    orders: int
    particles: int
    seed: SupportsIndex
    batch_size: int | None


@overload
def bounds(predictor: Predictor, tokens: Tensor, **options: Unpack[BoundsOptions]) -> Any: ...
@overload
def bounds(  # type: ignore[overload-overlap]  # a text is an iterable of texts, too
    predictor: Predictor, tokens: OneSequence, **options: Unpack[BoundsOptions]
) -> Bounds: ...
@overload
def bounds(predictor: Predictor, tokens: ManySequences, **options: Unpack[BoundsOptions]) -> list[Bounds]: ...
def bounds(
    predictor: Predictor,
    tokens: Tokens,
    *,
    prompt: Prompt = "",
    target: Positions | Sequence[Positions] | None = None,
    context: Positions | Sequence[Positions] | None = None,
    orders: int = 32,
    particles: int = 8,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> "Bounds | list[Bounds]":
    """What reveal orders say about target tokens given context tokens: `nll`, bounds of `mixture_nll`, single orders.

    - `nll`: the mean over orders of the chain-rule sum [eq:nll], from independent uniform orders.
    - `importance_nll`: the mean over groups of K = `particles` independent orders of -log of their mean likelihood
      [eq:importance]. An upper bound of mixture_nll that falls from nll (K = 1) towards it.
    - `tangent_nll`: a lower bound of mixture_nll, by a tangent to the logarithm [eq:tangent].
    - `left_to_right`, `most_confident_first`: the chain rule along these orders, exactly.
    - `mixture_nll` itself where 2^m - 1 masks take no more rows than the orders would: then all orders are summed, the
      bounds meet, and nothing has an error. Otherwise None.
    - `best_order`: the least order_nll of all m! orders, where `mixture_nll` is known. It is a lower bound of what any
      rule can reach that reveals one token at a time, and no likelihood: such an order is chosen knowing the text.

    Bounds hold in expectation; every estimate has its standard error beside it. The likelihood of an order is the
    exponential of a sum of many terms, so likelihoods are **heavy-tailed**: with a spread of several nats a few orders
    nobody drew may hold most of the mixture. `tangent_nll` then looks too high and its standard error too small, until
    such an order is met; `importance_nll` is merely loose. Raise `orders` and `particles` until they stay put.

    If an order meets a probability of zero, `nll` and `importance_nll` are infinite, for certain: a group may hold
    that order alone. `mixture_nll` need not be; `tangent_nll` stays finite.

    Args:
        predictor: any `Predictor`.
        tokens: a text or a sequence of token ids, or many of any lengths; many give a list.
        prompt, target, context: as for `nll`.
        orders: drawn for each sequence. An order takes m forward passes; all share the fully masked one.
        particles: orders in a group, K. At least two groups must fit into `orders`, with none left over.
        seed: the same seed gives the same orders for the same sequence, whatever else is scored.
        batch_size: at most so many rows per call of the predictor. It changes no result.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=2, vocab_size=4, seed=1)
    >>> found = bounds(chain, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3])
    >>> abs(found.nll.value - found.tangent_nll.value) < 1e-9  # an oracle's conditionals agree
    True

    >>> import infodis
    >>> bounds(infodis.load("text8-tiny"), "paris").exact
    True
    """
    plan, number = Plan(orders, particles), check_seed(seed)
    items, single = read_items(predictor, tokens, prompt=prompt, target=target, context=context)
    found = bound_items(predictor, items, plan, seed=number, batch_size=batch_size)
    return found[0] if single else found


def bound_items(
    predictor: Predictor,
    items: Sequence[Item],
    plan: Plan,
    *,
    seed: int,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Bounds]:
    """Bounds of many items. Equal ones meet equal orders and are looked at once.

    `progress` hears how many are done, and of how many.
    """
    check_items(predictor, items)
    rows = Request(batch_size=batch_size).batch_size
    distinct = {item.key: item for item in items}
    waiting = sorted(distinct.values(), key=lambda item: item.length)
    found: dict[int, Bounds] = {}
    for start in range(0, len(waiting), TOGETHER):
        some = waiting[start : start + TOGETHER]
        coroutines = (bounds_coroutine(predictor, item, plan, seed=seed) for item in some)
        for item, one in zip(some, run_batched(coroutines, _batching(some, plan, rows)), strict=True):
            found[item.key] = one
            if progress is not None:
                progress(len(found), len(waiting))
    return [found[item.key] for item in items]


def _batching(items: Sequence[Item], plan: Plan, rows: int | None) -> Batching:
    longest = max(item.target.numel() for item in items)
    largest = max(longest**2, min(CHUNK, plan.orders * longest**2))  # entries of a question
    return Batching(rows, together=max(1, WINDOW // largest))


def bounds_coroutine(predictor: Predictor, item: Item, plan: Plan, *, seed: int) -> Coroutine[Bounds]:
    """The coroutine that bounds one item."""
    batch = ItemBatch.of(predictor, [item])
    confident = yield from decode(batch, item, MostConfident())
    if plan.enumerates(max(block_sizes(predictor, item))):
        return (yield from _exact(batch, item, confident, seed))
    return (yield from _sampled(batch, item, plan, confident, seed))


def _sampled(batch: ItemBatch, item: Item, plan: Plan, confident: Decoded, seed: int) -> Coroutine[Bounds]:
    """Bounds from random orders: all of them from the same ones."""
    length = item.target.numel()
    turns = draw_turns(item, plan.orders, seed=seed)
    seen = Observations.none(1, length)
    order_nlls, seen = yield from follow(batch, turns, seen)
    spent = int(seen.cost[0])
    along, seen = yield from follow(batch, torch.arange(length).unsqueeze(0), seen)

    def bound(quantity: str, replicates: Tensor, meaning: str) -> Bound:
        return Bound(quantity, replicates, spent, seed, "budget spent", meaning)

    grouped = f"{plan.particles} orders; upper bound of mixture_nll"
    return Bounds(
        item,
        bound("nll", order_nlls, "mean over reveal orders; upper bound of mixture_nll"),
        bound("importance_nll", _certain(importance(order_nlls, plan.groups), order_nlls), f"mixture of {grouped}"),
        bound("tangent_nll", tangent(order_nlls), "tangent to the logarithm; lower bound of mixture_nll"),
        None,
        None,
        _single("left-to-right", along, length, seed),
        _single("most-confident-first", confident.credits.sum().reshape(1), confident.evaluations, seed),
        _order_spread(order_nlls),
        int(seen.cost[0]) + confident.evaluations,
    )


def _exact(batch: ItemBatch, item: Item, confident: Decoded, seed: int) -> Coroutine[Bounds]:
    """Bounds from all masks, which hold all orders."""
    length = item.target.numel()
    sizes = block_sizes(batch.predictor, item)
    every_mask = all_masks(max(sizes))[1:]
    masked = torch.cat([every_mask[:, :size] for size in sizes], dim=1)  # one mask of every block in a row
    answer = yield from batch.surprisals(torch.zeros(len(masked), dtype=torch.int64), masked)
    every = sum_blocks(answer, sizes)
    size = torch.tensor(sizes).repeat_interleave(torch.tensor(sizes))
    steps = torch.cat([torch.arange(one) for one in sizes])
    along = answer[2**size - 2**steps - 1, torch.arange(length)].sum().reshape(1)  # step s masks s, s + 1, ... : bits

    def bound(quantity: str, value: float, meaning: str) -> Bound:
        return Bound(quantity, torch.tensor([value], dtype=torch.float64), len(masked), seed, "exact", meaning)

    met = "meets mixture_nll: all orders are in it"
    return Bounds(
        item,
        bound("nll", every.mean, "mean over reveal orders; upper bound of mixture_nll"),
        bound("importance_nll", every.mixture, f"upper bound; {met}"),
        bound("tangent_nll", every.mixture, f"lower bound; {met}"),
        bound("mixture_nll", every.mixture, "likelihood of a model that draws its order"),
        bound("best_order_nll", every.best, "likeliest of all orders, chosen knowing the text; no bound"),
        _single("left-to-right", along, max(sizes), seed),
        _single("most-confident-first", confident.credits.sum().reshape(1), confident.evaluations, seed),
        Measured(math.sqrt(every.variance), 0.0),
        len(masked) + confident.evaluations,
    )


def _single(order: str, value: Float64[Tensor, " one"], evaluations: int, seed: int) -> Bound:
    """The chain rule along one order [eq:order-nll]."""
    name = f"order_nll_{order.replace('-', '_')}"
    return Bound(name, value, evaluations, seed, "exact", f"chain rule {order}; no bound")


def _certain(replicates: Float64[Tensor, " replicates"], order_nlls: Float64[Tensor, " orders"]) -> Tensor:
    """Infinite everywhere if one order is impossible: then the expectation is infinite, whatever else was drawn."""
    return torch.full_like(replicates, math.inf) if bool(order_nlls.isinf().any()) else replicates


def importance(order_nlls: Float64[Tensor, " orders"], groups: int) -> Float64[Tensor, " groups"]:
    """-log of the mean likelihood of each group of orders [eq:importance]."""
    grouped = order_nlls.unflatten(0, (groups, -1))
    return math.log(grouped.shape[1]) - torch.logsumexp(-grouped, dim=1)


def tangent(order_nlls: Float64[Tensor, " orders"]) -> Float64[Tensor, " orders"]:
    """What each order contributes to a lower bound of mixture_nll, given psi from the other half [eq:tangent].

    Log p <= log psi + p / psi - 1 for the mixture likelihood p and any psi > 0. A likelihood w of an order in the one
    half is unbiased for p, whatever psi the other half gave. Orders of one half share psi, so that their contributions
    are only nearly independent; psi is near the best one where the bound is flat, so that matters in second order only.
    """
    half = len(order_nlls) // 2
    first, second = order_nlls[:half], order_nlls[half:]
    log_psi = torch.cat([tangent_point(second).expand(len(first)), tangent_point(first).expand(len(second))])
    return 1 - log_psi - (-order_nlls - log_psi).clamp(max=LARGEST_EXPONENT).exp()


def tangent_point(order_nlls: Float64[Tensor, " orders"]) -> Float64[Tensor, ""]:
    """Log psi: the mean likelihood of some orders, raised by the squared relative error of that mean (at most 1).

    Too small a psi costs exponentially, too large a one only logarithmically; 1 + that square is the best factor for
    small errors. If all of them are impossible, psi = 1.
    """
    count = len(order_nlls)
    if bool(order_nlls.isinf().all()):
        return torch.zeros((), dtype=torch.float64)
    shares = torch.softmax(-order_nlls, dim=0)
    doubt = (count * shares.square().sum() - 1) / (count - 1)
    return torch.logsumexp(-order_nlls, dim=0) - math.log(count) + doubt.log1p()


def _order_spread(order_nlls: Float64[Tensor, " orders"]) -> Measured:
    """The standard deviation over orders, its error by the fourth moment."""
    if bool(order_nlls.isinf().any()):
        return Measured(math.inf, 0.0)
    squares = (order_nlls - order_nlls.mean()).square() * len(order_nlls) / (len(order_nlls) - 1)
    variance = Measured.mean(squares)
    deviation = math.sqrt(variance.value)
    return Measured(deviation, variance.standard_error / (2 * deviation) if deviation else 0.0)


@dataclasses.dataclass(frozen=True)
class Average:
    """One quantity over many sequences, in nats."""

    quantity: str
    meaning: str
    rows: int
    tokens: int
    total: float
    order_error: float
    """Of `total`, from the orders drawn: what more orders would remove."""
    row_error: float | None
    """Sampling error of `total`, from the spread of rows: if they are a random sample; None for a single row."""
    token_error: float | None
    """The same for `total` given the number of tokens: the error that belongs to a cost per token."""


def average(found: Sequence[Bounds]) -> list[Average]:
    """The quantities that all of some sequences have, added up over them."""
    if not found:
        raise InputError("There is nothing to average: no sequences were given.")
    common = [b.quantity for b in found[0].quantities if all(b.quantity in _by_name(other) for other in found)]
    return [_average([_by_name(one)[quantity] for one in found], found) for quantity in common]


def _by_name(found: Bounds) -> dict[str, Bound]:
    return {bound.quantity: bound for bound in found.quantities}


def _average(parts: Sequence[Bound], found: Sequence[Bounds]) -> Average:
    values = torch.tensor([part.value for part in parts], dtype=torch.float64)
    tokens = torch.tensor([one.tokens for one in found], dtype=torch.float64)
    total = float(values.sum())
    errors: dict[int, float] = {}
    for one, part in zip(found, parts, strict=True):  # equal sequences met equal orders: their errors add up
        errors[one.item.key] = errors.get(one.item.key, 0.0) + part.standard_error
    rows, errorless = torch.ones_like(tokens), torch.zeros_like(values)
    by_row, by_token = (
        None if rate.sampling_error is None or math.isinf(total) else float(rate.sampling_error * below.sum())
        for below in (rows, tokens)
        for rate in [Rate.over(values, below, errorless)]
    )
    meaning = next((part.meaning for part in parts if part.stopped != "exact"), parts[0].meaning)
    order_error = sum_errors(list(errors.values()))
    return Average(parts[0].quantity, meaning, len(parts), int(tokens.sum()), total, order_error, by_row, by_token)
