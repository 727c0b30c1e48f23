"""Conversations as a model's chat template writes them."""

from typing import Any

from infodis.adapters.slow import chat_tokenizer
from infodis.errors import InputError
from infodis.model import Model


def rendered(model: Model, messages: list[dict[str, str]], *, answer: bool) -> str:
    """A conversation, up to where an answer begins, or with the last message left open."""
    return str(
        _tokenizer(model).apply_chat_template(
            messages, tokenize=False, add_generation_prompt=answer, continue_final_message=not answer
        )
    )


def template(model: Model, name: bool | str) -> str:
    """The template itself; by name where a model has several."""
    return str(_tokenizer(model).get_chat_template(name if isinstance(name, str) else None))


def _tokenizer(model: Model) -> Any:
    if model.directory is None:
        raise InputError(f"{model.name} has no chat template: it was not loaded from files.")
    return chat_tokenizer(model.directory)
