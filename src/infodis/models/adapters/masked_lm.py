"""Masked language models of transformers (BERT, RoBERTa, ModernBERT, ESM, ...): whatever has a `model_type`.

They run by their own code, by `AutoModelForMaskedLM`. Two things differ among them and are found out by trying:
whether the last layer can be run at some positions only, and whether padding leaks. Code that comes with a model
(`auto_map`) runs only if you say so.
"""

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import (
    special_token,
    token_count,
    tokenizer_of,
    transformers_tokenizer,
    vocabulary,
)
from infodis.models.adapters.weights import check_weights
from infodis.models.nets.network import Features, Network, Places, Tokens
from infodis.models.options import ModelOptions
from infodis.models.tokenizers import LibraryTokenizer, Subwords, Tokenizer
from infodis.rng import stream

AGREEMENT = 1e-4
"""Largest difference of float32 logits that counts as rounding."""


MASKS = ("[MASK]", "<mask>")
"""What masks are called where nothing says so."""


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    return "model_type" in config or "auto_map" in config


class MaskedLM(Network):
    """A model of transformers, cut before its last layer where that is possible.

    `like` is the same model in float32, which has found out what this one, in less precision, could not tell apart.
    """

    def __init__(
        self, model: nn.Module, *, mask_token: int, tokens: int, pad_token: int, like: "MaskedLM | None" = None
    ) -> None:
        super().__init__()
        self.model, self.mask_token, self.tokens, self.pad_token = model, mask_token, tokens, pad_token
        self.training = model.training
        self._head: nn.Linear | None = None
        self._takes_mask = bool({"attention_mask", "kwargs"} & set(inspect.signature(model.forward).parameters))
        if like is not None:
            self.vocab_size, self.pads = like.vocab_size, like.pads
            self._head = cast(Any, model).get_output_embeddings() if like.split else None
            return
        with torch.no_grad():
            self.vocab_size = self._whole(self._try_out(2, 7), None).shape[-1]
            self._head = self._find_head()
            self.pads = self._padding_is_not_seen()

    @property
    def split(self) -> bool:
        """True if the last layer runs at wanted positions only."""
        return self._head is not None

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        """What goes into the last layer, or what comes out of it where the two cannot be told apart."""
        found = self._whole(tokens, visible) if self._head is None else self._until(self._head, tokens, visible)
        return found if at is None else found[at]

    def last_layer(self) -> nn.Linear:
        assert self._head is not None
        return self._head

    def logits(self, features: Features) -> Float[Tensor, "... vocab"]:
        return super().logits(features) if self.split else self.excluding(features.clone())

    def token_nll(self, features: Features, tokens: Int[Tensor, " places"]) -> Float[Tensor, " places"]:
        if self.split:
            return super().token_nll(features, tokens)
        return F.cross_entropy(self.logits(features).float(), tokens, reduction="none")

    def _whole(self, tokens: Tokens, visible: Places | None) -> Float[Tensor, "rows length columns"]:
        if not self._takes_mask:
            return self.model(input_ids=tokens).logits
        seen = torch.ones_like(tokens) if visible is None else visible.long()
        return self.model(input_ids=tokens, attention_mask=seen).logits

    def _until(self, head: nn.Module, tokens: Tokens, visible: Places | None) -> Float[Tensor, "rows length width"]:
        """What the model hands to a layer of its own; the run ends there."""
        with _input_of(head) as given_to, contextlib.suppress(_Stop):
            self._whole(tokens, visible)
        if len(given_to) != 1 or given_to[0].shape[:2] != tokens.shape:
            raise _NotAHead
        return given_to[0]

    def _find_head(self) -> nn.Linear | None:
        """The last layer, if running it on what it is given answers the same as the whole model."""
        head = getattr(self.model, "get_output_embeddings", lambda: None)()
        if not isinstance(head, nn.Linear):
            return None
        rows = self._try_out(2, 7)
        try:
            mine, whole = head(self._until(head, rows, None)), self._whole(rows, None)
        except (_NotAHead, TypeError, RuntimeError):
            return None
        return head if mine.shape == whole.shape and _close(mine, whole) else None

    def _padding_is_not_seen(self) -> bool:
        """Whether a row is answered alike alone, and beside a longer row."""
        short, long = self._try_out(1, 5), self._try_out(1, 9)
        padded = torch.cat([short, torch.full((1, 4), self.pad_token, device=short.device)], dim=1)
        visible = torch.ones(2, 9, dtype=torch.bool, device=short.device)
        visible[0, 5:] = False
        together = self._whole(torch.cat([padded, long]), visible)
        return _close(together[:1, :5], self._whole(short, None)) and _close(together[1:], self._whole(long, None))

    def _try_out(self, rows: int, length: int) -> Tokens:
        """Random tokens, masks among them."""
        device = next(self.model.parameters()).device
        made = torch.randint(self.tokens, (rows, length), generator=stream(0, "try out", rows, length))
        made = torch.where(made == self.pad_token, self.mask_token, made)
        made[:, ::3] = self.mask_token
        return made.to(device)


