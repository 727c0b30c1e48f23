"""Prompts of Figure 4 with the continuation that a dataset has, and with those of language models."""

import dataclasses

from infodis.apps.reproduce.authors import AuthorsClone
from infodis.apps.reproduce.data import CHINESE, ENCYCLOPEDIA, PAIRS, WIKITEXT
from infodis.apps.reproduce.experiment import Workspace
from infodis.apps.reproduce.prompts import (
    Row,
    TextCutter,
    WindowShape,
    continuations,
    equally_long,
    transliterate,
)
from infodis.apps.reproduce.triplets import in_text8_letters
from infodis.errors import InputError
from infodis.models.model import Model
from infodis.models.tokenizers import text8_style
from infodis.reveal import RevealRule
from infodis.rng import key
from infodis.sampling import sample

SHAPE = WindowShape(64, 64)
OWN, LLAMA = "own", "llama"


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Prompts with the continuation that the dataset has, and with others, by who wrote them."""

    name: str
    about: str
    rows: list[Row]
    written: dict[str, list[Row]] = dataclasses.field(default_factory=dict)


def datasets(workspace: Workspace, model: Model, count: int) -> list[Dataset]:
    """Built-in paragraphs for a smoke run, files otherwise: in the letters of text8 for models that know no others."""
    found = _datasets(workspace, model, count)
    for one in found:
        workspace.tell_missing(len(one.rows), count, f"Texts of {one.name}")
    return found


def check_texts(workspace: Workspace) -> None:
    """Raise `InputError` if a file is missing. What another model's tokens need shows once it is loaded."""
    if workspace.authors is not None:
        for _, _, file in FILES:
            AuthorsClone(workspace.authors).continuations(file)
    elif workspace.model is None and workspace.size != "smoke":
        (WIKITEXT if workspace.size == "full" else PAIRS).get(workspace)


def _datasets(workspace: Workspace, model: Model, count: int) -> list[Dataset]:
    letters = in_text8_letters(model)
    cut = TextCutter(SHAPE, None if letters else model.tokenizer)
    if workspace.authors is not None:
        return _of_authors(AuthorsClone(workspace.authors), cut, count, letters=letters)
    if workspace.size == "smoke":
        text = text8_style(ENCYCLOPEDIA) if letters else ENCYCLOPEDIA
        return [Dataset("encyclopedia", "a few paragraphs of an encyclopedia", cut.windows(text, count))]
    if letters:
        return [_pairs(workspace, cut, count), *_chinese(workspace, cut, count, letters=True)]
    english = Dataset("wikitext", "WikiText-2", cut.windows(WIKITEXT.get(workspace), count))
    return [english, *_chinese(workspace, cut, count, letters=False)]


FILES = (("wikitext", "WikiText", "wikitext_llada.json"), ("chinese", "pretrain_zh", "zh.json"))
"""Of the authors: a name, what it is, and where."""


def _of_authors(clone: AuthorsClone, cut: TextCutter, count: int, *, letters: bool) -> list[Dataset]:
    """The paper's own prompts with the dataset's continuations and LLaMA's, the first ones of its files."""
    found = []
    for name, about, file in FILES:
        if letters and name == "chinese" and transliterate("") is None:
            continue  # nothing to transliterate with
        style = _spelled_chinese if name == "chinese" else text8_style
        records = clone.continuations(file)
        rows = equally_long(records, cut, style if letters else str)
        if len(rows["y"]) < 2:
            raise InputError(f"{file} has {len(rows['y'])} rows with half of {cut.shape.length} tokens; 2 are needed.")
        kept = f"{about} of the authors, {len(rows['y']):,} of {len(records):,} rows long enough"
        found.append(Dataset(name, kept, rows["y"][:count], {LLAMA: rows["z"][:count]}))
    return found


def _spelled_chinese(text: str) -> str:
    return transliterate(text) or ""


def _pairs(workspace: Workspace, cut: TextCutter, count: int) -> Dataset:
    records = PAIRS.get(workspace)
    human, machine = (list(continuations(records, field, cut))[:count] for field in ("y_human", "y_llm"))
    about = f"news, stories and abstracts, the last {cut.shape.prompt} tokens of a beginning"
    return Dataset("human", about, human, {"gpt": machine})


def _chinese(workspace: Workspace, cut: TextCutter, count: int, *, letters: bool) -> list[Dataset]:
    if workspace.find(CHINESE.file) is None:
        return []
    prose = CHINESE.get(workspace)
    text = transliterate(prose) if letters else prose
    about = "Chinese prose, transliterated" if letters else "Chinese prose"
    return [] if text is None else [Dataset("chinese", about, cut.windows(text, count))]


def own_continuations(workspace: Workspace, model: Model, dataset: Dataset, rule: RevealRule) -> list[Row]:
    """The model's own continuation of every prompt, as long as that of the dataset."""
    rows = {row["id"]: row for row in dataset.rows}

    def written(name: str) -> str:
        row = rows[name]
        read = model.read(row["response"], prompt=row["prompt"])
        tokens = read.tokens.clone()
        tokens[read.target] = model.mask_token
        filled = sample(model, tokens.unsqueeze(0), rule=rule, seed=key(workspace.seed, "went on", name))[0]
        return model.decode(filled[read.target])

    settings = {
        "model": model.fingerprint,
        "rule": str(rule),
        "prompts": key(*(r["prompt"] for r in dataset.rows)),
    }
    texts = workspace.keep_each(f"{dataset.name}-{OWN}-texts", settings, list(rows), written)
    return [{**row, "response": text} for row, text in zip(dataset.rows, texts, strict=True)]
