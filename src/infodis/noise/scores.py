"""Scores: log p_t(y) / p_t(x) of noised tokens, from networks, denoisers, masked predictors and exact distributions.

A score with its noise is a model (`ScorePredictor`): `infodis.score` and `infodis.log_ratio` take it.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from infodis.blocks import check_sees_all
from infodis.device import device_of
from infodis.errors import InputError, PredictorError
from infodis.noise.design import Noise
from infodis.noise.process import Process, ScoreFunction
from infodis.noise.schedule import log_expm1
from infodis.oracle import Oracle
from infodis.predictor import NoisedRows, NoisePredictor, Predictor

States = Int[Tensor, "rows length"]
Totals = Float64[Tensor, " rows"]
Noised = Bool[Tensor, " length"]
Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Log p(x_0^i = v | x_t): (states, totals, which positions are noised) -> rows x length x vocab."""


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


def from_mean(denoiser: Denoiser, process: Process) -> ConditionalScore:
    """Scores from p(x_0^i | all noised tokens but the i-th), the mean parametrisation of UDLM, Duo and GIDD.

    They are ratios of what a token so distributed turns into [eq:score-mean].
    """

    def score(noised: States, total: Totals, where: Noised) -> Float[Tensor, "rows length states"]:
        return process.scores_of_mean(denoiser(noised, total, where), noised, total)

    return score


def from_predictor(predictor: Predictor) -> ConditionalScore:
    """Scores of masking from a masked predictor, by way of its level; `dse_nll` is then the predictor's `nll`."""
    check_sees_all(predictor, "A score of noise")

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


def known_until(score: ConditionalScore, last: float) -> ConditionalScore:
    """A score of masking that is never asked beyond a total noise.

    Conditionals do not depend on the noise, scores do by a known factor [eq:score-conditional]. So those at more noise
    follow, and a network that computes exp(total) in float32 does not overflow.
    """

    def known(noised: States, total: Totals, where: Noised) -> Float64[Tensor, "rows length states"]:
        asked = total.clamp(max=last)
        found = score(noised, asked, where)
        if not isinstance(found, Tensor):
            raise PredictorError(f"A score must return a tensor, got {type(found).__name__}.")
        less = log_expm1(total) - log_expm1(asked)
        return found.cpu().double() - less[:, None, None]

    return known


def score_entropies(
    score: ConditionalScore, process: Process, noised: States, clean: States, total: Totals, where: Noised
) -> Float64[Tensor, "rows target"]:
    """The score entropy at the noised positions of some rows."""
    log_scores = score(noised, total, where)
    expected = (*noised.shape, process.states)
    if not isinstance(log_scores, Tensor) or tuple(log_scores.shape) != expected:
        raise PredictorError(f"A score must return a tensor of rows x length x states = {expected}.")
    entropy = process.score_entropy(log_scores[:, where], noised[:, where], clean[:, where], total)
    if bool(entropy.isnan().any()):
        raise PredictorError("The scores hold NaN where the noise can come from.")
    return entropy


@dataclasses.dataclass(frozen=True, eq=False)
class ScorePredictor(NoisePredictor):
    """A score with its noise, as a model that `infodis.score` and `log_ratio` take. They estimate its `dse_nll`.

    >>> from infodis.noise.process import Uniform
    >>> from infodis.oracle import MarkovChain
    >>> chain, process = MarkovChain.random(order=1, vocab_size=3), Uniform(3)
    >>> model = ScorePredictor(NoisyOracle(chain, process), Noise(process))
    >>> import infodis
    >>> ratio = infodis.log_ratio(model, [0, 1, 2, 0, 1], [0, 1, 2, 2, 1])
    >>> exact = chain.log_prob([0, 1, 2, 0, 1]) - chain.log_prob([0, 1, 2, 2, 1])
    >>> abs(ratio.value - exact) < 5 * ratio.standard_error
    True
    """

    score: ConditionalScore
    noise: Noise
    tokens_at_once: int = 2**12
    pads: bool = dataclasses.field(default=False, init=False)
    vocab_size: int = dataclasses.field(init=False)
    mask_token: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocab_size", self.noise.process.vocab_size)
        object.__setattr__(self, "mask_token", self.noise.process.vocab_size)

    @torch.no_grad()
    def entropies(self, rows: NoisedRows) -> Float64[Tensor, " wanted"]:
        found = torch.zeros(rows.tokens.shape, dtype=torch.float64)
        patterns, number = rows.wanted.unique(dim=0, return_inverse=True)
        for place, where in enumerate(patterns):  # a score is told what is clean, for all of its rows
            some = (number == place).nonzero().squeeze(1)
            entropy = score_entropies(
                self.score, self.noise.process, rows.noised[some], rows.tokens[some], rows.totals[some], where
            )
            found[some.unsqueeze(-1), where.nonzero().squeeze(1)] = entropy
        return found[rows.wanted]
