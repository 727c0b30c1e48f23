"""All single mutants of a protein: forward passes and time, beside loops as people write them.

    OMP_NUM_THREADS=1 python benchmarks/variants.py
    OMP_NUM_THREADS=1 python benchmarks/variants.py --width 320 --layers 6 --turns 1 --doubles 0

A tiny ESM with random weights and a random protein of 120 residues with its 19 x 120 single mutants, and some double
mutants for `log_ratio`. The loop has one masked row for every mutant, in batches of 32. Both must give the same
numbers. The two take turns, so that a busy machine slows both alike; times are of the processor, medians of the turns.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import EsmConfig, EsmForMaskedLM, EsmTokenizer

import infodis
from infodis.models.model import Model
from infodis.rng import stream

AMINO = "ACDEFGHIKLMNPQRSTVWY"
BATCH = 32


def network(directory: Path, width: int, layers: int) -> tuple[EsmForMaskedLM, EsmTokenizer]:
    (directory / "vocab.txt").write_text("\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *AMINO, "<mask>"]))
    tokenizer = EsmTokenizer(str(directory / "vocab.txt"))
    torch.manual_seed(0)
    config = EsmConfig(
        vocab_size=len(tokenizer),
        mask_token_id=tokenizer.mask_token_id,
        pad_token_id=tokenizer.pad_token_id,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=256,
        position_embedding_type="rotary",
        token_dropout=False,
    )
    return EsmForMaskedLM(config).eval(), tokenizer


def protein(length: int) -> str:
    return "".join(AMINO[int(n)] for n in torch.randint(len(AMINO), (length,), generator=stream(1)))


def single_mutants(wild: str) -> list[str]:
    return [f"{own}{place}{new}" for place, own in enumerate(wild, start=1) for new in AMINO if new != own]


@torch.no_grad()
def loop(made: EsmForMaskedLM, tokenizer: EsmTokenizer, wild: str, mutants: list[str]) -> tuple[list[float], int]:
    """Masked marginals, a row for every mutant; and how many rows that takes."""
    tokens = tokenizer(wild, return_tensors="pt")["input_ids"][0]
    found: list[float] = []
    for start in range(0, len(mutants), BATCH):
        some = mutants[start : start + BATCH]
        places = torch.tensor([int(one[1:-1]) for one in some])  # behind <cls>
        rows = tokens.repeat(len(some), 1)
        rows[torch.arange(len(some)), places] = tokenizer.mask_token_id
        log_p = torch.log_softmax(made(input_ids=rows).logits[torch.arange(len(some)), places].double(), -1)
        new, own = (tokenizer.convert_tokens_to_ids([one[end] for one in some]) for end in (-1, 0))
        each = torch.arange(len(some))
        found += (log_p[each, new] - log_p[each, own]).tolist()
    return found, len(mutants)


def seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def marginals(made: EsmForMaskedLM, tokenizer: EsmTokenizer, model: Model, wild: str, turns: int) -> None:
    mutants = single_mutants(wild)
    both = ["wt_marginals", "masked_marginals"]
    found = infodis.variants(model, wild, mutants, scores=both)
    expected, rows = loop(made, tokenizer, wild, mutants)
    mine = [one.scores["masked_marginals"] or 0.0 for one in found]
    times = [
        (
            seconds(lambda: loop(made, tokenizer, wild, mutants)),
            seconds(lambda: infodis.variants(model, wild, mutants, scores=both)),
        )
        for _ in range(turns)
    ]
    before, now = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"single mutants of {len(wild)} residues: {len(mutants)}")
    print(f"loop, masked marginals:                {rows} forward passes, {before:.2f} s")
    print(f"infodis, both marginals:               {found.passes} forward passes, {now:.2f} s")
    print(f"ratio:                                 {rows / found.passes:.1f} passes, {before / now:.1f} in time")
    print(f"largest difference:                    {max(abs(x - y) for x, y in zip(mine, expected, strict=True)):.1e}")


def double_mutants(model: Model, wild: str, count: int) -> None:
    singles = single_mutants(wild)
    step = len(singles) // (count + 1)
    pairs = [f"{singles[n * step]}:{singles[-1 - n * step]}" for n in range(count)]
    pairs = [one for one in pairs if len({part[1:-1] for part in one.split(":")}) == 2]
    found = infodis.variants(model, wild, pairs, scores=["log_ratio"])
    ratios = [one.effect.ratio for one in found if one.effect.ratio is not None]
    apart = [sum(side.standard_error**2 for side in one.sides) ** 0.5 for one in ratios]
    coupled = [one.standard_error for one in ratios]
    print(
        f"\nlog_ratio of {len(pairs)} double mutants:     {found.passes} forward passes, {found.evaluations} one by one"
    )
    print(f"mean standard error:                   {statistics.mean(coupled):.4f} nats with shared masks")
    print(f"of two independent sides:              {statistics.mean(apart):.4f} nats")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=120)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--doubles", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        made, tokenizer = network(Path(directory), given.width, given.layers)
        model = infodis.load(made, tokenizer=tokenizer)
        wild = protein(given.length)
        marginals(made, tokenizer, model, wild, given.turns)
        if given.doubles:
            double_mutants(model, wild, given.doubles)


if __name__ == "__main__":
    main()
