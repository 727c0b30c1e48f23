"""A model class for lm-evaluation-harness: `--model infodis --model_args pretrained=...,evaluations=128`.

The harness hands over all requests of a kind at once. They are read, grouped by document, estimated together, and given
back in order. What the harness has no place for, standard errors and forward rows, goes to a side file and, summed up,
into the harness's own results.
"""

import collections
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import MODEL_REGISTRY, register_model
from tqdm import tqdm

from infodis.apps.lm_eval import chat
from infodis.apps.lm_eval.cache import Cache, digest
from infodis.apps.lm_eval.generation import KNOWN, Wish, Writer
from infodis.apps.lm_eval.processes import Processes
from infodis.apps.lm_eval.questions import Answer, Place, Question, Reader, grouped
from infodis.apps.lm_eval.report import Doubt, Record, SideFile, document_doubts, monte_carlo_errors, question_doubts
from infodis.apps.lm_eval.scorer import Progress, Scorer
from infodis.apps.lm_eval.settings import Settings
from infodis.errors import InputError
from infodis.files import check_apart
from infodis.models.loading import load
from infodis.models.model import Model

NAME = "infodis"

log = logging.getLogger("lm_eval.infodis")  # below lm_eval, which sets up its own output


class InfodisLM(LM):
    """A discrete diffusion model as the harness sees one.

    Args:
        pretrained: what `infodis.load` takes, or a loaded model.
        device, dtype, tokenizer, trust_remote_code, autocast, batch_tokens: as for `infodis.load`.
        cache: a directory where answers are kept, so that a run that was killed goes on.
        out: a JSONL file for the error and the forward rows of every request.
        given: see `Settings`.
    """

    def __init__(
        self,
        pretrained: str | Model,
        *,
        device: str | None = None,
        dtype: str = "float32",
        tokenizer: str | None = None,
        trust_remote_code: bool = False,
        autocast: bool = False,
        batch_tokens: int | None = None,
        cache: str | None = None,
        out: str | None = None,
        max_batch_size: int | None = None,
        **given: Any,
    ) -> None:
        super().__init__()
        self.settings = Settings.read(given)
        self._processes = Processes.join()
        self._rank, self._world_size = self._processes.rank, self._processes.size
        if isinstance(pretrained, Model):
            self.model = pretrained
        else:
            self.model = load(
                pretrained,
                device=self._processes.device(device or "auto"),
                dtype="float32" if dtype == "auto" else dtype,
                tokenizer=tokenizer,
                trust_remote_code=trust_remote_code,
                autocast=autocast,
                batch_tokens=batch_tokens,
            )
        self._device = self.model.device
        self._about = self.settings.about() | _computed_in(self.model) | {"trust_remote_code": trust_remote_code}
        if cache is not None or out is not None:
            self._about |= _identity(self.model)
        if cache is not None and not self._about["model"]:
            raise InputError("A cache is for models that are loaded from files: their content tells them apart.")
        check_apart(writes=[Path(place) for place in (cache, out) if place is not None])
        own = ("max_length", "stride", "add_bos_token")
        self._reader = Reader(self.model, **{name: getattr(self.settings, name) for name in own})
        self._scorer = Scorer(self.model, self.settings, Cache(None if cache is None else Path(cache), self._about))
        self._side = SideFile(None if out is None or self.rank else Path(out), {"about": self._about})
        self._doubts: list[Doubt] = []

    # What is asked

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log p(continuation | context) of every request, and whether greedy decoding gives the continuation."""
        asked = [self._reader.pair(_place(one), *_texts(one, 2)) for one in requests]
        questions = grouped(asked)
        total = sum(len(question.asked) for question in questions)
        with self._bar(total, "likelihoods", disable_tqdm) as progress:
            answers = self._scorer.questions(questions, progress)
        flags = self._greedy_flags(questions, disable_tqdm)
        found: dict[Place | tuple[str, str], tuple[Answer, bool]] = {}
        records: list[Record] = []
        doubts: list[Doubt] = []
        for question, some in zip(questions, answers, strict=True):
            for one, answer in zip(question.asked, some, strict=True):
                is_greedy, rows = flags[one.content] if self._wants_flag(question) else (None, 0)
                found[one.identity] = answer, bool(is_greedy)
                extra = {} if is_greedy is None else {"greedy": is_greedy, "greedy_evaluations": rows}
                records.append(_record("loglikelihood", one.place, answer) | {"truncated": one.truncated} | extra)
            doubts += question_doubts(question, some, self.settings)
        self._keep(records, doubts)
        return [(-found[one.identity][0].nll, found[one.identity][1]) for one in asked]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log p of whole texts, window by window."""
        asked = [(_place(one), _texts(one, 1)[0]) for one in requests]
        documents = {one: self._reader.windows(*one) for one in dict.fromkeys(asked)}
        some = list(documents.values())
        with self._bar(sum(len(one.items) for one in some), "windows", disable_tqdm) as progress:
            answers = dict(zip(documents, self._scorer.documents(some, progress), strict=True))
        records = [_record("loglikelihood_rolling", one[0], answer) for one, answer in answers.items()]
        doubts = [doubt for one, document in documents.items() for doubt in document_doubts(document, answers[one])]
        self._keep(records, doubts)
        return [-answers[one].nll for one in asked]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts after contexts, cut at stop texts. What is asked several times is drawn several times."""
        unknown = {name for one in requests for name in one.args[1] if name not in KNOWN}
        if unknown:
            log.warning("Generation arguments that infodis does not know are ignored: %s", ", ".join(sorted(unknown)))
        wishes = [Wish.read(_place(one), one.args[0], one.args[1], self.settings) for one in requests]
        copies = collections.Counter(wishes)
        with self._bar(len(copies), "texts", disable_tqdm) as progress:
            texts, rows = self._written(copies, progress)
        left = {wish: iter(found) for wish, found in texts.items()}
        self._keep(
            [
                {"request": "generate_until", **_named(_place(one)), "evaluations": rows[wish], "tokens": wish.tokens}
                for one, wish in zip(requests, wishes, strict=True)
            ],
            [],
        )
        return [next(left[wish]) for wish in wishes]

    # Chat templates

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """What the model sees of a conversation."""
        return chat.rendered(self.model, chat_history, answer=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's own template."""
        return chat.template(self.model, chat_template) if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache of requests."""
        return self.model.name.replace("/", "__")

    # Several processes

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all processes."""
        return self._processes.all_gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """What all processes have, at one of them."""
        return self._processes.gather(obj, dst)

    def barrier(self) -> None:
        """Wait for the others."""
        self._processes.barrier()

    # What is told

    def get_model_info(self) -> dict[str, Any]:
        """For the harness's results: how it was estimated, and the Monte Carlo error of every score."""
        return {"infodis": self._about, "monte_carlo_error": monte_carlo_errors(self._doubts)}

    def set_cache_hook(self, cache_hook: Any) -> None:
        """The harness's own cache, which does not ask what model an answer came from."""
        if getattr(cache_hook, "dbdict", None) is not None:
            log.warning(
                "--use_cache gives back answers of any model and budget. Use --model_args cache=DIRECTORY instead."
            )
        super().set_cache_hook(cache_hook)

    def _wants_flag(self, question: Question) -> bool:
        """Whether a task may look at the greedy flag: one with several continuations a document compares them."""
        return self.settings.greedy == "always" or (self.settings.greedy == "auto" and len(question.asked) == 1)

    def _greedy_flags(self, questions: Sequence[Question], quiet: bool) -> dict[int, tuple[bool, int]]:
        """By content. An empty text is what decoding nothing gives."""
        asked = [one for question in questions if self._wants_flag(question) for one in question.asked]
        items = list({one.content: one.item for one in asked if one.item is not None}.values())
        with self._bar(len(items), "greedy decoding", quiet or not items) as progress:
            found = self._scorer.decoded(items, progress)
        return {0: (True, 0)} | dict(zip((item.key for item in items), found, strict=True))

    def _written(self, copies: dict[Wish, int], progress: Progress) -> tuple[dict[Wish, list[str]], dict[Wish, int]]:
        """Texts and forward rows: those that are known, then alike wishes together."""
        writer, cache = Writer(self._reader, self.settings), self._scorer.cache
        keys = {wish: digest("text", wish.plain, count) for wish, count in copies.items()}
        alike: dict[tuple, list[Wish]] = {}
        for wish, count in copies.items():
            if cache.get(keys[wish]) is None:
                alike.setdefault((count, wish.tokens, wish.until, wish.temperature), []).append(wish)
        for (count, *_), members in alike.items():
            for some in _some(members, 16):
                found = zip(some, writer.write(some, count), strict=True)
                cache.add({keys[wish]: {"texts": texts, "rows": rows} for wish, (texts, rows) in found})
                progress(len(some))
        known = {wish: cache.get(one) or {} for wish, one in keys.items()}
        return {wish: one["texts"] for wish, one in known.items()}, {wish: one["rows"] for wish, one in known.items()}

    def _keep(self, records: list[Record], doubts: list[Doubt]) -> None:
        """Errors of all processes, at the first one. A request that was handed over twice counts once."""
        gathered = self._processes.gather((records, doubts)) or []
        distinct: dict[Any, Record] = {}
        for some, _ in gathered:
            for record in some:
                place = Place(record["task"], record["doc_id"], record["idx"])
                distinct.setdefault(len(distinct) if place.document is None else place, record)
        self._side.add(distinct.values())
        self._doubts += [doubt for _, more in gathered for doubt in more]

    def _bar(self, total: int, what: str, quiet: bool) -> "_Bar":
        return _Bar(tqdm(total=total, desc=f"infodis: {what}", disable=True if quiet or self.rank else None))


