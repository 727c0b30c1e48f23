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
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.data import Tokenizer
from infodis.errors import InfodisError
from infodis.model import Model
from infodis.predictor import Predictor, RowPredictor, Rows, check_log_conditionals
from infodis.rng import stream

Verdict = Literal["ok", "wrong", "cannot tell"]
CLOSE = 1e-4
"""Nats: the largest difference that counts as rounding in float32."""
SURE = 4.0
"""Standard errors: a false alarm in 30,000."""

SENTENCES = (
    "The capital of France is the city of Paris, and the capital of Italy is the city of Rome.",
    "She opened the door, looked out of the window, and closed it again because it was cold outside.",
    "In the first half of the year the company sold more cars than in the whole of the year before.",
    "Water boils at a hundred degrees and freezes at zero degrees if the pressure is that of the air at sea level.",
)
"""Text that a model of English should find likely, whatever it was trained on; in lower case for small alphabets."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a check found."""

    check: str
    verdict: Verdict
    detail: str
    hint: str = ""
    """What to do if it is wrong."""


@dataclasses.dataclass(frozen=True, eq=False)
class Patient:
    """A predictor, and rows of tokens that it should know."""

    predictor: Predictor
    rows: Sequence[Int[Tensor, "_"]]

    @property
    def model(self) -> Model | None:
        return self.predictor if isinstance(self.predictor, Model) else None

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.model.opened.tokenizer if self.model is not None else None

    @property
    def unpredictable(self) -> int:
        return self.model.network.unpredictable if self.model is not None else 0


