"""Prices from the public list that the package ``genai-prices`` holds (``pip install boundloop[genai-prices]``), as a pinned table.

The list goes with the installed version and is never fetched. What a price depends on beyond its kind of token (how long a prompt is)
is taken at its dearest, so that a limit holds; what the list doesn't know has no price, and a run under a cost limit refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

from ..runtime.errors import DeclarationError
from ..runtime.prices import Price, PriceTable

MODELS_MAX: Final = 1_000
_MICROS: Final = 1_000_000


def public_prices(models: Iterable[str], *, as_of: datetime, provider: str | None = None) -> PriceTable:
    """A table with these models' prices in USD micro-units, as the list has them at that time.

    ``provider``: the list's own name of who serves them (``openai``, ``anthropic``, ``google``), where a name has several; None leaves it to
    the list. Names that it doesn't know are left out. The revision names list, time and provider. Raises ``DeclarationError`` if the
    package isn't installed, for a time without a zone, and for over 1,000 names.
    """
    if as_of.tzinfo is None:
        raise DeclarationError("as_of", "a time with its zone", path="as_of")
    names = list(models)
    if len(names) > MODELS_MAX:
        raise DeclarationError("models", f"at most {MODELS_MAX}", path="models")
    try:
        snapshot: Any = import_module("genai_prices.data_snapshot").get_snapshot()
    except ImportError:
        raise DeclarationError("genai_prices", "pip install boundloop[genai-prices]", path="models") from None
    entries: dict[str, Price] = {}
    for name in names:
        try:
            _, model = snapshot.find_provider_model(name, None, provider, None)
        except LookupError:
            continue
        found = _price(model.get_prices(as_of))
        if found is not None:
            entries[name] = found
    revision = f"genai-prices-{version('genai-prices')}/{as_of.date().isoformat()}"
    return PriceTable(revision=f"{revision}/{provider}" if provider else revision, entries=entries)


def _price(prices: Any) -> Price | None:
    given, made = _dearest(prices.input_mtok), _dearest(prices.output_mtok)
    if given is None or made is None:
        return None
    return Price(input=given, output=made, cached_input=_dearest(prices.cache_read_mtok))


def _dearest(price: Any) -> int | None:
    """Micro-units for a million tokens, rounded up; of a price in tiers the highest."""
    if price is None:
        return None
    found = [price] if isinstance(price, Decimal) else [price.base, *(tier.price for tier in price.tiers)]
    return int((max(found) * _MICROS).to_integral_value(rounding=ROUND_CEILING))
