"""Requests of lm-evaluation-harness as items to score, grouped by the document that they belong to.

Requests about one document are compared with each other. So they share random numbers: errors that all choices have in
common cancel.
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
from infodis.jobs.inputs.reading import FieldValue
from infodis.models.model import Model
from infodis.quantities.perplexity import Windows, window_item
from infodis.result import Estimate, Measured, sum_errors
from infodis.rng import key

WINDOW_TOKENS = 1024
"""Of a window of long text, for models that do not say how long their rows are."""


@dataclasses.dataclass(frozen=True)
class RequestId:
    """Where a request comes from, in the harness's words, so that its samples can be joined."""

    task: str | None
    doc_id: int | None
    idx: int
    """The number among the requests about the document."""

    def __str__(self) -> str:
        return f"{self.task or 'no task'}, document {self.doc_id}, request {self.idx}"


@dataclasses.dataclass(frozen=True)
class Response:
    """The negative log-likelihood of a request with its error, and what it took."""

    nll: Measured
    evaluations: int
    tokens: int
    stopped: str = "exact"

    def __post_init__(self) -> None:
        if math.isnan(self.nll.value) or math.isnan(self.nll.standard_error):
            raise PredictorError("A likelihood is NaN. It is not passed on: the harness would count it as right.")

    @staticmethod
    def of(estimate: Estimate) -> "Response":
        nll = Measured(estimate.value, estimate.standard_error)
        return Response(nll, estimate.evaluations, estimate.target.numel(), estimate.stopped)

    @staticmethod
    def sum(windows: "Sequence[Response]") -> "Response":
        """Of a long text, from its windows."""
        nll = Measured(
            math.fsum(one.nll.value for one in windows), sum_errors([one.nll.standard_error for one in windows])
        )
        evaluations, tokens = (sum(getattr(one, name) for one in windows) for name in ("evaluations", "tokens"))
        return Response(nll, evaluations, tokens, f"{len(windows)} windows")

    def record(self) -> dict[str, Any]:
        """Plain values. JSON has no infinity: an impossible text has the nll None."""
        fields = dataclasses.asdict(self)
        nll = fields.pop("nll")
        return {
            "nll": None if math.isinf(nll["value"]) else nll["value"],
            "standard_error": nll["standard_error"],
        } | fields

    @staticmethod
    def read(record: dict[str, Any] | None) -> "Response | None":
        """The inverse; None if the record is none of a response."""
        try:
            fields = dict(record or {})
            nll = fields.pop("nll")
            return Response(Measured(math.inf if nll is None else nll, fields.pop("standard_error")), **fields)
        except (TypeError, KeyError, PredictorError):
            return None


DECIDED = "race decided"
"""Why a choice is no longer evaluated: the race has a winner at its level."""

EMPTY = Response(Measured(0.0, 0.0), 0, 0)
"""An empty text is certain."""


@dataclasses.dataclass(frozen=True, eq=False)
class LoglikelihoodRequest:
    """A continuation to score after a context."""

    id: RequestId
    context: str
    continuation: str
    item: Item | None
    """As the model reads it; None if the continuation is empty."""
    truncated: int = 0
    """Tokens of the context that were cut off."""

    @property
    def identity(self) -> RequestId | tuple[str, str]:
        """What its response is found by."""
        return (self.context, self.continuation) if self.id.doc_id is None else self.id

    @property
    def content(self) -> int:
        return 0 if self.item is None else self.item.key


