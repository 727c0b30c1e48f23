"""The chain rule along reveal orders: along one, by what a decoder would do, at random, or all of them.

A model that reveals tokens by a stated rule has the chain rule along it as its likelihood, `order_nll`. If the
conditionals of a predictor come from one joint distribution, and tokens are revealed one at a time, all rules give the
same number.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypedDict, overload

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor
from typing_extensions import Unpack

from infodis.blocks import blocks_of
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
    as_sequence,
    check_items,
    read_items,
)
from infodis.predictor import Predictor
from infodis.quantities.quantity import Quantity, check_exact
from infodis.result import Estimate
from infodis.reveal import DecoderState, GivenOrder, LeftToRight, RevealRule, rule_named
from infodis.rng import check_seed, stream, uniforms

TOGETHER = 1024
"""Texts decoded side by side, if they are short: each asks for a row at a time."""

Order = RevealRule | str | Sequence[int] | Tensor
"""A rule, its name, or target positions as they are revealed."""


class OrderOptions(TypedDict, total=False):
    """The keywords of `order_nll`, for type checkers."""

    prompt: Prompt
    order: Order
    target: Positions | Sequence[Positions] | None
    context: Positions | Sequence[Positions] | None
    seed: SupportsIndex
    batch_size: int | None


@overload
def order_nll(predictor: Predictor, tokens: Tensor, **options: Unpack[OrderOptions]) -> Any: ...
@overload
def order_nll(  # type: ignore[overload-overlap]  # a text is an iterable of texts, too
    predictor: Predictor, tokens: OneSequence, **options: Unpack[OrderOptions]
) -> Estimate: ...
@overload
def order_nll(predictor: Predictor, tokens: ManySequences, **options: Unpack[OrderOptions]) -> list[Estimate]: ...
def order_nll(
    predictor: Predictor,
    tokens: Tokens,
    *,
    prompt: Prompt = "",
    order: Order = "left-to-right",
    target: Positions | Sequence[Positions] | None = None,
    context: Positions | Sequence[Positions] | None = None,
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> Estimate | list[Estimate]:
    """-log of the probability that a decoder writes the target, if it reveals tokens by a stated rule.

    The sum over the decoder's steps of -log p of the tokens revealed together, each given what was visible before the
    step [eq:decoder-nll]. That is exactly -log p of a decoder that draws every token from its conditional (DUEL). With
    one token a step it is the chain rule along one order [eq:order-nll]; several at once are taken as independent, so
    it is no chain rule, and even an exact predictor then has another likelihood.

    Args:
        predictor: any `Predictor`.
        tokens: a text or a sequence of token ids, or many of any lengths; many give a list.
        prompt, target, context: as for `nll`.
        order: a rule: `LeftToRight()`, `RightToLeft()`, `RandomOrder()`, `MostConfident()`, `LowestEntropy()`,
            `LargestMargin()`, all with `per_step=` tokens a step; `AboveThreshold(0.9)`; any of them `InBlocks(rule,
            32)`. Or its name, such as "left-to-right" or "most-confident=2:32" (two tokens a step, blocks of 32). Or
            the target positions as they are revealed. A model of blocks goes by the rule within each of its blocks.
        seed: of `RandomOrder`, which draws one order. The mean over seeds is `nll`, with one token a step.
        batch_size: at most so many rows per call of the predictor.

    A step takes one forward pass. Rules that look at the predictor take steps one after another, all sequences side by
    side; others take all steps at once. A rule that looks chooses by numbers that rounding may change where two
    positions are equally certain.

    >>> from infodis import oracle
    >>> coin = oracle.Independent(torch.tensor([0.25, 0.75]))
    >>> round(order_nll(coin, [1, 1, 0], order=[2, 0, 1]).value, 6)
    1.961659

    >>> import infodis
    >>> model, prompt = infodis.load("text8-tiny"), "the capital of france is "
    >>> round(order_nll(model, "paris", prompt=prompt).value)
    12
    >>> order_nll(model, "paris", prompt=prompt, order=infodis.AboveThreshold(0.5)).evaluations
    5
    """
    number = check_seed(seed)
    items, single = read_items(predictor, tokens, prompt=prompt, target=target, context=context)
    found = order_items(predictor, items, as_rule(order), seed=number, batch_size=batch_size)
    return found[0] if single else found


@dataclasses.dataclass(frozen=True)
class OrderNll(Quantity):
    """What `infodis.order_nll` computes, for `infodis.score`: by `rule`, from left to right unless given.

    >>> import infodis
    >>> infodis.score("text8-tiny", "paris", quantity=OrderNll(infodis.MostConfident()))[0].evaluations
    5
    """

    name = "order_nll"

    rule: RevealRule = LeftToRight()

    def measure(
        self, predictor: Any, items: Sequence[Item], request: Request, *, seed: int, names: Sequence[int] | None = None
    ) -> list[Estimate]:
        return order_items(predictor, items, self.rule, seed=seed, batch_size=request.batch_size)

    def check_request(self, request: Request) -> None:
        check_exact(self.name, request)

    def passes(self, request: Request, tokens: int) -> float:
        return float(tokens)


def as_rule(order: Order) -> RevealRule:
    """A rule as it is, by its name, or from the positions that it reveals."""
    if isinstance(order, RevealRule):
        return order
    return rule_named(order) if isinstance(order, str) else GivenOrder(tuple(as_sequence(order).tolist()))


def order_items(
    predictor: Predictor, items: Sequence[Item], rule: RevealRule, *, seed: int, batch_size: int | None = None
) -> list[Estimate]:
    """The `order_nll` of many items; equal ones are decoded once."""
    check_items(predictor, items)
    rows = Request(batch_size=batch_size).batch_size
    distinct = {item.key: item for item in items}
    for item in distinct.values():
        _check_order(item, rule)
    longest = max(item.target.numel() for item in items)
    largest = longest if rule.certainty is not None else longest**2
    batching = Batching(rows, together=max(1, min(TOGETHER, WINDOW // largest)))
    coroutines = (_estimate(predictor, item, rule, seed) for item in distinct.values())
    found = dict(zip(distinct, run_batched(coroutines, batching), strict=True))
    return [found[item.key] for item in items]


def _check_order(item: Item, rule: RevealRule) -> None:
    if isinstance(rule, GivenOrder) and sorted(rule.positions) != item.target.tolist():
        raise InputError(
            f"order must list each of the {item.target.numel()} target positions once, got {list(rule.positions)}."
        )


def _estimate(predictor: Predictor, item: Item, rule: RevealRule, seed: int) -> Coroutine[Estimate]:
    found = yield from decode(ItemBatch.of(predictor, [item]), item, rule, seed=seed)
    return Estimate(
        quantity="order_nll",
        replicates=found.credits.sum().reshape(1),
        evaluations=found.evaluations,
        seed=seed,
        stopped="exact",
        per_token=found.credits,
        per_token_error=torch.zeros_like(found.credits),
        target=item.target,
        design=rule,
        control=None,
        identity=(item.key, *found.turns.tolist()),
        seeds=frozenset({seed} if rule.draws else ()),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Decoded:
    """What became of one item: what every target token cost, the step that revealed it, and the forward passes."""

    credits: Float64[Tensor, " target"]
    turns: Int[Tensor, " target"]
    evaluations: int


def decode(batch: ItemBatch, item: Item, rule: RevealRule, *, seed: int = 0) -> Coroutine[Decoded]:
    """Reveal the target of a single item by a rule [eq:decoder-nll]."""
    masked = torch.zeros(len(block_sizes(batch.predictor, item)), item.length, dtype=torch.bool)
    for row, places in zip(masked, item.target.split(block_sizes(batch.predictor, item)), strict=True):
        row[places] = True
    if rule.certainty is None:
        turns = _turns(rule, masked, stream(seed, item.key, "order"))[item.target]
        return (yield from _along(batch, turns))
    return (yield from _by_looking(batch, item, rule, masked, seed))


def block_sizes(predictor: Predictor, item: Item) -> list[int]:
    """How many target tokens each block of the predictor holds; all of them, if it sees whole rows."""
    layout = blocks_of(predictor)
    return [item.target.numel()] if layout is None else list(layout.sizes(item.target))


def _turns(
    rule: RevealRule, masked: Bool[Tensor, "blocks length"], generator: torch.Generator
) -> Int[Tensor, " length"]:
    """For every masked position the step that reveals it, by a rule that does not ask the predictor."""
    turns, step = torch.zeros(masked.shape[1], dtype=torch.int64), 0
    state = DecoderState.start(masked)
    while not state.done:
        keys = uniforms(masked.shape[1], generator=generator).expand(masked.shape)
        revealed, state = state.advance(rule, keys, None)
        turns[revealed.any(0)] = step
        step += bool(revealed.any())
    return turns


def _along(batch: ItemBatch, turns: Int[Tensor, " target"]) -> Coroutine[Decoded]:
    """All steps at once."""
    steps = torch.arange(int(turns.max()) + 1).unsqueeze(-1)
    surprisal = yield from batch.surprisals(torch.zeros(len(steps), dtype=torch.int64), turns >= steps)
    return Decoded(surprisal.gather(0, turns.unsqueeze(0)).squeeze(0), turns, len(steps))


def _by_looking(
    batch: ItemBatch, item: Item, rule: RevealRule, masked: Bool[Tensor, "blocks length"], seed: int
) -> Coroutine[Decoded]:
    """Step by step. It stops at a probability of zero: nothing is conditional on what cannot happen."""
    certainty, generator = rule.certainty, stream(seed, item.key, "order")
    assert certainty is not None  # or there would be nothing to look at
    credits = torch.zeros(item.target.numel(), dtype=torch.float64)
    turns, step = torch.zeros(item.target.numel(), dtype=torch.int64), 0
    state = DecoderState.start(masked)
    while not state.done and bool(credits.isfinite().all()):
        left = state.left.any(0)[item.target]
        surprisal, certain = yield from batch.certainties(torch.zeros(1, dtype=torch.int64), left[None], certainty)
        everywhere = torch.zeros(1, item.length, dtype=torch.float64).index_copy(1, item.target, certain)
        keys = uniforms(item.length, generator=generator)
        revealed, state = state.advance(rule, keys.expand(masked.shape), everywhere.expand(masked.shape))
        here = revealed.any(0)[item.target]
        credits, turns = torch.where(here, surprisal[0], credits), torch.where(here, step, turns)
        step += 1
    return Decoded(credits, turns, step)


def draw_turns(item: Item, orders: int, *, seed: int) -> Int[Tensor, "orders target"]:
    """Independent uniform orders, each from its own stream: for every target position the step that reveals it."""
    length = item.target.numel()
    return torch.stack(
        [torch.randperm(length, generator=stream(seed, item.key, "order", number)) for number in range(orders)]
    )


def follow(
    batch: ItemBatch, turns: Int[Tensor, "orders target"], seen: Observations
) -> Coroutine[tuple[Float64[Tensor, " orders"], Observations]]:
    """The order_nll of some orders of a single item, a few orders at a time, and what was seen [eq:order-nll]."""
    length = turns.shape[1]
    order_nlls = []
    for block in turns.split(max(1, CHUNK // length**2)):
        masked = block.unsqueeze(1) >= torch.arange(length).unsqueeze(-1)
        seen = yield from seen.extend(batch, masked.flatten(0, 1).unsqueeze(0))
        surprisal = seen.surprisal[0, -len(block) * length :].unflatten(0, (len(block), length))
        order_nlls.append(surprisal.gather(1, block.unsqueeze(1)).squeeze(1).sum(-1))
        seen = _remembered(seen)
    return torch.cat(order_nlls), seen


def _remembered(seen: Observations) -> Observations:
    """All rows while they are few; of many only the first, fully masked one: long targets share hardly any other."""
    if seen.masked.numel() <= CHUNK:
        return seen
    return Observations(seen.masked[:, :1], seen.surprisal[:, :1], seen.cost)


def all_masks(length: int) -> Bool[Tensor, "subsets length"]:
    """All subsets of some positions; bit i of a subset's number says whether it holds position i."""
    return (torch.arange(2**length).unsqueeze(-1) >> torch.arange(length)) & 1 == 1


