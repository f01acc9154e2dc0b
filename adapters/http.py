"""The one HTTP client of the model adapters: one POST, one deadline, everything capped, nothing retried.

Redirects aren't followed (a key goes nowhere but where it was meant for), proxies of the environment aren't used unless
asked, and bodies are unpacked here so that the cap holds for what comes out too. What went wrong is a value, not an
exception: the caller decides what an attempt became.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import zlib
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final
from weakref import WeakKeyDictionary

import httpx
import msgspec

from ..runtime.errors import DeclarationError

RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
CONNECTIONS_MAX: Final = 256
CONNECTIONS_CEILING: Final = 8_192
KEEPALIVE_S: Final = 5.0
CONNECT_MS_MAX: Final = 10_000
"""How long making a connection may take, within the request's own deadline."""

RETIRED_AT_ONCE: Final = 4
"""How many connections that nobody used for ``KEEPALIVE_S`` a request closes on its way."""


class HttpReply(msgspec.Struct, frozen=True, gc=False):
    """A whole answer: header names in lower case, the body unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    total_ms: int


class HttpFailed(msgspec.Struct, frozen=True, gc=False):
    """No whole answer. ``unsent`` is proof that the request never left. ``retryable``: another attempt may do better."""

    code: str
    message: str
    retryable: bool = True
    unsent: bool = False
    total_ms: int = 0


class _Cut(Exception):
    """The answer is none that we take."""

    def __init__(self, failed: HttpFailed) -> None:
        super().__init__(failed.code)
        self.failed = failed


_TIMEOUT: Final = HttpFailed("timeout", "no answer in time")
_POOL_TIMEOUT: Final = HttpFailed("pool_timeout", "no connection was free in time", unsent=True)

FAILURES: Final[tuple[tuple[type[Exception], HttpFailed], ...]] = (
    (httpx.ConnectTimeout, HttpFailed("connect_timeout", "no connection in time", unsent=True)),
    (httpx.PoolTimeout, _POOL_TIMEOUT),
    (httpx.TimeoutException, _TIMEOUT),
    (httpx.ProxyError, HttpFailed("proxy", "the proxy refused", unsent=True)),
    (httpx.ConnectError, HttpFailed("connect", "no connection", unsent=True)),
    (
        httpx.UnsupportedProtocol,
        HttpFailed("bad_url", "the base URL can't be used", retryable=False, unsent=True),
    ),
    (httpx.LocalProtocolError, HttpFailed("bad_request", "the request can't be sent", retryable=False)),
    (httpx.RemoteProtocolError, HttpFailed("connection_lost", "the answer broke off or isn't HTTP")),
    (httpx.NetworkError, HttpFailed("connection_lost", "the connection broke")),
    (httpx.InvalidURL, HttpFailed("bad_url", "the base URL can't be used", retryable=False, unsent=True)),
    (httpx.HTTPError, HttpFailed("http", "the request failed")),
)
"""What each exception of the client means; the first row that fits. Its text is never shown: it may hold what was sent."""

_TLS: Final = HttpFailed(
    "tls", "the server's certificate isn't trusted, or TLS failed", retryable=False, unsent=True
)


_sending: ContextVar[bool] = ContextVar("boundloop_sending", default=False)


def _is_others(_record: logging.LogRecord) -> bool:
    return not _sending.get()


for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy"):
    # They log URLs and answers' headers, which may hold keys. What others send with them is logged as ever.
    logging.getLogger(_name).addFilter(_is_others)


class HttpClient:
    """Connections to one provider, for whichever event loops use it. Pickles without them.

    ``response_bytes_max`` bounds a body before and after it is unpacked; header blocks over 100 KiB break the connection.
    ``ca_file`` replaces the certificates that are trusted. ``trust_env`` lets the environment name proxies.
    """

    def __init__(
        self,
        *,
        connections_max: int = CONNECTIONS_MAX,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        trust_env: bool = False,
        ca_file: str | None = None,
    ) -> None:
        if not 1 <= connections_max <= CONNECTIONS_CEILING:
            raise DeclarationError("connections_max", f"1 to {CONNECTIONS_CEILING}", path="connections_max")
        if response_bytes_max < 1:
            raise DeclarationError("response_bytes_max", "at least 1", path="response_bytes_max")
        self._settings = (connections_max, response_bytes_max, trust_env, ca_file)
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lanes] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, self._settings

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, timeout_ms: int
    ) -> HttpReply | HttpFailed:
        """Send once. Everything, from waiting for a connection to the last byte, is over within ``timeout_ms`` by the
        monotonic clock. Cancelling closes the connection."""
        began = time.monotonic()
        sending = _sending.set(True)
        lanes = self._lanes()
        lane: httpx.AsyncClient | None = None
        whole = False
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                lane = await lanes.take()
                status, answer_headers, answer = await self._exchange(lane, url, headers, body, timeout_ms)
                whole = True
        except TimeoutError:
            failed = _POOL_TIMEOUT if lane is None else _TIMEOUT
        except _Cut as error:
            failed = error.failed
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            failed = _meaning(error)
        else:
            return HttpReply(status, answer_headers, answer, _since_ms(began))
        finally:
            if lane is not None:
                lanes.give_back(lane, whole=whole)
            _sending.reset(sending)
        return msgspec.structs.replace(failed, total_ms=_since_ms(began))

    async def close(self) -> None:
        """Give back the running loop's connections. Idempotent; a later request opens new ones."""
        lanes = self._open.pop(asyncio.get_running_loop(), None)
        if lanes is not None:
            await lanes.close()

    async def _exchange(
        self, lane: httpx.AsyncClient, url: str, headers: Mapping[str, str], body: bytes, timeout_ms: int
    ) -> tuple[int, dict[str, str], bytes]:
        # Only connecting has a bound of its own: reads and writes end with the deadline, however the bytes drip.
        timeout = httpx.Timeout(None, connect=min(CONNECT_MS_MAX, timeout_ms) / 1_000)
        async with lane.stream("POST", url, headers=headers, content=body, timeout=timeout) as reply:
            answer = await _capped(reply, self._settings[1])
            names = {name.lower(): value for name, value in reply.headers.items()}
            return reply.status_code, names, answer

    def _lanes(self) -> _Lanes:
        loop = asyncio.get_running_loop()
        lanes = self._open.get(loop)
        if lanes is None:
            connections_max, _bytes, trust_env, ca_file = self._settings
            lanes = self._open[loop] = _Lanes(connections_max, trust_env=trust_env, ca_file=ca_file)
        return lanes


