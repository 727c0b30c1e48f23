"""Decoding: texts after a context, and whether greedy decoding gives a text.

A row of masks behind a context is filled in by a sampler and cut where a stop text begins.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infodis.apps.lm_eval.arguments import ModelArgs
from infodis.apps.lm_eval.requests import RequestId, RequestReader
from infodis.apps.lm_eval.scorer import Progress, ResponseCache, chunks, digest
from infodis.errors import InputError
from infodis.item import Item
from infodis.models.model import Model
from infodis.predictor import Counting, Predictor, Tempered, check_log_conditionals
from infodis.rng import key
from infodis.sampling import sample

ENTRIES = 2**27
"""Numbers (rows x positions x vocabulary) that are computed at a time."""

CONTEXTS, FLAGS = 16, 256
"""Texts that are written, and items that are decoded, between two visits to the cache."""

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
KNOWN = (*LENGTHS, "until", "do_sample", "temperature")

Generated = tuple[list[str], int]
"""Texts, and the forward passes that they took."""


@dataclasses.dataclass(frozen=True)
class GenerationRequest:
    """A text to write after a context."""

    context: str
    tokens: int
    """The most that are written."""
    until: tuple[str, ...]
    temperature: float
    """0 takes the likeliest token."""

    @staticmethod
    def read(id: RequestId, context: str, gen_kwargs: dict[str, Any], args: ModelArgs) -> "GenerationRequest":
        """From a task's generation arguments. Arguments that mean nothing to our samplers are ignored."""
        tokens = next((gen_kwargs[name] for name in LENGTHS if gen_kwargs.get(name) is not None), args.max_gen_toks)
        until = gen_kwargs.get("until") or []
        temperature = float(gen_kwargs.get("temperature") or 0.0)
        if gen_kwargs.get("do_sample") is False:
            temperature = 0.0
        elif gen_kwargs.get("do_sample") and not temperature:
            temperature = 1.0
        if int(tokens) < 1:
            raise InputError(f"{id}: a text to write has at least one token, got {tokens}.")
        return GenerationRequest(context, int(tokens), tuple([until] if isinstance(until, str) else until), temperature)


