"""What jobs on rows have in common.

A row that cannot be scored is rejected with its line, field and reason, and harms no other row.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from infodis.design import MaskDesign
from infodis.errors import InfodisError, InputError
from infodis.estimate import Request
from infodis.item import Item
from infodis.jobs.documents import Window
from infodis.jobs.inputs import Entry, Reading, Refused, Rejected, Scored
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import Summary
from infodis.models.model import Model, check_same_tokens
from infodis.models.spec import ModelSpec
from infodis.result import Estimate
from infodis.settings import settings_of

DIGITS = 6
"""Decimals of numbers in records: a millionth of a nat is less than what float32 can tell."""

TYPICAL_TOKENS = 64
"""Of a row whose length is not known yet."""

Row = TypeVar("Row", Entry, Window)
Ready = TypeVar("Ready")
Found = TypeVar("Found")

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Job(abc.ABC, Generic[Row, Ready, Found]):
    """What is done with the rows of a file: each is read, all of a shard are measured together, each is recorded.

    A small value that travels to workers. Each of them loads the models for itself, on first use.
    """

    command: ClassVar[str]
    summary: ClassVar[type[Summary]]
    """What adds up the records."""

    model: ModelSpec

    @property
    @abc.abstractmethod
    def columns(self) -> Columns:
        """The fields of its records."""

    @abc.abstractmethod
    def read(self, row: Row) -> Ready:
        """A row as the model sees it; raises `Refused`."""

    @abc.abstractmethod
    def measure(self, ready: Sequence[Ready]) -> "Sequence[Found | str]":
        """The numbers of some rows; for one that has none, why."""

    @abc.abstractmethod
    def record(self, row: Row, ready: Ready, found: Found) -> Record:
        """What is written about a row."""

    def settings(self) -> dict[str, Any]:
        """Everything that the results depend on, by name."""
        return {"command": self.command, **settings_of(self)}

    @functools.cached_property
    def loaded_model(self) -> Model:
        return self.model.load()

    @functools.cached_property
    def loaded_reference(self) -> Model | None:
        """A second model, for jobs that compare with one."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Without the loaded models."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("loaded")}

    @property
    def model_fields(self) -> Record:
        """What a record says about the model: the hash of its files, and what they do not say."""
        return {"model": self.model.fingerprint, **self.loaded_model.wiring}

    def load(self) -> None:
        """Load the models, unless they are: what fails here is no fault of a row."""
        self.loaded_model, self.loaded_reference  # noqa: B018

    @property
    def is_loaded(self) -> bool:
        return "loaded_model" in self.__dict__

    @property
    @abc.abstractmethod
    def passes_per_row(self) -> float:
        """Forward passes of a row, about: progress goes by them until the first rows are done."""

    def score(self, rows: Sequence[Row | Rejected]) -> tuple[list[Record], list[Record]]:
        """The records of some rows, and what is wrong with the others, by line."""
        self.load()
        good: list[tuple[Row, Ready]] = []
        rejected: list[Rejected] = []
        for row in rows:
            if isinstance(row, Rejected):
                rejected.append(row)
                continue
            try:
                good.append((row, self.read(row)))
            except Refused as error:
                rejected.append(row.rejected(error.field, str(error)))
        records, taken = [], self.columns
        for (row, ready), found in zip(good, self._measured([ready for _, ready in good]), strict=True):
            if isinstance(found, str):
                rejected.append(row.rejected(None, found))
            else:
                records.append(self.record(row, ready, found) | row.kept(taken))
        return records, [one.record() for one in sorted(rejected, key=lambda one: one.line)]

    def _measured(self, ready: Sequence[Ready]) -> "list[Found | str]":
        """All together; if that fails, one by one, to find those it fails for. A string is why it failed."""
        try:
            return list(self.measure(ready)) if ready else []
        except InfodisError as error:
            if len(ready) == 1:
                return [str(error)]
            return [found for one in ready for found in self._measured([one])]


@dataclasses.dataclass(frozen=True)
class RowJob(Job[Entry, Ready, Found]):
    """What jobs that estimate rows have in common."""

    request: Request = Request()
    reading: Reading = Reading()
    seed: int = 0

    def __post_init__(self) -> None:
        self.request.check_budget()

    @property
    def passes_per_row(self) -> float:
        return float(self.request.first_rows(TYPICAL_TOKENS))


