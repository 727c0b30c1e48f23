"""What the authors of the paper published beside it: readers for a clone of their repository.

Nothing of it is shipped. `git clone https://github.com/Dongjae0324/infodis DIR`, then `--authors DIR`.
"""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import torch

from infodis.errors import InputError
from infodis.models.text_files import opened_text
from infodis.models.tokenizers import ALPHABETS
from infodis.oracle import MarkovChain
from infodis.oracle import Table as Listed

SOURCE = "github.com/Dongjae0324/infodis"
LETTERS = ALPHABETS["dna"]
SUM = 1e-3
"""How far probabilities of a file may be from adding up to one."""

Row = dict[str, str]


@dataclasses.dataclass(frozen=True)
class AuthorsClone:
    """A directory that holds a clone of the authors' repository."""

    directory: Path

    def listed(self) -> Listed:
        """The sequences of the unconditional toy with their probabilities: {sequence: probability}."""
        path, found = self._json("sequence_eval.json")
        if not isinstance(found, dict) or not found:
            raise InputError(f"{path} must map sequences to probabilities; got {_kind(found)}.")
        if len({len(sequence) for sequence in found}) > 1:
            raise InputError(f"{path}: all sequences must be of one length.")
        rows = torch.tensor([_codes(path, sequence) for sequence in found])
        return Listed(rows, _probabilities(path, "its sequences", found.values()))

    def chain(self) -> MarkovChain:
        """The Markov chain of the conditional toy: {context: {next letter: probability}}."""
        path, found = self._json("markov_data_table.json")
        if not isinstance(found, dict) or not found:
            raise InputError(f"{path} must map contexts to the probabilities of the next letter; got {_kind(found)}.")
        order = len(next(iter(found)))
        contexts = ["".join(letters) for letters in itertools.product(LETTERS, repeat=order)]
        missing = [context for context in contexts if context not in found]
        if order == 0 or missing or len(found) != len(contexts):
            raise InputError(
                f"{path} must hold all {len(contexts)} contexts of {order} letters out of {LETTERS} and nothing else; "
                f"it holds {len(found)}{f', and not {missing[0]}' if missing else ''}."
            )
        rows = [self._row(path, context, found[context]) for context in contexts]
        return MarkovChain(torch.stack(rows).view((len(LETTERS),) * (order + 1)))

    @staticmethod
    def _row(path: Path, context: str, row: Any) -> torch.Tensor:
        if not isinstance(row, dict) or set(row) != set(LETTERS):
            raise InputError(f"{path}: {context} needs a probability for each of {LETTERS}.")
        return _probabilities(path, f"the letters after {context}", [row[letter] for letter in LETTERS])

    def continuations(self, name: str) -> list[Row]:
        """Rows {id, x, y, z, r}: a prompt, how the dataset goes on, how LLaMA does, and an unrelated text."""
        path, found = self._json(name)
        if not isinstance(found, list) or not found:
            raise InputError(f"{path} must be a list of {{x, y, z, r}}; got {_kind(found)}.")
        for number, row in enumerate(found):
            wrong = not isinstance(row, dict) or [part for part in "xyzr" if not isinstance(row.get(part), str)]
            if wrong:
                names = "" if wrong is True else f"; {', '.join(wrong)} is missing or no text"
                raise InputError(f"{path}, row {number}: every row needs the texts x, y, z and r{names}.")
        return [{"id": str(number), **{part: row[part] for part in "xyzr"}} for number, row in enumerate(found)]

    def text8(self) -> str:
        """The held-out part of text8 that prompts and true continuations are cut from."""
        return self._text("text8_eval_data.txt")

    def gpt(self) -> str:
        """The text of the paper's "GPT-4 responses": they are random windows of it."""
        return self._text("text8_gpt_eval_data.txt")

    def _text(self, name: str) -> str:
        path = self._path(name)
        with opened_text(path) as file:
            text = file.read().strip()
        if not text:
            raise InputError(f"{path} holds no text.")
        return text

    def _json(self, name: str) -> tuple[Path, Any]:
        path = self._path(name)
        with opened_text(path) as file:
            text = file.read()
        try:
            return path, json.loads(text)
        except ValueError as error:
            raise InputError(f"{path} is not JSON: {error}.") from error

    def _path(self, name: str) -> Path:
        path = self.directory / "data" / name
        if not path.is_file():
            raise InputError(
                f"There is no {path}. --authors names a clone of the authors' repository, {SOURCE}, which holds "
                f"data/{name}."
            )
        return path


def _codes(path: Path, sequence: str) -> list[int]:
    strange = set(sequence) - set(LETTERS)
    if strange or not sequence:
        raise InputError(f"{path}: sequences are made of {LETTERS}, got {sequence!r}.")
    return [LETTERS.index(letter) for letter in sequence]


def _probabilities(path: Path, of: str, values: Any) -> torch.Tensor:
    """Numbers that add up to one but for rounding."""
    found = list(values)
    good = all(isinstance(one, int | float) and math.isfinite(one) and one >= 0 for one in found)
    if not good or abs(sum(found) - 1) > SUM:
        raise InputError(f"{path}: the probabilities of {of} must be numbers from 0 on that add up to 1.")
    read = torch.tensor(found, dtype=torch.float64)
    return read / read.sum()


def _kind(found: Any) -> str:
    return f"{'an empty ' if not found else ''}{type(found).__name__}"
