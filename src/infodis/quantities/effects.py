"""What a model says about a mutant against its wild type: the scores of variant-effect prediction, by their names.

All are differences, mutant less wild type: above zero the model finds the mutant likelier. T is the set of positions
at which they differ. Meier et al., *Language models enable zero-shot prediction of the effects of mutations on protein
function*, 2021, have the first three; scripts that call themselves masked marginals compute the second or the third,
which agree for single mutants only.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from infodis.blocks import check_sees_all
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.item import Item, check_items
from infodis.predictor import Predictor, SharedRows, check_log_conditionals
from infodis.quantities.pseudo import Pll
from infodis.quantities.ratio import Comparison, Outcome, Ratio, Side, compare

METHODS = ("wt_marginals", "masked_marginals", "masked_marginals_joint", "pll_ratio", "log_ratio")
"""Scores by name. The last is the only one that is defined where lengths differ."""


@dataclasses.dataclass(frozen=True, eq=False)
class Effect:
    """The scores of a mutant, in nats."""

    scores: dict[str, float | None]
    """By name; None where a score is not defined."""
    mutations: int | None
    """Positions at which it differs from the wild type; None if their lengths differ."""
    evaluations: int
    """Rows that were asked about. What mutants have in common was evaluated once: see `Effects.passes`."""
    ratio: Ratio | None = None
    """The `log_ratio` with its error, if it was asked for."""


@dataclasses.dataclass(frozen=True, eq=False)
class Effects:
    """What came of some mutants of one wild type."""

    found: tuple[Effect | InputError, ...]
    passes: int
    """Forward passes that were made for all of them together."""


@dataclasses.dataclass(frozen=True)
class EffectRequest:
    """Which scores of mutants are wanted, and how precise the `log_ratio` shall be."""

    methods: tuple[str, ...] = METHODS
    request: Request = Request()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise InputError(f"A score of a variant is one of {', '.join(METHODS)}; got {name!r}.")
        if not self.methods:
            raise InputError(f"At least one score must be asked for, got none. Name some of {', '.join(METHODS)}.")
        self.request.check_budget()

    def measure(self, predictor: Predictor, wild: Item, mutants: Sequence[Item]) -> Effects:
        """The scores of some mutants. Rows that they share with each other or with the wild type are made once."""
        check_sees_all(predictor, "The score of a variant")
        check_items(predictor, [wild, *mutants])
        shared = SharedRows(predictor)
        places = [_differences(wild, mutant) for mutant in mutants]
        columns = {name: SCORES[name](shared, wild, mutants, places) for name in self.methods if name in SCORES}
        ratios = self._ratios(shared, wild, mutants) if "log_ratio" in self.methods else [None] * len(mutants)
        found = tuple(
            one if isinstance(one, InputError) else self._effect(number, columns, places[number], one, wild)
            for number, one in enumerate(ratios)
        )
        return Effects(found, shared.made)

    def _ratios(self, shared: SharedRows, wild: Item, mutants: Sequence[Item]) -> list[Outcome]:
        sides = ((Side(shared, mutant), Side(shared, wild, -1)) for mutant in mutants)
        return compare([Comparison(both, self.request, seed=self.seed) for both in sides])

    def _effect(
        self,
        number: int,
        columns: dict[str, list[float | None]],
        places: Int[Tensor, " differences"] | None,
        ratio: Ratio | None,
        wild: Item,
    ) -> Effect:
        scores = {name: column[number] for name, column in columns.items()}
        asked = 0 if places is None else sum(_rows(name, len(places), wild.target.numel()) for name in columns)
        if ratio is not None:
            scores["log_ratio"], asked = ratio.value, asked + ratio.evaluations
        return Effect(scores, None if places is None else len(places), asked, ratio)


def _rows(method: str, mutations: int, tokens: int) -> int:
    """What a score takes for one mutant alone."""
    return {"wt_marginals": 1, "masked_marginals": mutations, "masked_marginals_joint": 1, "pll_ratio": 2 * tokens}[
        method
    ]


def _differences(wild: Item, mutant: Item) -> Int[Tensor, " differences"] | None:
    """Where two rows of one length differ; None if their lengths do."""
    return (wild.tokens != mutant.tokens).nonzero().squeeze(1) if wild.length == mutant.length else None


Places = Sequence[Int[Tensor, "_"] | None]


def wt_marginals(predictor: Predictor, wild: Item, mutants: Sequence[Item], places: Places) -> list[float | None]:
    """Wild-type marginals [eq:wt-marginals]: nothing is masked, one forward pass for all mutants."""
    row = wild.clean.unsqueeze(0)
    answer = predictor.log_conditionals(row)
    wanted = torch.zeros(row.shape, dtype=torch.bool).index_fill(1, wild.target, True)
    check_log_conditionals(answer, wanted, vocab_size=predictor.vocab_size)
    log_p: Float[Tensor, "length vocab"] = answer[0].cpu().double()

    def score(mutant: Item, at: Int[Tensor, " differences"]) -> float:
        return float((log_p[at, mutant.tokens[at]] - log_p[at, wild.tokens[at]]).sum())

    return [None if at is None else score(mutant, at) for mutant, at in zip(mutants, places, strict=True)]


def masked_marginals(predictor: Predictor, wild: Item, mutants: Sequence[Item], places: Places) -> list[float | None]:
    """Masked marginals, one position at a time [eq:masked-marginals]: a forward pass for every mutated position.

    This is what the scripts of ESM and ProteinGym compute: effects of several mutations add up.
    """
    return _marginals(predictor, wild, mutants, [None if at is None else [(int(t),) for t in at] for at in places])


def masked_marginals_joint(
    predictor: Predictor, wild: Item, mutants: Sequence[Item], places: Places
) -> list[float | None]:
    """Masked marginals with all mutated positions masked together [eq:masked-marginals-joint].

    This is the formula of Meier et al.: a forward pass for every distinct set of mutated positions.
    """
    sets = [None if at is None else [tuple(at.tolist())] * len(at) for at in places]
    return _marginals(predictor, wild, mutants, sets)


def pll_ratio(predictor: Predictor, wild: Item, mutants: Sequence[Item], places: Places) -> list[float | None]:
    """The pll of the wild type less that of the mutant [eq:pll-ratio]: a forward pass for every position of each."""
    same = [mutant for mutant, at in zip(mutants, places, strict=True) if at is not None]
    base, *found = Pll().measure(predictor, [wild, *same], Request(), seed=0)
    values = iter(found)
    return [None if at is None else base.value - next(values).value for at in places]


SCORES = {
    "wt_marginals": wt_marginals,
    "masked_marginals": masked_marginals,
    "masked_marginals_joint": masked_marginals_joint,
    "pll_ratio": pll_ratio,
}


def _marginals(
    predictor: Predictor,
    wild: Item,
    mutants: Sequence[Item],
    hidden: Sequence[Sequence[tuple[int, ...]] | None],
) -> list[float | None]:
    """Sums over mutated positions of log p(mutant) - log p(wild type) there, given the wild type around.

    `hidden` has for every mutated position of every mutant the positions that are masked when it is asked about.
    """
    wanted: list[list[tuple[_Single, _Single]] | None] = []
    for mutant, sets in zip(mutants, hidden, strict=True):
        at = _differences(wild, mutant)
        wanted.append(
            None
            if at is None or sets is None
            else [
                (_Single(some, t, int(mutant.tokens[t])), _Single(some, t, int(wild.tokens[t])))
                for t, some in zip(at.tolist(), sets, strict=True)
            ]
        )
    nats = _single_nats(predictor, wild, (one for some in wanted if some for pair in some for one in pair))
    return [None if some is None else math.fsum(nats[own] - nats[new] for new, own in some) for some in wanted]


@dataclasses.dataclass(frozen=True)
class _Single:
    """One token at one position of the wild type, while some positions are hidden."""

    hidden: tuple[int, ...]
    position: int
    token: int

    def item(self, wild: Item) -> Item:
        tokens, context = wild.tokens.clone(), torch.ones(wild.length, dtype=torch.bool)
        tokens[self.position] = self.token
        context[list(self.hidden)] = False
        return Item(tokens, torch.tensor([self.position]), context.nonzero().squeeze(1))


def _single_nats(predictor: Predictor, wild: Item, wanted: "Iterable[_Single]") -> "dict[_Single, float]":
    """-log p of every distinct one."""
    distinct = list(dict.fromkeys(wanted))
    if not distinct:
        return {}
    found = Pll().measure(predictor, [one.item(wild) for one in distinct], Request(), seed=0)
    return {one: estimate.value for one, estimate in zip(distinct, found, strict=True)}
