"""From the fields of a row to what a model scores: checked tokens, cut to length where that is wanted."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from infodis.errors import InputError
from infodis.item import Item, as_positions
from infodis.jobs.inputs.rejected import Refused, excerpt_of, kind_of
from infodis.models.chat import Message
from infodis.models.model import Model

FIELDS = (
    *("id", "text", "prompt", "response", "tokens", "target", "context"),
    *("messages", "chosen", "rejected", "query", "question", "choices", "answer", "label"),
    *("mutant", "mutated_sequence", "DMS_score"),
    *("sentence_good", "sentence_bad", "good", "bad", "linguistics_term"),
)
"""All fields of a row that are ever looked at."""

SIDES = ("left", "right")

LONG_TOKEN = 256
"""Characters of a token, at most, on average over a row: a text beyond this is too long without being tokenised."""


class FieldValue(NamedTuple):
    """Something that a row holds, and the field it comes from."""

    field: str
    value: Any


NOTHING = FieldValue("", "")


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """Something to score, ready for the model."""

    item: Item
    bytes: int | None
    """Of the text to score, in UTF-8; None if it came as tokens, or some of it was cut off."""
    truncated: int = 0
    """Tokens that were cut off because the row was too long."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """How rows are read."""

    chat: bool = False
    """Put prompts into the model's chat template."""
    max_length: int | None = None
    """Tokens of the longest row. Unless given: what the model takes, or else what it was trained with."""
    truncate: str | None = None
    """Cut longer rows instead of refusing them: `left` drops their beginning, prompt first, `right` their end."""

    def __post_init__(self) -> None:
        if self.truncate not in (None, *SIDES):
            raise InputError(f"truncate is left or right, got {self.truncate!r}.")
        if self.max_length is not None and self.max_length < 1:
            raise InputError(f"max_length must be at least 1, got {self.max_length}.")

    def longest(self, model: Model) -> int | None:
        """Tokens of the longest row; None if there is no limit."""
        limit = model.loaded.limit
        if self.max_length is None:
            return limit or model.length
        if limit is not None and self.max_length > limit:
            raise InputError(f"{model.name} takes at most {limit} tokens, max_length is {self.max_length}.")
        return self.max_length

    def after(self, model: Model, prompt: FieldValue, text: FieldValue) -> Scored:
        """A text after a prompt: both as text, or both as tokens. An empty prompt is none."""
        if isinstance(text.value, str) and isinstance(prompt.value, str):
            return self._text(model, prompt, text)
        own = token_list(text)
        before = [] if prompt.value == "" else token_list(prompt)
        _refuse_empty(FieldValue(text.field, own))
        length = len(before) + len(own)
        item = Item(torch.tensor(before + own), torch.arange(len(before), length), torch.arange(len(before)))
        return self._checked(model, item, prompt, text)

    def last_message(self, model: Model, part: FieldValue) -> Scored:
        """The last of some messages, the assistant's, after the others as the model's chat template writes them."""
        *before, last = messages_of(part)
        _check_template(model)
        if last["role"] != "assistant" or not before:
            raise Refused(
                part.field,
                "The last of at least two messages must be the assistant's: it is scored, given the others. There are "
                f"{len(before) + 1}, the last with the role {last['role']!r}.",
            )
        return self._text(model, FieldValue(part.field, before), FieldValue(part.field, last["content"]))

    def positions(self, model: Model, tokens: FieldValue, target: FieldValue, context: FieldValue) -> Scored:
        """A row of tokens of which some positions are to be scored; None for those that are not given."""
        numbers = token_list(tokens)
        _refuse_empty(FieldValue(tokens.field, numbers))
        if target.value is None and context.value is None:
            whole = Item(torch.tensor(numbers), torch.arange(len(numbers)), torch.arange(0))
            return self._checked(model, whole, tokens, tokens)
        wanted, given = (_places(part, length=len(numbers)) for part in (target, context))
        try:
            item = Item.read(torch.tensor(numbers), target=wanted, context=given)
        except InputError as error:
            raise Refused(target.field, str(error)) from None
        return self._checked(model, item, tokens, tokens)

    def _text(self, model: Model, prompt: FieldValue, text: FieldValue) -> Scored:
        said = prompt if isinstance(prompt.value, str) else FieldValue(prompt.field, _contents(prompt.value))
        chat, size = self.chat or said is not prompt, _bytes(text)
        characters = len(text.value) + len(said.value)
        _bytes(said)
        _refuse_empty(text)
        longest = self.longest(model)
        if longest is not None and self.truncate is None and characters > LONG_TOKEN * longest:
            raise Refused(text.field, _too_long(f"{characters:,} characters", longest))
        model.tokenizer  # noqa: B018 - that a model has none is no fault of the row
        if chat:
            model.check_chat()  # nor is a template that always fails
        try:
            row = model.read(text.value, prompt=prompt.value, chat=chat)
        except InputError as error:
            raise _fault(model, said, text) or (Refused(prompt.field, str(error)) if chat else error) from None
        if not row.target.numel():
            raise Refused(text.field, "It has no tokens: there is nothing to score.")
        found = self._checked(model, row, said, text)
        whole = found.item.target.numel() == row.target.numel()
        return Scored(found.item, size if whole else None, found.truncated)

    def _checked(self, model: Model, item: Item, prompt: FieldValue, text: FieldValue) -> Scored:
        """Cut if need be; then every token that counts must be one that the model knows and says something about."""
        longest = self.longest(model)
        excess = 0 if longest is None else max(0, item.length - longest)
        if longest is not None and excess:
            if self.truncate is None:
                raise Refused(text.field, _too_long(f"{item.length:,} tokens", longest))
            item, excess = _cut(model, item, excess, left=self.truncate == "left", text=text)
        _check_tokens(model, item, prompt, text)
        return Scored(item, None, excess)


