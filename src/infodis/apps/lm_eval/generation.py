"""Texts that a model writes: a row of masks behind a context, filled in by a sampler, cut where a stop text begins."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import torch

from infodis.apps.lm_eval.greedy import rows_at_once
from infodis.apps.lm_eval.questions import Place, Reader
from infodis.apps.lm_eval.settings import Settings
from infodis.errors import InputError
from infodis.models.model import Model
from infodis.predictor import Counting, Predictor, Tempered
from infodis.rng import key
from infodis.sampling import sample

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
KNOWN = (*LENGTHS, "until", "do_sample", "temperature")


@dataclasses.dataclass(frozen=True)
class Wish:
    """A text to write after a context."""

    context: str
    tokens: int
    """At most so many."""
    until: tuple[str, ...]
    temperature: float
    """0 takes the likeliest token."""

    @staticmethod
    def read(place: Place, context: str, given: dict[str, Any], settings: Settings) -> "Wish":
        """From a task's generation arguments. Those that mean nothing to a sampler of ours are left alone."""
        tokens = next((given[name] for name in LENGTHS if given.get(name) is not None), settings.max_gen_toks)
        until = given.get("until") or []
        temperature = float(given.get("temperature") or 0.0)
        if given.get("do_sample") is False:
            temperature = 0.0
        elif given.get("do_sample") and not temperature:
            temperature = 1.0
        if int(tokens) < 1:
            raise InputError(f"{place}: a text to write has at least one token, got {tokens}.")
        return Wish(context, int(tokens), tuple([until] if isinstance(until, str) else until), temperature)

    @property
    def plain(self) -> list[Any]:
        return [self.context, self.tokens, list(self.until), self.temperature]


@dataclasses.dataclass(frozen=True, eq=False)
class Writer:
    """A model that writes."""

    reader: Reader
    settings: Settings

    @property
    def model(self) -> Model:
        return self.reader.model

    def write(self, wishes: Sequence[Wish], copies: int = 1) -> list[tuple[list[str], int]]:
        """Texts for wishes that differ in nothing but the context: some copies of each, and their forward rows.

        Likeliest tokens depend on nothing but the context, so contexts of one length share batches. What is drawn
        comes from a stream that the wish names.
        """
        rows = [self._row(wish) for wish in wishes]
        if wishes[0].temperature or not self.settings.sampler.startswith("confident"):
            return [
                self._filled([row] * copies, wish, seed=key(self.settings.seed, wish.context))
                for row, wish in zip(rows, wishes, strict=True)
            ]
        found: dict[int, tuple[list[str], int]] = {}
        for length in dict.fromkeys(len(row) for row in rows):
            members = [n for n, row in enumerate(rows) if len(row) == length]
            texts, spent = self._filled([rows[n] for n in members], wishes[members[0]], seed=0)
            found |= {n: ([text] * copies, spent // len(members)) for n, text in zip(members, texts, strict=True)}
        return [found[n] for n in range(len(wishes))]

    def _row(self, wish: Wish) -> list[int]:
        """Context and masks, with the special tokens that the model expects around them."""
        before, behind = self.model.tokenizer.around()
        own = self.model.encode(self.reader.unmarked(wish.context)).tolist() if wish.context else []
        if self.model.mask_token in own:
            raise InputError("A context holds the mask token, which would be filled in. Take it out.")
        begin = self.model.loaded.begin_token
        first = self.reader.add_bos_token or len(before) + len(own) < self.model.network.unpredictable
        if begin is not None and first and [*before, *own][:1] != [begin]:
            before = [begin, *before]
        longest = self.reader.longest
        if longest is not None:
            room = longest - len(before) - len(behind) - wish.tokens
            if room < 0:
                raise InputError(
                    f"{wish.tokens} tokens to write do not fit into a row of {longest}. Ask for fewer: "
                    "--gen_kwargs max_gen_toks=..., or raise max_length if the model takes more."
                )
            own = own[max(0, len(own) - room) :]
        return [*before, *own, *[self.model.mask_token] * wish.tokens, *behind]

    def _filled(self, rows: list[list[int]], wish: Wish, *, seed: int) -> tuple[list[str], int]:
        counting = Counting(self.model)
        spoken: Predictor = Tempered(counting, wish.temperature) if wish.temperature else counting
        most = self.settings.batch_size or rows_at_once(self.model, len(rows[0]))
        sampler = self.settings.sampling(wish.tokens, draw=bool(wish.temperature))
        filled = sample(spoken, torch.tensor(rows), sampler=sampler, seed=seed, batch_size=most)
        end = len(rows[0]) - len(self.model.tokenizer.around()[1])
        texts = [self.model.decode(row[end - wish.tokens : end]) for row in filled]
        return [cut(text, (*wish.until, *self.ends)) for text in texts], counting.rows

    @functools.cached_property
    def ends(self) -> tuple[str, ...]:
        """Special tokens as text: where one stands, an answer is over."""
        path = None if self.model.directory is None else self.model.directory / "tokenizer_config.json"
        if path is None or not path.is_file():
            return ()
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            added = told.get("added_tokens_decoder", {}).values()
            found = [token["content"] for token in added if token.get("special")]
            end = told.get("eos_token")
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
