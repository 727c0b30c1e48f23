"""Does a model tell two hidden tokens from the same two in exchanged places? Only one that knows the data can."""

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.models.doctor.examples import ModelUnderTest
from infodis.result import standard_error

SURE = 4.0
"""Standard errors: a false alarm in 30,000."""
LOGITS_AT_ONCE = 2**24
"""Of rows that are looked at together."""
FEWEST_VALUES = 8
"""That a standard error is made of."""


def swap_scores(subject: ModelUnderTest, mask: int) -> Float64[Tensor, "pairs three"]:
    """How surely the model tells pairs of hidden tokens from the same two in exchanged places, in nats.

    A model that knows nothing about data cannot: whatever it thinks of tokens by themselves, or of those that it sees,
    holds for both arrangements. Read one position before the hidden ones, at their own, and one after. No pairs if the
    rows are not to be judged by.
    """
    none = torch.zeros(0, 3, dtype=torch.float64)
    rows = [] if subject.cannot_judge else subject.rows
    return torch.cat([none, *(_swap_scores_of(subject, row, mask) for row in rows)])


def _swap_scores_of(subject: ModelUnderTest, row: Int[Tensor, " length"], mask: int) -> Float64[Tensor, "pairs three"]:
    pairs = _swap_pairs(subject, row)
    found = [torch.zeros(0, 3, dtype=torch.float64)]
    for some in pairs.split(max(1, LOGITS_AT_ONCE // (len(row) * subject.predictor.vocab_size))) if len(pairs) else ():
        said = _said_around(subject, row, some, mask)
        right, wrong = said[:, 0, :, 0] + said[:, 1, :, 1], said[:, 0, :, 1] + said[:, 1, :, 0]
        found.append(right - wrong)
    return torch.cat(found)


def _said_around(
    subject: ModelUnderTest, row: Int[Tensor, " length"], pairs: Int[Tensor, "pairs two"], mask: int
) -> Float64[Tensor, "pairs two three both"]:
    """Log p of both tokens of pairs, one position before either, at it and after it, while both are hidden.

    A model of blocks is asked about one block at a time, with all that comes before it known.
    """
    hidden = torch.zeros(len(pairs), 1, len(row), dtype=torch.bool).scatter(2, pairs.unsqueeze(1), True)
    if subject.blocks is not None:
        numbers = subject.blocks.numbers(len(row), subject.starts(row.unsqueeze(0)))[0]
        hidden = hidden & (numbers == numbers[pairs].unsqueeze(-1))
    answer = subject.log_conditionals(row.unsqueeze(0), hidden.flatten(0, 1), mask).unflatten(0, hidden.shape[:2])
    each, turn = torch.arange(len(pairs)).view(-1, 1, 1, 1), torch.arange(hidden.shape[1]).view(1, -1, 1, 1)
    around = pairs[:, :, None, None] + torch.arange(-1, 2).view(3, 1)
    return answer[each, turn, around, row[pairs][:, None, None, :]].cpu().double().clamp(min=-50.0)


def _swap_pairs(subject: ModelUnderTest, row: Int[Tensor, " length"]) -> Int[Tensor, "pairs two"]:
    """Positions of known tokens, two and two, that differ and are not neighbours."""
    inside = subject.inside(row)
    first, last = max(1, inside.start), min(len(row) - 1, inside.stop)
    places = [place for place in range(first, last) if int(row[place]) not in subject.beyond_text]
    half = len(places) // 2
    pairs = torch.tensor([places[:half], places[half : 2 * half]], dtype=torch.int64).T
    return pairs[(row[pairs[:, 0]] != row[pairs[:, 1]]) & (pairs[:, 1] - pairs[:, 0] > 2)]


def unlike_neighbours(subject: ModelUnderTest) -> Bool[Tensor, " pairs"]:
    """Of the same pairs, those whose tokens do not stand beside either place.

    What is read one position aside may only say again what it sees there. That is no knowledge of a hidden token.
    """
    found = [torch.zeros(0, dtype=torch.bool)]
    for row in [] if subject.cannot_judge else subject.rows:
        pairs = _swap_pairs(subject, row)
        beside = row[torch.cat([pairs - 1, pairs + 1], dim=1)]
        found.append(~(row[pairs].unsqueeze(1) == beside.unsqueeze(2)).flatten(1).any(1))
    return torch.cat(found)


def surely_above(values: Float64[Tensor, " values"], than: float = 0.0) -> bool:
    """Whether the mean is larger by so many standard errors that nobody is misled by chance."""
    if values.numel() < FEWEST_VALUES:
        return False
    return float(values.mean()) > SURE * float(standard_error(values)) + than
