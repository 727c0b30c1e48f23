"""Data that cannot be shipped, from a file or by the `datasets` library; and a few texts of our own for smoke runs."""

import dataclasses
import importlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from infodis.apps.reproduce.experiment import Workspace
from infodis.errors import InputError
from infodis.jobs.inputs import entries
from infodis.models.text_files import opened_text

Content = TypeVar("Content")
Row = Mapping[str, Any]
Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class HubData(Generic[Content]):
    """Something on the hub by its name, and how to fetch it."""

    name: str
    fetch: Callable[[], Content]


def _data_set(
    name: str, split: str, made: Callable[[Iterable[Row]], Content], part: str | None = None
) -> HubData[Content]:
    """Rows of a split, made into what a file would hold."""
    return HubData(name, lambda: made(importlib.import_module("datasets").load_dataset(name, part, split=split)))


@dataclasses.dataclass(frozen=True)
class DataFile(Generic[Content]):
    """A file by its name, how to get it and how it is read; and where it is fetched from if it is not there."""

    file: str
    where: str
    read: Callable[[Path], Content]
    remote: HubData[Content] | None = None

    def get(self, workspace: Workspace) -> Content:
        """From a file if there is one, else over the network."""
        path = workspace.find(self.file)
        if path is not None:
            return self.read(path)
        missing = (
            f"{self.file} is needed and not in {workspace.searched}. {self.where} Then name its directory with --data."
        )
        if self.remote is None:
            raise InputError(missing)
        workspace.progress(f"fetching {self.remote.name}", 0, 1)
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


def _tokenizer(name: str) -> HubData[str]:
    return HubData(name, lambda: importlib.import_module("tokenizers").Tokenizer.from_pretrained(name).to_str())


def _text(path: Path) -> str:
    with opened_text(path) as file:
        return file.read()


def _joined(rows: Iterable[Row]) -> str:
    return "".join(row["text"] for row in rows)


_KINDS = {str: "a text", list: "a list", int: "a whole number", bool: "true or false"}


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


def _questions(
    file: str, hub: str, split: str, made: Callable[[Iterable[Row]], Rows], part: str | None = None
) -> DataFile[Rows]:
    """Multiple choice, one question a line."""
    where = (
        "A row is {id, x, choices, label}: a question, its answers, and which is right, from 0 on; see "
        f"huggingface.co/datasets/{hub}."
    )
    return DataFile(file, where, _rows_with(x=str, choices=list, label=int), _data_set(hub, split, made, part))


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


def _preferences(path: Path) -> Rows:
    """Triplets as they are, or BeaverTails as it is published, to be paired."""
    rows = _rows_with(prompt=str)(path)
    if any("is_safe" in row for row in rows):
        return _beavertails(_rows_with(prompt=str, response=str, is_safe=bool)(path))
    return _rows_with(prompt=str, chosen=str, rejected=str)(path)


def _triplets(responses: Mapping[str, Mapping[bool, list[str]]]) -> Iterator[dict[str, str]]:
    for prompt, by_safety in responses.items():
        for safe, unsafe in itertools.product(by_safety[True], by_safety[False]):
            yield {"prompt": prompt, "chosen": safe, "rejected": unsafe}


