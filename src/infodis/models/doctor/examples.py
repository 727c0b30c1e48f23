"""A model, and rows that it should know: what the checks look at."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from infodis.blocks import BlockLayout, blocks_of
from infodis.errors import InfodisError, InputError
from infodis.item import Item
from infodis.models.model import Model
from infodis.models.tokenizers import Tokenizer
from infodis.noise.design import Noise, noise_of
from infodis.predictor import NoisedRows, NoisePredictor, Predictor, RowPredictor, Rows
from infodis.rng import stream

LONGEST = 64
"""Tokens of a row that is looked at; two blocks if that is more."""
MOST_ROWS = 32
"""That are looked at. A long text gives several."""
SHORTEST = 8
"""Tokens of a row that says anything."""
KNOWN_SHARE = 0.5
"""Of a text's tokens: a tokenizer must know as many for the text to say anything."""

SENTENCES = (
    "The capital of France is the city of Paris, and the capital of Italy is the city of Rome.",
    "She opened the door, looked out of the window, and closed it again because it was cold outside.",
    "In the first half of the year the company sold more cars than in the whole of the year before.",
    "Water boils at a hundred degrees and freezes at zero degrees if the pressure is that of the air at sea level.",
)
"""Text that a model of English should find likely, whatever it was trained on; in lower case for small alphabets."""


@dataclasses.dataclass(frozen=True, eq=False)
class ModelUnderTest:
    """A predictor, and rows of tokens that it should know.

    The first `head` and the last `tail` tokens of a row are special ones: they are never hidden.
    """

    predictor: Predictor
    rows: Sequence[Int[Tensor, "_"]]
    head: int = 0
    tail: int = 0
    texts: tuple[str, ...] = ()
    """What the rows say, if they are of text."""
    cannot_judge: str = ""
    """Why nothing can be judged by the rows, if it cannot."""

    @property
    def model(self) -> Model | None:
        return self.predictor if isinstance(self.predictor, Model) else None

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.model.loaded.tokenizer if self.model is not None else None

    @property
    def blocks(self) -> BlockLayout | None:
        return blocks_of(self.predictor)

    @property
    def noise(self) -> Noise | None:
        """The noise that it was made for; None if it predicts masked tokens."""
        return noise_of(self.predictor)

    @property
    def causal(self) -> bool:
        """Whether it masks nothing."""
        return self.model is not None and self.model.network.causal

    @property
    def beyond_text(self) -> frozenset[int]:
        """Tokens that say nothing about a model's knowledge: special ones, and the one for what is not known."""
        return frozenset() if self.tokenizer is None else self.tokenizer.beyond_text

    def inside(self, row: Int[Tensor, "_"]) -> range:
        """Positions that may be hidden."""
        first = self.model.network.first_predicted if self.model is not None else 0
        return range(max(self.head, first), len(row) - self.tail)

    def starts(self, tokens: Int[Tensor, "rows length"]) -> Int[Tensor, " rows"]:
        """Where the blocks of rows begin, if everything that may be hidden is scored."""
        first = torch.full((len(tokens), 1), self.inside(tokens[0]).start)
        return first[:, 0] * 0 if self.blocks is None else self.blocks.starts(first)

    def split(self, row: Int[Tensor, " length"], hidden: Bool[Tensor, " length"]) -> Bool[Tensor, "rows length"]:
        """What is hidden in the rows that tell about all hidden tokens: one, or one for every block that hides any."""
        if self.blocks is None:
            return hidden.unsqueeze(0)
        numbers = self.blocks.numbers(len(row), self.starts(row.unsqueeze(0)))[0]
        return hidden & (numbers == numbers[hidden].unique().unsqueeze(-1))

    def log_conditionals(
        self, tokens: Int[Tensor, "#rows length"], hidden: Bool[Tensor, "rows length"], mask: int | None = None
    ) -> Float[Tensor, "rows length vocab"]:
        """What is said about rows in which tokens are hidden, those of one block each; by another mask if one is given.

        At visible places there may be anything.
        """
        used = self.predictor.mask_token if mask is None else mask
        masked = torch.where(hidden, used, tokens)
        if self.model is None or self.blocks is None:
            return self.predictor.log_conditionals(masked)
        model, starts = hiding_by(self.model, used), self.starts(masked)
        clean = torch.where(hidden, model.loaded.pad_token, tokens)
        wanted = (torch.arange(tokens.shape[1]) >= model.network.first_predicted).expand(hidden.shape)
        lengths = torch.full((len(hidden),), tokens.shape[1])
        found = torch.full((*hidden.shape, model.vocab_size), -math.log(model.vocab_size), device=model.device)
        found[wanted.to(model.device)] = model.conditionals(Rows(clean, hidden, wanted, lengths, starts))
        return found

    def surprisal(
        self, tokens: Int[Tensor, "rows length"], hidden: Bool[Tensor, "rows length"]
    ) -> Float[Tensor, "rows length"]:
        """-log p of the hidden tokens, wherever they are; of a model of noise what it says of them instead."""
        if isinstance(self.predictor, NoisePredictor) and self.noise is not None:
            lengths = torch.full((len(tokens),), tokens.shape[1])
            found = torch.zeros(tokens.shape)
            found[hidden] = noised_surprisals(self.predictor, tokens, hidden, lengths).float()
            return found
        if self.blocks is None or not isinstance(self.predictor, RowPredictor):
            return self.predictor.surprisal(tokens, hidden)
        lengths = torch.full((len(tokens),), tokens.shape[1])
        found = torch.zeros(tokens.shape)
        found[hidden] = (
            self.predictor.surprisals(Rows(tokens, hidden, hidden, lengths, self.starts(tokens))).cpu().float()
        )
        return found


