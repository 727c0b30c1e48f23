"""Features of masked rows of a model of blocks, and of clean rows of a causal one, beside kept states of their texts.

A noisy token sees its own noisy block and clean blocks before it. So of a masked row only those blocks go through the
network that are asked about, and of its clean text only what comes before its last one: a prompt is read once, as clean
text. A causal model is asked about the clean text itself.
"""

import dataclasses

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from infodis.blocks import BlockLayout
from infodis.evaluate import rounded
from infodis.models.clean_texts import CleanRows, CleanTexts
from infodis.models.nets.block_network import BEHIND, BlockNetwork, BlockNumbers, CleanStates, Positions
from infodis.models.nets.network import Features, Network, Tokens
from infodis.predictor import Rows


@dataclasses.dataclass(frozen=True, eq=False)
class BlockRows:
    """Masked rows from the first to the last block that is asked about, padded on the right."""

    tokens: Tokens
    positions: Positions
    blocks: BlockNumbers
    wanted: Bool[Tensor, "rows width"]
    known: Int[Tensor, " rows"]
    """How many tokens of a text come before its last block, which as clean text nobody sees."""

    @staticmethod
    def cut(noisy: Tokens, wanted: Bool[Tensor, "rows length"], blocks: Int[Tensor, "rows length"]) -> "BlockRows":
        none = torch.iinfo(blocks.dtype).min
        first = blocks.where(wanted, BEHIND).amin(-1, keepdim=True)
        last, final = (blocks.where(some, none).amax(-1, keepdim=True) for some in (wanted, blocks < BEHIND))
        begin, end, known = (blocks < first).sum(-1), (blocks <= last).sum(-1), (blocks < final).sum(-1)
        width = rounded(max(1, int((end - begin).amax())))
        places = begin.unsqueeze(-1) + torch.arange(width)
        inside, places = places < end.unsqueeze(-1), places.clamp(max=blocks.shape[1] - 1)
        tokens, numbers, asked = (part.gather(1, places) for part in (noisy, blocks, wanted))
        return BlockRows(tokens, places, numbers.where(inside, BEHIND), asked & inside, known)


def block_features(
    network: BlockNetwork, kept: CleanTexts, rows: Rows, layout: BlockLayout, device: torch.device
) -> Features:
    """What the last layer needs at the wanted places of masked rows, in one long row."""
    there = torch.arange(rows.tokens.shape[1]) < rows.lengths.unsqueeze(-1)
    blocks = layout.numbers(rows.tokens.shape[1], rows.starts).where(there, BEHIND)
    noisy = torch.where(rows.hidden & there, network.mask_token, rows.tokens)
    cut = BlockRows.cut(noisy, rows.wanted, blocks)
    texts, owner = kept.states(CleanRows(rows.tokens, cut.known, blocks), device)
    states = _joined(network, texts, device)
    return network.block_features(
        cut.tokens.to(device),
        states,
        owner=torch.tensor(owner, device=device),
        blocks=_once(cut.blocks).to(device),
        clean_blocks=_once(blocks[:, : states.length]).to(device),  # what is not known of a row is in its last block
        positions=_once(cut.positions).to(device),
        at=cut.wanted.to(device),
    )


def causal_features(network: Network, kept: CleanTexts, rows: Rows, device: torch.device) -> Features:
    """The same of a causal network: its states of the clean text are the answer."""
    first = network.first_predicted
    row, place = rows.wanted.nonzero(as_tuple=True)
    blocks = torch.arange(rows.tokens.shape[1]).unsqueeze(0)
    texts, owner = kept.states(CleanRows(network.inputs(rows.tokens), rows.lengths - first, blocks), device)
    said = [text.last[0] for text in texts if text.last is not None]
    starts = torch.tensor([0, *(len(one) for one in said)]).cumsum(0)[:-1]
    return network.normalised(torch.cat(said)[(starts[torch.tensor(owner)[row]] + place - first).to(device)])


def _joined(network: BlockNetwork, texts: list[CleanStates], device: torch.device) -> CleanStates:
    """As wide as the longest. Nothing, of a batch that is asked about first blocks only."""
    if texts:
        return CleanStates.joined(texts, texts[0].length)
    nothing = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return network.encode(nothing, blocks=nothing).text(0, 0)


def _once(rows: Int[Tensor, "rows length"]) -> Int[Tensor, "#rows length"]:
    """One row if all are alike: then one picture of who sees whom serves all."""
    return rows[:1] if bool((rows == rows[:1]).all()) else rows
