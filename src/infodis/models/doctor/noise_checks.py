"""Checks of models of uniform or mixed noise: they mask nothing, so checks of masks do not apply to them."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from infodis.errors import InfodisError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.models.doctor.examples import ModelUnderTest, noised_surprisals
from infodis.models.doctor.results import GIVE_TEXT, CheckResult
from infodis.models.doctor.swaps import surely_above
from infodis.predictor import NoisePredictor
from infodis.rng import stream

TOTALS = (1e-4, 0.1, 0.7, 2.3, 30.0)
"""Total noise at which answers are looked at, up to where the model's noise ends."""
ROUNDING = 1e-4
"""Nats: so far below zero counts as rounding."""
ROWS, PASSES = 16, 32
"""Texts that are held against shuffled ones, and forward passes for each."""
TOLD = "Is the tokenizer that of the training, and is the network told the noise as it was then?"


def score_entropies(subject: ModelUnderTest) -> CheckResult:
    """Are score entropies numbers, and not below zero, from almost no noise to all of it?"""
    model, row = subject.predictor, subject.rows[0].unsqueeze(0)
    assert isinstance(model, NoisePredictor)
    every, lengths = torch.ones_like(row, dtype=torch.bool), torch.tensor([row.shape[1]])
    for total in (min(total, model.noise.end) for total in TOTALS):
        try:
            found = noised_surprisals(model, row, every, lengths, total)
        except InfodisError as error:
            return CheckResult("wrong", f"after a total noise of {total:g}: {error}", TOLD)
        wrong = ~(found.isfinite() & (found > -ROUNDING * math.exp(total)))
        if bool(wrong.any()):
            return CheckResult("wrong", f"after a total noise of {total:g} one is {float(found[wrong][0]):g}", TOLD)
    return CheckResult("ok", "finite and not negative from almost no noise to all of it")


def data_and_noise(subject: ModelUnderTest) -> CheckResult:
    """Are texts likelier than the same tokens in another order?"""
    if subject.cannot_judge:
        return CheckResult("cannot tell", subject.cannot_judge, GIVE_TEXT)
    gain = _gains(subject)
    nats = f"{abs(float(gain.mean())):.2f} nats a token"
    if surely_above(gain):
        return CheckResult("ok", f"texts are {nats} likelier than the same tokens shuffled")
    if surely_above(-gain):
        return CheckResult("wrong", f"texts are {nats} less likely than the same tokens shuffled", TOLD)
    return CheckResult("cannot tell", "texts and the same tokens shuffled are about as likely", GIVE_TEXT)


def _gains(subject: ModelUnderTest) -> Float64[Tensor, " rows"]:
    """By how many nats a token rows are likelier than the same tokens shuffled, with shared noise."""
    pairs = []
    for number, row in enumerate(subject.rows[:ROWS]):
        inside = torch.tensor(subject.inside(row))
        shuffled = row.clone()
        shuffled[inside] = row[inside[torch.randperm(len(inside), generator=stream(0, "doctor", number))]]
        context = [place for place in range(len(row)) if place not in subject.inside(row)]
        pairs += [Item.read(tokens, target=inside, context=context) for tokens in (row, shuffled)]
    names = [number // 2 for number in range(len(pairs))]
    found = estimate_items(subject.predictor, pairs, Request(evaluations=PASSES), seed=0, names=names)
    nats = torch.tensor([one.value / one.target.numel() for one in found], dtype=torch.float64).view(-1, 2)
    return nats[:, 1] - nats[:, 0]


def noised_context(subject: ModelUnderTest) -> CheckResult:
    """Do other tokens change what is said about a noised one?"""
    row = subject.rows[0]
    if len(row.unique()) == 1:
        return CheckResult("cannot tell", "the row holds one token only", GIVE_TEXT)
    exposed = (torch.arange(len(row)) == len(row) // 2).unsqueeze(0)
    others = [torch.where(exposed, row, row.roll(steps)) for steps in range(min(8, len(row)))]
    nats = [float(subject.surprisal(tokens, exposed)[exposed]) for tokens in others]
    if max(nats) - min(nats) > 1e-6:
        return CheckResult("ok", f"other tokens change an answer by {max(nats) - min(nats):.2g} nats")
    return CheckResult("wrong", "other tokens make no difference", "Are the tokens not reaching the network?")
