"""What the models that ship can do: the numbers of their cards.

    python benchmarks/shipped_models.py --text data/text8_valid.txt.gz

dna-tiny: all 128 sequences of the paper's toy, all 255 masks of each, against the exact answer. text8-tiny: bits per
character of held-out text in windows of 256, and of the same text with the characters of every window shuffled.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

import infodis
from infodis.design import Enumerate
from infodis.models.text_files import encode_file
from infodis.oracle import Table
from infodis.quantities import perplexity
from infodis.rng import stream


def dna() -> None:
    table = Table.dna(seed=0)
    found = infodis.nll(infodis.load("dna-tiny"), table.sequences, design=Enumerate(), evaluations=255)
    assert isinstance(found, list)
    mine = torch.tensor([estimate.value for estimate in found])
    exact = -table.probabilities.log().float()
    error = mine - exact
    correlation = float(torch.corrcoef(torch.stack([mine, exact]))[0, 1])
    print(
        f"dna-tiny: mean |estimated - true| {float(error.abs().mean()):.4f} nats, "
        f"largest {float(error.abs().max()):.4f}, mean difference {float(error.mean()):+.4f}, "
        f"correlation {correlation:.4f}"
    )
    alike = _alike(table)
    print(f"  a network that knows no positions and all else exactly: {float(alike.abs().mean()):.4f} nats")


def _alike(table: Table) -> Tensor:
    """The error of the nll if all places get the same distribution while all are masked."""
    here = torch.nn.functional.one_hot(table.sequences, 4).double()
    marginals = (table.probabilities[:, None, None] * here).sum(0)
    mean = marginals.mean(0)
    return (here * (marginals / mean).log()).sum((1, 2)) / table.sequences.shape[1]


def text8(file: Path, windows: int | None, evaluations: int) -> None:
    model = infodis.load("text8-tiny")
    tokens = torch.from_numpy(encode_file(file, model.tokenizer))
    tokens = tokens[: len(tokens) // 256 * 256]
    shuffled = [
        row[torch.randperm(256, generator=stream(0, "shuffle", n))] for n, row in enumerate(tokens.view(-1, 256))
    ]
    for name, text in (("held-out text", tokens), ("the same, shuffled", torch.cat(shuffled))):
        cut = perplexity.Windows(256)
        found = perplexity.perplexity(model, text, windows=cut, limit=windows, evaluations=evaluations)
        assert found.sampling_error is not None
        print(
            f"text8-tiny, {name}: {found.bits_per_token:.4f} bits per character, standard error "
            f"{found.per_token(found.monte_carlo_error):.4f} from masks, {found.per_token(found.sampling_error):.4f} "
            f"from text and masks; {found.windows} windows, {found.evaluations:,} forward passes"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="held-out text of a-z and space")
    parser.add_argument("--windows", type=int, help="score only so many, evenly spread")
    parser.add_argument("--evaluations", type=int, default=16, help="forward passes per window")
    given = parser.parse_args()
    dna()
    if given.text is not None:
        text8(given.text, given.windows, given.evaluations)


if __name__ == "__main__":
    main()