def field_names(given: Sequence[str]) -> dict[str, str]:
    """What fields are called in a file, from words like `text=sentence`.

    >>> field_names(["text=sentence", "id=key"])
    {'text': 'sentence', 'id': 'key'}
    """
    names: dict[str, str] = {}
    for words in given:
        ours, _, theirs = words.partition("=")
        if not theirs or ours not in FIELDS:
            raise InputError(f"A field is named like text=sentence, with one of {', '.join(FIELDS)}; got {words!r}.")
        if ours in names:
            raise InputError(f"The field {ours} is named twice: {names[ours]} and {theirs}.")
        names[ours] = theirs
    return names


def listed(part: FieldValue) -> Any:
    """A list that a table holds as text, such as "[1, 2]", or as an empty cell; anything else as it is."""
    if not isinstance(part.value, str) or not part.value:
        return None if part.value == "" else part.value
    try:
        return json.loads(part.value)
    except (ValueError, RecursionError):
        raise Refused(part.field, "It must be a list like [1, 2]; it is a text.") from None


def messages_of(part: FieldValue) -> list[Message]:
    """A conversation: at least one message, each with a role and a content that are texts."""
    found = listed(part)
    if not isinstance(found, list) or not found:
        raise Refused(part.field, f"It must be a list of messages; it is {'empty' if found == [] else kind_of(found)}.")
    for number, one in enumerate(found):
        if not (isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)):
            raise Refused(
                part.field,
                f"Message {number} must be an object with a role and a content, both texts; it is {excerpt_of(one)}.",
            )
    return [{"role": one["role"], "content": one["content"]} for one in found]


def _check_template(model: Model) -> None:
    """That a model has no chat template is no fault of a row."""
    try:
        model.check_chat()
    except InputError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"Rows hold messages, which a chat template must turn into text; {model.name} has none that works. Take an "
            f"instruct model, or give prompt and response as texts. ({reason})"
        ) from error


def _contents(messages: Sequence[Message]) -> str:
    return "".join(one["content"] for one in messages)


def token_list(part: FieldValue) -> list[int]:
    """Token ids, each of which fits into 64 bits."""
    tokens = listed(part)
    if not isinstance(tokens, list):
        raise Refused(part.field, f"It must be a list of token ids; it is {kind_of(tokens)}.")
    for place, token in enumerate(tokens):
        if type(token) is not int:
            raise Refused(
                part.field, f"It must be a flat list of token ids; at position {place} stands {kind_of(token)}."
            )
        if not -(2**63) <= token < 2**63:
            raise Refused(part.field, f"Position {place} holds a number beyond any vocabulary.")
    return tokens