@dataclasses.dataclass(frozen=True)
class ReferenceJob(RowJob[Ready, Found]):
    """The same under a second model too, if one is given."""

    reference: ModelSpec | None = None

    @property
    def passes_per_row(self) -> float:
        """Of two texts, or of one with and without its prompt."""
        return super().passes_per_row * (2 if self.reference is None else 4)

    @functools.cached_property
    def loaded_reference(self) -> Model | None:
        if self.reference is None:
            return None
        other = self.reference.load()
        check_same_tokens(self.loaded_model, other)
        return other


MODEL_COLUMNS: Columns = {
    "model": "text",
    "block_size": "whole",
    "block_origin": "text",
    "mask_token": "whole",
    "causal": "flag",
    "surrogate": "text",
}

ESTIMATE_COLUMNS: Columns = {
    "id": "text",
    "quantity": "text",
    "value": "number",
    "standard_error": "number",
    "degrees_of_freedom": "whole",
    "impossible": "flag",
    "evaluations": "whole",
    "tokens": "whole",
    "bits_per_token": "number",
    "bits_per_byte": "number",
    "unknown": "whole",
    "truncated": "whole",
    "design": "text",
    "stopped": "text",
    "seed": "whole",
    **MODEL_COLUMNS,
}


def unknown_fields(model: Model, *items: Item) -> dict[str, int]:
    """The part of a record that tells of tokens that the tokenizer does not know, where there are any."""
    unknown = sum(model.unknown_in(item) for item in items)
    return {"unknown": unknown} if unknown else {}


NORMALISATIONS = ("none", "token", "byte")
"""What nats of a text may be divided by, to compare it with others."""


def check_normalisation(name: str) -> None:
    """Raise `InputError` for a name that is none of them."""
    if name not in NORMALISATIONS:
        raise InputError(f"normalise is none, token or byte, got {name!r}.")


def sizes_for(normalise: str, field: str, rows: Sequence[Scored]) -> list[float]:
    """What the nats of some texts are divided by. Raises `Refused` where that is not known."""
    if normalise == "byte":
        if any(one.bytes is None for one in rows):
            raise Refused(field, "Bytes are not known of tokens, or of texts that were cut: normalise by token.")
        return [float(one.bytes or 1) for one in rows]
    return [float(one.item.target.numel()) if normalise == "token" else 1.0 for one in rows]


TOKEN_COLUMNS: Columns = {"prompt": "text", "pieces": "texts", "per_token": "numbers", "per_token_error": "numbers"}


def token_fields(row: Entry, model: Model, item: Item, credits: Tensor, errors: Tensor) -> dict[str, Any]:
    """The part of a record that tells about single tokens: how they look, what each costs, and how sure that is."""
    tokenizer, (prompt, _) = model.loaded.tokenizer, row.texts()
    return {
        **({"prompt": prompt} if prompt else {}),
        **({} if tokenizer is None else {"pieces": tokenizer.pieces(item.tokens[item.target].tolist())}),
        "per_token": numbers(credits),
        "per_token_error": numbers(errors),
    }


def estimate_fields(found: Estimate, size: float | None) -> dict[str, Any]:
    """The part of a record that tells about an estimate. An impossible text has no value: JSON knows no infinity."""
    value = None if found.impossible else rounded(found.value)
    tokens = found.target.numel()
    bits = None if value is None else value / math.log(2)
    return {
        "quantity": found.quantity,
        "value": value,
        "standard_error": rounded(found.standard_error),
        "degrees_of_freedom": found.degrees_of_freedom,
        **({"impossible": True} if found.impossible else {}),
        "evaluations": found.evaluations,
        "tokens": tokens,
        "bits_per_token": None if bits is None else rounded(bits / tokens),
        **({} if not size else {"bits_per_byte": None if bits is None else rounded(bits / size)}),
        "design": _named(found.design),
        "stopped": found.stopped,
    }


@functools.lru_cache(maxsize=64)
def _named(design: MaskDesign | str) -> str:
    return str(design)


def rounded(value: float) -> float:
    """As records hold it."""
    return round(value, DIGITS)


def numbers(values: Tensor) -> list[float | None]:
    """The same of many; infinite ones are null."""
    return [None if math.isinf(value) else rounded(value) for value in values.tolist()]
