"""Models that are ready to score: a network on its device with its tokenizer, found by `infodis.load`."""

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor

from infodis.blocks import BlockLayout
from infodis.control import Surrogate
from infodis.device import fits
from infodis.errors import InputError
from infodis.evaluate import rounded
from infodis.item import Item
from infodis.models.adapters import LoadedModel
from infodis.models.block_rows import block_features, causal_features
from infodis.models.chat import Message, chat_prompt, check_chat
from infodis.models.clean_texts import CleanTexts
from infodis.models.files import ModelFiles
from infodis.models.nets.block_network import BlockNetwork, CleanEncoder
from infodis.models.nets.network import LOGITS_AT_ONCE, Network, NoiseNetwork, evaluation_mode
from infodis.models.nets.products import ByOneDNN
from infodis.models.surrogate_file import SurrogateFile
from infodis.models.tokenizers import Encoding, Tokenizer
from infodis.noise.design import Noise
from infodis.predictor import (
    NO_MASKS,
    CertaintyPredictor,
    LogConditionals,
    Masks,
    NoisedRows,
    Rows,
    Surprisals,
    Tokens,
)
from infodis.reveal import Certainty

TOKENS_AT_ONCE = 2**11
"""Of a batch on a processor, padding included: enough to keep it busy, few enough for its cache."""

MOST_UNKNOWN = 0.1
"""Share of a text that may be unknown to a tokenizer. Texts of unknown tokens all score alike."""

KEPT_BYTES = 2**28
"""Of memory for clean texts of a model of blocks; on a GPU, an eighth of what is free."""

PROBE_TOKENS, MOST_TOKENS = 2**10, 2**18
"""On a GPU: of the batch that shows how much memory a token takes, and of the largest batch."""


