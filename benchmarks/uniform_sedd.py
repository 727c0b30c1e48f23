"""A SEDD network under uniform noise, trained for a few minutes on the paper's toy: its dse_nll against the truth.

    python benchmarks/uniform_sedd.py

Every step shows all 128 sequences, weighted by their probabilities, each under noise of its own. Prints the mean
absolute error over the 128 sequences, and how much of it is Monte Carlo noise of the estimates.
"""

import argparse
import math
import time

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from infodis.dse import dse_nll, from_network
from infodis.loss import ScoreEntropy
from infodis.nets import SEDD, Shape, initialise
from infodis.oracle import Table
from infodis.process import Uniform
from infodis.rng import stream
from infodis.schedule import LogLinear

COPIES = 4


def train(table: Table, *, steps: int, rate: float, shape: Shape) -> SEDD:
    """AdamW with a warm-up and a cosine decay; the averaged weights of the last stretch."""
    network = SEDD(table.vocab_size, shape, noise="uniform")
    initialise(network, generator=stream(0, "weights"))
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    tokens = table.sequences.repeat(COPIES, 1)
    weight = (table.probabilities * len(table.probabilities)).float().repeat(COPIES)
    loss, begin = ScoreEntropy(LogLinear(), noise="uniform"), time.perf_counter()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, step / 100) * 0.5 * (1 + math.cos(math.pi * step / steps))
        order = torch.randperm(len(tokens), generator=stream(0, "order", step))  # strata of time meet all sequences
        value = (weight[order] * loss(network, tokens[order], generator=stream(0, "noise", step))).mean()
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(network)
        if step % 250 == 0:
            print(f"step {step}: loss {float(value.detach()):.3f}, {time.perf_counter() - begin:.0f} s", flush=True)
    return average.module.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--evaluations", type=int, default=2048)
    given = parser.parse_args()
    table, schedule = Table.dna(0), LogLinear()
    network = train(table, steps=given.steps, rate=given.learning_rate, shape=Shape(96, 4, 4))
    until = float(schedule.total(torch.tensor(1.0).double()))
    how = {"process": Uniform(table.vocab_size), "until": until, "evaluations": given.evaluations, "batch_size": 1024}
    found = [dse_nll(from_network(network), row, **how) for row in table.sequences]
    truth = torch.tensor([-table.log_prob(row) for row in table.sequences])
    values = torch.tensor([estimate.value for estimate in found])
    noise = sum(estimate.standard_error for estimate in found) / len(found)
    print(
        f"mean |estimated - true| {float((values - truth).abs().mean()):.4f} nats, mean difference "
        f"{float((values - truth).mean()):+.4f}, mean standard error {noise:.4f}, correlation "
        f"{float(torch.corrcoef(torch.stack([values, truth]))[0, 1]):.4f}"
    )


if __name__ == "__main__":
    main()
