"""Pseudo-log-likelihoods: every token given all others. They are no likelihood of anything.

Tokens that give each other away look free of charge: each is asked about while the other is visible.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from infodis.blocks import check_sees_all
from infodis.errors import InputError
from infodis.estimate import Request
from infodis.item import Item
from infodis.quantities.quantity import TokenSum
from infodis.result import Estimate


@dataclasses.dataclass(frozen=True)
class Pll(TokenSum):
    """The pseudo-log-likelihood, as a cost [eq:pll]: the sum of -log p(token | all other tokens), in nats.

    Salazar, Liang, Nguyen and Kirchhoff, *Masked Language Model Scoring*, 2020, report its negative.

    >>> import infodis
    >>> infodis.score("text8-tiny", "paris", quantity="pll")[0].evaluations
    5
    """

    name = "pll"
    pseudo = True

    def measure(
        self, predictor: Any, items: Sequence[Item], request: Request, *, seed: int, names: Sequence[int] | None = None
    ) -> list[Estimate]:
        check_sees_all(predictor, self.name)
        return super().measure(predictor, items, request, seed=seed, names=names)

    def masks(self, item: Item) -> Bool[Tensor, "target target"]:
        return torch.eye(item.target.numel(), dtype=torch.bool)


@dataclasses.dataclass(frozen=True)
class PllWithinWords(TokenSum):
    """The same with the later pieces of the token's own word hidden too [eq:pll-within-words].

    Pieces of a word give each other away: "souvenir" in three pieces looks cheaper than a word of one. Kauf and
    Ivanova, *A Better Way to Do Masked Language Model Scoring*, 2023: PLL-word-l2r.
    """

    name = "pll_within_words"
    pseudo = True

    def measure(
        self, predictor: Any, items: Sequence[Item], request: Request, *, seed: int, names: Sequence[int] | None = None
    ) -> list[Estimate]:
        check_sees_all(predictor, self.name)
        return super().measure(predictor, items, request, seed=seed, names=names)

    def masks(self, item: Item) -> Bool[Tensor, "target target"]:
        if item.words is None:
            raise InputError(
                "pll_within_words must know which tokens are pieces of one word, which a tokenizer says of a text. "
                "This row came as token ids, or its tokenizer does not say it. Give text, or ask for pll."
            )
        same = item.words.unsqueeze(1) == item.words
        return same.triu()
