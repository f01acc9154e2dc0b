"""What a host asks of the broker of places, and how that travels to the owner's process.

A *place* is the right to have one call at work: one of an executor's, and one of its group's if that is limited. A host
leases it, uses it, and gives it back or says that it was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec

from ..runtime.errors import BoundloopError

Kind = Literal["sync", "quick", "async"]
"""One call a process that can be killed; batches of short reads; many calls on one loop."""

LossCause = Literal["died", "unreached", "overdue", "deaf", "late", "host", "not_given_back"]
"""``died``: its executor is gone, as far as its holder knows. ``unreached``: there was no line to it, nothing was sent.
``overdue``: its call didn't end when it had to. ``deaf``: the same of a read beside others on a loop. ``late``: the call has ended,
but only with its time or without an outcome, so what it asked of its far side may still be at work there. ``host``: its holder
is gone."""

RefusalCode = Literal[
    "expired", "overloaded", "no_pool", "executors_failing", "closed", "no_broker", "no_executor"
]
"""Why there was no place. All of them prove that nothing ran."""

VALID_MS_MAX: Final = 90_000_000
"""The longest time-out of a tool, and an hour."""

LEASES_MAX: Final = 1_000
"""Wants of one line (pool, kind and limited group) that a host has with the owner at once. Those behind them could only
wait there too; they wait here, and hold up no other line."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Want(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``want_id`` is made by the host, unique for ever, and names the lease that comes of it.

    ``valid_ms`` bounds both the wait for the place and the use of it, from now: a place that isn't given back by then is
    taken for lost. ``group`` matters if it is a limited one.
    """

    want_id: Name
    host_id: Name
    tool: Annotated[str, msgspec.Meta(max_length=200)]
    pool: Name
    kind: Kind
    valid_ms: Annotated[int, msgspec.Meta(ge=1, le=VALID_MS_MAX)]
    group: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="grant"):
    """A place. ``grant_id`` is the ``want_id``. ``contended``: others wait, so give it back after one call."""

    grant_id: Name
    actor: Name
    contended: bool


class Refused(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="refused"):
    """No place."""

    code: RefusalCode


class Loss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grant_id: Name
    why: LossCause


class Places(Protocol):
    """The broker, as a host sees it. Nothing here raises but on cancellation."""

    async def lease(self, want: Want) -> Grant | Refused:
        """Wait for a place, at most for the want's validity. The same want again has the same answer."""
        ...

    async def give_back(self, grant_id: str) -> None:
        """Its call has ended, or is wanted no more. Unknown ids and repetitions change nothing."""
        ...

    async def lost(self, grant_id: str, why: LossCause) -> None:
        """Its call hasn't ended as far as the host knows. The executor is ended, unless others use it too and it confirms
        that nothing of this lease goes on; a limited group's place stays taken until the lease's validity is over."""
        ...


Ask = Callable[[str, bytes], Awaitable[bytes]]
"""Sends a question of the given kind to the owner and returns its answer. Raises if there was none."""

_grant_or_refused = msgspec.msgpack.Decoder(Grant | Refused).decode
_want = msgspec.msgpack.Decoder(Want).decode
_loss = msgspec.msgpack.Decoder(Loss).decode
_name = msgspec.msgpack.Decoder(Name).decode
_encode = msgspec.msgpack.Encoder().encode

LEASE: Final = "places.lease"
GIVE_BACK: Final = "places.give_back"
LOST: Final = "places.lost"
KINDS: Final = (LEASE, GIVE_BACK, LOST)


class RemotePlaces:
    """The broker in another process. An owner that doesn't answer grants nothing; what it had granted it gets back by
    its leases' validity. ``tell`` sends what is no wait, and so is never kept back by those; ``ask`` unless given."""

    def __init__(self, ask: Ask, tell: Ask | None = None) -> None:
        self._ask = ask
        self._send = tell or ask
        self._lines: dict[tuple[str, Kind, str], asyncio.Semaphore] = {}
        self._beside: set[asyncio.Task[None]] = set()

    async def lease(self, want: Want) -> Grant | Refused:
        line = self._lines.setdefault((want.pool, want.kind, want.group), asyncio.Semaphore(LEASES_MAX))
        try:
            async with asyncio.timeout(want.valid_ms / 1_000), line:
                return _grant_or_refused(await self._ask(LEASE, _encode(want)))
        except asyncio.CancelledError:
            # It may have been granted meanwhile.
            self._start(self.give_back(want.want_id))
            raise
        except TimeoutError:
            self._start(self.give_back(want.want_id))
            return Refused(code="expired")
        except (BoundloopError, OSError, msgspec.MsgspecError):
            self._start(self.give_back(want.want_id))
            return Refused(code="no_broker")

    async def give_back(self, grant_id: str) -> None:
        await self._tell(GIVE_BACK, _encode(grant_id))

    async def lost(self, grant_id: str, why: LossCause) -> None:
        await self._tell(LOST, _encode(Loss(grant_id=grant_id, why=why)))

    async def _tell(self, kind: str, payload: bytes) -> None:
        try:
            await self._send(kind, payload)
        except (BoundloopError, OSError):
            return  # the lease ends by its validity

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)


class PlacesDoor:
    """The owner's side of ``RemotePlaces``."""

    def __init__(self, places: Places) -> None:
        self._places = places

    async def answer(self, kind: str, payload: bytes) -> bytes:
        """Raises ``ValueError`` for another kind, ``msgspec.MsgspecError`` for a payload that isn't of its kind."""
        if kind == LEASE:
            return _encode(await self._places.lease(_want(payload)))
        if kind == GIVE_BACK:
            await self._places.give_back(_name(payload))
        elif kind == LOST:
            loss = _loss(payload)
            await self._places.lost(loss.grant_id, loss.why)
        else:
            raise ValueError(f"no question of this kind: {kind[:80]}")
        return b""
