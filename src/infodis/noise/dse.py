"""Likelihood from scores, for any noise: the time integral of the denoising score entropy (I-MDSE).

    -log p(x_0) = integral over total noise of mdse(x_0, .)  +  KL(p_T(. | x_0) || p_T)         [eq:i-mdse]

Time is integrated by quadrature, x_t is drawn (or enumerated, where there are few); the noise acts on the target only.
The clock is the total noise, since schedules change nothing; `until=schedule.total(t)` ends the integral at a time.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Protocol, SupportsIndex, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from infodis.device import device_of
from infodis.errors import InputError, PredictorError
from infodis.evaluate import ItemBatch, run
from infodis.item import Item, Positions
from infodis.noise.process import Absorbing, Process, ScoreFunction, score_entropy
from infodis.noise.schedule import half_line, log_expm1
from infodis.oracle import Oracle
from infodis.predictor import Predictor
from infodis.result import Estimate, standard_error
from infodis.rng import check_seed, key, stream, uniforms

States = Int[Tensor, "rows length"]
Totals = Float64[Tensor, " rows"]
Noised = Bool[Tensor, " length"]
Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Log p(x_0^i = v | x_t): (states, totals, which positions are noised) -> rows x length x vocab."""

NODES = 32
EVALUATIONS = 256
BATCH = 256


@runtime_checkable
class ConditionalScore(Protocol):
    """Log p_t(y) / p_t(x) for every position and state y that differs there; the other positions are clean."""

    def __call__(self, noised: States, total: Totals, where: Noised) -> Float[Tensor, "rows length states"]: ...


@runtime_checkable
class Marginal(Protocol):
    """A score that also knows log p_t(x_t | clean positions) itself, as exact distributions do."""

    def log_prob(self, noised: States, total: Totals, where: Noised) -> Float64[Tensor, " rows"]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class NoisyOracle:
    """An exact distribution under noise: its score, its denoiser and its density."""

    oracle: Oracle
    process: Process

    def __post_init__(self) -> None:
        if self.oracle.vocab_size != self.process.vocab_size:
            raise InputError(
                f"Oracle and process must agree on the tokens, got {self.oracle.vocab_size} and "
                f"{self.process.vocab_size}."
            )

    def __call__(self, noised: States, total: Totals, where: Noised) -> Float64[Tensor, "rows length states"]:
        return from_denoiser(self.log_denoised, self.process)(noised, total, where)

    def log_prob(self, noised: States, total: Totals, where: Noised) -> Float64[Tensor, " rows"]:
        """Log p_t(x_t | clean positions)."""
        evidence = self._evidence(noised, total, where)
        rest = torch.where(where[:, None], 1.0, evidence)
        return self.oracle.given(evidence)[0] - self.oracle.given(rest)[0]

    def log_denoised(self, noised: States, total: Totals, where: Noised) -> Float64[Tensor, "rows length vocab"]:
        """Log p(x_0^i | x_t)."""
        return self.oracle.given(self._evidence(noised, total, where))[1].log()

    def _evidence(self, noised: States, total: Totals, where: Noised) -> Float64[Tensor, "rows length vocab"]:
        vocabulary = torch.arange(self.oracle.vocab_size)
        clean = (noised.unsqueeze(-1) == vocabulary) | (noised.unsqueeze(-1) >= self.oracle.vocab_size)  # or masked
        return torch.where(where[:, None], self.process.likelihood(noised, total), clean.double())


def from_denoiser(denoiser: Denoiser, process: Process) -> ConditionalScore:
    """Scores from p(x_0^i | x_t): the mean of p_t(y | x_0^i) / p_t(x | x_0^i) over it [eq:score-denoiser]."""

    def score(noised: States, total: Totals, where: Noised) -> Float64[Tensor, "rows length states"]:
        posterior = denoiser(noised, total, where).cpu().double().exp()
        evidence = process.likelihood(noised, total)
        weight = torch.where(evidence > 0, posterior / evidence, 0.0)  # no mass where the noised token cannot come from
        clean = torch.arange(process.vocab_size).expand(len(noised), -1)
        return torch.bmm(weight, process.transition(clean, total)).log()

    return score


