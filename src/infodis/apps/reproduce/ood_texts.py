"""Texts of Figure 3: true continuations of text8 and foreign ones; and the paper's own network for them."""

import dataclasses
import itertools
from typing import Any

from infodis.apps.reproduce.authors import AuthorsClone
from infodis.apps.reproduce.data import ENCYCLOPEDIA, GPT2, HELD_OUT, LETTERS, PAIRS, TO_TRAIN_ON
from infodis.apps.reproduce.experiment import Workspace
from infodis.apps.reproduce.prompts import (
    Row,
    TextCutter,
    WindowShape,
    as_authors_drew,
    continuations,
    elsewhere,
    evenly_spaced,
    foreign,
    shuffled,
)
from infodis.apps.reproduce.toys import ToyRecipe, papers, papers_network
from infodis.files import atomic_text
from infodis.models.tokenizers import Characters, Tokenizer, text8_style, tokenizer_named
from infodis.train.config import Config, DataConfig, RunConfig

PAPERS = ToyRecipe(papers_network(256), papers(7_500, 32, 3e-4, weight_decay=0.0), letters=16_000_000)
"""The text gives steps, batch and rate; all else is of the authors' public configuration."""


GPT_TEXT = "what GPT-4 wrote elsewhere"
AUTHORS_TEXT = "random windows of ten sentences of a story by GPT-4, repeated (public file)"


@dataclasses.dataclass(frozen=True)
class OodBudget:
    """How much is scored, and how often. Forward passes: 2 main (samples + 2 evaluations) + 2 evaluations others."""

    shape: WindowShape
    main: int
    """Texts of text8 and of the main foreign group, each."""
    others: int
    """Texts of each other group, at most."""
    samples: int
    """Masks of a text by the paper's estimator."""
    evaluations: int
    """Masks of a text by ours, with the prompt and again without it."""


BUDGETS = {
    "smoke": OodBudget(WindowShape(64, 64), main=10, others=6, samples=4, evaluations=4),
    "laptop": OodBudget(WindowShape(128, 128), main=500, others=150, samples=100, evaluations=16),
    "full": OodBudget(WindowShape(128, 128), main=500, others=500, samples=100, evaluations=64),
}


@dataclasses.dataclass(frozen=True)
class OodTexts:
    """The rows of all groups: the true ones, the main foreign ones, and others."""

    names: tuple[str, str]
    """Of the true and of the main foreign ones."""
    source: str
    """What the main foreign ones are."""
    letters: bool
    """Whether all are in the letters of text8, and not as they were written."""
    true: list[Row]
    foreign: list[Row]
    others: dict[str, list[Row]]
    untouched: list[str]
    """Foreign texts as they were written, before they got the style of text8: one of each document."""


def gather_texts(workspace: Workspace, budget: OodBudget, tokenizer: Tokenizer) -> OodTexts:
    """Built-in paragraphs for a smoke run, files otherwise; in the paper's size drawn as its authors draw."""
    cut = TextCutter(budget.shape, None if isinstance(tokenizer, Characters) else tokenizer)
    if workspace.authors is not None:
        clone = AuthorsClone(workspace.authors)
        found = _at_random(workspace, budget, cut, (clone.text8(), [clone.gpt()], AUTHORS_TEXT))
    elif workspace.size == "full":
        documents = [record["y_llm"] for record in PAIRS.get(workspace)]
        found = _at_random(workspace, budget, cut, (HELD_OUT.get(workspace), documents, GPT_TEXT))
    else:
        found = _evenly(workspace, budget, cut)
    for name, rows in zip(found.names, (found.true, found.foreign), strict=True):
        workspace.tell_missing(len(rows), budget.main, f"Texts of {name}")
    for name, rows in found.others.items():
        workspace.tell_missing(len(rows), budget.others, f"Texts of {name}")
    return dataclasses.replace(
        found,
        foreign=[cut.fit(row) for row in found.foreign],
        others={name: [cut.fit(row) for row in rows] for name, rows in found.others.items() if len(rows) > 1},
    )


