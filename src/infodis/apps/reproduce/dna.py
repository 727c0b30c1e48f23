"""Figure 2 of the paper: networks trained on toy DNA, whose estimated likelihoods are compared with the true ones."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from infodis.apps.report.values import ReportTable
from infodis.apps.reproduce.authors import AuthorsClone
from infodis.apps.reproduce.experiment import Cost, ExperimentResult, Workspace, settings_table
from infodis.apps.reproduce.toy_report import (
    Match,
    calibration,
    draws_claim,
    errors_table,
    order_claim,
    origin,
    side_by_side,
    training_settings,
    training_tokens,
    why_errors,
)
from infodis.apps.reproduce.toys import (
    Fit,
    ToyRecipe,
    fit,
    papers,
    papers_network,
    plain,
    shipped_or_trained,
    trained,
)
from infodis.design import Enumerate, TimeFree
from infodis.estimate import Request
from infodis.item import Item
from infodis.oracle import MarkovChain
from infodis.oracle import Table as Listed
from infodis.predictor import Predictor
from infodis.rng import stream
from infodis.train.config import ModelConfig

PAPER_DRAWS = 2**15
OURS = Request()
PAPERS_LIST = ToyRecipe(papers_network(8), papers(70_000, 512, 3e-4, weight_decay=0.0), 8_000_000, aligned=True)
PAPERS_CHAIN = ToyRecipe(papers_network(32), papers(80_000, 1_024, 6e-4, weight_decay=0.01), 5_000_000, aligned=True)
TRUE = "true conditionals instead of the network's, ours, 128 rows"
COUNTED = "a chain counted in the training letters, ours, 128 rows"


class DnaUnconditional:
    """All 128 sequences of the paper's list."""

    name = "dna-unconditional"
    title = "True and estimated likelihood: 128 DNA sequences"
    paper = "Figure 2(a) and its appendix"
    own_model = True
    has_authors_data = True
    LENGTH = 8

    def recipe(self, workspace: Workspace) -> ToyRecipe:
        small = ModelConfig(length=self.LENGTH, width=64, blocks=4, heads=8, positions=True)
        return workspace.shrunk(
            workspace.pick(
                ToyRecipe(dataclasses.replace(small, blocks=1), plain(40, 64, 2e-3), 16_000, aligned=True),
                ToyRecipe(small, plain(4_000, 256, 2e-3), 8_000_000, aligned=True),
                PAPERS_LIST,
            )
        )

    def cost(self, workspace: Workspace) -> Cost:
        draws = workspace.pick(256, PAPER_DRAWS, PAPER_DRAWS)
        passes = 128 * (255 + min(draws, 255) + 128 + 128)  # of 8 letters there are 255 masks, each is asked about once
        return Cost(passes, passes * self.LENGTH, training_tokens(workspace, self.recipe(workspace)))

    def oracle(self, workspace: Workspace) -> Listed:
        return Listed.dna(workspace.seed) if workspace.authors is None else AuthorsClone(workspace.authors).listed()

    def check(self, workspace: Workspace) -> None:
        self.oracle(workspace)

    def run(self, workspace: Workspace) -> ExperimentResult:
        oracle = self.oracle(workspace)
        recipe = self.recipe(workspace)
        model = shipped_or_trained(workspace, "dna-list", oracle, recipe)
        items = [Item.read(row) for row in oracle.sequences[: workspace.few(len(oracle.sequences))]]
        draws = workspace.pick(256, PAPER_DRAWS, PAPER_DRAWS)
        fits = {
            "all 255 masks": fit(workspace, "all", model, oracle, items, Request(Enumerate(), evaluations=255)),
            f"the paper's, {draws:,} draws": fit(workspace, "paper", model, oracle, items, _paper(draws)),
            "ours, 128 rows": fit(workspace, "ours", model, oracle, items, OURS),
            TRUE: fit(workspace, "true", oracle, oracle, items, OURS),
        }
        exact, paper, _, true = fits.values()
        labels = [model.decode(item.tokens) for item in items]
        return ExperimentResult(
            f"{recipe.about}, on {recipe.letters // self.LENGTH:,} sequences drawn from a list of "
            f"{len(oracle.sequences)} of 8 letters{_whose(workspace)}. {origin(workspace, 'dna-list')}",
            (
                Match(close=0.05, alike=0.95).claim(
                    "Estimated likelihoods of a trained network closely match the true ones.",
                    exact,
                    f"all {len(items)}, by all masks",
                    recipe.tokens / PAPERS_LIST.tokens,
                ),
                draws_claim(draws, paper, exact),
            ),
            why_errors(exact, true),
            (errors_table(fits), self._settings(recipe, draws)),
            (
                side_by_side(paper, labels, f"By the paper's estimator, {draws:,} draws"),
                calibration(
                    dict(list(fits.items())[:3]),
                    "All sequences of the list",
                    "On the diagonal the network, and the estimator, are right.",
                ),
            ),
            {name: one.numbers() for name, one in fits.items()},
        )

    def _settings(self, recipe: ToyRecipe, draws: int) -> ReportTable:
        given = training_settings(recipe, PAPERS_LIST)
        places = "learned, besides the rotary ones" if recipe.model.positions else "rotary"
        return settings_table([*given, ("positions", "rotary", places), ("draws", "32,768", f"{draws:,}")])


