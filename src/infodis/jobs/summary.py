"""What the records of a run come to, added up one by one."""

import dataclasses
import math
from typing import Any, Protocol, runtime_checkable

from infodis.catalog import NAMED
from infodis.quantities.accuracy import PAIR_SCORES, AccuracySum
from infodis.quantities.effects import METHODS
from infodis.result import RateSum, exp, spearman


@runtime_checkable
class Summary(Protocol):
    """Takes records in their order; `result` is a JSON object of plain numbers."""

    def add(self, record: dict[str, Any]) -> None: ...
    def result(self) -> dict[str, Any]: ...


BIT = 1 / math.log(2)

NORMAL = 1.96
"""Standard errors from the middle to the ends of a 95 % interval."""


class UnknownCount:
    """Tokens that the tokenizer does not know, and the rows that have some."""

    def __init__(self) -> None:
        self.tokens = self.rows = 0

    def add(self, record: dict[str, Any]) -> None:
        found = record.get("unknown") or 0
        self.tokens += found
        self.rows += found > 0

    def result(self) -> dict[str, int]:
        return {"unknown_tokens": self.tokens, "rows_with_unknown": self.rows} if self.rows else {}


class ScoreSummary:
    """Likelihoods per row, per token and per byte."""

    def __init__(self) -> None:
        self.unknown = UnknownCount()
        self.per_row, self.per_token, self.per_byte = RateSum(), RateSum(), RateSum()
        self.evaluations = self.impossible = self.short = self.rows = 0
        self.quantity = "nll"

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
        self.unknown.add(record)
        self.quantity = record["quantity"]
        self.evaluations += record["evaluations"]
        self.short += record["stopped"] == "cap reached"
        if record["value"] is None:
            self.impossible += 1
            return
        nats, variance = record["value"], record["standard_error"] ** 2
        self.per_row.add(nats, 1.0, variance)
        self.per_token.add(nats, record["tokens"], variance)
        if record.get("bits_per_byte"):
            self.per_byte.add(nats, nats * BIT / record["bits_per_byte"], variance)

    def result(self) -> dict[str, Any]:
        return {
            "quantity": self.quantity,
            "rows": self.rows,
            "nats_per_row": self.per_row.result(),
            "bits_per_token": self.per_token.result(BIT),
            "bits_per_byte": self.per_byte.result(BIT),
            **self._pseudo_perplexity(),
            "evaluations": self.evaluations,
            "impossible": self.impossible,
            "cap_reached": self.short,
            **self.unknown.result(),
        }

    def _pseudo_perplexity(self) -> dict[str, float]:
        """Of all rows together [eq:pppl], where the quantity has one."""
        found = self.per_token.result()
        if self.quantity not in NAMED or not NAMED[self.quantity].pseudo or found is None:
            return {}
        return {"pseudo_perplexity": exp(found["value"] or 0.0)}


class RatioSummary:
    """The mean ratio, and how often it is positive."""

    def __init__(self) -> None:
        self.unknown = UnknownCount()
        self.mean = RateSum()
        self.evaluations = self.impossible = self.positive = self.sure = self.rows = 0

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
        self.unknown.add(record)
        self.evaluations += record["evaluations"]
        if record["value"] is None:
            self.impossible += 1
            return
        value, error = record["value"], record["standard_error"]
        self.mean.add(value, 1.0, error**2)
        self.positive += value > 0
        self.sure += abs(value) > 2 * error

    def result(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "nats_per_row": self.mean.result(),
            "positive": self.positive,
            "beyond_two_standard_errors": self.sure,
            "evaluations": self.evaluations,
            "impossible": self.impossible,
            **self.unknown.result(),
        }


class ChoiceSummary:
    """Decisions, and how many of them are right where the answer is known; best guesses of the others apart."""

    def __init__(self) -> None:
        self.unknown = UnknownCount()
        self.rows = self.choices = self.evaluations = self.decided = 0
        self.answered, self.right = {True: 0, False: 0}, {True: 0, False: 0}
        """Rows with a known answer, and those of them that are right, by whether they are decided."""

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
        self.unknown.add(record)
        self.choices += len(record["ranking"])
        self.evaluations += record["evaluations"]
        self.decided += record["decided"]
        if record.get("answer") is not None:
            self.answered[record["decided"]] += 1
            self.right[record["decided"]] += record["choice"] == record["answer"]

    def result(self) -> dict[str, Any]:
        decided, guessed = (_share(self.right[kind], self.answered[kind]) for kind in (True, False))
        every = _share(sum(self.right.values()), sum(self.answered.values()))
        return {
            "rows": self.rows,
            "decided": self.decided,
            "undecided": self.rows - self.decided,
            "accuracy": decided[0],
            "accuracy_standard_error": decided[1],
            "answered": sum(self.answered.values()),
            "answered_and_decided": self.answered[True],
            "undecided_best_guess_accuracy": guessed[0],
            "undecided_best_guess_accuracy_standard_error": guessed[1],
            "best_guess_accuracy": every[0],
            "best_guess_accuracy_standard_error": every[1],
            "evaluations": self.evaluations,
            "evaluations_per_choice": self.evaluations / self.choices if self.choices else None,
            **self.unknown.result(),
        }


def _share(right: int, answered: int) -> tuple[float | None, float | None]:
    """A share and its standard error, as far as there are rows for them."""
    if not answered:
        return None, None
    share = right / answered
    return share, math.sqrt(share * (1 - share) / (answered - 1)) if answered > 1 else None


