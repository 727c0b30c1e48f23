"""Clean keys and values of recent texts: a network computes them once, for all masked rows of a text.

A clean token sees nothing behind its own block. So texts that begin with the same blocks have the same keys and values
there, as the answers to one question do: what is known of one serves the other, and only the rest is computed.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int, UInt64
from torch import Tensor

from infodis.models.nets.block_network import BEHIND, BlockNumbers, CleanEncoder, CleanStates, PastBlocks, Positions
from infodis.models.nets.network import Tokens

SHARED = 16
"""Tokens that two texts of a batch must have in common for one to wait for the other: a call has its price too."""

WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By their size in bytes: how the bits of weights are read as numbers."""

MIXED = [np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD)]
"""Odd numbers by which other numbers are spread over all 64 bits."""


@dataclasses.dataclass(frozen=True, eq=False)
class CleanText:
    """The tokens of a text and the blocks that they are in, counted from its first one."""

    tokens: Int[np.ndarray, " length"]
    blocks: Int[np.ndarray, " length"]

    def __len__(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def ends(self) -> dict[int, int]:
        """Where blocks end, from the first to the last; with a number that texts have in common if they begin alike."""
        places = [*(np.flatnonzero(np.diff(self.blocks)) + 1).tolist(), len(self)]
        return dict(zip(places, _codes(self.tokens, self.blocks)[np.array(places) - 1].tolist(), strict=True))

    def begins_like(self, other: "CleanText", length: int) -> bool:
        """Whether so many tokens are the same in both, in the same blocks."""
        return all(
            np.array_equal(mine[:length], its[:length])
            for mine, its in ((self.tokens, other.tokens), (self.blocks, other.blocks))
        )


def _codes(tokens: Int[np.ndarray, " length"], blocks: Int[np.ndarray, " length"]) -> UInt64[np.ndarray, " length"]:
    """A number for each beginning of a text, by which to look for equal ones: sums of mixed-up tokens."""
    parts = (tokens, blocks, np.arange(len(tokens)))
    words = sum(part.astype(np.uint64) * odd for part, odd in zip(parts, MIXED[:3], strict=True))
    for _ in range(2):
        words = (words ^ (words >> np.uint64(32))) * MIXED[3]
    return np.cumsum(words ^ (words >> np.uint64(32)), dtype=np.uint64)


@dataclasses.dataclass(frozen=True, eq=False)
class CleanRows:
    """The clean texts of a batch of masked rows: their tokens, how many of these are to be read, and their blocks."""

    tokens: Tokens
    lengths: Int[Tensor, " rows"]
    blocks: BlockNumbers

    def texts(self) -> tuple[list[CleanText], list[int]]:
        """The distinct texts, the longest first; and which one each row has. Rows that need nothing have any."""
        blocks = (self.blocks - self.blocks[:, :1]).expand(self.tokens.shape).numpy()
        rows = zip(self.tokens.numpy(), blocks, self.lengths.tolist(), strict=True)
        cut = [(tokens[:length], some[:length]) for tokens, some, length in rows]
        keys = [(tokens.tobytes(), some.tobytes()) for tokens, some in cut]
        distinct = {key: CleanText(*text) for key, text in zip(keys, cut, strict=True) if len(text[0])}
        order = sorted(distinct, key=lambda key: -len(distinct[key]))
        number = {key: place for place, key in enumerate(order)}
        return [distinct[key] for key in order], [number.get(key, 0) for key in keys]


@dataclasses.dataclass(frozen=True, eq=False)
class Beginning:
    """What is known of a text: states of its first tokens, and the kept text that they are from."""

    source: CleanText
    states: CleanStates

    @property
    def length(self) -> int:
        return self.states.length


class CleanTexts:
    """Clean states of the texts that were used last, kept while the network's weights stay what they are.

    Where gradients are asked for, nothing is kept: they go through the clean text too.

    Attributes:
        encoded: how many clean texts went through the network so far, if only in part.
        tokens: how many of their tokens did, padding included.
    """

    def __init__(self, network: CleanEncoder, *, most_bytes: int) -> None:
        self.encoded = self.tokens = 0
        self._network, self._most_bytes, self._bytes = network, most_bytes, 0
        self._kept: collections.OrderedDict[CleanText, CleanStates] = collections.OrderedDict()
        self._by_code: dict[int, CleanText] = {}
        """Of the kept texts that begin in one way, the one that was used last."""
        self._weights: list[int] = []
        self._precision: torch.dtype | None = None
        self._trusted = False

    def states(self, rows: CleanRows, device: torch.device) -> tuple[list[CleanStates], list[int]]:
        """Clean states of the texts of a batch, each once, the longest first; and which of them each row has.

        Texts that have much in common with an earlier one of the batch wait for its states.
        """
        self._forget_outdated(device)
        texts, owner = rows.texts()
        found: dict[int, CleanStates] = {}
        for numbers in self._in_turn(texts):
            begun = [self._beginning(texts[number]) for number in numbers]
            states = self._completed([texts[number] for number in numbers], begun, device)
            found |= dict(zip(numbers, states, strict=True))
            for number, known in zip(numbers, begun, strict=True):
                self._keep(texts[number], found[number], known)
            self._keep_within_memory()
        return [found[number] for number in range(len(texts))], owner

    @contextlib.contextmanager
    def trusting(self) -> Iterator[None]:
        """Within this the weights stay what they are: they are looked at once, not for every batch."""
        self._weights, weights = fingerprint(self._network), self._weights
        if weights != self._weights:
            self._forget()
        before, self._trusted = self._trusted, True
        try:
            yield
        finally:
            self._trusted = before

    def _forget_outdated(self, device: torch.device) -> None:
        """What was computed with other weights, or in another precision; and everything where gradients are to go
        through the clean text too.
        """
        weights = self._weights if self._trusted else fingerprint(self._network)
        precision = _autocast(device)
        if weights != self._weights or precision != self._precision or torch.is_grad_enabled():
            self._forget()
        self._weights, self._precision = weights, precision

    def _forget(self) -> None:
        self._kept.clear()
        self._by_code.clear()
        self._bytes = 0

    def _in_turn(self, texts: list[CleanText]) -> tuple[list[int], list[int]]:
        """The numbers of texts that are read at first, and of those that can then be taken up in the middle."""
        if torch.is_grad_enabled():
            return list(range(len(texts))), []
        first: list[int] = []
        later: list[int] = []
        claimed: set[int] = set()
        for number, text in enumerate(texts):
            begun = self._beginning(text)
            known = 0 if begun is None else begun.length
            worth = {code for end, code in text.ends.items() if end >= known + SHARED}
            if known >= SHARED or worth & claimed:
                later.append(number)
            else:
                first.append(number)
                claimed |= worth
        return first, later

    def _beginning(self, text: CleanText) -> Beginning | None:
        """The longest one that is known."""
        for end, code in reversed(text.ends.items()):
            source = self._by_code.get(code)
            if source is not None and source.begins_like(text, end):
                return Beginning(source, self._kept[source].text(0, end))
        return None

    def _completed(
        self, texts: list[CleanText], begun: list[Beginning | None], device: torch.device
    ) -> list[CleanStates]:
        """The states of texts of which the beginnings are known: the clean pass goes over the rest."""
        pairs = list(zip(texts, begun, strict=True))
        fresh = [(text, known) for text, known in pairs if known is None or known.length < len(text)]
        made = iter(self._encode(fresh, device))
        whole = [known.states if known is not None and known.length == len(text) else None for text, known in pairs]
        return [next(made) if one is None else one for one in whole]

    def _encode(self, texts: list[tuple[CleanText, Beginning | None]], device: torch.device) -> list[CleanStates]:
        if not texts:
            return []
        rest = _Rest.of(texts)
        self.encoded += len(texts)
        self.tokens += rest.tokens.numel()
        states = self._network.encode(
            rest.tokens.to(device),
            blocks=rest.blocks.to(device),
            positions=rest.positions.to(device),
            past=None if rest.past is None else (rest.past[0], rest.past[1].to(device)),
        )
        parts = [states.text(number, length) for number, length in enumerate(rest.lengths)]
        return [
            part.copied() if known is None else known.states.followed_by(part)
            for part, (_, known) in zip(parts, texts, strict=True)
        ]

    def _keep(self, text: CleanText, states: CleanStates, begun: Beginning | None) -> None:
        """A kept text that was gone on with is not needed any more: it is the beginning of the longer one."""
        if torch.is_grad_enabled():
            return
        if begun is None or begun.length < len(text):
            if begun is not None and begun.length == len(begun.source):
                self._drop(begun.source)
            self._kept[text] = states
            self._bytes += states.bytes
        else:
            text = begun.source
        if text in self._kept:  # or another text of the batch has gone on with it
            self._kept.move_to_end(text)
            self._by_code |= dict.fromkeys(text.ends.values(), text)

    def _keep_within_memory(self) -> None:
        """Those go first that were not used for longest."""
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, text: CleanText) -> None:
        if text not in self._kept:
            return
        self._bytes -= self._kept.pop(text).bytes
        for code in text.ends.values():
            if self._by_code.get(code) is text:
                del self._by_code[code]


