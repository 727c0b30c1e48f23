"""Chat templates: a conversation as the template that comes with a model writes it."""

import contextlib
import functools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infodis.errors import InputError

TEMPLATE_SECONDS = 1.0
"""For a chat template to write a conversation, which takes milliseconds."""


Message = dict[str, str]
"""Of a conversation: its `role` (user, assistant, system, ...) and its `content`."""


def chat_prompt(directory: Path, prompt: str | list[Message]) -> str:
    """What a model sees when a user says `prompt`, or after some messages, up to where it would begin to answer."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return chat_text(directory, messages, add_generation_prompt=True)


@functools.lru_cache(maxsize=4)
def check_chat(directory: Path) -> None:
    """Raise `InputError` unless there is a chat template that works."""
    chat_prompt(directory, "a")


def chat_text(directory: Path, messages: list[Message], **how: bool) -> str:
    """A conversation as a model's template writes it. The template came with the model: it may fail, or never end."""
    tokenizer = chat_tokenizer(directory)
    try:
        with _deadline(TEMPLATE_SECONDS):
            return str(tokenizer.apply_chat_template(messages, tokenize=False, **how))
    except Exception as error:  # whatever a template raises
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(f"The chat template of {directory} fails: {type(error).__name__}: {reason}.") from error


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in Python code that computes for longer, in any thread: a signal reaches the first only."""
    end = time.thread_time() + seconds

    def check(*_: Any) -> Any:
        if time.thread_time() > end:
            raise TimeoutError(f"it takes more than {seconds:g} seconds")
        return check

    before = sys.gettrace()
    sys.settrace(check)
    try:
        yield
    finally:
        sys.settrace(before)


@functools.lru_cache(maxsize=4)
def chat_tokenizer(directory: Path) -> Any:
    """The tokenizer of an instruct model, for its template alone."""
    try:
        import transformers
    except ImportError as error:
        raise InputError("Chat templates need transformers: pip install 'infodis[hf]'.") from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"The tokenizer of {directory} cannot be loaded: {error}") from error
    if not tokenizer.chat_template:
        raise InputError(f"{directory} has no chat template: it is not an instruct model. Leave the template out.")
    return tokenizer
