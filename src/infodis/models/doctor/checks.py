"""Is a model wired as it should be? Checks with a verdict each, before anyone trusts its likelihoods.

A wrong mask token, logits that are about the next position, padding that is seen, a softmax that does not add up: none
of these fails loudly, all of them change every number. Checks that need a trained model (where its answers belong,
which token it takes for a mask) are decided by data: rows that the model should know.
"""

import dataclasses
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from infodis.errors import InfodisError
from infodis.models.doctor.block_checks import block_origin, block_size, mask_rates
from infodis.models.doctor.examples import (
    SENTENCES,
    ModelUnderTest,
    alternate_surprisals,
    read_example,
    tolerant,
    with_examples,
)
from infodis.models.doctor.noise_checks import data_and_noise, noised_context, score_entropies
from infodis.models.doctor.precision import both_precisions, dtype_of, is_half
from infodis.models.doctor.results import GIVE_TEXT, CheckResult, CheckResults, Verdict
from infodis.models.doctor.swaps import surely_above, swap_scores, unlike_neighbours
from infodis.models.model import Model
from infodis.models.tokenizers import Tokenizer
from infodis.predictor import RowPredictor, check_log_conditionals
from infodis.rng import stream

ROUNDING = 1e-4
"""Nats: the largest difference that counts as rounding in float32."""


UNDECIDED = "the model does not tell the examples from noise surely enough"


def doctor(model: Model, texts: Sequence[str] = ()) -> CheckResults:
    """Is a model wired as it should be? All checks of `infodis doctor`; `texts` are of the kind that it should know.

    >>> import infodis
    >>> doctor(infodis.load("text8-tiny")).ok
    True
    """
    return CheckResults(model.name, tuple(examine(with_examples(model, texts))))


def examine(subject: ModelUnderTest) -> Iterator[CheckResult]:
    """All checks, one after another. A check that fails with an error is a result, not the end.

    A model in bfloat16 first runs where a crash is survived: if it crashes, there is nothing more to find out.
    """
    if is_half(subject) and isinstance(found := both_precisions(subject), str):
        hint = "Compute in float32 here: --dtype float32."
        yield CheckResult("wrong", f"the network does not run: {found}", hint, check="precision")
        return
    for name, check in (CHECKS if subject.noise is None else NOISE_CHECKS).items():
        yield dataclasses.replace(_run(check, subject), check=name)


def _run(check: Callable[[ModelUnderTest], CheckResult], subject: ModelUnderTest) -> CheckResult:
    try:
        return check(subject)
    except InfodisError as error:
        return CheckResult("wrong", str(error), "See the message.")
    except Exception as error:  # whatever foreign code raises is a result about it
        return CheckResult("wrong", f"{type(error).__name__}: {error}", "The model's own code fails here.")


