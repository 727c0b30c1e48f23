"""Block diffusion: masked tokens of a block, given its visible ones and the clean blocks before it.

A masked row goes through a network beside its clean text, at the same positions. A noisy token sees its own noisy block
both ways, and the clean blocks strictly before it; a clean token sees the clean blocks up to its own (Arriola et al.,
2025). The clean text never sees a noisy token. So its keys and values are computed once (`encode`), and serve all
masked rows of the text (`block_features`). Nor does a clean token see what comes behind its block: texts that begin
with the same blocks have the same keys and values there, and only the rest is computed for each (`past`).
`plain_features` runs both as one row [noisy ; clean]: the same numbers, for twice the work and more.

Padding is a block of its own behind all others (`BEHIND`), which no token of a text sees.
"""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.models.nets.network import Features, Network, Places, Tokens
from infodis.models.nets.transformer import Found, Hidden, Projected, Rotation, attention

BlockNumbers = Int[Tensor, "#rows length"]
"""Which block each position is in, counted from left to right. One row stands for all if their blocks lie alike."""

PastBlocks = Int[Tensor, "#rows past"]
"""The same of clean tokens that are there already."""

Positions = Int[Tensor, "#rows length"]
"""Where tokens stand in their text, likewise."""

BEHIND = 2**31 - 1
"""The block of padding."""

KeyValues = tuple[Float[Tensor, "rows heads _ head_width"], Float[Tensor, "rows heads _ head_width"]]

Owner = Int[Tensor, " rows"]
"""Which of some clean texts a masked row belongs to."""

Seen = Bool[Tensor, "#rows #heads #queries keys"]
"""Which keys a query may see."""


@dataclasses.dataclass(frozen=True, eq=False)
class CleanStates:
    """What the masked rows of some clean texts need of these: keys and values of every layer."""

    keys: tuple[Float[Tensor, "texts heads length head_width"], ...]
    values: tuple[Float[Tensor, "texts heads length head_width"], ...]
    last: Float[Tensor, "texts length width"] | None = None
    """What comes out of the last layer, of networks whose output is about the next position."""

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.parts())

    @property
    def length(self) -> int:
        return self.keys[0].shape[-2]

    def text(self, number: int, length: int) -> "CleanStates":
        """One of the texts, without what lies beyond a length."""
        return self._made([part[number : number + 1].narrow(-2, 0, length) for part in self.parts()])

    def texts(self, numbers: Int[Tensor, " some"], length: int) -> "CleanStates":
        """Some of the texts, likewise."""
        return self._made([part[numbers].narrow(-2, 0, length) for part in self.parts()])

    def followed_by(self, more: "CleanStates") -> "CleanStates":
        """The same texts with what comes behind them."""
        pairs = zip(self.parts(), more.parts(), strict=True)
        return self._made([torch.cat(pair, -2) for pair in pairs])

    def copied(self) -> "CleanStates":
        """By itself: what it was a part of can be forgotten."""
        return self._made([part.clone() for part in self.parts()])

    @staticmethod
    def joined(texts: "list[CleanStates]", length: int) -> "CleanStates":
        """Several texts, padded to one length."""
        every = zip(*(text.parts() for text in texts), strict=True)
        parts = [torch.cat([F.pad(part, (0, 0, 0, length - part.shape[-2])) for part in same]) for same in every]
        return texts[0]._made(parts)

    def parts(self) -> list[Tensor]:
        """Keys and values layer by layer, and what comes out if that is kept."""
        return [*self.keys, *self.values, *([] if self.last is None else [self.last])]

    def _made(self, parts: list[Tensor]) -> "CleanStates":
        """The same kind of states from other parts."""
        layers = len(self.keys)
        last = parts[-1] if self.last is not None else None
        return CleanStates(tuple(parts[:layers]), tuple(parts[layers : 2 * layers]), last)


