"""Is a model wired as it should be? Checks with a verdict each, before anyone trusts its likelihoods.

A wrong mask token, logits that are about the next position, padding that is seen, a softmax that does not add up: none
of these fails loudly, all of them change every number. Checks that need a trained model (where its answers belong,
which token it takes for a mask) are decided by data: rows that the model should know.
"""

import copy
import dataclasses
import math
import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from infodis.errors import InfodisError, InputError
from infodis.item import Item
from infodis.models.model import Model
from infodis.models.tokenizers import Tokenizer
from infodis.predictor import Predictor, RowPredictor, Rows, check_log_conditionals
from infodis.result import standard_error
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

KNOWN = 0.5
"""Share of a text's tokens that a tokenizer must know for the text to say anything."""
FEWEST = 8
"""Values that a standard error is made of."""
PATIENCE = 600
"""Seconds for a process that computes in another precision."""
GIVE_TEXT = "Give text of the kind it was trained on: --text FILE."

Numbers = list[list[float]]

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
    texts: tuple[str, ...] = ()
    """What the rows say, if they are of text."""
    doubt: str = ""
    """Why nothing can be judged by the rows, if it cannot."""

    @property
    def model(self) -> Model | None:
        return self.predictor if isinstance(self.predictor, Model) else None

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.model.loaded.tokenizer if self.model is not None else None

    @property
    def beyond_text(self) -> frozenset[int]:
        """Tokens that say nothing about a model's knowledge: special ones, and the one for what is not known."""
        return frozenset() if self.tokenizer is None else self.tokenizer.beyond_text

    def inside(self, row: Int[Tensor, "_"]) -> range:
        """Positions that may be hidden."""
        first = self.model.network.unpredictable if self.model is not None else 0
        return range(max(self.head, first), len(row) - self.tail)


def patient_of(model: Model, texts: Sequence[str] = ()) -> Patient:
    """A model with rows of text that it can read, or with random rows, by which its knowledge is not judged."""
    if model.loaded.tokenizer is None:
        return _random_patient(model, "it has no tokenizer to read examples with")
    given = list(texts) or [*SENTENCES, *(_lower(sentence) for sentence in SENTENCES)]
    read = [(text, row) for text in given if (row := _read(model, text)) is not None]
    if texts and not read:
        raise InputError("None of the texts can be used: each must have at least 8 tokens that the model knows.")
    if not read:
        return _random_patient(model, "the examples, English sentences, are not of its alphabet")
    known = [_known_share(row, model.loaded.tokenizer) for _, row in read]
    good = {tuple(one[1].tokens.tolist()): one for one, share in zip(read, known, strict=True) if share > KNOWN}
    if not good:
        unknown = 100 * (1 - sum(known) / len(known))
        return _random_patient(model, f"{unknown:.0f} % of the examples' tokens are unknown to its tokenizer")
    found = [row for _, row in good.values()]
    head, tail = int(found[0].target[0]), len(found[0].tokens) - 1 - int(found[0].target[-1])
    longest = min(LONGEST, model.loaded.limit or LONGEST)
    cut = [
        torch.cat([row.tokens[: longest - tail][: len(row.tokens) - tail], _last(row.tokens, tail)]) for row in found
    ]
    return Patient(model, cut, head, tail, tuple(texts) or tuple(text for text, _ in good.values()))


def _read(model: Model, text: str) -> Item | None:
    """A text as the model reads it; None if it is too short, or not of its alphabet."""
    try:
        row = model.read(text)
    except InfodisError:
        return None
    return row if len(row.target) >= 8 else None


def _known_share(row: Item, tokenizer: Tokenizer) -> float:
    tokens = row.tokens[row.target].tolist()
    return sum(token not in tokenizer.beyond_text for token in tokens) / len(tokens)


def _random_patient(model: Model, doubt: str) -> Patient:
    length = min(16, model.loaded.limit or 16)
    beyond = {model.mask_token, *(model.loaded.tokenizer.beyond_text if model.loaded.tokenizer is not None else ())}
    columns = range(min(model.vocab_size, model.network.tokens))
    possible = torch.tensor([token for token in columns if token not in beyond] or [0])
    picks = torch.randint(len(possible), (4, length), generator=stream(0, "doctor"))
    return Patient(model, list(possible[picks]), doubt=doubt)


def _last(tokens: Int[Tensor, "_"], count: int) -> Int[Tensor, "_"]:
    return tokens[len(tokens) - count :]


