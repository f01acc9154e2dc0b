"""The pinned price table: cost in integer micro-units, with the revision that priced it.

A run pins the revision and its model's entry at the start, so a later table never changes what an old log says. A
model without a price has cost "unknown", never zero: with a cost limit such a run is refused at the start.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from .model import Usage


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Micro-units for a million tokens. Cached input tokens cost ``cached_input`` instead of ``input``."""

    input: int
    output: int
    cached_input: int | None = None


class PriceTable(msgspec.Struct, frozen=True, kw_only=True):
    """A revision and its entries by model name. Names match exactly; nothing is guessed from a prefix."""

    revision: str
    currency: str = "USD"
    entries: Mapping[str, Price] = {}

    def price(self, model: str) -> Price | None:
        """The entry, or None for unknown."""
        return self.entries.get(model)


PER_MILLION = 1_000_000


def cost_bound(price: Price, input_tokens: int, output_tokens: int) -> int:
    """Upper bound of a request's cost in micro-units, rounded up; cached input is not assumed."""
    dearest_input = max(price.input, price.cached_input or 0)
    return -((-input_tokens * dearest_input - output_tokens * price.output) // PER_MILLION)


def cost_of(price: Price, usage: Usage) -> int | None:
    """Cost of reported usage in micro-units, rounded up; None if a count is unknown."""
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    cached = min(usage.cached_input_tokens, usage.input_tokens) if price.cached_input is not None else 0
    plain = usage.input_tokens - cached
    total = plain * price.input + cached * (price.cached_input or 0) + usage.output_tokens * price.output
    return -(-total // PER_MILLION)


FREE = Price(input=0, output=0)
"""For models that cost nothing by declaration (local, scripted). Declared, not assumed."""
