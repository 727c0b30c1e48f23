"""Where a model is, and the files it is read from."""

import contextlib
import dataclasses
import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from infodis.errors import InputError
from infodis.files import digest_of, read_json
from infodis.models import hub
from infodis.models.adapters.weights import shards, within
from infodis.models.checkpoint import CONFIG, read_config
from infodis.models.options import ModelOptions
from infodis.models.surrogate_file import SURROGATE
from infodis.snapshot import Snapshot

POINTER = "checkpoints.json"
"""In the directory of a training run: which of its checkpoints is the last and which the best."""


def shipped() -> list[str]:
    """Names of the models inside the package."""
    return sorted(path.parent.name for path in _shelf().glob(f"*/{CONFIG}"))


def _shelf() -> Path:
    return Path(str(resources.files("infodis.models") / "weights"))


def locate(spec: str | Path) -> Path:
    """The directory that a name stands for: see `load`."""
    if str(spec) in shipped():
        return _shelf() / str(spec)
    path = Path(spec)
    if not path.is_dir() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(spec)) and not path.parent.is_dir():
        return hub.download(str(spec))
    if not path.is_dir():
        raise InputError(
            f"There is no model {str(spec)!r}. It must be the name of one that ships with infodis "
            f"({', '.join(shipped()) or 'none yet'}), a directory (a checkpoint or a training run), or owner/name on "
            "the Hugging Face hub."
        )
    if (path / POINTER).is_file():
        return path / read_pointer(path)["best"]
    return path


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
    surrogate: Snapshot = Snapshot((), ())
    """The file of the surrogate that lies beside, if one does. It is no part of the model."""

    @staticmethod
    def of(directory: Path, options: ModelOptions = ModelOptions()) -> "ModelFiles":
        """As they are now."""
        read_config(directory)
        files = [directory / CONFIG, *(sorted(directory.glob("*.py")) if options.trust_remote_code else [])]
        with contextlib.suppress(InputError):  # missing weights are reported when they are loaded
            files += shards(directory)
        words = sorted({path for pattern in WORDS for path in directory.glob(pattern) if path.is_file()})
        tokenizer = options.named_tokenizer
        named = "" if tokenizer is None else hashlib.sha256(json.dumps(tokenizer.describe()).encode()).hexdigest()
        beside = [path for path in (directory / SURROGATE,) if path.is_file()]
        return ModelFiles(directory, Snapshot.of(files), Snapshot.of(words, named), Snapshot.of(beside))

    @property
    def surrogate_fingerprint(self) -> str | None:
        """A hash of the surrogate's file; None if there is none."""
        return digest_of(self.surrogate.paths[0])[:16] if self.surrogate.paths else None

    def check_unchanged(self) -> None:
        """Raise if a file is no longer what it was: what is in memory may be half of this and half of that."""
        if self.model.changed or self.tokenizer.changed or self.surrogate.changed:
            raise InputError(f"The model in {self.directory} was changed while it was loaded. Load it again.")

    def check_same(self, loaded: "ModelFiles") -> None:
        """Raise if something else was loaded. Files are read again only where their size or time differs."""
        mine, its = ((one.model, one.tokenizer, one.surrogate) for one in (self, loaded))
        if not all(one.same(other) for one, other in zip(mine, its, strict=True)):
            raise InputError(
                f"The model in {loaded.directory} is not the one that was there when this began: its configuration, "
                "weights, tokenizer or surrogate were replaced. Put it back, or start over."
            )
