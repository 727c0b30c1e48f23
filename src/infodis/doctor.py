"""Is a model wired as it should be? Checks with a verdict each, before anyone trusts its likelihoods.

A wrong mask token, logits that are about the next position, padding that is seen, a softmax that does not add up: none
of these fails loudly, all of them change every number. Checks that need a trained model (where its answers belong,
which token it takes for a mask) are decided by data: rows that the model should know.
"""

import copy
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
from infodis.errors import InfodisError, InputError
from infodis.model import Model
from infodis.predictor import Predictor, RowPredictor, Rows, check_log_conditionals
from infodis.rng import stream

Verdict = Literal["ok", "wrong", "cannot tell"]
CLOSE = 1e-4
"""Nats: the largest difference that counts as rounding in float32."""
LONGEST = 64
"""Tokens of a row that is looked at."""
SURE = 4.0
"""Standard errors: a false alarm in 30,000."""
AT_ONCE = 2**24
"""Logits of rows that are looked at together."""

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
    """A predictor, and rows of tokens that it should know.

    The first `head` and the last `tail` tokens of a row are special ones: they are never hidden.
    """

    predictor: Predictor
    rows: Sequence[Int[Tensor, "_"]]
    head: int = 0
    tail: int = 0

    @property
    def model(self) -> Model | None:
        return self.predictor if isinstance(self.predictor, Model) else None

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.model.opened.tokenizer if self.model is not None else None

    def inside(self, row: Int[Tensor, "_"]) -> range:
        """Positions that may be hidden."""
        first = self.model.network.unpredictable if self.model is not None else 0
        return range(max(self.head, first), len(row) - self.tail)


