"""Responses to requests of the harness, many at a time, and a cache so that nothing is computed twice."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from infodis.apps.lm_eval.arguments import ModelArgs
from infodis.apps.lm_eval.requests import DECIDED, EMPTY, RequestGroup, Response, RollingRequest
from infodis.errors import InputError, PredictorError
from infodis.estimate import estimate_items
from infodis.evaluate import Batching, run_batched
from infodis.item import Item
from infodis.journal import Journal
from infodis.models.model import Model
from infodis.quantities.choose import Verdict, race_coroutine
from infodis.result import Measured

PASSES = 2**15
"""Forward passes between two visits to the cache, about: what a crash costs."""

LEAD = 1e-9
"""By how much the winner of a race leads at least, relative to its score."""

Records = dict[str, dict[str, Any]]
Progress = Callable[[int], None]


def digest(*path: Any) -> str:
    """The hash of what was asked."""
    return hashlib.blake2b(json.dumps(path, ensure_ascii=True).encode(), digest_size=16).hexdigest()


class ResponseCache:
    """Records by the hash of what was asked; without a directory they are kept for this run only.

    A directory has a file for every combination of model, estimator, seed and dtype. It is a journal, to
    which any number of processes may add. A damaged line is dropped, and its request is scored again.
    """

    def __init__(self, directory: Path | None, settings: dict[str, Any]) -> None:
        self._journal: Journal | None = None
        self._known: Records = {}
        if directory is None:
            return
        if directory.exists() and not directory.is_dir():
            raise InputError(f"The cache must be a directory; {directory} is a file. Choose another place.")
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{digest(settings)}.jsonl"
        self._journal = Journal(path, json.loads(json.dumps(settings, sort_keys=True)))
        if self._journal.read_head() not in (None, self._journal.head):
            raise InputError(f"{path} is not what this program wrote: its first line is another one. Move it away.")
        found = (fields for fields in self._journal.entries() if fields is not None and "key" in fields)
        self._known = {fields.pop("key"): fields for fields in found}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> dict[str, Any] | None:
        """An earlier record."""
        return self._known.get(key)

    def add(self, records: Records) -> None:
        """Keep records: they are on disk when this returns."""
        self._known |= records
        if self._journal is not None and records:
            self._journal.append(*({"key": key, **fields} for key, fields in records.items()))


@dataclasses.dataclass(frozen=True, eq=False)
class NamedItem:
    """An item, and its name in the random streams."""

    item: Item
    name: int

    @property
    def key(self) -> str:
        return digest("nll", self.name, self.item.key)


@dataclasses.dataclass(frozen=True, eq=False)
class RequestScorer:
    """A model, how it is evaluated, and what is known already."""

    model: Model
    args: ModelArgs
    cache: ResponseCache

    def loglikelihoods(self, groups: Sequence[RequestGroup], progress: Progress) -> list[list[Response]]:
        """The responses of every group, in order."""
        order = sorted(range(len(groups)), key=lambda n: -groups[n].longest)  # rows of like length need least padding
        found: dict[int, list[Response]] = {}
        for numbers in chunks(order, self._at_once, size=lambda n: len(groups[n].requests)):
            some = [groups[n] for n in numbers]
            if self.args.raced is not None:
                self._run_races([group for group in some if group.is_choice])
            self._score(
                NamedItem(item, group.name) for group in some if not self._race_result(group) for item in group.items
            )
            found |= {number: self._responses(groups[number]) for number in numbers}
            progress(sum(len(group.requests) for group in some))
        return [found[n] for n in range(len(groups))]

    def rolling(self, requests: Sequence[RollingRequest], progress: Progress) -> list[Response]:
        """The responses of long texts, added up over their windows."""
        items = [[NamedItem(item, one.name(n)) for n, item in enumerate(one.windows)] for one in requests]
        for some in chunks([item for windows in items for item in windows], self._at_once):
            self._score(some)
            progress(len(some))
        return [Response.sum([self._known(item.key) for item in windows]) for windows in items]

    @property
    def _at_once(self) -> int:
        """Requests that are scored between two visits to the cache."""
        return max(16, PASSES // (self.args.evaluations or self.args.request().first_rows(64)))

    def _score(self, items: Iterable[NamedItem]) -> None:
        """What is not known yet; equal items once."""
        missing = {one.key: one for one in items if Response.read(self.cache.get(one.key)) is None}
        if not missing:
            return
        estimates = estimate_items(
            self.model,
            [one.item for one in missing.values()],
            self.args.request(),
            seed=self.args.seed,
            names=[one.name for one in missing.values()],
        )
        self.cache.add({key: Response.of(one).record() for key, one in zip(missing, estimates, strict=True)})

    def _run_races(self, groups: Sequence[RequestGroup]) -> None:
        """Races that are not known yet, side by side. What they leave undecided is estimated like anything else."""
        missing = {self._race_key(one): one for one in groups if self.cache.get(self._race_key(one)) is None}
        races = (
            race_coroutine(
                self.model,
                group.items,
                self._sizes(group),
                self.args.running(),
                seed=self.args.seed,
                name=group.name,
            )
            for group in missing.values()
        )
        verdicts = run_batched(races, Batching(self.args.batch_size))
        found = {}
        for (key, group), verdict in zip(missing.items(), verdicts, strict=True):
            responses = race_responses(verdict, group.items) if verdict.decided else []
            spent = [choice.evaluations for choice in verdict.choices]
            found[key] = {"choices": [one.record() for one in responses], "evaluations": spent}
        self.cache.add(found)

    def _race_result(self, group: RequestGroup) -> list[Response]:
        """What a race found, if there was one and it was decided."""
        records = (self.cache.get(self._race_key(group)) or {}).get("choices", [])
        return [_valid(Response.read(record)) for record in records]

    def _sizes(self, group: RequestGroup) -> list[float]:
        return group.sizes(self.args.raced or "acc")

    def _race_key(self, group: RequestGroup) -> str:
        return digest("race", group.name, [one.content for one in group.requests], self._sizes(group))

    def _responses(self, group: RequestGroup) -> list[Response]:
        if found := self._race_result(group):
            return found
        before = (self.cache.get(self._race_key(group)) or {}).get("evaluations") or [0] * len(group.requests)
        return [
            EMPTY if one.item is None else self._known(NamedItem(one.item, group.name).key, more=spent)
            for one, spent in zip(group.requests, before, strict=True)
        ]

    def _known(self, key: str, more: int = 0) -> Response:
        """A response that took some more forward passes in an undecided race."""
        found = _valid(Response.read(self.cache.get(key)))
        return dataclasses.replace(found, evaluations=found.evaluations + more)


def _valid(response: Response | None) -> Response:
    if response is None:
        raise PredictorError("A likelihood in the cache is no number. Remove the cache and run again.")
    return response


def race_responses(verdict: Verdict, items: Sequence[Item]) -> list[Response]:
    """What the harness gets of a decided race: no loser is likelier than the winner.

    A choice that is out stopped at an earlier replicate than the winner. The race was decided by their difference over
    the replicates that they share, which is surer than the difference of their values.
    """
    best = verdict.choices[verdict.leader]
    behind = best.score + LEAD * max(1.0, abs(best.score))
    found = []
    for choice, item in zip(verdict.choices, items, strict=True):
        tied = (choice.nats, choice.size) == (best.nats, best.size)
        nll = Measured(choice.nats if tied else max(choice.nats, behind * choice.size), choice.standard_error)
        found.append(Response(nll, choice.evaluations, item.target.numel(), DECIDED))
    return found


def chunks(things: Sequence[Any], most: int, size: Callable[[Any], int] = lambda thing: 1) -> Iterator[list[Any]]:
    """Some at a time, in order, until their sizes add up to `most`."""
    chunk: list[Any] = []
    total = 0
    for thing in things:
        chunk.append(thing)
        total += size(thing)
        if total >= most:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
