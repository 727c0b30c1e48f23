"""Checks of what only some models have: blocks, where they begin, and masks that were rare in training."""

from collections.abc import Mapping
from typing import Any

from infodis.blocks import ORIGINS
from infodis.models.doctor.examples import ModelUnderTest
from infodis.models.doctor.results import GIVE_TEXT, CheckResult
from infodis.models.doctor.swaps import surely_above
from infodis.models.doctor.wirings import Halves, better_elsewhere, beyond, halves, origins
from infodis.models.nets.block_network import BlockNetwork

LARGE = 32
"""Tokens: a network that looks ahead in such blocks hardly has smaller ones."""
LONGER = "Give texts of the kind it was trained on, of at least two blocks each, as many as there are: --text FILE."


def block_size(subject: ModelUnderTest) -> CheckResult:
    """Is a row cut into the blocks that the network was trained with, if into any?"""
    if subject.model is None or not isinstance(subject.model.network, BlockNetwork):
        why = "an autoregressive model has none to choose" if subject.causal else "not a network that could have blocks"
        return CheckResult("left out", why)
    if subject.cannot_judge:
        return CheckResult("cannot tell", subject.cannot_judge, GIVE_TEXT)
    better = better_elsewhere(subject)
    if better is not None:
        return _misread(*better, halves(subject) if better[0] == 0 else [])
    if subject.causal:
        return CheckResult("ok", "nothing else predicts a token better from those before it")
    return _by_halves(0 if subject.blocks is None else subject.blocks.size, halves(subject), subject.model.wiring)


def _misread(size: int, nats: float, found: list[Halves]) -> CheckResult:
    """Tokens are likelier given those before them with other blocks: without any, or with the largest that is known."""
    how = "from left to right" if size == 1 else "by a network that sees a row at once"
    detail = f"tokens are {nats:.2f} nats likelier given those before them if they are predicted {how}"
    known = [one.size for one in found if one.both_ways]
    return CheckResult("wrong", detail, _hint(known[-1] if known and beyond(found) is not None else size))


def _by_halves(size: int, found: list[Halves], said: Mapping[str, Any]) -> CheckResult:
    """What blocks of several sizes say about the one in use, 0 is none; `said` are options of the user."""
    seen, unseen = [one for one in found if one.both_ways], beyond(found)
    told = ", ".join(str(one) for one in (*seen[-1:], unseen) if one is not None)
    detail = f"looking ahead, against looking back, tells {told}"
    if seen and unseen is not None and (size == 0 or unseen.size <= size):
        used = f"blocks of {size} are in use" if size else "it is run as a model that sees a row at once"
        told = f"{used}, but the network knows smaller ones only: {detail}"
        return CheckResult("wrong", told, _hint(seen[-1].size))
    if seen and 0 < size < seen[-1].size:
        more = "" if unseen is not None else " A larger one may be right: 0 is for a model that sees a row at once."
        used = f"blocks of {size} are in use, but the network knows larger ones"
        return CheckResult("wrong", f"{used}: {detail}", _hint(seen[-1].size) + more)
    believed = "block_size" not in said or (seen and seen[-1].size >= LARGE)  # what files say is believed sooner
    if seen and (seen[-1].size == size or (size == 0 and believed)):
        return CheckResult("ok", detail)
    known = f": {detail}, and nothing certain in larger ones" if seen and size == 0 else ""
    return CheckResult("cannot tell", f"the examples do not tell blocks of different sizes apart{known}", LONGER)


def _hint(size: int) -> str:
    option = f"Load it with --block-size {size} (block_size={size}), or put that into its config.json."
    return option if size != 1 else f"If it is autoregressive, load it with --causal (causal=True). Else: {option}"


def block_origin(subject: ModelUnderTest) -> CheckResult:
    """Are blocks counted from where they were in training?"""
    blocks = subject.blocks
    if blocks is None or blocks.size == 1 or subject.model is None:
        return CheckResult("left out", "blocks of one token begin anywhere" if blocks else "it has no blocks")
    if subject.cannot_judge:
        return CheckResult("cannot tell", subject.cannot_judge, GIVE_TEXT)
    gain = origins(subject)
    nats = abs(float(gain.mean()))
    other = next(origin for origin in ORIGINS if origin != blocks.origin)
    if surely_above(gain):
        detail = f"after a short prompt, tokens are {nats:.3f} nats likelier with {other}"
        return CheckResult("wrong", detail, f'Load it with --block-origin {other} (block_origin="{other}").')
    if surely_above(-gain):
        detail = f"after a short prompt, tokens are {nats:.3f} nats likelier with {blocks.origin} than with {other}"
        return CheckResult("ok", detail)
    return CheckResult("cannot tell", f"{blocks.origin} and {other} explain the examples equally well", LONGER)


def mask_rates(subject: ModelUnderTest) -> CheckResult:
    """Has the model seen as few and as many masks as likelihoods need?"""
    if subject.causal:
        return CheckResult("left out", "an autoregressive model masks nothing")
    low, high = (0.0, 1.0) if subject.model is None else subject.model.loaded.mask_rates
    if (low, high) == (0.0, 1.0):
        return CheckResult("ok", "nothing is known of masks that it was not trained with")
    size = 0 if subject.blocks is None else subject.blocks.size
    masks = range(1, (size or len(subject.rows[0])) + 1)
    outside = sum(not low <= number / len(masks) <= high for number in masks) / len(masks)
    detail = (
        f"it was fine-tuned with {100 * low:.0f} to {100 * high:.0f} % of a {'block' if size else 'row'} masked; "
        f"{100 * outside:.0f} % of a likelihood comes from masks outside of that, off its training distribution"
    )
    return CheckResult("cannot tell", detail, "What it says there is a guess: compare likelihoods with care.")