@dataclasses.dataclass(frozen=True, eq=False)
class Model(CertaintyPredictor):
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
    wiring: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What records say beside the fingerprint: options that say what the files do not, the blocks, the surrogate."""
    allow_unknown: bool = False
    """Read texts of which more than a tenth is unknown to the tokenizer."""
    vocab_size: int = dataclasses.field(init=False)
    mask_token: int = dataclasses.field(init=False)
    pads: bool = dataclasses.field(init=False)
    blocks: BlockLayout | None = dataclasses.field(init=False)
    """How it cuts a row into blocks; None if it sees all of a row at once."""
    tokens_at_once: int = dataclasses.field(init=False)
    clean_texts: CleanTexts | None = dataclasses.field(init=False)
    """What a model of blocks keeps of the texts that it has read last."""

    def __post_init__(self) -> None:
        kept_bytes = _free_memory(self.device) // 8 if self.device.type == "cuda" else KEPT_BYTES
        clean_texts = _clean_texts(self.loaded, kept_bytes)
        at_once, layout = self.batch_tokens or TOKENS_AT_ONCE, _layout(self.loaded.blocks)
        if self.batch_tokens is None and self.device.type == "cuda":
            free = _free_memory(self.device) - (0 if clean_texts is None else kept_bytes)
            at_once = _gpu_budget(self.loaded, self.device, free)
        for name, value in (
            ("clean_texts", clean_texts),
            ("vocab_size", self.network.vocab_size),
            ("mask_token", self.network.mask_token),
            ("pads", self.network.pads),
            ("blocks", self.loaded.blocks),
            # blocks come first, and are what they are
            ("wiring", {**layout, **self.wiring, **layout, **_beside(self.files, self.loaded.blocks)}),
            ("tokens_at_once", at_once),
        ):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        words = "no tokenizer" if self.loaded.tokenizer is None else type(self.loaded.tokenizer).__name__
        masks = f"mask token {self.mask_token}" if self.noise is None else f"{type(self.noise.process).__name__} noise"
        tokens = f"{self.vocab_size} tokens, {masks}"
        return f"Model({self.name!r}, {self.loaded.family}, {tokens}, {words}, on {self.device})"

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of configuration and weights as they were loaded: equal for equal models, wherever they lie."""
        return "" if self.files is None else self.files.model.digest

    @functools.cached_property
    def surrogate(self) -> Surrogate | None:
        """What lies beside it to be subtracted (`infodis calibrate`); None if nothing does."""
        if self.files is None or not self.files.surrogate.paths or self.blocks is not None:
            return None
        return SurrogateFile.load(self.files.surrogate.paths[0]).for_model(self.fingerprint)

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
        found = self.tokenizer.encode(text)
        self._check_known(found)
        return torch.from_numpy(found)

    def read(self, text: str, *, prompt: str | list[Message] = "", chat: bool = False) -> Item:
        """A text after a prompt as the model expects it: special tokens around, prompt and text tokenised together.

        `chat` puts the prompt into the model's chat template, as what a user says. A prompt of messages, each with a
        `role` and a `content`, goes there in any case.
        """
        chat = chat or not isinstance(prompt, str)
        before = self._chat(prompt) if chat else str(prompt)
        found = self.tokenizer.read(text, prompt=before, special=not chat)  # a template brings its own special tokens
        tokens, target = found.tokens, found.target
        self._check_known(tokens[target])
        self._check_known(tokens[: target[0]] if len(target) else tokens)
        if self.blocks is not None and len(target):  # what is behind a text tells such a model nothing
            tokens = tokens[: target[-1] + 1]
        begin = self.loaded.begin_token
        if begin is not None and bool((target < self.network.first_predicted).any()):
            tokens, target = np.concatenate([[begin], tokens]), target + 1
        return item_of(Encoding(tokens, target, found.words))

    def unknown_in(self, item: Item) -> int:
        """How many of the tokens to score stand for what the tokenizer does not know."""
        return 0 if self.loaded.tokenizer is None else self._unknown(item.tokens[item.target].numpy())

    def _unknown(self, tokens: Int[np.ndarray, " tokens"]) -> int:
        unknown = self.tokenizer.unknown_token
        return 0 if unknown is None else int((tokens == unknown).sum())

    def _check_known(self, tokens: Int[np.ndarray, " tokens"]) -> None:
        unknown = self._unknown(tokens)
        if self.allow_unknown or unknown <= MOST_UNKNOWN * len(tokens):
            return
        raise InputError(
            f"At most a tenth of a text may be unknown to the tokenizer, got {unknown} of {len(tokens)} tokens. Texts "
            "of unknown tokens all score alike. Look at capital letters, at spaces between letters and at the "
            "alphabet; or score it all the same: --allow-unknown, infodis.load(..., allow_unknown=True)."
        )

    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that a text is read with: before it, and behind it."""
        before, behind = self.tokenizer.around()
        begin = self.loaded.begin_token
        lacking = len(before) < self.network.first_predicted and begin is not None
        before = [*([begin] if lacking and begin is not None else []), *before]
        return before, behind if self.blocks is None else []

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
    def log_conditionals(self, tokens: Tokens, *, starts: Int[Tensor, " rows"] | None = None) -> LogConditionals:
        """Log p of every token at masked positions.

        A model of blocks, or a causal one, answers about the masked tokens of one block in each row, given what is
        visible in the block and all that comes before. `starts` says where the blocks of a row begin if they do so at
        the first token that is scored.
        """
        self._check_masks()
        self._check_length(tokens.shape[1])
        masked = tokens.cpu() == self.mask_token
        self._check_first(masked)
        if self.blocks is None:
            with self._evaluating():
                return self.network.log_conditionals(tokens.to(self.device))
        clean = torch.where(masked, self.loaded.pad_token, tokens.cpu())  # no mask, which causal networks do not know
        starts = self._starts(tokens, starts)
        _check_one_block(masked, self.blocks.numbers(tokens.shape[1], starts), self.name)
        rows = Rows(clean, masked, masked, self.blocks.ends(masked, starts), starts)
        found = torch.full((*tokens.shape, self.vocab_size), -math.log(self.vocab_size), device=self.device)
        found[self._moved(masked)] = self.conditionals(rows)
        return found

    @torch.no_grad()
    def conditionals(self, rows: Rows) -> Float[Tensor, "wanted vocab"]:
        """Log p of every token at the wanted places, row by row: the last layer runs there only."""
        return F.log_softmax(self.network.logits(self._features(rows)).float(), dim=-1)

    @torch.no_grad()
    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        lengths = torch.full((len(tokens),), tokens.shape[1])
        found = torch.zeros(tokens.shape, device=self.device)
        rows = Rows(tokens, masked, masked, lengths, self._starts(tokens, None))
        found[masked.to(self.device)] = self.surprisals(rows)
        return found

    def surprisals(self, rows: Rows) -> Float[Tensor, " wanted"]:
        """-log p of the wanted tokens: the last layer runs there only. With gradients, if torch is asked for them."""
        return self.network.token_nll(self._features(rows), self._moved(rows.tokens[rows.wanted]))

    @torch.no_grad()
    def certainties(
        self, rows: Rows, certainty: Certainty
    ) -> tuple[Float[Tensor, " wanted"], Float[Tensor, " wanted"]]:
        """-log p of the wanted tokens, and how certain their distributions are."""
        return self.network.token_certainty(self._features(rows), self._moved(rows.tokens[rows.wanted]), certainty)

    def _features(self, rows: Rows) -> Float[Tensor, "wanted width"]:
        """What the last layer needs at the wanted places."""
        self._check_masks()
        self._check_length(rows.tokens.shape[1])
        self._check_first(rows.wanted)
        with self._evaluating():
            return self._run(self._widened(rows))

    def unchanged(self) -> contextlib.AbstractContextManager[None]:
        """Within this the weights stay what they are, so that what is kept of texts need not be held against them."""
        return contextlib.nullcontext() if self.clean_texts is None else self.clean_texts.trusting()

    @property
    def noise(self) -> Noise | None:
        """The noise that it was made for; None if it predicts masked tokens."""
        return self.loaded.noise

    @torch.no_grad()
    def entropies(self, rows: NoisedRows) -> Float64[Tensor, " wanted"]:
        """The score entropy at the wanted places of a model of noise: the last layer runs there, some at a time."""
        self._check_length(rows.tokens.shape[1])
        network, there = self.network, torch.arange(rows.tokens.shape[1]) < rows.lengths.unsqueeze(-1)
        if self.noise is None or not isinstance(network, NoiseNetwork):
            raise InputError(f"{self.name} predicts masked tokens, and knows no noise. Ask for nll.")
        seen = None if bool(there.all()) else self._moved(there)
        tokens = self._moved(torch.where(there, rows.noised, self.loaded.pad_token))
        totals, at = self._moved(rows.totals.float()), self._moved(rows.wanted)
        where = rows.totals.unsqueeze(-1).expand(rows.wanted.shape)[rows.wanted]
        places = [part[rows.wanted].unsqueeze(-1) for part in (rows.noised, rows.tokens)]
        some, found = max(1, LOGITS_AT_ONCE // self.noise.process.states), []
        with self._evaluating():
            features = network.noised_features(tokens, totals, visible=seen, at=at)
            for part, noised, clean, total in zip(
                *(values.split(some) for values in (features, *places, where)), strict=True
            ):
                log_scores = network.log_scores(part, self._moved(noised.squeeze(-1)), total).unsqueeze(1)
                found.append(self.noise.process.score_entropy(log_scores, noised, clean, total).squeeze(-1))
        return torch.cat(found)

    @property
    def clean_passes(self) -> int:
        """How many clean texts a model of blocks has read so far, beside the masked rows that `evaluations` counts."""
        return 0 if self.clean_texts is None else self.clean_texts.encoded

    def _run(self, rows: Rows) -> Float[Tensor, "wanted width"]:
        there = torch.arange(rows.tokens.shape[1]) < rows.lengths.unsqueeze(-1)
        rows = dataclasses.replace(rows, tokens=torch.where(there, rows.tokens, self.loaded.pad_token))
        kept, causal = self.clean_texts, self.network.causal
        if kept is not None and self.blocks is not None and not causal:
            return block_features(cast(BlockNetwork, self.network), kept, rows, self.blocks, self.device)
        if kept is not None and causal and not torch.is_grad_enabled():
            return causal_features(self.network, kept, rows, self.device)
        shown = rows.tokens if causal else torch.where(rows.hidden & there, self.mask_token, rows.tokens)
        visible = None if bool(there.all()) else self._moved(there)
        return self.network.features(self._moved(shown), visible=visible, at=self._moved(rows.wanted))

    def _starts(self, tokens: Tokens, starts: Int[Tensor, " rows"] | None) -> Int[Tensor, " rows"]:
        """Where the blocks of rows begin: with the row, or with what is scored, which must then be said."""
        if starts is not None:
            return starts
        if self.blocks is not None and self.blocks.origin == "response":
            raise InputError(
                f"The blocks of {self.name} begin with what is scored, and masked rows do not say where that is. Give "
                'starts, or load it with block_origin="global".'
            )
        return torch.zeros(len(tokens), dtype=torch.int64)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """In evaluation mode, also while the network is being trained, and in the precision that is asked for."""
        with (
            evaluation_mode(self.network),
            torch.autocast(self.device.type, torch.bfloat16) if self.autocast else ByOneDNN(),
        ):
            yield

    def _widened(self, rows: Rows) -> Rows:
        """Padded to a round width."""
        width = rows.tokens.shape[1]
        wanted = min(rounded(width), self.loaded.limit or sys.maxsize)
        if not self.pads or wanted <= width:
            return rows
        tokens, hidden, asked = (F.pad(p, (0, wanted - width)) for p in (rows.tokens, rows.hidden, rows.wanted))
        return dataclasses.replace(rows, tokens=tokens, hidden=hidden, wanted=asked)

    def _moved(self, part: Tensor) -> Tensor:
        """On the device; without waiting for it where that is possible."""
        return (
            part.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else part.to(self.device)
        )

    def _check_masks(self) -> None:
        if self.noise is not None:
            raise InputError(NO_MASKS)

    def _check_first(self, wanted: Masks) -> None:
        first = self.network.first_predicted
        if bool(wanted[:, :first].any()):
            raise InputError(
                f"{self.name} says nothing about the first {first} token(s) of a row: its output is about the next "
                f"position. {self._advice}"
            )

    @property
    def _advice(self) -> str:
        if self.loaded.begin_token is None:
            return "It has no begin token: score a text after a prompt, or tokens with the first of them as context."
        return "Put a begin token before the text, as context; Model.read does."

    def _check_length(self, length: int) -> None:
        limit = self.loaded.limit
        if limit is not None and length > limit:
            raise InputError(f"{self.name} takes rows of at most {limit} tokens, got {length}. Cut the text.")


def _layout(blocks: BlockLayout | None) -> dict[str, Any]:
    return {} if blocks is None else {"block_size": blocks.size, "block_origin": blocks.origin}


def _beside(files: ModelFiles | None, blocks: BlockLayout | None) -> dict[str, Any]:
    named = None if files is None or blocks is not None else files.surrogate_fingerprint
    return {} if named is None else {"surrogate": named}


def _free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]


def _clean_texts(loaded: LoadedModel, most_bytes: int) -> CleanTexts | None:
    """What a network of blocks needs, and a causal one can use; None for others."""
    if loaded.blocks is None or (loaded.network.causal and not loaded.network.resumes):
        return None
    if not loaded.network.resumes:
        raise InputError(
            f"Blocks of {loaded.blocks.size} tokens need a network for block diffusion, got a "
            f"{type(loaded.network).__name__}, which sees all of a row at once. Leave block_size out."
        )
    return CleanTexts(cast(CleanEncoder, loaded.network), most_bytes=most_bytes)


@torch.no_grad()
def _gpu_budget(loaded: LoadedModel, device: torch.device, free: int) -> int:
    """Tokens of a batch that fills two thirds of the free memory, judged by what a small batch takes."""
    network = loaded.network
    length = min(128, loaded.limit or 128)
    tokens = torch.full((PROBE_TOKENS // length, length), network.tokens - 1, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    places = torch.zeros_like(tokens, dtype=torch.bool)
    places[:, ::2] = True
    with evaluation_mode(network):
        fitting = fits(lambda: network.token_nll(_some_features(loaded, tokens, places), tokens[places]))
    if not fitting:
        return length
    taken = torch.cuda.max_memory_allocated(device) - before
    return max(PROBE_TOKENS, min(MOST_TOKENS, int(PROBE_TOKENS * 2 / 3 * free / max(1, taken))))


def _some_features(loaded: LoadedModel, tokens: Tokens, places: Masks) -> Tensor:
    """As in a batch in which every row has a text of its own, which takes the most memory."""
    network: Any = loaded.network
    if loaded.blocks is None or not network.resumes:
        return network.features(tokens, at=places)
    blocks = loaded.blocks.numbers(tokens.shape[1], torch.zeros(len(tokens), dtype=torch.int64)).to(tokens.device)
    states = network.encode(tokens, blocks=blocks)
    if network.causal:
        return network.normalised(states.last[places])
    return network.block_features(tokens, states, blocks=blocks, at=places)


def _check_one_block(masked: Masks, blocks: Int[Tensor, "rows length"], name: str) -> None:
    """Raise `InputError` unless all masked tokens of a row lie in one block."""
    least, most = blocks.min().item() - 1, blocks.max().item() + 1
    first, last = blocks.where(masked, most).amin(-1), blocks.where(masked, least).amax(-1)
    several = (first < last).nonzero().flatten()
    if len(several):
        row = int(several[0])
        raise InputError(
            f"{name} answers about masked tokens of one block at a time, with all tokens before it known; row {row} "
            f"has masked tokens in blocks {int(first[row])} to {int(last[row])}. Fill blocks from left to right, and "
            "cut rows behind the one to be filled: infodis.sampling.sample does."
        )


def item_of(row: Encoding) -> Item:
    """A row as a thing to score: its own tokens given all others."""
    others = _others(row.target, len(row.tokens))
    tokens, target, context = (torch.from_numpy(part) for part in (row.tokens, row.target, others))
    return Item(tokens, target, context, words=None if row.words is None else torch.from_numpy(row.words))


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