class _Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __enter__(self) -> Progress:
        return self._bar.update

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _computed_in(model: Model) -> dict[str, Any]:
    """How a model computes, however it was loaded."""
    weights = next(model.network.parameters(), None)
    dtype = None if weights is None else str(weights.dtype).removeprefix("torch.")
    return {"dtype": dtype, "autocast": model.autocast, "device": model.device.type}


def _identity(model: Model) -> dict[str, str]:
    """What tells a model and its tokenizer from others."""
    return {"model": model.fingerprint, "tokenizer": "" if model.files is None else model.files.tokenizer.digest}


def _place(one: Instance) -> Place:
    return Place(one.task_name, one.doc_id, one.idx)


def _texts(one: Instance, count: int) -> tuple[str, ...]:
    """The texts of a request, and nothing else."""
    if len(one.args) != count or not all(isinstance(text, str) for text in one.args):
        raise InputError(f"{_place(one)}: expected {count} text(s), got {[type(part).__name__ for part in one.args]}.")
    return one.args


def _named(place: Place) -> Record:
    """In the harness's words, so that its samples can be joined."""
    return {"task": place.task, "doc_id": place.document, "idx": place.number}


def _record(request: str, place: Place, answer: Answer) -> Record:
    return {"request": request, **_named(place), **answer.record()}


def _some(things: list[Any], count: int) -> Iterator[list[Any]]:
    for start in range(0, len(things), count):
        yield things[start : start + count]


if NAME not in MODEL_REGISTRY:  # an entry point registers it before it is loaded
    register_model(NAME)(InfodisLM)
