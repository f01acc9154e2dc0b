"""Times that a person types."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any, Final

import click

_SPAN_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_is_span = re.compile(r"(\d{1,9})([smhd])", re.ASCII).fullmatch


class Moment(click.ParamType[int]):
    """A time in Unix milliseconds: a date or a time of ISO 8601, in UTC unless it says otherwise, or how long ago, as 90m, 24h
    or 7d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        ago = _is_span(text)
        if ago is not None:
            return max(0, int(time.time() * 1_000) - int(ago[1]) * _SPAN_MS[ago[2]])
        try:
            at = datetime.fromisoformat(text)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
            return int(at.timestamp() * 1_000)
        except (ValueError, OverflowError):
            self.fail("a time such as 2026-01-31, 2026-01-31T12:00:00Z, 90m, 24h or 7d (ago)", param, ctx)


MOMENT: Final = Moment()
