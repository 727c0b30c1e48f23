"""Draw sequences from a model: fill masked positions from conditionals, or walk noise back by scores.

A rule (`infodis.reveal`) says which positions to reveal next; tokens are then drawn from their conditionals. Any
positions may be fixed: what is not the mask token stays as it is, so a prompt and an infill are the same thing. Row n
draws from a stream of its own, so it does not depend on the batch it is in.

A model of blocks, or a causal one, is sampled block after block from left to right, each block by the rule.

Revealing one position at a time samples the exact distribution of a consistent predictor in whatever order, as long as
the order depends on visible tokens only. Revealing several at once draws them as if they were independent.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from infodis.blocks import blocks_of
from infodis.device import device_of
from infodis.errors import InputError, PredictorError
from infodis.models.model import Model
from infodis.noise.process import ScoreFunction
from infodis.noise.schedule import Geometric, LogLinear, Schedule
from infodis.predictor import Predictor, Rows, check_log_conditionals
from infodis.reveal import RULES, DecoderState, InBlocks, Masks, Numbers, RandomOrder, Ranked, RevealRule, rule_named
from infodis.rng import stream, uniforms

Tokens = Int[Tensor, "rows length"]


@dataclasses.dataclass(frozen=True)
class Ancestral(RevealRule):
    """Tau-leaping: `steps` calls; at each, masked positions are revealed independently as the level falls to zero."""

    steps: int = 64
    schedule: Schedule = LogLinear()

    def __post_init__(self) -> None:
        if type(self.steps) is not int or self.steps < 1:
            raise InputError(f"Ancestral needs at least one step, got {self.steps!r}.")

    @property
    def draws(self) -> bool:
        return True

    def reveal(self, masked: Masks, keys: Numbers, certainty: Numbers | None, step: Int[Tensor, " rows"]) -> Masks:
        times = 1 - torch.stack([step, step + 1], dim=-1).double() / self.steps
        now, then = self.schedule.level(times.clamp(min=0)).unbind(-1)
        share = torch.where(step >= self.steps - 1, 1.0, (now - then) / now)
        return masked & (keys < share.unsqueeze(-1))


def sampler_named(name: str, *, steps: int | None = None, tokens: int | None = None) -> RevealRule:
    """A rule by name (`rule_named`), or `ancestral`; with a number of `steps` for so many `tokens`, where it has one.

    >>> sampler_named("most-confident:32", steps=64, tokens=256)
    InBlocks(inner=MostConfident(per_step=4), size=32, origin='global')
    """
    rule = rule_named(name, {**RULES, "ancestral": Ancestral})
    return rule if steps is None else _with_steps(rule, steps, tokens)


def _with_steps(rule: RevealRule, steps: int, tokens: int | None) -> RevealRule:
    if isinstance(rule, InBlocks):
        return dataclasses.replace(rule, inner=_with_steps(rule.inner, steps, tokens))
    if isinstance(rule, Ancestral):
        return dataclasses.replace(rule, steps=steps)
    if isinstance(rule, Ranked) and tokens is not None:
        return dataclasses.replace(rule, per_step=-(-tokens // steps))
    raise InputError(f"{rule} decides by itself how many steps it takes. Leave steps={steps} out.")


@torch.no_grad()
def sample(
    predictor: Predictor,
    tokens: Int[Tensor, "..."],
    *,
    rule: RevealRule = RandomOrder(),
    greedy: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
    batch_size: int = 64,
) -> Tokens:
    """Fill every mask token of `tokens`; everything else stays.

    `greedy` takes the likeliest token, not a drawn one. Distributions are raised to the power 1 / `temperature`.

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
    decoder, whole = Decoder(predictor, rule, greedy=greedy, temperature=temperature), tokens.cpu()
    lengths = torch.full((len(whole),), whole.shape[1])
    parts = []
    for start in range(0, len(whole), batch_size):
        some = slice(start, start + batch_size)
        draws = RowStreams.of(seed, range(len(whole))[some])
        parts.append(decoder.fill(whole[some], lengths[some], draws).tokens)
    return torch.cat(parts) if parts else whole.clone()


