"""Tokens per second of a training step: our RADD network and loss beside the public ones.

Needs a clone of the public repository, and einops, omegaconf and huggingface_hub:

    python benchmarks/train_step.py --radd ../RADD

Same shape, batch, threads, dropout and optimizer; lambda-DCE in both. The two take turns, step by step, so that a busy
machine slows both alike; the median step counts.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from infodis.models.nets import RADD, SIZES, NetworkShape, initialise
from infodis.rng import stream
from infodis.train.losses import LAMBDA_DCE

SETTINGS = {  # name: vocabulary, shape, batch, length
    "characters": (27, SIZES["tiny"], 16, 256),
    "GPT-2 vocabulary": (50257, NetworkShape(128, 2, 4, dropout=0.02), 4, 128),
    "the papers' small": (50257, SIZES["small"], 2, 256),
}


def ours(vocab_size: int, shape: NetworkShape) -> tuple[torch.nn.Module, Callable[[Tensor, int], Tensor]]:
    network = RADD(vocab_size, shape)
    initialise(network, generator=stream(0))
    return network, lambda tokens, step: LAMBDA_DCE(network, tokens, generator=stream(0, step)).mean()


def public(
    clone: Path, vocab_size: int, shape: NetworkShape
) -> tuple[torch.nn.Module, Callable[[Tensor, int], Tensor]]:
    sys.path.insert(0, str(clone))
    sizes = {"hidden_size": shape.width, "n_blocks": shape.blocks, "n_heads": shape.heads, "dropout": shape.dropout}
    model = {**sizes, "use_checkpoint": False, "dtype": "float32"}
    network = importlib.import_module("model.transformer").RADD({"tokens": vocab_size, "model": model})
    loss = importlib.import_module("losses").get_loss_fn(None, vocab_size + 1, train=True, loss_type="lambda_DCE")
    return network, lambda tokens, step: loss(network, tokens).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--radd", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--setting", choices=list(SETTINGS), action="append", help="only this; may be repeated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a JSONL file for the records")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")
    for name in given.setting or SETTINGS:
        vocab_size, shape, batch, length = SETTINGS[name]
        sides = {"infodis": ours(vocab_size, shape), "public": public(given.radd, vocab_size, shape)}
        optimizers = {side: torch.optim.AdamW(network.parameters()) for side, (network, _) in sides.items()}
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for step in range(given.steps + 2):
            tokens = torch.randint(vocab_size, (batch, length), generator=stream(1, step))
            for side, (_, loss) in sides.items():
                begin = time.perf_counter()
                loss(tokens, step).backward()
                optimizers[side].step()
                optimizers[side].zero_grad()
                seconds[side].append(time.perf_counter() - begin)
        speed = {side: batch * length / statistics.median(taken[2:]) for side, taken in seconds.items()}
        ratio = speed["infodis"] / speed["public"]
        print(f"{name}: infodis {speed['infodis']:,.0f} tokens/s, public {speed['public']:,.0f}, ratio {ratio:.2f}")
        if given.out is not None:
            with given.out.open("a") as file:
                record = {"setting": name, "threads": given.threads, **speed, "ratio": ratio}
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