def patient_of(model: Model, texts: Sequence[str] = ()) -> Patient:
    """A model with rows of text if it has a tokenizer, with random rows otherwise."""
    given = list(texts) or [*SENTENCES, *(_lower(sentence) for sentence in SENTENCES)]
    found = []
    for text in given if model.opened.tokenizer is not None else ():
        try:
            found.append(model.read(text))
        except InfodisError:  # an alphabet without capitals
            continue
    found = [row for row in found if len(row.target) >= 8]
    if texts and not found:
        raise InputError("None of the texts can be used: each must have at least 8 tokens that the model knows.")
    if found:
        head, tail = int(found[0].target[0]), len(found[0].tokens) - 1 - int(found[0].target[-1])
        longest = min(LONGEST, model.opened.limit or LONGEST)
        cut = [
            torch.cat([row.tokens[: longest - tail][: len(row.tokens) - tail], _last(row.tokens, tail)])
            for row in found
        ]
        return Patient(model, cut, head, tail)
    length = min(16, model.opened.limit or 16)
    masks = torch.full((1, length), model.mask_token)
    masks[:, : model.network.unpredictable] = 0
    answer = model.log_conditionals(masks)[0, length // 2]
    possible = answer.isfinite().nonzero().squeeze(-1).cpu()  # neither the mask nor padding of the vocabulary
    if possible.numel() == 0:
        possible = torch.tensor([token for token in range(model.vocab_size) if token != model.mask_token])
    picks = torch.randint(len(possible), (4, length), generator=stream(0, "doctor"))
    return Patient(model, list(possible[picks]))


def _last(tokens: Int[Tensor, "_"], count: int) -> Int[Tensor, "_"]:
    return tokens[len(tokens) - count :]


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
        name = check.__name__.strip("_").replace("_", " ")
        try:
            yield check(patient)
        except InfodisError as error:
            yield Finding(name, "wrong", str(error), "See the message.")
        except Exception as error:  # whatever foreign code raises is a finding about it
            yield Finding(name, "wrong", f"{type(error).__name__}: {error}", "The model's own code fails here.")


def _distributions(patient: Patient) -> Finding:
    """Finite and normalised, from one masked token to all."""
    name, mask = "distributions", patient.predictor.mask_token
    row = patient.rows[0]
    for share in (0.0, 0.15, 0.5, 0.85, 1.0):
        hidden = torch.zeros(1, len(row), dtype=torch.bool)
        inside = patient.inside(row)
        drawn = torch.rand(len(inside), generator=stream(0, "doctor", str(share))) < share
        hidden[0, inside.start : inside.stop] = drawn
        hidden[0, len(row) // 2] = True
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
    places = slice(patient.inside(row).start, patient.inside(row).stop, 2)
    row[places] = predictor.mask_token
    answer = predictor.log_conditionals(row.unsqueeze(0))[0, places]
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
    inside = patient.inside(row)
    places = torch.arange(max(1, inside.start), min(len(row) - 1, inside.stop))
    around = places.unsqueeze(-1) + torch.arange(-1, 2)
    found = []
    for some in torch.arange(len(places)).split(max(1, AT_ONCE // (len(row) * patient.predictor.vocab_size))):
        hidden = torch.nn.functional.one_hot(places[some], len(row)).bool()
        answer = patient.predictor.log_conditionals(torch.where(hidden, mask, row))
        each = torch.arange(len(some)).unsqueeze(-1)
        found.append(-answer.cpu()[each, around[some], row[places[some]].unsqueeze(-1)].double())
    return torch.cat(found).clamp(max=50.0)


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
    one, two = predictor.log_conditionals(pair)[:, place].cpu().double().exp()
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
    inside = patient.inside(row)
    hidden[0, max(1, inside.start) : inside.stop : 2] = True
    changed = row.clone()
    last = int(hidden[0].nonzero()[-1])
    others = [token for token in row.tolist() if token not in (int(row[last]), predictor.mask_token)]
    if not others:
        return Finding(name, "cannot tell", "the row holds one token only")
    changed[last] = others[0]
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
    first = patient.inside(long).start
    alone = _wanted(predictor, [short], first)
    beside = _wanted(predictor, [short, long], first)[: len(alone)]
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
    return predictor.surprisals(Rows(tokens, hidden, hidden, lengths)).cpu().double()


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
    """What is put around a text, is it kept out of the score, and does an end token give the text's length away?"""
    name, model = "special tokens", patient.model
    if model is None or model.opened.tokenizer is None:
        return Finding(name, "cannot tell", "no tokenizer")
    row = model.read(_readable(model))
    pieces = model.tokenizer.pieces(row.tokens.tolist())
    scored = set(row.target.tolist())
    around = [piece for place, piece in enumerate(pieces) if place not in scored]
    if int(row.target.min()) < model.network.unpredictable:
        hint = "It has no begin token: score texts after a prompt."
        return Finding(name, "wrong", "the model says nothing about the first token, and a text begins with it", hint)
    told = f"a text is read with {' '.join(around)} around it, as context" if around else "none are put around a text"
    if patient.tail:
        told += f"; the end alone changes {_anchor(patient):+.2f} nats of a text's last token"
    return Finding(name, "ok", told)


def _anchor(patient: Patient) -> float:
    """How much cheaper the last token of a text is because the end stands visibly behind it."""
    changes = []
    for row in patient.rows:
        last = len(row) - patient.tail - 1
        costs = []
        for tokens in (row, row[: last + 1]):
            hidden = torch.zeros(1, len(tokens), dtype=torch.bool)
            hidden[0, last] = True
            costs.append(float(patient.predictor.surprisal(tokens.unsqueeze(0), hidden)[0, last]))
        changes.append(costs[0] - costs[1])
    return sum(changes) / len(changes)


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
        return model.decode(patient_of(model).rows[0])


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
    row, first = patient.rows[0], patient.inside(patient.rows[0]).start
    mine = _wanted(model, [row], first)
    try:
        other = dataclasses.replace(model, autocast=True) if dtype == torch.float32 else _in_float32(model)
        change = (_wanted(other, [row], first) - mine).abs().mean()
    except (RuntimeError, MemoryError) as error:
        return Finding(name, "cannot tell", f"the other precision does not run: {str(error).splitlines()[0]}")
    if dtype == torch.float32:
        return Finding(name, "ok", f"float32; bfloat16 would change {float(change):.2g} nats a token")
    bias = float((mine - _wanted(other, [row], first)).mean())
    verdict: Verdict = "ok" if abs(bias) < 0.05 else "wrong"
    called = str(dtype).removeprefix("torch.")
    detail = f"{called} against float32: {float(change):.2g} nats a token, {bias:+.2g} on average"
    return Finding(name, verdict, detail, "" if verdict == "ok" else "Load it in float32.")


def _in_float32(model: Model) -> Model:
    opened = dataclasses.replace(model.opened, network=copy.deepcopy(model.network).float())
    return dataclasses.replace(model, opened=opened)


def _speed(patient: Patient) -> Finding:
    """How many rows a second, and how much memory."""
    row = patient.rows[0]
    predictor = patient.predictor
    count = max(1, 512 // len(row))
    tokens = row.expand(count, -1)
    hidden = torch.rand(count, len(row), generator=stream(0, "doctor", "speed")) < 0.5
    hidden[:, : patient.inside(row).start] = False
    predictor.surprisal(tokens, hidden)
    begin = time.perf_counter()
    predictor.surprisal(tokens, hidden)
    taken = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    detail = f"{count / taken:,.0f} rows of {len(row)} tokens a second, {peak / 2**20:,.0f} MiB in use at most"
    return Finding("speed", "ok", detail)
