"""Masked language models of transformers (BERT, RoBERTa, ModernBERT, ESM, ...): whatever has a `model_type`.

They run by their own code, by `AutoModelForMaskedLM`. Two things differ among them and are found out by trying:
whether the last layer can be run at some positions only, and whether padding leaks. Code that comes with a model
(`auto_map`) runs only if you say so.
"""

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from infodis.errors import InputError
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import special_token, token_count, vocabulary
from infodis.models.adapters.transformers_model import (
    TransformersNetwork,
    check_code,
    close,
    find_tokenizer,
    longest_row,
    pretrained,
)
from infodis.models.adapters.weights import check_weights
from infodis.models.nets.network import Features, Places, Tokens
from infodis.models.options import ModelOptions
from infodis.models.tokenizers import LibraryTokenizer, Subwords, Tokenizer
from infodis.rng import stream

HONOURS = ("mask_token",)
MASKS = ("[MASK]", "<mask>")
"""What masks are called where nothing says so."""


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return "model_type" in config or "auto_map" in config


class MaskedLM(TransformersNetwork):
    """A masked language model of transformers.

    `like` is the same model in float32, which has found out what this one, in less precision, could not tell apart.
    """

    def __init__(
        self, model: nn.Module, *, mask_token: int, tokens: int, pad_token: int, like: "MaskedLM | None" = None
    ) -> None:
        super().__init__(model, tokens=tokens, pad_token=pad_token)
        self.mask_token = mask_token
        if like is not None:
            self.vocab_size, self.pads = like.vocab_size, like.pads
            self._head = cast(Any, model).get_output_embeddings() if like.split else None
            return
        with torch.no_grad():
            self.vocab_size = self._whole(self._try_out(2, 7), None).shape[-1]
            self._head = self._find_head(self._try_out(2, 7))
            self.pads = self._padding_is_not_seen()

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        found = self.outputs(tokens, visible)
        return found if at is None else found[at]

    def _padding_is_not_seen(self) -> bool:
        """Whether a row is answered alike alone, and beside a longer row."""
        short, long = self._try_out(1, 5), self._try_out(1, 9)
        padded = torch.cat([short, torch.full((1, 4), self.pad_token, device=short.device)], dim=1)
        visible = torch.ones(2, 9, dtype=torch.bool, device=short.device)
        visible[0, 5:] = False
        together = self._whole(torch.cat([padded, long]), visible)
        return close(together[:1, :5], self._whole(short, None)) and close(together[1:], self._whole(long, None))

    def _try_out(self, rows: int, length: int) -> Tokens:
        """Random tokens, masks among them."""
        device = next(self.model.parameters()).device
        made = torch.randint(self.tokens, (rows, length), generator=stream(0, "try out", rows, length))
        made = torch.where(made == self.pad_token, self.mask_token, made)
        made[:, ::3] = self.mask_token
        return made.to(device)


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    check_code(directory, config, options, "masked")
    tokenizer, missing = find_tokenizer(directory, options)
    check_weights(directory, config)
    model = pretrained(directory, options, torch.float32, "masked")
    columns = int(config.get("vocab_size") or cast(Any, model).config.vocab_size)
    mask_token, disagreement = options.mask_token, None
    if mask_token is None:
        mask_token, disagreement = _mask_token(directory, config, tokenizer)
    pad = config.get("pad_token_id", getattr(cast(Any, model).config, "pad_token_id", None)) or 0
    for name, number in (("mask", mask_token), ("padding", pad)):
        if not 0 <= number < columns:
            raise InputError(f"{directory}: the {name} token {number} must lie within the {columns} of the vocabulary.")
    how: dict[str, Any] = {"mask_token": mask_token, "tokens": token_count(tokenizer, columns), "pad_token": pad}
    try:
        network = MaskedLM(model, **how)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{directory} loads, but does not run on a few tokens: {error}") from error
    if options.torch_dtype != torch.float32:
        network = MaskedLM(pretrained(directory, options, options.torch_dtype, "masked"), **how, like=network)
    leaks = None if network.pads else "padding leaks into its answers, so only rows of one length share a batch"
    notes = tuple(note for note in (missing, disagreement, leaks) if note is not None)
    length = longest_row(cast(Any, model).config, pad)
    return LoadedModel("masked-lm", network, tokenizer, length, length, pad, notes=notes)


def _mask_token(directory: Path, config: dict[str, Any], tokenizer: Tokenizer | None) -> tuple[int, str | None]:
    """Its number, and a disagreement if the configuration says another one than the tokenizer.

    The tokenizer knows best: some configurations hold a mask_token_id that is only a default of text generation.
    """
    known: list[int | None] = [special_token(directory, tokenizer, "mask_token")]
    known += mask_tokens(tokenizer)
    known += [vocabulary(directory).get(name) for name in MASKS]
    known += [config.get("mask_index"), config.get("mask_token_id")]
    found = next((int(number) for number in known if number is not None), None)
    if found is None:
        raise InputError(
            f"Nothing in {directory} says which token is the mask. Give mask_token=... (--mask-token ...), put "
            "mask_token_id into config.json, or add the model's tokenizer."
        )
    said = config.get("mask_token_id")
    if said in (None, found):
        return found, None
    return found, f"config.json calls token {said} the mask, its tokenizer (or mask_index) {found}, which is used"


def mask_tokens(tokenizer: Tokenizer | None) -> list[int | None]:
    """What a tokenizer calls the mask, the best answer first."""
    if isinstance(tokenizer, LibraryTokenizer):
        return [tokenizer.mask_token]
    return [tokenizer.number(name) for name in MASKS] if isinstance(tokenizer, Subwords) else []
