"""What a tool's code is given besides its arguments: declared dependencies and the terms of this attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any


class CancelToken:
    """Set once, from any thread, when the attempt should stop. A sync tool that never looks can't be stopped here."""

    __slots__ = ("_event", "_set")

    def __init__(self) -> None:
        self._set = False
        # Made by the first who waits: most attempts end before anyone does.
        self._event: threading.Event | None = None

    def set(self) -> None:
        """Ask the attempt to stop."""
        with _making:
            self._set = True
            if self._event is not None:
                self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether the attempt was asked to stop."""
        return self._set

    def wait(self, timeout_s: float) -> bool:
        """Block a sync tool until asked to stop or the time is over; True if asked."""
        with _making:
            if self._set:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(timeout_s)


_making = threading.Lock()


class ToolContext:
    """The ``ctx`` of a tool: who acts, under which key, until when. Holds nothing of the conversation.

    ``key`` is the idempotency key as hex (empty for reads): pass it to the far side. ``attempt`` counts from 1.
    ``as_of``: the snapshot instant or version that the run was started with; empty if none. ``same_version``: the version that
    the tool's group of reads has read so far, and must read again; empty for the first. ``resource_version``: what
    ``version_of`` said when a person was asked, to pass to the far side as the condition of the effect; else empty.
    """

    __slots__ = (
        "_spent_micros",
        "_valid_until",
        "as_of",
        "attempt",
        "call_id",
        "cancel",
        "dependencies",
        "key",
        "operation_id",
        "principal",
        "resource_version",
        "run_id",
        "same_version",
        "tenant",
    )

    def __init__(
        self,
        *,
        run_id: str,
        call_id: str,
        attempt: int,
        operation_id: str,
        tenant: str,
        principal: str,
        key: str,
        valid_ms: int,
        dependencies: Mapping[str, Any],
        as_of: str = "",
        same_version: str = "",
        resource_version: str = "",
    ) -> None:
        self.run_id = run_id
        self.call_id = call_id
        self.attempt = attempt
        self.operation_id = operation_id
        self.tenant = tenant
        self.principal = principal
        self.key = key
        self._spent_micros: int | None = None
        self.as_of = as_of
        self.same_version = same_version
        self.resource_version = resource_version
        self.cancel = CancelToken()
        self.dependencies = dependencies
        self._valid_until = time.monotonic() + valid_ms / 1_000

    @property
    def remaining_s(self) -> float:
        """Seconds that this attempt has left, by this process's monotonic clock; never below 0."""
        return max(0.0, self._valid_until - time.monotonic())

    def spent(self, micros: int) -> None:
        """Say what this attempt has cost beside what was said before, in micro-units of the run's currency. The sum settles what
        was set aside for it, above or below. Raises ``ValueError`` for less than nothing and for what is no int."""
        if type(micros) is not int or micros < 0:
            raise ValueError("a cost is a whole number of micro-units, not below 0")
        self._spent_micros = (self._spent_micros or 0) + micros

    @property
    def spent_micros(self) -> int | None:
        """What was said so far; None if nothing was."""
        return self._spent_micros


def set_validity(context: ToolContext, ms: int) -> None:
    """What its attempt has left, from now on. For whoever runs it, and none of the tool's affair: it puts nothing off."""
    context._valid_until = time.monotonic() + ms / 1_000  # pyright: ignore[reportPrivateUsage]  # a method would be the tools' too
