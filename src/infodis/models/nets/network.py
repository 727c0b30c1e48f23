"""What all networks have in common: features of tokens, and a last layer that makes logits of them."""

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

Tokens = Int[Tensor, "rows length"]
Places = Bool[Tensor, "rows length"]
Features = Float[Tensor, "... width"]

ROWS_AT_ONCE, COLUMNS_AT_ONCE = 512, 2048
"""How much of features x vocabulary is in memory at a time: small enough for the processor's cache."""


@contextlib.contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Without dropout and the like for a while. Every module is then in the mode that it was in."""
    training = [module for module in network.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Network(nn.Module):
    """A predictor whose last layer can be asked about some positions only.

    Attributes:
        vocab_size: columns of the logits that count.
        mask_token: what stands for a hidden token. If it has a column, its probability is zero.
        tokens: columns from this one on only pad the vocabulary; their probability is zero.
        pads: whether `visible` is honoured, so that rows of unequal lengths may share a batch.
        first_predicted: the network says nothing about positions before this one.
    """

    vocab_size: int
    mask_token: int
    tokens: int
    pads: bool = True
    first_predicted: int = 0

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        """What the last layer needs: at all positions, or in one long row `at` some. Padding is not `visible`."""
        raise NotImplementedError

    def last_layer(self) -> nn.Linear:
        """Features to logits."""
        raise NotImplementedError

    def logits(self, features: Features) -> Float[Tensor, "... vocab"]:
        """Up to a constant, log p of every token."""
        return self.excluding(self.last_layer()(features)[..., : self.vocab_size])

    def excluding(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        """Data holds neither the mask nor padding of the vocabulary: their probability is exactly zero."""
        if self.tokens < self.vocab_size:
            logits[..., self.tokens :] = -torch.inf
        if self.mask_token < self.vocab_size:
            logits[..., self.mask_token] = -torch.inf
        return logits

    def log_conditionals(self, tokens: Tokens) -> Float[Tensor, "rows length vocab"]:
        """Log p(x_i = v | visible tokens) for every position."""
        return F.log_softmax(self.logits(self.features(tokens)).float(), dim=-1)

    def surprisal(self, tokens: Tokens, masked: Places) -> Float[Tensor, "rows length"]:
        """-log p of the masked tokens, with gradients. The last layer runs at masked positions only."""
        found = F.cross_entropy(self._logits_at(tokens, masked), tokens[masked], reduction="none")
        return _scatter(found, masked)

    def cross_entropy(
        self, tokens: Tokens, masked: Places, wanted: Float[Tensor, "places vocab"]
    ) -> Float[Tensor, "rows length"]:
        """The mean of -log p over tokens that are distributed as `wanted` at masked positions, with gradients."""
        found = F.log_softmax(self._logits_at(tokens, masked), dim=-1)
        terms = wanted * found.where(wanted > 0, 0.0)  # what never happens costs nothing, even where log p is -inf
        return _scatter(-terms.sum(-1), masked)

    def _logits_at(self, tokens: Tokens, masked: Places) -> Float[Tensor, "places vocab"]:
        return self.logits(self.features(torch.where(masked, self.mask_token, tokens), at=masked)).float()

    @torch.no_grad()
    def token_nll(
        self, features: Float[Tensor, "places width"], tokens: Int[Tensor, " places"]
    ) -> Float[Tensor, " places"]:
        """-log p of one token for each row of features, block by block: places x vocabulary is never in memory."""
        parts = zip(features.split(ROWS_AT_ONCE), tokens.split(ROWS_AT_ONCE), strict=True)
        found = [self._token_nll(*part) for part in parts]
        return torch.cat(found) if found else torch.zeros(0, device=features.device)

    def _token_nll(
        self, features: Float[Tensor, "places width"], tokens: Int[Tensor, " places"]
    ) -> Float[Tensor, " places"]:
        layer = self.last_layer()
        features = features.to(layer.weight.dtype)  # autocast may have lowered it
        total = torch.full((len(tokens),), -torch.inf, device=features.device)
        own = torch.full((len(tokens),), -torch.inf, device=features.device)
        last = min(self.tokens, self.vocab_size)
        for start in range(0, last, COLUMNS_AT_ONCE):
            stop = min(start + COLUMNS_AT_ONCE, last)
            bias = None if layer.bias is None else layer.bias[start:stop]
            block = F.linear(features, layer.weight[start:stop], bias).float()
            if start <= self.mask_token < stop:
                block[:, self.mask_token - start] = -torch.inf
            here = ((tokens >= start) & (tokens < stop)).nonzero().squeeze(1)
            own[here] = block[here, tokens[here] - start]
            total = torch.logaddexp(total, _log_sum_exp(block))
        return total - own


def _scatter(found: Float[Tensor, " places"], masked: Places) -> Float[Tensor, "rows length"]:
    """One number for each masked position, 0 elsewhere."""
    return torch.zeros(masked.shape, dtype=found.dtype, device=found.device).index_put((masked,), found)


def _log_sum_exp(block: Float[Tensor, "places columns"]) -> Float[Tensor, " places"]:
    """In place: the block is not needed any more, and copies of it would be most of what is in memory."""
    largest = block.amax(-1).clamp(min=torch.finfo(block.dtype).min)
    return block.sub_(largest.unsqueeze(-1)).exp_().sum(-1).log() + largest