class _Stop(Exception):
    """Raised to end a run at a layer."""


class _NotAHead(Exception):
    """The layer was not called once, with one row of features for every row of tokens."""


@contextlib.contextmanager
def _input_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    given_to: list[Tensor] = []

    def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        given_to.append(given[0])
        raise _Stop

    handle = layer.register_forward_pre_hook(hook)
    try:
        yield given_to
    finally:
        handle.remove()


def _close(one: Tensor, two: Tensor) -> bool:
    return bool((one - two).abs().max() <= AGREEMENT * max(1.0, float(two.abs().max())))


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    try:
        import transformers  # noqa: F401 - whether it is there
    except ImportError as error:
        raise InputError("Models of transformers need it: pip install 'infodis[hf]'.") from error
    if "auto_map" in config and not _native(config) and not options.trust_remote_code:
        raise InputError(
            f"{directory} comes with code of its own (auto_map in config.json). Read that code, and if you trust it, "
            "ask for it: trust_remote_code=True, or --trust-remote-code."
        )
    tokenizer, missing = tokenizer_of(directory), None
    if tokenizer is None:
        tokenizer, missing = transformers_tokenizer(directory, trust_remote_code=options.trust_remote_code)
    if tokenizer is None and options.named_tokenizer is not None:
        tokenizer, missing = options.named_tokenizer, None
    check_weights(directory, config)
    model = _from_pretrained(directory, options, torch.float32)
    columns = int(config.get("vocab_size") or cast(Any, model).config.vocab_size)
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
        network = MaskedLM(_from_pretrained(directory, options, options.torch_dtype), **how, like=network)
    leaks = None if network.pads else "padding leaks into its answers, so only rows of one length share a batch"
    notes = tuple(note for note in (missing, disagreement, leaks) if note is not None)
    length = longest_row(cast(Any, model).config, pad)
    return LoadedModel("masked-lm", network, tokenizer, length, length, pad, notes=notes)


def _from_pretrained(directory: Path, options: ModelOptions, dtype: torch.dtype) -> nn.Module:
    """The model with all of its weights: none may be missing, since transformers would draw it at random."""
    import transformers

    talkative = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model, loading = transformers.AutoModelForMaskedLM.from_pretrained(
            directory,
            dtype=dtype,
            trust_remote_code=options.trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError, UnpicklingError) as error:
        raise InputError(f"transformers cannot load {directory} as a masked language model: {error}") from error
    finally:
        transformers.utils.logging.set_verbosity(talkative)
    absent = sorted({*loading["missing_keys"], *(str(key) for key in loading["mismatched_keys"])})
    if absent:
        raise InputError(
            f"{directory} lacks weights of a masked language model: {', '.join(absent[:5])} ({len(absent)} in all). It "
            "may have been saved without its last layer."
        )
    return model.to(options.device).eval().requires_grad_(False)


def _native(config: dict[str, Any]) -> bool:
    """Whether transformers has code of its own for this type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES


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
            f"Nothing in {directory} says which token is the mask. Put mask_token_id into config.json, or add the "
            "model's tokenizer."
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


def longest_row(config: Any, pad: int) -> int | None:
    """Rows as long as there are positions; models in RoBERTa's style count theirs from the padding token on."""
    found = getattr(config, "max_position_embeddings", None)
    if not isinstance(found, int) or found < 1:
        return None
    return found - pad - 1 if config.model_type in OFFSET else found


OFFSET = {
    "camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm",
    "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
"""Types whose first position is the number of the padding token plus one."""
