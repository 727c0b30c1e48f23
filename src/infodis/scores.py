"""`infodis.score`: texts of any kind in, likelihoods with their errors out.

scores = infodis.score("text8-tiny", ["the capital of france", "colorless green ideas"])
scores[0].value, scores[0].standard_error, scores[0].bits_per_byte
scores.to_pandas(), scores.plot()
"""

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, SupportsIndex, cast, overload

import torch
from torch import Tensor, nn

from infodis import notebook
from infodis.auto import Auto
from infodis.catalog import NAMED, as_quantity, quantity_for
from infodis.control import Control, Surrogate
from infodis.design import MaskDesign
from infodis.errors import InfodisError, InputError
from infodis.estimate import Request
from infodis.figures import Figure, bars, histogram
from infodis.item import Item, TextReader, Vocabulary, as_sequence, list_sequences, text_reader
from infodis.models.loading import load
from infodis.models.model import Model, item_of
from infodis.models.tokenizers import Tokenizer, as_tokenizer
from infodis.predictor import Predictor
from infodis.quantities.quantity import Quantity
from infodis.result import Estimate, Measured, RateSum, exp
from infodis.rng import check_seed
from infodis.terminal import printable

SHOWN, COLOURED = 20, 10
"""Rows that a notebook shows, and those of them whose tokens are coloured."""

MOST_BARS = 40
"""Rows that are drawn one by one."""

Plotted = Literal["value", "bits_per_token", "bits_per_byte"]


