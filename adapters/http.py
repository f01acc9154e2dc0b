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
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib import import_module
from typing import Any, Final
from weakref import WeakKeyDictionary

import httpx
import msgspec

from ..runtime.errors import DeclarationError
from .http_body import Take, passed_on
from .http_failure import CA_FILE, POOL_TIMEOUT, PROXY_SETTING, TIMEOUT, Cut, HttpFailed, meaning

RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
CONNECTIONS_MAX: Final = 256
LIBRARIES: Final = ("httpx", "httpx2")
"""Clients that may be used; the second is a fork of the first with another name."""
CONNECTIONS_CEILING: Final = 8_192
KEEPALIVE_S: Final = 5.0
CONNECT_MS_MAX: Final = 10_000
"""How long making a connection may take, within the request's own deadline."""

Receive = Callable[[int, Mapping[str, str]], Take]
"""Gets status and headers, and says where the body goes."""

_Settings = tuple[int, int, bool, str | None, str]

RETIRED_AT_ONCE: Final = 4
"""How many connections that nobody used for ``KEEPALIVE_S`` a request closes on its way."""


class HttpReply(msgspec.Struct, frozen=True, gc=False):
    """A whole answer: header names in lower case, the body unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    total_ms: int


_sending: ContextVar[bool] = ContextVar("boundloop_sending", default=False)


def _is_others(_record: logging.LogRecord) -> bool:
    return not _sending.get()


for _name in (
    *LIBRARIES,
    *(f"{core}.{part}" for core in ("httpcore", "httpcore2") for part in ("connection", "http11", "proxy")),
):
    # They log URLs and answers' headers, which may hold keys. What others send with them is logged as ever.
    logging.getLogger(_name).addFilter(_is_others)


class HttpClient:
    """Connections to one provider, for whichever event loops use it. Pickles without them.

    ``response_bytes_max`` bounds a body before and after it is unpacked; header blocks over 100 KiB break the connection.
    ``ca_file`` replaces the certificates that are trusted. ``trust_env`` lets the environment name proxies. ``library``: ``httpx``, or
    ``httpx2``, which has its names.
    """

    def __init__(
        self,
        *,
        connections_max: int = CONNECTIONS_MAX,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        trust_env: bool = False,
        ca_file: str | None = None,
        library: str = "httpx",
    ) -> None:
        if not 1 <= connections_max <= CONNECTIONS_CEILING:
            raise DeclarationError("connections_max", f"1 to {CONNECTIONS_CEILING}", path="connections_max")
        if response_bytes_max < 1:
            raise DeclarationError("response_bytes_max", "at least 1", path="response_bytes_max")
        if library not in LIBRARIES:
            raise DeclarationError("library", f"one of {', '.join(LIBRARIES)}", path="library")
        try:
            self._library: Any = import_module(library)
        except ImportError:
            raise DeclarationError("library", f"{library} isn't installed", path="library") from None
        self._settings = (connections_max, response_bytes_max, trust_env, ca_file, library)
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lanes] = WeakKeyDictionary()
        try:
            self._tls: ssl.SSLContext | None = _trusting(ca_file)
        except OSError:
            raise DeclarationError("ca_file", "a readable file of certificates", path="ca_file") from None

    def __getstate__(self) -> _Settings:
        return self._settings

    def __setstate__(self, settings: _Settings) -> None:
        # Certificates are read where they are used: a host without the file fails its requests, not its unpickling.
        self._settings = settings
        self._library = import_module(settings[4])
        self._open = WeakKeyDictionary()
        self._tls = None

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, timeout_ms: int
    ) -> HttpReply | HttpFailed:
        """Send once, and wait for the whole answer. Everything, from waiting for a connection to the last byte, is over
        within ``timeout_ms`` by the monotonic clock. Cancelling closes the connection."""
        chunks: list[bytes] = []

        def take(chunk: bytes) -> bool:
            chunks.append(chunk)
            return True

        reply = await self.stream(
            url, headers, body, timeout_ms=timeout_ms, receive=lambda status, headers: take
        )
        if isinstance(reply, HttpReply):
            return msgspec.structs.replace(reply, body=b"".join(chunks))
        return reply

    async def stream(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        timeout_ms: int,
        receive: Receive,
        idle_ms: int | None = None,
    ) -> HttpReply | HttpFailed:
        """The same, handing the unpacked body to ``receive`` as it comes; the reply's own is empty. Once no more is taken the
        answer counts as whole. ``idle_ms``: how long nothing at all may come, the beginning included."""
        began = time.monotonic()
        sending = _sending.set(True)
        lanes: _Lanes | None = None
        lane: httpx.AsyncClient | None = None
        whole = False
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                lanes = self._lanes()
                lane = await lanes.take()
                status, answer_headers, whole = await self._exchange(
                    lane, url, headers, body, timeout_ms, receive, idle_ms
                )
        except TimeoutError:
            failed = POOL_TIMEOUT if lane is None else TIMEOUT
        except Cut as error:
            failed = error.failed
        except (self._library.HTTPError, self._library.InvalidURL) as error:
            failed = meaning(error, self._library)
        else:
            return HttpReply(status, answer_headers, b"", _since_ms(began))
        finally:
            if lanes is not None and lane is not None:
                lanes.give_back(lane, whole=whole)
            _sending.reset(sending)
        return msgspec.structs.replace(failed, total_ms=_since_ms(began))

    async def close(self) -> None:
        """Give back the running loop's connections. Idempotent; a later request opens new ones."""
        lanes = self._open.pop(asyncio.get_running_loop(), None)
        if lanes is not None:
            await lanes.close()

    async def _exchange(
        self,
        lane: httpx.AsyncClient,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_ms: int,
        receive: Receive,
        idle_ms: int | None,
    ) -> tuple[int, dict[str, str], bool]:
        # Beside connecting, and silence where that is bounded, reads and writes end with the deadline, however the bytes drip.
        read = None if idle_ms is None else idle_ms / 1_000
        timeout = self._library.Timeout(None, connect=min(CONNECT_MS_MAX, timeout_ms) / 1_000, read=read)
        async with lane.stream("POST", url, headers=headers, content=body, timeout=timeout) as reply:
            names = {name.lower(): value for name, value in reply.headers.items()}
            whole = await passed_on(reply, self._settings[1], receive(reply.status_code, names))
            return reply.status_code, names, whole

    def _lanes(self) -> _Lanes:
        loop = asyncio.get_running_loop()
        lanes = self._open.get(loop)
        if lanes is None:
            connections_max, _bytes, trust_env, ca_file, _library = self._settings
            try:
                self._tls = self._tls or _trusting(ca_file)
            except OSError:
                raise Cut(CA_FILE) from None
            lanes = self._open[loop] = _Lanes(
                connections_max, trust_env=trust_env, tls=self._tls, library=self._library
            )
        return lanes


