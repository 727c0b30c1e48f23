"""Make a surrogate for a model: a hidden Markov model fitted to text, and how much of it to subtract.

Text is fitted by expectation maximisation in steps (Cappe and Moulines, 2009): each takes some windows of the text,
counts what is expected of them, and moves the running counts towards these, by less and less.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from infodis.control import Neighbours, Surrogate
from infodis.design import Tiled
from infodis.errors import InputError
from infodis.estimate import Request, estimate_items
from infodis.item import Item
from infodis.oracle import HiddenMarkov
from infodis.predictor import Predictor
from infodis.rng import stream, uniforms

MOST_STATES = 256
TOKENS_PER_NUMBER = 10
"""Of the text, for every transition of a state to another: what decides on how many states a short text has."""

BATCH, LENGTH = 256, 64
"""Windows of a step, and their tokens."""

FEWEST_STEPS, MOST_STEPS = 50, 1000
FORGETTING = 0.6
"""Step n moves the counts by n^-0.6 of the way."""

CLONES = 0.7
"""A token's states grow with this power of its frequency, where there are more states than tokens."""

SMOOTHING = 1e-3
"""The share of every distribution that is the mean one: so every text is possible."""

TEXTS, WINDOW, CONTEXT, BUDGET = 64, 64, 16, 32
"""What beta is fitted to: texts, their tokens, those of them that are given, forward passes for each."""

Progress = Callable[[int, int], None]
"""Is told the steps that are done, and of how many."""


