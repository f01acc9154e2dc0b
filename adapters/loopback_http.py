"""The loopback server's HTTP/1.1: one request at a time a connection, callbacks only, everything bounded.

A minimal server on purpose: request bodies by Content-Length only, keep-alive, no TLS. What it must do well is to break
off, drip and hang exactly as told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, Protocol, cast

import msgspec

from .loopback_answer import Answer, error_answer

HEADER_BYTES_MAX: Final = 32 * 1024
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
_PIPELINED_BYTES_MAX: Final = 64 * 1024
"""What may arrive of a next request while one is being answered."""


class Request(msgspec.Struct, frozen=True):
    """A whole request; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class _Malformed(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Site(Protocol):
    """What a connection talks to."""

    def opened(self, connection: Connection) -> bool:
        """A connection came; False refuses it."""
        ...

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        ...

    def asked(self, request: Request) -> Answer:
        """The answer to a request, which counts as in flight from now on."""
        ...

    def settled(self, answer: Answer, *, sent: bool) -> None:
        """It is in flight no more: sent as it was meant to be (broken off too), or the other side left first."""
        ...

    def gate(self, name: str, passed: Callable[[], None]) -> None:
        """Call ``passed`` once that gate is open, now or later."""
        ...


class Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head: tuple[str, str, dict[str, str], int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._site.opened(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None:
            self._settle(sent=False)
        self._site.closed(self)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._answer is None:
            self._next()
        elif len(self._buffer) > _PIPELINED_BYTES_MAX:
            self.abort()

    # --- a request ---------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Answer what is whole in the buffer."""
        try:
            request = self._whole_request()
        except _Malformed as error:
            self._buffer.clear()
            self._send(_wire(error_answer(error.status, "malformed", error.message), close=True), close=True)
            return
        if request is None:
            return
        answer = self._answer = self._site.asked(request)
        if answer.gate:
            self._site.gate(answer.gate, self._wait)
        else:
            self._wait()

    def _whole_request(self) -> Request | None:
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n", 0, HEADER_BYTES_MAX)
            if end < 0:
                if len(self._buffer) > HEADER_BYTES_MAX:
                    raise _Malformed(431, f"more than {HEADER_BYTES_MAX} bytes of headers")
                return None
            self._head = _parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            if self._head[2].get("expect", "").lower() == "100-continue":
                self._send(b"HTTP/1.1 100 Continue\r\n\r\n", close=False)
        method, path, headers, length = self._head
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        self._head = None
        return Request(method, path, headers, body)

    # --- its answer --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        answer = self._answer
        if answer is None or self._transport is None:
            return
        if answer.delay_ms:
            self._timer = self._loop.call_later(answer.delay_ms / 1_000, self._go)
        else:
            self._go()

    def _go(self) -> None:
        answer = self._answer
        if answer is None:
            return
        whole = _wire(answer)
        body_at = len(whole) - len(answer.body)
        match answer.fault:
            case "hang":
                return
            case "drop":
                self._over(b"")
            case "truncate":
                self._over(whole[: body_at + len(answer.body) // 2])
            case "drip":
                self._send(whole[:body_at], close=False)
                self._drip(whole, body_at, answer.drip_ms)
            case "slow_headers":
                self._drip(whole, 0, answer.drip_ms)
            case _:
                self._send(whole, close=False)
                self._settle(sent=True)
                if self._buffer:
                    self._loop.call_soon(self._next)

    def _drip(self, whole: bytes, at: int, drip_ms: int) -> None:
        if self._transport is None:
            return
        self._send(whole[at : at + 1], close=False)
        if at + 1 >= len(whole):
            self._over(b"")
        else:
            self._timer = self._loop.call_later(drip_ms / 1_000, self._drip, whole, at + 1, drip_ms)

    def _over(self, last: bytes) -> None:
        self._settle(sent=True)
        self._send(last, close=True)

    def _settle(self, *, sent: bool) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._site.settled(answer, sent=sent)

    def _send(self, data: bytes, *, close: bool) -> None:
        if self._transport is None:
            return
        if data:
            self._transport.write(data)
        if close:
            self._transport.close()


def _parse_head(head: bytes) -> tuple[str, str, dict[str, str], int]:
    """Method, path, headers and body length; raises ``_Malformed``."""
    lines = head.decode("latin-1").split("\r\n")
    first = lines[0].split(" ")
    if len(first) != 3 or not first[2].startswith("HTTP/1."):
        raise _Malformed(400, "not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise _Malformed(400, "not a header")
        headers[name.lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise _Malformed(411, "send a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise _Malformed(400, "not a Content-Length")
    if len(length) > 12 or int(length) > BODY_BYTES_MAX:
        raise _Malformed(413, f"more than {BODY_BYTES_MAX} bytes")
    return first[0], first[1].partition("?")[0], headers, int(length)


_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


def _wire(answer: Answer, *, close: bool = False) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
    last = "connection: close\r\n" if close else ""
    head = f"HTTP/1.1 {answer.status} {_PHRASES.get(answer.status, 'Status')}\r\n{headers}{last}content-length: {len(answer.body)}\r\n\r\n"
    return head.encode("latin-1", "replace") + answer.body
