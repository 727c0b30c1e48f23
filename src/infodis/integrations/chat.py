"""Conversations as a model's chat template writes them."""

import functools
from pathlib import Path
from typing import Any

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
    return _loaded(model.directory)


@functools.lru_cache(maxsize=4)
def _loaded(directory: Path) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError("Chat templates need transformers: pip install 'infodis[hf]'.") from error
    try:
        found = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"The tokenizer of {directory} cannot be loaded: {error}") from error
    if not found.chat_template:
        raise InputError(f"{directory} has no chat template: it is not an instruct model. Leave the template out.")
    return found
