"""`infodis.variants`: mutants of a protein (or of DNA) in, what a model says about each out.

found = infodis.variants(model, "MKTAYIAKQR", ["A4G", "A4G:K8R"], measured=[0.3, -1.2])
found[0].scores["masked_marginals"], found[0].standard_error, found.spearman("log_ratio")
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, overload

from torch import nn

from infodis import notebook
from infodis.auto import Auto
from infodis.design import MaskDesign
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.item import Item
from infodis.models.loading import load
from infodis.models.model import Model
from infodis.quantities.effects import METHODS, Effect, EffectRequest
from infodis.result import Interval, spearman
from infodis.rng import check_seed

MUTATION = re.compile(r"([A-Za-z*.-])(-?\d+)([A-Za-z*.-])")
SEQUENCE = re.compile(r"[A-Z*.-]+")
WORDS = {
    "X": "X stands for a residue that nobody knows, and a model says nothing about it",
    "-": "- is a gap of an alignment: leave it out, a deletion is a shorter sequence",
    ".": ". is a gap of an alignment: leave it out, a deletion is a shorter sequence",
    "*": "* is a stop, which is no residue: give what is left of the sequence as mutated_sequence",
}
"""What is wrong with a letter that is none of the alphabet."""


def check_residues(text: str, what: str) -> None:
    """Raise `InputError` with a word about the first letter that is no residue."""
    for place, letter in enumerate(text):
        if word := _wrong(letter):
            raise InputError(f"{what} must hold residues only, got {letter!r} as letter {place + 1}: {word}.")


def _wrong(letter: str) -> str:
    """Why a letter is no residue; empty if it is one."""
    if letter.islower():
        return "it is lower case, which marks insertions in alignments. Write residues in capital letters"
    if letter.isspace():
        return "take spaces and line ends out"
    return WORDS.get(letter, "" if letter.isascii() and letter.isalpha() else "it is no letter of a residue")


@dataclasses.dataclass(frozen=True)
class WildType:
    """A sequence that mutants are made of.

    >>> WildType("MKTAYIAKQR", offset=5).mutated("A8G:K12R")
    'MKTGYIARQR'
    """

    sequence: str
    offset: int = 1
    """The number of its first residue."""

    def __post_init__(self) -> None:
        if not self.sequence:
            raise InputError("The wild type must have at least one residue, got an empty sequence.")
        check_residues(self.sequence, "The wild type")

    def mutated(self, mutant: str) -> str:
        """The sequence with mutations like A12G, or several of them: A12G:K30R. WT is the wild type itself."""
        found = list(self.sequence)
        changed: set[int] = set()
        for one in [] if mutant.strip().upper() == "WT" else mutant.strip().split(":"):
            place, residue = self._read(one.strip())
            if place in changed:
                raise InputError(f"A mutant must name every position once, got {one!r} in {mutant!r}. Leave one out.")
            changed.add(place)
            found[place] = residue
        return "".join(found)

    def _read(self, one: str) -> tuple[int, str]:
        """Where a mutation is, and what stands there then."""
        parts = MUTATION.fullmatch(one)
        if parts is None:
            raise InputError(
                f"A mutation is written like A12G (residue, position, residue), several like A12G:K30R, got {one!r}. "
                "Give insertions and deletions as mutated_sequence."
            )
        before, number, after = parts[1], int(parts[2]), parts[3]
        for letter in (before, after):
            if word := _wrong(letter):
                raise InputError(f"A mutation must be of residues, got {letter!r} in {one}: {word}.")
        last = self.offset + len(self.sequence) - 1
        if not self.offset <= number <= last:
            raise InputError(
                f"Positions must lie in {self.offset}..{last}, got {number} in {one}. If the first residue has another "
                "number, say so: --offset N, offset=N."
            )
        own = self.sequence[number - self.offset]
        if own != before:
            raise InputError(
                f"A mutation must name the residue of the wild type, which has {own} at position {number}, got {one}. "
                "If the first residue has another number, say so: --offset N, offset=N."
            )
        return number - self.offset, after


def sequence_of(wild: WildType, mutant: str | None, sequence: str | None) -> str:
    """The sequence of a mutant by its mutations, by itself, or by both, which must then agree.

    A `mutant` that is a sequence stands for itself, as in ProteinGym's insertions and deletions.
    """
    if mutant and not sequence and SEQUENCE.fullmatch(mutant) and mutant != "WT":
        mutant, sequence = None, mutant
    if not sequence:
        if not mutant:
            raise InputError("A variant must have a mutant like A12G, or a mutated_sequence, got neither.")
        return wild.mutated(mutant)
    check_residues(sequence, "mutated_sequence")
    if mutant and MUTATION.search(mutant) and (told := wild.mutated(mutant)) != sequence:
        place = next((n for n, pair in enumerate(zip(told, sequence, strict=False)) if len(set(pair)) > 1), len(told))
        raise InputError(
            f"mutant and mutated_sequence must agree, got {mutant} and a sequence that differs from it at letter "
            f"{place + 1}. Leave one of them out."
        )
    return sequence


def read_sequence(model: Model, sequence: str) -> Item:
    """A sequence as a model reads it, a token a residue: as it is, or with spaces between (as ProtBERT wants it)."""
    refused: list[InputError] = []
    for text in (sequence, " ".join(sequence)):
        try:
            item = _token_a_residue(model.read(text), sequence)
        except InputError as error:
            refused.append(error)
            continue
        _check_length(model, item)
        if model.unknown_in(item) and not model.allow_unknown:
            raise InputError(_unknown_residue(model, item, sequence))
        return item
    raise refused[0]


def _token_a_residue(item: Item, sequence: str) -> Item:
    if item.target.numel() == len(sequence):
        return item
    raise InputError(
        f"Every residue must be a token of its own, got {item.target.numel()} tokens for {len(sequence)} residues. "
        "Take a model of single residues, such as ESM or ProtBERT."
    )


def _check_length(model: Model, item: Item) -> None:
    longest = model.loaded.limit or model.length
    if longest is not None and item.length > longest:
        raise InputError(
            f"A sequence must have at most {longest} tokens, the length that the model was made for, got "
            f"{item.length}. Cut wild type and mutants to a window around the mutations."
        )


def _unknown_residue(model: Model, item: Item, sequence: str) -> str:
    token = model.tokenizer.unknown_token
    place = item.tokens[item.target].tolist().index(token)
    return (
        f"The tokenizer must know every residue, got {sequence[place]!r} as letter {place + 1}, which it does not. "
        "Leave the variant out, or read it all the same: --allow-unknown, allow_unknown=True."
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Variant:
    """What a model says about one mutant. Scores are in nats; above zero the model finds the mutant likelier."""

    mutant: str
    effect: Effect
    measured: float | None = None

    @property
    def scores(self) -> dict[str, float | None]:
        """By name; None where one is not defined: only `log_ratio` is where lengths differ."""
        return self.effect.scores

    @property
    def standard_error(self) -> float | None:
        """Of the `log_ratio`; the other scores are exact."""
        return None if self.effect.ratio is None else self.effect.ratio.standard_error

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        measured = {} if self.measured is None else {"measured": self.measured}
        error = {} if self.standard_error is None else {"standard_error": self.standard_error}
        return {"mutant": self.mutant, "mutations": self.effect.mutations, **self.scores, **error, **measured}


@dataclasses.dataclass(frozen=True, eq=False)
class Variants(Sequence[Variant]):
    """Scores of some mutants, in their order: a sequence, a table, and how well scores rank what was measured."""

    rows: tuple[Variant, ...]
    passes: int
    """Forward passes that were made."""

    @property
    def evaluations(self) -> int:
        """Forward passes that it would have taken to score every mutant by itself."""
        return sum(row.effect.evaluations for row in self.rows)

    def spearman(self, score: str, *, seed: int = 0) -> Interval:
        """The rank correlation of a score with what was measured, with a bootstrap interval over mutants."""
        if score not in self.rows[0].scores:
            raise InputError(f"{score} must be among the scores, which are {', '.join(self.rows[0].scores)}.")
        pairs = [(row.scores[score], row.measured) for row in self.rows]
        kept = [(one, other) for one, other in pairs if one is not None and math.isfinite(one) and other is not None]
        return spearman([one for one, _ in kept], [other for _, other in kept], seed=seed)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary of plain values for each mutant."""
        return [row.to_dict() for row in self.rows]

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each mutant."""
        return notebook.data_frame(self.to_dicts())

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Variant: ...
    @overload
    def __getitem__(self, place: slice) -> "Variants": ...
    def __getitem__(self, place: int | slice) -> "Variant | Variants":
        return Variants(self.rows[place], self.passes) if isinstance(place, slice) else self.rows[place]

    def __iter__(self) -> Iterator[Variant]:
        return iter(self.rows)

    def __repr__(self) -> str:
        names = ", ".join(self.rows[0].scores)
        return f"Variants({len(self)} by {names}: {self.passes} forward passes, {self.evaluations} one by one)"


def variants(
    model: "str | Path | Model | nn.Module",
    wild_type: str,
    mutants: Sequence[str],
    *,
    measured: Sequence[float] | None = None,
    scores: Sequence[str] = METHODS,
    offset: int = 1,
    tokenizer: Any = None,
    evaluations: int | None = None,
    standard_error: float | None = None,
    design: MaskDesign = Auto(),
    seed: SupportsIndex = 0,
) -> Variants:
    """What a model says about mutants of a protein: marginals, pll and coupled likelihood ratios, by published names.

    Contexts that mutants share are evaluated once: marginals of all single mutants of L residues take L + 1 passes.

    Args:
        model: as for `infodis.score`.
        wild_type: the sequence that was mutated, in capital letters.
        mutants: mutations like `A12G` or `A12G:K30R`; or whole sequences of any length, of which only `log_ratio` is
            defined if they are longer or shorter than the wild type.
        measured: what an experiment found for each mutant, for `Variants.spearman`.
        scores: some of `wt_marginals`, `masked_marginals`, `masked_marginals_joint`, `pll_ratio` and `log_ratio`.
        offset: the number of the first residue of the wild type.
        tokenizer: for a model that has none.
        evaluations, standard_error, design, seed: of `log_ratio`, as for `infodis.log_ratio`.

    >>> found = variants("dna-tiny", "ACGTACGT", ["A1C", "A1C:G3T", "ACGT"])
    >>> [row.scores["masked_marginals"] is None for row in found], found[0].effect.mutations
    ([False, False, True], 1)
    """
    wild = WildType(wild_type, offset)
    request = Request(design, evaluations=evaluations, standard_error=standard_error)
    asked = EffectRequest(tuple(scores), request, check_seed(seed))
    if not isinstance(model, Model):
        model = load(model, **({} if tokenizer is None else {"tokenizer": tokenizer}))
    if not mutants:
        raise InputError("There is nothing to score: no mutants were given.")
    if measured is not None and len(measured) != len(mutants):
        raise InputError(f"measured must have a number for each of the {len(mutants)} mutants, got {len(measured)}.")
    items = [_item(model, wild, place, mutant) for place, mutant in enumerate(mutants)]
    found = asked.measure(model, read_sequence(model, wild.sequence), items)
    numbers = [None] * len(mutants) if measured is None else [float(one) for one in measured]
    return Variants(tuple(map(_variant, mutants, found.found, numbers)), found.passes)


def _item(model: Model, wild: WildType, place: int, mutant: str) -> Item:
    try:
        return read_sequence(model, sequence_of(wild, mutant.strip(), None))
    except InputError as error:
        raise InputError(f"Mutant {place}: {error}") from None


def _variant(mutant: str, effect: Effect | InputError, measured: float | None) -> Variant:
    if isinstance(effect, InputError):
        raise InputError(f"{mutant}: {effect}")
    return Variant(mutant, effect, measured)


def read_fasta(path: Path) -> str:
    """The one sequence of a FASTA file."""
    if not path.is_file():
        raise InputError(f"There is no file {path} to read the wild type from.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be a FASTA file in UTF-8: {error}.") from None
    names = [line[1:].strip() for line in lines if line.startswith(">")]
    if len(names) > 1:
        raise InputError(
            f"{path} must hold one sequence, the wild type, got {len(names)}: {', '.join(names[:3])}, ... Take one out."
        )
    return "".join("".join(line.split()) for line in lines if not line.startswith((">", ";")))
