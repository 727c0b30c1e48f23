"""Requests of a harness as things to score: read by the model's tokenizer, and grouped by the document they belong to.

What is asked about one document is compared with each other, so it draws from the same random numbers: errors that all
choices share cancel.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from infodis.errors import InputError, PredictorError
from infodis.item import Item
from infodis.jobs.inputs import Reading
from infodis.jobs.inputs.reading import Part
from infodis.models.model import Model
from infodis.quantities.perplexity import Windows, window_item
from infodis.result import Estimate
from infodis.rng import key

WINDOW_TOKENS = 1024
"""Of a window of long text, for models that do not say how long their rows are."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a request comes from."""

    task: str | None
    document: int | None
    number: int
    """Among the requests about the document."""

    def __str__(self) -> str:
        return f"{self.task or 'no task'}, document {self.document}, request {self.number}"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of a request: a likelihood with its error."""

    nll: float
    standard_error: float
    evaluations: int
    tokens: int
    stopped: str = "exact"

    def __post_init__(self) -> None:
        if math.isnan(self.nll) or math.isnan(self.standard_error):
            raise PredictorError(
                "A likelihood came out as NaN. It is not handed on: a harness would count it as right."
            )

    @staticmethod
    def of(estimate: Estimate) -> "Answer":
        return Answer(
            estimate.value,
            estimate.standard_error,
            estimate.evaluations,
            estimate.target.numel(),
            estimate.stopped,
        )

    def record(self) -> dict[str, Any]:
        """Plain values. JSON knows no infinity: what is impossible has no nll."""
        return dataclasses.asdict(self) | ({"nll": None} if math.isinf(self.nll) else {})

    @staticmethod
    def read(record: dict[str, Any] | None) -> "Answer | None":
        """The inverse; None if it is none."""
        try:
            return None if record is None else Answer(**record | ({"nll": math.inf} if record["nll"] is None else {}))
        except (TypeError, KeyError, PredictorError):
            return None


DECIDED = "race decided"
"""Why a choice was not looked at any longer: one of them won, for all that can be known at the race's level."""

NOTHING = Answer(0.0, 0.0, 0, 0)
"""An empty text is certain."""


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """A continuation to score after a context."""

    place: Place
    context: str
    continuation: str
    item: Item | None
    """As the model reads it; None if the continuation is empty."""
    truncated: int = 0
    """Tokens of the context that were cut off."""

    @property
    def identity(self) -> Place | tuple[str, str]:
        """What its answer is found by."""
        return (self.context, self.continuation) if self.place.document is None else self.place

    @property
    def content(self) -> int:
        return 0 if self.item is None else self.item.key


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """What is asked about one document."""

    asked: tuple[Asked, ...]

    @property
    def name(self) -> int:
        """Of its random numbers: by content, so that it does not matter what else is asked, or where."""
        return key("question", *sorted({one.content for one in self.asked}))

    @property
    def longest(self) -> int:
        return max(0 if one.item is None else one.item.length for one in self.asked)

    @property
    def is_choice(self) -> bool:
        """Whether one of the requests is to be chosen: several texts after one context, or one after several."""
        contexts, texts = ({getattr(one, name) for one in self.asked} for name in ("context", "continuation"))
        return len(self.asked) > 1 and 1 in (len(contexts), len(texts)) and all(one.item for one in self.asked)

    def sizes(self, metric: str) -> list[float]:
        """What the harness divides log-likelihoods by: 1, characters or bytes of a choice without its delimiter."""
        texts = [one.continuation.lstrip() for one in self.asked]
        if metric == "acc_norm":
            return [float(len(text) or 1) for text in texts]
        if metric == "acc_bytes":
            return [float(len(text.encode("utf-8", "surrogatepass")) or 1) for text in texts]
        return [1.0] * len(texts)


def grouped(asked: Iterable[Asked]) -> list[Question]:
    """By document; what belongs to none, by context."""
    groups: dict[tuple[Any, ...], dict[Any, Asked]] = {}
    for one in asked:
        place = one.place
        group = ("context", one.context) if place.document is None else (place.task, place.document)
        groups.setdefault(group, {})[one.identity] = one
    return [Question(tuple(members.values())) for members in groups.values()]


@dataclasses.dataclass(frozen=True, eq=False)
class Reader:
    """Texts to what a model scores. Contexts that are too long lose their beginning."""

    model: Model
    max_length: int | None = None
    stride: int | None = None
    add_bos_token: bool = False

    def __post_init__(self) -> None:
        if self.add_bos_token and self.model.loaded.begin_token is None:
            raise InputError(f"{self.model.name} has no begin token to put before a context. Leave add_bos_token out.")

    @property
    def longest(self) -> int | None:
        """Tokens of a row; None if there is no limit."""
        return Reading(max_length=self.max_length).longest(self.model)

    @functools.cached_property
    def around(self) -> tuple[list[int], list[int]]:
        return self.model.around()

    def pair(self, place: Place, context: str, continuation: str) -> Asked:
        """A continuation after a context. A token that reaches from one into the other belongs to the continuation."""
        if not continuation:
            return Asked(place, context, continuation, None)
        most = None if self.longest is None else self.longest - self.add_bos_token
        reading = Reading(max_length=most, truncate="left")
        shown = self.unmarked(context)
        try:
            found = reading.after(self.model, Part("context", shown), Part("continuation", continuation))
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        if found.bytes is None:
            raise InputError(
                f"{place}: the continuation alone is longer than the {self.longest} tokens of a row. Raise max_length "
                "if the model takes more, or leave the task out."
            )
        item = self._begun(found.item) if self.add_bos_token else found.item
        return Asked(place, context, continuation, item, found.truncated)

    def _begun(self, item: Item) -> Item:
        """With the begin token before the first token, unless it is there."""
        begin = torch.tensor([self.model.loaded.begin_token])
        if torch.equal(item.tokens[:1], begin):
            return item
        context = torch.cat([torch.tensor([0]), item.context + 1])
        return Item(torch.cat([begin, item.tokens]), item.target + 1, context)

    def unmarked(self, context: str) -> str:
        """Without the special tokens that reading puts there: a chat template writes them out."""
        before, _ = self.around
        return context.removeprefix(self.model.tokenizer.decode(before)) if before else context

    def windows(self, place: Place, text: str) -> "Document":
        """A long text in windows."""
        try:
            tokens = self.model.encode(text)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        before, behind = self.around
        room = (self.longest or WINDOW_TOKENS) - len(before) - len(behind)
        if self.stride is not None and self.stride > room:
            raise InputError(f"stride must be at most the {room} tokens of a window, got {self.stride}.")
        spans = Windows(room, self.stride).spans(len(tokens))
        places = [spans[number] for number in range(len(spans) if len(tokens) else 0)]
        items = tuple(
            window_item(tokens[span.start : span.stop], context, (before, behind)) for span, context in places
        )
        return Document(place, text, items)


@dataclasses.dataclass(frozen=True, eq=False)
class Document:
    """A text in windows, each a thing to score."""

    place: Place
    text: str
    items: tuple[Item, ...]

    @property
    def bytes(self) -> int:
        return len(self.text.encode("utf-8", "surrogatepass"))

    def name(self, window: int) -> int:
        """By content and number: equal windows of a text must not share masks, or their errors would add up."""
        return key("window", self.text, window)

    def sum(self, answers: Sequence[Answer]) -> Answer:
        return Answer(
            math.fsum(one.nll for one in answers),
            math.sqrt(math.fsum(one.standard_error**2 for one in answers)),
            sum(one.evaluations for one in answers),
            sum(one.tokens for one in answers),
            f"{len(answers)} windows",
        )
