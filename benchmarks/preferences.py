"""Preference training (DPO) with three estimates of log p, at equal forward passes and equal updates.

    python benchmarks/preferences.py text --data human_vs_llm_180.jsonl --out out/preferences
    python benchmarks/preferences.py chain --out out/preferences

`text`: text8-tiny learns to prefer what people wrote to what GPT-4 wrote, both in the letters of text8 and cut to one
length. Rows of the file: `id`, `y_human`, `y_llm`. A third of the documents is held out. Prints margins and reward
accuracies of held-out documents: log p against the reference, by many more masks than training sees.

`chain`: where the right answer is known. A small RADD network learns an exact chain and is the reference. Preferences
come from a known reward (Bradley-Terry). The best policy is p_reference x exp(reward / beta) / Z, exactly. All
sequences are enumerated, so KL(policy, best policy) is exact, too; the policy is what the network writes in a random
order.

The three: `infodis.Dealt` with sizes ~ k^-1/2; VRPO, whose times are uniform (LLaDA 1.5); d1, which masks the
whole response once. d1 takes one forward pass a sequence, so it sees as many more pairs in an update.
"""

import argparse
import copy
import dataclasses
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import infodis
from infodis.design import Layout, MaskDesign
from infodis.figures.charts import lines
from infodis.figures.figure import save
from infodis.models.model import Model
from infodis.models.nets import RADD, NetworkShape, initialise
from infodis.models.tokenizers import text8_style
from infodis.oracle import MarkovChain
from infodis.result import Measured
from infodis.rng import stream


