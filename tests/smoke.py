"""Every experiment of the paper, as small as it gets: those that ship scored, trained anew, and in the paper's shape.

    python tests/smoke.py --out out/smoke
    python tests/smoke.py --out out/shape --texts 500 --only full,authors

The paper's shape needs files and a model that are not shipped. Small ones of the same kind are written here: questions,
rows of BeaverTails, text8 and a BPE tokenizer, a clone of the authors' repository, and a random network with that
tokenizer. With 500 texts only networks and steps are smaller than the paper's.
"""

import argparse
import gzip
import itertools
import json
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from typer.testing import CliRunner

from infodis.apps.reproduce.catalog import EXPERIMENTS
from infodis.apps.reproduce.data import (
    ARC,
    CHINESE,
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


def _long(text: str, characters: int) -> str:
    """The sentences of a text in random order, again and again."""
    sentences = [one.strip() for one in text.replace("\n", " ").split(".") if one.strip()]
    chosen = random.Random(0).choices(sentences, k=characters // 40)
    return ". ".join(chosen)[:characters]


def _lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_data(place: Path, texts: int) -> None:
    """Files of the names and shapes that experiments ask for, with so many texts at least."""
    place.mkdir(parents=True, exist_ok=True)
    letters = list(itertools.islice(itertools.cycle(LETTERS), max(30, texts)))
    question = [
        {"id": str(n), "x": f"{text[:20]} ...", "choices": [text[20:28], text[28:34]], "label": 0}
        for n, text in enumerate(letters)
    ]
    for data in (HELLASWAG, ARC, PIQA):
        _lines(place / data.file, question)
    published = [
        {"prompt": f"{n} {text[:20]}", "response": text[begin : begin + 20], "is_safe": begin < 60}
        for n, text in enumerate(letters)
        for begin in (20, 40, 60)
    ]
    _lines(place / TRIPLETS.file, published)
    story = _long(" ".join(LETTERS).replace("!", ".").replace("?", "."), 4_000)
    pairs = [{"id": str(n), "x": _long(ENCYCLOPEDIA, 2_000), "y_human": story, "y_llm": story[n:]} for n in range(4)]
    _lines(place / PAIRS.file, pairs)
    long = _long(ENCYCLOPEDIA, 60_000 + 600 * texts)
    for data in (HELD_OUT, TO_TRAIN_ON):
        (place / data.file).write_bytes(gzip.compress(text8_style(long).encode()))
    for data in (WIKITEXT, CHINESE):
        (place / data.file).write_text(long, encoding="utf-8")
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
    generator = stream(0, "stand-in")
    initialise(network, generator=generator)
    noise = {name: torch.randn(one.shape, generator=generator) for name, one in network.state_dict().items()}
    network.load_state_dict({name: one + noise[name] / 2 for name, one in network.state_dict().items()})
    checkpoint.save(place, spec, network.state_dict())


def write_clone(place: Path, texts: int = 8) -> None:
    """What a clone of the authors' repository holds: probabilities, continuations, and two texts of one line."""
    data = place / "data"
    data.mkdir(parents=True, exist_ok=True)
    sequences = ["".join(one) for one in itertools.product("ATGC", repeat=8)][:: 4**8 // 128][:128]
    (data / "sequence_eval.json").write_text(json.dumps({one: n / 8256 for n, one in enumerate(sequences, 1)}))
    row = {"A": 0.1, "T": 0.2, "G": 0.3, "C": 0.4}
    table = {"".join(one): row for one in itertools.product("ATGC", repeat=4)}
    (data / "markov_data_table.json").write_text(json.dumps(table))
    text, story = _long(ENCYCLOPEDIA, 60_000), _long(" ".join(LETTERS), 60_000)
    rows = [
        {"x": text[n : n + 400], "y": text[n + 400 : n + 800], "z": story[n : n + 400], "r": story[n + 9 : n + 400]}
        for n in range(0, 100 * texts, 100)
    ]
    for name in ("wikitext_llada.json", "zh.json"):
        (data / name).write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    (data / "text8_eval_data.txt").write_text(text8_style(text), encoding="utf-8")
    (data / "text8_gpt_eval_data.txt").write_text(story, encoding="utf-8")


def write_materials(place: Path, texts: int) -> dict[str, Path]:
    """Everything, by the option that takes it."""
    found = {name: place / name for name in ("data", "model", "authors")}
    write_data(found["data"], texts)
    write_model(found["model"], found["data"])
    write_clone(found["authors"], max(8, texts))
    return found


def runs(place: Path, materials: dict[str, Path], texts: int) -> Iterator[tuple[str, list[str]]]:
    """What they try, and words for `infodis reproduce`: all in one go on a laptop, else a run for every experiment."""
    full = ["--full", "--stand-in", str(texts), "--data", str(materials["data"]), "--model", str(materials["model"])]
    yield "laptop", ["all", "--smoke", "--out", str(place / "laptop")]
    sizes = {
        "train": ["--smoke", "--train"],
        "full": full,
        "authors": [*full, "--authors", str(materials["authors"])],
    }
    for (size, words), one in itertools.product(sizes.items(), EXPERIMENTS):
        if one.has_authors_data or size != "authors":
            chosen = ["--designs", "time-integral,time-free"] if one.name == "variance-time-free" else []
            yield size, [one.name, *words, *chosen, "--out", str(place / size)]


def cpu_seconds() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=3, help="of a group, in the paper's shape")
    parser.add_argument("--only", default="laptop,train,full,authors", help="sizes, by commas")
    parser.add_argument("--experiment", help="one of them")
    given = parser.parse_args()
    began = time.monotonic()
    for size, words in runs(given.out, write_materials(given.out / "materials", given.texts), given.texts):
        if size not in given.only.split(",") or given.experiment not in (None, words[0]):
            continue
        start, used = time.monotonic(), cpu_seconds()
        done = CliRunner().invoke(app, ["reproduce", *words])
        print(f"{size}, {words[0]}: {time.monotonic() - start:.0f} s, CPU {cpu_seconds() - used:.1f} s", flush=True)
        if done.exit_code:
            print(done.output[-4_000:])
            raise SystemExit(f"`infodis reproduce {' '.join(words)}` failed: {done.exception}")
    print(f"all: {time.monotonic() - began:.0f} s, CPU {cpu_seconds():.0f} s")


if __name__ == "__main__":
    main()
