"""What models of transformers have in common, masked and causal ones: how they are loaded, run and cut.

They run by their own code. Whether the last layer can be run at some positions only, and whether padding leaks, differs
among them and is found out by trying. Code that comes with a model (`auto_map`) runs only if you say so.
"""

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn

from infodis.errors import InputError
from infodis.models.adapters.tokenizer import tokenizer_of, transformers_tokenizer
from infodis.models.nets.network import Features, Network, Places, Tokens
from infodis.models.options import ModelOptions
from infodis.models.tokenizers import Tokenizer

AGREEMENT = 1e-4
"""Largest difference of float32 logits that counts as rounding."""

Kind = Literal["masked", "causal"]
AUTO = {"masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}


class TransformersNetwork(Network):
    """A model of transformers, cut before its last layer where that is possible."""

    def __init__(self, model: nn.Module, *, tokens: int, pad_token: int) -> None:
        super().__init__()
        self.model, self.tokens, self.pad_token = model, tokens, pad_token
        self.training = model.training
        self._head: nn.Linear | None = None
        taken = inspect.signature(model.forward).parameters
        self._takes_mask = bool({"attention_mask", "kwargs"} & set(taken))
        self._without_cache = {"use_cache": False} if "use_cache" in taken else {}

    @property
    def split(self) -> bool:
        """True if the last layer runs at wanted positions only."""
        return self._head is not None

    def outputs(self, tokens: Tokens, visible: Places | None) -> Float[Tensor, "rows length width"]:
        """What goes into the last layer, or what comes out of it where the two cannot be told apart."""
        return self._whole(tokens, visible) if self._head is None else self._until(self._head, tokens, visible)

    def last_layer(self) -> nn.Linear:
        assert self._head is not None
        return self._head

    def logits(self, features: Features) -> Float[Tensor, "... vocab"]:
        return super().logits(features) if self.split else self.excluding(features.clone())

    def token_nll(self, features: Features, tokens: Int[Tensor, " places"]) -> Float[Tensor, " places"]:
        if self.split:
            return super().token_nll(features, tokens)
        return F.cross_entropy(self.logits(features).float(), tokens, reduction="none")

    def _whole(self, tokens: Tokens, visible: Places | None, **more: Any) -> Float[Tensor, "rows length columns"]:
        more = more or self._without_cache
        if not self._takes_mask or "past_key_values" in more:  # a mask would have to cover what is in the cache
            return self.model(input_ids=tokens, **more).logits
        seen = torch.ones_like(tokens) if visible is None else visible.long()
        return self.model(input_ids=tokens, attention_mask=seen, **more).logits

    def _until(
        self, head: nn.Module, tokens: Tokens, visible: Places | None, **more: Any
    ) -> Float[Tensor, "rows length width"]:
        """What the model hands to a layer of its own; the run ends there."""
        with _input_of(head) as given_to, contextlib.suppress(_Stop):
            self._whole(tokens, visible, **more)
        if len(given_to) != 1 or given_to[0].shape[:2] != tokens.shape:
            raise _NotAHead
        return given_to[0]

    def _find_head(self, rows: Tokens) -> nn.Linear | None:
        """The last layer, if running it on what it is given answers the same as the whole model."""
        head = getattr(self.model, "get_output_embeddings", lambda: None)()
        if not isinstance(head, nn.Linear):
            return None
        try:
            mine, whole = head(self._until(head, rows, None)), self._whole(rows, None)
        except (_NotAHead, TypeError, RuntimeError):
            return None
        return head if mine.shape == whole.shape and close(mine, whole) else None


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


def close(one: Tensor, two: Tensor) -> bool:
    """Whether two answers differ by rounding only."""
    return bool((one - two).abs().max() <= AGREEMENT * max(1.0, float(two.abs().max())))


OF_BLOCKS = ("block_size", "bd_size", "block_length", "dlm_paradigm")
"""Keys of configurations that block diffusion models have."""


def check_code(directory: Path, config: dict[str, Any], options: ModelOptions, kind: Kind) -> None:
    """Raise `InputError` unless transformers is there and has code for the model, or the model's own may be run."""
    try:
        import transformers  # noqa: F401 - whether it is there
    except ImportError as error:
        raise InputError("Models of transformers need it: pip install 'infodis[hf]'.") from error
    if _native(config, kind):
        return
    blocks = [f"{key} = {config[key]!r}" for key in OF_BLOCKS if config.get(key)]
    if kind == "masked" and blocks:
        raise InputError(
            f"A model that makes text block by block must be of a family that infodis knows, {directory} "
            f"({config.get('model_type')}, {blocks[0]}) is of none: run as one that sees a row at once, it would give "
            "wrong numbers. See the table of models in the documentation."
        )
    if "auto_map" in config and not options.trust_remote_code:
        raise InputError(
            f"{directory} comes with code of its own (auto_map in config.json). Read that code, and if you trust it, "
            "ask for it: trust_remote_code=True, or --trust-remote-code."
        )


def _native(config: dict[str, Any], kind: Kind) -> bool:
    """Whether transformers has code of its own for this type."""
    from transformers.models.auto import modeling_auto

    known = {"masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"}
    return config.get("model_type") in getattr(modeling_auto, known[kind])


def find_tokenizer(directory: Path, options: ModelOptions) -> tuple[Tokenizer | None, str | None]:
    """The model's tokenizer, or else the one that the user names; and why there is none."""
    tokenizer, missing = tokenizer_of(directory), None
    if tokenizer is None:
        tokenizer, missing = transformers_tokenizer(directory, trust_remote_code=options.trust_remote_code)
    if tokenizer is None and options.named_tokenizer is not None:
        tokenizer, missing = options.named_tokenizer, None
    return tokenizer, missing


def pretrained(directory: Path, options: ModelOptions, dtype: torch.dtype, kind: Kind) -> nn.Module:
    """The model with all of its weights: none may be missing, since transformers would draw it at random."""
    import transformers

    talkative = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model, loading = getattr(transformers, AUTO[kind]).from_pretrained(
            directory,
            dtype=dtype,
            trust_remote_code=options.trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError, UnpicklingError) as error:
        hint = "" if kind == "causal" else " An autoregressive model needs causal=True, or --causal."
        raise InputError(f"transformers cannot load {directory} as a {kind} language model: {error}{hint}") from error
    finally:
        transformers.utils.logging.set_verbosity(talkative)
    absent = sorted({*loading["missing_keys"], *(str(key) for key in loading["mismatched_keys"])})
    if absent:
        raise InputError(
            f"{directory} lacks weights of a {kind} language model: {', '.join(absent[:5])} ({len(absent)} in all). It "
            "may have been saved without its last layer."
        )
    return model.to(options.device).eval().requires_grad_(False)


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
