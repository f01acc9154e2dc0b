"""What can come in the way of a whole answer, as values: the table from the HTTP client's exceptions, and our own refusals."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any, Final

import httpx
import msgspec


class HttpFailed(msgspec.Struct, frozen=True, gc=False):
    """No whole answer. ``unsent`` is proof that the request never left. ``retryable``: another attempt may do better."""

    code: str
    message: str
    retryable: bool = True
    unsent: bool = False
    total_ms: int = 0


class Cut(Exception):
    """The answer is none that we take."""

    def __init__(self, failed: HttpFailed) -> None:
        super().__init__(failed.code)
        self.failed = failed


TIMEOUT: Final = HttpFailed("timeout", "no answer in time")
POOL_TIMEOUT: Final = HttpFailed("pool_timeout", "no connection was free in time", unsent=True)

Failures = tuple[tuple[type[Exception], HttpFailed], ...]


@cache
def failures_of(library: Any) -> Failures:
    """What each exception of a client's library means; the first row that fits. Its text is never shown: it may hold what was
    sent. ``library`` is ``httpx``, or one with its names."""
    return (
        (library.ConnectTimeout, HttpFailed("connect_timeout", "no connection in time", unsent=True)),
        (library.PoolTimeout, POOL_TIMEOUT),
        (library.TimeoutException, TIMEOUT),
        (library.ProxyError, HttpFailed("proxy", "the proxy refused", unsent=True)),
        (library.ConnectError, HttpFailed("connect", "no connection", unsent=True)),
        (
            library.UnsupportedProtocol,
            HttpFailed("bad_url", "the base URL can't be used", retryable=False, unsent=True),
        ),
        (library.LocalProtocolError, HttpFailed("bad_request", "the request can't be sent", retryable=False)),
        (library.RemoteProtocolError, HttpFailed("connection_lost", "the answer broke off or isn't HTTP")),
        (library.NetworkError, HttpFailed("connection_lost", "the connection broke")),
        (
            library.InvalidURL,
            HttpFailed("bad_url", "the base URL can't be used", retryable=False, unsent=True),
        ),
        (library.HTTPError, HttpFailed("http", "the request failed")),
    )


_httpx: Any = httpx
FAILURES: Final = failures_of(_httpx)

_TLS: Final = HttpFailed(
    "tls", "the server's certificate isn't trusted, or TLS failed", retryable=False, unsent=True
)

PROXY_SETTING: Final = HttpFailed(
    "proxy_setting", "the environment names a proxy that can't be used", retryable=False, unsent=True
)
CA_FILE: Final = HttpFailed(
    "ca_file", "the certificates to trust can't be read here", retryable=False, unsent=True
)


def meaning(error: Exception, library: Any = httpx) -> HttpFailed:
    """The row of an exception; TLS is told from other failures to connect."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return _TLS if isinstance(error, library.ConnectError) else failures_of(library)[-1][1]
        cause = cause.__cause__ or cause.__context__
    return next(failed for kind, failed in failures_of(library) if isinstance(error, kind))
