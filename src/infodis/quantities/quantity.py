"""What can be measured about a text, as a value: `infodis.score(..., quantity=...)` and `infodis score --quantity`.

A `Quantity` turns items into estimates. `infodis.catalog` has those that can be asked for by name.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from infodis.errors import InputError
from infodis.estimate import CHUNK, WINDOW, Request, check_masks, estimate_items
from infodis.evaluate import Batching, Coroutine, ItemBatch, run_batched
from infodis.item import Item, check_items
from infodis.noise.design import noise_of
from infodis.predictor import Predictor
from infodis.result import Estimate


@dataclasses.dataclass(frozen=True)
class Quantity(abc.ABC):
    """A number of nats for every item, with its error."""

    name: ClassVar[str]
    """As `Estimate.quantity` and the field `quantity` of records have it."""
    pseudo: ClassVar[bool] = False
    """Whether the exponential of the nats per token is a pseudo-perplexity: the number is no likelihood."""

    @abc.abstractmethod
    def measure(
        self, predictor: Any, items: Sequence[Item], request: Request, *, seed: int, names: Sequence[int] | None = None
    ) -> list[Estimate]:
        """Estimate many items; `names` are their names in the random streams (by default their content)."""

    def check_request(self, request: Request) -> None:
        """Raise `InputError` for a request that this quantity cannot honour, before any item is looked at."""
        request.check_budget()

    def passes(self, request: Request, tokens: int) -> float:
        """Forward passes for a target of so many tokens, about."""
        return float(request.first_rows(tokens))


@dataclasses.dataclass(frozen=True)
class Nll(Quantity):
    """The mask average [eq:nll]: what `infodis.nll` estimates."""

    name = "nll"

    def measure(
        self, predictor: Any, items: Sequence[Item], request: Request, *, seed: int, names: Sequence[int] | None = None
    ) -> list[Estimate]:
        check_masks(predictor)
        return estimate_items(predictor, items, request, seed=seed, names=names)


@dataclasses.dataclass(frozen=True)
class DseNll(Quantity):
    """The time integral of the score entropy [eq:i-mdse], of models of uniform or mixed noise: what they are made for.

    >>> from infodis.noise.design import Noise
    >>> from infodis.noise.scores import NoisyOracle, ScorePredictor
    >>> from infodis.noise.process import Uniform
    >>> from infodis.oracle import MarkovChain
    >>> import infodis
    >>> noise = Noise(Uniform(3))
    >>> model = ScorePredictor(NoisyOracle(MarkovChain.random(order=1, vocab_size=3), noise.process), noise)
    >>> infodis.score(model, [[0, 1, 2, 0]])[0].quantity
    'dse_nll'
    """

    name = "dse_nll"

    def measure(
        self, predictor: Any, items: Sequence[Item], request: Request, *, seed: int, names: Sequence[int] | None = None
    ) -> list[Estimate]:
        if noise_of(predictor) is None:
            raise InputError(
                "dse_nll is about noise on tokens, got a model that predicts masked tokens. Ask for nll: under masking "
                "the two are the same number."
            )
        return estimate_items(predictor, items, request, seed=seed, names=names)


def check_exact(name: str, request: Request) -> None:
    """Raise `InputError` if options about precision were given for a quantity that is exact."""
    if dataclasses.replace(request, batch_size=None) != Request():
        raise InputError(
            f"{name} is exact and takes one forward pass a token: evaluations, standard_error, relative, design and "
            "control say nothing about it. Leave them out."
        )


@dataclasses.dataclass(frozen=True)
class TokenSum(Quantity):
    """A sum of the surprisal of every target token, each in a row of its own: exact, one forward pass a token."""

    @abc.abstractmethod
    def masks(self, item: Item) -> Bool[Tensor, "target target"]:
        """For every target token the target tokens that are hidden when it is asked about; itself among them."""

    def measure(
        self, predictor: Any, items: Sequence[Item], request: Request, *, seed: int, names: Sequence[int] | None = None
    ) -> list[Estimate]:
        check_items(predictor, items)
        largest = max(min(item.target.numel() ** 2, CHUNK) for item in items)
        batching = Batching(request.batch_size, together=max(1, WINDOW // largest))
        return list(run_batched((self._estimate(predictor, item) for item in items), batching))

    def check_request(self, request: Request) -> None:
        check_exact(self.name, request)

    def passes(self, request: Request, tokens: int) -> float:
        return float(tokens)

    def _estimate(self, predictor: Predictor, item: Item) -> Coroutine[Estimate]:
        batch, masks = ItemBatch.of(predictor, [item]), self.masks(item)
        credits = []
        for rows in torch.arange(len(masks)).split(max(1, CHUNK // len(masks))):
            found = yield from batch.surprisals(torch.zeros_like(rows), masks[rows])
            credits.append(found.gather(1, rows.unsqueeze(1)).squeeze(1))
        per_token = torch.cat(credits)
        return Estimate(
            quantity=self.name,
            replicates=per_token.sum().reshape(1),
            evaluations=len(masks),
            seed=0,
            stopped="exact",
            per_token=per_token,
            per_token_error=torch.zeros_like(per_token),
            target=item.target,
            design="one token at a time",
            control=None,
            identity=(item.key, str(self)),
            seeds=frozenset(),
        )