@runtime_checkable
class CleanEncoder(Protocol):
    """A network that reads clean texts, and can go on where it stopped."""

    def encode(
        self,
        clean: Tokens,
        *,
        blocks: BlockNumbers,
        positions: Positions | None = None,
        past: tuple[CleanStates, PastBlocks] | None = None,
    ) -> CleanStates:
        """States of clean texts, given those of the blocks before them."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...
    def buffers(self, recurse: bool = True) -> Iterator[Tensor]: ...


class Layer(nn.Module):
    """A layer of a transformer but for its attention, so that keys and values can be kept and reused."""

    def project(self, x: Hidden, rotated: Rotation) -> Projected:
        """Queries, keys and values. Queries and keys are turned by their positions."""
        raise NotImplementedError

    def mix(self, x: Hidden, found: Found) -> Hidden:
        """Add what attention found."""
        raise NotImplementedError

    def feed(self, x: Features) -> Features:
        """The feed-forward part, at each position by itself."""
        raise NotImplementedError


class BlockNetwork(Network):
    """A transformer that can do block diffusion. A subclass says what it is made of; how it is run is said here.

    Attributes:
        shifted: the output at a position is about the next one.
    """

    shifted: bool = False
    resumes = True

    def for_blocks(self, size: int) -> "BlockNetwork":
        """The same weights, to be run with blocks of another size; 0 is none."""
        found = copy.copy(self)
        found.block_size = size
        return found

    def embedded(self, tokens: Tokens, positions: Positions) -> Hidden:
        """What goes into the first layer."""
        raise NotImplementedError

    def rotated(self, positions: Positions) -> Rotation:
        """By how much queries and keys are turned, with an axis for heads."""
        raise NotImplementedError

    def layers(self) -> Sequence[Layer]:
        """From the first to the last."""
        raise NotImplementedError

    def normalised(self, x: Features) -> Features:
        """What lies between the last of the layers and the one that makes logits."""
        raise NotImplementedError

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        """Every token sees every visible one. The last feed-forward layer runs at the wanted positions only."""
        if self.block_size and not self.causal:
            raise InputError(
                f"A network for blocks of {self.block_size} tokens needs the clean text beside a masked row, got the "
                "row alone. Score it as a model: infodis.load(network), or use encode and block_features."
            )
        seen = None if visible is None else visible[:, None, None, :]
        x, rotated = self._entered(tokens, None)
        x = self._through(x, rotated, seen, at=self._before(at))
        return self.normalised(_picked(_next(x), at) if self.shifted else x)

    def encode(
        self,
        clean: Tokens,
        *,
        blocks: BlockNumbers,
        positions: Positions | None = None,
        past: tuple[CleanStates, PastBlocks] | None = None,
    ) -> CleanStates:
        """Keys and values of clean texts; of the last layer nothing else is needed, unless its output is.

        `past` has those of the blocks before `clean`, and which blocks they are. `positions` are 0, 1, ... by default.
        """
        x, rotated = self._entered(clean, positions)
        seen, layers = clean_sees(blocks, None if past is None else past[1]), self.layers()
        kept = []
        for number, layer in enumerate(layers, start=1):
            query, key, value = layer.project(x, rotated)
            kept.append((key, value))
            if number < len(layers) or self.shifted or self.causal:
                if past is not None:
                    key, value = _after(past[0], None, number, (key, value))
                x = layer.feed(layer.mix(x, attention(query, key, value, seen, training=self.training)))
        keys, values = zip(*kept, strict=True)
        return CleanStates(keys, values, x if self.shifted or self.causal else None)

    def block_features(
        self,
        noisy: Tokens,
        clean: CleanStates,
        *,
        owner: Owner | None = None,
        blocks: BlockNumbers,
        clean_blocks: PastBlocks | None = None,
        positions: Positions | None = None,
        at: Places | None = None,
    ) -> Features:
        """Features of masked rows. Row n has the clean text number owner[n] of those encoded; by default number n.

        Rows may be parts of their texts: then `positions` says where they stand, and `clean_blocks` which blocks of the
        clean text are there. By default rows begin where their texts do, and have the same blocks.
        """
        x, rotated = self._entered(noisy, positions)
        seen = noisy_sees(blocks, blocks if clean_blocks is None else clean_blocks)
        x = self._through(x, rotated, seen, past=(clean, owner), at=self._before(at))
        if clean.last is None:
            return self.normalised(x)
        return self.normalised(_picked(_next_in_block(x, _said_before(clean.last, owner, x, positions), blocks), at))

    def plain_features(
        self, noisy: Tokens, clean: Tokens, *, blocks: BlockNumbers, at: Places | None = None
    ) -> Features:
        """The same by one pass over rows [noisy ; clean] that share nothing: the definition of the other two."""
        length = noisy.shape[1]
        among, both = clean_sees(blocks), noisy_sees(blocks, blocks)
        seen = torch.cat([both.roll(length, -1), F.pad(among, (length, 0))], -2)  # noisy keys come first here
        (first, (cosine, sine)), (second, _) = self._entered(noisy, None), self._entered(clean, None)
        rotated = torch.cat([cosine, cosine], -2), torch.cat([sine, sine], -2)
        x = self._through(torch.cat([first, second], 1), rotated, seen)
        found, last = x.split(length, 1)
        return self.normalised(_picked(_next_in_block(found, _next(last), blocks) if self.shifted else found, at))

    def _logits_at(self, tokens: Tokens, masked: Places) -> Float[Tensor, "places vocab"]:
        """With gradients through clean and noisy tokens, on the grid that begins with each row."""
        if self.causal or not self.block_size:
            return super()._logits_at(tokens, masked)
        blocks = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0) // self.block_size
        noisy = torch.where(masked, self.mask_token, tokens)
        features = self.block_features(noisy, self.encode(tokens, blocks=blocks), blocks=blocks, at=masked)
        return self.logits(features).float()

    def _entered(self, tokens: Tokens, positions: Positions | None) -> tuple[Hidden, Rotation]:
        """What the layers need to begin with."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        return self.embedded(tokens, positions), self.rotated(positions)

    def _through(
        self,
        x: Hidden,
        rotated: Rotation,
        seen: Seen | None,
        *,
        past: tuple[CleanStates, Owner | None] | None = None,
        at: Places | None = None,
    ) -> Features:
        """All layers. Keys and values of the past, a clean text for each row, stand before the row's own."""
        layers = self.layers()
        for number, layer in enumerate(layers, start=1):
            query, key, value = layer.project(x, rotated)
            if past is not None:
                key, value = _after(*past, number, (key, value))
            x = layer.mix(x, attention(query, key, value, seen, training=self.training))
            x = layer.feed(x if number < len(layers) else _picked(x, at))
        return x

    def _before(self, at: Places | None) -> Places | None:
        """Where the last feed-forward layer has to run: everywhere if outputs are about the next position."""
        return None if self.shifted else at


