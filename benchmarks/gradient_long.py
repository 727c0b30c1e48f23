"""Errors of gradients on targets that are too long to list their masks: python benchmarks/gradient_long.py

Text8-tiny, 20 texts, 48 characters after 16. Runs of every design on every text; the variance of the gradient of log p,
relative to its squared length, which is estimated from all runs of unbiased designs with their own error subtracted.
Standard errors by the bootstrap over texts.
"""

import argparse

import torch

import infodis
from infodis.apps.bench.gradient import Folding, bootstrap_ratio
from infodis.apps.bench.problems import ENDINGS
from infodis.design import Dealt, MaskDesign, Pairs, StratifiedCount, Tiled, TimeIntegral, UniformCount

DESIGNS: dict[str, MaskDesign] = {
    "VRPO (TimeIntegral)": TimeIntegral(),
    "UniformCount": UniformCount(),
    "ESPO (Pairs)": Pairs(),
    "StratifiedCount": StratifiedCount(),
    "Tiled": Tiled(),
    "Dealt, k^-1/2": Dealt(slope=0.0, power=0.5),
    "Dealt": Dealt(),
}
PROMPT, TARGET = 16, 48


def gradients(model, text: str, design: MaskDesign, draws: int, runs: int) -> torch.Tensor:
    """Of log p of the last characters of a text, folded; one row a run."""
    parameters, found = list(model.network.parameters()), []
    folding = Folding.of([parameter.numel() for parameter in parameters])
    for step in range(runs):
        row = (text[:PROMPT], text[PROMPT : PROMPT + TARGET])
        plan = infodis.draw_plan(model, [row], evaluations=draws, design=design, step=step)
        log_p = infodis.log_likelihood(model, plan, micro_batch=draws).sum()
        found.append(folding.fold(torch.autograd.grad(log_p, parameters, allow_unused=True)))
    return torch.stack(found).double()


def main(texts: int, runs: int) -> None:
    model = infodis.load("text8-tiny", trainable=True, device="cpu")
    variances: dict[tuple[str, int], list[torch.Tensor]] = {(n, d): [] for d in (4, 8) for n in DESIGNS}
    lengths = []
    for number in range(texts):
        text, means = f"{ENDINGS[2 * number]} {ENDINGS[2 * number + 1]}", []
        for name, draws in variances:
            found = gradients(model, text, DESIGNS[name], draws, runs)
            variances[name, draws].append(found.var(0).sum())
            if name.startswith(("Dealt", "Tiled")):  # the least noise
                means.append((found.mean(0), found.var(0).sum() / runs))
        middle = torch.stack([mean for mean, _ in means]).mean(0)
        lengths.append(middle.square().sum() - torch.stack([noise for _, noise in means]).sum() / len(means) ** 2)
    length = torch.stack(lengths)
    print(f"{'draws':5}  {'design':20}  relative squared error   times below VRPO")
    for (name, draws), found in variances.items():
        mine, vrpo = torch.stack(found), torch.stack(variances["VRPO (TimeIntegral)", draws])
        print(f"{draws:5}  {name:20}  {bootstrap_ratio(mine, length)!s:22}  {bootstrap_ratio(vrpo, mine)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--runs", type=int, default=8)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    main(asked.texts, asked.runs)