@dataclasses.dataclass(frozen=True)
class ChainKind:
    """A way to make the table of a chain; what its network is called."""

    name: str
    about: str
    make: Callable[[int], MarkovChain]
    """From a seed."""


PEAKED = ChainKind(
    "dna-chain",
    "every row of its table drawn from Dirichlet(1/2), as peaked as the authors' own table",
    lambda seed: MarkovChain.dirichlet(order=4, vocab_size=4, seed=seed),
)
PRINTED = ChainKind(
    "printed",
    "every row of its table the softmax of uniform scores at temperature 0.5, as the text says",
    lambda seed: MarkovChain.random(order=4, vocab_size=4, temperature=0.5, seed=seed),
)


PROMPT, LENGTH, LETTERS = 16, 32, 5_000_000
"""Of a window of a chain, its prompt first, and of the sequence that windows are cut from."""


class DnaConditional:
    """Responses of 16 letters given prompts of 16."""

    name = "dna-conditional"
    title = "True and estimated conditional likelihood: a Markov chain of DNA"
    paper = "Figure 2(b) and its appendix"
    own_model = True
    has_authors_data = True

    def kind(self, workspace: Workspace) -> ChainKind:
        if workspace.authors is not None:
            clone = AuthorsClone(workspace.authors)
            return ChainKind("authors", "the authors' own table", lambda _: clone.chain())
        return PRINTED if workspace.size == "full" else PEAKED

    def recipe(self, workspace: Workspace) -> ToyRecipe:
        small = ModelConfig(length=LENGTH, width=96, blocks=2, heads=8)
        return workspace.shrunk(
            workspace.pick(
                ToyRecipe(dataclasses.replace(small, blocks=1), plain(20, 16, 3e-3), 32_000),
                ToyRecipe(small, plain(6_000, 64, 3e-3), LETTERS),
                PAPERS_CHAIN,
            )
        )

    def count(self, workspace: Workspace) -> tuple[int, int, int, int]:
        """Windows, those of them by the paper's draws, these draws, and rows of ours."""
        counts: tuple[int, int, int, int] = workspace.pick(
            (4, 3, 64, 64), (256, 16, PAPER_DRAWS, 1_024), (256, 64, PAPER_DRAWS, 1_024)
        )
        return counts if workspace.stand_in is None else (4, 3, counts[2], 64)

    def check(self, workspace: Workspace) -> None:
        self.kind(workspace).make(workspace.seed)

    def cost(self, workspace: Workspace) -> Cost:
        windows, few, draws, rows = self.count(workspace)
        passes = windows * (rows + 128 + 100 + 128) + few * draws
        return Cost(passes, passes * LENGTH, training_tokens(workspace, self.recipe(workspace)))

    def run(self, workspace: Workspace) -> ExperimentResult:
        recipe, kind = self.recipe(workspace), self.kind(workspace)
        oracle = kind.make(workspace.seed)
        model = shipped_or_trained(workspace, kind.name, oracle, recipe)
        windows, few, draws, rows = self.count(workspace)
        items = _fresh_windows(workspace, oracle, windows)

        def by(name: str, request: Request, some: Sequence[Item] = items, predictor: Predictor = model) -> Fit:
            return fit(workspace, name, predictor, oracle, some, request)

        ours, paper = f"ours, {rows:,} rows", f"the paper's, {draws:,} draws"
        fits = {
            ours: by("sharp", Request(evaluations=rows)),
            "ours, 128 rows": by("ours", OURS),
            paper: by("paper", _paper(draws), items[:few]),
            "the paper's, 100 draws": by("hundred", _paper(100)),
            TRUE: by("true", OURS, predictor=oracle),
        }
        sharp = fits[ours]
        return ExperimentResult(
            f"{recipe.about}, {_windows_of(recipe, oracle)}, {kind.about}. {origin(workspace, kind.name)}",
            (
                Match(close=0.15, alike=0.99).claim(
                    "Estimated conditional likelihoods closely match the true ones.",
                    sharp,
                    f"{windows} fresh windows, by {rows:,} rows each",
                    recipe.tokens / PAPERS_CHAIN.tokens,
                ),
                order_claim(fits["the paper's, 100 draws"], sharp),
            ),
            why_errors(sharp, fits[TRUE]),
            (errors_table(fits), self._settings(recipe, kind, draws)),
            (
                side_by_side(sharp, _numbered(windows), "Every window"),
                calibration(
                    {name: fits[name] for name in (ours, paper)},
                    "Held-out windows",
                    "Responses of 16 letters given 16. On the diagonal the network, and the estimator, are right.",
                ),
            ),
            {name: one.numbers() for name, one in fits.items()},
        )

    def _settings(self, recipe: ToyRecipe, kind: ChainKind, draws: int) -> ReportTable:
        return settings_table(
            [
                *training_settings(recipe, PAPERS_CHAIN),
                (
                    "transition table",
                    "softmax of uniform scores at 0.5: none below 0.043 (text); from 3e-8 to 0.96 (public file)",
                    kind.about,
                ),
                ("draws", "32,768 (text), 8,192 (public code)", f"{draws:,}, and ours"),
            ]
        )


