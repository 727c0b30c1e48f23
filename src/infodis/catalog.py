"""Quantities by name: what `infodis.score` and `infodis score` can measure. One home, for Python and commands."""

from typing import Any

from infodis.errors import InputError
from infodis.noise.design import noise_of
from infodis.quantities.orders import OrderNll
from infodis.quantities.pseudo import Pll, PllWithinWords
from infodis.quantities.quantity import DseNll, Nll, Quantity
from infodis.reveal import rule_named

NAMED: dict[str, Quantity] = {
    quantity.name: quantity for quantity in (Nll(), DseNll(), OrderNll(), Pll(), PllWithinWords())
}
"""Quantities as the command line calls them, with their defaults."""


def quantity_named(name: str) -> Quantity:
    """The quantity of that name, with its defaults.

    >>> quantity_named("pll-within-words").name
    'pll_within_words'
    """
    found = NAMED.get(name.replace("-", "_"))
    if found is None:
        raise InputError(f"A quantity is one of {', '.join(NAMED)}; got {name!r}.")
    return found


def as_quantity(wanted: Any, order: str | None = None) -> Quantity | None:
    """A quantity by its name or as a value; None where it is left to the model. `order` is the rule of `order_nll`."""
    if order is not None:
        if wanted not in (None, OrderNll.name):
            raise InputError(
                f"An order is a part of order_nll, got {order!r} with the quantity {wanted!r}. Leave one out."
            )
        return OrderNll(rule_named(order))
    if wanted is None or isinstance(wanted, Quantity):
        return wanted
    if not isinstance(wanted, str):
        raise InputError(f"A quantity must be a name ({', '.join(NAMED)}) or a value like Pll(), got {wanted!r}.")
    return quantity_named(wanted)


def quantity_for(predictor: Any, wanted: Quantity | None) -> Quantity:
    """What is measured under a predictor: what was asked for, or else what it is made for."""
    if wanted is not None:
        return wanted
    return Nll() if noise_of(predictor) is None else DseNll()