@dataclasses.dataclass(frozen=True, eq=False)
class _Rest:
    """What is not known of some texts, padded on the right; and the states that come before, with their blocks."""

    tokens: Tokens
    blocks: BlockNumbers
    positions: Positions
    lengths: list[int]
    past: tuple[CleanStates, PastBlocks] | None

    @staticmethod
    def of(texts: list[tuple[CleanText, Beginning | None]]) -> "_Rest":
        starts = [0 if begun is None else begun.length for _, begun in texts]
        spans = [(start, len(text)) for start, (text, _) in zip(starts, texts, strict=True)]
        positions = _padded([np.arange(*span) for span in spans], 0)
        tokens = _padded([text.tokens[slice(*span)] for span, (text, _) in zip(spans, texts, strict=True)], 0)
        blocks = _padded([text.blocks[slice(*span)] for span, (text, _) in zip(spans, texts, strict=True)], BEHIND)
        return _Rest(tokens, blocks, positions, [stop - start for start, stop in spans], _past(texts, starts))


def _past(texts: list[tuple[CleanText, Beginning | None]], starts: list[int]) -> tuple[CleanStates, PastBlocks] | None:
    """Of texts of which nothing is known, it is padding."""
    known = [begun.states for _, begun in texts if begun is not None]
    if not known:
        return None
    states = [known[0].text(0, 0) if begun is None else begun.states for _, begun in texts]
    blocks = [text.blocks[:start] for start, (text, _) in zip(starts, texts, strict=True)]
    return CleanStates.joined(states, max(starts)), _padded(blocks, BEHIND)


def _padded(rows: list[Int[np.ndarray, " _"]], padding: int) -> Int[Tensor, "rows longest"]:
    found = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
    for row, values in zip(found, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(found)


def _autocast(device: torch.device) -> torch.dtype | None:
    """What a network is computed in where torch is asked to choose."""
    chosen = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if chosen else None


@torch.no_grad()
def fingerprint(network: CleanEncoder) -> list[int]:
    """The bits of every weight, added up: training changes the numbers, and so does a change by hand.

    Numbers that change places keep their sum; torch's count of changes in place sees these.
    """
    weights = list(itertools.chain(network.parameters(), network.buffers()))
    sums = [_words(weight.detach().flatten()).sum() for weight in weights]
    added = torch.stack([one.to(sums[0].device) for one in sums]).tolist()  # at once: the host waits for a device once
    return [*added, *(0 if weight.is_inference() else weight._version for weight in weights)]


def _words(weight: Tensor) -> Int[Tensor, " words"]:
    """As whole numbers, of eight bytes where it goes up: these are added fastest."""
    size = weight.element_size()
    return weight.view(torch.int64 if weight.numel() * size % 8 == 0 else WHOLE[size])
