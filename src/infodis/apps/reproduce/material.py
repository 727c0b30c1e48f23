"""Data that cannot be shipped: a file beside the work, or what the `datasets` library fetches by its name."""

import dataclasses
import importlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from infodis.apps.reproduce.experiment import Bench
from infodis.errors import InputError
from infodis.jobs.inputs import entries
from infodis.models.text_files import opened_text

Content = TypeVar("Content")
Row = Mapping[str, Any]
Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Remote(Generic[Content]):
    """Something on the hub by its name, and how to fetch it."""

    name: str
    fetch: Callable[[], Content]


def _data_set(
    name: str, split: str, made: Callable[[Iterable[Row]], Content], part: str | None = None
) -> Remote[Content]:
    """Rows of a split, made into what a file would hold."""
    return Remote(name, lambda: made(importlib.import_module("datasets").load_dataset(name, part, split=split)))


@dataclasses.dataclass(frozen=True)
class Material(Generic[Content]):
    """A file by its name, how to get it and how it is read; and where it is fetched from if it is not there."""

    file: str
    where: str
    read: Callable[[Path], Content]
    remote: Remote[Content] | None = None

    def get(self, bench: Bench) -> Content:
        """From a file if there is one, else over the network."""
        path = bench.find(self.file)
        if path is not None:
            return self.read(path)
        missing = f"{self.file} is needed and not in {bench.tried}. {self.where} Then name its directory with --data."
        if self.remote is None:
            raise InputError(missing)
        bench.tell(f"fetching {self.remote.name}", 0, 1)
        try:
            return self.remote.fetch()
        except Exception as error:  # not installed, no network, or whatever else the library raises
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"{missing} With `pip install 'infodis[reproduce]'` and a network {self.remote.name} is fetched from "
                f"the hub by itself; not now: {reason}"
            ) from error


def _gpt2(merges: Path) -> str:
    """GPT-2's tokenizer as one file, from the two that it was published in."""
    tokenizers = importlib.import_module("tokenizers")
    made: str = tokenizers.ByteLevelBPETokenizer(str(merges.with_name("encoder.json")), str(merges)).to_str()
    return made


def _tokenizer(name: str) -> Remote[str]:
    return Remote(name, lambda: importlib.import_module("tokenizers").Tokenizer.from_pretrained(name).to_str())


def _text(path: Path) -> str:
    with opened_text(path) as file:
        return file.read()


def _joined(rows: Iterable[Row]) -> str:
    return "".join(row["text"] for row in rows)


_KINDS = {str: "a text", list: "a list", int: "a whole number"}


def _rows_with(**needed: type) -> Callable[[Path], Rows]:
    """A reader of JSONL and its relatives, all of whose rows have these fields, of these types."""

    def read(path: Path) -> Rows:
        found = list(entries(path))
        for row in found:
            for name, kind in needed.items():
                if name not in row.fields:
                    raise InputError(f"{path}, line {row.line}: every row needs {', '.join(needed)}; no {name}.")
                if type(row.fields[name]) is not kind:
                    raise InputError(f"{path}, line {row.line}: {name} must be {_KINDS[kind]}.")
        return [{**row.fields, "id": str(row.id)} for row in found]

    return read


_QUESTIONS = _rows_with(x=str, choices=list, label=int)
_A_QUESTION_A_LINE = "A row is {id, x, choices, label}: a question, its answers, and which is right, from 0 on; see "


def _hellaswag(rows: Iterable[Row]) -> Rows:
    """Questions of HellaSwag as it is published, without the marks of its headings."""
    return [
        {
            "id": str(row["ind"]),
            "x": _unmarked(f"{row['activity_label']}: {row['ctx']}"),
            "choices": [_unmarked(one) for one in row["endings"]],
            "label": int(row["label"]),
        }
        for row in rows
    ]


def _unmarked(text: str) -> str:
    """Without [title] and the like.

    >>> _unmarked("Pets: [header] How to wash a cat [title] Wait. [step] Then go.")
    'Pets: How to wash a cat. Wait. Then go.'
    """
    plain = re.sub(r"\[.*?\]", " ", text.replace(" [title]", ". "))
    return re.sub(r"\s+", " ", plain).strip()