@dataclasses.dataclass(frozen=True)
class OrderSummary:
    """All orders of a target: `order_nll` over them, in nats."""

    mean: float
    """Which is `nll`."""
    variance: float
    """Infinite where the mean is."""
    mixture: float
    """-log of the mean of exp(-order_nll): `mixture_nll`."""
    best: float
    """The least."""
    best_turns: tuple[int, ...]
    """The step at which the best order reveals each position."""


def sum_orders(surprisal: Float64[Tensor, "masks target"]) -> OrderSummary:
    """All orders of a target from the surprisals of all masks [eq:all-orders].

    Not order by order, of which there are m!, but mask by mask, from small masks to large ones: what is left to reveal
    after i is an order of the mask without i.
    """
    length = surprisal.shape[1]
    masks = all_masks(length)
    mean, variance, log_likelihood, best = torch.zeros(4, 2**length, dtype=torch.float64)
    chosen = torch.zeros(2**length, dtype=torch.int64)
    for size in range(1, length + 1):
        numbers = (masks.sum(-1) == size).nonzero().squeeze(1)
        position = masks[numbers].nonzero()[:, 1].view(-1, size)
        rest = numbers.unsqueeze(1) - 2**position
        cost = surprisal[numbers - 1].gather(1, position)
        whole = cost + mean[rest]
        mean[numbers] = whole.mean(1)
        variance[numbers] = variance[rest].mean(1) + whole.var(1, correction=0)
        log_likelihood[numbers] = torch.logsumexp(log_likelihood[rest] - cost, dim=1) - math.log(size)
        best[numbers], first = (cost + best[rest]).min(1)
        chosen[numbers] = position.gather(1, first.unsqueeze(1)).squeeze(1)
    spread = math.inf if mean[-1].isinf() else float(variance[-1])
    return OrderSummary(float(mean[-1]), spread, -float(log_likelihood[-1]), float(best[-1]), _best_turns(chosen))


def sum_blocks(surprisal: Float64[Tensor, "masks target"], sizes: Sequence[int]) -> OrderSummary:
    """All orders within blocks that are independent, from rows that hold mask number r + 1 of every block at once.

    A short block has seen all its masks in the first rows: numbers below 2 to the power of its size.
    """
    parts = [sum_orders(one[: 2 ** one.shape[1] - 1]) for one in surprisal.split(list(sizes), dim=1)]
    mean, variance, mixture, best = (
        math.fsum(getattr(part, name) for part in parts) for name in ("mean", "variance", "mixture", "best")
    )
    return OrderSummary(mean, variance, mixture, best, tuple(turn for part in parts for turn in part.best_turns))


def _best_turns(chosen: Int[Tensor, " masks"]) -> tuple[int, ...]:
    """The step of every position, where `chosen` says for every mask which of its positions to reveal first."""
    mask = len(chosen) - 1
    turns = [0] * mask.bit_length()
    for step in range(len(turns)):
        position = int(chosen[mask])
        turns[position] = step
        mask -= 2**position
    return tuple(turns)
