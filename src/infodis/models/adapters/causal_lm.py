"""Autoregressive models of transformers (GPT-2, Llama, Qwen, Mistral, GPT-NeoX, ...): recognised by `architectures`.

They run by their own code, by `AutoModelForCausalLM`, and are block diffusion with blocks of one token: a token is
predicted from those before it, so one pass over the clean text says everything, and says it exactly. Nothing is ever
masked; the mask token is a number beyond the vocabulary that never reaches the network. Logits are about the next
position and are shifted here. So nothing is said about the first token of a row: a text starts with a begin token, as
context. It is the tokenizer's or the configuration's, or else the end token, which stands between texts in training.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from infodis.blocks import BlockLayout
from infodis.errors import InputError
from infodis.models.adapters.family import LoadedModel
from infodis.models.adapters.tokenizer import begin_token, special_token, token_count
from infodis.models.adapters.transformers_model import (
    TransformersNetwork,
    check_code,
    close,
    find_tokenizer,
    longest_row,
    pretrained,
)
from infodis.models.adapters.weights import check_weights
from infodis.models.nets.block_network import BEHIND, BlockNumbers, CleanStates, PastBlocks, Positions
from infodis.models.nets.network import Features, Places, Tokens
from infodis.models.options import ModelOptions
from infodis.models.tokenizers import Tokenizer
from infodis.rng import stream

HONOURS = ("causal",)
ARCHITECTURES = {
    "BioGptForCausalLM", "BloomForCausalLM", "CodeGenForCausalLM", "CohereForCausalLM", "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM", "FalconForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTJForCausalLM",
    "GPTNeoForCausalLM", "GPTNeoXForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "GemmaForCausalLM",
    "Glm4ForCausalLM", "GlmForCausalLM", "GptOssForCausalLM", "GraniteForCausalLM", "LlamaForCausalLM",
    "Mamba2ForCausalLM", "MambaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "MptForCausalLM",
    "NemotronForCausalLM", "OPTForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoForCausalLM",
    "OpenAIGPTLMHeadModel", "Phi3ForCausalLM", "PhiForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "SmolLM3ForCausalLM", "StableLmForCausalLM", "Starcoder2ForCausalLM",
    "XGLMForCausalLM",
}  # fmt: skip
"""Of autoregressive models. `model_type` would not do: diffusion models keep that of what they were grown from."""

OF_DIFFUSION = ("mask_token_id", "block_size", "bd_size")
"""Keys that an autoregressive model has no use for: with one of them a model may be another one in its clothes."""

LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Rotary positions that depend on how long a row is: what was kept of a short one is wrong in a longer one."""

WINDOW_TOKENS = 2048
"""What long texts are cut into, for models that take longer rows than anybody scores."""


def recognises(config: dict[str, Any]) -> bool:
    """See the head of this file."""
    named = config.get("architectures")
    known = isinstance(named, list) and bool(named) and all(one in ARCHITECTURES for one in named)
    return known and all(config.get(key) is None for key in OF_DIFFUSION)