def _arc(rows: Iterable[Row]) -> Rows:
    return [
        {
            "id": row["id"],
            "x": f"Question: {row['question']}",
            "choices": list(row["choices"]["text"]),
            "label": list(row["choices"]["label"]).index(row["answerKey"]),
        }
        for row in rows
    ]


def _piqa(rows: Iterable[Row]) -> Rows:
    return [
        {"id": str(n), "x": row["goal"], "choices": [row["sol1"], row["sol2"]], "label": row["label"]}
        for n, row in enumerate(rows)
    ]


def _beavertails(rows: Iterable[Row]) -> Rows:
    """All pairs of a safe and an unsafe response to one prompt, as the paper makes them."""
    responses: dict[str, dict[bool, list[str]]] = {}
    for row in rows:
        responses.setdefault(row["prompt"], {True: [], False: []})[bool(row["is_safe"])].append(row["response"])
    return [{"id": str(n), **one} for n, one in enumerate(_triplets(responses))]


def _triplets(responses: Mapping[str, Mapping[bool, list[str]]]) -> Iterator[dict[str, str]]:
    for prompt, by_safety in responses.items():
        for safe, unsafe in itertools.product(by_safety[True], by_safety[False]):
            yield {"prompt": prompt, "chosen": safe, "rejected": unsafe}


HELLASWAG = Material(
    "hellaswag_300.jsonl",
    f"{_A_QUESTION_A_LINE}huggingface.co/datasets/Rowan/hellaswag.",
    _QUESTIONS,
    _data_set("Rowan/hellaswag", "validation", _hellaswag),
)
ARC = Material(
    "arc_challenge_300.jsonl",
    f"{_A_QUESTION_A_LINE}huggingface.co/datasets/allenai/ai2_arc.",
    _QUESTIONS,
    _data_set("allenai/ai2_arc", "test", _arc, "ARC-Challenge"),
)
PIQA = Material(
    "piqa_300.jsonl",
    f"{_A_QUESTION_A_LINE}huggingface.co/datasets/baber/piqa.",
    _QUESTIONS,
    _data_set("baber/piqa", "validation", _piqa),
)
TRIPLETS = Material(
    "triplets.jsonl",
    "A row is {prompt, chosen, rejected}; the paper's are safe and unsafe responses of "
    "huggingface.co/datasets/PKU-Alignment/BeaverTails.",
    _rows_with(prompt=str, chosen=str, rejected=str),
    _data_set("PKU-Alignment/BeaverTails", "30k_train", _beavertails),
)
PAIRS = Material(
    "human_vs_llm_180.jsonl",
    "A row is {id, x, y_human, y_llm}: a beginning, how a human went on, and how GPT-4 did, such as the files of "
    "github.com/baoguangsheng/fast-detect-gpt hold for xsum, writing and pubmed.",
    _rows_with(x=str, y_human=str, y_llm=str),
)
HELD_OUT = Material(
    "text8_valid_500k.txt.gz",
    "Any 500,000 characters of text8 (mattmahoney.net/dc/text8.zip) behind the first 16 million, which text8-tiny was "
    "trained on; gzipped.",
    _text,
    _data_set("afmck/text8", "test", lambda rows: _joined(rows)[:500_000]),
)
TO_TRAIN_ON = Material(
    "text8_train_16M.txt.gz",
    "The first 16 million characters of text8 (mattmahoney.net/dc/text8.zip), gzipped.",
    _text,
    _data_set("afmck/text8", "train", _joined),
)
WIKITEXT = Material(
    "wiki.train.raw",
    "The training text of WikiText-2, raw: huggingface.co/datasets/Salesforce/wikitext, wikitext-2-raw-v1.",
    _text,
    _data_set("Salesforce/wikitext", "train", _joined, "wikitext-2-raw-v1"),
)
CHINESE = Material(
    "zh_hongloumeng_200k.txt",
    "Chinese prose in UTF-8, 200,000 characters or more, such as a novel of gutenberg.org (number 24264).",
    _text,
)
GPT2 = Material(
    "gpt2_bpe/vocab.bpe",
    "It and encoder.json beside it are GPT-2's tokenizer, as published with github.com/openai/gpt-2.",
    _gpt2,
    _tokenizer("openai-community/gpt2"),
)
