"""A model class for lm-evaluation-harness: `--model infodis --model_args pretrained=...,evaluations=128`.

The harness hands over all requests of a kind at once. They are read, grouped by document, estimated together, and
returned in order. Standard errors and forward passes, for which the harness has no place, go to a file of their own
and, summed up, into the harness's results.
"""

import collections
import dataclasses
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.registry import MODEL_REGISTRY, register_model
from tqdm import tqdm

from infodis.apps.lm_eval.arguments import ModelArgs
from infodis.apps.lm_eval.distributed import DistributedLM, local_device
from infodis.apps.lm_eval.generation import KNOWN, GenerationRequest, TextGenerator, greedy_flags
from infodis.apps.lm_eval.monte_carlo import (
    MonteCarloError,
    Record,
    RequestLog,
    group_errors,
    monte_carlo_errors,
    rolling_errors,
)
from infodis.apps.lm_eval.requests import RequestGroup, RequestId, RequestReader, Response
from infodis.apps.lm_eval.scorer import RequestScorer, ResponseCache
from infodis.catalog import quantity_for
from infodis.errors import InputError
from infodis.files import check_apart
from infodis.models.chat import chat_text, chat_tokenizer
from infodis.models.loading import load_with
from infodis.models.model import Model
from infodis.models.options import ModelOptions

NAME = "infodis"

log = logging.getLogger("lm_eval.infodis")  # below lm_eval, which sets up its own output


