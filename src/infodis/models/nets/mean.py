"""Networks of the mean parametrisation (UDLM, Duo, GIDD): SEDD's layers, told the noise, about clean tokens."""

import dataclasses

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor

from infodis.models.nets.network import Features, Places, Tokens
from infodis.models.nets.sedd import SEDD
from infodis.models.nets.transformer import NetworkShape
from infodis.noise.process import Hybrid, Interpolating


@dataclasses.dataclass(frozen=True)
class TimeInput:
    """What a network is told about the noise: nothing, the total noise, or the time t; of no more than it has seen."""

    kind: str
    until: float

    def of(self, process: Interpolating, totals: Float[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        known = totals.clamp(max=self.until)
        if self.kind == "none":
            return torch.zeros_like(totals)
        if self.kind == "time" and isinstance(process, Hybrid):
            return process.time(known.cpu().double()).float().to(totals.device)
        return known


class MeanNetwork(SEDD):
    """A distribution of the clean token at every place, from all noised tokens: scores by way of it [eq:score-mean].

    It has a column for every state of the process; that of the mask is left out, since no clean token is one.
    """

    def __init__(self, process: Interpolating, shape: NetworkShape, time: TimeInput) -> None:
        masked = process.states > process.vocab_size
        super().__init__(process.vocab_size, shape, noise="absorbing" if masked else "uniform", scaled=False)
        self.process, self.time = process, time

    def noised_features(
        self,
        tokens: Tokens,
        totals: Float[Tensor, " rows"],
        *,
        visible: Places | None = None,
        at: Places | None = None,
    ) -> Features:
        return super().noised_features(tokens, self.time.of(self.process, totals), visible=visible, at=at)

    def log_mean(self, features: Float[Tensor, "places width"]) -> Float[Tensor, "places vocab"]:
        """Log p(x_0 = v) of every token v."""
        layer = self.last_layer()
        return F.log_softmax(layer(features.to(layer.weight.dtype))[..., : self.vocab_size].float(), dim=-1)

    def log_scores(
        self,
        features: Float[Tensor, "places width"],
        noised: Int[Tensor, " places"],
        totals: Float64[Tensor, " places"],
    ) -> Float[Tensor, "places states"]:
        found = self.process.scores_of_mean(self.log_mean(features).unsqueeze(1), noised.unsqueeze(1), totals)
        return found.squeeze(1)