class VariantSummary:
    """How well the scores of mutants rank what was measured, and how many forward passes were shared."""

    def __init__(self) -> None:
        self.unknown = UnknownCount()
        self.rows = self.evaluations = 0
        self.passes = 0.0
        self.scores: dict[str, list[float]] = {name: [] for name in METHODS}
        self.measured: dict[str, list[float]] = {name: [] for name in METHODS}
        """Of mutants that have both."""

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
        self.unknown.add(record)
        self.evaluations += record["evaluations"]
        self.passes += record["forward_passes"]
        for name in METHODS:
            if record.get(name) is not None and record.get("measured") is not None:
                self.scores[name].append(record[name])
                self.measured[name].append(record["measured"])

    def result(self) -> dict[str, Any]:
        passes = round(self.passes)
        return {
            "rows": self.rows,
            "evaluations": self.evaluations,
            "forward_passes": passes,
            "forward_passes_saved": self.evaluations - passes,
            "spearman": {name: self._spearman(name) for name in METHODS if self.scores[name]},
            **self.unknown.result(),
        }

    def _spearman(self, name: str) -> dict[str, float | int | None]:
        found = spearman(self.scores[name], self.measured[name])
        numbers = {"value": found.value, "low": found.low, "high": found.high}
        return {"rows": len(self.scores[name]), **{key: None if math.isnan(x) else x for key, x in numbers.items()}}


class PairSummary:
    """Accuracies on minimal pairs by every score, of all pairs and of every phenomenon."""

    def __init__(self) -> None:
        self.unknown = UnknownCount()
        self.rows = self.evaluations = 0
        self.every: dict[str, AccuracySum] = {}
        self.groups: dict[str, dict[str, AccuracySum]] = {}
        """By phenomenon and score."""

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
        self.unknown.add(record)
        self.evaluations += record["evaluations"]
        sums = [self.every]
        if record.get("phenomenon") is not None:
            sums.append(self.groups.setdefault(record["phenomenon"], {}))
        for name in PAIR_SCORES:
            if record.get(f"{name}_right") is not None:
                for total in sums:
                    _add_pair(total.setdefault(name, AccuracySum()), name, record)

    def result(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "evaluations": self.evaluations,
            "accuracy": _accuracies(self.every),
            "by_phenomenon": {group: _accuracies(sums) for group, sums in self.groups.items()},
            **self.unknown.result(),
        }


def _add_pair(total: AccuracySum, name: str, record: dict[str, Any]) -> None:
    """Only a race is ever in doubt."""
    raced, right = name == "nll", record[f"{name}_right"]
    tied = not right and record[f"{name}_margin"] == 0 and not (raced and record["standard_error"])
    p_value, decided = (record["p_value"], record["decided"]) if raced else (0.0, True)
    total.add(right, p_value=p_value, decided=decided, tied=tied)


def _accuracies(sums: dict[str, AccuracySum]) -> dict[str, dict[str, float | None]]:
    return {name: dataclasses.asdict(total.result()) for name, total in sums.items()}


class PerplexitySummary:
    """A corpus: windows of a document follow each other, and documents are the units it is made of.

    A single document has its windows for units.
    """

    def __init__(self) -> None:
        self.unknown = UnknownCount()
        self.documents = [RateSum(), RateSum()]
        self.windows = [RateSum(), RateSum()]
        self.evaluations = self.impossible = self.tokens = self.rows = self.count = 0
        self._id: Any = None
        self._document = [0.0, 0.0, 0.0, 0.0]

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
        self.unknown.add(record)
        self.evaluations += record["evaluations"]
        self.tokens += record["tokens"]
        if self.rows == 1 or record["id"] != self._id:
            self._close()
            self._id = record["id"]
            self.count += 1
        if record["value"] is None:
            self.impossible += 1
            return
        parts = (record["value"], record["tokens"], record["bytes"] or 0.0, record["standard_error"] ** 2)
        self._document = [sum(pair) for pair in zip(self._document, parts, strict=True)]
        _add_unit(self.windows, *parts)

    def _close(self) -> None:
        if self._document[1]:
            _add_unit(self.documents, *self._document)
        self._document = [0.0, 0.0, 0.0, 0.0]

    def result(self) -> dict[str, Any]:
        self._close()
        per_token, per_byte = self.documents if self.count > 1 else self.windows
        bits = per_token.result(BIT)
        return {
            "documents": self.count,
            "windows": self.rows,
            "tokens": self.tokens,
            "bits_per_token": bits,
            "bits_per_byte": per_byte.result(BIT),
            **_perplexity(None if self.impossible else bits),
            "units": "documents" if self.count > 1 else "windows",
            "evaluations": self.evaluations,
            "impossible": self.impossible,
            **self.unknown.result(),
        }


def _perplexity(bits: dict[str, float | None] | None) -> dict[str, float | list[float] | None]:
    """2 to the bits per token. Errors by the delta method; the interval is that of the bits, its ends transformed."""
    names = ("perplexity", "perplexity_monte_carlo_error", "perplexity_sampling_error", "perplexity_interval")
    if bits is None or bits["value"] is None:
        return dict.fromkeys(names)
    value, masks, sampling = 2 ** bits["value"], bits["monte_carlo_error"] or 0.0, bits["sampling_error"]
    error = masks if sampling is None else sampling
    ends = [2 ** (bits["value"] + sign * NORMAL * error) for sign in (-1, 1)]
    errors = [None if one is None else value * math.log(2) * one for one in (masks, sampling)]
    return dict(zip(names, (value, *errors, ends), strict=True))


def _add_unit(rates: list[RateSum], nats: float, tokens: float, size: float, variance: float) -> None:
    rates[0].add(nats, tokens, variance)
    if size:
        rates[1].add(nats, size, variance)