def check_texts(workspace: Workspace) -> None:
    """Raise `InputError` if a file is missing."""
    if workspace.authors is not None:
        AuthorsClone(workspace.authors).text8()
        AuthorsClone(workspace.authors).gpt()
    elif workspace.size != "smoke":
        HELD_OUT.get(workspace)
        PAIRS.get(workspace)
    if trains_papers_network(workspace):
        for needed in (GPT2, TO_TRAIN_ON, HELD_OUT):
            needed.get(workspace)


def trains_papers_network(workspace: Workspace) -> bool:
    """In the paper's size, unless another model is named."""
    return workspace.size == "full" and workspace.model is None


def _at_random(workspace: Workspace, budget: OodBudget, cut: TextCutter, given: tuple[str, list[str], str]) -> OodTexts:
    """Windows at random places, foreign ones as they were written if the tokenizer knows more than letters.

    Given are a text to go on with, foreign documents, and what these are.
    """
    text, documents, source = given
    letters = cut.tokenizer is None
    written = " ".join(documents)
    true, others = as_authors_drew(
        text, text8_style(written) if letters else written, budget.main, cut, seed=workspace.seed
    )
    some = evenly_spaced(true, budget.others)
    more: dict[str, list[Row]] = {"shuffled": list(shuffled(some)), "elsewhere": list(elsewhere(some))}
    if not letters:
        plain = [{**row, "response": " " + text8_style(row["response"])} for row in others]
        more["gpt-letters"] = evenly_spaced(plain, budget.others)
    untouched = list(itertools.islice(cut.pieces(written), budget.main))
    return OodTexts(("text8", "gpt"), source, letters, true, others, more, untouched)


def _evenly(workspace: Workspace, budget: OodBudget, cut: TextCutter) -> OodTexts:
    """Windows evenly spread, none overlapping another, all in the letters of text8."""
    own: dict[str, list[Row]] = {}
    if workspace.size == "smoke":
        names, text, source = ("encyclopedia", "letters"), text8_style(ENCYCLOPEDIA), "private letters"
        documents = {f"{n}": one for n, one in enumerate(LETTERS)}
    else:
        names, text, source, pairs = ("text8", "gpt"), HELD_OUT.get(workspace), GPT_TEXT, PAIRS.get(workspace)
        documents = {str(record["id"]): record["y_llm"] for record in pairs}
        fields = {"gpt-own": "y_llm", "human-own": "y_human"}
        own = {name: list(continuations(pairs, field, cut))[: budget.others] for name, field in fields.items()}
    true = cut.windows(text, budget.main)
    some = evenly_spaced(true, budget.others)
    return OodTexts(
        names,
        source,
        True,
        true,
        foreign(true, {name: text8_style(one) for name, one in documents.items()}, cut),
        {"shuffled": list(shuffled(some)), "elsewhere": list(elsewhere(some)), **own},
        [found for one in documents.values() if (found := cut.start(one.strip())) is not None],
    )


def papers_tokenizer(workspace: Workspace) -> Tokenizer:
    """GPT-2's, kept in the workspace."""
    workspace.directory.mkdir(parents=True, exist_ok=True)
    if not (workspace.directory / "tokenizer.json").exists():
        atomic_text(workspace.directory / "tokenizer.json", GPT2.get(workspace))
    return tokenizer_named("tokenizer.json", base=workspace.directory)


def as_in_the_paper(workspace: Workspace, recipe: ToyRecipe = PAPERS) -> str:
    """Train the paper's network on text8 in GPT-2's tokens, from where an earlier run left it; returns where it is."""
    papers_tokenizer(workspace)
    recipe = workspace.shrunk(recipe)
    for name, material in (("train.txt", TO_TRAIN_ON), ("valid.txt", HELD_OUT)):
        if not (workspace.directory / name).exists():
            text = material.get(workspace)
            atomic_text(workspace.directory / name, text[: recipe.letters])
    precision: Any = "float32" if workspace.device == "cpu" else "bfloat16"
    run = RunConfig(workspace.seed, workspace.device, precision=precision, valid_windows=8, valid_evaluations=8)
    config = Config(recipe.model, DataConfig("train.txt", "valid.txt", "tokenizer.json"), recipe.optim, run)
    return str(workspace.trained("network", config))
