"""Models that are ready to score: a network on its device with its tokenizer, found by `infodis.load`."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from infodis.device import fits
from infodis.errors import InputError
from infodis.evaluate import rounded
from infodis.item import Item
from infodis.models.adapters import LoadedModel
from infodis.models.chat import Message, chat_prompt, check_chat
from infodis.models.files import ModelFiles
from infodis.models.nets.network import Network, evaluation_mode
from infodis.models.tokenizers import Encoding, Tokenizer
from infodis.predictor import LogConditionals, Masks, RowPredictor, Rows, Surprisals, Tokens

TOKENS_AT_ONCE = 2**11
"""Of a batch on a processor, padding included: enough to keep it busy, few enough for its cache."""

PROBE_TOKENS, MOST_TOKENS = 2**10, 2**18
"""On a GPU: of the batch that shows how much memory a token takes, and of the largest batch."""


@dataclasses.dataclass(frozen=True, eq=False)
class Model(RowPredictor):
    """A predictor with a name, a tokenizer and a fingerprint of its weights."""

    name: str
    loaded: LoadedModel
    device: torch.device
    autocast: bool = False
    """Run the network under bfloat16 autocast; the softmax stays in float32."""
    files: ModelFiles | None = None
    """What it was read from."""
    batch_tokens: int | None = None
    """Of a batch, padding included; found out unless given."""
    vocab_size: int = dataclasses.field(init=False)
    mask_token: int = dataclasses.field(init=False)
    pads: bool = dataclasses.field(init=False)
    tokens_at_once: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        at_once = self.batch_tokens or TOKENS_AT_ONCE
        if self.batch_tokens is None and self.device.type == "cuda":
            at_once = _gpu_budget(self.network, self.device, self.loaded.limit)
        for name, value in (
            ("vocab_size", self.network.vocab_size),
            ("mask_token", self.network.mask_token),
            ("pads", self.network.pads),
            ("tokens_at_once", at_once),
        ):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        words = "no tokenizer" if self.loaded.tokenizer is None else type(self.loaded.tokenizer).__name__
        tokens = f"{self.vocab_size} tokens, mask token {self.mask_token}"
        return f"Model({self.name!r}, {self.loaded.family}, {tokens}, {words}, on {self.device})"

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of configuration and weights as they were loaded: equal for equal models, wherever they lie."""
        return "" if self.files is None else self.files.model.digest

    @property
    def directory(self) -> Path | None:
        """Where it came from."""
        return None if self.files is None else self.files.directory

    @property
    def network(self) -> Network:
        return self.loaded.network

    @property
    def length(self) -> int | None:
        """Tokens in a row as it was trained."""
        return self.loaded.length

    @property
    def tokenizer(self) -> Tokenizer:
        if self.loaded.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer. Give tokens instead of text, or name a tokenizer.")
        return self.loaded.tokenizer

    def encode(self, text: str) -> Tensor:
        """The tokens of a text and nothing else, ready for `nll`. See `read` for models that expect special tokens."""
        return torch.from_numpy(self.tokenizer.encode(text))

    def read(self, text: str, *, prompt: str | list[Message] = "", chat: bool = False) -> Item:
        """A text after a prompt as the model expects it: special tokens around, prompt and text tokenised together.

        `chat` puts the prompt into the model's chat template, as what a user says. A prompt of messages, each with a
        `role` and a `content`, goes there in any case.
        """
        chat = chat or not isinstance(prompt, str)
        before = self._chat(prompt) if chat else str(prompt)
        found = self.tokenizer.read(text, prompt=before, special=not chat)  # a template brings its own special tokens
        tokens, target = found.tokens, found.target
        begin = self.loaded.begin_token
        if begin is not None and bool((target < self.network.first_predicted).any()):
            tokens, target = np.concatenate([[begin], tokens]), target + 1
        return item_of(Encoding(tokens, target))

    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that a text is read with: before it, and behind it."""
        before, behind = self.tokenizer.around()
        begin = self.loaded.begin_token
        lacking = len(before) < self.network.first_predicted and begin is not None
        return [*([begin] if lacking and begin is not None else []), *before], behind

    def check_chat(self) -> None:
        """Raise `InputError` unless the model has a chat template that works."""
        check_chat(self.template_directory)

    def _chat(self, prompt: str | list[Message]) -> str:
        found = chat_prompt(self.template_directory, prompt)
        if self.files is not None:
            self.files.check_unchanged()  # the template is read when it is needed first
        return found

    @property
    def template_directory(self) -> Path:
        """Where its chat template is."""
        if self.files is None:
            raise InputError(f"{self.name} has no chat template: it was not loaded from files.")
        return self.files.directory

    def decode(self, tokens: Tensor) -> str:
        return self.tokenizer.decode(tokens.tolist())

    @torch.no_grad()
    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        self._check_length(tokens.shape[1])
        self._check_first(tokens == self.mask_token)
        with self._evaluating():
            return self.network.log_conditionals(tokens.to(self.device))

    @torch.no_grad()
    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        lengths = torch.full((len(tokens),), tokens.shape[1])
        found = torch.zeros(tokens.shape, device=self.device)
        found[masked.to(self.device)] = self.surprisals(Rows(tokens, masked, masked, lengths))
        return found

    @torch.no_grad()
    def surprisals(self, rows: Rows) -> Float[Tensor, " wanted"]:
        """-log p of the wanted tokens: the last layer runs there only."""
        self._check_length(rows.tokens.shape[1])
        self._check_first(rows.wanted)
        rows = self._widened(rows)
        there = torch.arange(rows.tokens.shape[1]) < rows.lengths.unsqueeze(-1)
        hidden = torch.where(rows.hidden, self.mask_token, rows.tokens)
        tokens = torch.where(there, hidden, self.loaded.pad_token)
        visible = None if bool(there.all()) else self._moved(there)
        with self._evaluating():
            features = self.network.features(self._moved(tokens), visible=visible, at=self._moved(rows.wanted))
        return self.network.token_nll(features, self._moved(rows.tokens[rows.wanted]))

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """In evaluation mode, also while the network is being trained, and in the precision that is asked for."""
        with (
            evaluation_mode(self.network),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast),
        ):
            yield

    def _widened(self, rows: Rows) -> Rows:
        """Padded to a round width."""
        width = rows.tokens.shape[1]
        wanted = min(rounded(width), self.loaded.limit or sys.maxsize)
        if not self.pads or wanted <= width:
            return rows
        tokens, hidden, asked = (F.pad(p, (0, wanted - width)) for p in (rows.tokens, rows.hidden, rows.wanted))
        return Rows(tokens, hidden, asked, rows.lengths)

    def _moved(self, part: Tensor) -> Tensor:
        """On the device; without waiting for it where that is possible."""
        return (
            part.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else part.to(self.device)
        )

    def _check_first(self, wanted: Masks) -> None:
        first = self.network.first_predicted
        if bool(wanted[:, :first].any()):
            raise InputError(
                f"{self.name} says nothing about the first {first} token(s) of a row: its output is about the next "
                "position. Put a begin token before the text, as context; Model.read does."
            )

    def _check_length(self, length: int) -> None:
        limit = self.loaded.limit
        if limit is not None and length > limit:
            raise InputError(f"{self.name} takes rows of at most {limit} tokens, got {length}. Cut the text.")


@torch.no_grad()
def _gpu_budget(network: Network, device: torch.device, limit: int | None) -> int:
    """Tokens of a batch that fills two thirds of the free memory, judged by what a small batch takes."""
    length = min(128, limit or 128)
    tokens = torch.full((PROBE_TOKENS // length, length), network.mask_token, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    places = torch.zeros_like(tokens, dtype=torch.bool)
    places[:, ::2] = True
    answers = torch.zeros(int(places.sum()), dtype=torch.int64, device=device)
    with evaluation_mode(network):
        fitting = fits(lambda: network.token_nll(network.features(tokens, at=places), answers))
    if not fitting:
        return length
    taken = torch.cuda.max_memory_allocated(device) - before
    free, _ = torch.cuda.mem_get_info(device)
    return max(PROBE_TOKENS, min(MOST_TOKENS, int(PROBE_TOKENS * 2 / 3 * free / max(1, taken))))


def item_of(row: Encoding) -> Item:
    """A row as a thing to score: its own tokens given all others."""
    return Item(*map(torch.from_numpy, (row.tokens, row.target, _others(row.target, len(row.tokens)))))


def _others(target: Int[np.ndarray, " target"], length: int) -> Int[np.ndarray, " others"]:
    """The positions that are not in the target, which seldom has gaps."""
    if len(target) and target[-1] - target[0] + 1 == len(target):
        return np.concatenate([np.arange(target[0]), np.arange(target[-1] + 1, length)])
    return np.delete(np.arange(length), target)


def check_same_tokens(model: Model, reference: Model) -> None:
    """Two models can be compared on the same tokens only if these mean the same to both."""
    one, other = model.loaded.tokenizer, reference.loaded.tokenizer
    if one is None or other is None or one == other:
        return
    mine, its = (list(tokenizer.pieces(range(tokenizer.vocab_size))) for tokenizer in (one, other))
    if mine != its:
        raise InputError(
            f"{model.name} and {reference.name} do not have the same tokens ({len(mine)} and {len(its)}): what they "
            "say about them is not about the same text. Take a reference with the model's tokenizer."
        )
