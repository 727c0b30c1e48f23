"""What training minimises: unbiased one-sample estimates of the likelihood, as values.

A denoising cross-entropy (DCE) is a mask design with one row per sequence: the same masks and weights that estimate an
`nll` train a network. A denoising score entropy (DSE) needs scores, and works for uniform noise too. Rows of a batch
take their levels from equal strata of [0, 1): the loss of a batch varies less, and stays unbiased.

All return one number per sequence, in nats.
"""

import abc
import dataclasses
import math
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from infodis.design import MaskDesign, TimeIntegral, UniformCount
from infodis.errors import InputError
from infodis.noise.process import LogScores, PerRow, ScoreFunction
from infodis.noise.schedule import LogLinear, Schedule, log_expm1
from infodis.predictor import Predictor
from infodis.rng import uniforms

Tokens = Int[Tensor, "rows length"]
Noise = Literal["absorbing", "uniform"]


def strata(rows: int, *, generator: torch.Generator) -> PerRow:
    """One uniform number in each of `rows` equal parts of (0, 1): never 0, where weights of losses may be infinite."""
    return ((torch.arange(rows) + uniforms(rows, generator=generator)) / rows).clamp(min=2.0**-60)


@dataclasses.dataclass(frozen=True)
class Loss(abc.ABC):
    """A random number per sequence whose mean is to be minimised.

    Drawing the noise and computing the value are two steps, because they may happen on different devices.
    """

    @abc.abstractmethod
    def draw(self, tokens: Tokens, *, vocab_size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The noise for a batch of tokens on the CPU."""

    @abc.abstractmethod
    def value(self, network: Any, tokens: Tokens, noise: tuple[Tensor, ...]) -> PerRow:
        """The loss of every sequence under that noise."""

    def __call__(self, network: Any, tokens: Tokens, *, generator: torch.Generator) -> PerRow:
        """Draw and compute. `network` is a `Predictor` for cross-entropies, a score network for score entropies.

        Tokens lie where the network computes; noise is drawn on the CPU, and moved there.
        """
        noise = self.draw(tokens.cpu(), vocab_size=network.vocab_size, generator=generator)
        return self.value(network, tokens, tuple(part.to(tokens.device) for part in noise))


@dataclasses.dataclass(frozen=True)
class CrossEntropy(Loss):
    """A loss of predictors: a weighted sum of surprisals of masked tokens."""

    @abc.abstractmethod
    def masks(self, levels: PerRow, keys: Float[Tensor, "rows length"]) -> tuple[Tensor, Tensor]:
        """Masks and weights from uniform numbers: one level per row, one key per token."""

    def levels(self, tokens: Tokens, *, generator: torch.Generator) -> Float[Tensor, " levels"]:
        """Where the uniform numbers for the levels of a batch come from."""
        return strata(len(tokens), generator=generator)

    def draw(self, tokens: Tokens, *, vocab_size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        levels = self.levels(tokens, generator=generator)
        masked, weight = self.masks(levels, uniforms(*tokens.shape, generator=generator))
        return masked, weight.float()

    def value(self, network: Any, tokens: Tokens, noise: tuple[Tensor, ...]) -> PerRow:
        masked, weight = noise
        return (weight * network.surprisal(tokens, masked)).sum(-1)


@dataclasses.dataclass(frozen=True)
class DesignDCE(CrossEntropy):
    """Any mask design with one row per sequence: `TimeIntegral` is lambda-DCE, `UniformCount` is k-DCE."""

    design: MaskDesign = UniformCount()

    def masks(self, levels: PerRow, keys: Float[Tensor, "rows length"]) -> tuple[Tensor, Tensor]:
        masked, weight = self.design.masks(levels.unsqueeze(-1), keys.unsqueeze(1))
        return masked[:, 0], weight[:, 0]


LAMBDA_DCE = DesignDCE(TimeIntegral())
K_DCE = DesignDCE(UniformCount())


@dataclasses.dataclass(frozen=True)
class BlockDCE(CrossEntropy):
    """Another cross-entropy in every block of `size` tokens by itself: what block diffusion minimises.

    Each block has a level of its own. Those of a batch are one in each of as many strata, dealt out at random: so the
    loss of a sequence is unbiased, and one of k-DCE has its `nll` as mean. A block of one token is always masked, and
    counts once: the loss of a causal network.
    """

    inner: CrossEntropy = K_DCE
    size: int = 4

    def levels(self, tokens: Tokens, *, generator: torch.Generator) -> Float[Tensor, " levels"]:
        if tokens.shape[1] % self.size:
            raise InputError(
                f"A window must hold whole blocks of {self.size} tokens, got {tokens.shape[1]}. Set model.length to a "
                "multiple of model.block_size."
            )
        found = strata(tokens.numel() // self.size, generator=generator)
        return found[torch.randperm(len(found), generator=generator)]

    def masks(self, levels: Float[Tensor, " levels"], keys: Float[Tensor, "rows length"]) -> tuple[Tensor, Tensor]:
        masked, weight = self.inner.masks(levels, keys.reshape(-1, self.size))
        return masked.view(keys.shape), weight.view(keys.shape)


@dataclasses.dataclass(frozen=True)
class FlatDCE(CrossEntropy):
    """Every masked token counts the same, and at most a share `top` of a sequence is masked: BERT's, at random rates.

    Not an estimate of the likelihood, but its optimum is the same conditionals, and it has less noise: a good first
    stage, where a network still has to find out that neighbours matter.
    """

    top: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.top <= 1:
            raise InputError(f"FlatDCE masks up to a share between 0 and 1, got {self.top}.")

    def masks(self, levels: PerRow, keys: Float[Tensor, "rows length"]) -> tuple[Tensor, Tensor]:
        share = max(1, math.floor(self.top * keys.shape[1])) / keys.shape[1]  # sizes 1 .. share x length, all as likely
        masked, _ = K_DCE.masks(share * levels, keys)
        return masked, masked * (2 / share)


@dataclasses.dataclass(frozen=True)
class TimeDCE(CrossEntropy):
    """t-DCE: time uniform, weight sigma(t) (1 - lambda) / lambda [eq:t-dce]. LambdaDCE with levels where time is spent.

    Covers levels from that of t = 0 to that of t = 1 only; what is left out is the terminal term of the identity.
    """

    schedule: Schedule = LogLinear()

    def masks(self, levels: PerRow, keys: Float[Tensor, "rows length"]) -> tuple[Tensor, Tensor]:
        level = self.schedule.level(levels)
        masked = keys < level.unsqueeze(-1)
        return masked, masked * (self.schedule.rate(levels) * (1 - level) / level).unsqueeze(-1)


@dataclasses.dataclass(frozen=True)
class ScoreEntropy(Loss):
    """t-DSE, a loss of score networks: time uniform, score entropy of the noised sequence times sigma(t) [eq:t-dse]."""

    schedule: Schedule = LogLinear()
    noise: Noise = "absorbing"

    def draw(self, tokens: Tokens, *, vocab_size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        t = strata(len(tokens), generator=generator)
        total, rate = self.schedule.total(t), self.schedule.rate(t)
        noised = add_noise(tokens, total, vocab_size=vocab_size, noise=self.noise, generator=generator)
        return noised, total.float(), rate.float()

    def value(self, network: Any, tokens: Tokens, noise: tuple[Tensor, ...]) -> PerRow:
        noised, total, rate = noise
        scores = network(noised, total)
        entropy = score_entropy(scores, noised, tokens, total, vocab_size=network.vocab_size, noise=self.noise)
        return rate * entropy.sum(-1)


def add_noise(tokens: Tokens, total: PerRow, *, vocab_size: int, noise: Noise, generator: torch.Generator) -> Tokens:
    """Hit each token with probability 1 - exp(-total): mask it, or replace it by a uniformly drawn one."""
    hit = uniforms(*tokens.shape, generator=generator) < -torch.expm1(-total).unsqueeze(-1)
    if noise == "absorbing":
        return torch.where(hit, vocab_size, tokens)
    return torch.where(hit, torch.randint(vocab_size, tokens.shape, generator=generator), tokens)


def score_entropy(
    log_scores: LogScores, noised: Tokens, tokens: Tokens, total: PerRow, *, vocab_size: int, noise: Noise
) -> Float[Tensor, "rows length"]:
    """Sum over y of q(y) [s_y - r_y log s_y + r_y (log r_y - 1)], r_y = p_t(y|x_0) / p_t(x|x_0) [eq:score-entropy].

    q is the rate of jumps from y to x: 1 from a clean token to the mask, 1 / vocab_size between any two if uniform.
    """
    scores = log_scores[..., :vocab_size].to(torch.promote_types(log_scores.dtype, torch.float32))
    if noise == "absorbing":
        inverse = 1 / torch.expm1(total).to(scores).unsqueeze(-1)
        true = scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        found = scores.exp().sum(-1) - inverse * true + inverse * (inverse.log() - 1)
        return torch.where(noised == vocab_size, found, 0.0)
    if noise != "uniform":
        raise InputError(f"noise must be absorbing or uniform, got {noise!r}.")
    ratio = _uniform_ratio(noised, tokens, total.to(scores), vocab_size)
    each = scores.exp() - ratio * scores + ratio * (ratio.log() - 1)
    return each.scatter(-1, noised.unsqueeze(-1), 0.0).sum(-1) / vocab_size


def _uniform_ratio(noised: Tokens, tokens: Tokens, total: PerRow, vocab_size: int) -> LogScores:
    """p_t(y | x_0) / p_t(x | x_0) for every y, under uniform noise."""
    moved = (-torch.expm1(-total) / vocab_size)[:, None, None]
    stayed = moved + torch.exp(-total)[:, None, None]
    columns = torch.arange(vocab_size, device=tokens.device)
    likelihood = torch.where(columns == tokens.unsqueeze(-1), stayed, moved)
    return likelihood / likelihood.gather(-1, noised.unsqueeze(-1))


def scores_from_predictor(predictor: Predictor) -> ScoreFunction:
    """Absorbing scores from conditionals: log s_y = log p(y | visible) - log(exp(sigma) - 1) [eq:score-conditional]."""

    def scores(tokens: Tokens, sigma: PerRow) -> LogScores:
        conditionals = predictor.log_conditionals(tokens)
        return conditionals - log_expm1(sigma).to(conditionals)[:, None, None]

    return scores


LOSSES = ("k-dce", "lambda-dce", "t-dce", "flat-dce", "t-dse")


def loss_named(name: str, *, schedule: Schedule = LogLinear(), noise: Noise = "absorbing", top: float = 1.0) -> Loss:
    """The loss that a configuration file names."""
    losses: dict[str, Loss] = {
        "k-dce": K_DCE,
        "lambda-dce": LAMBDA_DCE,
        "t-dce": TimeDCE(schedule),
        "flat-dce": FlatDCE(top),
        "t-dse": ScoreEntropy(schedule, noise),
    }
    if name not in losses:
        raise InputError(f"A loss is one of {', '.join(LOSSES)}; got {name!r}.")
    return losses[name]