HELLASWAG = _questions("hellaswag_300.jsonl", "Rowan/hellaswag", "validation", _hellaswag)
ARC = _questions("arc_challenge_300.jsonl", "allenai/ai2_arc", "test", _arc, "ARC-Challenge")
PIQA = _questions("piqa_300.jsonl", "baber/piqa", "validation", _piqa)
TRIPLETS = DataFile(
    "triplets.jsonl",
    "A row is {prompt, chosen, rejected}, or {prompt, response, is_safe} as in "
    "huggingface.co/datasets/PKU-Alignment/BeaverTails, which the paper pairs.",
    _preferences,
    _data_set("PKU-Alignment/BeaverTails", "30k_train", _beavertails),
)
PAIRS = DataFile(
    "human_vs_llm_180.jsonl",
    "A row is {id, x, y_human, y_llm}: a beginning, how a human went on, and how GPT-4 did, such as the files of "
    "github.com/baoguangsheng/fast-detect-gpt hold for xsum, writing and pubmed.",
    _rows_with(x=str, y_human=str, y_llm=str),
)
HELD_OUT = DataFile(
    "text8_valid_500k.txt.gz",
    "Any 500,000 characters of text8 (mattmahoney.net/dc/text8.zip) behind the first 16 million, which text8-tiny was "
    "trained on; gzipped.",
    _text,
    _data_set("afmck/text8", "test", lambda rows: _joined(rows)[:500_000]),
)
TO_TRAIN_ON = DataFile(
    "text8_train_16M.txt.gz",
    "The first 16 million characters of text8 (mattmahoney.net/dc/text8.zip), gzipped.",
    _text,
    _data_set("afmck/text8", "train", _joined),
)
WIKITEXT = DataFile(
    "wiki.train.raw",
    "The training text of WikiText-2, raw: huggingface.co/datasets/Salesforce/wikitext, wikitext-2-raw-v1.",
    _text,
    _data_set("Salesforce/wikitext", "train", _joined, "wikitext-2-raw-v1"),
)
CHINESE = DataFile(
    "zh_hongloumeng_200k.txt",
    "Chinese prose in UTF-8, 200,000 characters or more, such as a novel of gutenberg.org (number 24264).",
    _text,
)
GPT2 = DataFile(
    "gpt2_bpe/vocab.bpe",
    "It and encoder.json beside it are GPT-2's tokenizer, as published with github.com/openai/gpt-2.",
    _gpt2,
    _tokenizer("openai-community/gpt2"),
)

# A little text of our own, for runs without data: paragraphs of an encyclopedia, and letters.

ENCYCLOPEDIA = """
A lighthouse is a tower with a bright lamp at its top that warns ships of rocks and shallow water. The first ones were
open fires on hills; later towers were built of stone, and mirrors and lenses gathered the light into a beam that could
be seen from far away. Most lighthouses now work without a keeper.

Rice is the seed of a grass that is grown in flooded fields in many warm countries. It has been the main food of large
parts of Asia for thousands of years. Young plants are raised in beds and then set out by hand or by machine. The
water keeps down weeds and protects the roots from cold nights.

A glacier is a body of ice that forms where more snow falls in winter than melts in summer. Under its own weight the
snow becomes ice and begins to flow slowly down the valley. Glaciers carve the rock below them, carry stones to the
plains, and leave long lakes behind when they retreat.

The violin is a string instrument with four strings that is played with a bow. Its form was found in the north of
Italy in the sixteenth century and has changed little since then. The body is made of spruce and maple, and a thin
post of wood inside it carries the sound from the front to the back.

Copper is a soft red metal that conducts heat and electricity well. It was among the first metals that people worked,
because it is found pure in some places and melts in a simple furnace. Mixed with tin it becomes bronze, which is much
harder and gave its name to an age.

A canal is a waterway that was dug by people for boats or for watering fields. Where the land rises, boats pass
through locks, chambers with gates at both ends in which the level of the water is raised or lowered. Before the
railway, canals carried most of the heavy goods between cities.

The owl is a bird that hunts at night. Its eyes face forward and cannot be turned, so that it must move its whole head
to look around. Soft feathers make its flight almost silent, and one ear sits higher than the other, which tells the
bird exactly where a mouse is moving under the leaves.
"""

LETTERS = (
    "Hey Sam!! Did you grab my blue jacket from the hallway? I can't find it anywhere & I'm already late...",
    "Dear Ms. Okafor, thanks so much for the jam! We ate it all in one week. Please, please send us more?",
    "OK so I missed the bus (again), lost my keys, and it's only 9:15. Best Monday ever! How's yours going?",
    "Mum, don't worry, I've eaten. Twice! The flat's tiny but the view is lovely. Call you on Sunday, promise.",
    "Quick question: are you bringing the kids on Saturday, or just yourself? I need to know about the cake!",
    "Hi Jo, sorry I yelled about the bike. Wasn't your fault. Drinks are on me this Friday, if you'll come?",
    "To whoever keeps taking my lunch: it's labelled!!! Get your own sandwich. Yours, a very hungry colleague.",
    "Darling, I've fed the cat, watered the plants and paid the plumber. Come home soon, it's dull without you.",
    "Guess what? We got the house! I screamed so loudly that the neighbours came over. Moving day's in March.",
    "Hello Mr. Brandt, your parcel's at my place, no. 14. I'm in after six, just ring twice (bell's broken).",
    "Yo, are we still on for football tonight? Pitch looks soaked. I'd rather do pizza, to be honest with you!",
    "Dear Grandpa, thank you for the watch!!! It's way too nice for school, so I'm keeping it in my drawer.",
)