def _places(part: FieldValue, *, length: int) -> Any:
    given = listed(part)
    if given is None:
        return None
    if not isinstance(given, list):
        raise Refused(part.field, f"It must be a list of positions; it is {kind_of(given)}.")
    wrong = next((one for one in given if not isinstance(one, int) or one >= 2**63), None)
    if wrong is not None:
        raise Refused(
            part.field, f"It must be a flat list of positions, or of one boolean a token; it has {kind_of(wrong)}."
        )
    try:
        return as_positions(given, length=length, name=part.field)
    except InputError as error:
        raise Refused(part.field, str(error)) from None


def checked_text(part: FieldValue) -> str:
    """A text that is not empty and can be written as UTF-8."""
    _bytes(part)
    _refuse_empty(part)
    return str(part.value)


def _bytes(part: FieldValue) -> int:
    try:
        return len(part.value.encode())
    except UnicodeEncodeError as error:
        raise Refused(part.field, f"It is not Unicode: half of a surrogate pair at character {error.start}.") from None


def _refuse_empty(part: FieldValue) -> None:
    if not part.value:
        raise Refused(part.field, "It is empty: there is nothing to score.")


def _too_long(found: str, longest: int) -> str:
    return f"It is too long: the row has {found}, at most {longest:,} tokens are taken. Cut it, or say --truncate left."


def _fault(model: Model, prompt: FieldValue, text: FieldValue) -> Refused | None:
    """Which of two texts the tokenizer refuses; None if it is neither."""
    for part in (prompt, text):
        try:
            model.encode(part.value)
        except InputError as error:
            return Refused(part.field, str(error))
    return None


def _cut(model: Model, item: Item, excess: int, *, left: bool, text: FieldValue) -> tuple[Item, int]:
    """Without so many tokens at one end, and how many these are. Special tokens around stay."""
    before, behind = _around(model, item)
    begin, first = model.loaded.begin_token, int(item.target[0]) - excess
    if left and not before and begin is not None and first < model.network.first_predicted:
        item, before, excess = _begun(item, begin), 1, excess + 1
    stop = before + excess if left else item.length - behind
    start = stop - excess
    stays = [(places < start) | (places >= stop) for places in (item.target, item.context)]
    kept = [places[some] for places, some in zip((item.target, item.context), stays, strict=True)]
    target, context = (torch.where(places < start, places, places - excess) for places in kept)
    words = None if item.words is None else item.words[stays[0]]
    if not len(target) or excess > item.length - before - behind:
        raise Refused(text.field, f"It is too long: nothing of the target is left when {excess:,} tokens are cut off.")
    return Item(torch.cat([item.tokens[:start], item.tokens[stop:]]), target, context, words), excess


def _begun(item: Item, begin: int) -> Item:
    """With a begin token before the first token."""
    tokens = torch.cat([torch.tensor([begin]), item.tokens])
    return Item(tokens, item.target + 1, torch.cat([torch.tensor([0]), item.context + 1]), item.words)


def _around(model: Model, item: Item) -> tuple[int, int]:
    """How many special tokens the row has at its beginning and its end."""
    if model.loaded.tokenizer is None:
        return 0, 0
    before, behind = model.around()
    tokens = item.tokens.tolist()
    first = len(before) if tokens[: len(before)] == before else 0
    last = len(behind) if tokens[len(tokens) - len(behind) :] == behind else 0
    return first, last


def _check_tokens(model: Model, item: Item, prompt: FieldValue, text: FieldValue) -> None:
    numbers, mask = item.tokens.numpy(), model.mask_token  # a third of the time of tensors
    unknown = numbers.min() < 0 or numbers.max() >= model.vocab_size
    if unknown or (mask < model.vocab_size and (numbers == mask).any()):
        try:
            item.check_vocabulary(vocab_size=model.vocab_size, mask_token=mask)
        except InputError as error:
            given = numbers[item.context.numpy()]
            in_prompt = ((given < 0) | (given >= model.vocab_size) | (given == mask)).any()
            raise Refused((in_prompt and prompt.field) or text.field, str(error)) from None
    first = model.network.first_predicted
    if first and int(item.target[0]) < first:
        raise Refused(
            text.field, f"{model.name} says nothing about the first {first} token(s) of a row: put others before it."
        )
