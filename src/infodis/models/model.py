"""Models that are ready to score: a network on its device with its tokenizer, found by `infodis.load`."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from infodis.batching import rounded
from infodis.device import device_named, fits
from infodis.errors import InputError
from infodis.files import read_json
from infodis.models import adapters
from infodis.models.adapters import Opened, Options
from infodis.models.adapters.files import shards, token_count, within
from infodis.models.data import Tokenizer
from infodis.models.nets.network import Network
from infodis.predictor import LogConditionals, Masks, RowPredictor, Rows, Surprisals, Tokens
from infodis.snapshot import Snapshot

POINTER = "checkpoints.json"
"""In the directory of a training run: which of its checkpoints is the last and which the best."""

TOKENS_AT_ONCE = 2**11
"""Of a batch on a processor, padding included: enough to keep it busy, few enough for its cache."""

PROBE_TOKENS, MOST_TOKENS = 2**10, 2**18
"""On a GPU: of the batch that shows how much memory a token takes, and of the largest batch."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclasses.dataclass(frozen=True, eq=False)
class Model(RowPredictor):
    """A predictor with a name, a tokenizer and a fingerprint of its weights."""

    name: str
    opened: Opened
    device: torch.device
    autocast: bool = False
    """Run the network under bfloat16 autocast; the softmax stays in float32."""
    files: "ModelFiles | None" = None
    """What it was read from."""
    batch_tokens: int | None = None
    """Of a batch, padding included; found out unless given."""
    vocab_size: int = dataclasses.field(init=False)
    mask_token: int = dataclasses.field(init=False)
    pads: bool = dataclasses.field(init=False)
    tokens_at_once: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        at_once = self.batch_tokens or TOKENS_AT_ONCE
        if self.batch_tokens is None and self.device.type == "cuda":
            at_once = _gpu_budget(self.network, self.device, self.opened.limit)
        for name, value in (
            ("vocab_size", self.network.vocab_size),
            ("mask_token", self.network.mask_token),
            ("pads", self.network.pads),
            ("tokens_at_once", at_once),
        ):
            object.__setattr__(self, name, value)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of configuration and weights as they were loaded: equal for equal models, wherever they lie."""
        return "" if self.files is None else self.files.model.digest

    @property
    def directory(self) -> Path | None:
        """Where it came from."""
        return None if self.files is None else self.files.directory

    @property
    def network(self) -> Network:
        return self.opened.network

    @property
    def length(self) -> int | None:
        """Tokens in a row as it was trained."""
        return self.opened.length

    @property
    def tokenizer(self) -> Tokenizer:
        if self.opened.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer. Give tokens instead of text, or name a tokenizer.")
        return self.opened.tokenizer

    def encode(self, text: str) -> Tensor:
        """The tokens of a text and nothing else, ready for `nll`. See `read` for models that expect special tokens."""
        return torch.from_numpy(self.tokenizer.encode(text))

    def read(self, text: str, *, prompt: str = "", chat: bool = False) -> "Row":
        """A text after a prompt as the model expects it: special tokens around, prompt and text tokenised together.

        `chat` puts the prompt into the model's chat template, as what a user says.
        """
        prompt = self._chat(prompt) if chat else prompt
        found = self.tokenizer.read(text, prompt=prompt, special=not chat)  # a template brings its own special tokens
        tokens, target = found.tokens, found.target
        begin = self.opened.begin_token
        if begin is not None and bool((target < self.network.unpredictable).any()):
            tokens, target = np.concatenate([[begin], tokens]), target + 1
        return Row(*map(torch.from_numpy, (tokens, target, _others(target, len(tokens)))))

    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that a text is read with: before it, and behind it."""
        before, behind = self.tokenizer.around()
        begin = self.opened.begin_token
        lacking = len(before) < self.network.unpredictable and begin is not None
        return [*([begin] if lacking and begin is not None else []), *before], behind

    def check_chat(self) -> None:
        """Raise `InputError` unless the model has a chat template that works."""
        from infodis.models.adapters.slow import check_chat

        check_chat(self.template_directory)

    def _chat(self, prompt: str) -> str:
        from infodis.models.adapters.slow import chat_prompt

        found = chat_prompt(self.template_directory, prompt)
        if self.files is not None:
            self.files.check_unchanged()  # the template is read when it is needed first
        return found

    @property
    def template_directory(self) -> Path:
        """Where its chat template is."""
        if self.files is None:
            raise InputError(f"{self.name} has no chat template: it was not loaded from files.")
        return self.files.directory

    def decode(self, tokens: Tensor) -> str:
        return self.tokenizer.decode(tokens.tolist())

    @torch.no_grad()
    def log_conditionals(self, tokens: Tokens) -> LogConditionals:
        self._check_length(tokens.shape[1])
        self._check_first(tokens == self.mask_token)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            return self.network.log_conditionals(tokens.to(self.device))

    @torch.no_grad()
    def surprisal(self, tokens: Tokens, masked: Masks) -> Surprisals:
        lengths = torch.full((len(tokens),), tokens.shape[1])
        found = torch.zeros(tokens.shape, device=self.device)
        found[masked.to(self.device)] = self.surprisals(Rows(tokens, masked, masked, lengths))
        return found

    @torch.no_grad()
    def surprisals(self, rows: Rows) -> Float[Tensor, " wanted"]:
        """-log p of the wanted tokens: the last layer runs there only."""
        self._check_length(rows.tokens.shape[1])
        self._check_first(rows.wanted)
        rows = self._widened(rows)
        there = torch.arange(rows.tokens.shape[1]) < rows.lengths.unsqueeze(-1)
        hidden = torch.where(rows.hidden, self.mask_token, rows.tokens)
        tokens = torch.where(there, hidden, self.opened.pad_token)
        visible = None if bool(there.all()) else self._moved(there)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            features = self.network.features(self._moved(tokens), visible=visible, at=self._moved(rows.wanted))
        return self.network.costs(features, self._moved(rows.tokens[rows.wanted]))

    def _widened(self, rows: Rows) -> Rows:
        """Padded to a round width."""
        width = rows.tokens.shape[1]
        wanted = min(rounded(width), self.opened.limit or sys.maxsize)
        if not self.pads or wanted <= width:
            return rows
        tokens, hidden, asked = (F.pad(p, (0, wanted - width)) for p in (rows.tokens, rows.hidden, rows.wanted))
        return Rows(tokens, hidden, asked, rows.lengths)

    def _moved(self, part: Tensor) -> Tensor:
        """On the device; without waiting for it where that is possible."""
        return (
            part.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else part.to(self.device)
        )

    def _check_first(self, wanted: Masks) -> None:
        first = self.network.unpredictable
        if bool(wanted[:, :first].any()):
            raise InputError(
                f"{self.name} says nothing about the first {first} token(s) of a row: its output is about the next "
                "position. Put a begin token before the text, as context; Model.read does."
            )

    def _check_length(self, length: int) -> None:
        limit = self.opened.limit
        if limit is not None and length > limit:
            raise InputError(f"{self.name} takes rows of at most {limit} tokens, got {length}. Cut the text.")


