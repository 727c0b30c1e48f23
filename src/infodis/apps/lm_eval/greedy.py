"""Is a text exactly what greedy decoding gives?"""

import math
from collections.abc import Iterable, Sequence

import torch

from infodis.item import Item
from infodis.predictor import Predictor, check_log_conditionals

ENTRIES = 2**27
"""Numbers (rows x positions x vocabulary) asked for at a time."""


def rows_at_once(predictor: Predictor, length: int) -> int:
    """Rows of that length whose distributions fit into memory together."""
    return max(1, ENTRIES // (length * predictor.vocab_size))


def greedy(predictor: Predictor, items: Sequence[Item], *, rows: int | None = None) -> list[tuple[bool, int]]:
    """Whether most-confident-first decoding of the whole target, from all masks, gives the target; and its rows.

    At every step the position whose likeliest token is most probable gets that token. An item is done at the first
    token that is not its own. At most `rows` are asked about at a time.

    >>> from infodis import oracle
    >>> coin = oracle.Independent(torch.tensor([0.25, 0.75]))
    >>> greedy(coin, [Item.read([1, 1, 1]), Item.read([0, 1, 1])])
    [(True, 3), (False, 1)]
    """
    found: dict[int, tuple[bool, int]] = {}
    for length, members in _by_length(items):
        step = min(rows_at_once(predictor, length), rows or len(members))
        for start in range(0, len(members), step):
            some = members[start : start + step]
            found |= zip(some, _decoded(predictor, [items[n] for n in some]), strict=True)
    return [found[n] for n in range(len(items))]


def _by_length(items: Sequence[Item]) -> Iterable[tuple[int, list[int]]]:
    groups: dict[int, list[int]] = {}
    for number, item in enumerate(items):
        groups.setdefault(item.length, []).append(number)
    return groups.items()


@torch.no_grad()
def _decoded(predictor: Predictor, items: list[Item]) -> list[tuple[bool, int]]:
    """The same for items of one length."""
    tokens, never = (torch.stack([getattr(item, name) for item in items]) for name in ("clean", "hidden"))
    left = torch.zeros_like(never)
    for row, item in zip(left, items, strict=True):
        row[item.target] = True
    right = torch.ones(len(items), dtype=torch.bool)
    evaluations = torch.zeros(len(items), dtype=torch.int64)
    while (going := (right & left.any(1)).nonzero().squeeze(1)).numel():
        wanted, clean = left[going], tokens[going]
        answer = predictor.log_conditionals(torch.where(wanted | never[going], predictor.mask_token, clean))
        check_log_conditionals(answer, wanted, vocab_size=predictor.vocab_size)
        confidence, likeliest = (part.cpu() for part in answer.max(-1))
        chosen = torch.where(wanted, confidence, -math.inf).argmax(1, keepdim=True)
        right[going] = (likeliest.gather(1, chosen) == clean.gather(1, chosen)).squeeze(1)
        left[going] = wanted.scatter(1, chosen, False)
        evaluations[going] += 1
    return list(zip(right.tolist(), evaluations.tolist(), strict=True))