class InfodisLM(DistributedLM):
    """A discrete diffusion model as the harness sees one.

    Args:
        pretrained: what `infodis.load` takes, or a loaded model.
        device, dtype: as for `infodis.load`; the other options of a model may be among `given`.
        cache: a directory where responses are kept, so that a killed run can be resumed.
        out: a JSONL file for the error and the forward passes of every request.
        given: see `ModelArgs`.
    """

    def __init__(
        self,
        pretrained: str | Model,
        *,
        device: str | None = None,
        dtype: str = "float32",
        cache: str | None = None,
        out: str | None = None,
        max_batch_size: int | None = None,
        **given: Any,
    ) -> None:
        super().__init__()
        names = {field.name for field in dataclasses.fields(ModelOptions)} & given.keys()
        dtype = "float32" if dtype == "auto" else dtype
        options = ModelOptions(device=device or "auto", dtype=dtype, **{name: given.pop(name) for name in names})
        self.args = ModelArgs.read(given)
        if isinstance(pretrained, Model):
            self.model = _as_it_is(pretrained, names)
        else:
            self.model = load_with(pretrained, dataclasses.replace(options, device=local_device(options.device)))
        _check_steps(self.model, self.args)
        _check_noise(self.model, self.args)
        self._device = self.model.device
        self._settings = (
            {"quantity": quantity_for(self.model, None).name}
            | self.args.settings()
            | _computed_in(self.model)
            | {"trust_remote_code": options.trust_remote_code}
        )
        if cache is not None or out is not None:
            self._settings |= _identity(self.model)
        if cache is not None and not self._settings["model"]:
            raise InputError("A cache is for models that are loaded from files: their content tells them apart.")
        check_apart(writes=[Path(place) for place in (cache, out) if place is not None])
        own = ("max_length", "stride", "add_bos_token")
        self._reader = RequestReader(self.model, **{name: getattr(self.args, name) for name in own})
        self._cache = ResponseCache(None if cache is None else Path(cache), self._settings)
        self._log = RequestLog(None if out is None or self.rank else Path(out), self._settings)
        self._errors: list[MonteCarloError] = []

    # Requests

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log p(continuation | context) of every request, and whether greedy decoding gives the continuation."""
        asked = [self._reader.pair(_id(one), *_texts(one, 2)) for one in requests]
        groups = RequestGroup.by_document(asked)
        if self.model.noise is not None:
            _check_flags([group for group in groups if self._wants_flag(group)], self.model)
        with self._bar(sum(len(group.requests) for group in groups), "likelihoods", disable_tqdm) as bar:
            responses = RequestScorer(self.model, self.args, self._cache).loglikelihoods(groups, bar.update)
        flags = self._greedy_flags(groups, disable_tqdm)
        found: dict[RequestId | tuple[str, str], tuple[float, bool]] = {}
        records: list[Record] = []
        errors: list[MonteCarloError] = []
        for group, some in zip(groups, responses, strict=True):
            for one, response in zip(group.requests, some, strict=True):
                greedy, spent = flags[one.content] if self._wants_flag(group) else (None, 0)
                found[one.identity] = -response.nll.value, bool(greedy)
                extra = {} if greedy is None else {"greedy": greedy, "greedy_evaluations": spent}
                records.append(_record("loglikelihood", one.id, response) | {"truncated": one.truncated} | extra)
            errors += group_errors(group, some, self.args)
        self._keep(records, errors)
        return [found[one.identity] for one in asked]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log p of whole texts, window by window."""
        asked = [(_id(one), _texts(one, 1)[0]) for one in requests]
        texts = {one: self._reader.windows(*one) for one in dict.fromkeys(asked)}
        with self._bar(sum(len(one.windows) for one in texts.values()), "windows", disable_tqdm) as bar:
            scorer = RequestScorer(self.model, self.args, self._cache)
            responses = dict(zip(texts, scorer.rolling(list(texts.values()), bar.update), strict=True))
        records = [_record("loglikelihood_rolling", one[0], response) for one, response in responses.items()]
        self._keep(records, [error for one, text in texts.items() for error in rolling_errors(text, responses[one])])
        return [-responses[one].nll.value for one in asked]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts after contexts, cut at stop texts. What is asked several times is drawn several times."""
        if self.model.noise is not None:
            raise InputError(
                f"A text is written into masks, and {self.model.name} knows noise on tokens instead; "
                f"{_id(requests[0])} asks for one. Leave out tasks that generate: the harness can ask it for "
                "likelihoods only."
            )
        unknown = {name for one in requests for name in one.args[1] if name not in KNOWN}
        if unknown:
            log.warning("Generation arguments that infodis does not know are ignored: %s", ", ".join(sorted(unknown)))
        asked = [GenerationRequest.read(_id(one), one.args[0], one.args[1], self.args) for one in requests]
        copies = collections.Counter(asked)
        with self._bar(len(copies), "texts", disable_tqdm) as bar:
            found = TextGenerator(self._reader, self.args, self._cache).generate(copies, bar.update)
        left = {one: iter(texts) for one, (texts, _) in found.items()}
        records = [
            {"request": "generate_until", **vars(_id(one)), "evaluations": found[made][1], "tokens": made.tokens}
            for one, made in zip(requests, asked, strict=True)
        ]
        self._keep(records, [])
        return [next(left[one]) for one in asked]

    # Chat templates

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation by the model's template, up to where an answer begins, or with the last message left open."""
        return chat_text(
            self.model.template_directory,
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's own template; by name where it has several."""
        if not chat_template:
            return None
        name = chat_template if isinstance(chat_template, str) else None
        return str(chat_tokenizer(self.model.template_directory).get_chat_template(name))

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache of requests."""
        return self.model.name.replace("/", "__")

    # Results

    def get_model_info(self) -> dict[str, Any]:
        """For the harness's results: how it was estimated, and the Monte Carlo error of every score."""
        return {"infodis": self._settings, "monte_carlo_error": monte_carlo_errors(self._errors)}

    def set_cache_hook(self, cache_hook: Any) -> None:
        """The harness's own cache, which does not ask what model a response came from."""
        if getattr(cache_hook, "dbdict", None) is not None:
            log.warning(
                "--use_cache returns responses of any model and budget. Use --model_args cache=DIRECTORY instead."
            )
        super().set_cache_hook(cache_hook)

    def _wants_flag(self, group: RequestGroup) -> bool:
        """Whether a task may look at the greedy flag: one with several continuations a document compares them."""
        return self.args.greedy == "always" or (self.args.greedy == "auto" and len(group.requests) == 1)

    def _greedy_flags(self, groups: Sequence[RequestGroup], quiet: bool) -> dict[int, tuple[bool, int]]:
        """By content. An empty text is what decoding nothing gives."""
        items = {item.key: item for group in groups if self._wants_flag(group) for item in group.items}
        with self._bar(len(items), "greedy decoding", quiet or not items) as bar:
            rows = self.args.batch_size
            found = greedy_flags(self.model, list(items.values()), self._cache, bar.update, rows=rows)
        return {0: (True, 0)} | dict(zip(items, found, strict=True))

    def _keep(self, records: list[Record], errors: list[MonteCarloError]) -> None:
        """Gather from all processes at the first one. A request that was handed over twice counts once."""
        gathered = self.gather_object((records, errors)) or []
        distinct: dict[Any, Record] = {}
        for some, more in gathered:
            for record in some:
                id = RequestId(record["task"], record["doc_id"], record["idx"])
                distinct.setdefault(len(distinct) if id.doc_id is None else id, record)
            self._errors += more
        self._log.add(distinct.values())

    def _bar(self, total: int, what: str, quiet: bool) -> Any:
        """A progress bar on a terminal, nothing elsewhere."""
        return tqdm(total=total, desc=f"infodis: {what}", disable=True if quiet or self.rank else None)


def _as_it_is(model: Model, options: Collection[str]) -> Model:
    """A model that was loaded before, for which it is too late to say how."""
    if options:
        raise InputError(
            f"A model that is handed over is taken as it is, got {', '.join(sorted(options))} too. Say so where it is "
            "loaded: infodis.load(...)."
        )
    return model


def _check_steps(model: Model, args: ModelArgs) -> None:
    if model.network.causal and args.steps is not None:
        raise InputError(
            f"An autoregressive model takes one forward pass a token, got steps={args.steps} with {model.name}. Leave "
            "steps out."
        )


def _check_noise(model: Model, args: ModelArgs) -> None:
    if model.noise is None:
        return
    for name, given in (("race", args.raced), ("design", None if args.design == "auto" else args.design)):
        if given is not None:
            raise InputError(
                f"{name} is about masks, got {name}={given} with {model.name}, which knows noise on tokens instead. "
                f"Leave {name} out: choices are compared by their dse_nll, with shared noise."
            )


def _check_flags(groups: Sequence[RequestGroup], model: Model) -> None:
    """Refuse greedy flags of a model of noise before anything is scored: it has no masks to decode greedily."""
    if groups:
        raise InputError(
            f"The greedy flag is found out by filling in masks, and {model.name} knows noise on tokens instead; "
            f"{groups[0].requests[0].id} may look at it. Give greedy=never: likelihoods and perplexities stay right, "
            "and metrics of the flag (acc or exact_match of a single continuation) are 0 and say nothing."
        )


def _computed_in(model: Model) -> dict[str, Any]:
    """How a model computes, however it was loaded."""
    weights = next(model.network.parameters(), None)
    dtype = None if weights is None else str(weights.dtype).removeprefix("torch.")
    return {"dtype": dtype, "autocast": model.autocast, "device": model.device.type, **model.wiring}


def _identity(model: Model) -> dict[str, str]:
    """What tells a model and its tokenizer from others."""
    return {"model": model.fingerprint, "tokenizer": "" if model.files is None else model.files.tokenizer.digest}


def _id(one: Instance) -> RequestId:
    return RequestId(one.task_name, one.doc_id, one.idx)


def _texts(one: Instance, count: int) -> tuple[str, ...]:
    """The texts of a request, and nothing else."""
    if len(one.args) != count or not all(isinstance(text, str) for text in one.args):
        raise InputError(f"{_id(one)}: expected {count} text(s), got {[type(part).__name__ for part in one.args]}.")
    return one.args


def _record(request: str, id: RequestId, response: Response) -> Record:
    return {"request": request, **vars(id), **response.record()}


if NAME not in MODEL_REGISTRY:  # an entry point registers it before it is loaded
    register_model(NAME)(InfodisLM)