def _distributions(subject: ModelUnderTest) -> CheckResult:
    """Are answers finite and normalised, from one masked token to all?"""
    row = subject.rows[0]
    for share in (0.0, 0.15, 0.5, 0.85, 1.0):
        hidden = torch.zeros(len(row), dtype=torch.bool)
        inside = subject.inside(row)
        drawn = torch.rand(len(inside), generator=stream(0, "doctor", str(share))) < share
        hidden[inside.start : inside.stop] = drawn
        hidden[len(row) // 2] = True
        for masked in subject.split(row, hidden).split(1):
            answer = subject.log_conditionals(row.unsqueeze(0), masked)
            try:
                check_log_conditionals(answer, masked, vocab_size=subject.predictor.vocab_size)
            except InfodisError as error:
                hint = "Apply log_softmax in float32 over the tokens that data may contain."
                return CheckResult("wrong", f"with {int(hidden.sum())} of {len(row)} tokens masked: {error}", hint)
    return CheckResult("ok", "finite and normalised from one masked token to all")


def _mask_probability(subject: ModelUnderTest) -> CheckResult:
    """Has the mask probability zero?"""
    predictor = subject.predictor
    if predictor.mask_token >= predictor.vocab_size:
        return CheckResult("ok", "the mask has no column, so no probability")
    row = subject.rows[0]
    hidden = torch.zeros(len(row), dtype=torch.bool)
    hidden[subject.inside(row).start : subject.inside(row).stop : 2] = True
    answers = [subject.log_conditionals(row.unsqueeze(0), one)[one] for one in subject.split(row, hidden).split(1)]
    largest = float(torch.cat(answers)[:, predictor.mask_token].exp().max())
    if largest == 0:
        return CheckResult("ok", "exactly zero")
    hint = "Set its column to -inf before the softmax: data never hold the mask, and its share is missing elsewhere."
    return CheckResult("wrong", f"up to {largest:.3g}", hint)


def _mask_token(subject: ModelUnderTest) -> CheckResult:
    """Is the token that we hide with the one the model was trained to see?"""
    if subject.causal:
        return CheckResult("left out", "an autoregressive model masks nothing")
    words, mask = subject.tokenizer, subject.predictor.mask_token
    named = _named_mask(words)
    used = f"token {mask} ({_piece(words, mask)})"
    if named not in (None, mask) and words is not None and mask < words.vocab_size and mask not in subject.beyond_text:
        detail = f"{used} is used, which stands for text; the tokenizer calls {named} the mask"
        return CheckResult("wrong", detail, _mask_hint(named))
    sure = swap_scores(subject, mask)[:, 1]
    for token in _other_masks(subject, named):
        found = swap_scores(subject, token)[:, 1]
        gain = found - sure
        if surely_above(gain, than=0.05) and surely_above(found):
            better = f"{token} ({_piece(words, token)})"
            detail = (
                f"hiding by {better} tells data from noise better than by {used}: {float(gain.mean()):.2f} nats a pair"
            )
            return CheckResult("wrong", detail, _mask_hint(token))
        if token == named and not surely_above(-gain):
            detail = f"{used} is used, the tokenizer calls {named} the mask; {subject.cannot_judge or UNDECIDED}"
            return CheckResult("cannot tell", detail, GIVE_TEXT)
    if named is None:
        return CheckResult(
            "cannot tell", f"{used}; the tokenizer names no mask", GIVE_TEXT if subject.cannot_judge else ""
        )
    said = "as the tokenizer says" if named == mask else f"by which data are told from noise better than by {named}"
    return CheckResult("ok", f"{used}, {said}")


def _mask_hint(token: int | None) -> str:
    return f"Put mask_token_id = {token} into config.json, or load it with --mask-token {token} where that is taken."


def _piece(words: Tokenizer | None, token: int) -> str:
    return "no tokenizer" if words is None else words.pieces([token])[0]


def _named_mask(words: Tokenizer | None) -> int | None:
    """The token that a tokenizer itself calls the mask, by one of the usual names."""
    number = getattr(words, "number", None)
    if number is None:
        return getattr(words, "mask_token", None)
    names = ("[MASK]", "<mask>", "<|mdm_mask|>", "<|mask|>", "<|MASK|>", "<MASK>", "|<MASK>|")
    return next((found for found in map(number, names) if found is not None), None)


def _other_masks(subject: ModelUnderTest, named: int | None) -> list[int]:
    """Tokens that might be the mask instead: the one that the tokenizer names, and those next to the one in use.

    Neither one that the rows hold, nor one that stands for a piece of text.
    """
    predictor, words = subject.predictor, subject.tokenizer
    if subject.blocks is not None and subject.model is None:
        return []  # it cannot be told to take another one
    used = set(torch.cat(list(subject.rows)).tolist()) - {named} | {predictor.mask_token}
    near = (predictor.mask_token - 1, predictor.mask_token + 1, 0, 1, 2, 3, 4, predictor.vocab_size - 1)
    found = [token for token in dict.fromkeys((named, *near)) if token is not None and token not in used]
    text = range(0 if words is None else words.vocab_size)
    return [
        token
        for token in found
        if 0 <= token < predictor.vocab_size and (token not in text or token in subject.beyond_text)
    ]


SHIFTS = {
    "before": "Shift the logits by one, as the model's own sampler does. If it is autoregressive: --causal.",
    "after": "The logits were shifted, but are about their own position: leave --causal out, or the shift.",
}
"""What to do if answers are found one position aside."""


def _alignment(subject: ModelUnderTest) -> CheckResult:
    """Is the answer at a position about that position?"""
    sure = swap_scores(subject, subject.predictor.mask_token)[unlike_neighbours(subject)]
    numbers = ", ".join(f"{float(mean):.2f}" for mean in sure.mean(0))
    for column, where in ((0, "before"), (2, "after")):
        if surely_above(sure[:, column]) and surely_above(sure[:, column] - sure[:, 1]):
            detail = f"answers are about another position: data are told from noise one position {where} "
            return CheckResult("wrong", f"{detail}({numbers} nats a pair before, at, after)", SHIFTS[where])
    if surely_above(sure[:, 1]) and all(surely_above(sure[:, 1] - sure[:, column]) for column in (0, 2)):
        return CheckResult("ok", f"answers are about their own position ({numbers} nats a pair before, at, after)")
    return CheckResult("cannot tell", subject.cannot_judge or UNDECIDED, GIVE_TEXT)


def _context(subject: ModelUnderTest) -> CheckResult:
    """Do visible tokens change the answer?"""
    row = subject.rows[0]
    place = len(row) // 2
    other = row.roll(1)
    if torch.equal(row, other):
        return CheckResult("cannot tell", "the row holds one token only", GIVE_TEXT)
    hidden = (torch.arange(len(row)) == place).expand(2, -1)
    one, two = subject.log_conditionals(torch.stack([row, other]), hidden)[:, place].cpu().double().exp()
    moved = float((one - two).abs().sum()) / 2
    if moved > 1e-6:
        return CheckResult("ok", f"other visible tokens move {moved:.3g} of the probability")
    hint = "Is attention masked out, or are the tokens not reaching the network?"
    return CheckResult("wrong", "visible tokens make no difference", hint)


def _secrecy(subject: ModelUnderTest) -> CheckResult:
    """Can a hidden token be seen?"""
    predictor = subject.predictor
    row = subject.rows[0]
    hidden = torch.zeros(1, len(row), dtype=torch.bool)
    inside = subject.inside(row)
    hidden[0, max(1, inside.start) : inside.stop : 2] = True
    changed = row.clone()
    last = int(hidden[0].nonzero()[-1])
    others = [token for token in row.tolist() if token not in (int(row[last]), predictor.mask_token)]
    if not others:
        return CheckResult("cannot tell", "the row holds one token only")
    changed[last] = others[0]
    one, two = (subject.surprisal(tokens.unsqueeze(0), hidden)[0, :last] for tokens in (row, changed))
    seen = float((one - two).abs().max())
    if seen <= ROUNDING:
        return CheckResult("ok", "hidden tokens do not change other answers")
    hint = "surprisal must replace hidden tokens by the mask before it runs the network."
    return CheckResult("wrong", f"a hidden token changes another answer by {seen:.3g} nats", hint)


def _padding(subject: ModelUnderTest) -> CheckResult:
    """Is a row answered alike alone and beside a longer one?"""
    predictor = subject.predictor
    if not isinstance(predictor, RowPredictor) or not predictor.pads:
        return CheckResult("ok", "rows are never padded")
    long = subject.rows[0]
    short = long[: max(4, len(long) // 2)]
    first = subject.inside(long).start
    alone = alternate_surprisals(predictor, [short], first)
    beside = alternate_surprisals(predictor, [short, long], first)[: len(alone)]
    seen = float((alone - beside).abs().max())
    if seen <= (0.2 if is_half(subject) else ROUNDING):
        return CheckResult("ok", f"a row beside a longer one differs by {seen:.1g} nats at most")
    hint = "The attention mask is ignored. Score rows of one length together (pads = False)."
    return CheckResult("wrong", f"a row beside a longer one differs by {seen:.3g} nats", hint)


def _longest(subject: ModelUnderTest) -> CheckResult:
    """Does a row of the stated length go through?"""
    model = subject.model
    if model is None or model.loaded.limit is None:
        return CheckResult("ok", "no limit is stated")
    limit = model.loaded.limit
    row = torch.cat([subject.rows[0]] * (limit // len(subject.rows[0]) + 1))[:limit]
    hidden = (torch.arange(limit) == limit // 2).unsqueeze(0)
    try:
        nats = subject.surprisal(row.unsqueeze(0), hidden)[0, limit // 2]
    except (IndexError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        return CheckResult("wrong", f"a row of {limit} tokens fails: {reason}", "Its positions end earlier; cut rows.")
    fine = bool(nats.isfinite())
    return CheckResult("ok" if fine else "wrong", f"{limit} tokens" + ("" if fine else ": the answer is not finite"))


def _special_tokens(subject: ModelUnderTest) -> CheckResult:
    """What is put around a text, is it kept out of the score, and does an end token give the text's length away?"""
    model = subject.model
    if model is None or model.loaded.tokenizer is None:
        return CheckResult("cannot tell", "no tokenizer")
    row = tolerant(model).read(subject.texts[0] if subject.texts else _readable(subject))
    pieces = model.tokenizer.pieces(row.tokens.tolist())
    scored = set(row.target.tolist())
    around = [piece for place, piece in enumerate(pieces) if place not in scored]
    if int(row.target.min()) < model.network.first_predicted:
        hint = "It has no begin token: score texts after a prompt."
        return CheckResult("wrong", "the model says nothing about the first token, and a text begins with it", hint)
    detail = f"a text is read with {' '.join(around)} around it, as context" if around else "none are put around a text"
    if subject.tail and not subject.cannot_judge and subject.noise is None:
        detail += f"; the end alone changes {_end_effect(subject):+.2f} nats of a text's last token"
    return CheckResult("ok", detail)


def _end_effect(subject: ModelUnderTest) -> float:
    """How much cheaper the last token of a text is because the end stands visibly behind it."""
    changes = []
    for row in subject.rows:
        last = len(row) - subject.tail - 1
        nats = []
        for tokens in (row, row[: last + 1]):
            hidden = torch.zeros(1, len(tokens), dtype=torch.bool)
            hidden[0, last] = True
            nats.append(float(subject.predictor.surprisal(tokens.unsqueeze(0), hidden)[0, last]))
        changes.append(nats[0] - nats[1])
    return sum(changes) / len(changes)


def _readable(subject: ModelUnderTest) -> str:
    """A text that can be read, though it may say nothing."""
    assert subject.model is not None
    return next(
        (text for text in SENTENCES if read_example(subject.model, text)), subject.model.decode(subject.rows[0])
    )


def _round_trip(subject: ModelUnderTest) -> CheckResult:
    """Is text still itself after the tokenizer?"""
    model = subject.model
    if model is None or model.loaded.tokenizer is None:
        return CheckResult("cannot tell", "no tokenizer")
    if not subject.texts:
        return CheckResult("cannot tell", subject.cannot_judge, GIVE_TEXT)
    loose = False
    for text in subject.texts:
        try:
            back = model.decode(tolerant(model).encode(text)).strip()
        except InfodisError as error:
            return CheckResult("wrong", f"{text!r} cannot be read: {error}", "Remove what it does not know.")
        loose = loose or back != text.strip()
        if "".join(back.lower().split()) != "".join(text.lower().split()):
            hint = "Different texts may get the same score."
            return CheckResult("cannot tell", f"{text!r} comes back as {back!r}", hint)
    detail = "a text comes back but for case and spaces" if loose else "a text comes back as it was"
    return CheckResult("ok", detail)


def _precision(subject: ModelUnderTest) -> CheckResult:
    """What does computing in bfloat16 change?"""
    model = subject.model
    if model is None:
        return CheckResult("cannot tell", "not a network")
    found = both_precisions(subject)
    if isinstance(found, str):
        hint = "Leave --dtype bfloat16 and --autocast alone on this machine."
        return CheckResult("cannot tell", f"the other precision does not run: {found}", hint)
    mine, other = found
    change = float((other - mine).abs().mean())
    if not is_half(subject):
        return CheckResult("ok", f"float32; bfloat16 would change {change:.2g} nats a token")
    bias = float((mine - other).mean())
    verdict: Verdict = "wrong" if surely_above((mine - other) * math.copysign(1, bias), than=0.05) else "ok"
    called = str(dtype_of(model)).removeprefix("torch.")
    detail = f"{called} against float32: {change:.2g} nats a token, {bias:+.2g} on average"
    return CheckResult(verdict, detail, "" if verdict == "ok" else "Load it in float32.")


def _speed(subject: ModelUnderTest) -> CheckResult:
    """How many rows a second, and how much memory?"""
    row = subject.rows[0]
    count = max(1, 512 // len(row))
    tokens = row.expand(count, -1)
    hidden = torch.rand(count, len(row), generator=stream(0, "doctor", "speed")) < 0.5
    hidden[:, : subject.inside(row).start] = False
    subject.surprisal(tokens, hidden)
    begin = time.perf_counter()
    subject.surprisal(tokens, hidden)
    taken = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    detail = f"{count / taken:,.0f} rows of {len(row)} tokens a second, {peak / 2**20:,.0f} MiB in use at most"
    return CheckResult("ok", detail)


CHECKS: dict[str, Callable[[ModelUnderTest], CheckResult]] = {
    "distributions": _distributions,
    "probability of the mask": _mask_probability,
    "mask token": _mask_token,
    "mask rates": mask_rates,
    "alignment": _alignment,
    "block size": block_size,
    "block origin": block_origin,
    "context": _context,
    "secrecy": _secrecy,
    "padding": _padding,
    "longest row": _longest,
    "special tokens": _special_tokens,
    "tokenizer": _round_trip,
    "precision": _precision,
    "speed": _speed,
}
"""In the order in which they run. A check takes a `ModelUnderTest` and gives a `CheckResult`."""

NOISE_CHECKS: dict[str, Callable[[ModelUnderTest], CheckResult]] = {
    "score entropies": score_entropies,
    "data and noise": data_and_noise,
    "context": noised_context,
    **{name: CHECKS[name] for name in ("padding", "longest row", "special tokens", "tokenizer", "precision", "speed")},
}
"""The same of models of uniform or mixed noise."""