@dataclasses.dataclass(frozen=True, eq=False)
class TextGenerator:
    """A model that writes, and what it wrote before."""

    reader: RequestReader
    args: ModelArgs
    cache: ResponseCache

    @property
    def model(self) -> Model:
        return self.reader.model

    def generate(
        self, copies: Mapping[GenerationRequest, int], progress: Progress
    ) -> dict[GenerationRequest, Generated]:
        """So many texts for every request: those in the cache, then the others, requests of one kind together."""
        keys = {one: digest("generate", dataclasses.astuple(one), count) for one, count in copies.items()}
        alike: dict[tuple, list[GenerationRequest]] = {}
        for one, count in copies.items():
            if self.cache.get(keys[one]) is None:
                alike.setdefault((count, one.tokens, one.until, one.temperature), []).append(one)
        for (count, *_), members in alike.items():
            for some in chunks(members, CONTEXTS):
                found = zip(some, self.write(some, count), strict=True)
                self.cache.add({keys[one]: {"texts": texts, "evaluations": spent} for one, (texts, spent) in found})
                progress(len(some))
        known = {one: self.cache.get(name) or {} for one, name in keys.items()}
        return {one: (record["texts"], record["evaluations"]) for one, record in known.items()}

    def write(self, requests: Sequence[GenerationRequest], copies: int = 1) -> list[Generated]:
        """Texts for requests that differ in nothing but the context: some copies of each.

        Greedy texts depend on nothing but the context, so contexts of one length share batches. Random texts come from
        a stream that the context names.
        """
        rows = [self._row(one) for one in requests]
        if requests[0].temperature or not self.args.sampler.startswith("confident"):
            return [
                self._filled([row] * copies, one, seed=key(self.args.seed, one.context))
                for row, one in zip(rows, requests, strict=True)
            ]
        found: dict[int, Generated] = {}
        for members in _by_length(rows):
            texts, spent = self._filled([rows[n] for n in members], requests[members[0]], seed=0)
            found |= {n: ([text] * copies, spent // len(members)) for n, text in zip(members, texts, strict=True)}
        return [found[n] for n in range(len(requests))]

    def _row(self, request: GenerationRequest) -> list[int]:
        """Context and masks, with the special tokens that the model expects around them."""
        before, behind = self.model.tokenizer.around()
        own = self.model.encode(self.reader.without_special(request.context)).tolist() if request.context else []
        if self.model.mask_token in own:
            raise InputError("A context holds the mask token, which would be filled in. Take it out.")
        begin = self.model.loaded.begin_token
        first = self.reader.add_bos_token or len(before) + len(own) < self.model.network.first_predicted
        if begin is not None and first and [*before, *own][:1] != [begin]:
            before = [begin, *before]
        longest = self.reader.longest
        if longest is not None:
            room = longest - len(before) - len(behind) - request.tokens
            if room < 0:
                raise InputError(
                    f"{request.tokens} tokens to write do not fit into a row of {longest}. Ask for fewer: "
                    "--gen_kwargs max_gen_toks=..., or raise max_length if the model takes more."
                )
            own = own[max(0, len(own) - room) :]
        return [*before, *own, *[self.model.mask_token] * request.tokens, *behind]

    def _filled(self, rows: list[list[int]], request: GenerationRequest, *, seed: int) -> Generated:
        counting = Counting(self.model)
        predictor: Predictor = Tempered(counting, request.temperature) if request.temperature else counting
        most = self.args.batch_size or rows_at_once(self.model, len(rows[0]))
        sampler = self.args.sampling(request.tokens, draw=bool(request.temperature))
        filled = sample(predictor, torch.tensor(rows), sampler=sampler, seed=seed, batch_size=most)
        end = len(rows[0]) - len(self.model.tokenizer.around()[1])
        texts = [self.model.decode(row[end - request.tokens : end]) for row in filled]
        return [cut(text, (*request.until, *self.end_texts)) for text in texts], counting.rows

    @functools.cached_property
    def end_texts(self) -> tuple[str, ...]:
        """Special tokens as text: an answer ends where one stands."""
        path = None if self.model.directory is None else self.model.directory / "tokenizer_config.json"
        if path is None or not path.is_file():
            return ()
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            added = config.get("added_tokens_decoder", {}).values()
            found = [token["content"] for token in added if token.get("special")]
            end = config.get("eos_token")
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{path} cannot be read: {error}.") from error
        return tuple(dict.fromkeys([*found, *([end] if isinstance(end, str) else [])]))


def cut(text: str, stops: Sequence[str]) -> str:
    """What comes before the first of some stop texts.

    >>> cut("yes. no", ["no", "."])
    'yes'
    """
    places = [text.find(stop) for stop in stops if stop]
    return text[: min((place for place in places if place >= 0), default=len(text))]


def greedy_flags(
    predictor: Predictor, items: Sequence[Item], cache: ResponseCache, progress: Progress, *, rows: int | None = None
) -> list[tuple[bool, int]]:
    """`is_greedy` of items, and the forward passes that it took; at most `rows` at a time."""
    keys = [digest("is_greedy", item.key) for item in items]
    missing = {name: item for name, item in zip(keys, items, strict=True) if cache.get(name) is None}
    for some in chunks(list(missing), FLAGS):
        found = is_greedy(predictor, [missing[name] for name in some], rows=rows)
        cache.add({name: {"is_greedy": flag, "evaluations": n} for name, (flag, n) in zip(some, found, strict=True)})
        progress(len(some))
    known: list[dict[str, Any]] = [cache.get(name) or {} for name in keys]
    return [(bool(one["is_greedy"]), int(one["evaluations"])) for one in known]


def is_greedy(predictor: Predictor, items: Sequence[Item], *, rows: int | None = None) -> list[tuple[bool, int]]:
    """Whether most-confident-first decoding from all masks gives the target of an item; and its forward passes.

    At every step the position whose likeliest token is most probable gets that token. An item is done at the first
    token that is not its own. At most `rows` are evaluated at a time.

    >>> from infodis import oracle
    >>> coin = oracle.Independent(torch.tensor([0.25, 0.75]))
    >>> is_greedy(coin, [Item.read([1, 1, 1]), Item.read([0, 1, 1])])
    [(True, 3), (False, 1)]
    """
    found: dict[int, tuple[bool, int]] = {}
    for members in _by_length([item.tokens for item in items]):
        length = items[members[0]].length
        for some in chunks(members, min(rows_at_once(predictor, length), rows or len(members))):
            found |= zip(some, _is_greedy(predictor, [items[n] for n in some]), strict=True)
    return [found[n] for n in range(len(items))]


@torch.no_grad()
def _is_greedy(predictor: Predictor, items: list[Item]) -> list[tuple[bool, int]]:
    """The same for items of one length."""
    tokens, never = (torch.stack([getattr(item, name) for item in items]) for name in ("clean", "hidden"))
    left = torch.zeros_like(never)
    for row, item in zip(left, items, strict=True):
        row[item.target] = True
    right = torch.ones(len(items), dtype=torch.bool)
    evaluations = torch.zeros(len(items), dtype=torch.int64)
    while (going := (right & left.any(1)).nonzero().squeeze(1)).numel():
        wanted, clean = left[going], tokens[going]
        answer = predictor.log_conditionals(torch.where(wanted | never[going], predictor.mask_token, clean))
        check_log_conditionals(answer, wanted, vocab_size=predictor.vocab_size)
        confidence, likeliest = (part.cpu() for part in answer.max(-1))
        chosen = torch.where(wanted, confidence, -math.inf).argmax(1, keepdim=True)
        right[going] = (likeliest.gather(1, chosen) == clean.gather(1, chosen)).squeeze(1)
        left[going] = wanted.scatter(1, chosen, False)
        evaluations[going] += 1
    return list(zip(right.tolist(), evaluations.tolist(), strict=True))


def rows_at_once(predictor: Predictor, length: int) -> int:
    """Rows of that length whose distributions fit into memory together."""
    return max(1, ENTRIES // (length * predictor.vocab_size))


def _by_length(rows: Sequence[Any]) -> list[list[int]]:
    """The numbers of rows, one list for every length."""
    groups: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(len(row), []).append(number)
    return list(groups.values())