def clean_sees(blocks: BlockNumbers, past: PastBlocks | None = None) -> Seen:
    """A clean token sees clean blocks up to its own; those of the past are the first of the keys."""
    query, key = blocks[:, None, :, None], blocks[:, None, None, :]
    if past is None:
        return key <= query
    return _beside(past[:, None, None, :] < query, key <= query)


def noisy_sees(blocks: BlockNumbers, clean: PastBlocks) -> Seen:
    """A noisy token sees clean blocks before its own, which are the first of the keys, and its own noisy one."""
    query, key = blocks[:, None, :, None], blocks[:, None, None, :]
    return _beside(clean[:, None, None, :] < query, key == query)


def _beside(before: Bool[Tensor, "_ 1 queries past"], own: Bool[Tensor, "_ 1 queries own"]) -> Seen:
    """One picture for all rows if both are."""
    rows = max(len(before), len(own))
    return torch.cat([part.expand(rows, -1, -1, -1) for part in (before, own)], -1)


def _after(clean: CleanStates, owner: Owner | None, layer: int, own: KeyValues) -> KeyValues:
    """Keys and values of each row's clean text in a layer, then the row's own."""
    key, value = clean.keys[layer - 1], clean.values[layer - 1]
    return torch.cat([_owned(key, owner), own[0]], 2), torch.cat([_owned(value, owner), own[1]], 2)


def _owned(clean: Float[Tensor, "texts ..."], owner: Owner | None) -> Float[Tensor, "rows ..."]:
    """Of each row's clean text. A single one is not copied."""
    if owner is None:
        return clean
    return clean.expand(len(owner), *clean.shape[1:]) if len(clean) == 1 else clean[owner]


def _picked(x: Hidden, at: Places | None) -> Features:
    return x if at is None else x[at]


def _next(x: Hidden) -> Hidden:
    """Outputs moved to the positions that they are about; at the first one is nothing of use."""
    return torch.cat([x[:, :1], x[:, :-1]], 1)


def _said_before(
    last: Float[Tensor, "texts past width"], owner: Owner | None, rows: Hidden, positions: Positions | None
) -> Hidden:
    """What the clean token before each position says about it. Nothing of use where there is none."""
    said = F.pad(last, (0, 0, 1, 0))
    if positions is None:
        positions = torch.arange(rows.shape[1], device=rows.device).unsqueeze(0)
    owner = torch.arange(len(rows), device=rows.device) if owner is None else owner
    return said[owner.unsqueeze(-1), positions.clamp(max=last.shape[1])]


def _next_in_block(noisy: Hidden, before: Hidden, blocks: BlockNumbers) -> Hidden:
    """Outputs moved likewise; but about the first token of a block it is the clean one before it that speaks."""
    inside = F.pad(blocks[:, 1:] == blocks[:, :-1], (1, 0)).unsqueeze(-1)
    return torch.where(inside, _next(noisy), before)
