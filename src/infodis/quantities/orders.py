"""The chain rule along reveal orders: one stated order, random ones, all of them.

A model that reveals tokens in a stated order has the chain rule along it as its likelihood, `order_nll`. If the
conditionals of a predictor come from one joint distribution, all orders give the same number.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.errors import InputError
from infodis.estimate import CHUNK, Request
from infodis.evaluate import Batching, Coroutine, ItemBatch, Observations, run
from infodis.item import Item, OneSequence, Positions, as_sequence, read_item
from infodis.predictor import Predictor, gather_surprisal
from infodis.result import Estimate
from infodis.rng import stream

DISTRIBUTIONS = 2**24
"""Probabilities (rows x length x vocabulary) held at a time to find the most confident position."""


def order_nll(
    predictor: Predictor,
    tokens: OneSequence | Tensor,
    *,
    prompt: str = "",
    order: str | Sequence[int] | Tensor = "left-to-right",
    target: Positions | None = None,
    context: Positions | None = None,
    batch_size: int | None = None,
) -> Estimate:
    """The chain rule along one reveal order [eq:order-nll]: exactly -log p for a model that generates in that order.

    `order` is left-to-right, right-to-left, most-confident-first, or the target positions as they are revealed. It
    takes one forward pass per target position, all at once; only most-confident-first takes them one after another,
    since each reveal (the masked position whose likeliest token is most probable) decides the next.

    >>> from infodis import oracle
    >>> coin = oracle.Independent(torch.tensor([0.25, 0.75]))
    >>> round(order_nll(coin, [1, 1, 0], order=[2, 0, 1]).value, 6)
    1.961659

    >>> import infodis
    >>> round(order_nll(infodis.load("text8-tiny"), "paris", prompt="the capital of france is ").value)
    12
    """
    item = read_item(predictor, tokens, prompt=prompt, target=target, context=context)
    batching = Batching(Request(batch_size=batch_size).batch_size)
    batch = ItemBatch.of(predictor, [item])
    if isinstance(order, str) and order == "most-confident-first":
        found, spent = most_confident_credits(predictor, [item])
        credits, evaluations, turns = found[0, item.target], int(spent), ()
    else:
        turn = _turns(item, order)
        steps = torch.arange(item.target.numel()).unsqueeze(-1)
        surprisal = run(batch.surprisals(torch.zeros(len(steps), dtype=torch.int64), turn >= steps), batching)
        credits, evaluations = surprisal.gather(0, turn.unsqueeze(0)).squeeze(0), len(steps)
        turns = tuple(turn.tolist())
    return Estimate(
        quantity="order_nll",
        replicates=credits.sum().reshape(1),
        evaluations=evaluations,
        seed=0,
        stopped="exact",
        per_token=credits,
        per_token_error=torch.zeros_like(credits),
        target=item.target,
        design=order if isinstance(order, str) else "given order",
        control=None,
        identity=(item.key, *turns),
        seeds=frozenset(),
    )


def _turns(item: Item, order: str | Sequence[int] | Tensor) -> Int[Tensor, " target"]:
    """For every target position the step at which it is revealed."""
    count = item.target.numel()
    if isinstance(order, str):
        if order not in ("left-to-right", "right-to-left"):
            raise InputError(
                "order must be left-to-right, right-to-left, most-confident-first or a list of positions, "
                f"got {order!r}."
            )
        steps = torch.arange(count)
        return steps if order == "left-to-right" else count - 1 - steps
    given = as_sequence(order)
    if given.shape != (count,) or not torch.equal(given.sort().values, item.target):
        raise InputError(f"order must list each of the {count} target positions once, got {given.tolist()}.")
    return torch.searchsorted(item.target, given).argsort()


@torch.no_grad()
def most_confident_credits(
    predictor: Predictor, items: Sequence[Item]
) -> tuple[Float64[Tensor, "items length"], Int[Tensor, " items"]]:
    """Reveal the most certain target position of items of one length, again and again, most-confident-first.

    Returns what every position cost, and how many rows every item took. An item stops at a probability of zero: nothing
    is conditional on what cannot happen.
    """
    tokens, hidden = (torch.stack([getattr(item, name) for item in items]) for name in ("clean", "hidden"))
    wanted = torch.zeros_like(hidden)
    for row, item in zip(wanted, items, strict=True):
        row[item.target] = True
    hidden = hidden | wanted
    credits = torch.zeros(hidden.shape, dtype=torch.float64)
    evaluations = torch.zeros(len(items), dtype=torch.int64)
    while (going := ((hidden & wanted).any(1) & credits.isfinite().all(1)).nonzero().squeeze(1)).numel():
        asked, clean = hidden[going], tokens[going]
        answer = predictor.log_conditionals(torch.where(asked, predictor.mask_token, clean))
        surprisal = gather_surprisal(answer, clean, asked, vocab_size=predictor.vocab_size).cpu().double()
        confidence = torch.where(asked & wanted[going], answer.max(-1).values.cpu().double(), -math.inf)
        chosen = confidence.argmax(1, keepdim=True)
        credits[going] = credits[going].scatter(1, chosen, surprisal.gather(1, chosen))
        evaluations[going] += 1
        hidden[going] = asked.scatter(1, chosen, False)
    return credits, evaluations


def in_lockstep(items: Sequence[Item], vocab_size: int, batch_size: int | None) -> Iterator[list[int]]:
    """Numbers of items of one length, as many as may be asked about at a time."""
    lengths: dict[int, list[int]] = {}
    for number, item in enumerate(items):
        lengths.setdefault(item.length, []).append(number)
    for length, members in lengths.items():
        step = max(1, min(DISTRIBUTIONS // (length * vocab_size), batch_size or len(members)))
        for start in range(0, len(members), step):
            yield members[start : start + step]


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


def sum_orders(surprisal: Float64[Tensor, "masks target"]) -> tuple[float, float, float]:
    """Mean and standard deviation of order_nll over all orders, and mixture_nll, from the surprisals of all masks.

    Not order by order, of which there are m!, but mask by mask, from small masks to large ones: what is left to reveal
    after i is an order of the mask without i.
    """
    length = surprisal.shape[1]
    masks = all_masks(length)
    mean, variance, log_likelihood = torch.zeros(3, 2**length, dtype=torch.float64)
    for size in range(1, length + 1):
        numbers = (masks.sum(-1) == size).nonzero().squeeze(1)
        position = masks[numbers].nonzero()[:, 1].view(-1, size)
        rest = numbers.unsqueeze(1) - 2**position
        cost = surprisal[numbers - 1].gather(1, position)
        whole = cost + mean[rest]
        mean[numbers] = whole.mean(1)
        variance[numbers] = variance[rest].mean(1) + whole.var(1, correction=0)
        log_likelihood[numbers] = torch.logsumexp(log_likelihood[rest] - cost, dim=1) - math.log(size)
    deviation = math.inf if mean[-1].isinf() else math.sqrt(float(variance[-1]))
    return float(mean[-1]), deviation, -float(log_likelihood[-1])