class RowStreams:
    """Uniform numbers for a batch of rows, each from a stream of its own."""

    def __init__(self, streams: Sequence[torch.Generator]) -> None:
        self._streams = streams

    @staticmethod
    def of(seed: int, rows: range) -> "RowStreams":
        return RowStreams(
            [stream(seed, "sample", row, 0) for row in rows]
        )  # 0: so that seeds give what they always gave

    def __call__(self, *shape: int) -> Float[Tensor, "rows ..."]:
        return torch.stack([uniforms(*shape, generator=generator) for generator in self._streams])

    def for_rows(
        self, rows: Int[Tensor, " some"], lengths: Int[Tensor, " some"], width: int
    ) -> Float[Tensor, "some two width"]:
        """Two numbers for each position of some rows, 0 in padding."""
        found = torch.zeros(len(rows), 2, width, dtype=torch.float64)
        for place, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
            found[place, :, :length] = uniforms(2, length, generator=self._streams[row])
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Filled:
    """Rows without masks, up to where they were finished; and the forward passes that each took."""

    tokens: Tokens
    passes: Int[Tensor, " rows"]


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
    """How the masks of rows are filled in."""

    predictor: Predictor
    rule: RevealRule
    greedy: bool = False
    temperature: float = 1.0
    finished: Callable[[Int[Tensor, " written"]], bool] | None = None
    """Whether a row needs no more. It is shown what stands before the first mask: later steps do not change that."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(f"A temperature must be positive and finite, got {self.temperature}.")

    @torch.no_grad()
    def fill(self, tokens: Tokens, lengths: Int[Tensor, " rows"], draws: RowStreams) -> Filled:
        """Reveal some positions, step by step: which ones, by the rule; as what, by their conditionals."""
        tokens, passes = tokens.clone(), torch.zeros(len(tokens), dtype=torch.int64)
        there = torch.arange(tokens.shape[1]) < lengths.unsqueeze(-1)
        state = DecoderState.start((tokens == self.predictor.mask_token) & there)
        blocks = blocks_of(self.predictor)
        if blocks is not None:
            blocks.check_gaps(state.whole, there)
        going = state.left.any(-1).nonzero().squeeze(1)
        with self.predictor.unchanged() if isinstance(self.predictor, Model) else contextlib.nullcontext():
            while len(going):
                before, numbers = state.subset(going), draws.for_rows(going, lengths[going], tokens.shape[1])
                tokens[going], after = self._step(tokens[going], lengths[going], before, numbers)
                passes[going] += 1
                state = state.updated(going, after)
                going = going[self._unfinished(tokens[going], before, after)]
        return Filled(tokens, passes)

    def _step(
        self,
        tokens: Tokens,
        lengths: Int[Tensor, " rows"],
        state: DecoderState,
        draws: Float[Tensor, "rows two length"],
    ) -> tuple[Tokens, DecoderState]:
        """One forward pass for each row."""
        rule, blocks = self.rule, blocks_of(self.predictor)
        rule = rule if blocks is None else InBlocks(rule, blocks.size, blocks.origin)
        wanted = rule.open(state.left, state.whole)
        answer = conditionals(self.predictor, self._rows(tokens, lengths, state, wanted))
        if self.temperature != 1:
            answer = torch.log_softmax(answer / self.temperature, dim=-1)
        keys, choice = draws.unbind(1)
        certainty = None
        if rule.certainty is not None:
            certain = rule.certainty(answer).cpu().double()
            certainty = torch.zeros(tokens.shape, dtype=torch.float64).masked_scatter(wanted, certain)
        revealed, state = state.advance(rule, keys, certainty)
        found = answer[revealed[wanted].to(answer.device)].cpu().double()
        new = found.argmax(-1) if self.greedy else categorical(found.exp(), choice[revealed])
        return tokens.masked_scatter(revealed, new), state

    def _rows(self, tokens: Tokens, lengths: Int[Tensor, " rows"], state: DecoderState, wanted: Masks) -> Rows:
        """A model of blocks does not see what comes behind the one that is being filled: rows end there."""
        clean, blocks = torch.where(state.left, 0, tokens), blocks_of(self.predictor)
        if blocks is None:
            return Rows(clean, state.left, wanted, lengths, torch.zeros_like(lengths))
        starts = blocks.gap_starts(state.whole)
        return Rows(clean, wanted, wanted, torch.minimum(blocks.ends(wanted, starts), lengths), starts)

    def _unfinished(self, tokens: Tokens, before: DecoderState, after: DecoderState) -> Bool[Tensor, " rows"]:
        """Rows that have masks, and are not finished by what was written last."""
        left = after.left.any(-1)
        if self.finished is None:
            return left
        first, old, new = (_first_place(part) for part in (before.whole, before.left, after.left))
        for row in (left & (new > old)).nonzero().squeeze(1).tolist():
            left[row] = not self.finished(tokens[row, first[row] : new[row]])
        return left


def _first_place(masked: Masks) -> Int[Tensor, " rows"]:
    """Of the first masked position of each row; its length if there is none."""
    return torch.where(masked.any(-1), masked.int().argmax(-1), masked.shape[1])


def conditionals(predictor: Predictor, rows: Rows) -> Float[Tensor, "wanted vocab"]:
    """Log p of every token at the wanted places, row by row."""
    if isinstance(predictor, Model):
        found = predictor.conditionals(rows)
        check_log_conditionals(
            found.unsqueeze(0), torch.ones(1, len(found), dtype=torch.bool), vocab_size=predictor.vocab_size
        )
        return found
    blocks = blocks_of(predictor)
    if blocks is not None and blocks.origin == "response":
        raise InputError(
            "Only a model that was loaded can be told where its blocks begin, got one whose blocks begin with the "
            'response behind a wrapper. Take the wrapper off, or load it with block_origin="global".'
        )
    whole = predictor.log_conditionals(torch.where(rows.hidden, predictor.mask_token, rows.tokens))
    check_log_conditionals(whole, rows.wanted, vocab_size=predictor.vocab_size)
    return whole[rows.wanted.to(whole.device)]


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
        draws = RowStreams.of(seed, range(rows)[part])
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
