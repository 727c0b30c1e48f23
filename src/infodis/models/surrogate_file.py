"""The surrogate that lies beside a model: a hidden Markov model and its beta in one small file.

It stays a valid control for any model of its tokens. Only beta, what it is multiplied by, belongs to one model:
the file names the fingerprint of that model, and for another one beta is fitted to the rows of every text.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from infodis.control import Surrogate
from infodis.errors import InputError
from infodis.files import atomic_file, digest_of
from infodis.oracle import HiddenMarkov

SURROGATE = "surrogate.safetensors"
FORMAT = "infodis-surrogate-1"
PARTS = ("initial", "transitions", "emissions")
"""Of a hidden Markov model, stored as logarithms."""


@dataclasses.dataclass(frozen=True)
class SurrogateFile:
    """What such a file holds."""

    surrogate: Surrogate
    model: str
    """The fingerprint of the model that beta was fitted to."""
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    """How it came to be: the corpus, its tokens, versions."""

    def save(self, path: Path) -> None:
        """Log-probabilities as float16: which model they stand for is decided when they are read."""
        fitted = self.surrogate.predictor
        if not isinstance(fitted, HiddenMarkov):
            raise InputError(
                f"Only hidden Markov models are stored, got {fitted!r}. Give another surrogate as control=."
            )
        tensors = {name: getattr(fitted, name).log().half() for name in PARTS}
        told = {"format": FORMAT, "beta": self.surrogate.beta, "model": self.model, "about": self.about}
        with atomic_file(path) as unfinished:
            save_file(tensors, unfinished, {"infodis": json.dumps(told)})

    @staticmethod
    def load(path: Path) -> "SurrogateFile":
        """`InputError` if it is not what `save` wrote."""
        try:
            with safe_open(path, framework="pt") as file:
                told = json.loads((file.metadata() or {}).get("infodis", "{}"))
                parts = {name: file.get_tensor(name).double().softmax(-1) for name in PARTS}
            if told["format"] != FORMAT:
                raise InputError(f"its format is {told['format']!r}, not {FORMAT!r}")
            fitted = HiddenMarkov(parts["initial"], parts["transitions"], parts["emissions"], dtype=torch.float32)
            surrogate = Surrogate(fitted, beta=float(told["beta"]), fingerprint=digest_of(path)[:16])
            return SurrogateFile(surrogate, str(told["model"]), dict(told["about"]))
        except (SafetensorError, InputError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is no surrogate of infodis ({error}). Make it anew: infodis calibrate."
            ) from error

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether `save` wrote what is there."""
        try:
            SurrogateFile.load(path)
        except (InputError, OSError):
            return False
        return True

    def for_model(self, fingerprint: str) -> Surrogate:
        """With its beta for the model that it was made with; for another one beta is fitted to every text."""
        return self.surrogate if fingerprint == self.model else dataclasses.replace(self.surrogate, beta=None)
