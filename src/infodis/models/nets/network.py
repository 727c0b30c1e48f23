"""What all networks have in common: features of tokens, and a last layer that makes logits of them."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from infodis.models.nets.products import linear

Tokens = Int[Tensor, "rows length"]
Places = Bool[Tensor, "rows length"]
Features = Float[Tensor, "... width"]

ROWS_AT_ONCE, COLUMNS_AT_ONCE = 512, 2048
"""How much of features x vocabulary is in memory at a time: small enough for the processor's cache."""

LOGITS_AT_ONCE = 2**24
"""Where whole distributions are looked at."""


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
        block_size: of the blocks that it was trained with, if it knows: see `BlockNetwork`. 0 is none.
        causal: `features` takes clean tokens, and is at each position about the token there given those before it.
        resumes: it can read a clean text piece by piece: see `CleanEncoder`.
    """

    vocab_size: int
    mask_token: int
    tokens: int
    pads: bool = True
    first_predicted: int = 0
    block_size: int = 0
    causal: bool = False
    resumes: bool = False

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        """What the last layer needs: at all positions, or in one long row `at` some. Padding is not `visible`."""
        raise NotImplementedError

    def inputs(self, tokens: Tokens) -> Tokens:
        """What a causal network reads: what comes out at its position n is about position n + first_predicted."""
        return tokens

    def normalised(self, x: Features) -> Features:
        """What lies between the last of the layers and the one that makes logits, unless the features have it."""
        return x

    def last_layer(self) -> nn.Linear:
        """Features to logits."""
        raise NotImplementedError

    def logits(self, features: Features) -> Float[Tensor, "... vocab"]:
        """Up to a constant, log p of every token."""
        layer = self.last_layer()
        return self.excluding(layer(features.to(layer.weight.dtype))[..., : self.vocab_size])  # autocast may lower it

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

    def _logits_at(self, tokens: Tokens, masked: Places) -> Float[Tensor, "places vocab"]:
        shown = tokens if self.causal else torch.where(masked, self.mask_token, tokens)
        return self.logits(self.features(shown, at=masked)).float()

    def token_nll(
        self, features: Float[Tensor, "places width"], tokens: Int[Tensor, " places"]
    ) -> Float[Tensor, " places"]:
        """-log p of one token for each row of features, block by block: places x vocabulary is never in memory.

        With gradients if they are asked for; then a block of places is computed again in the backward pass.
        """
        parts = list(zip(features.split(ROWS_AT_ONCE), tokens.split(ROWS_AT_ONCE), strict=True))
        again = len(parts) > 1 and torch.is_grad_enabled()
        each = functools.partial(checkpoint, self._token_nll, use_reentrant=False) if again else self._token_nll
        found = [each(*part) for part in parts]
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
            block = linear(features, layer.weight[start:stop], bias).float()
            if start <= self.mask_token < stop:
                block[:, self.mask_token - start] = -torch.inf
            here = ((tokens >= start) & (tokens < stop)).nonzero().squeeze(1)
            own[here] = block[here, tokens[here] - start]
            total = torch.logaddexp(total, _log_sum_exp(block))
        return total - own

    @torch.no_grad()
    def token_certainty(
        self,
        features: Float[Tensor, "places width"],
        tokens: Int[Tensor, " places"],
        certainty: Callable[[Tensor], Tensor],
    ) -> tuple[Float[Tensor, " places"], Float[Tensor, " places"]]:
        """-log p of one token for each row of features, and `certainty` of all log-probabilities; a few at a time."""
        found = torch.zeros(2, len(tokens), device=features.device)
        some = max(1, LOGITS_AT_ONCE // self.vocab_size)
        for start in range(0, len(tokens), some):
            part = slice(start, start + some)
            log_conditionals = F.log_softmax(self.logits(features[part]).float(), dim=-1)
            found[0, part] = -log_conditionals.gather(1, tokens[part].unsqueeze(1)).squeeze(1)
            found[1, part] = certainty(log_conditionals)
        return found[0], found[1]


class NoiseNetwork(Network):
    """A network that is told how much noise there is, and knows scores at any."""

    def noised_features(
        self,
        tokens: Tokens,
        totals: Float[Tensor, " rows"],
        *,
        visible: Places | None = None,
        at: Places | None = None,
    ) -> Features:
        """What the last layer needs about rows that were noised by so much."""
        raise NotImplementedError

    def log_scores(
        self,
        features: Float[Tensor, "places width"],
        noised: Int[Tensor, " places"],
        totals: Float64[Tensor, " places"],
    ) -> Float[Tensor, "places states"]:
        """Log p_t(y) / p_t(x) of every state y, at places whose token is x after so much noise."""
        raise NotImplementedError


def _scatter(found: Float[Tensor, " places"], masked: Places) -> Float[Tensor, "rows length"]:
    """One number for each masked position, 0 elsewhere."""
    return torch.zeros(masked.shape, dtype=found.dtype, device=found.device).index_put((masked,), found)


def _log_sum_exp(block: Float[Tensor, "places columns"]) -> Float[Tensor, " places"]:
    """In place unless there are gradients: the block is not needed any more, and copies would be most of the memory."""
    largest = block.detach().amax(-1).clamp(min=torch.finfo(block.dtype).min)
    if block.requires_grad:
        return (block - largest.unsqueeze(-1)).exp().sum(-1).log() + largest
    return block.sub_(largest.unsqueeze(-1)).exp_().sum(-1).log() + largest
