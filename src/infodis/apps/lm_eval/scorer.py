"""Answers to the questions of a harness, many at a time: what is known already, is not asked again."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from infodis.apps.lm_eval.cache import Cache, digest
from infodis.apps.lm_eval.greedy import greedy
from infodis.apps.lm_eval.questions import DECIDED, NOTHING, Answer, Document, Question
from infodis.apps.lm_eval.settings import Settings
from infodis.batching import Batching, converse
from infodis.errors import PredictorError
from infodis.estimate import estimate_items
from infodis.item import Item
from infodis.models.model import Model
from infodis.quantities.choose import Verdict, choosing

ROWS = 2**15
"""Forward rows between two visits to the cache, about: what a crash costs."""

AHEAD = 1e-9
"""By how much the winner of a race leads at least, relatively."""

Progress = Callable[[int], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """One thing to score, under its name in the random streams."""

    item: Item
    name: int

    @property
    def key(self) -> str:
        return digest("nll", self.name, self.item.key)


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
    """A model, how it is asked, and what it answered before."""

    model: Model
    settings: Settings
    cache: Cache

    def questions(self, questions: Sequence[Question], progress: Progress) -> list[list[Answer]]:
        """The likelihoods of everything that is asked, question by question."""
        order = sorted(range(len(questions)), key=lambda n: -questions[n].longest)  # neighbours pad each other least
        found: dict[int, list[Answer]] = {}
        for numbers in _portions(order, self._portion, size=lambda n: len(questions[n].asked)):
            some = [questions[n] for n in numbers]
            if self.settings.raced is not None:
                self._race([question for question in some if question.is_choice])
            self._score(_targets(question for question in some if not self._raced(question)))
            found |= {number: self._answers(questions[number]) for number in numbers}
            progress(sum(len(question.asked) for question in some))
        return [found[n] for n in range(len(questions))]

    def documents(self, documents: Sequence[Document], progress: Progress) -> list[Answer]:
        """The likelihoods of long texts, window by window."""
        targets = [
            Target(item, document.name(number)) for document in documents for number, item in enumerate(document.items)
        ]
        for some in _portions(targets, self._portion):
            self._score(some)
            progress(len(some))
        answers = iter([self._known(target.key) for target in targets])
        return [document.sum([next(answers) for _ in document.items]) for document in documents]

    def decoded(self, items: Sequence[Item], progress: Progress) -> list[tuple[bool, int]]:
        """Whether greedy decoding gives the targets of items, and the forward rows that it took to know."""
        keys = [digest("greedy", item.key) for item in items]
        missing = {key: item for key, item in zip(keys, items, strict=True) if self.cache.get(key) is None}
        for some in _portions(list(missing), self._portion):
            found = greedy(self.model, [missing[key] for key in some], rows=self.settings.batch_size)
            self.cache.add(
                {key: {"greedy": is_so, "rows": rows} for key, (is_so, rows) in zip(some, found, strict=True)}
            )
            progress(len(some))
        known: list[dict[str, Any]] = [self.cache.get(key) or {} for key in keys]
        return [(bool(one["greedy"]), int(one["rows"])) for one in known]

    @property
    def _portion(self) -> int:
        """Requests that are worked on between two visits to the cache."""
        return max(16, ROWS // (self.settings.evaluations or self.settings.request().first_rows(64)))

    def _score(self, targets: Iterable[Target]) -> None:
        """What is not known yet; equal things once."""
        missing = {target.key: target for target in targets if Answer.read(self.cache.get(target.key)) is None}
        if not missing:
            return
        estimates = estimate_items(
            self.model,
            [target.item for target in missing.values()],
            self.settings.request(),
            seed=self.settings.seed,
            names=[target.name for target in missing.values()],
        )
        answers = [Answer.of(estimate) for estimate in estimates]
        self.cache.add({key: answer.record() for key, answer in zip(missing, answers, strict=True)})

    def _race(self, questions: Sequence[Question]) -> None:
        """Races that are not known yet, side by side. What they leave undecided is estimated like anything else."""
        missing = {self._key(one): one for one in questions if self.cache.get(self._key(one)) is None}
        races = (
            choosing(
                self.model,
                _items(question),
                self._sizes(question),
                self.settings.running(),
                seed=self.settings.seed,
                name=question.name,
            )
            for question in missing.values()
        )
        verdicts = converse(races, Batching(self.settings.batch_size))
        found = {}
        for (key, question), verdict in zip(missing.items(), verdicts, strict=True):
            answers = told(verdict, _items(question)) if verdict.decided else []
            spent = [choice.evaluations for choice in verdict.choices]
            found[key] = {"choices": [answer.record() for answer in answers], "rows": spent}
        self.cache.add(found)

    def _raced(self, question: Question) -> list[Answer]:
        """What a race found, if there was one and it was decided."""
        records = (self.cache.get(self._key(question)) or {}).get("choices", [])
        return [_defined(Answer.read(record)) for record in records]

    def _sizes(self, question: Question) -> list[float]:
        return question.sizes(self.settings.raced or "acc")

    def _key(self, question: Question) -> str:
        return digest("race", question.name, [one.content for one in question.asked], self._sizes(question))

    def _answers(self, question: Question) -> list[Answer]:
        if found := self._raced(question):
            return found
        before = (self.cache.get(self._key(question)) or {}).get("rows") or [0] * len(question.asked)
        return [
            NOTHING if one.item is None else self._known(Target(one.item, question.name).key, more=rows)
            for one, rows in zip(question.asked, before, strict=True)
        ]

    def _known(self, key: str, more: int = 0) -> Answer:
        """An answer, to which some more forward rows led."""
        found = _defined(Answer.read(self.cache.get(key)))
        return dataclasses.replace(found, evaluations=found.evaluations + more)


def _defined(answer: Answer | None) -> Answer:
    if answer is None:
        raise PredictorError("A likelihood in the cache is no number. Remove the cache and run again.")
    return answer


def told(verdict: Verdict, items: Sequence[Item]) -> list[Answer]:
    """What a decided race found, as the harness is told: whoever is out is not likelier than the winner.

    A choice that is out stopped at an earlier replicate than the winner went on to. What decided was their difference
    over the replicates that they share, which knows more than the difference of what each has.
    """
    best = verdict.choices[verdict.leader]
    behind = best.score + AHEAD * max(1.0, abs(best.score))
    found = []
    for choice, item in zip(verdict.choices, items, strict=True):
        tied = (choice.nats, choice.size) == (best.nats, best.size)
        nll = choice.nats if tied else max(choice.nats, behind * choice.size)
        found.append(Answer(nll, choice.standard_error, choice.evaluations, item.target.numel(), DECIDED))
    return found


def _items(question: Question) -> list[Item]:
    return [one.item for one in question.asked if one.item is not None]


def _targets(questions: Iterable[Question]) -> list[Target]:
    return [Target(one.item, question.name) for question in questions for one in question.asked if one.item is not None]


def _portions(things: Sequence[Any], most: int, size: Callable[[Any], int] = lambda thing: 1) -> Iterator[list[Any]]:
    """Some at a time, in order."""
    portion: list[Any] = []
    total = 0
    for thing in things:
        portion.append(thing)
        total += size(thing)
        if total >= most:
            yield portion
            portion, total = [], 0
    if portion:
        yield portion
