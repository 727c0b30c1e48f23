"""What the records of a run come to, added up one by one."""

import math
from typing import Any, Protocol, runtime_checkable

from infodis.result import RateSum


@runtime_checkable
class Summary(Protocol):
    """Takes records in their order; `result` is a JSON object of plain numbers."""

    def add(self, record: dict[str, Any]) -> None: ...
    def result(self) -> dict[str, Any]: ...


BIT = 1 / math.log(2)


class ScoreSummary:
    """Likelihoods per row, per token and per byte."""

    def __init__(self) -> None:
        self.per_row, self.per_token, self.per_byte = RateSum(), RateSum(), RateSum()
        self.evaluations = self.impossible = self.short = self.rows = 0

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
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
            "rows": self.rows,
            "nats_per_row": self.per_row.result(),
            "bits_per_token": self.per_token.result(BIT),
            "bits_per_byte": self.per_byte.result(BIT),
            "evaluations": self.evaluations,
            "impossible": self.impossible,
            "cap_reached": self.short,
        }


class RatioSummary:
    """The mean ratio, and how often it is positive."""

    def __init__(self) -> None:
        self.mean = RateSum()
        self.evaluations = self.impossible = self.positive = self.sure = self.rows = 0

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
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
        }


class ChoiceSummary:
    """Decisions, and how many of them are right where the answer is known."""

    def __init__(self) -> None:
        self.rows = self.choices = self.evaluations = self.decided = self.answered = self.right = self.right_decided = 0

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
        self.choices += len(record["ranking"])
        self.evaluations += record["evaluations"]
        self.decided += record["decided"]
        if record.get("answer") is not None:
            right = record["choice"] == record["answer"]
            self.answered += 1
            self.right += right
            self.right_decided += right and record["decided"]

    def result(self) -> dict[str, Any]:
        accuracy = self.right / self.answered if self.answered else None
        error = None
        if accuracy is not None and self.answered > 1:
            error = math.sqrt(accuracy * (1 - accuracy) / (self.answered - 1))
        return {
            "rows": self.rows,
            "decided": self.decided,
            "accuracy": accuracy,
            "accuracy_standard_error": error,
            "answered": self.answered,
            "evaluations": self.evaluations,
            "evaluations_per_choice": self.evaluations / self.choices if self.choices else None,
        }


class PerplexitySummary:
    """A corpus: windows of a document follow each other, and documents are the units it is made of.

    A single document has its windows for units.
    """

    def __init__(self) -> None:
        self.documents = [RateSum(), RateSum()]
        self.windows = [RateSum(), RateSum()]
        self.evaluations = self.impossible = self.tokens = self.rows = self.count = 0
        self._id: Any = None
        self._document = [0.0, 0.0, 0.0, 0.0]

    def add(self, record: dict[str, Any]) -> None:
        self.rows += 1
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
            "perplexity": None if bits is None or self.impossible else 2 ** (bits["value"] or 0.0),
            "units": "documents" if self.count > 1 else "windows",
            "evaluations": self.evaluations,
            "impossible": self.impossible,
        }


def _add_unit(rates: list[RateSum], nats: float, tokens: float, size: float, variance: float) -> None:
    rates[0].add(nats, tokens, variance)
    if size:
        rates[1].add(nats, size, variance)
