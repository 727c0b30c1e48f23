"""What jobs on rows have in common.

A job is a small value that travels to workers; a scorer is the job with its models loaded. A row that cannot be scored
is rejected with its line, field and reason, and harms no other row.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from infodis.design import MaskDesign
from infodis.device import resolve_device
from infodis.errors import InfodisError
from infodis.estimate import Request
from infodis.item import Item
from infodis.jobs.documents import Window
from infodis.jobs.inputs import Entry, Reading, Refused, Rejected
from infodis.jobs.outputs import Columns
from infodis.jobs.work import Part
from infodis.models.files import ModelFiles, locate
from infodis.models.loading import load_with
from infodis.models.model import Model
from infodis.models.options import ModelOptions
from infodis.result import Estimate
from infodis.settings import Named, settings_of

DIGITS = 6
"""Decimals of numbers in records: a millionth of a nat is less than what float32 can tell."""

Row = TypeVar("Row", Entry, Window)
Ready = TypeVar("Ready")
Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True)
class ModelSpec(Named):
    """A model by name, and how it is wanted."""

    name: str
    device: str = "auto"
    """As settings and workers are told it: `auto` is resolved when this is made, where the run is started."""
    dtype: str = "float32"
    tokenizer: str | None = None
    trust_remote_code: bool = False
    autocast: bool = False
    compile: bool = False
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", resolve_device(self.device))

    @property
    def options(self) -> ModelOptions:
        return ModelOptions(**{field.name: getattr(self, field.name) for field in dataclasses.fields(ModelOptions)})

    @functools.cached_property
    def files(self) -> ModelFiles:
        """What it is read from, as it was when that was asked first. Goes with this value to workers."""
        return ModelFiles.of(locate(self.name), self.options)

    @property
    def fingerprint(self) -> str:
        """A hash of configuration and weights, computed once."""
        return self.files.model.digest

    def load(self) -> Model:
        """The model that `files` are about, or an `InputError`."""
        files = self.files
        model = load_with(self.name, self.options)
        if model.files is not None:
            files.check_same(model.files)
        return model

    def settings(self, name: str = "model") -> dict[str, Any]:
        """What a result depends on. Where the model lies does not count, its files do."""
        how = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "name"}
        prefix = "" if name == "model" else f"{name}_"
        told = {prefix + key: value for key, value in {**how, "tokenizer": self.files.tokenizer.digest}.items()}
        return {name: self.fingerprint, **told}


@dataclasses.dataclass(frozen=True)
class RowJob(abc.ABC):
    """What jobs on rows of a file have in common."""

    model: ModelSpec
    request: Request = Request()
    reading: Reading = Reading()
    seed: int = 0

    def __post_init__(self) -> None:
        self.request.check_budget()

    def settings(self) -> dict[str, Any]:
        return settings_of(self)


@dataclasses.dataclass(frozen=True, eq=False)
class RowScorer(abc.ABC, Generic[Row, Ready, Found]):
    """Rows are read, measured together, and told as records; what fails is rejected alone."""

    def score(self, rows: Sequence[Row | Rejected]) -> Part:
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
        records = []
        totals = {"evaluations": 0.0, "standard_error": 0.0}
        for (row, ready), found in zip(good, self._measured([ready for _, ready in good]), strict=True):
            if isinstance(found, str):
                rejected.append(row.rejected(None, found))
                continue
            records.append(self.record(row, ready, found))
            totals["evaluations"] += records[-1]["evaluations"]
            totals["standard_error"] += records[-1]["standard_error"] or 0.0
        rejected.sort(key=lambda one: one.line)
        return Part(records, [one.record() for one in rejected], totals)

    def _measured(self, ready: Sequence[Ready]) -> "list[Found | str]":
        """All together; if that fails, one by one, to find those it fails for. A string is why it failed."""
        try:
            return list(self.measure(ready)) if ready else []
        except InfodisError as error:
            if len(ready) == 1:
                return [str(error)]
            return [found for one in ready for found in self._measured([one])]

    @abc.abstractmethod
    def read(self, row: Row) -> Ready:
        """A row as the model sees it; raises `Refused`."""

    @abc.abstractmethod
    def measure(self, ready: Sequence[Ready]) -> "Sequence[Found | str]":
        """The numbers of some rows."""

    @abc.abstractmethod
    def record(self, row: Row, ready: Ready, found: Found) -> dict[str, Any]:
        """What is written about a row."""


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
    "truncated": "whole",
    "design": "text",
    "stopped": "text",
    "seed": "whole",
    "model": "text",
}


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
