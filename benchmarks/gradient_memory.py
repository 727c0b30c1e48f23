"""Peak memory of a training step against the number of draws: python benchmarks/gradient_memory.py

Each number is from a process of its own: text8-tiny, four texts of 256 characters, value and gradient in micro-batches
of 16. *Tensors* is the most that torch's tensors held at once beyond the weights, by torch.profiler: what a GPU would
hold. *Process* is the peak of the whole process, Python and torch included, with glibc's allocator as it comes and with
a fixed threshold from which blocks are returned to the system when they are freed (MALLOC_MMAP_THRESHOLD_).
"""

import argparse
import os
import resource
import subprocess
import sys

FIXED = {"MALLOC_MMAP_THRESHOLD_": "262144"}


def step(draws: int, *, checkpoint: bool) -> None:
    """One value and gradient."""
    import torch

    import infodis

    torch.set_num_threads(1)
    model = infodis.load("text8-tiny", trainable=True, device="cpu")
    rows = [("the quick brown fox jumps over the lazy dog " * 6)[n : n + 256] for n in range(4)]
    plan = infodis.draw_plan(model, rows, evaluations=draws)
    infodis.log_likelihood(model, plan, micro_batch=16, checkpoint=checkpoint).sum().backward()


def process_peak(draws: int, *, checkpoint: bool) -> float:
    """Of this process, in MB."""
    step(draws, checkpoint=checkpoint)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tensor_peak(draws: int, *, checkpoint: bool) -> float:
    """Of torch's own allocations, in MB: each is an event with the bytes that were taken or given back."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(draws, checkpoint=checkpoint)
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most / 2**20


def measured(draws: int, kind: str, *, plain: bool, environment: dict[str, str]) -> str:
    command = [sys.executable, __file__, "--one", str(draws), "--kind", kind, *(["--plain"] if plain else [])]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return found.stdout.split()[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", type=int)
    parser.add_argument("--kind", choices=["tensors", "process"])
    parser.add_argument("--plain", action="store_true")
    asked = parser.parse_args()
    if asked.one is not None:
        peak = tensor_peak if asked.kind == "tensors" else process_peak
        print(f"{peak(asked.one, checkpoint=not asked.plain):.0f}")
    else:
        titles = ("tensors", "process, fixed threshold", "process")
        print("MB".ljust(6), *(f"{title}, {way}".rjust(38) for way in ("checkpointed", "plain") for title in titles))
        for draws in (4, 16, 64):
            found = [
                measured(draws, kind, plain=plain, environment=environment)
                for plain in (False, True)
                for kind, environment in (("tensors", {}), ("process", FIXED), ("process", {}))
            ]
            print(f"{draws:<6}", *(one.rjust(38) for one in found), flush=True)