@torch.no_grad()
def _gpu_budget(network: Network, device: torch.device, limit: int | None) -> int:
    """Tokens of a batch that fills two thirds of the free memory, judged by what a small batch takes."""
    length = min(128, limit or 128)
    tokens = torch.full((PROBE_TOKENS // length, length), network.mask_token, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    places = torch.zeros_like(tokens, dtype=torch.bool)
    places[:, ::2] = True
    answers = torch.zeros(int(places.sum()), dtype=torch.int64, device=device)
    if not fits(lambda: network.costs(network.features(tokens, at=places), answers)):
        return length
    taken = torch.cuda.max_memory_allocated(device) - before
    free, _ = torch.cuda.mem_get_info(device)
    return max(PROBE_TOKENS, min(MOST_TOKENS, int(PROBE_TOKENS * 2 / 3 * free / max(1, taken))))


def _others(target: Int[np.ndarray, " target"], length: int) -> Int[np.ndarray, " others"]:
    """The positions that are not in the target, which seldom has gaps."""
    if len(target) and target[-1] - target[0] + 1 == len(target):
        return np.concatenate([np.arange(target[0]), np.arange(target[-1] + 1, length)])
    return np.delete(np.arange(length), target)


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A text as a model reads it, ready for `nll(model, row.tokens, target=row.target, context=row.context)`."""

    tokens: Tensor
    target: Tensor
    """The positions of the text itself."""
    context: Tensor
    """The prompt and special tokens."""


def load(
    spec: str | Path,
    *,
    device: str = "auto",
    dtype: str = "float32",
    tokenizer: Tokenizer | None = None,
    trust_remote_code: bool = False,
    autocast: bool = False,
    compile: bool = False,
    batch_tokens: int | None = None,
) -> Model:
    """A model by name: one that ships with infodis, a directory, or a name on the Hugging Face hub.

    Args:
        spec: a bundled name; a directory with a `config.json` (a checkpoint of ours, of RADD or SEDD, LLaDA, Dream,
            MDLM, or any masked language model of transformers); a training run; `owner/name` on the hub.
        device: `auto` (an NVIDIA GPU, an Apple one (mps) or the CPU, the first that is there), `cpu`, `cuda`, ...
        dtype: what the network computes in: float32, bfloat16 or float16. Softmax is always float32.
        tokenizer: for checkpoints that come without one.
        trust_remote_code: run code that comes with the model. Nothing of the kind is needed for the families above.
        autocast: compute in bfloat16 where torch thinks that is safe.
        compile: run the network through torch.compile; the first batches take longer.
        batch_tokens: tokens of a batch, padding included; on a GPU it is found out by a probe unless given.

    >>> model = load("text8-tiny")
    >>> model.decode(model.encode("some text"))
    'some text'
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype is one of {', '.join(DTYPES)}; got {dtype!r}.")
    if batch_tokens is not None and batch_tokens < 1:
        raise InputError(f"batch_tokens must be at least 1, got {batch_tokens}.")
    directory, place = locate(spec), device_named(device)
    files = ModelFiles.of(directory, tokenizer, code=trust_remote_code)
    opened = adapters.open_model(directory, Options(place, DTYPES[dtype], trust_remote_code))
    files.check_unchanged()
    if tokenizer is not None:
        opened = with_tokenizer(opened, tokenizer, where=directory)
    if compile:  # a bound method is replaced by a compiled one, which mypy takes for a mistake
        opened.network.features = torch.compile(opened.network.features, dynamic=True)  # type: ignore[method-assign]
    return Model(str(spec), opened, place, autocast, files, batch_tokens)


def with_tokenizer(opened: Opened, tokenizer: Tokenizer, *, where: Path) -> Opened:
    """A model that came without a tokenizer, with the one that the user names."""
    if opened.tokenizer not in (None, tokenizer):
        raise InputError(f"{where} has a tokenizer of its own. Leave the other one out.")
    if tokenizer.vocab_size > opened.network.vocab_size:
        raise InputError(
            f"The tokenizer knows {tokenizer.vocab_size} tokens, {where} only {opened.network.vocab_size}. "
            "Name the right one."
        )
    opened.network.tokens = token_count(tokenizer, opened.network.tokens)
    return dataclasses.replace(opened, tokenizer=tokenizer)


def shipped() -> list[str]:
    """Names of the models inside the package."""
    return sorted(path.parent.name for path in _shelf().glob(f"*/{adapters.CONFIG}"))


def _shelf() -> Path:
    return Path(str(resources.files("infodis.models") / "weights"))


def locate(spec: str | Path) -> Path:
    """The directory that a name stands for: see `load`."""
    if str(spec) in shipped():
        return _shelf() / str(spec)
    path = Path(spec)
    if not path.is_dir() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(spec)) and not path.parent.is_dir():
        return _downloaded(str(spec))
    if not path.is_dir():
        raise InputError(
            f"There is no model {str(spec)!r}. It must be the name of one that ships with infodis "
            f"({', '.join(shipped()) or 'none yet'}), a directory (a checkpoint or a training run), or owner/name on "
            "the Hugging Face hub."
        )
    if (path / POINTER).is_file():
        return path / read_pointer(path)["best"]
    return path


def _downloaded(name: str) -> Path:
    """The files of a model on the hub, from its cache if they are there."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise InputError(
            f"There is no directory {name}. To fetch it from the hub: pip install 'infodis[hf]'."
        ) from error
    wanted = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "pytorch_model.bin", "*.py"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"There is no directory {name}, and it cannot be fetched from the hub: {reason}") from error


def read_pointer(run: Path) -> dict[str, Any]:
    """What a training run says about its checkpoints."""
    found = read_json(run / POINTER)
    kinds = {"last": str, "best": str, "step": int, "best_step": int}
    wrong = [key for key, kind in kinds.items() if not isinstance(found, dict) or type(found.get(key)) is not kind]
    if wrong:
        raise InputError(
            f"{run / POINTER} is not what a training run writes: it must hold {', '.join(wrong)}, names as texts and "
            "steps as whole numbers."
        )
    for key in ("last", "best"):
        within(run, found[key], said_by=POINTER)
    return found


WORDS = ("tokenizer*", "vocab*", "merges.txt", "special_tokens*", "added_tokens*", "chat_template*", "*.model")
"""Files that say how text becomes tokens."""


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """What a model is read from, as it was at one moment. Small: it travels to workers, which must load the same."""

    directory: Path
    model: Snapshot
    """Configuration and weights, and the code that comes with them where that is run."""
    tokenizer: Snapshot
    """Files that say how text becomes tokens, and the tokenizer that was named instead of them."""

    @staticmethod
    def of(directory: Path, tokenizer: Tokenizer | None = None, *, code: bool = False) -> "ModelFiles":
        """As they are now."""
        adapters.read_config(directory)
        files = [directory / adapters.CONFIG, *(sorted(directory.glob("*.py")) if code else [])]
        with contextlib.suppress(InputError):  # that weights are missing is told by whoever opens them
            files += shards(directory)
        words = sorted({path for pattern in WORDS for path in directory.glob(pattern) if path.is_file()})
        named = "" if tokenizer is None else hashlib.sha256(json.dumps(tokenizer.describe()).encode()).hexdigest()
        return ModelFiles(directory, Snapshot.of(files), Snapshot.of(words, named))

    def check_unchanged(self) -> None:
        """Raise if a file is no longer what it was: what is in memory may be half of this and half of that."""
        if self.model.changed or self.tokenizer.changed:
            raise InputError(f"The model in {self.directory} was changed while it was loaded. Load it again.")

    def check_same(self, loaded: "ModelFiles") -> None:
        """Raise if something else was loaded. Files are read again only where their size or time differs."""
        if not self.model.same(loaded.model) or not self.tokenizer.same(loaded.tokenizer):
            raise InputError(
                f"The model in {loaded.directory} is not the one that was there when this began: its configuration, "
                "weights or tokenizer were replaced. Put it back, or start over."
            )


def check_same_tokens(model: Model, reference: Model) -> None:
    """Two models can be compared on the same tokens only if these mean the same to both."""
    one, other = model.opened.tokenizer, reference.opened.tokenizer
    if one is None or other is None or one == other:
        return
    mine, its = (list(tokenizer.pieces(range(tokenizer.vocab_size))) for tokenizer in (one, other))
    if mine != its:
        raise InputError(
            f"{model.name} and {reference.name} do not have the same tokens ({len(mine)} and {len(its)}): what they "
            "say about them is not about the same text. Take a reference with the model's tokenizer."
        )
