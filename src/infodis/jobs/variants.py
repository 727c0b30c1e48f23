"""The scores of every mutant of one wild type."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from infodis.errors import InputError
from infodis.estimate import check_masks
from infodis.item import Item
from infodis.jobs.inputs import Entry, Refused
from infodis.jobs.job import MODEL_COLUMNS, TYPICAL_TOKENS, Job, Record, rounded, unknown_fields
from infodis.jobs.outputs import Columns
from infodis.jobs.summary import VariantSummary
from infodis.mutants import WildType, read_sequence, sequence_of
from infodis.quantities.effects import METHODS, Effect, EffectRequest

Mutant = tuple[Item, float | None]
"""What is scored, and what was measured, if that is known."""


class ScoredMutant(NamedTuple):
    """A mutant's scores, and its share of the forward passes that were made for its shard."""

    effect: Effect
    passes: float


@dataclasses.dataclass(frozen=True)
class VariantJob(Job[Entry, Mutant, ScoredMutant]):
    """Marginals, pll ratios and coupled likelihood ratios of mutants, with what they share evaluated once a shard."""

    command = "variants"
    summary = VariantSummary

    wild: WildType
    asked: EffectRequest = EffectRequest()

    @property
    def columns(self) -> Columns:
        return {
            "id": "text",
            "quantity": "text",
            "mutations": "whole",
            **{name: "number" for name in METHODS if name in self.asked.methods},
            "standard_error": "number",
            "degrees_of_freedom": "whole",
            "measured": "number",
            "evaluations": "whole",
            "forward_passes": "number",
            "tokens": "whole",
            "unknown": "whole",
            "seed": "whole",
            **MODEL_COLUMNS,
        }

    @property
    def passes_per_row(self) -> float:
        ratio = self.asked.request.first_rows(TYPICAL_TOKENS) if "log_ratio" in self.asked.methods else 0
        return float(1 + ratio + (TYPICAL_TOKENS if "pll_ratio" in self.asked.methods else 0))

    @functools.cached_property
    def loaded_wild(self) -> Item:
        """The wild type as the model reads it."""
        return read_sequence(self.loaded_model, self.wild.sequence)

    def load(self) -> None:
        super().load()
        check_masks(self.loaded_model)
        self.loaded_wild  # noqa: B018 - what is wrong with it is no fault of a row

    def read(self, row: Entry) -> Mutant:
        mutant, sequence, measured = row.variant()
        try:
            return read_sequence(self.loaded_model, sequence_of(self.wild, mutant, sequence)), measured
        except InputError as error:
            raise Refused("mutant" if mutant else "mutated_sequence", str(error)) from None

    def measure(self, ready: Sequence[Mutant]) -> "Sequence[ScoredMutant | str]":
        found = self.asked.measure(self.loaded_model, self.loaded_wild, [item for item, _ in ready])
        share = found.passes / len(ready)
        return [str(one) if isinstance(one, InputError) else ScoredMutant(one, share) for one in found.found]

    def record(self, row: Entry, ready: Mutant, found: ScoredMutant) -> Record:
        (item, measured), effect = ready, found.effect
        ratio = effect.ratio
        return {
            "id": row.id,
            "quantity": "variant",
            **({} if effect.mutations is None else {"mutations": effect.mutations}),
            **{name: _finite(value) for name, value in effect.scores.items()},
            "standard_error": 0.0 if ratio is None else rounded(ratio.standard_error),
            **({} if ratio is None else {"degrees_of_freedom": ratio.degrees_of_freedom}),
            **({} if measured is None else {"measured": measured}),
            "evaluations": effect.evaluations,
            "forward_passes": rounded(found.passes),
            "tokens": item.target.numel(),
            **unknown_fields(self.loaded_model, item),
            "seed": self.asked.seed,
            **self.model_fields,
        }


def _finite(value: float | None) -> float | None:
    """As records hold it: null for what is not defined, or infinite."""
    return None if value is None or not math.isfinite(value) else rounded(value) + 0.0  # no minus zero
