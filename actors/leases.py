"""A host's leases of places: taken for a call, kept for the next one for a moment if nobody else waits.

A kept lease is used again only while its validity covers the next call's, so the broker always knows by when a call is
over; and not for long, so that whoever has come to wait meanwhile gets a turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from itertools import count
from typing import Any, Final

from .lines import Line, LineDown, Lines
from .places import VALID_MS_MAX, Kind, LossCause, Places, RefusalCode, Refused, Want

KEPT_IDLE_S: Final = 0.05
KEPT_EXTRA_MS: Final = 250
"""How much longer than its first call a lease is asked for: so long may calls of the same length follow it."""

Key = tuple[str, Kind]


class Lease:
    """A place in use. ``until_s`` is on the loop's clock. ``alone``: given back after this call whatever happens."""

    __slots__ = ("alone", "grant_id", "idle", "key", "line", "until_s")

    def __init__(self, grant_id: str, key: Key, line: Line, until_s: float, alone: bool) -> None:
        self.grant_id = grant_id
        self.key = key
        self.line = line
        self.until_s = until_s
        self.alone = alone
        self.idle: asyncio.TimerHandle | None = None


class NoPlace(Exception):
    """No place was had; nothing was sent."""

    def __init__(self, code: RefusalCode) -> None:
        super().__init__(code)
        self.code = code


class Leases:
    """Of one host, on one event loop."""

    def __init__(self, places: Places, lines: Lines, host_id: str) -> None:
        self._places = places
        self._lines = lines
        self._host_id = host_id
        self._loop = asyncio.get_running_loop()
        self._kept: dict[Key, deque[Lease]] = {}
        self._taking: Counter[Key] = Counter()
        self._ids = count(1)
        self._beside: set[asyncio.Task[None]] = set()

    def kept(self, key: Key, left_s: float) -> Lease | None:
        """A kept lease whose validity covers a call with so much left."""
        kept = self._kept.get(key)
        while kept:
            lease = kept.pop()
            if lease.idle is not None:
                lease.idle.cancel()
                lease.idle = None
            if lease.line.gone:
                self.lost(lease, "died")
            elif lease.until_s >= self._loop.time() + left_s:
                return lease
            else:
                self._give_back(lease)
        return None

    async def take(
        self, key: Key, *, tool: str, group: str, left_s: float, extra_ms: int = KEPT_EXTRA_MS
    ) -> Lease:
        """Wait for a place and a line to its executor. ``group``: only if it is a limited one. Raises ``NoPlace``."""
        pool, kind = key
        left_ms = min(max(1, int(left_s * 1_000)), VALID_MS_MAX)
        valid_ms = min(left_ms if group else left_ms + extra_ms, VALID_MS_MAX)
        want = Want(
            want_id=f"{self._host_id}:{next(self._ids)}",
            host_id=self._host_id,
            tool=tool,
            pool=pool,
            kind=kind,
            valid_ms=valid_ms,
            group=group,
        )
        until_s = self._loop.time() + valid_ms / 1_000
        self._taking[key] += 1
        try:
            async with asyncio.timeout(left_s):
                answer = await self._places.lease(want)
        except TimeoutError:
            raise NoPlace("expired") from None
        finally:
            self._taking[key] -= 1
        if isinstance(answer, Refused):
            raise NoPlace(answer.code)
        line = self._lines.known(answer.actor)
        if line is None:
            line = await self._connected(want, answer.actor, left_s)
        return Lease(answer.grant_id, key, line, until_s, bool(group) or answer.contended)

    async def _connected(self, want: Want, actor: str, left_s: float) -> Line:
        try:
            async with asyncio.timeout(left_s):
                return await self._lines.line(actor, want.kind)
        except LineDown:
            self._start(self._places.lost(want.want_id, "unreached"))
            raise NoPlace("no_executor") from None
        except TimeoutError:
            self._start(self._places.give_back(want.want_id))
            raise NoPlace("expired") from None
        except BaseException:
            self._start(self._places.give_back(want.want_id))
            raise

    def done(self, lease: Lease) -> None:
        """Its call has ended: kept for a moment, or given back."""
        if lease.alone or self._taking[lease.key] or lease.until_s <= self._loop.time():
            self._give_back(lease)
            return
        lease.idle = self._loop.call_later(KEPT_IDLE_S, self._idle, lease)
        self._kept.setdefault(lease.key, deque()).append(lease)

    def lost(self, lease: Lease, why: LossCause) -> None:
        """Its call hasn't ended, as far as is known."""
        if why in ("died", "unreached"):
            self._lines.forget(lease.line.name)
        self._start(self._places.lost(lease.grant_id, why))

    async def close(self) -> None:
        """Give back what is kept, and let everything be said that is on its way."""
        for kept in self._kept.values():
            while kept:
                self._give_back(kept.pop())
        if self._beside:
            await asyncio.wait(list(self._beside), timeout=1.0)

    def _idle(self, lease: Lease) -> None:
        self._kept[lease.key].remove(lease)
        self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        if lease.idle is not None:
            lease.idle.cancel()
            lease.idle = None
        self._start(self._places.give_back(lease.grant_id))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
