"""What an adapter declares of its side attempts, read from its optional attributes.

``side_attempts_max`` (0 where it is missing), and with it ``side_input_tokens_max`` and ``side_output_tokens_max`` of each, and
``side_price``; without a price of its own the table's entry for ``side_model`` counts.
"""

from __future__ import annotations

from ..runtime.errors import DeclarationError
from ..runtime.prices import Price, PriceTable
from ..runtime.side_bounds import SideBounds, side_bounds
from .port import ModelAdapter


def declared_side(adapter: ModelAdapter, prices: PriceTable) -> SideBounds | None:
    """The declaration with its price; None for none. Raises ``DeclarationError`` for one that says nothing sensible."""
    attempts_max: object = getattr(adapter, "side_attempts_max", 0)
    if type(attempts_max) is int and attempts_max == 0:
        return None
    price: object = getattr(adapter, "side_price", None)
    if price is None:
        model: object = getattr(adapter, "side_model", "")
        price = prices.price(model) if isinstance(model, str) and model else None
    if price is not None and not isinstance(price, Price):
        raise DeclarationError("side_attempts", "must be a Price", path="side_price")
    return side_bounds(
        attempts_max,
        getattr(adapter, "side_input_tokens_max", 0),
        getattr(adapter, "side_output_tokens_max", 0),
        price,
    )
