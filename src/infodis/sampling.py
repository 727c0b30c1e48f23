"""Draw sequences from a model: fill masked positions from conditionals, or walk noise back by scores.

A sampler is a value that says which positions to reveal next; tokens are then drawn from their conditionals. Any
positions may be fixed: what is not the mask token stays as it is, so a prompt and an infill are the same thing. Row n
draws from a stream of its own, so it does not depend on the batch it is in.

Revealing one position at a time samples the exact distribution of a consistent predictor in whatever order, as long as
the order depends on visible tokens only. Revealing several at once draws them as if they were independent.
"""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from infodis.design import ranks
from infodis.device import device_of
from infodis.errors import InputError, PredictorError
from infodis.noise.process import ScoreFunction
from infodis.noise.schedule import Geometric, LogLinear, Schedule
from infodis.predictor import Predictor, check_log_conditionals
from infodis.rng import stream, uniforms

Tokens = Int[Tensor, "rows length"]
Masks = Bool[Tensor, "rows length"]
Numbers = Float[Tensor, "rows length"]


@dataclasses.dataclass(frozen=True)
class Sampler(abc.ABC):
    """Which masked positions to reveal next. Final subclasses are values."""

    greedy: bool = dataclasses.field(default=False, kw_only=True)
    """Take the likeliest token instead of drawing one."""

    def stages(self, masked: Masks) -> Iterator[tuple["Sampler", Masks]]:
        """Parts of the work that are done one after another: all at once, except for `InBlocks`."""
        yield self, masked

    @abc.abstractmethod
    def reveal(self, masked: Masks, keys: Numbers, confidence: Numbers, *, step: int) -> Masks:
        """The positions to reveal at this step, given uniform keys and the probability of each likeliest token."""


@dataclasses.dataclass(frozen=True)
class OneByOne(Sampler):
    """One position at a time, in random order. Exact; as many calls as there are positions."""

    def reveal(self, masked: Masks, keys: Numbers, confidence: Numbers, *, step: int) -> Masks:
        return masked & (ranks(torch.where(masked, keys, 2.0)) < 1)


@dataclasses.dataclass(frozen=True)
class Ancestral(Sampler):
    """Tau-leaping: `steps` calls; at each, masked positions are revealed independently as the level falls to zero."""

    steps: int = 64
    schedule: Schedule = LogLinear()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"Ancestral needs at least one step, got {self.steps}.")

    def reveal(self, masked: Masks, keys: Numbers, confidence: Numbers, *, step: int) -> Masks:
        if step >= self.steps - 1:
            return masked
        times = torch.tensor([1 - step / self.steps, 1 - (step + 1) / self.steps], dtype=torch.float64)
        now, then = self.schedule.level(times).tolist()
        return masked & (keys < (now - then) / now)


@dataclasses.dataclass(frozen=True)
class MostConfident(Sampler):
    """The `at_once` positions whose likeliest token is most probable. With one at once: exact, and good when greedy."""

    at_once: int = 1

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise InputError(f"MostConfident reveals at least one position at once, got {self.at_once}.")

    def reveal(self, masked: Masks, keys: Numbers, confidence: Numbers, *, step: int) -> Masks:
        return masked & (ranks(torch.where(masked, -confidence, 2.0)) < self.at_once)


@dataclasses.dataclass(frozen=True)
class InBlocks(Sampler):
    """InBlocks of `size` positions from left to right, each filled by another sampler before the next begins."""

    inner: Sampler = OneByOne()
    size: int = 32

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"A block holds at least one position, got {self.size}.")

    def stages(self, masked: Masks) -> Iterator[tuple[Sampler, Masks]]:
        place = torch.arange(masked.shape[1])
        for start in range(0, masked.shape[1], self.size):
            part = masked & (place >= start) & (place < start + self.size)
            yield from dataclasses.replace(self.inner, greedy=self.inner.greedy or self.greedy).stages(part)

    def reveal(self, masked: Masks, keys: Numbers, confidence: Numbers, *, step: int) -> Masks:
        """What the sampler inside reveals: `stages` hands the work to it, block by block."""
        return self.inner.reveal(masked, keys, confidence, step=step)