def _trusting(ca_file: str | None) -> ssl.SSLContext:
    """Raises ``OSError``, of which ``SSLError`` is one, for certificates that can't be read."""
    return ssl.create_default_context(cafile=ca_file) if ca_file else httpx.create_ssl_context()


class _Lanes:
    """One connection each, the one used last taken first.

    A pool of many connections looks at all of them for each request; at two hundred that costs more than the request.
    """

    def __init__(self, connections_max: int, *, trust_env: bool, tls: ssl.SSLContext, library: Any) -> None:
        self._library = library
        self._tls = tls
        self._trust_env = trust_env
        self._free: deque[tuple[float, httpx.AsyncClient]] = deque()
        self._room = asyncio.Semaphore(connections_max)
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def take(self) -> httpx.AsyncClient:
        """A lane of one's own, once there is one. Cancelled while it waits, or if none can be made, nothing is taken."""
        self._retire()
        await self._room.acquire()
        try:
            return self._free.pop()[1] if self._free else self._new()
        except BaseException:
            self._room.release()
            raise

    def give_back(self, lane: httpx.AsyncClient, *, whole: bool) -> None:
        """``whole``: its answer was read to the end. Otherwise its connection is closed, also after a cancel, and nothing
        of it is used again."""
        if whole and not self._closed:
            self._free.append((time.monotonic(), lane))
        else:
            self._close_lane(lane)
        self._room.release()

    async def close(self) -> None:
        """Close what is free; what is out is closed when its request ends."""
        self._closed = True
        while self._free:
            await self._free.pop()[1].aclose()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _close_lane(self, lane: httpx.AsyncClient) -> None:
        """In a task of its own: neither a cancel nor an error of it is the request's."""
        closing = asyncio.get_running_loop().create_task(lane.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _retire(self) -> None:
        """Close a few lanes that weren't needed for a while."""
        stale = time.monotonic() - KEEPALIVE_S
        for _ in range(RETIRED_AT_ONCE):
            if len(self._free) < 2 or self._free[0][0] > stale:
                return
            self._close_lane(self._free.popleft()[1])

    def _new(self) -> httpx.AsyncClient:
        try:
            made: httpx.AsyncClient = self._library.AsyncClient(
                verify=self._tls,
                trust_env=self._trust_env,
                follow_redirects=False,
                # Lanes serve one run after another, so nothing of one answer goes out with another's request.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                limits=self._library.Limits(max_connections=1, keepalive_expiry=KEEPALIVE_S),
            )
            return made
        except (ValueError, ImportError, self._library.InvalidURL):
            raise Cut(PROXY_SETTING) from None  # nothing else of this comes from outside


def _since_ms(began: float) -> int:
    return max(0, round((time.monotonic() - began) * 1_000))
