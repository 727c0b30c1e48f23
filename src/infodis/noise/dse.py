"""Likelihood from scores, for any noise: the time integral of the denoising score entropy (I-MDSE).

    -log p(x_0) = integral over total noise of mdse(x_0, .)  +  KL(p_T(. | x_0) || p_T)         [eq:i-mdse]

Noise is drawn by `NoiseDesign`; where noised sequences are few they are enumerated, with quadrature in time. It acts on
the target only. The clock is the total noise, since schedules change nothing; `until=schedule.total(t)` ends the
integral at a time.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import SupportsIndex

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from infodis.blocks import check_sees_all
from infodis.control import Neighbours
from infodis.errors import InputError
from infodis.evaluate import Batching, ItemBatch, run
from infodis.item import Item, Positions
from infodis.noise.design import LARGEST_TOTAL, Noise, NoiseDesign
from infodis.noise.process import Absorbing, Process
from infodis.noise.sample import NoiseSample
from infodis.noise.schedule import Nodes, half_line
from infodis.noise.scores import ConditionalScore, Marginal, ScorePredictor, States, known_until, score_entropies
from infodis.noise.scores import NoisyOracle as NoisyOracle
from infodis.noise.scores import from_denoiser as from_denoiser
from infodis.noise.scores import from_mean as from_mean
from infodis.noise.scores import from_network as from_network
from infodis.noise.scores import from_predictor as from_predictor
from infodis.predictor import Predictor
from infodis.result import Estimate, standard_error
from infodis.rng import check_seed, key, stream, uniforms

NODES = 32
EVALUATIONS = 256
BATCH = 256


def dse_nll(
    score: ConditionalScore,
    tokens: Iterable[int] | Tensor,
    *,
    process: Process,
    target: Positions | None = None,
    context: Positions | None = None,
    until: float = math.inf,
    evaluations: int = EVALUATIONS,
    nodes: int = NODES,
    seed: SupportsIndex = 0,
    batch_size: int = BATCH,
) -> Estimate:
    """-log p(target | context) from scores, in nats [eq:i-mdse].

    Exact up to Monte Carlo (or quadrature) if the scores are; for learned scores it is an upper bound of a likelihood,
    the one of the reverse process.

    Args:
        score: log-scores; see `NoisyOracle`, `from_denoiser`, `from_mean`, `from_predictor`, `from_network`.
        tokens: one sequence.
        process: the noise that the scores are about.
        target: positions to score and to noise; by default all that are not context.
        context: positions to condition on; they stay clean. Positions in neither set must not be left, unless the
            process masks: then they stay masked.
        until: where the integral ends, in total noise. The term that is left is exact if the score knows its own
            density (`log_prob`); otherwise the end is taken for stationary, which makes the value larger by
            KL(p_T || stationary) on average. Masking has no such end: there the integral goes on, and what the score
            says at `until` is taken for what it would say later.
        evaluations: forward passes to spend. If they pay for all noised sequences at `nodes` points in time, these are
            enumerated; otherwise noise is drawn, without bias, in independent replicates.
        nodes: points in time of an enumeration.
        seed: the same seed draws the same noise.
        batch_size: rows per call.

    >>> from infodis.oracle import Table
    >>> from infodis.noise.process import Uniform
    >>> table = Table(torch.tensor([[0, 1], [1, 1], [2, 0]]), torch.tensor([0.5, 0.2, 0.3]))
    >>> exact = dse_nll(NoisyOracle(table, Uniform(3)), [1, 1], process=Uniform(3), evaluations=9 * 32)
    >>> abs(exact.value + table.log_prob([1, 1])) < 1e-6
    True
    """
    item, number = _item(tokens, process, target=target, context=context), check_seed(seed)
    if isinstance(process, Absorbing) and not isinstance(score, Marginal):
        score, until = known_until(score, min(until, LARGEST_TOTAL)), math.inf
    density = score if isinstance(score, Marginal) and until < LARGEST_TOTAL else None
    known = 0.0 if density is not None or math.isinf(until) else _stationary_kl(item, process, until)
    if process.states ** item.target.numel() * nodes <= evaluations:
        parts, rows, design = (
            *_enumerated(score, item, process, half_line(nodes, until=until), batch_size),
            f"{nodes} nodes",
        )
    else:
        noise = Noise(process, until)
        density = density if noise.end == until else None  # under masking the integral goes on
        parts, rows, design = *_sampled(score, item, noise, evaluations, number, batch_size), str(NoiseDesign(noise))
    if density is not None:
        parts = parts + _end(density, item, process, until, replicates=len(parts), seed=number)
    return _estimate("dse_nll", item, parts + known, rows=rows, seed=number, design=design)


def _enumerated(
    score: ConditionalScore, item: Item, process: Process, nodes: Nodes, batch_size: int
) -> tuple[Float64[Tensor, "one length"], int]:
    """The integral over all noised sequences by quadrature [eq:quadrature], and the forward passes that it took."""
    points, weights = nodes
    draws = _every(item, process, points)
    return draws.gather(weights, _entropies(score, item, process, draws, points, batch_size)), len(draws.noised)


def _sampled(
    score: ConditionalScore, item: Item, noise: Noise, evaluations: int, seed: int, batch_size: int
) -> tuple[Float64[Tensor, "replicates length"], int]:
    """The same from draws."""
    batch, design = ItemBatch.of(ScorePredictor(score, noise), [item]), NoiseDesign(noise)
    layout = design.layout(item.target.numel(), evaluations)
    sample = NoiseSample.of([item], [item.key], batch, design, layout, control=Neighbours(), seed=seed)
    sample = run(sample.extend(layout.replicates), Batching(batch_size))
    parts = torch.zeros(layout.replicates, item.length, dtype=torch.float64)
    parts[:, item.target] = sample.integrals()[0]
    return parts, layout.replicates * layout.rows


def _end(
    score: Marginal, item: Item, process: Process, until: float, *, replicates: int, seed: int
) -> Float64[Tensor, "replicates length"]:
    """KL(p_T(. | x_0) || p_T) of a score that knows its density: summed, or a draw for every replicate."""
    end = torch.tensor([until], dtype=torch.float64)
    last = _draws(item, process, end, replicates, seed=key(seed, "end"), replicates=replicates)
    return last.gather(torch.ones(1).double(), _surplus(score, item, process, last, end))


def mdse(
    score: ConditionalScore,
    tokens: Iterable[int] | Tensor,
    total: float,
    *,
    process: Process,
    target: Positions | None = None,
    context: Positions | None = None,
    evaluations: int = EVALUATIONS,
    seed: SupportsIndex = 0,
    batch_size: int = BATCH,
) -> Estimate:
    """The denoising score entropy of x_0 at one total noise: minus the slope of KL(p_t(. | x_0) || p_t) [eq:mdse].

    Per unit of total noise; times `schedule.rate(t)` it is per unit of time.
    """
    item, number = _item(tokens, process, target=target, context=context), check_seed(seed)
    if not 0 < total < math.inf:
        raise InputError(f"mdse is asked at a positive and finite total noise, got {total}.")
    points = torch.tensor([total], dtype=torch.float64)
    draws = _draws(item, process, points, evaluations, seed=number)
    parts = draws.gather(torch.ones(1).double(), _entropies(score, item, process, draws, points, batch_size))
    return _estimate("mdse", item, parts, rows=len(draws.noised), seed=number, design="one noise")


def mdce(
    predictor: Predictor,
    tokens: Iterable[int] | Tensor,
    level: float,
    *,
    target: Positions | None = None,
    context: Positions | None = None,
    evaluations: int = EVALUATIONS,
    seed: SupportsIndex = 0,
) -> Estimate:
    """The denoising cross-entropy of x_0 if every target token is masked with probability `level` [eq:mdce].

    Divided by the level it is minus the slope of KL(p_level(. | x_0) || p_level); its integral from 0 to 1 is `nll`.
    """
    if not 0 < level <= 1:
        raise InputError(f"A level lies between 0 and 1, got {level}.")
    check_sees_all(predictor, "The cross-entropy at a level")
    process, number = Absorbing(predictor.vocab_size), check_seed(seed)
    item = _item(tokens, process, target=target, context=context)
    points = torch.tensor([-math.log1p(-level) if level < 1 else math.inf], dtype=torch.float64)
    draws = _draws(item, process, points, evaluations, seed=number)
    masked = draws.noised == predictor.vocab_size
    batch = ItemBatch.of(predictor, [item])
    rows = torch.zeros(len(masked), dtype=torch.int64)
    surprisal = torch.zeros(masked.shape, dtype=torch.float64)
    surprisal[:, item.target] = run(batch.surprisals(rows, masked[:, item.target]))
    parts = draws.gather(torch.ones(1).double(), surprisal)
    return _estimate("mdce", item, parts, rows=len(masked), seed=number, design="one level")


def _item(
    tokens: Iterable[int] | Tensor, process: Process, *, target: Positions | None, context: Positions | None
) -> Item:
    item = Item.read(tokens, target=target, context=context)
    if int(item.tokens.min()) < 0 or int(item.tokens.max()) >= process.vocab_size:
        raise InputError(f"Tokens lie in 0..{process.vocab_size - 1} for this process, got {item.tokens.tolist()}.")
    if item.target.numel() + item.context.numel() < item.length and not isinstance(process, Absorbing):
        raise InputError(
            "Every position must be target or context: only masking can leave some out. Name the others as context."
        )
    return item


@dataclasses.dataclass(frozen=True, eq=False)
class _Draws:
    """Noised sequences: at which node of the integral, how much each counts, and in which replicate."""

    noised: States
    node: Int[Tensor, " rows"]
    share: Float64[Tensor, " rows"]
    replicate: Int[Tensor, " rows"]
    replicates: int

    def gather(
        self, weights: Float64[Tensor, " nodes"], values: Float64[Tensor, "rows length"]
    ) -> Float64[Tensor, "replicates length"]:
        """The weighted sum of values, replicate by replicate."""
        counted = torch.where(values == 0, 0.0, (weights[self.node] * self.share).unsqueeze(-1) * values)
        empty = torch.zeros(self.replicates, values.shape[1], dtype=torch.float64)
        return empty.index_add(0, self.replicate, counted)


def _draws(
    item: Item,
    process: Process,
    points: Float64[Tensor, " nodes"],
    evaluations: int,
    *,
    seed: int,
    replicates: int | None = None,
) -> _Draws:
    """All noised sequences at every node if there are few enough; otherwise one of each replicate at every node."""
    size, nodes = item.target.numel(), len(points)
    if replicates == 1 or (replicates is None and process.states**size * nodes <= evaluations):
        return _every(item, process, points)
    count = replicates or evaluations // nodes
    if count < 2:
        raise InputError(
            f"A standard error needs two replicates of {nodes} rows; got evaluations={evaluations}. Ask for "
            f"evaluations={2 * nodes} or more, or for fewer nodes."
        )
    node, replicate = torch.arange(nodes).repeat(count), torch.arange(count).repeat_interleave(nodes)
    numbers = torch.cat([_stratified(nodes, size, stream(seed, item.key, "dse", n)) for n in range(count)])
    clean = _base(item, process, count * nodes)[:, item.target]
    states = process.draw(clean, points[node], numbers=numbers)
    return _Draws(_placed(item, process, states), node, torch.ones(len(node)).double(), replicate, count)


def _every(item: Item, process: Process, points: Float64[Tensor, " nodes"]) -> _Draws:
    """All noised sequences that are possible at every node."""
    size, nodes = item.target.numel(), len(points)
    every = torch.cartesian_prod(*[torch.arange(process.states)] * size).view(-1, size)
    states, node = every.repeat(nodes, 1), torch.arange(nodes).repeat_interleave(len(every))
    kernel = process.transition(_base(item, process, len(states))[:, item.target], points[node])
    share = kernel.gather(-1, states.unsqueeze(-1)).squeeze(-1).prod(-1)
    possible = share > 0
    states, node, share = states[possible], node[possible], share[possible]
    return _Draws(_placed(item, process, states), node, share, torch.zeros_like(node), 1)


def _stratified(nodes: int, size: int, generator: torch.Generator) -> Float64[Tensor, "nodes target"]:
    """Uniform numbers; those of one position lie in different strata at different nodes, so that they balance."""
    stratum = uniforms(nodes, size, generator=generator).argsort(0)
    return (stratum + uniforms(nodes, size, generator=generator)) / nodes


def _base(item: Item, process: Process, rows: int) -> States:
    """The clean sequence, with the mask where neither target nor context is."""
    return torch.where(item.hidden, process.states - 1, item.tokens).expand(rows, -1)


def _placed(item: Item, process: Process, states: Int[Tensor, "rows target"]) -> States:
    rows = _base(item, process, len(states)).clone()
    rows[:, item.target] = states
    return rows


@torch.no_grad()
def _entropies(
    score: ConditionalScore,
    item: Item,
    process: Process,
    draws: _Draws,
    points: Float64[Tensor, " nodes"],
    batch_size: int,
) -> Float64[Tensor, "rows length"]:
    """The score entropy at the target positions of every draw, zero elsewhere."""
    where = torch.zeros(item.length, dtype=torch.bool)
    where[item.target] = True
    found = []
    for noised, total in zip(draws.noised.split(batch_size), points[draws.node].split(batch_size), strict=True):
        entropy = score_entropies(score, process, noised, _base(item, process, len(noised)), total, where)
        found.append(torch.zeros(noised.shape, dtype=torch.float64).masked_scatter(where, entropy))
    return torch.cat(found)


def _surplus(
    score: Marginal, item: Item, process: Process, draws: _Draws, points: Float64[Tensor, " nodes"]
) -> Float64[Tensor, "rows length"]:
    """Log p_T(x_T | x_0) - log p_T(x_T), spread evenly over the target: its mean is the terminal KL."""
    where = torch.zeros(item.length, dtype=torch.bool)
    where[item.target] = True
    total, noised = points[draws.node], draws.noised
    kernel = process.transition(_base(item, process, len(noised))[:, where], total)
    joint = kernel.gather(-1, noised[:, where].unsqueeze(-1)).squeeze(-1).log().sum(-1)
    surplus = joint - score.log_prob(noised, total, where)
    return surplus.unsqueeze(-1) * where / where.sum()


def _stationary_kl(item: Item, process: Process, until: float) -> Float64[Tensor, " length"]:
    """KL(p_T(. | x_0) || stationary) of every target token."""
    kernel = process.transition(item.tokens.unsqueeze(0), torch.tensor([until], dtype=torch.float64))[0]
    parts = torch.where(kernel > 0, kernel * (kernel / process.stationary()).log(), 0.0).sum(-1)
    found = torch.zeros(item.length, dtype=torch.float64)
    found[item.target] = parts[item.target]
    if bool(found.isinf().any()):
        raise InputError(
            "At `until` some tokens are still as they were, which the stationary distribution excludes. Take "
            "until=math.inf, or a score that knows its density (log_prob)."
        )
    return found


def _estimate(
    quantity: str, item: Item, parts: Float64[Tensor, "replicates length"], *, rows: int, seed: int, design: str
) -> Estimate:
    exact = len(parts) == 1
    return Estimate(
        quantity=quantity,
        replicates=parts.sum(1),
        evaluations=rows,
        seed=seed,
        stopped="exact" if exact else "budget spent",
        per_token=parts.mean(0)[item.target],
        per_token_error=standard_error(parts)[item.target],
        target=item.target,
        design="enumerated, " + design if exact else design,
        control=None,
        identity=(item.key, design),
        seeds=frozenset() if exact else frozenset({seed}),
    )