def sampler_named(name: str, *, steps: int | None = None, at_once: int | None = None, greedy: bool = False) -> Sampler:
    """The sampler that a command line names: `one-by-one`, `ancestral`, `confident`; `:32` after it means in blocks."""
    plain, _, size = name.partition(":")
    if plain not in SAMPLERS or (size and not size.isdecimal()):
        raise InputError(f"A sampler is one of {', '.join(SAMPLERS)}, with :SIZE for blocks; got {name!r}.")
    if steps is not None and plain != "ancestral":
        raise InputError(f"A number of steps is for the ancestral sampler, not for {plain}.")
    if at_once is not None and plain != "confident":
        raise InputError(f"Tokens at once are for the confident sampler, not for {plain}.")
    given = {name: value for name, value in (("steps", steps), ("at_once", at_once)) if value is not None}
    sampler = SAMPLERS[plain](**given, greedy=greedy)
    return InBlocks(sampler, int(size)) if size else sampler


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "one-by-one": OneByOne,
    "ancestral": Ancestral,
    "confident": MostConfident,
}


@torch.no_grad()
def sample(
    predictor: Predictor,
    tokens: Int[Tensor, "..."],
    *,
    sampler: Sampler = OneByOne(),
    seed: int = 0,
    batch_size: int = 64,
) -> Tokens:
    """Fill every mask token of `tokens`; everything else stays.

    >>> from infodis import oracle
    >>> chain = oracle.MarkovChain.random(order=1, vocab_size=4, temperature=0.1)
    >>> start = torch.full((2, 6), chain.mask_token)
    >>> start[:, 0] = 3
    >>> sample(chain, start)[:, 0]
    tensor([3, 3])
    """
    if tokens.ndim != 2:
        raise InputError(f"Tokens to sample from must be rows x length, got shape {tuple(tokens.shape)}.")
    legal = (tokens == predictor.mask_token) | ((tokens >= 0) & (tokens < predictor.vocab_size))
    if not bool(legal.all()):
        row, place = (int(n) for n in (~legal).nonzero()[0])
        raise InputError(
            f"Row {row}, position {place} holds token {int(tokens[row, place])}; it must be the mask token "
            f"{predictor.mask_token} or lie in 0..{predictor.vocab_size - 1}."
        )
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    whole = tokens.cpu()
    rows = range(len(whole))
    parts = [
        _fill(predictor, whole[start : start + batch_size], sampler, seed, rows[start : start + batch_size])
        for start in range(0, len(whole), batch_size)
    ]
    return torch.cat(parts) if parts else whole.clone()


class RowStreams:
    """Uniform numbers for a batch of rows, each from a stream of its own."""

    def __init__(self, seed: int, rows: range, stage: int) -> None:
        self._streams = [stream(seed, "sample", row, stage) for row in rows]

    def __call__(self, *shape: int) -> Float[Tensor, "rows ..."]:
        return torch.stack([uniforms(*shape, generator=generator) for generator in self._streams])


def _fill(predictor: Predictor, tokens: Tokens, sampler: Sampler, seed: int, rows: range) -> Tokens:
    for number, (stage, part) in enumerate(sampler.stages(tokens == predictor.mask_token)):
        draws = RowStreams(seed, rows, number)  # anew: how long a stage takes depends on other rows
        step, left = 0, part
        while bool(left.any()):
            keys, choice = draws(2, tokens.shape[1]).unbind(1)
            tokens, left = _step(predictor, tokens, left, stage, keys, choice, step)
            step += 1
    return tokens


def _step(
    predictor: Predictor, tokens: Tokens, left: Masks, sampler: Sampler, keys: Numbers, choice: Numbers, step: int
) -> tuple[Tokens, Masks]:
    """Reveal some positions: which ones, by the sampler; as what, by their conditionals."""
    answer = predictor.log_conditionals(tokens)
    check_log_conditionals(answer, left, vocab_size=predictor.vocab_size)
    confidence = answer.max(-1).values.cpu().double().exp()
    revealed = sampler.reveal(left, keys, confidence, step=step)
    wanted = answer[revealed.to(answer.device)].cpu().double()
    tokens = tokens.clone()
    tokens[revealed] = wanted.argmax(-1) if sampler.greedy else categorical(wanted.exp(), choice[revealed])
    return tokens, left & ~revealed


def categorical(weights: Float[Tensor, "*places states"], uniform: Float[Tensor, "*places"]) -> Int[Tensor, "*places"]:
    """Draw from unnormalised probabilities by inversion: one uniform number a draw. Weight zero is never drawn."""
    cumulative = weights.cumsum(-1)
    wanted = (uniform * cumulative[..., -1]).unsqueeze(-1)
    found = torch.searchsorted(cumulative, wanted, right=True).squeeze(-1)
    possible = (weights > 0).long()
    last = possible.shape[-1] - 1 - possible.flip(-1).argmax(-1)  # rounding must not step past the last possible one
    return torch.minimum(found, last)


