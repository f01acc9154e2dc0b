"""The shipped writer of one run's log, under the name that tests know."""

from __future__ import annotations

from boundloop.eventstore.testkit.log_writer import (
    ENDED,
    OPEN,
    LogWriter,
    an_event,
    begin,
    claim,
    effect,
    settlement,
    waiting,
)

__all__ = ["ENDED", "OPEN", "LogWriter", "an_event", "begin", "claim", "effect", "settlement", "waiting"]
