"""What all networks have in common: features of tokens, logits of features. Everything else follows."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

Tokens = Int[Tensor, "rows length"]
Places = Bool[Tensor, "rows length"]
Features = Float[Tensor, "... width"]


class Network(nn.Module):
    """A predictor whose last layer can be asked about some positions only.

    Attributes:
        vocab_size: columns of the logits. A token that data cannot contain has a column of -inf.
        mask_token: what stands for a hidden token.
        pads: whether `visible` is honoured, so that rows of unequal lengths may share a batch.
        unpredictable: how many positions at the beginning of a row the network says nothing about.
    """

    vocab_size: int
    mask_token: int
    pads: bool = True
    unpredictable: int = 0

    def features(self, tokens: Tokens, *, visible: Places | None = None, at: Places | None = None) -> Features:
        """What the last layer needs: at all positions, or in one long row `at` some. Padding is not `visible`."""
        raise NotImplementedError

    def logits(self, features: Features) -> Float[Tensor, "... vocab"]:
        """Up to a constant, log p of every token."""
        raise NotImplementedError

    def log_conditionals(self, tokens: Tokens) -> Float[Tensor, "rows length vocab"]:
        """Log p(x_i = v | visible tokens) for every position."""
        return F.log_softmax(self.logits(self.features(tokens)).float(), dim=-1)

    def surprisal(self, tokens: Tokens, masked: Places) -> Float[Tensor, "rows length"]:
        """-log p of the masked tokens. The last layer runs at masked positions only."""
        features = self.features(torch.where(masked, self.mask_token, tokens), at=masked)
        found = F.cross_entropy(self.logits(features).float(), tokens[masked], reduction="none")
        return torch.zeros(masked.shape, dtype=found.dtype, device=found.device).index_put((masked,), found)
