"""What an adapter declares of its side attempts: further model requests that it may make within one request.

A router that asks a chooser model first is the usual case. What is declared here is pinned, and set aside with every
request of the run, for all of them; an adapter that declares nothing makes none.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import msgspec

from .errors import DeclarationError
from .events import SideReserved
from .limits import CEILING
from .prices import Price, cost_bound

SIDE_ATTEMPTS_MAX: Final = 16
"""How many side attempts an adapter may declare for one request; of those it reports, this many are recorded one by one."""


class SideBounds(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, dict=True
):
    """At most ``attempts_max`` side attempts a request, each with at most so many tokens. ``price``: that of the dearest of
    their models; None for unknown, which a run with a cost limit refuses at its start."""

    attempts_max: int
    input_tokens_max: int
    output_tokens_max: int
    price: Price | None = None

    @cached_property
    def cost_each_micros(self) -> int:
        """What one of them costs at most; 0 where nobody knows a price."""
        return (
            0 if self.price is None else cost_bound(self.price, self.input_tokens_max, self.output_tokens_max)
        )

    @cached_property
    def reserved(self) -> SideReserved:
        """What is set aside with each request."""
        most = self.attempts_max
        return SideReserved(
            most, most * self.input_tokens_max, most * self.output_tokens_max, most * self.cost_each_micros
        )


def side_bounds(
    attempts_max: object, input_tokens_max: object, output_tokens_max: object, price: Price | None
) -> SideBounds | None:
    """The declaration; None for none. Raises ``DeclarationError`` naming the attribute: no count, more than
    ``SIDE_ATTEMPTS_MAX``, or attempts without a bound on their tokens."""
    if _count("side_attempts_max", attempts_max, 0, SIDE_ATTEMPTS_MAX) == 0:
        return None
    return SideBounds(
        attempts_max=_count("side_attempts_max", attempts_max, 1, SIDE_ATTEMPTS_MAX),
        input_tokens_max=_count("side_input_tokens_max", input_tokens_max, 1, CEILING // SIDE_ATTEMPTS_MAX),
        output_tokens_max=_count(
            "side_output_tokens_max", output_tokens_max, 1, CEILING // SIDE_ATTEMPTS_MAX
        ),
        price=price,
    )


def _count(name: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise DeclarationError("side_attempts", f"must be an integer between {least} and {most}", path=name)
    return value