@dataclasses.dataclass(frozen=True, eq=False)
class RequestGroup:
    """The requests about one document."""

    requests: tuple[LoglikelihoodRequest, ...]

    @staticmethod
    def by_document(requests: Iterable[LoglikelihoodRequest]) -> "list[RequestGroup]":
        """One group for every document; requests without a document are grouped by their context."""
        groups: dict[tuple[Any, ...], dict[Any, LoglikelihoodRequest]] = {}
        for one in requests:
            group = ("context", one.context) if one.id.doc_id is None else (one.id.task, one.id.doc_id)
            groups.setdefault(group, {})[one.identity] = one
        return [RequestGroup(tuple(members.values())) for members in groups.values()]

    @property
    def name(self) -> int:
        """Of its random streams: by content, so that it does not depend on other requests or on their order."""
        return key("question", *sorted({one.content for one in self.requests}))

    @property
    def items(self) -> list[Item]:
        return [one.item for one in self.requests if one.item is not None]

    @property
    def longest(self) -> int:
        return max((item.length for item in self.items), default=0)

    @property
    def is_choice(self) -> bool:
        """Whether one of the requests is to be chosen: several texts after one context, or one after several."""
        contexts, texts = ({getattr(one, name) for one in self.requests} for name in ("context", "continuation"))
        several = len(self.requests) > 1 and len(self.items) == len(self.requests)
        return several and 1 in (len(contexts), len(texts))

    def sizes(self, metric: str) -> list[float]:
        """What the harness divides log-likelihoods by: 1, characters or bytes of a choice without its delimiter."""
        texts = [one.continuation.lstrip() for one in self.requests]
        if metric == "acc_norm":
            return [float(len(text) or 1) for text in texts]
        if metric == "acc_bytes":
            return [float(_byte_count(text) or 1) for text in texts]
        return [1.0] * len(texts)


@dataclasses.dataclass(frozen=True, eq=False)
class RollingRequest:
    """A long text to score, window by window."""

    id: RequestId
    text: str
    windows: tuple[Item, ...]

    @property
    def bytes(self) -> int:
        return _byte_count(self.text)

    def name(self, window: int) -> int:
        """By content and number: equal windows of a text must not share masks, or their errors would add up."""
        return key("window", self.text, window)


def _byte_count(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@dataclasses.dataclass(frozen=True, eq=False)
class RequestReader:
    """Texts to items, by the tokenizer of a model. Contexts that are too long lose their beginning."""

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

    def pair(self, id: RequestId, context: str, continuation: str) -> LoglikelihoodRequest:
        """A continuation after a context. A token that reaches from one into the other belongs to the continuation."""
        if not continuation:
            return LoglikelihoodRequest(id, context, continuation, None)
        most = None if self.longest is None else self.longest - self.add_bos_token
        reading = Reading(max_length=most, truncate="left")
        shown = self.without_special(context)
        try:
            found = reading.after(self.model, FieldValue("context", shown), FieldValue("continuation", continuation))
        except InputError as error:
            raise InputError(f"{id}: {error}") from None
        if found.bytes is None:
            raise InputError(
                f"{id}: the continuation alone is longer than the {self.longest} tokens of a row. Raise max_length "
                "if the model takes more, or leave the task out."
            )
        item = self._with_begin_token(found.item) if self.add_bos_token else found.item
        return LoglikelihoodRequest(id, context, continuation, item, found.truncated)

    def _with_begin_token(self, item: Item) -> Item:
        """With the begin token before the first token, unless it is there."""
        begin = torch.tensor([self.model.loaded.begin_token])
        if torch.equal(item.tokens[:1], begin):
            return item
        context = torch.cat([torch.tensor([0]), item.context + 1])
        return Item(torch.cat([begin, item.tokens]), item.target + 1, context)

    def without_special(self, context: str) -> str:
        """Without the special tokens that the tokenizer adds: a chat template writes them out."""
        before, _ = self.model.tokenizer.around()
        return context.removeprefix(self.model.tokenizer.decode(before)) if before else context

    def windows(self, id: RequestId, text: str) -> RollingRequest:
        """A long text in windows."""
        try:
            tokens = self.model.encode(text)
        except InputError as error:
            raise InputError(f"{id}: {error}") from None
        before, behind = self.around
        room = (self.longest or WINDOW_TOKENS) - len(before) - len(behind)
        if self.stride is not None and self.stride > room:
            raise InputError(f"stride must be at most the {room} tokens of a window, got {self.stride}.")
        spans = Windows(room, self.stride).spans(len(tokens))
        places = [spans[number] for number in range(len(spans) if len(tokens) else 0)]
        items = (window_item(tokens[span.start : span.stop], context, (before, behind)) for span, context in places)
        return RollingRequest(id, text, tuple(items))