@dataclasses.dataclass(frozen=True)
class FullMask(MaskDesign):
    """d1: all tokens are masked, once, and the sum of their log-probabilities is called log p. It is none."""

    def layout(self, length: int, rows: int) -> Layout:
        return Layout(1, rows)

    def masks(self, levels: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        masked = torch.ones_like(keys, dtype=torch.bool)
        return masked, masked.double() / keys.shape[-2]


@dataclasses.dataclass(frozen=True)
class Way:
    """How log p is estimated in training."""

    design: MaskDesign
    draws: int


DRAWS = 4
WAYS = {
    "infodis": Way(infodis.Dealt(slope=0.0, power=0.5), DRAWS),
    "VRPO": Way(infodis.TimeIntegral(), DRAWS),
    "d1": Way(FullMask(), 1),
}
Curve = list[tuple[int, Any]]
"""What was measured after so many updates."""


@dataclasses.dataclass(frozen=True)
class Training:
    """What all ways have in common. At a constant rate noise of the gradient stays visible; it may fall to zero."""

    steps: int
    measure_every: int
    pairs: int
    """Of an update with `DRAWS` passes a sequence."""
    rate: float
    beta: float
    decay: bool = False

    def run(
        self,
        start: Model,
        way: Way,
        rows: Callable[[int, int], Sequence[Any]],
        measure: Callable[[Model], Any],
        *,
        seed: int,
    ) -> Curve:
        """Direct preference optimisation of a copy of a model, which stays as the reference."""
        policy = _copied(start)
        optimizer = torch.optim.AdamW(policy.network.parameters(), lr=self.rate, betas=(0.9, 0.99), weight_decay=0.0)
        found: Curve = [(0, measure(start))]
        for step in range(1, self.steps + 1):
            optimizer.param_groups[0]["lr"] = self.rate * (1 - (step - 1) / self.steps if self.decay else 1)
            chosen_rejected = rows(step, self.pairs * DRAWS // way.draws)
            plan = infodis.draw_plan(
                start, chosen_rejected, evaluations=way.draws, design=way.design, seed=seed, step=step
            )
            with torch.no_grad():
                reference_log_p = infodis.log_likelihood(start, plan, micro_batch=64)
            log_p = infodis.log_likelihood(policy, plan, micro_batch=64, checkpoint=False)
            optimizer.zero_grad()
            infodis.dpo_loss(log_p, reference_log_p, beta=self.beta).backward()
            torch.nn.utils.clip_grad_norm_(policy.network.parameters(), 1.0)
            optimizer.step()
            if step % self.measure_every == 0:
                found.append((step, measure(policy)))
        return found


def _copied(model: Model) -> Model:
    network = copy.deepcopy(model.network).requires_grad_(True)
    return Model("policy", dataclasses.replace(model.loaded, network=network), model.device)


# Human text and GPT-4's


def read_documents(path: Path, length: int) -> list[list[tuple[str, str]]]:
    """Of every document, pairs of windows: of what people wrote, and of what GPT-4 wrote at the same place."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        human, machine = text8_style(row["y_human"]), text8_style(row["y_llm"])
        starts = range(0, min(len(human), len(machine), 4 * length) - length + 1, length)
        windows = [(human[start : start + length], machine[start : start + length]) for start in starts]
        found += [windows] if windows else []
    return found


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Margins of held-out documents, in nats, and of what d1 takes for log p."""

    margins: Tensor
    full_mask_margins: Tensor

    @property
    def accuracies(self) -> Tensor:
        return (self.margins > 0).double() + 0.5 * (self.margins == 0).double()


def held_out(reference: Model, documents: list[list[tuple[str, str]]], draws: int) -> Callable[[Model], HeldOut]:
    """The first window of every document, on masks that no training has seen, the same for all policies."""
    rows = [text for windows in documents for text in windows[0]]
    plans = [
        infodis.draw_plan(reference, rows, evaluations=count, design=design, seed=1000)
        for design, count in ((infodis.Tiled(), draws), (FullMask(), 1))
    ]

    @torch.no_grad()
    def log_p(model: Model) -> list[Tensor]:
        return [infodis.log_likelihood(model, plan, micro_batch=64) for plan in plans]

    before = log_p(reference)

    def measure(policy: Model) -> HeldOut:
        moved = [now - then for now, then in zip(before if policy is reference else log_p(policy), before, strict=True)]
        return HeldOut(*(one[0::2] - one[1::2] for one in moved))

    return measure


def run_text(given: argparse.Namespace) -> None:
    documents = read_documents(given.data, given.length)
    order = torch.randperm(len(documents), generator=stream(0, "documents")).tolist()
    cut = len(documents) // 3
    apart, seen = [documents[n] for n in order[:cut]], [documents[n] for n in order[cut:]]
    pairs = [pair for windows in seen for pair in windows]
    model = infodis.load("text8-tiny", device="cpu")
    measure = held_out(model, apart, given.held_out_draws)
    training = Training(given.steps, given.every, given.pairs, given.rate, beta=0.1)
    print(f"{len(seen)} documents with {len(pairs)} pairs of {given.length} characters; {cut} documents held out")
    curves: dict[str, list[Curve]] = {name: [] for name in WAYS}
    for seed, (name, way) in itertools.product(range(given.seeds), WAYS.items()):
        begin = time.perf_counter()

        def rows(step: int, count: int, *, seed: int = seed) -> list[str]:
            some = torch.randint(len(pairs), (count,), generator=stream(seed, "pairs", step))
            return [text for n in some.tolist() for text in pairs[n]]

        curves[name].append(training.run(model, way, rows, measure, seed=seed))
        last = curves[name][-1][-1][1]
        print(
            f"seed {seed}, {name}: margin {float(last.margins.mean()):.3f}, accuracy "
            f"{float(last.accuracies.mean()):.3f}, {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    _tell_text(curves, training, given.out)


def _tell_text(curves: dict[str, list[Curve]], training: Training, out: Path) -> None:
    """Errors are those over documents of the mean over seeds; differences are of the same documents."""
    print(f"\n{'updates':>7}  {'estimate':9} {'margin, nats':>16} {'accuracy':>15} {'margin of the full mask':>24}")
    for place in range(1, len(curves["d1"][0])):
        for name, runs in curves.items():
            step = runs[0][place][0]
            cells = [_over_documents(runs, place, part) for part in ("margins", "accuracies", "full_mask_margins")]
            print(f"{step:7}  {name:9} {_cell(cells[0]):>16} {_cell(cells[1]):>15} {_cell(cells[2]):>24}")
    for other in ("VRPO", "d1"):
        for part, unit in (("margins", "nats of margin"), ("accuracies", "of accuracy")):
            one, two = (_documents(curves[name], -1, part) for name in ("infodis", other))
            print(f"infodis - {other}: {_cell(Measured.mean(one - two))} {unit}")
    spread = {name: [float(run[-1][1].margins.mean()) for run in runs] for name, runs in curves.items()}
    print("last margins by seed: " + "; ".join(f"{n} {' '.join(f'{x:.3f}' for x in v)}" for n, v in spread.items()))
    passes = 2 * training.pairs * DRAWS
    for part, axis in (("margins", "held-out margin, nats"), ("accuracies", "held-out reward accuracy")):
        series = {
            name: [
                (runs[0][place][0] * passes, found.value, *_band(found))
                for place in range(len(runs[0]))
                for found in [_over_documents(runs, place, part)]
            ]
            for name, runs in curves.items()
        }
        axes, title = ("forward passes of the policy", axis), "People's text against GPT-4's"
        save(lines(series, axes=axes, points=True, name=f"preferences-{part}", title=title), out)


def _documents(runs: list[Curve], place: int, part: str) -> Tensor:
    return torch.stack([getattr(run[place][1], part) for run in runs]).mean(0).double()


def _over_documents(runs: list[Curve], place: int, part: str) -> Measured:
    return Measured.mean(_documents(runs, place, part))


# A chain, whose best policy is known


@dataclasses.dataclass(frozen=True)
class Space:
    """All sequences of a length, and all of their masked rows."""

    vocab_size: int
    length: int

    @functools.cached_property
    def sequences(self) -> Tensor:
        return torch.tensor(list(itertools.product(range(self.vocab_size), repeat=self.length)))

    @functools.cached_property
    def rows(self) -> Tensor:
        return torch.tensor(list(itertools.product(range(self.vocab_size + 1), repeat=self.length)))

    @torch.no_grad()
    def log_probs(self, network: RADD) -> Tensor:
        """Of every sequence, if the network writes in a uniformly random order: summed over all orders."""
        each = torch.cat([network.log_conditionals(some) for some in self.rows.split(4096)]).double()
        places = (self.vocab_size + 1) ** torch.arange(self.length - 1, -1, -1)
        found: dict[int, Tensor] = {0: torch.zeros(len(self.sequences), dtype=torch.float64)}
        for mask in range(1, 2**self.length):
            hidden = [i for i in range(self.length) if mask >> i & 1]
            row = self.sequences.clone()
            row[:, hidden] = self.vocab_size
            answers = each[(row * places).sum(1)]
            terms = [answers[:, i].gather(1, self.sequences[:, i : i + 1])[:, 0] + found[mask ^ 1 << i] for i in hidden]
            found[mask] = torch.stack(terms).logsumexp(0) - math.log(len(hidden))
        return found[2**self.length - 1]


def kl(log_p: Tensor, log_q: Tensor) -> float:
    return float((log_p.exp() * (log_p - log_q)).sum())


def reference_of(chain: MarkovChain, space: Space, *, steps: int) -> Model:
    """A small network that has learned the chain, by its likelihood on plans."""
    network = RADD(space.vocab_size, NetworkShape(width=48, blocks=2, heads=4, positions=space.length))
    initialise(network, generator=stream(0, "weights"))
    model = infodis.load(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - step / steps)
        rows = chain.sample(128, length=space.length, generator=stream(0, "chain", step))
        plan = infodis.draw_plan(model, rows, evaluations=2, design=infodis.Dealt(slope=0.0, power=0.5), step=step)
        optimizer.zero_grad()
        (-infodis.log_likelihood(model, plan, micro_batch=256).mean()).backward()
        optimizer.step()
    return model


def reward_of(space: Space, scale: float) -> Tensor:
    """Random numbers for tokens and for neighbours, added up, with a standard deviation of `scale` over sequences."""
    alone, pair = (
        torch.randn(*shape, generator=stream(0, "reward", *shape), dtype=torch.float64)
        for shape in ((space.vocab_size,), (space.vocab_size, space.vocab_size))
    )
    found = alone[space.sequences].sum(1) + pair[space.sequences[:, :-1], space.sequences[:, 1:]].sum(1)
    return scale * (found - found.mean()) / found.std()


def run_chain(given: argparse.Namespace) -> None:
    space, begin = Space(given.vocab_size, given.length), time.perf_counter()
    chain = MarkovChain.random(order=2, vocab_size=given.vocab_size, temperature=0.5, seed=0)
    reference = reference_of(chain, space, steps=given.reference_steps)
    log_reference = space.log_probs(reference.network)
    exact = torch.tensor([chain.log_prob(row) for row in space.sequences], dtype=torch.float64)
    reward = reward_of(space, given.reward)
    best = torch.log_softmax(log_reference + reward / given.beta, dim=0)
    print(
        f"{len(space.sequences)} sequences, probabilities add up to {float(log_reference.exp().sum()):.9f}; "
        f"KL(chain, reference) {kl(exact, log_reference):.4f}, KL(reference, best) {kl(log_reference, best):.3f}, "
        f"KL(best, reference) {kl(best, log_reference):.3f} nats; {time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    training = Training(given.steps, given.every, given.pairs, given.rate, given.beta, decay=given.decay)

    def measure(policy: Model) -> tuple[float, float]:
        log_policy = space.log_probs(policy.network)
        return kl(log_policy, best), kl(best, log_policy)

    ways = WAYS | ({"all masks": Way(infodis.Enumerate(), 2**given.length - 1)} if given.all_masks else {})
    curves: dict[str, list[Curve]] = {name: [] for name in ways}
    for seed, (name, way) in itertools.product(range(given.seeds), ways.items()):
        begin = time.perf_counter()

        def rows(step: int, count: int, *, seed: int = seed) -> Tensor:
            return _preferences(space.sequences, log_reference, reward, max(count, training.pairs), seed, step)

        curves[name].append(training.run(reference, way, rows, measure, seed=seed))
        took = time.perf_counter() - begin
        print(f"seed {seed}, {name}: KL(policy, best) {curves[name][-1][-1][1][0]:.4f}, {took:.0f} s", flush=True)
    _tell_chain(curves, training, given.out)


def _preferences(sequences: Tensor, log_p: Tensor, reward: Tensor, count: int, seed: int, step: int) -> Tensor:
    """Pairs of what the reference writes, chosen before rejected: the first with probability sigmoid(difference)."""
    drawing = stream(seed, "preferences", step)
    two = torch.multinomial(log_p.exp(), 2 * count, replacement=True, generator=drawing).view(count, 2)
    first = torch.rand(count, generator=drawing) < torch.sigmoid(reward[two[:, 0]] - reward[two[:, 1]])
    two = torch.where(first.unsqueeze(1), two, two.flip(1))
    return sequences[two.flatten()]


def _tell_chain(curves: dict[str, list[Curve]], training: Training, out: Path) -> None:
    print(f"\n{'updates':>7}  " + "".join(f"{name:>20}" for name in curves) + "    KL(policy, best), errors over seeds")
    for place in range(len(curves["d1"][0])):
        cells = [_cell(_over_seeds(runs, place, 0)) for runs in curves.values()]
        print(f"{curves['d1'][0][place][0]:7}  " + "".join(f"{cell:>20}" for cell in cells))
    cells = [_cell(_over_seeds(runs, -1, 1)) for runs in curves.values()]
    print(f"{'':7}  " + "".join(f"{cell:>20}" for cell in cells) + "    KL(best, policy) at the end")
    late = {name: torch.tensor([_late(run) for run in runs], dtype=torch.float64) for name, runs in curves.items()}
    for name, each in late.items():
        more = Measured.mean(each - late["infodis"])
        less = "" if name == "infodis" else f"; more than infodis, seed by seed: {_cell(more)}"
        print(f"KL(policy, best), mean over the second half of the updates: {name} {_cell(Measured.mean(each))}{less}")
    series = {
        name: [
            (runs[0][place][0], found.value, *_band(found))
            for place in range(len(runs[0]))
            for found in [_over_seeds(runs, place, 0)]
        ]
        for name, runs in curves.items()
    }
    axes, name = ("updates", "KL(policy, best policy), nats"), "preferences-kl" + ("-decay" if training.decay else "")
    save(lines(series, axes=axes, log=(False, True), name=name, title="How far from the best policy"), out)


def _late(run: Curve) -> float:
    """The mean over the second half of a run. At a constant rate a single moment says little."""
    half = [found[0] for _, found in run[1 + len(run) // 2 :]]
    return sum(half) / len(half)


def _over_seeds(runs: list[Curve], place: int, part: int) -> Measured:
    return Measured.mean(torch.tensor([run[place][1][part] for run in runs], dtype=torch.float64))


def _band(found: Measured) -> tuple[float, float]:
    return found.value - found.standard_error, found.value + found.standard_error


def _cell(found: Measured) -> str:
    return f"{found.value:.3f} ± {found.standard_error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    text, chain = (commands.add_parser(name) for name in ("text", "chain"))
    text.add_argument("--data", type=Path, required=True)
    text.add_argument("--length", type=int, default=64)
    text.add_argument("--held-out-draws", type=int, default=8)
    chain.add_argument("--vocab-size", type=int, default=4)
    chain.add_argument("--length", type=int, default=6)
    chain.add_argument("--reference-steps", type=int, default=2000)
    chain.add_argument("--reward", type=float, default=0.7)
    chain.add_argument("--beta", type=float, default=0.5)
    chain.add_argument("--all-masks", action="store_true")
    chain.add_argument("--decay", action="store_true", help="the learning rate falls to zero")
    for command, steps, every, pairs, rate in ((text, 40, 10, 8, 2e-4), (chain, 400, 50, 16, 1e-3)):
        command.add_argument("--steps", type=int, default=steps)
        command.add_argument("--every", type=int, default=every)
        command.add_argument("--pairs", type=int, default=pairs)
        command.add_argument("--rate", type=float, default=rate)
        command.add_argument("--seeds", type=int, default=3)
        command.add_argument("--out", type=Path, default=Path("out/preferences"))
    text.set_defaults(run=run_text)
    chain.set_defaults(run=run_chain)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
