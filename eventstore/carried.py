"""The store of another machine: the same methods, with each request carried to the owner by a messenger beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ..runtime.errors import BoundloopError, StoreError
from .remote import RemoteStore
from .socket_protocol import ANSWERS, Answer, Request, encode, error_of, failure_of

Carry = Callable[[bytes], Awaitable[bytes]]
"""An encoded ``Request`` to an encoded ``Answer``; whatever it raises means that no answer came."""


_NOTHING = msgspec.Raw(encode(None))


def refused_answer(request: bytes, error: BoundloopError) -> bytes:
    """The encoded answer to an encoded request that the messenger couldn't pass on, although the owner is there. It tells no
    time."""
    number = msgspec.msgpack.decode(request, type=Request).number
    return encode(Answer(number, 0, _NOTHING, failure_of(error)))


class CarriedStore(RemoteStore):
    """For one event loop. A messenger that fails raises ``StoreError`` (``owner_gone``), here and for every later call:
    whether an append was committed is unknown then."""

    def __init__(self, path: str, carry: Carry) -> None:
        super().__init__(path)
        self._carry = carry
        self._number = 0
        self._gone: StoreError | None = None

    async def _exchange(self, op: str, *args: object) -> Any:
        if self._gone is not None:
            raise self._gone
        self._number += 1
        request = encode(Request(self._number, op, msgspec.Raw(encode(args))))
        try:
            answer = msgspec.msgpack.decode(await self._carry(request), type=Answer)
        except BoundloopError:
            raise
        except Exception as error:  # whatever the way itself raises
            self._gone = StoreError("owner_gone", "the way to the store's owner is gone", path=self.path)
            raise self._gone from error
        if answer.now_ms:
            self._note(answer)
        if answer.failure is not None:
            raise error_of(answer.failure)
        try:
            return msgspec.msgpack.decode(answer.value, type=ANSWERS[op])
        except (msgspec.DecodeError, RecursionError) as error:
            raise StoreError("bad_answer", str(error)[:200], path=op) from error

    async def close(self) -> None:
        """Nothing is held here."""
        if self._gone is None:
            self._gone = StoreError("store_closed", "this connection is closed", path=self.path)