def _lower(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalpha() or character == " ")


def examine(patient: Patient) -> Iterator[Finding]:
    """All checks, one after another. A check that fails with an error is a finding, not the end.

    What computes in bfloat16 does so first where a crash is survived: if it crashes, there is nothing more to find out.
    """
    if _is_half(patient) and isinstance(found := _both_precisions(patient), str):
        hint = "Compute in float32 here: --dtype float32."
        yield Finding("precision", "wrong", f"the network does not run: {found}", hint)
        return
    for check in (
        _distributions,
        _mask_probability,
        _mask_token,
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


def _mask_token(patient: Patient) -> Finding:
    """Is the token that we hide with the one the model was trained to see?"""
    name, words, mask = "mask token", patient.tokenizer, patient.predictor.mask_token
    named = _named_mask(words)
    used = f"token {mask} ({_piece(words, mask)})"
    if named not in (None, mask) and words is not None and mask < words.vocab_size and mask not in patient.beyond_text:
        detail = f"{used} is used, which stands for text; the tokenizer calls {named} the mask"
        return Finding(name, "wrong", detail, f"Put mask_token_id = {named} into config.json.")
    sure = _told_apart(patient, mask)[:, 1]
    for token in _other_masks(patient, named):
        found = _told_apart(patient, token)[:, 1]
        gain = found - sure
        if _surely_more(gain, than=0.05) and _surely_more(found):
            better = f"{token} ({_piece(words, token)})"
            detail = (
                f"hiding by {better} tells data from noise better than by {used}: {float(gain.mean()):.2f} nats a pair"
            )
            return Finding(name, "wrong", detail, f"Put mask_token_id = {token} into config.json.")
        if token == named and not _surely_more(-gain):
            detail = f"{used} is used, the tokenizer calls {named} the mask; {_why(patient)}"
            return Finding(name, "cannot tell", detail, GIVE_TEXT)
    if named is None:
        return Finding(name, "cannot tell", f"{used}; the tokenizer names no mask", GIVE_TEXT if patient.doubt else "")
    said = "as the tokenizer says" if named == mask else f"by which data are told from noise better than by {named}"
    return Finding(name, "ok", f"{used}, {said}")


def _piece(words: Tokenizer | None, token: int) -> str:
    return "no tokenizer" if words is None else words.pieces([token])[0]


def _why(patient: Patient) -> str:
    """Why data do not decide."""
    return patient.doubt or "the model does not tell the examples from noise surely enough"


def _named_mask(words: Tokenizer | None) -> int | None:
    """The token that a tokenizer itself calls the mask, by one of the usual names."""
    number = getattr(words, "number", None)
    if number is None:
        return getattr(words, "mask_token", None)
    names = ("[MASK]", "<mask>", "<|mdm_mask|>", "<|mask|>")
    return next((found for found in map(number, names) if found is not None), None)


def _other_masks(patient: Patient, named: int | None) -> list[int]:
    """Tokens that might be the mask instead: the one that the tokenizer names, and those next to the one in use.

    Neither one that the rows hold, nor one that stands for a piece of text.
    """
    predictor, words = patient.predictor, patient.tokenizer
    used = set(torch.cat(list(patient.rows)).tolist()) - {named} | {predictor.mask_token}
    near = (predictor.mask_token - 1, predictor.mask_token + 1, 0, 1, 2, 3, 4, predictor.vocab_size - 1)
    found = [token for token in dict.fromkeys((named, *near)) if token is not None and token not in used]
    text = range(0 if words is None else words.vocab_size)
    return [
        token
        for token in found
        if 0 <= token < predictor.vocab_size and (token not in text or token in patient.beyond_text)
    ]


def _told_apart(patient: Patient, mask: int) -> Float64[Tensor, "pairs three"]:
    """How surely the model tells pairs of hidden tokens from the same two in exchanged places, in nats.

    A model that knows nothing about data cannot: whatever it thinks of tokens by themselves, or of those that it sees,
    holds for both arrangements. Read one position before the hidden ones, at their own, and one after. No pairs if the
    rows are not to be judged by.
    """
    none = torch.zeros(0, 3, dtype=torch.float64)
    rows = [] if patient.doubt else patient.rows
    return torch.cat([none, *(_exchanges(patient, row, mask) for row in rows)])


def _exchanges(patient: Patient, row: Int[Tensor, " length"], mask: int) -> Float64[Tensor, "pairs three"]:
    pairs = _pairs(patient, row)
    found = [torch.zeros(0, 3, dtype=torch.float64)]
    for some in pairs.split(max(1, AT_ONCE // (len(row) * patient.predictor.vocab_size))) if len(pairs) else ():
        hidden = torch.zeros(len(some), len(row), dtype=torch.bool).scatter(1, some, True)
        answer = patient.predictor.log_conditionals(torch.where(hidden, mask, row))
        each = torch.arange(len(some)).view(-1, 1, 1, 1)
        around = some[:, :, None, None] + torch.arange(-1, 2).view(3, 1)
        said = answer[each, around, row[some][:, None, None, :]].cpu().double().clamp(min=-50.0)
        right, wrong = said[:, 0, :, 0] + said[:, 1, :, 1], said[:, 0, :, 1] + said[:, 1, :, 0]
        found.append(right - wrong)
    return torch.cat(found)


def _pairs(patient: Patient, row: Int[Tensor, " length"]) -> Int[Tensor, "pairs two"]:
    """Positions of known tokens, two and two, that differ and are not neighbours."""
    inside = patient.inside(row)
    first, last = max(1, inside.start), min(len(row) - 1, inside.stop)
    places = [place for place in range(first, last) if int(row[place]) not in patient.beyond_text]
    half = len(places) // 2
    pairs = torch.tensor([places[:half], places[half : 2 * half]], dtype=torch.int64).T
    return pairs[(row[pairs[:, 0]] != row[pairs[:, 1]]) & (pairs[:, 1] - pairs[:, 0] > 2)]


def _unlike_neighbours(patient: Patient) -> Bool[Tensor, " pairs"]:
    """Of the same pairs, those whose tokens do not stand beside either place.

    What is read one position aside may only say again what it sees there. That is no knowledge of a hidden token.
    """
    found = [torch.zeros(0, dtype=torch.bool)]
    for row in [] if patient.doubt else patient.rows:
        pairs = _pairs(patient, row)
        beside = row[torch.cat([pairs - 1, pairs + 1], dim=1)]
        found.append(~(row[pairs].unsqueeze(1) == beside.unsqueeze(2)).flatten(1).any(1))
    return torch.cat(found)


def _surely_more(values: Float64[Tensor, " values"], than: float = 0.0) -> bool:
    """Whether the mean is larger by so many standard errors that nobody is misled by chance."""
    if values.numel() < FEWEST:
        return False
    return float(values.mean()) > SURE * float(standard_error(values)) + than


def _alignment(patient: Patient) -> Finding:
    """Is the answer at a position about that position?"""
    name = "alignment"
    sure = _told_apart(patient, patient.predictor.mask_token)[_unlike_neighbours(patient)]
    numbers = ", ".join(f"{float(mean):.2f}" for mean in sure.mean(0))
    for column, where in ((0, "before"), (2, "after")):
        if _surely_more(sure[:, column]) and _surely_more(sure[:, column] - sure[:, 1]):
            detail = f"answers are about another position: data are told from noise one position {where} "
            hint = "Shift the logits by one, as the model's own sampler does."
            return Finding(name, "wrong", f"{detail}({numbers} nats a pair before, at, after)", hint)
    if _surely_more(sure[:, 1]) and all(_surely_more(sure[:, 1] - sure[:, column]) for column in (0, 2)):
        return Finding(name, "ok", f"answers are about their own position ({numbers} nats a pair before, at, after)")
    return Finding(name, "cannot tell", _why(patient), GIVE_TEXT)


def _context(patient: Patient) -> Finding:
    """Do visible tokens change the answer?"""
    name, predictor = "context", patient.predictor
    row = patient.rows[0]
    place = len(row) // 2
    other = row.roll(1)
    if torch.equal(row, other):
        return Finding(name, "cannot tell", "the row holds one token only", GIVE_TEXT)
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
    if model is None or model.loaded.limit is None:
        return Finding(name, "ok", "no limit is stated")
    limit = model.loaded.limit
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
    if model is None or model.loaded.tokenizer is None:
        return Finding(name, "cannot tell", "no tokenizer")
    row = model.read(patient.texts[0] if patient.texts else _readable(patient))
    pieces = model.tokenizer.pieces(row.tokens.tolist())
    scored = set(row.target.tolist())
    around = [piece for place, piece in enumerate(pieces) if place not in scored]
    if int(row.target.min()) < model.network.unpredictable:
        hint = "It has no begin token: score texts after a prompt."
        return Finding(name, "wrong", "the model says nothing about the first token, and a text begins with it", hint)
    told = f"a text is read with {' '.join(around)} around it, as context" if around else "none are put around a text"
    if patient.tail and not patient.doubt:
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


def _readable(patient: Patient) -> str:
    """A text that can be read, though it may say nothing."""
    assert patient.model is not None
    return next((text for text in SENTENCES if _read(patient.model, text)), patient.model.decode(patient.rows[0]))


def _round_trip(patient: Patient) -> Finding:
    """Is text still itself after the tokenizer?"""
    name, model = "tokenizer", patient.model
    if model is None or model.loaded.tokenizer is None:
        return Finding(name, "cannot tell", "no tokenizer")
    if not patient.texts:
        return Finding(name, "cannot tell", patient.doubt, GIVE_TEXT)
    loose = False
    for text in patient.texts:
        try:
            back = model.decode(model.encode(text)).strip()
        except InfodisError as error:
            return Finding(name, "wrong", f"{text!r} cannot be read: {error}", "Remove what it does not know.")
        loose = loose or back != text.strip()
        if "".join(back.lower().split()) != "".join(text.lower().split()):
            hint = "Different texts may get the same score."
            return Finding(name, "cannot tell", f"{text!r} comes back as {back!r}", hint)
    told = "a text comes back but for case and spaces" if loose else "a text comes back as it was"
    return Finding(name, "ok", told)


def _precision(patient: Patient) -> Finding:
    """What does computing in bfloat16 change?"""
    name, model = "precision", patient.model
    if model is None:
        return Finding(name, "cannot tell", "not a network")
    found = _both_precisions(patient)
    if isinstance(found, str):
        hint = "Leave --dtype bfloat16 and --autocast alone on this machine."
        return Finding(name, "cannot tell", f"the other precision does not run: {found}", hint)
    mine, other = found
    change = float((other - mine).abs().mean())
    if not _is_half(patient):
        return Finding(name, "ok", f"float32; bfloat16 would change {change:.2g} nats a token")
    bias = float((mine - other).mean())
    verdict: Verdict = "wrong" if _surely_more((mine - other) * math.copysign(1, bias), than=0.05) else "ok"
    called = str(_dtype(model)).removeprefix("torch.")
    detail = f"{called} against float32: {change:.2g} nats a token, {bias:+.2g} on average"
    return Finding(name, verdict, detail, "" if verdict == "ok" else "Load it in float32.")


def _dtype(model: Model) -> torch.dtype:
    return next(model.network.parameters()).dtype


def _is_half(patient: Patient) -> bool:
    return patient.model is not None and _dtype(patient.model) != torch.float32


def _both_precisions(patient: Patient) -> tuple[Float64[Tensor, " wanted"], Float64[Tensor, " wanted"]] | str:
    """Surprisals as the model computes, and in the other precision; a string is why there are none."""
    model, first = patient.model, patient.inside(patient.rows[0]).start
    assert model is not None

    def compute() -> list[list[float]]:
        other = _in_float32(model) if _is_half(patient) else dataclasses.replace(model, autocast=True)
        found = [torch.cat([_wanted(one, [row], first) for row in patient.rows]) for one in (model, other)]
        return [numbers.tolist() for numbers in found]

    found = _apart(compute) if model.device.type == "cpu" else _attempt(compute)
    if isinstance(found, str):
        return found
    return torch.tensor(found[0], dtype=torch.float64), torch.tensor(found[1], dtype=torch.float64)


def _apart(compute: Callable[[], Numbers]) -> Numbers | str:
    """What a process of its own computes, or what became of it: some processors announce what kills who uses it."""
    if sys.platform != "linux":  # a fork of a process with threads is safe nowhere else
        return _attempt(compute)
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)

    def work() -> None:
        torch.set_num_threads(1)  # those of the parent are not here
        there.send(_attempt(compute))

    child = fork.Process(target=work)
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(PATIENCE) else f"it did not end within {PATIENCE} seconds"
    except EOFError:
        child.join()
        code = child.exitcode or 0
        return f"the process died of {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
    finally:
        child.kill()
        child.join()


def _attempt(compute: Callable[[], Numbers]) -> Numbers | str:
    try:
        return compute()
    except (RuntimeError, MemoryError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def _in_float32(model: Model) -> Model:
    loaded = dataclasses.replace(model.loaded, network=copy.deepcopy(model.network).float())
    return dataclasses.replace(model, loaded=loaded)


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