def calibrate(
    model: Predictor,
    tokens: Int[Tensor, " tokens"],
    *,
    states: int | None = None,
    texts: int = TEXTS,
    seed: int = 0,
    progress: Progress = lambda done, of: None,
) -> Surrogate:
    """A surrogate for a model: fitted to all of some tokens but the last ones, to which its beta is fitted.

    The last ones must not be scored later with the same seed: beta would depend on the masks that it is applied to. The
    forward passes that it takes are 32 for each of `texts`.
    """
    kept = texts * WINDOW
    if len(tokens) < 4 * kept:
        raise InputError(
            f"A corpus must hold at least {4 * kept:,} tokens, of which the last {kept:,} are for beta; got "
            f"{len(tokens):,}. Give more text."
        )
    if states is None:
        states = min(MOST_STATES, max(2, math.isqrt(len(tokens) // TOKENS_PER_NUMBER)))
    fitted = fit_hidden_markov(tokens[:-kept], vocab_size=model.vocab_size, states=states, seed=seed, progress=progress)
    return Surrogate(fitted, beta=_fitted_beta(model, fitted, tokens[-kept:].view(texts, WINDOW), seed=seed))


@dataclasses.dataclass(frozen=True, eq=False)
class _Counts:
    """How often states begin, follow each other and emit tokens."""

    initial: Float[Tensor, " states"]
    transitions: Float[Tensor, "states states"]
    emissions: Float[Tensor, "states vocab"]

    def towards(self, other: "_Counts", rate: float) -> "_Counts":
        return _Counts(*(mine.lerp(its, rate) for mine, its in zip(self.parts, other.parts, strict=True)))

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.initial, self.transitions, self.emissions

    def distributions(self) -> "_Counts":
        return _Counts(*map(_smoothed, self.parts))


def _smoothed(counts: Float[Tensor, "*states to"]) -> Float[Tensor, "*states to"]:
    """Shares, of which a few are those of all states together, and a few of these uniform."""
    together = counts.reshape(-1, counts.shape[-1]).sum(0)
    together = (1 - SMOOTHING) * together / together.sum() + SMOOTHING / len(together)
    shares = counts / counts.sum(-1, keepdim=True).clamp(min=1e-30)
    mixed = (1 - SMOOTHING) * shares + SMOOTHING * together
    return mixed / mixed.sum(-1, keepdim=True)


def fit_hidden_markov(
    tokens: Int[Tensor, " tokens"],
    *,
    vocab_size: int,
    states: int,
    seed: int = 0,
    progress: Progress = lambda done, of: None,
) -> HiddenMarkov:
    """A hidden Markov model of some text, with surprisals in float32.

    With more states than tokens every state begins as a clone of one token; with fewer, half of them do, for the most
    frequent tokens, and the others share what is left.
    """
    if states < 2:
        raise InputError(f"A hidden Markov model needs at least 2 states, got {states}.")
    generator = stream(seed, "fit_hidden_markov")
    length = min(LENGTH, len(tokens))
    steps = min(MOST_STEPS, max(FEWEST_STEPS, len(tokens) // (BATCH * length)))
    counts = _first_guess(tokens.bincount(minlength=vocab_size).float(), states, generator=generator)
    for step in range(1, steps + 1):
        begin = torch.randint(len(tokens) - length + 1, (BATCH, 1), generator=generator)
        found = _expected_counts(counts.distributions(), tokens[begin + torch.arange(length)])
        counts = counts.towards(found, step**-FORGETTING)
        progress(step, steps)
    initial, transitions, emissions = (_smoothed(part.double()) for part in counts.parts)
    return HiddenMarkov(initial, transitions, emissions, dtype=torch.float32)


def _first_guess(frequency: Float[Tensor, " vocab"], states: int, *, generator: torch.Generator) -> _Counts:
    own = _clones(frequency, states) if states >= len(frequency) else frequency.argsort(descending=True)[: states // 2]
    emissions = torch.zeros(states, len(frequency))
    emissions[torch.arange(len(own)), own] = 1.0
    if len(own) < states:
        rest = frequency.scatter(0, own, 0.0) + SMOOTHING
        emissions[len(own) :] = rest * uniforms(states - len(own), len(frequency), generator=generator).float()
    transitions = 0.5 + uniforms(states, states, generator=generator).float()
    return _Counts(torch.ones(states), transitions, emissions)


def _clones(frequency: Float[Tensor, " vocab"], states: int) -> Int[Tensor, " states"]:
    """A token for every state: each has one, and the next goes where the frequency for each is highest."""
    weight, count = frequency**CLONES, torch.ones(len(frequency), dtype=torch.int64)
    while int(count.sum()) < states:
        count[(weight / count).argmax()] += 1
    return torch.arange(len(frequency)).repeat_interleave(count)


def _expected_counts(known: _Counts, windows: Int[Tensor, "windows length"]) -> _Counts:
    """What some windows are expected to have gone through: forward and backward over their states."""
    emitted = known.emissions.index_select(1, windows.T.flatten()).view(len(known.initial), windows.shape[1], -1)
    state, states = known.initial.unsqueeze(1), []
    for place in range(windows.shape[1]):
        state = state * emitted[:, place]
        state = state / state.sum(0)
        states.append(state)
        state = known.transitions.T @ state
    ahead, followed = torch.ones_like(states[-1]), torch.zeros_like(known.transitions)
    visited = [states[-1]]
    for place in range(windows.shape[1] - 1, 0, -1):
        taken = ahead * emitted[:, place]
        before = known.transitions @ taken
        scale = (states[place - 1] * before).sum(0)
        followed += states[place - 1] @ (taken / scale).T
        ahead = before / scale
        visited.append(states[place - 1] * ahead)
    emissions = torch.zeros_like(known.emissions)
    emissions.index_add_(1, windows.flip(1).T.flatten(), torch.cat(visited, dim=1))
    return _Counts(visited[-1].sum(1), followed * known.transitions, emissions)


def _fitted_beta(
    model: Predictor, surrogate: HiddenMarkov, windows: Int[Tensor, "texts tokens"], *, seed: int
) -> float:
    """The slope of a model's replicates on those of the surrogate at the same masks, within texts."""
    items = [Item.read(window, context=range(CONTEXT)) for window in windows]
    request = Request(Tiled(), Neighbours(), BUDGET)
    mine, beside = (
        torch.stack([one.replicates for one in estimate_items(predictor, items, request, seed=seed)])
        for predictor in (model, surrogate)
    )
    f, h = (values - values.mean(1, keepdim=True) for values in (mine, beside))
    return round(float(((f * h).sum() / h.square().sum()).clamp(0.0, 1.0)), 3)
