"""A score network under uniform noise, trained for minutes on the paper's toy: its dse_nll against the truth.

    OMP_NUM_THREADS=1 python benchmarks/uniform_sedd.py

As SEDD: log-scores of all single changes, given the noise, trained by the score entropy. For eight letters three dense
layers learn in minutes what a transformer takes hours for. They guess every clean letter from the rest; noise added to
the guess makes it a score, of the right size also where the noise is small. Every step shows all 128 sequences,
weighted by their probabilities, each under noise of its own. Prints the mean absolute error over the 128 sequences, and
how much of it is Monte Carlo noise of the estimates.
"""

import argparse
import itertools
import math
import time

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from infodis.models.nets import initialise
from infodis.noise.dse import dse_nll, from_network
from infodis.noise.process import Uniform
from infodis.noise.schedule import LogLinear
from infodis.oracle import Table
from infodis.rng import stream
from infodis.train.losses import ScoreEntropy

COPIES, FREQUENCIES = 4, 16


class ScoreNetwork(nn.Module):
    """Log-scores of every letter at every position; 0 for the letter that is there."""

    def __init__(self, vocab_size: int, length: int, width: int = 512) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        sizes = [vocab_size * length + 2 * FREQUENCIES, width, width, width]
        layers = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.GELU())]
        self.layers = nn.Sequential(*layers, nn.Linear(width, vocab_size * length))
        nn.init.zeros_(self.layers[-1].weight)

    def forward(self, tokens: Tensor, sigma: Tensor) -> Tensor:
        level = -torch.expm1(-sigma).unsqueeze(-1)  # the chance that a letter was drawn anew
        angle = level * torch.arange(1, FREQUENCIES + 1) * math.pi / 2
        letters = nn.functional.one_hot(tokens, self.vocab_size).float().flatten(1)
        found = self.layers(torch.cat([letters, angle.cos(), angle.sin()], dim=1)).view(*tokens.shape, -1)
        kept, anew = (1 - level).unsqueeze(-1), level.unsqueeze(-1) / self.vocab_size
        noised = (kept * found.softmax(-1) + anew).log()
        return noised - noised.gather(-1, tokens.unsqueeze(-1))


def train(table: Table, *, steps: int, rate: float) -> nn.Module:
    """AdamW with a warm-up and a linear decay; the averaged weights of the last stretch."""
    network = ScoreNetwork(table.vocab_size, table.sequences.shape[1])
    initialise(network, generator=stream(0, "weights"))
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    tokens = table.sequences.repeat(COPIES, 1)
    weight = (table.probabilities * len(table.probabilities)).float().repeat(COPIES)
    loss, begin, total = ScoreEntropy(LogLinear(), noise="uniform"), time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, step / 50) * (1 - (step - 1) / steps)
        order = torch.randperm(len(tokens), generator=stream(0, "order", step))  # strata of time meet all sequences
        value = (weight[order] * loss(network, tokens[order], generator=stream(0, "noise", step))).mean()
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(network)
        total += float(value.detach())
        if step % 1000 == 0:
            print(f"step {step}: loss {total / 1000:.3f}, {time.perf_counter() - begin:.0f} s", flush=True)
            total = 0.0
    return average.module.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16_000)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--evaluations", type=int, default=16_384)
    given = parser.parse_args()
    table, schedule = Table.dna(0), LogLinear()
    truth = torch.tensor([-table.log_prob(row) for row in table.sequences], dtype=torch.float64)
    print(f"entropy of the data: {float((table.probabilities * truth).sum()):.3f} nats")
    network = train(table, steps=given.steps, rate=given.learning_rate)
    until = float(schedule.total(torch.tensor(1.0).double()))
    how = {"process": Uniform(table.vocab_size), "until": until, "evaluations": given.evaluations, "batch_size": 4096}
    found = [dse_nll(from_network(network), row, **how) for row in table.sequences]
    values = torch.tensor([estimate.value for estimate in found], dtype=torch.float64)
    noise = sum(estimate.standard_error for estimate in found) / len(found)
    print(
        f"mean |estimated - true| {float((values - truth).abs().mean()):.4f} nats, mean difference "
        f"{float((values - truth).mean()):+.4f}, mean standard error {noise:.4f}, correlation "
        f"{float(torch.corrcoef(torch.stack([values, truth]))[0, 1]):.4f}"
    )


if __name__ == "__main__":
    main()
