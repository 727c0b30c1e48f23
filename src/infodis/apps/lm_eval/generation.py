"""Decoding: texts after a context, and whether greedy decoding gives a text.

A row of masks behind a context is filled in by a sampler and cut where a stop text begins.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from infodis.apps.lm_eval.arguments import ModelArgs
from infodis.apps.lm_eval.requests import RequestId, RequestReader
from infodis.apps.lm_eval.scorer import Progress, ResponseCache, chunks, digest
from infodis.blocks import blocks_of
from infodis.errors import InputError
from infodis.item import Item
from infodis.models.model import Model
from infodis.predictor import Predictor, RowPredictor, Rows
from infodis.rng import key, stream
from infodis.sampling import Decoder, RowStreams, conditionals

ENTRIES = 2**27
"""Numbers (places x vocabulary) that are computed at a time."""

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

        Greedy texts depend on nothing but the context, so one copy is written. Random texts come from a stream that the
        context names.
        """
        first, rows = requests[0], [self._row(one) for one in requests]
        decoder, drawn = self._decoder(first), copies if first.temperature or self.args.rule(first.tokens).draws else 1
        jobs = [(number, copy) for number in range(len(rows)) for copy in range(drawn)]
        texts: dict[tuple[int, int], tuple[str, int]] = {}
        for some in _batches(self.model, jobs, [len(rows[number]) for number, _ in jobs], self._at_once(first)):
            seeds = [(key(self.args.seed, requests[number].context), copy) for number, copy in some]
            texts |= dict(zip(some, self._filled(decoder, [rows[n] for n, _ in some], first, seeds), strict=True))
        found = [[texts[number, copy] for copy in range(drawn)] for number in range(len(rows))]
        return [([text for text, _ in one] * (copies // drawn), sum(spent for _, spent in one)) for one in found]

    def _decoder(self, request: GenerationRequest) -> Decoder:
        """It stops where a text ends: what comes behind is not used."""
        return Decoder(
            self.model,
            self.args.rule(request.tokens),
            greedy=not request.temperature,
            temperature=request.temperature or 1.0,
            finished=lambda written: self._text(written, request)[1],
        )

    def _at_once(self, request: GenerationRequest) -> int:
        """Rows of a batch: distributions are computed at all masks, or at those of a block."""
        blocks = self.model.blocks
        return self.args.batch_size or rows_at_once(self.model, request.tokens if blocks is None else blocks.size)

    def _row(self, request: GenerationRequest) -> list[int]:
        """Context and masks, with the special tokens that the model expects around them."""
        (before, _), (_, behind) = self.model.tokenizer.around(), self.model.around()
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

    def _filled(
        self, decoder: Decoder, rows: list[list[int]], request: GenerationRequest, seeds: list[tuple[int, int]]
    ) -> list[tuple[str, int]]:
        """Texts that are written into some rows, and the forward passes of each."""
        lengths, behind = torch.tensor([len(row) for row in rows]), len(self.model.around()[1])
        padded = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
        for place, row in zip(padded, rows, strict=True):
            place[: len(row)] = torch.tensor(row)
        found = decoder.fill(padded, lengths, RowStreams([stream(seed, "sample", copy, 0) for seed, copy in seeds]))
        ends = (lengths - behind).tolist()
        answers = [row[end - request.tokens : end] for row, end in zip(found.tokens, ends, strict=True)]
        return [(self._text(one, request)[0], spent) for one, spent in zip(answers, found.passes.tolist(), strict=True)]

    def _text(self, written: Int[Tensor, " tokens"], request: GenerationRequest) -> tuple[str, bool]:
        """An answer up to the first mask, special token or stop text; and whether it ends at one of the latter two."""
        masks = (written == self.model.mask_token).nonzero().flatten().tolist()
        written = written[: masks[0]] if masks else written
        ends = torch.isin(written, self.end_tokens).nonzero().flatten().tolist()
        whole = self.model.decode(written[: ends[0]] if ends else written)
        text = cut(whole, (*request.until, *self.end_texts))
        return text, bool(ends) or text != whole

    @functools.cached_property
    def end_tokens(self) -> Int[Tensor, " tokens"]:
        """Special tokens: an answer ends where one stands."""
        words = self.model.tokenizer
        return torch.tensor(sorted(words.beyond_text - {words.unknown_token}), dtype=torch.int64)

    @functools.cached_property
    def end_texts(self) -> tuple[str, ...]:
        """The same as texts, and others that the settings of the tokenizer name."""
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

    At every step the position whose likeliest token is most probable gets that token. A model of blocks decodes block
    after block; an autoregressive one token after token, so that each token must be the likeliest given those before.
    A block that is decoded rightly is clean text to the next one: all blocks are looked at side by side. An item is
    done at the first token that is not its own. At most `rows` are evaluated at a time.

    >>> from infodis import oracle
    >>> coin = oracle.Independent(torch.tensor([0.25, 0.75]))
    >>> is_greedy(coin, [Item.read([1, 1, 1]), Item.read([0, 1, 1])])
    [(True, 3), (False, 1)]
    """
    longest = max((item.target.numel() for item in items), default=1)
    found: dict[int, tuple[bool, int]] = {}
    at_once = min(rows_at_once(predictor, longest), rows or len(items) or 1)
    for some in _batches(predictor, range(len(items)), [item.length for item in items], at_once):
        found |= dict(zip(some, _is_greedy(predictor, [items[n] for n in some]), strict=True))
    return [found[n] for n in range(len(items))]


@torch.no_grad()
def _is_greedy(predictor: Predictor, items: list[Item]) -> list[tuple[bool, int]]:
    """The same for one batch."""
    rows, blocks = _all_masked(predictor, items), blocks_of(predictor)
    numbers = torch.zeros_like(rows.tokens) if blocks is None else blocks.numbers(rows.tokens.shape[1], rows.starts)
    right, evaluations = torch.ones(len(items), dtype=torch.bool), torch.zeros(len(items), dtype=torch.int64)
    left = rows.wanted.clone()
    while len(going := (right & left.any(1)).nonzero().squeeze(1)):
        wanted = left[going]
        hidden = (rows.hidden & ~rows.wanted)[going] | wanted
        part = Rows(rows.tokens[going], hidden, wanted, rows.lengths[going], rows.starts[going])
        confidence, likeliest = (one.cpu() for one in conditionals(predictor, part).max(-1))
        row, place = wanted.nonzero(as_tuple=True)
        chosen = _first_of_each(confidence, row, place, numbers[going][wanted])
        revealed = torch.zeros_like(wanted).masked_scatter(wanted, chosen)
        wrong = torch.zeros_like(wanted).masked_scatter(wanted, chosen & (likeliest != part.tokens[wanted]))
        right[going] = ~wrong.any(1)
        left[going] = wanted & ~revealed
        evaluations[going] += 1
    return list(zip(right.tolist(), evaluations.tolist(), strict=True))


def _all_masked(predictor: Predictor, items: list[Item]) -> Rows:
    """Rows whose targets are masked and asked about."""
    lengths = torch.tensor([item.length for item in items])
    tokens = torch.zeros(len(items), int(lengths.max()), dtype=torch.int64)
    hidden, wanted = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens, dtype=torch.bool)
    for row, item in enumerate(items):
        tokens[row, : item.length], hidden[row, : item.length] = item.clean, item.hidden
        wanted[row, item.target] = True
    blocks = blocks_of(predictor)
    starts = [0 if blocks is None else int(blocks.starts(item.target.unsqueeze(0))) for item in items]
    return Rows(tokens, hidden | wanted, wanted, lengths, torch.tensor(starts))


def _first_of_each(
    confidence: Float[Tensor, " places"],
    row: Int[Tensor, " places"],
    place: Int[Tensor, " places"],
    block: Int[Tensor, " places"],
) -> Bool[Tensor, " places"]:
    """The most confident place in each block of each row; of equal ones the leftmost."""
    order = np.lexsort([place, -confidence.double(), block, row])
    ordered = np.stack([row, block])[:, order]
    first = np.r_[True, (ordered[:, 1:] != ordered[:, :-1]).any(0)]
    return torch.zeros(len(row), dtype=torch.bool).index_fill(0, torch.from_numpy(order[first]), True)


def rows_at_once(predictor: Predictor, wanted: int) -> int:
    """Rows whose distributions at so many wanted places fit into memory together."""
    return max(1, ENTRIES // (wanted * predictor.vocab_size))


def _batches(predictor: Predictor, things: Sequence[Any], lengths: Sequence[int], most: int) -> Iterator[list[Any]]:
    """Things whose rows may share a batch: of like length, or of one length if the predictor sees padding."""
    pads = isinstance(predictor, RowPredictor) and predictor.pads
    order = sorted(range(len(things)), key=lambda number: -lengths[number])
    for _, alike in itertools.groupby(order, key=lambda number: 0 if pads else lengths[number]):
        yield from chunks([things[number] for number in alike], most)
