"""Conversations as a model's chat template writes them."""

from infodis.models.chat import chat_text, chat_tokenizer
from infodis.models.model import Model


def rendered(model: Model, messages: list[dict[str, str]], *, answer: bool) -> str:
    """A conversation, up to where an answer begins, or with the last message left open."""
    return chat_text(
        model.template_directory, messages, add_generation_prompt=answer, continue_final_message=not answer
    )


def template(model: Model, name: bool | str) -> str:
    """The template itself; by name where a model has several."""
    return str(chat_tokenizer(model.template_directory).get_chat_template(name if isinstance(name, str) else None))