class CausalLM(TransformersNetwork):
    """An autoregressive model: features of clean tokens, at each position about the token there given those before.

    Rows may be padded on the right without a word to the model: no token sees what is behind it.
    """

    causal = True
    first_predicted = 1

    def __init__(self, model: nn.Module, *, tokens: int, pad_token: int = 0) -> None:
        super().__init__(model, tokens=tokens, pad_token=pad_token)
        with torch.no_grad():
            rows = self._try_out()
            self.vocab_size = self.mask_token = self._whole(rows, None).shape[-1]
            self._head = self._find_head(rows)
            self._check_causal(rows)
            self.resumes = self.split and self._goes_on(rows)

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        """What is said about a token is said where the one before it stands."""
        found = self.outputs(torch.where(tokens == self.mask_token, self.pad_token, tokens), None)
        found = torch.cat([found[:, :1], found[:, :-1]], dim=1)
        return found if at is None else found[at]

    def encode(
        self,
        clean: Tokens,
        *,
        blocks: BlockNumbers,
        positions: Positions | None = None,
        past: tuple[CleanStates, PastBlocks] | None = None,
    ) -> CleanStates:
        """States of clean texts by the model's own cache. It counts positions by itself, so pasts of equal length go
        together, and blocks are those of one token.
        """
        if past is None:
            return self._read_on(clean, None)
        states, before = past
        lengths = (before != BEHIND).sum(-1)
        parts: dict[int, CleanStates] = {}
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().squeeze(1)
            found = self._read_on(clean[rows], states.texts(rows, length))
            parts |= {row: found.text(number, clean.shape[1]) for number, row in enumerate(rows.tolist())}
        return CleanStates.joined([parts[row] for row in range(len(clean))], clean.shape[1])

    def _read_on(self, tokens: Tokens, past: CleanStates | None) -> CleanStates:
        """What the model keeps of tokens, and what it hands to its last layer."""
        from transformers import DynamicCache

        assert self._head is not None
        cache: Any = DynamicCache()
        known = 0 if past is None else past.length
        for number, pair in enumerate(zip(past.keys, past.values, strict=True) if past is not None and known else ()):
            cache.update(*pair, number)
        last = self._until(self._head, tokens, None, past_key_values=cache, use_cache=True)
        keys, values = (
            tuple(getattr(one, part)[..., known:, :] for one in cache.layers) for part in ("keys", "values")
        )
        return CleanStates(keys, values, last)

    def _goes_on(self, rows: Tokens) -> bool:
        """Whether a text that is read in two parts, by the model's cache, is what it is when read at once."""
        config: Any = getattr(self.model, "config", None)
        said = [getattr(config, name, None) for name in ("rope_scaling", "rope_parameters")]
        if any(kind in str(said) for kind in LENGTH_DEPENDENT):
            return False
        try:
            whole, first = self._read_on(rows, None), self._read_on(rows[:, :5], None)
            both = first.followed_by(self._read_on(rows[:, 5:], first))
        except Exception:  # whatever the code of a model raises that keeps something else: it is then run as a whole
            return False
        return all(map(_agree, whole.parts(), both.parts()))

    def _try_out(self) -> Tokens:
        """Two random rows that begin alike."""
        device = next(self.model.parameters(), torch.zeros(0)).device
        rows = torch.randint(self.tokens, (2, 8), generator=stream(0, "try out causal"))
        rows[1, :5], rows[1, 5] = rows[0, :5], (rows[0, 5] + 1) % self.tokens
        return rows.to(device)

    def _check_causal(self, rows: Tokens) -> None:
        found = self._whole(rows, None)
        if not close(found[0, :5], found[1, :5]):
            raise InputError(
                "An autoregressive model must not see the tokens behind the one that it predicts, got one whose answer "
                "changes with them. Leave causal out."
            )


def load_model(directory: Path, config: dict[str, Any], options: ModelOptions) -> LoadedModel:
    """Read configuration, weights and tokenizer."""
    check_code(directory, config, options, "causal")
    tokenizer, missing = find_tokenizer(directory, options)
    check_weights(directory, config)
    model = pretrained(directory, options, options.torch_dtype, "causal")
    columns = int(config.get("vocab_size") or cast(Any, model).config.vocab_size)
    try:
        network = CausalLM(model, tokens=token_count(tokenizer, columns))
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{directory} loads, but does not run on a few tokens: {error}") from error
    said = [special_token(directory, tokenizer, "bos_token"), config.get("bos_token_id")]
    said += [special_token(directory, tokenizer, "eos_token"), config.get("eos_token_id")]
    return loaded_causal("causal-lm", network, tokenizer, said, notes=(missing,))


def loaded_causal(
    family: str,
    network: CausalLM,
    tokenizer: Tokenizer | None,
    begin_tokens: Sequence[Any],
    *,
    notes: tuple[str | None, ...] = (),
) -> LoadedModel:
    """A causal network with what there is to know about it. The first usable begin token is taken."""
    limit = longest_row(getattr(network.model, "config", None), 0)
    begin = begin_token(begin_tokens, tokenizer, network.vocab_size)
    lacking = "it has no begin token, so the first token of a text is not scored: give a prompt, or tokens with context"
    return LoadedModel(
        family,
        network,
        tokenizer,
        WINDOW_TOKENS if limit is None else min(limit, WINDOW_TOKENS),
        limit,
        begin_token=begin,
        notes=tuple(note for note in (*notes, lacking if begin is None else None) if note is not None),
        blocks=BlockLayout(1),
    )


def _agree(one: Tensor, two: Tensor) -> bool:
    """Whether two states differ by rounding only, in the precision that they have."""
    if one.shape != two.shape:
        return False
    rounding = 4 * torch.finfo(one.dtype).eps * max(1.0, float(two.abs().max()))
    return close(one, two) or bool((one - two).abs().max() <= rounding)
