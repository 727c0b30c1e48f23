"""Every experiment of the paper, as small as it gets: those that ship scored, trained anew, and in the paper's shape.

    python tests/smoke.py --out out/smoke

The paper's shape needs files and a model that are not shipped. Small ones of the same kind are written here: questions,
preferences, text8 and a BPE tokenizer, a clone of the authors' repository, and a random network with that tokenizer.
"""

import argparse
import gzip
import itertools
import json
import random
import time
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from typer.testing import CliRunner

from infodis.apps.reproduce.data import (
    ARC,
    ENCYCLOPEDIA,
    GPT2,
    HELD_OUT,
    HELLASWAG,
    LETTERS,
    PAIRS,
    PIQA,
    TO_TRAIN_ON,
    TRIPLETS,
    WIKITEXT,
)
from infodis.cli import app
from infodis.models import checkpoint
from infodis.models.checkpoint import Spec
from infodis.models.nets import NetworkShape
from infodis.models.nets.transformer import initialise
from infodis.models.tokenizers import text8_style, tokenizer_named
from infodis.rng import stream

TEXTS = 3
"""Of a group, in the paper's shape."""


def _long(text: str, characters: int) -> str:
    """The sentences of a text in random order, again and again."""
    sentences = [one.strip() for one in text.replace("\n", " ").split(".") if one.strip()]
    chosen = random.Random(0).choices(sentences, k=characters // 40)
    return ". ".join(chosen)[:characters]


def _lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_data(place: Path) -> None:
    """Files of the names and shapes that experiments ask for."""
    place.mkdir(parents=True, exist_ok=True)
    question = [
        {"id": str(n), "x": f"{text[:40]} ...", "choices": [text[40:80], "all of it was sold"], "label": 0}
        for n, text in enumerate(LETTERS)
    ]
    for data in (HELLASWAG, ARC, PIQA):
        _lines(place / data.file, question)
    _lines(
        place / TRIPLETS.file,
        [{"prompt": one[:30], "chosen": one[30:70], "rejected": one[40:90]} for one in LETTERS],
    )
    story = _long(" ".join(LETTERS).replace("!", ".").replace("?", "."), 4_000)
    pairs = [{"id": str(n), "x": _long(ENCYCLOPEDIA, 2_000), "y_human": story, "y_llm": story[n:]} for n in range(4)]
    _lines(place / PAIRS.file, pairs)
    letters = text8_style(_long(ENCYCLOPEDIA, 60_000))
    for data in (HELD_OUT, TO_TRAIN_ON):
        (place / data.file).write_bytes(gzip.compress(letters.encode()))
    (place / WIKITEXT.file).write_text(_long(ENCYCLOPEDIA, 60_000), encoding="utf-8")
    _write_tokenizer(place)


def _write_tokenizer(place: Path) -> None:
    """A byte-level BPE of a few hundred tokens, in the two files in which GPT-2's was published."""
    merges = place / GPT2.file
    merges.parent.mkdir(exist_ok=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([ENCYCLOPEDIA, *LETTERS], vocab_size=400, show_progress=False)
    vocabulary, merged = map(Path, tokenizer.save_model(str(merges.parent)))
    vocabulary.replace(merges.with_name("encoder.json"))
    merged.replace(merges)


def write_model(place: Path, data: Path) -> None:
    """A random network with that tokenizer, in place of one of billions of weights."""
    merges = data / GPT2.file
    made = ByteLevelBPETokenizer(str(merges.with_name("encoder.json")), str(merges))
    place.mkdir(parents=True, exist_ok=True)
    (place / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    tokenizer = tokenizer_named("tokenizer.json", base=place)
    spec = Spec("radd", tokenizer.vocab_size, NetworkShape(width=16, blocks=1, heads=2), 256, tokenizer=tokenizer)
    network = spec.build()
    initialise(network, generator=stream(0, "stand-in"))
    checkpoint.save(place, spec, network.state_dict())


def write_clone(place: Path) -> None:
    """What a clone of the authors' repository holds: probabilities, continuations, and two texts of one line."""
    data = place / "data"
    data.mkdir(parents=True, exist_ok=True)
    sequences = ["".join(one) for one in itertools.product("ATGC", repeat=8)][:: 4**8 // 128][:128]
    (data / "sequence_eval.json").write_text(json.dumps(dict.fromkeys(sequences, 1 / 128)))
    row = {"A": 0.1, "T": 0.2, "G": 0.3, "C": 0.4}
    table = {"".join(one): row for one in itertools.product("ATGC", repeat=4)}
    (data / "markov_data_table.json").write_text(json.dumps(table))
    text, story = _long(ENCYCLOPEDIA, 60_000), _long(" ".join(LETTERS), 20_000)
    rows = [
        {"x": text[n : n + 400], "y": text[n + 400 : n + 800], "z": story[n : n + 400], "r": story[n + 9 : n + 400]}
        for n in range(0, 8_000, 1_000)
    ]
    for name in ("wikitext_llada.json", "zh.json"):
        (data / name).write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    (data / "text8_eval_data.txt").write_text(text8_style(text), encoding="utf-8")
    (data / "text8_gpt_eval_data.txt").write_text(story, encoding="utf-8")


def write_materials(place: Path) -> dict[str, Path]:
    """Everything, by the option that takes it."""
    found = {name: place / name for name in ("data", "model", "authors")}
    write_data(found["data"])
    write_model(found["model"], found["data"])
    write_clone(found["authors"])
    return found


def runs(place: Path, materials: dict[str, Path]) -> dict[str, list[str]]:
    """Words for `infodis reproduce`, by what they try."""
    full = ["--full", "--stand-in", str(TEXTS), "--designs", "time-integral,time-free"]
    data = ["--data", str(materials["data"]), "--model", str(materials["model"])]
    return {
        "laptop": ["all", "--smoke", "--out", str(place / "laptop")],
        "train": ["all", "--smoke", "--train", "--out", str(place / "train")],
        "full": ["all", *full, *data, "--out", str(place / "full")],
        **{
            f"authors, {name}": [name, *full, *data, "--authors", str(materials["authors"]), "--out", str(place / name)]
            for name in ("dna-unconditional", "dna-conditional", "ood-text8", "audit-llada")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    place = parser.parse_args().out
    began = time.monotonic()
    for name, words in runs(place, write_materials(place / "materials")).items():
        start = time.monotonic()
        done = CliRunner().invoke(app, ["reproduce", *words])
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
        if done.exit_code:
            print(done.output[-4_000:])
            raise SystemExit(f"`infodis reproduce {' '.join(words)}` failed: {done.exception}")
    print(f"all: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