def _restore(
    connections_max: int, response_bytes_max: int, trust_env: bool, ca_file: str | None
) -> HttpClient:
    return HttpClient(
        connections_max=connections_max,
        response_bytes_max=response_bytes_max,
        trust_env=trust_env,
        ca_file=ca_file,
    )


class _Lanes:
    """One connection each, the one used last taken first.

    A pool of many connections looks at all of them for each request; at two hundred that costs more than the request.
    """

    def __init__(self, connections_max: int, *, trust_env: bool, ca_file: str | None) -> None:
        self._tls = ssl.create_default_context(cafile=ca_file) if ca_file else httpx.create_ssl_context()
        self._trust_env = trust_env
        self._free: deque[tuple[float, httpx.AsyncClient]] = deque()
        self._room = asyncio.Semaphore(connections_max)
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def take(self) -> httpx.AsyncClient:
        """A lane of one's own, once there is one. Cancelled while it waits, nothing is taken."""
        await self._retire()
        await self._room.acquire()
        return self._free.pop()[1] if self._free else self._new()

    def give_back(self, lane: httpx.AsyncClient, *, whole: bool) -> None:
        """``whole``: its answer was read to the end. Otherwise its connection is closed, also after a cancel, and nothing
        of it is used again."""
        if whole and not self._closed:
            self._free.append((time.monotonic(), lane))
        else:
            closing = asyncio.get_running_loop().create_task(lane.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._room.release()

    async def close(self) -> None:
        """Close what is free; what is out is closed when its request ends."""
        self._closed = True
        while self._free:
            await self._free.pop()[1].aclose()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _retire(self) -> None:
        """Close a few lanes that weren't needed for a while."""
        stale = time.monotonic() - KEEPALIVE_S
        for _ in range(RETIRED_AT_ONCE):
            if len(self._free) < 2 or self._free[0][0] > stale:
                return
            await self._free.popleft()[1].aclose()

    def _new(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=self._tls,
            trust_env=self._trust_env,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEPALIVE_S),
        )


def _meaning(error: Exception) -> HttpFailed:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return _TLS if isinstance(error, httpx.ConnectError) else FAILURES[-1][1]
        cause = cause.__cause__ or cause.__context__
    return next(failed for kind, failed in FAILURES if isinstance(error, kind))


def _since_ms(began: float) -> int:
    return max(0, round((time.monotonic() - began) * 1_000))


# --- the body, never more than the cap ------------------------------------------------------------------------------


async def _capped(reply: httpx.Response, bytes_max: int) -> bytes:
    """The unpacked body. Raises ``_Cut`` for one that is too large, packed in an unknown way, or packed and cut."""
    packed = reply.headers.get("content-encoding", "").strip().lower()
    if packed not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise _Cut(HttpFailed("content_encoding", "the answer is packed in a way that wasn't asked for"))
    length = reply.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:18]) > bytes_max:
        raise _too_large(bytes_max)
    unpack = _Unpack(packed, bytes_max) if packed not in ("", "identity") else None
    body = bytearray()
    async for chunk in reply.aiter_raw():
        body += chunk if unpack is None else unpack.feed(chunk, bytes_max - len(body))
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
    if unpack is not None and not unpack.whole:
        raise _Cut(HttpFailed("connection_lost", "the packed answer broke off"))
    return bytes(body)


def _too_large(bytes_max: int) -> _Cut:
    return _Cut(HttpFailed("response_too_large", f"the answer is over {bytes_max} bytes"))


class _Unpack:
    """gzip or deflate, a chunk at a time, at most one byte over what is left."""

    def __init__(self, packed: str, bytes_max: int) -> None:
        # 15 bits of window; 32 more read gzip and zlib headers alike.
        self._inflate = zlib.decompressobj(15 + 32)
        self._bare = packed == "deflate"
        self._packed_left = bytes_max

    @property
    def whole(self) -> bool:
        """Whether the stream's own end arrived."""
        return self._inflate.eof

    def feed(self, chunk: bytes, left: int) -> bytes:
        self._packed_left -= len(chunk)
        if self._packed_left < 0:
            raise _Cut(HttpFailed("response_too_large", "the packed answer is too large"))
        try:
            return self._inflated(chunk, left)
        except zlib.error:
            raise _Cut(HttpFailed("connection_lost", "the packed answer is damaged")) from None

    def _inflated(self, chunk: bytes, left: int) -> bytes:
        if self._inflate.eof:
            return b""  # what follows the end isn't part of it
        try:
            return self._inflate.decompress(chunk, left + 1)
        except zlib.error:
            if not self._bare:
                raise
        # Some servers send deflate without its zlib header; that shows at the first byte.
        self._bare = False
        self._inflate = zlib.decompressobj(-15)
        return self._inflate.decompress(chunk, left + 1)