@dataclasses.dataclass(frozen=True)
class ReverseStep:
    """How `sample_uniform` walks back from uniform noise: `steps` steps along `schedule`.

    `tau-leaping` moves each token at its present reverse rate; `tweedie` draws each token from the posterior that the
    present scores imply, which is exact where tokens are independent.
    """

    method: str = "tweedie"
    steps: int = 64
    schedule: Schedule = Geometric()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"Walking back needs at least one step, got {self.steps}.")
        if self.method not in ("tau-leaping", "tweedie"):
            raise InputError(f"Uniform noise is walked back by tau-leaping or tweedie, got {self.method!r}.")


@torch.no_grad()
def sample_uniform(
    scores: ScoreFunction,
    rows: int,
    length: int,
    *,
    vocab_size: int,
    fixed: tuple[Bool[Tensor, "#rows length"], Int[Tensor, "#rows length"]] | None = None,
    reverse: ReverseStep = ReverseStep(),
    seed: int = 0,
    batch_size: int = 64,
) -> Tokens:
    """Draw sequences under uniform noise: from random tokens back to data. `fixed` holds positions and their tokens."""
    if min(rows, length, vocab_size, batch_size) < 1:
        raise InputError(
            "rows, length, vocab_size and batch_size must be positive, "
            f"got {rows}, {length}, {vocab_size} and {batch_size}."
        )
    held, value = (torch.zeros(1, length, dtype=torch.bool), torch.zeros(1, length).long()) if fixed is None else fixed
    if bool((held & ((value < 0) | (value >= vocab_size))).any()):
        raise InputError(f"Fixed tokens must lie in 0..{vocab_size - 1}.")
    held, value = (part.cpu().expand(rows, length) for part in (held, value))
    parts = []
    for start in range(0, rows, batch_size):
        part = slice(start, start + batch_size)
        draws = RowStreams(seed, range(rows)[part], 0)
        parts.append(_walk_back(scores, held[part], value[part], vocab_size, reverse, draws))
    return torch.cat(parts)


def _walk_back(
    scores: ScoreFunction, held: Masks, value: Tokens, vocab_size: int, reverse: ReverseStep, draws: RowStreams
) -> Tokens:
    (rows, length), device = held.shape, device_of(scores)
    tokens = (vocab_size * draws(length)).long()
    times = torch.linspace(1, 0, reverse.steps + 1, dtype=torch.float64)
    totals = reverse.schedule.total(times)
    totals[-1] = 0.0
    for now, then in itertools.pairwise(totals):
        tokens = torch.where(held, value, tokens)
        found = scores(tokens.to(device), now.float().expand(rows).to(device))
        if found.shape != (rows, length, vocab_size) or not bool(found.isfinite().all()):
            raise PredictorError(
                f"Log-scores must be finite, rows x length x vocab = {(rows, length, vocab_size)}; "
                f"got shape {tuple(found.shape)}, {int((~found.isfinite()).sum())} numbers not finite."
            )
        score = found.cpu().double().exp().scatter(-1, tokens.unsqueeze(-1), 1.0)
        weights = _move_weights(score, tokens, float(now - then), method=reverse.method)
        tokens = categorical(weights, draws(length))
    return torch.where(held, value, tokens)


def _move_weights(
    score: Float[Tensor, "rows length vocab"], tokens: Tokens, noise: float, *, method: str
) -> Float[Tensor, "rows length vocab"]:
    """Where each token goes when `noise` is taken away; at least zero, not normalised."""
    vocab_size = score.shape[-1]
    kept = torch.exp(torch.tensor(-noise, dtype=torch.float64))
    here = torch.zeros_like(score).scatter(-1, tokens.unsqueeze(-1), 1.0)
    if method == "tau-leaping":
        away = noise * score / vocab_size * (1 - here)
        return away + here * (1 - away.sum(-1, keepdim=True)).clamp(min=0)
    earlier = (score - (1 - kept) / vocab_size * score.sum(-1, keepdim=True)) / kept  # p_s(y) / p_t(x)  [eq:tweedie]
    forward = kept * here + (1 - kept) / vocab_size
    return (earlier * forward).clamp(min=0)
