"""The row by which a host owns runs: registered once, renewed while the process can, lost in time when it can't.

A row is valid for 10 s of the store's time. A host stops after 8 s without a renewal by its own monotonic clock, counted from
when it asked, so it has stopped dispatching before another may have its runs, whatever the clocks of the two say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ..eventstore.port import EventStore, HostRow
from ..eventstore.process_identity import this_process
from ..runtime.errors import StoreError

RENEW_S: Final = 2.0
SELF_STOP_S: Final = 8.0
RENEW_TRY_LEAST_S: Final = 1.0


class OwnerRow:
    """Of one host, on its event loop."""

    def __init__(self, store: EventStore, host_id: str) -> None:
        self._store = store
        self._host_id = host_id
        self._loop = asyncio.get_running_loop()
        self._renewed_at = self._loop.time()

    async def register(self) -> None:
        """Raises ``StoreError``."""
        process = this_process()
        begun_at = self._loop.time()
        await self._store.register_host(
            HostRow(
                host_id=self._host_id,
                node=process.host,
                pid=process.pid,
                pid_start=process.pid_start,
                boot_id=process.boot_id,
            )
        )
        self._renewed_at = begun_at

    async def keep(self, renewed: Callable[[], Awaitable[None]]) -> tuple[str, BaseException | None]:
        """Renew it for as long as that goes well; then why it doesn't any more, and what caused it. ``renewed`` is awaited
        after each renewal."""
        while True:
            await asyncio.sleep(RENEW_S)
            asked_at = self._loop.time()
            # A loop that was blocked for that long still gets one try: nothing was dispatched meanwhile.
            left_s = max(self._renewed_at + SELF_STOP_S - asked_at, RENEW_TRY_LEAST_S)
            cause: BaseException | None = None
            why = "its owner row is gone"
            try:
                async with asyncio.timeout(left_s):
                    kept = await self._store.renew_host(self._host_id)
            except (StoreError, TimeoutError) as error:
                cause = error
                why = f"its owner row could not be renewed: {str(error) or 'the store did not answer'}"
                kept = self._loop.time() - self._renewed_at < SELF_STOP_S
            else:
                self._renewed_at = asked_at
            if not kept:
                return why, cause
            if cause is None:
                await renewed()