class DnaOrder2:
    """A network from nothing in minutes: a chain whose letters depend on two before them."""

    name = "dna-order-2"
    title = "Trained from nothing: a Markov chain of order 2"
    paper = "Figure 2(b), made easier"
    own_model = True
    has_authors_data = False

    def recipe(self, workspace: Workspace) -> ToyRecipe:
        small = ModelConfig(length=LENGTH, width=64, blocks=2, heads=8)
        several = ToyRecipe(small, plain(8_000, 64, 3e-3), LETTERS)
        tiny = ToyRecipe(dataclasses.replace(small, blocks=1), plain(20, 16, 3e-3), 32_000)
        return workspace.shrunk(workspace.pick(tiny, several, several))

    def check(self, workspace: Workspace) -> None:
        """It draws its data itself, whatever the authors have."""

    def count(self, workspace: Workspace) -> tuple[int, int]:
        """Windows, and rows for each."""
        counts: tuple[int, int] = workspace.exact.pick((4, 64), (256, 1_024), (256, 1_024))
        return counts

    def cost(self, workspace: Workspace) -> Cost:
        windows, rows = self.count(workspace)
        passes = windows * (rows + 128)
        return Cost(passes, passes * LENGTH, self.recipe(workspace).tokens)

    def run(self, workspace: Workspace) -> ExperimentResult:
        oracle = MarkovChain.random(order=2, vocab_size=4, temperature=0.5, seed=workspace.seed)
        recipe = self.recipe(workspace)
        model = trained(workspace, self.name, oracle, recipe)
        windows, rows = self.count(workspace)
        items = _fresh_windows(workspace, oracle, windows)
        sharp = fit(workspace, "sharp", model, oracle, items, Request(evaluations=rows))
        counted = fit(workspace, "counted", _counted(workspace, oracle), oracle, items, OURS)
        fits = {f"ours, {rows:,} rows": sharp, COUNTED: counted}
        return ExperimentResult(
            f"{recipe.about}, {_windows_of(recipe, oracle)}, softmax of uniform scores at 0.5.",
            (
                Match(close=0.15, alike=0.99).claim(
                    "Estimated conditional likelihoods closely match the true ones (here of an easier chain).",
                    sharp,
                    f"{windows} fresh windows, by {rows:,} rows each",
                    recipe.tokens / PAPERS_CHAIN.tokens,
                ),
            ),
            why_errors(sharp, counted, "a chain counted in the training letters"),
            (
                errors_table(fits),
                settings_table([("order of the chain", 4, 2), *training_settings(recipe, PAPERS_CHAIN)]),
            ),
            (side_by_side(sharp, _numbered(windows), "Every window"),),
            {name: one.numbers() for name, one in fits.items()},
        )


def _fresh_windows(workspace: Workspace, oracle: MarkovChain, count: int) -> list[Item]:
    fresh = oracle.sample(count, length=LENGTH, generator=stream(workspace.seed, "dna", "test"))
    return [Item.read(row, context=range(PROMPT)) for row in fresh]


def _windows_of(recipe: ToyRecipe, oracle: MarkovChain) -> str:
    return (
        f"windows of one sequence of {recipe.letters:,} letters, scored as {LENGTH - PROMPT} letters given {PROMPT}, "
        f"of a Markov chain of order {oracle.order}"
    )


def _numbered(count: int) -> list[str]:
    return [f"window {number}" for number in range(1, count + 1)]


def _counted(workspace: Workspace, oracle: MarkovChain) -> MarkovChain:
    """What the letters themselves say, to one who knows the order: how near could a network come?"""
    letters = torch.from_numpy(np.load(workspace.directory / "dna-order-2" / "train.npy").astype(np.int64))
    return MarkovChain.counted(letters.unsqueeze(0), order=oracle.order, vocab_size=oracle.vocab_size)


def _paper(draws: int) -> Request:
    """The paper's time-free estimator: every row by itself, nothing subtracted."""
    return Request(TimeFree(), None, draws)


def _whose(workspace: Workspace) -> str:
    return ", softmax of uniform scores at 0.5" if workspace.authors is None else " of the authors"