@dataclasses.dataclass(frozen=True, eq=False)
class Score:
    """What a model says about one text: `value` nats, which is -log p(text | prompt), and how sure that is.

    Where another `quantity` than `nll` was asked for, `value` is that, and so is all that derives from it.

    >>> one = score("text8-tiny", "the capital of france")[0]
    >>> round(one.value), one.standard_error < 1, one.tokens, abs(sum(one.per_token) - one.value) < 1e-9
    (29, True, 21, True)
    """

    estimate: Estimate
    item: Item
    """The row of tokens that was scored."""
    text: str | None = None
    """None for token ids."""
    prompt: str = ""
    tokenizer: Tokenizer | None = None

    @property
    def quantity(self) -> str:
        """What `value` is: `nll` unless something else was asked for."""
        return self.estimate.quantity

    @property
    def value(self) -> float:
        """-log p of the text given the prompt, in nats."""
        return self.estimate.value

    @property
    def standard_error(self) -> float:
        """Of `value`."""
        return self.estimate.standard_error

    @property
    def evaluations(self) -> int:
        """Forward passes spent."""
        return self.estimate.evaluations

    @property
    def tokens(self) -> int:
        """Tokens that were scored."""
        return self.item.target.numel()

    @property
    def unknown(self) -> int:
        """Of the tokens that were scored, those that stand for what the tokenizer does not know."""
        token = None if self.tokenizer is None else self.tokenizer.unknown_token
        return 0 if token is None else int((self.item.tokens[self.item.target] == token).sum())

    @property
    def bytes(self) -> int | None:
        """UTF-8 bytes of the text; None for token ids."""
        return None if self.text is None else len(self.text.encode())

    @property
    def bits_per_token(self) -> float:
        return self.estimate.bits_per_token

    @property
    def bits_per_byte(self) -> float | None:
        """What compares models with different tokenizers; None for token ids."""
        return self.value / math.log(2) / self.bytes if self.bytes else None

    @property
    def perplexity(self) -> float:
        """The exponential of the nats per token; of a pseudo-log-likelihood, the pseudo-perplexity."""
        return self.estimate.perplexity

    @property
    def per_token(self) -> list[float]:
        """What every token costs, in nats; they add up to `value`."""
        return self.estimate.per_token.tolist()

    @functools.cached_property
    def pieces(self) -> list[str]:
        """What the scored tokens look like; their numbers if there is no tokenizer."""
        numbers = self.item.tokens[self.item.target].tolist()
        return [f"{one} " for one in numbers] if self.tokenizer is None else self.tokenizer.pieces(numbers)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A confidence interval of `value`."""
        return self.estimate.interval(level)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **({"prompt": self.prompt} if self.prompt else {}),
            "text": "".join(self.pieces) if self.text is None else self.text,
            "quantity": self.quantity,
            "value": self.value,
            "standard_error": self.standard_error,
            _perplexity_name(self.quantity): self.perplexity,
            "bits_per_token": self.bits_per_token,
            "bits_per_byte": self.bits_per_byte,
            "tokens": self.tokens,
            "evaluations": self.evaluations,
            "stopped": self.estimate.stopped,
        }

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        size = "" if self.bits_per_byte is None else f", bits_per_byte={self.bits_per_byte:.3f}"
        text = printable(self.to_dict()["text"], 40)
        value = f"{self.quantity} = {self.estimate.shown()} nats"
        return f"Score({value}, {_perplexity_name(self.quantity)}={self.perplexity:.4g}{size}, {text!r})"

    def _repr_html_(self) -> str:
        return Scores((self,), "")._repr_html_()


@dataclasses.dataclass(frozen=True, eq=False)
class Scores(Sequence[Score]):
    """Scores of some texts, in their order: a sequence, a table, a picture.

    >>> scores = score("text8-tiny", ["the capital of france", "colorless green ideas"])
    >>> len(scores), [one["text"] for one in scores.to_dicts()], list(scores.to_pandas().columns[:3])
    (2, ['the capital of france', 'colorless green ideas'], ['text', 'quantity', 'value'])
    """

    rows: tuple[Score, ...]
    model: str
    index: Any = None
    """Of the pandas object that the texts came in."""

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Score: ...
    @overload
    def __getitem__(self, place: slice) -> "Scores": ...
    def __getitem__(self, place: int | slice) -> "Score | Scores":
        if isinstance(place, slice):
            return Scores(self.rows[place], self.model, None if self.index is None else self.index[place])
        return self.rows[place]

    def __iter__(self) -> Iterator[Score]:
        return iter(self.rows)

    @property
    def bits_per_token(self) -> Measured:
        """Of all texts together, with the error that the masks leave."""
        return self._rate([row.tokens for row in self.rows])

    @property
    def bits_per_byte(self) -> Measured | None:
        """The same per byte; None if some rows were token ids."""
        sizes = [row.bytes for row in self.rows]
        return None if None in sizes else self._rate([size or 0 for size in sizes])

    @property
    def perplexity(self) -> float:
        """The exponential of the nats per token of all texts together; of `pll`, the pseudo-perplexity [eq:pppl]."""
        return exp(self.bits_per_token.value * math.log(2))

    @property
    def quantity(self) -> str:
        """What the values are."""
        return self.rows[0].quantity

    def _rate(self, below: Sequence[int]) -> Measured:
        total = RateSum()
        for row, size in zip(self.rows, below, strict=True):
            total.add(row.value, size, row.standard_error**2)
        found = total.result(1 / math.log(2)) or {}
        return Measured(found.get("value") or 0.0, found.get("monte_carlo_error") or 0.0)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary of plain values for each text."""
        return [row.to_dict() for row in self.rows]

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each text, under the index of the Series or DataFrame that they came in."""
        return notebook.data_frame(self.to_dicts(), index=self.index)

    def plot(self, quantity: Plotted = "value") -> Figure:
        """A figure: values with 95 % intervals, or a histogram of many. `infodis.figures.save_picture` writes it."""
        if quantity not in ("value", "bits_per_token", "bits_per_byte"):
            raise InputError(f"A plot shows value, bits_per_token or bits_per_byte, got {quantity!r}.")
        shown = [(number, row) for number, row in enumerate(self.rows) if getattr(row, quantity) is not None]
        axis = "nats" if quantity == "value" else quantity.replace("_", " ")
        title = f"{_shown_quantity(self.quantity)} under {self.model}"
        if len(shown) > MOST_BARS:
            values = {"texts": [getattr(row, quantity) for _, row in shown]}
            return histogram(values, axis=axis, name="scores", title=title)
        points = {f"{number}: {_short(row)}": _scaled(row, quantity) for number, row in shown}
        return bars(points, axis=axis, name="scores", title=title, caption="Values and 95 % intervals.")

    def __repr__(self) -> str:
        under = f" under {self.model}" if self.model else ""
        spent = sum(row.evaluations for row in self.rows)
        return f"Scores({_count(len(self))}{under}: {self.bits_per_token} bits per token, {spent} forward passes)"

    def _repr_html_(self) -> str:
        some = self.rows[:SHOWN]
        intervals = [(row.value, *row.interval()) for row in some]
        line = notebook.ends(intervals)
        rows = [
            (
                _prompt(row) + _text(row, coloured=number < COLOURED),
                notebook.text(row.estimate.shown()),
                notebook.error_bar(interval, line),
                f"{row.perplexity:.4g}",
                f"{row.bits_per_token:.3f}" if row.bits_per_byte is None else f"{row.bits_per_byte:.3f}",
                f"{row.evaluations}",
            )
            for number, (row, interval) in enumerate(zip(some, intervals, strict=True))
        ]
        known = all(row.bits_per_byte is not None for row in some)
        size = "bits per byte" if known else "bits per token"
        value, perplexity = f"{_shown_quantity(self.quantity)} in nats", _perplexity_name(self.quantity)
        columns = ("text", value, "95 % interval", perplexity.replace("_", "-"), size, "forward passes")
        more = f", the first {len(some)} of {len(self)}" if len(some) < len(self) else ""
        caption = f"{_count(len(self))}{f' under {self.model}' if self.model else ''}{more}; darker tokens cost more"
        return notebook.table(columns, rows, caption=caption)


def _perplexity_name(quantity: str) -> str:
    return "pseudo_perplexity" if quantity in NAMED and NAMED[quantity].pseudo else "perplexity"


def _shown_quantity(quantity: str) -> str:
    return "-log p" if quantity == "nll" else quantity


def _count(texts: int) -> str:
    return "1 text" if texts == 1 else f"{texts:,} texts"


def _scaled(row: Score, quantity: Plotted) -> tuple[float, float, float]:
    scale = getattr(row, quantity) / row.value if row.value else 1.0
    low, high = row.interval()
    return row.value * scale, low * scale, high * scale


def _short(row: Score) -> str:
    text = row.to_dict()["text"]
    return text if len(text) <= 30 else f"{text[:29]}…"


def _prompt(row: Score) -> str:
    return f'<span style="opacity:.75">{notebook.text(row.prompt)}</span>' if row.prompt else ""


def _text(row: Score, *, coloured: bool) -> str:
    most = 200
    if coloured:
        cut = "…" if row.tokens > most else ""
        return notebook.tokens(row.pieces[:most], row.per_token[:most]) + cut
    return notebook.text(row.to_dict()["text"])


def score(
    model: "str | Path | Model | Predictor | nn.Module",
    texts: Any,
    *,
    prompts: Any = None,
    tokenizer: Any = None,
    quantity: str | Quantity | None = None,
    evaluations: int | None = None,
    standard_error: float | None = None,
    relative: float | None = None,
    design: MaskDesign = Auto(),
    control: Control | None = Surrogate(),
    seed: SupportsIndex = 0,
    batch_size: int | None = None,
) -> Scores:
    """How likely does a model find some texts, and how sure is that? -log p(text | prompt) in nats for each.

    It is what `infodis.nll` computes, with texts read as the model expects them, special tokens included.

    Args:
        model: a name or directory as for `infodis.load`, a model that it returned, a model of transformers or a torch
            module (with `tokenizer`), or any predictor.
        texts: a text or a list of texts; a column of pandas or datasets; rows with the field `text`, or `prompt` and
            `response`; token ids, in lists or tensors.
        prompts: what texts are scored given: one text for all, or one for each.
        tokenizer: for a model that has none: `text8`, a tokenizer.json, or a tokenizer of transformers.
        quantity: what is measured, by name or as a value: `nll` unless given (`dse_nll` of models of uniform or mixed
            noise), `pll`, `pll_within_words`. The glossary says what each is.
        evaluations, standard_error, relative, design, control, seed, batch_size: as for `nll`, for each text.

    >>> scores = score("text8-tiny", ["the capital of france", "colorless green ideas"])
    >>> len(scores), scores[0].tokens, scores[0].value < scores[1].value
    (2, 21, True)
    >>> alone, prompted = score("text8-tiny", ["paris", "paris"], prompts=["", "the capital of france is "])
    >>> float(alone) > float(prompted)
    True
    >>> score("text8-tiny", "paris", quantity="pll")
    Scores(1 text under text8-tiny: 2.83 ± 0 bits per token, 5 forward passes)
    """
    asked = as_quantity(quantity)
    request = Request(design, control, evaluations, standard_error, batch_size, relative=relative)
    number = check_seed(seed)
    predictor, words = resolve_model(model, tokenizer)
    measured = quantity_for(predictor, asked)
    measured.check_request(request)
    rows, index = _rows(texts)
    read = reader_of(predictor, words)
    begun = [_begun(place, row, prompt, read) for place, (row, prompt) in enumerate(_prompted(rows, prompts))]
    check_lengths(predictor, [item for item, _, _ in begun])
    found = _estimates(measured, predictor, [item for item, _, _ in begun], request, number)
    made = (Score(one, item, text, before, words) for one, (item, text, before) in zip(found, begun, strict=True))
    return Scores(tuple(made), predictor.name if isinstance(predictor, Model) else type(predictor).__name__, index)


def resolve_model(model: Any, tokenizer: Any) -> tuple[Predictor, Tokenizer | None]:
    """The predictor, and the tokenizer that it is read with."""
    if isinstance(model, str | Path | nn.Module):
        model = load(model, **({} if tokenizer is None else {"tokenizer": tokenizer}))
        tokenizer = None
    if not isinstance(model, Vocabulary):
        raise InputError(
            f"The model must be a name, a directory, a model of transformers, or a predictor, got a "
            f"{type(model).__name__}. Try infodis.load, or infodis.from_function for a function of your own."
        )
    own = model.loaded.tokenizer if isinstance(model, Model) else None
    if tokenizer is not None and own is not None:
        raise InputError("This model has a tokenizer of its own, got another one. Leave the other one out.")
    return cast(Predictor, model), own if tokenizer is None else as_tokenizer(tokenizer)


Read = Callable[[str, str], Item]


def reader_of(predictor: Predictor, tokenizer: Tokenizer | None) -> Read:
    """What turns a text and its prompt into an item."""
    if isinstance(predictor, TextReader) or tokenizer is None:
        return lambda text, prompt: text_reader(predictor).read(text, prompt=prompt)
    return lambda text, prompt: item_of(tokenizer.read(text, prompt=prompt))


def _rows(texts: Any) -> tuple[list[Any], Any]:
    """What is to be scored, one thing a row, and the index of pandas if there is one."""
    pandas = sys.modules.get("pandas")  # if it is not loaded, nothing is of it
    if pandas is not None and isinstance(texts, pandas.DataFrame):
        return _some(texts.to_dict("records")), texts.index
    if pandas is not None and isinstance(texts, pandas.Series):
        return _some(texts.tolist()), texts.index
    if isinstance(texts, str | Item | Mapping):
        return [texts], None
    if isinstance(texts, Tensor | bytes) or not isinstance(texts, Iterable):
        return list_sequences(texts)[0], None
    rows = list(texts)
    if any(isinstance(row, str | Item | Mapping) for row in rows):
        return rows, None
    return list_sequences(rows)[0], None


def _some(rows: list[Any]) -> list[Any]:
    if not rows:
        raise InputError("There is nothing to score: no text and no tokens were given.")
    return rows


def _prompted(rows: Sequence[Any], prompts: Any) -> Iterator[tuple[Any, Any]]:
    """Every row with its prompt: None, a text, or token ids."""
    if prompts is None or isinstance(prompts, str):
        return zip(rows, itertools.repeat(prompts))
    try:
        each = list(prompts)
    except TypeError:
        raise InputError(f"prompts must be one text, or one for each text, got {prompts!r}. Give a list.") from None
    if len(each) != len(rows):
        raise InputError(
            f"prompts must be one text for all, or one for each of the {len(rows)} texts, got {len(each)}. Give as "
            "many as there are texts."
        )
    return zip(rows, each, strict=True)


def _begun(place: int, row: Any, prompt: Any, read: Read) -> tuple[Item, str | None, str]:
    """A row as an item, with its text and prompt as far as they are text."""
    try:
        if isinstance(row, Mapping):
            row, prompt = _fields(row, prompt)
        if isinstance(row, str):
            return text_item(row, prompt, read)
        return _token_item(row, prompt), None, ""
    except InputError as error:
        raise InputError(f"Row {place}: {error}") from None


def _fields(row: Mapping[Any, Any], prompt: Any) -> tuple[Any, Any]:
    """What a row with fields holds: what to score, and its prompt."""
    wanted = next((name for name in ("text", "response", "tokens") if name in row), None)
    if wanted is None:
        found = ", ".join(map(str, row)) or "none"
        raise InputError(
            f"A row must have the field text, or prompt and response, or tokens, got {found}. "
            "Rename the column, or give it alone: infodis.score(model, rows['...'])."
        )
    if wanted == "tokens":
        return Item.read(row["tokens"], target=row.get("target"), context=row.get("context")), prompt
    if prompt is not None and row.get("prompt") is not None:
        raise InputError("A row has one prompt, got one in its fields and one in prompts. Leave one of them out.")
    return row[wanted], row.get("prompt") if prompt is None else prompt


def text_item(text: str, prompt: Any, read: Read) -> tuple[Item, str, str]:
    """A text as an item, with itself and its prompt."""
    before = "" if prompt is None else prompt
    if not isinstance(before, str):
        raise InputError(f"The prompt of a text must be a text, got {before!r}. Replace it, or leave prompts out.")
    for part in (text, before):
        try:
            part.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"A text must be Unicode, got half of a surrogate pair at character {error.start}. Decode it anew."
            ) from None
    item = read(text, before)
    if not item.target.numel():
        raise InputError(f"A text must have at least one token, got {text!r}. Leave it out.")
    return item, text, before


def _token_item(row: Any, prompt: Any) -> Item:
    """Token ids, after those of a prompt if there is one."""
    if row is None or (isinstance(row, float) and math.isnan(row)):
        raise InputError(f"A text must be a str, got {row!r}, a missing value. Leave it out: texts.dropna() in pandas.")
    if not isinstance(row, Iterable | Item):
        raise InputError(f"A row must be a text, token ids or a row with fields, got {row!r}. Convert it: str(...).")
    if prompt is None or (isinstance(prompt, str) and not prompt):
        return row if isinstance(row, Item) else Item.read(row)
    if isinstance(prompt, str) or isinstance(row, Item):
        raise InputError(f"A prompt of token ids must be token ids, got {prompt!r}. Encode it: model.encode(prompt).")
    before = as_sequence(prompt)
    return Item.read(torch.cat([before, as_sequence(row)]), context=range(len(before)))


def check_lengths(predictor: Predictor, items: Sequence[Item]) -> None:
    """Raise `InputError` if a row is longer than those that a model was trained with, as `infodis score` does."""
    longest = (predictor.loaded.limit or predictor.length) if isinstance(predictor, Model) else None
    for place, item in enumerate(items):
        if longest is not None and item.length > longest:
            raise InputError(
                f"Row {place}: A row must have at most {longest} tokens, the length that the model was made for, got "
                f"{item.length}. Cut the text, or score it in windows: infodis.perplexity(model, text)."
            )


def _estimates(
    quantity: Quantity, predictor: Predictor, items: Sequence[Item], request: Request, seed: int
) -> list[Estimate]:
    """All together; if that fails, an error that names the first row that fails alone."""
    try:
        return quantity.measure(predictor, items, request, seed=seed)
    except InfodisError as error:
        for place, item in enumerate(items):
            try:
                quantity.measure(predictor, [item], request, seed=seed)
            except InfodisError as mine:
                raise type(mine)(f"Row {place}: {mine}") from error
        raise