def hiding_by(model: Model, mask: int) -> Model:
    """The same model with another token for the mask."""
    if mask == model.mask_token:
        return model
    network = copy.copy(model.network)
    network.mask_token = mask
    return dataclasses.replace(model, loaded=dataclasses.replace(model.loaded, network=network))


def with_examples(model: Model, texts: Sequence[str] = ()) -> ModelUnderTest:
    """A model with rows of text that it can read, or with random rows, by which its knowledge is not judged."""
    if model.loaded.tokenizer is None:
        return _with_random_rows(model, "it has no tokenizer to read examples with")
    given = list(texts) or [*SENTENCES, *(_lower(sentence) for sentence in SENTENCES)]
    read = [(text, row) for text in given if (row := read_example(model, text)) is not None]
    if texts and not read:
        raise InputError("None of the texts can be used: each must have at least 8 tokens that the model knows.")
    if not read:
        return _with_random_rows(model, "the examples, English sentences, are not of its alphabet")
    known = [_known_share(row, model.loaded.tokenizer) for _, row in read]
    good = {tuple(one[1].tokens.tolist()): one for one, share in zip(read, known, strict=True) if share > KNOWN_SHARE}
    if not good:
        unknown = 100 * (1 - sum(known) / len(known))
        return _with_random_rows(model, f"{unknown:.0f} % of the examples' tokens are unknown to its tokenizer")
    found = [row for _, row in good.values()]
    head, tail = int(found[0].target[0]), len(found[0].tokens) - 1 - int(found[0].target[-1])
    wanted = LONGEST if model.blocks is None else max(LONGEST, 2 * model.blocks.size)
    longest = min(wanted, model.loaded.limit or wanted)
    rows = _rows([row.tokens for row in found], head, tail, longest)
    return ModelUnderTest(model, rows, head, tail, tuple(texts) or tuple(text for text, _ in good.values()))


def _rows(texts: Sequence[Int[Tensor, "_"]], head: int, tail: int, longest: int) -> list[Int[Tensor, "_"]]:
    """Texts cut into rows of at most so many tokens, special ones around each. Beginnings come first."""
    rows: list[list[Tensor]] = []
    for text in texts:
        first, last = text[:head], text[len(text) - tail :]
        pieces = text[head : len(text) - tail].split(longest - head - tail)
        kept = [piece for n, piece in enumerate(pieces) if n == 0 or len(piece) >= SHORTEST]
        rows.append([torch.cat([first, piece, last]) for piece in kept])
    turns = itertools.zip_longest(*rows)
    return [row for turn in turns for row in turn if row is not None][:MOST_ROWS]


def tolerant(model: Model) -> Model:
    """The same model, which reads texts that its tokenizer does not know: how much that is, checks find out."""
    return dataclasses.replace(model, allow_unknown=True, batch_tokens=model.tokens_at_once)


def read_example(model: Model, text: str) -> Item | None:
    """A text as the model reads it; None if it is too short, or not of its alphabet."""
    try:
        row = tolerant(model).read(text)
    except InfodisError:
        return None
    return row if len(row.target) >= SHORTEST else None


def _known_share(row: Item, tokenizer: Tokenizer) -> float:
    tokens = row.tokens[row.target].tolist()
    return sum(token not in tokenizer.beyond_text for token in tokens) / len(tokens)


def _with_random_rows(model: Model, cannot_judge: str) -> ModelUnderTest:
    length = min(16, model.loaded.limit or 16)
    beyond = {model.mask_token, *(model.loaded.tokenizer.beyond_text if model.loaded.tokenizer is not None else ())}
    columns = range(min(model.vocab_size, model.network.tokens))
    possible = torch.tensor([token for token in columns if token not in beyond] or [0])
    picks = torch.randint(len(possible), (4, length), generator=stream(0, "doctor"))
    return ModelUnderTest(model, list(possible[picks]), cannot_judge=cannot_judge)


def _lower(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalpha() or character == " ")


@torch.no_grad()
def alternate_surprisals(predictor: RowPredictor, rows: list[Tensor], first: int) -> Float64[Tensor, " wanted"]:
    """-log p of every other token of rows in one batch, from the position `first` on, all of them hidden.

    A model of noise is asked about the same tokens, noised.
    """
    longest = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    hidden: Bool[Tensor, "rows length"] = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
        hidden[number, max(1, first) : len(row) : 2] = True
    lengths = torch.tensor([len(row) for row in rows])
    if isinstance(predictor, NoisePredictor) and noise_of(predictor) is not None:
        return noised_surprisals(predictor, tokens, hidden, lengths)
    blocks = blocks_of(predictor)
    starts = torch.zeros_like(lengths) if blocks is None else blocks.starts(torch.full((len(rows), 1), max(1, first)))
    return predictor.surprisals(Rows(tokens, hidden, hidden, lengths, starts)).cpu().double()


@torch.no_grad()
def noised_surprisals(
    predictor: NoisePredictor,
    tokens: Int[Tensor, "rows length"],
    exposed: Bool[Tensor, "rows length"],
    lengths: Int[Tensor, " rows"],
    total: float = math.log(2),
) -> Float64[Tensor, " exposed"]:
    """What exposed tokens add to dse_nll at a total noise, per share of tokens that are hit there: nats, as of -log p.

    At a total noise of log 2 every second token was hit.
    """
    totals = torch.full((len(tokens),), total, dtype=torch.float64)
    drawn = predictor.noise.process.noise(tokens, totals, generator=stream(0, "doctor", "noise"))
    rows = NoisedRows(tokens, torch.where(exposed, drawn, tokens), exposed, lengths, totals)
    return predictor.entropies(rows).cpu() * math.exp(total)
