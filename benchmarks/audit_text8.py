"""What text8-tiny finds strange: held-out text8 against five kinds of foreign text, with trivial baselines beside it.

    OMP_NUM_THREADS=1 python benchmarks/audit_text8.py --data DIR --out out/audit

A row is a prompt of 128 characters and a response of 128 that begins with a word: at a word cut in two, a foreign
response is told by that word. The first group are windows of data/text8_valid.txt.gz, which
the model has not seen. The others, all in the letters of text8:

    shuffled     the same responses with their words in random order
    elsewhere    responses of other windows after the prompt
    gpt          GPT-4's continuations of news, stories and abstracts (human_vs_llm_180.jsonl in DIR)
    human        the human continuations of the same prompts
    chinese      Chinese prose, transliterated (zh_hongloumeng_200k.txt in DIR; needs `pip install anyascii`)

and, as a pair, gpt against human after the same prompts. Groups whose file is missing are left out. Every group is
examined once; records in --out are used again, so that an interrupted run goes on. Each audit leaves a report there.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import torch

from infodis.apps.audit.analysis import Audit, analyse, task_named
from infodis.apps.audit.measure import AuditJob
from infodis.apps.audit.records import PRIMARY, Group
from infodis.apps.audit.reporting import interval_text, p_text, write_audit
from infodis.apps.audit.separation import separate
from infodis.apps.reproduce.data import CHINESE, PAIRS
from infodis.apps.reproduce.prompts import (
    Row,
    TextCutter,
    WindowShape,
    continuations,
    elsewhere,
    shuffled,
    transliterate,
    windows,
)
from infodis.estimate import Request
from infodis.jobs.inputs import InputSpec, Reading
from infodis.jobs.run import InProcess, RunPlan, run
from infodis.models.spec import ModelSpec
from infodis.rng import stream

SHAPE = WindowShape(128, 128)
HELD_OUT = Path(__file__).parents[1] / "data" / "text8_valid.txt.gz"


def groups(data: Path | None, count: int) -> Iterator[tuple[str, list[Row]]]:
    held = windows(gzip.decompress(HELD_OUT.read_bytes()).decode(), count, SHAPE, whole=True)
    yield "text8", held
    yield "shuffled", list(shuffled(held))
    yield "elsewhere", list(elsewhere(held))
    if data is not None and (path := data / PAIRS.file).exists():
        pairs = PAIRS.read(path)
        yield "human", list(continuations(pairs, "y_human", TextCutter(SHAPE)))[:count]
        yield "gpt", list(continuations(pairs, "y_llm", TextCutter(SHAPE)))[:count]
    if data is not None and (prose := data / CHINESE.file).exists():
        letters = transliterate(CHINESE.read(prose))
        if letters is not None:
            yield "chinese", windows(letters, count, SHAPE, whole=True)


def examined(name: str, rows: list[Row], out: Path, evaluations: int) -> Group:
    source = out / f"{name}.rows.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if not source.exists() or source.read_text(encoding="utf-8") != text:
        source.write_text(text, encoding="utf-8")
    job = AuditJob(ModelSpec("text8-tiny"), Request(evaluations=evaluations), Reading(), 0, None)
    plan = RunPlan(
        out=out / f"{name}.jsonl",
        job=job,
        input=InputSpec(str(source), 16),
        executor=InProcess(),
    )
    finished = run(plan, lambda state: print(f"\r{name}: {state.done} of {state.rows} rows", end="", flush=True))
    print()
    return Group.read(name, plan.out, rejected=int(finished.totals.get("rejected", 0)))


def table_row(found: Audit) -> str:
    """A line of the table."""
    ngrams = found.confounds.ngrams
    best = max(found.separations, key=lambda one: abs(one.auroc.value - 0.5))
    trivial = "" if ngrams is None else interval_text(ngrams.auroc)
    return (
        f"| {found.positive.name} | {found.negative.name} | {len(found.positive.records)} | "
        f"{interval_text(found.main.auroc)} | {p_text(found.main.p_value)} | "
        f"{best.score} {interval_text(best.auroc)} | {trivial} |"
    )


def null(group: Group, repetitions: int = 200) -> str:
    """Random halves of one group against each other: p-values must be uniform, and intervals cover a half."""
    from scipy.stats import kstest

    values = torch.tensor([PRIMARY.of(record) for record in group.records], dtype=torch.float64)
    half = len(values) // 2
    found = []
    for number in range(repetitions):
        order = torch.randperm(len(values), generator=stream(0, "halves", number))
        found.append(separate(values[order[:half]], values[order[half : 2 * half]], score="null", seed=number))
    p = kstest([one.p_value for one in found], "uniform").pvalue
    covered = sum(one.auroc.low <= 0.5 <= one.auroc.high for one in found)
    return (
        f"Halves of {group.name}, {repetitions} times: p-values against uniform (Kolmogorov-Smirnov) p = {p:.2f}, "
        f"95 % intervals of AUROC hold 0.5 in {covered} of {repetitions}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory with the other texts")
    parser.add_argument("--out", type=Path, default=Path("out/audit"))
    parser.add_argument("--rows", type=int, default=200, help="of a group, at most")
    parser.add_argument("--evaluations", type=int, default=32, help="masks of a row in each circumstance")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found = {name: examined(name, rows, given.out, given.evaluations) for name, rows in groups(given.data, given.rows)}
    pairs = [("text8", name) for name in found if name != "text8"] + [("human", "gpt")] * ("gpt" in found)
    print("| group | against | rows | AUROC, nll per token | p | best score | character n-grams |")
    print("|---|---|---|---|---|---|---|")
    for one, other in pairs:
        audit = analyse(task_named("ood"), [found[one], found[other]])
        directory = given.out / f"{other}-against-{one}"
        directory.mkdir(exist_ok=True)
        write_audit(audit, directory, {"model": "text8-tiny", "evaluations": given.evaluations})
        print(table_row(audit), flush=True)
    print(null(found["text8"]))


if __name__ == "__main__":
    main()
