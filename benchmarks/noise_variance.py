"""How much dse_nll varies at equal forward passes, against the estimators that the projects of the field use.

    OMP_NUM_THREADS=1 python benchmarks/noise_variance.py
    OMP_NUM_THREADS=1 python benchmarks/noise_variance.py --model runs/text8-uniform --text data/text8_valid.txt.gz

Exact scores of a Markov chain over 16 tokens, texts of 32 tokens, so that every estimator is about the same number:

- SEDD: independent times, uniform on a geometric schedule from 1e-4 to 20;
- Duo: times stratified over the batch, on a log-linear schedule (its loss at those times);
- GIDD: the same by one shifted grid, on its hybrid noise (its loss at those times).

All of them noise every token by itself. They leave out what happens before and after their schedule, which here is less
than a hundredth of a nat. A run is what one text costs by so many passes; variances are over runs, averaged over texts.
With --model the same of a network of uniform noise on windows of a text8 file (recipes/text8-uniform.toml trains one);
schedules then end where it was trained, and others' means are held against ours.
"""

import argparse
import gzip
import math

import torch

import infodis
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.noise.design import Noise
from infodis.noise.process import Hybrid, Uniform
from infodis.noise.scores import NoisyOracle, ScorePredictor
from infodis.oracle import MarkovChain
from infodis.predictor import NoisedRows
from infodis.result import Measured
from infodis.rng import key, stream, uniforms

VOCAB, LENGTH = 16, 32
CHAIN = MarkovChain.random(order=1, vocab_size=VOCAB, temperature=0.2, seed=3)


def sedd_times(u, noise):
    """Independent times of a geometric schedule."""
    low, high = 1e-4, min(20.0, noise.until)
    totals = low * torch.exp(math.log(high / low) * u)
    return totals, math.log(high / low) * totals


def duo_times(u, noise):
    """Stratified times t, alpha = 1 - (1 - 1e-3) t."""
    t = 1e-3 + (1 - 1e-3) * (torch.arange(u.shape[1]) + u) / u.shape[1]
    alpha = 1 - (1 - 1e-3) * t
    return -alpha.log(), (1 - 1e-3) ** 2 / alpha


def gidd_times(u, noise):
    """One grid of times with a common shift."""
    t = 1e-4 + (1 - 2e-4) * ((torch.arange(u.shape[1]) / u.shape[1] + u[:, :1]) % 1)
    weight = noise.process.scale * (t * (1 - t)).sqrt()
    slope = noise.process.scale * (1 - 2 * t) / (2 * (t * (1 - t)).sqrt())
    return -torch.log(1 - t) + torch.log1p(weight), (1 - 2e-4) * (1 / (1 - t) + slope / (1 + weight))


def by_time(model, times, tokens, passes, runs, generator):
    """The values of some runs that noise every token by itself, at the times of a project."""
    totals, weight = times(uniforms(runs, passes, generator=generator), model.noise)
    noised = model.noise.process.noise(tokens.expand(runs * passes, -1), totals.flatten(), generator=generator)
    found = []
    for rows, total in zip(noised.split(512), totals.flatten().split(512), strict=True):
        every = torch.ones_like(rows, dtype=torch.bool)
        lengths = torch.full((len(rows),), rows.shape[1])
        found.append(model.entropies(NoisedRows(tokens.expand(len(rows), -1), rows, every, lengths, total)))
    entropy = torch.cat(found).view(runs, passes, -1).sum(-1)
    return (weight * entropy).sum(1) / passes + model.noise.end_terms(tokens.unsqueeze(0)).sum()


def ours(model, tokens, passes, runs):
    """The values of some runs, and the mean of their squared standard errors."""
    names = [key("run", number) for number in range(runs)]
    found = estimate_items(model, [Item.read(tokens)] * runs, Request(evaluations=passes), seed=0, names=names)
    values = torch.tensor([one.value for one in found]).double()
    return values, sum(one.standard_error**2 for one in found) / runs


def compare(model, peers, texts, exact, passes, runs) -> None:
    """Rows of the table: ours, then others; `exact` values are subtracted from means, or the means of ours."""
    found = [ours(model, text, passes, runs) for text in texts]
    known, squared = [float(values.var()) for values, _ in found], sum(square for _, square in found) / len(found)
    truth = [float(values.mean()) for values, _ in found] if exact is None else exact
    noise = type(model.noise.process).__name__

    def off(values):
        return Measured.mean(torch.cat([one - true for one, true in zip(values, truth, strict=True)]))

    bias = "" if exact is None else off([values for values, _ in found])
    print(
        f"| infodis | {noise} | {bias} | {Measured.mean(known)} (mean squared standard error {squared:.3g}) | 1 |",
        flush=True,
    )
    for name, times in peers:
        values = [by_time(model, times, t, passes, runs, stream(5, name, n)) for n, t in enumerate(texts)]
        spread = [float(one.var()) for one in values]
        ratio = Measured.ratio(spread, known)
        print(f"| {name}'s | {noise} | {off(values)} | {Measured.mean(spread)} | {ratio} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=64)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--model")
    parser.add_argument("--text")
    given = parser.parse_args()
    print("| estimator | noise | mean, from exact or from ours, nats | variance, nats squared | times ours |")
    print("|---|---|---|---|---|")
    if given.model is not None:
        model = infodis.load(given.model)
        with gzip.open(given.text, "rt") as file:
            text = file.read(given.texts * 5000)
        texts = [model.encode(text[5000 * n : 5000 * n + model.length]) for n in range(given.texts)]
        compare(model, [("SEDD", sedd_times), ("Duo", duo_times)], texts, None, given.passes, given.runs)
        return
    texts = CHAIN.sample(given.texts, length=LENGTH, generator=stream(7))
    exact = [-CHAIN.log_prob(text) for text in texts]
    for process, peers in (
        (Uniform(VOCAB), [("SEDD", sedd_times), ("Duo", duo_times)]),
        (Hybrid(VOCAB, share=0.2), [("GIDD", gidd_times)]),
    ):
        model = ScorePredictor(NoisyOracle(CHAIN, process), Noise(process))
        compare(model, peers, texts, exact, given.passes, given.runs)


if __name__ == "__main__":
    main()