def sample_rows(model: Model, texts: Sequence[str] = ()) -> list[Int[Tensor, "_"]]:
    """Rows of text for a model with a tokenizer, random rows otherwise."""
    given = list(texts) or [*SENTENCES, *(_lower(sentence) for sentence in SENTENCES)]
    rows = []
    for text in given if model.opened.tokenizer is not None else ():
        try:
            rows.append(model.read(text).tokens)
        except InfodisError:  # an alphabet without capitals
            continue
    limit = model.opened.limit
    rows = [row[:limit] for row in rows if len(row) >= 8]
    if rows:
        return rows
    length = min(16, limit or 16)
    answer = model.log_conditionals(torch.full((1, length), model.mask_token))[0, length // 2]
    possible = answer.isfinite().nonzero().squeeze(-1).cpu()  # neither the mask nor padding of the vocabulary
    picks = torch.randint(len(possible), (4, length), generator=stream(0, "doctor"))
    return list(possible[picks])


def _lower(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalpha() or character == " ")


def examine(patient: Patient) -> Iterator[Finding]:
    """All checks, one after another. A check that fails with an error is a finding, not the end."""
    for check in (
        _distributions,
        _mask_probability,
        _mask_identity,
        _alignment,
        _context,
        _secrecy,
        _padding,
        _longest,
        _special_tokens,
        _round_trip,
        _precision,
        _speed,
    ):
        try:
            yield check(patient)
        except InfodisError as error:
            name = check.__name__.strip("_").replace("_", " ")
            yield Finding(name, "wrong", str(error), "See the message.")


def _distributions(patient: Patient) -> Finding:
    """Finite and normalised, from one masked token to all."""
    name, mask = "distributions", patient.predictor.mask_token
    row = patient.rows[0]
    for share in (0.0, 0.15, 0.5, 0.85, 1.0):
        hidden = torch.rand(1, len(row), generator=stream(0, "doctor", str(share))) < share
        hidden[0, len(row) // 2] = True
        hidden[:, : patient.unpredictable] = False
        answer = patient.predictor.log_conditionals(torch.where(hidden, mask, row))
        try:
            check_log_conditionals(answer, hidden, vocab_size=patient.predictor.vocab_size)
        except InfodisError as error:
            hint = "Apply log_softmax in float32 over the tokens that data may contain."
            return Finding(name, "wrong", f"with {int(hidden.sum())} of {len(row)} tokens masked: {error}", hint)
    return Finding(name, "ok", "finite and normalised from one masked token to all")


def _mask_probability(patient: Patient) -> Finding:
    name, predictor = "probability of the mask", patient.predictor
    if predictor.mask_token >= predictor.vocab_size:
        return Finding(name, "ok", "the mask has no column, so no probability")
    row = patient.rows[0].clone()
    row[patient.unpredictable :: 2] = predictor.mask_token
    answer = predictor.log_conditionals(row.unsqueeze(0))[0, patient.unpredictable :: 2]
    largest = float(answer[:, predictor.mask_token].exp().max())
    if largest == 0:
        return Finding(name, "ok", "exactly zero")
    hint = (
        "Set its column to -inf before the softmax: data never holds the mask, and what it takes is missing elsewhere."
    )
    return Finding(name, "wrong", f"up to {largest:.3g}", hint)


def _mask_identity(patient: Patient) -> Finding:
    """Is the token that we hide with the one the model was trained to see?"""
    name, predictor, words = "mask token", patient.predictor, patient.tokenizer
    mask = predictor.mask_token
    called = words.pieces([mask])[0] if words is not None else "no tokenizer"
    named = _named_mask(words)
    if named is not None and named != mask:
        hint = f"Put mask_token_id = {named} into config.json."
        return Finding(name, "wrong", f"token {mask} ({called}) is used, the tokenizer calls {named} the mask", hint)
    special = [mask, *_other_masks(patient)]
    costs = {token: _hidden_costs(patient, token) for token in special}
    for token, cost in costs.items():
        gain = costs[mask] - cost
        if token != mask and float(gain.mean()) > SURE * _standard_error(gain) + 0.05:
            better = words.pieces([token])[0] if words is not None else str(token)
            detail = f"hiding by {token} ({better}) explains data better than by {mask} ({called}): "
            detail += f"{float(gain.mean()):.2f} nats a token"
            return Finding(name, "wrong", detail, f"Put mask_token_id = {token} into config.json.")
    if named == mask:
        return Finding(name, "ok", f"token {mask} ({called}), as the tokenizer says")
    return Finding(name, "cannot tell", f"token {mask} ({called}); the tokenizer names no mask")


def _named_mask(words: Tokenizer | None) -> int | None:
    """The token that a tokenizer itself calls the mask, by one of the usual names."""
    number = getattr(words, "number", None)
    if number is None:
        return getattr(words, "mask_token", None)
    names = ("[MASK]", "<mask>", "<|mdm_mask|>", "<|mask|>")
    return next((found for found in map(number, names) if found is not None), None)


def _other_masks(patient: Patient) -> list[int]:
    """Tokens that might be the mask instead: those beyond the ones that the rows hold, next to the one in use."""
    predictor = patient.predictor
    used = set(torch.cat(list(patient.rows)).tolist()) | {predictor.mask_token}
    near = (predictor.mask_token - 1, predictor.mask_token + 1, 0, 1, 2, 3, 4, predictor.vocab_size - 1)
    return [token for token in dict.fromkeys(near) if 0 <= token < predictor.vocab_size and token not in used]


def _hidden_costs(patient: Patient, mask: int) -> Float64[Tensor, " places"]:
    """-log p of single hidden tokens, if they are hidden by `mask`."""
    found = [_at_offsets(patient, row, mask)[:, 1] for row in patient.rows]
    return torch.cat(found)


def _at_offsets(patient: Patient, row: Int[Tensor, " length"], mask: int) -> Float64[Tensor, "places three"]:
    """For single hidden tokens: -log p of each, read one position before, at its own, and one after."""
    first = max(1, patient.unpredictable)
    places = torch.arange(first, len(row) - 1)
    hidden = torch.nn.functional.one_hot(places, len(row)).bool()
    answers = patient.predictor.log_conditionals(torch.where(hidden, mask, row)).to("cpu", torch.float64)
    numbers = torch.arange(len(places))
    offsets = [-answers[numbers, places + offset, row[places]] for offset in (-1, 0, 1)]
    return torch.stack(offsets, dim=1).clamp(max=50.0)


def _standard_error(values: Float64[Tensor, " values"]) -> float:
    return float(values.std()) / math.sqrt(values.numel()) if values.numel() > 1 else math.inf


def _alignment(patient: Patient) -> Finding:
    """Is the answer at a position about that position?"""
    name = "alignment"
    costs = torch.cat([_at_offsets(patient, row, patient.predictor.mask_token) for row in patient.rows])
    for column, where in ((0, "before"), (2, "after")):
        gain = costs[:, 1] - costs[:, column]
        if float(gain.mean()) > SURE * _standard_error(gain):
            detail = (
                f"data are explained {float(gain.mean()):.2f} nats a token better by the answer one position {where}"
            )
            hint = "Shift the logits by one, as the model's own sampler does."
            return Finding(name, "wrong", detail, hint)
    losses = [costs[:, column] - costs[:, 1] for column in (0, 2)]
    if all(float(loss.mean()) > SURE * _standard_error(loss) for loss in losses):
        numbers = ", ".join(f"{float(mean):.2f}" for mean in costs.mean(0))
        return Finding(name, "ok", f"answers are about their own position ({numbers} nats a token before, at, after)")
    detail = f"the rows do not decide ({len(costs)} tokens): the model knows too little about them"
    return Finding(name, "cannot tell", detail, "Give text of the kind it was trained on: --text FILE.")


def _context(patient: Patient) -> Finding:
    """Do visible tokens change the answer?"""
    name, predictor = "context", patient.predictor
    row = patient.rows[0]
    place = len(row) // 2
    other = row.roll(1)
    pair = torch.stack([row, other])
    pair[:, place] = predictor.mask_token
    one, two = predictor.log_conditionals(pair)[:, place].double().exp()
    moved = float((one - two).abs().sum()) / 2
    if moved > 1e-6:
        return Finding(name, "ok", f"other visible tokens move {moved:.3g} of the probability")
    hint = "Is attention masked out, or are the tokens not reaching the network?"
    return Finding(name, "wrong", "visible tokens make no difference", hint)


def _secrecy(patient: Patient) -> Finding:
    """Can a hidden token be seen?"""
    name, predictor = "secrecy", patient.predictor
    row = patient.rows[0]
    hidden = torch.zeros(1, len(row), dtype=torch.bool)
    hidden[0, max(1, patient.unpredictable) :: 2] = True
    changed = row.clone()
    last = int(hidden[0].nonzero()[-1])
    changed[last] = patient.rows[-1][0] if int(patient.rows[-1][0]) != int(row[last]) else row[last - 1]
    one, two = (predictor.surprisal(tokens.unsqueeze(0), hidden)[0, :last] for tokens in (row, changed))
    seen = float((one - two).abs().max())
    if seen <= CLOSE:
        return Finding(name, "ok", "hidden tokens do not change other answers")
    hint = "surprisal must replace hidden tokens by the mask before it runs the network."
    return Finding(name, "wrong", f"a hidden token changes another answer by {seen:.3g} nats", hint)


def _padding(patient: Patient) -> Finding:
    """Is a row answered alike alone and beside a longer one?"""
    name, predictor = "padding", patient.predictor
    if not isinstance(predictor, RowPredictor) or not predictor.pads:
        return Finding(name, "ok", "rows are never padded")
    long = patient.rows[0]
    short = long[: max(4, len(long) // 2)]
    alone = _wanted(predictor, [short], patient.unpredictable)
    beside = _wanted(predictor, [short, long], patient.unpredictable)[: len(alone)]
    seen = float((alone - beside).abs().max())
    half = patient.model is not None and next(patient.model.network.parameters()).dtype != torch.float32
    if seen <= (0.2 if half else CLOSE):
        return Finding(name, "ok", f"a row beside a longer one differs by {seen:.1g} nats at most")
    hint = "The attention mask is ignored. Score rows of one length together (pads = False)."
    return Finding(name, "wrong", f"a row beside a longer one differs by {seen:.3g} nats", hint)


def _wanted(predictor: RowPredictor, rows: list[Tensor], first: int) -> Float64[Tensor, " wanted"]:
    longest = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    hidden: Bool[Tensor, "rows length"] = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
        hidden[number, max(1, first) : len(row) : 2] = True
    lengths = torch.tensor([len(row) for row in rows])
    return predictor.surprisals(Rows(tokens, hidden, hidden, lengths)).to("cpu", torch.float64)


def _longest(patient: Patient) -> Finding:
    """Does a row of the stated length go through?"""
    name, model = "longest row", patient.model
    if model is None or model.opened.limit is None:
        return Finding(name, "ok", "no limit is stated")
    limit = model.opened.limit
    row = torch.cat([patient.rows[0]] * (limit // len(patient.rows[0]) + 1))[:limit]
    row[limit // 2] = model.mask_token
    try:
        answer = model.log_conditionals(row.unsqueeze(0))[0, limit // 2]
    except (IndexError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        return Finding(
            name, "wrong", f"a row of {limit} tokens fails: {reason}", "Its positions end earlier; cut rows."
        )
    fine = bool(answer.logsumexp(-1).isfinite())
    return Finding(name, "ok" if fine else "wrong", f"{limit} tokens" + ("" if fine else ": the answer is not finite"))


def _special_tokens(patient: Patient) -> Finding:
    """What is put around a text, and is it kept out of the score?"""
    name, model = "special tokens", patient.model
    if model is None or model.opened.tokenizer is None:
        return Finding(name, "cannot tell", "no tokenizer")
    text = _readable(model)
    row = model.read(text)
    pieces = model.tokenizer.pieces(row.tokens.tolist())
    scored = set(row.target.tolist())
    around = [piece for place, piece in enumerate(pieces) if place not in scored]
    if int(row.target.min()) < model.network.unpredictable:
        hint = "It has no begin token: score texts after a prompt."
        return Finding(name, "wrong", "the model says nothing about the first token, and a text begins with it", hint)
    told = f"a text is read with {' '.join(around)} around it, as context" if around else "none are put around a text"
    return Finding(name, "ok", told)


def _readable(model: Model) -> str:
    try:
        model.encode(SENTENCES[0])
        return SENTENCES[0]
    except InfodisError:
        text = _lower(SENTENCES[0])
    try:
        model.encode(text)
        return text
    except InfodisError:
        return model.decode(sample_rows(model)[0])


def _round_trip(patient: Patient) -> Finding:
    """Is text still itself after the tokenizer?"""
    name, model = "tokenizer", patient.model
    if model is None or model.opened.tokenizer is None:
        return Finding(name, "cannot tell", "no tokenizer")
    text = _readable(model)
    back = model.decode(model.encode(text)).strip()
    if back == text.strip():
        return Finding(name, "ok", "a text comes back as it was")
    if "".join(back.lower().split()) == "".join(text.lower().split()):
        return Finding(name, "ok", "a text comes back but for case and spaces")
    return Finding(name, "cannot tell", f"{text!r} comes back as {back!r}", "Different texts may get the same score.")


def _precision(patient: Patient) -> Finding:
    """What does computing in bfloat16 change?"""
    name, model = "precision", patient.model
    if model is None:
        return Finding(name, "cannot tell", "not a network")
    dtype = next(model.network.parameters()).dtype
    rows = list(patient.rows[:2])
    if dtype == torch.float32:
        full = _wanted(model, rows[:1], patient.unpredictable)
        try:
            with torch.autocast(model.device.type, torch.bfloat16):
                low = _wanted(model, rows[:1], patient.unpredictable)
        except RuntimeError as error:
            return Finding(name, "ok", f"float32; bfloat16 does not run: {str(error).splitlines()[0]}")
        change = float((low - full).abs().mean())
        return Finding(name, "ok", f"float32; bfloat16 would change {change:.2g} nats a token")
    low = _wanted(model, rows[:1], patient.unpredictable)
    model.network.float()
    full = _wanted(model, rows[:1], patient.unpredictable)
    model.network.to(dtype)
    change, bias = float((low - full).abs().mean()), float((low - full).mean())
    verdict: Verdict = "ok" if abs(bias) < 0.05 else "wrong"
    detail = f"{str(dtype).removeprefix('torch.')} against float32: {change:.2g} nats a token, {bias:+.2g} on average"
    return Finding(name, verdict, detail, "" if verdict == "ok" else "Load it in float32.")


def _speed(patient: Patient) -> Finding:
    """How many rows a second, and how much memory."""
    row = patient.rows[0]
    predictor = patient.predictor
    count = max(1, 512 // len(row))
    tokens = row.expand(count, -1)
    hidden = torch.rand(count, len(row), generator=stream(0, "doctor", "speed")) < 0.5
    hidden[:, : patient.unpredictable] = False
    predictor.surprisal(tokens, hidden)
    begin = time.perf_counter()
    predictor.surprisal(tokens, hidden)
    taken = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    detail = f"{count / taken:,.0f} rows of {len(row)} tokens a second, {peak / 2**20:,.0f} MiB in use at most"
    return Finding("speed", "ok", detail)
