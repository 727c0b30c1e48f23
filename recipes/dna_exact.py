"""dna-tiny, last stage: k-DCE with the expectation over the data taken exactly.

    OMP_NUM_THREADS=1 python recipes/dna_exact.py runs/dna-tiny-3 --out runs/dna-tiny

There are only 128 different sequences. Every step shows all of them, weighted by how often the training data hold them,
under the same few masks: so the distribution of what is hidden, given what is visible, is that of the data and not that
of a small batch, which would take many more steps to average out.

The network also gets learned positions here. Rotary ones are relative: with all tokens masked, every place would get
the same distribution, which on this toy costs 0.053 nats of mean absolute error however long one trains.
"""

import argparse
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import torch

from infodis.design import UniformCount
from infodis.files import atomic_directory
from infodis.models import checkpoint
from infodis.models.files import locate
from infodis.rng import stream, uniforms
from infodis.train.losses import strata

MASKS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("data/dna_train.npy"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    given = parser.parse_args()
    before, spec = checkpoint.load(locate(given.run))
    spec = dataclasses.replace(spec, shape=dataclasses.replace(spec.shape, positions=spec.length))
    network = spec.build()
    weights = {name: torch.zeros_like(value) for name, value in network.state_dict().items()}  # positions start at zero
    checkpoint.set_weights(network, weights | before.state_dict(), where=given.run)
    rows, counts = np.unique(np.load(given.data).reshape(-1, spec.length), axis=0, return_counts=True)
    tokens, share = torch.from_numpy(rows.astype(np.int64)), torch.from_numpy(counts / counts.sum()).float()
    optimizer = torch.optim.AdamW(network.parameters(), lr=given.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    total, reports = 0.0, []
    for step in range(1, given.steps + 1):
        done = step / given.steps
        for group in optimizer.param_groups:
            group["lr"] = given.learning_rate * min(1.0, step / 200) * (1 + math.cos(math.pi * done)) / 2
        generator = stream(0, "dna-exact", step)
        levels, keys = strata(MASKS, generator=generator), uniforms(MASKS, spec.length, generator=generator)
        masked, weight = UniformCount().masks(levels.unsqueeze(-1), keys.unsqueeze(1))
        masked, weight = (part.flatten(0, 1) for part in (masked, weight))
        shown, hidden = tokens.repeat(MASKS, 1), masked.repeat_interleave(len(tokens), 0)
        surprisal = network.surprisal(shown, hidden)
        per_row = (weight.float().repeat_interleave(len(tokens), 0) * surprisal).sum(-1)
        loss = (per_row.unflatten(0, (MASKS, -1)) * share).sum(-1).mean() / spec.length
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += float(loss.detach())
        if step % 100 == 0:
            reports.append({"kind": "progress", "step": step, "nats": total / 100})
            print(f"step {step}/{given.steps}: loss {total / 100 / math.log(2):.4f} bits/token", flush=True)
            total = 0.0
    about = {**spec.about, "steps": given.steps, "loss": "k-dce, exact over the data", "started_from": given.run.name}
    with atomic_directory(given.out) as directory:
        checkpoint.save(directory, dataclasses.replace(spec, about=about), network.state_dict())
        (directory / "metrics.jsonl").write_text("".join(json.dumps(report) + "\n" for report in reports))
        (directory / "settings.json").write_text(json.dumps({"optim": {"loss": "exact k-dce"}}) + "\n")
    print(given.out)


if __name__ == "__main__":
    main()
