"""Which blocks was a network trained with? What it says about rows that it should know tells, by two laws.

**The same question has one answer.** Log p of a token given all tokens before it does not depend on how a row is cut
into blocks. A network answers it best as it was trained.

**Information is symmetric.** What the later half of a block tells about the earlier one is what the earlier tells about
the later: log p of both is the same in either order. A network that was trained on such blocks knows both orders. One
that was trained on smaller blocks has never looked ahead across a border between them, and what it sees there tells it
little.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from infodis.blocks import ORIGINS, BlockLayout
from infodis.item import Item
from infodis.models.doctor.examples import ModelUnderTest
from infodis.models.doctor.swaps import surely_above
from infodis.models.model import Model
from infodis.models.nets.block_network import BlockNetwork
from infodis.quantities.orders import order_items
from infodis.reveal import GivenOrder, LeftToRight, RevealRule

Text = tuple[Int[Tensor, "_"], int]
"""Tokens, and where those begin that are scored."""

EQUAL = 0.02
"""Nats a token: answers to one question that differ by less are equally good."""
FALL = 0.65
"""Of what looking ahead tells in smaller blocks. A network that is poor at it gets worse little by little."""
PROMPTS = 2
"""Lengths of a prompt that are tried, to see where blocks begin."""
FEW_ROWS, FEW_TOKENS = 16, 32
"""Rows, and tokens of each, where every token takes a forward pass."""


def rewired(model: Model, blocks: BlockLayout | None) -> Model:
    """The same weights, run with other blocks; None is none."""
    assert isinstance(model.network, BlockNetwork)
    network = model.network.for_blocks(0 if blocks is None else blocks.size)
    return dataclasses.replace(model, loaded=dataclasses.replace(model.loaded, network=network, blocks=blocks))


def left_to_right(subject: ModelUnderTest, model: Model) -> Float64[Tensor, " tokens"]:
    """-log p of tokens of the rows given all tokens before them, as the model is wired."""
    begun = [(row[: first + FEW_TOKENS], first) for row, first in _texts(subject)[:FEW_ROWS]]
    return torch.cat(_costs(model, begun, LeftToRight()))


def better_elsewhere(subject: ModelUnderTest) -> tuple[int, float] | None:
    """The block size (0 is none) with which every token given those before it is surely likelier; and by how much.

    Looked at is whether the network sees a row at once, or one token at a time.
    """
    model = subject.model
    assert model is not None
    own = left_to_right(subject, model)
    for size in (0, 1):
        other = rewired(model, BlockLayout(1) if size else None)
        if (size and not other.network.causal) or other.blocks == model.blocks:
            continue
        gain = own - left_to_right(subject, other)
        if surely_above(gain, than=EQUAL):
            return size, float(gain.mean())
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class Halves:
    """What the halves of blocks of one size tell about each other, in nats for every such block of the rows."""

    size: int
    ahead: Float64[Tensor, " blocks"]
    """What the later half tells about the earlier one."""
    back: Float64[Tensor, " blocks"]
    """What the earlier half tells about the later one."""

    @property
    def both_ways(self) -> bool:
        """Whether looking ahead surely tells more than half of what looking back does."""
        return surely_above(2 * self.ahead - self.back) and surely_above(self.back)

    @property
    def one_way(self) -> bool:
        """Whether it surely tells less than that."""
        return surely_above(self.back - 2 * self.ahead) and surely_above(self.back)

    @property
    def share(self) -> float:
        """Of what looking back tells, what looking ahead does."""
        return float(self.ahead.sum() / self.back.sum())

    def __str__(self) -> str:
        return f"{float(self.ahead.mean()):.2f} against {float(self.back.mean()):.2f} nats in blocks of {self.size}"


def halves(subject: ModelUnderTest) -> list[Halves]:
    """For blocks of 2, 4, 8, ... tokens and of the size in use, up to the first that the network reads one way only."""
    model = subject.model
    assert model is not None
    longest = max(len(subject.inside(row)) for row in subject.rows)
    own = set() if model.blocks is None else {model.blocks.size}
    possible = range(4 if _shifted(model) else 2, longest + 1)
    found: list[Halves] = []
    for size in sorted((own | {2**power for power in range(1, longest.bit_length())}) & set(possible)):
        if not found or not found[-1].one_way:
            found.append(_halves_of(subject, size))
    return found


def beyond(found: list[Halves]) -> Halves | None:
    """The first blocks that are larger than those the network was trained with: suddenly it does not look ahead."""
    if len(found) < 2 or not found[-1].one_way or found[-1].share > FALL * found[-2].share:
        return None
    return found[-1]


def _shifted(model: Model) -> bool:
    """Whether the first token of a block is predicted from the block before, whatever this one shows."""
    return isinstance(model.network, BlockNetwork) and model.network.shifted


def _halves_of(subject: ModelUnderTest, size: int) -> Halves:
    assert subject.model is not None
    layout = BlockLayout(size, "global" if subject.blocks is None else subject.blocks.origin)
    model = rewired(subject.model, layout)
    told = [torch.zeros(2, 0, dtype=torch.float64)]
    for text, first in _texts(subject):
        begin = first if layout.origin == "response" else -(-first // size) * size  # the next border of blocks
        told.append(_told(model, text, begin, size))
    ahead, back = torch.cat(told, dim=1)
    return Halves(size, ahead, back)


def _told(model: Model, row: Int[Tensor, " length"], begin: int, size: int) -> Float64[Tensor, "two blocks"]:
    """For every whole block from a position on: what its halves tell about each other, ahead and back."""
    count = (len(row) - begin) // size
    if count < 1:
        return torch.zeros(2, 0, dtype=torch.float64)
    text = (row[: begin + count * size], begin)
    first = int(_shifted(model))  # in either order
    places = torch.arange(begin, len(text[0])).view(count, size)
    known, earlier, later = places.split([first, size // 2 - first, size - size // 2], dim=1)
    turned = GivenOrder(tuple(torch.cat([known, later, earlier], dim=1).flatten().tolist()))
    plain, other = (_costs(model, [text], rule)[0].view(count, size) for rule in (LeftToRight(), turned))
    saved = plain - other
    return torch.stack([saved[:, : size // 2].sum(1), -saved[:, size // 2 :].sum(1)])


def origins(subject: ModelUnderTest) -> Float64[Tensor, " pieces"]:
    """How many nats a token the other origin of blocks takes off, for pieces of the rows behind a short prompt.

    Both are asked the same: every token given all before it. Prompts are so long that the two origins differ.
    """
    model = subject.model
    assert model is not None
    assert model.blocks is not None
    other = next(origin for origin in ORIGINS if origin != model.blocks.origin)
    pieces = list(_pieces(subject, model.blocks.size))
    wirings = (model, rewired(model, BlockLayout(model.blocks.size, other))) if pieces else ()
    costs = [torch.stack([cost.mean() for cost in _costs(one, pieces, LeftToRight())]) for one in wirings]
    return costs[0] - costs[1] if costs else torch.zeros(0, dtype=torch.float64)


def _pieces(subject: ModelUnderTest, size: int) -> Iterator[Text]:
    """Parts of rows: a block of tokens behind a prompt that ends inside of a block."""
    for row, first in _texts(subject):
        prompts = [first + more for more in range(1, size + 1) if (first + more) % size]
        for prompt in prompts[:PROMPTS]:
            for part in row[first:].split(prompt - first + size):
                if len(part) == prompt - first + size:
                    yield torch.cat([row[:first], part]), prompt


def _costs(model: Model, texts: Sequence[Text], rule: RevealRule) -> list[Float64[Tensor, "_"]]:
    """What every token of texts costs if they are revealed by a rule."""
    items = [Item.read(text, context=range(first)) for text, first in texts]
    return [found.per_token for found in order_items(model, items, rule, seed=0)]


def _texts(subject: ModelUnderTest) -> list[Text]:
    """The rows without what stands behind the text."""
    return [(row[: subject.inside(row).stop], subject.inside(row).start) for row in subject.rows]