def from_predictor(predictor: Predictor) -> ConditionalScore:
    """Scores of masking from a masked predictor, by way of its level; `dse_nll` is then the predictor's `nll`."""

    def score(noised: States, total: Totals, where: Noised) -> Float64[Tensor, "rows length states"]:
        masked = noised == predictor.vocab_size
        rows = torch.where(masked, predictor.mask_token, noised)
        found = predictor.log_conditionals(rows).cpu().double() - log_expm1(total)[:, None, None]
        return torch.cat([found, torch.zeros(*noised.shape, 1, dtype=torch.float64)], dim=-1)

    return score


def from_network(network: ScoreFunction) -> ConditionalScore:
    """A trained score network, like SEDD. Given a context it is exact for masking only: it takes all for noised."""

    def score(noised: States, total: Totals, where: Noised) -> Float[Tensor, "rows length states"]:
        device = device_of(network)
        return network(noised.to(device), total.float().to(device))

    return score


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

    Exact up to quadrature and Monte Carlo if the scores are; for learned scores it is an upper bound of a likelihood,
    the one of the reverse process. If all noised sequences fit into `evaluations`, they are enumerated.

    Args:
        score: log-scores; see `NoisyOracle`, `from_denoiser`, `from_predictor`, `from_network`.
        tokens: one sequence.
        process: the noise that the scores are about.
        target: positions to score and to noise; by default all that are not context.
        context: positions to condition on; they stay clean. Positions in neither set must not be left, unless the
            process masks: then they stay masked.
        until: where the integral ends, in total noise. The term that is left is exact if the score knows its own
            density (`log_prob`); otherwise the end is taken for stationary, which makes the value larger by
            KL(p_T || stationary) on average.
        evaluations: forward passes to spend: `nodes` of them make a replicate.
        nodes: points in time.
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
    points, weights = half_line(nodes, until=until)
    draws = _draws(item, process, points, evaluations, seed=number)
    parts = draws.gather(weights, _entropies(score, item, process, draws, points, batch_size))
    rows = len(draws.noised)
    if isinstance(score, Marginal) and not math.isinf(until):
        end = torch.tensor([until], dtype=torch.float64)
        last = _draws(item, process, end, draws.replicates, seed=key(number, "end"), replicates=draws.replicates)
        parts = parts + last.gather(torch.ones(1).double(), _surplus(score, item, process, last, end))
    elif not math.isinf(until):
        parts = parts + _stationary_kl(item, process, until)
    return _estimate("dse_nll", item, parts, rows=rows, seed=number, design=f"{nodes} nodes")


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
        every = torch.cartesian_prod(*[torch.arange(process.states)] * size).view(-1, size)
        states, node = every.repeat(nodes, 1), torch.arange(nodes).repeat_interleave(len(every))
        kernel = process.transition(_base(item, process, len(states))[:, item.target], points[node])
        share = kernel.gather(-1, states.unsqueeze(-1)).squeeze(-1).prod(-1)
        possible = share > 0
        states, node, share = states[possible], node[possible], share[possible]
        return _Draws(_placed(item, process, states), node, share, torch.zeros_like(node), 1)
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
        log_scores = score(noised, total, where)
        expected = (*noised.shape, process.states)
        if not isinstance(log_scores, Tensor) or tuple(log_scores.shape) != expected:
            raise PredictorError(f"A score must return a tensor of rows x length x states = {expected}.")
        clean = _base(item, process, len(noised))
        entropy = score_entropy(process, log_scores.cpu()[:, where], noised[:, where], clean[:, where], total)
        if bool(entropy.isnan().any()):
            raise PredictorError("The scores hold NaN where the noise can come from.")
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
