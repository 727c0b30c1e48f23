"""Validation likelihood for training loops of your own, with its error, on fixed masks.

from infodis.train.validation import validation_nll
print(validation_nll(model, texts, tokenizer=tokenizer))       # nats per token, such as 2.713 ± 0.021
"""

from typing import Any

from torch import nn

from infodis.auto import Auto
from infodis.control import Neighbours
from infodis.design import Tiled
from infodis.estimate import Request, estimate_items
from infodis.item import Item, Tokens, read_items
from infodis.models.loading import load
from infodis.models.model import Model
from infodis.noise.design import noise_of
from infodis.result import Measured, sum_errors


def validation_nll(
    model: nn.Module | Model,
    texts: Tokens,
    *,
    tokenizer: Any = None,
    mask_token: int | None = None,
    evaluations: int = 32,
    seed: int = 0,
) -> Measured:
    """The negative ELBO of some texts in nats per token, with the standard error that the masks leave.

    The same texts and seed meet the same masks at every call, so that two calls differ by what the model has learned.
    The model stays in the mode and on the device that it is in.

    Args:
        model: a model of transformers, a torch module from token ids to logits, or what `infodis.load` returns.
        texts: texts or sequences of token ids.
        tokenizer, mask_token: as for `infodis.load`, where the model does not know them.
        evaluations: forward passes to spend on each text.
        seed: of the masks.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Embedding(28, 8), torch.nn.Linear(8, 27))
    >>> _ = [torch.nn.init.zeros_(parameter) for parameter in net.parameters()]  # all tokens are alike to it
    >>> round(validation_nll(net, ["some text", "more text"], tokenizer="text8", mask_token=27).value, 4)  # log 27
    3.2958
    """
    given = {"tokenizer": tokenizer, "mask_token": mask_token}
    wrapped = load(model, **{name: one for name, one in given.items() if one is not None})
    items, _ = read_items(wrapped, texts)
    return items_nll(wrapped, items, evaluations=evaluations, seed=seed)


def items_nll(model: Model, items: list[Item], *, evaluations: int, seed: int) -> Measured:
    """The same for what was read. `Tiled`, not `Auto`: what a pilot chooses would change with the weights.

    Of a model of noise it is the `dse_nll`, whose noise is drawn without a pilot.
    """
    request = Request(Auto() if noise_of(model) is not None else Tiled(), Neighbours(), evaluations)
    names = list(range(len(items)))  # equal texts must not share their masks
    found = estimate_items(model, items, request, seed=seed, names=names)
    tokens = sum(item.target.numel() for item in items)
    nats, error = sum(one.value for one in found), sum_errors([one.standard_error for one in found])
    return Measured(nats / tokens, error / tokens)
