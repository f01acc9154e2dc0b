"""One connection to the server, and what its failures mean.

The driver (asyncpg) is loaded when a store is opened, so that nobody needs it who has no PostgreSQL.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec

from ..runtime.errors import BoundloopError, BugError, CallerError, DamagedFile, DiskFull, StoreError
from .postgres_tls import fault_of_files
from .postgres_url import PostgresPlace

T = TypeVar("T")

CONNECT_S: Final = 3.0
"""One try to connect."""

ANSWER_S: Final = 8.0
"""A statement that takes longer has met a server or a network that is gone: its connection is cut, and what it did is
found out on the next one. A host that can't renew its row for as long stops by itself."""

LONG_ANSWER_S: Final = 600.0
"""For reading whole tables."""

SERVER_VERSION_MIN: Final = 140_000

LOCK_WAIT_MS: Final = 4_000
"""Longer than the server needs to find two that wait for each other (1 s)."""

_WEAK_COMMITS: Final = frozenset(("off", "local", "remote_write"))
_SAME_AGAIN: Final = frozenset(("40001", "40P01", "55P03"))
"""A transaction that others got in the way of: nothing of it is there, and the same one may be tried."""

_CUT_CLASSES: Final = frozenset(("08", "57"))
"""SQLSTATE classes of a server that hangs up: what it was asked last may be done or not."""


class Connection(Protocol):
    """The part of the driver's connection that is used here."""

    async def fetch(self, query: str, *args: object) -> list[Any]: ...

    async def fetchrow(self, query: str, *args: object) -> Any: ...

    async def fetchval(self, query: str, *args: object) -> Any: ...

    async def execute(self, query: str, *args: object) -> str: ...

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...

    async def close(self) -> None: ...

    def terminate(self) -> None: ...

    def is_closed(self) -> bool: ...

    def transaction(self) -> Any: ...


class Cut(Exception):
    """The connection ended, or was ended, under a statement: whether it took effect isn't known."""


class WrongSettings(CallerError):
    """No server was asked: with what the address and the environment say, the driver can ask none."""

    def __init__(self, message: str, place: PostgresPlace) -> None:
        super().__init__("store_settings", message, path=place.shown)


class Backend(msgspec.Struct, frozen=True):
    """The server's process behind a connection, by what tells it from a later one of the same number."""

    pid: int
    started_at: Any


class Link(msgspec.Struct, frozen=True):
    """A connection that was found fit, its backend, and the server's time when it was."""

    connection: Connection
    backend: Backend
    server_ms: int


def driver() -> Any:
    """The asyncpg module. Raises ``StoreError`` (``driver_missing``)."""
    try:
        return importlib.import_module("asyncpg")
    except ImportError as error:
        raise StoreError("driver_missing", "PostgreSQL needs asyncpg: install boundloop[postgres]") from error


async def connect(place: PostgresPlace, name: str) -> Link:
    """A connection that keeps what the store promises. Raises ``Cut`` if the server can't be reached now, ``WrongSettings``
    or ``StoreError`` if asking again won't help."""
    asyncpg = driver()
    try:
        connection: Connection | None = await asyncpg.connect(
            place.dsn,
            timeout=CONNECT_S,
            target_session_attrs="read-write",
            server_settings={
                "application_name": name,
                "search_path": f'"{place.schema}"',
                "default_transaction_isolation": "read committed",
                "default_transaction_read_only": "off",
                "statement_timeout": "0",
                "lock_timeout": str(LOCK_WAIT_MS),
                "jit": "off",
            },
        )
    except (OSError, TimeoutError) as error:
        if fault := fault_of_files(place.dsn):
            raise WrongSettings(fault, place) from error
        raise Cut(str(error)[:300] or type(error).__name__) from error
    except asyncpg.ClientConfigurationError as error:
        raise WrongSettings(str(error)[:300], place) from error
    except (ValueError, OverflowError):
        connection = None
    except Exception as error:
        raise refused(error, place) from error
    if connection is None:
        # Raised out here, because what the driver raised may quote a password that stands in PGHOST.
        raise WrongSettings("a host, a port or another value, here or in a PG variable, can't be read", place)
    try:
        return await _checked(connection, place)
    except BaseException:
        connection.terminate()
        raise


async def _checked(connection: Connection, place: PostgresPlace) -> Link:
    found = await answered(
        connection,
        connection.fetchrow(
            "SELECT current_setting('server_version_num')::int AS version, pg_is_in_recovery() AS copies, "
            "current_setting('server_encoding') AS encoding, current_setting('fsync') AS fsync, "
            "current_setting('synchronous_commit') AS commits, backend_start AS started_at, pid, "
            "(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS server_ms "
            "FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        ),
        place,
    )
    if found["version"] < SERVER_VERSION_MIN:
        raise StoreError("server_too_old", "PostgreSQL 14 or newer is needed", path=place.shown)
    if found["encoding"] != "UTF8":
        raise StoreError(
            "server_unfit", f"the database is in {found['encoding']}, not UTF8", path=place.shown
        )
    if found["fsync"] != "on":
        raise StoreError("server_unfit", "the server runs with fsync off: it may lose all", path=place.shown)
    if found["copies"]:
        # A standby that is about to be promoted says the same, so it is asked again.
        raise Cut("the server is a standby: it takes no writes")
    if found["commits"] in _WEAK_COMMITS:
        await answered(connection, connection.execute("SET synchronous_commit = on"), place)
    return Link(connection, Backend(found["pid"], found["started_at"]), found["server_ms"])


async def answered(
    connection: Connection, statement: Awaitable[T], place: PostgresPlace, seconds: float | None = None
) -> T:
    """The statement's answer, within ``ANSWER_S`` if no other time is given. Raises ``Cut``, or ``StoreError`` for what the server refused and undid.

    A statement is never cancelled: a cancelled COMMIT that waits for a standby counts as done. A server that is silent for
    too long loses the connection.
    """
    bound_s = ANSWER_S if seconds is None else seconds
    watch = asyncio.get_running_loop().call_later(bound_s, connection.terminate)
    try:
        return await statement
    except (BoundloopError, Cut):
        raise
    except (OSError, TimeoutError, EOFError) as error:
        connection.terminate()
        raise Cut(str(error)[:300] or type(error).__name__) from error
    except Exception as error:
        typed = refused(error, place)
        if isinstance(typed, Cut):
            connection.terminate()
        raise typed from error
    finally:
        watch.cancel()


class Refused(StoreError):
    """The server refused a statement and undid it: nothing of it is there. ``again``: the same may be tried."""

    again: bool = False


def _ended(error: BaseException) -> str:
    """Of an error of the driver itself. One that can't end a transaction because the connection is gone says so in terms of
    its own; what ended it came before."""
    before = error.__context__
    if "closed" not in str(error):
        return str(error)
    return str(before) if isinstance(before, driver().PostgresError) else "the connection ended"


def refused(error: BaseException, place: PostgresPlace) -> StoreError | Cut | BugError:
    """What an error of the driver means."""
    asyncpg = driver()
    if not isinstance(error, asyncpg.PostgresError):
        if isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError):
            return Cut(_ended(error)[:300])
        return BugError("store_bug", f"{type(error).__name__}: {error}"[:300])
    state = str(getattr(error, "sqlstate", "") or "")
    text = str(error)[:300]
    if state == "BL001":
        return DamagedFile(place.shown, text)
    if state[:2] in _CUT_CLASSES or isinstance(error, asyncpg.PostgresConnectionError):
        return Cut(text)
    if state == "53300":
        return Cut(text)  # too many connections: later there may be room
    if state == "53100":
        return DiskFull(place.shown, "the server has no space left")
    if state == "25006":
        return Cut("the server takes no writes")
    if state in ("XX001", "XX002"):
        return DamagedFile(place.shown, text)
    if state[:2] == "28":
        return StoreError("access_refused", text, path=place.shown)
    if state == "42501":
        return StoreError("access_refused", text, path=place.shown)
    if state == "3D000":
        return StoreError("no_such_database", text, path=place.shown)
    typed = Refused(f"postgres_{state.lower()}", text, path=place.shown)
    typed.again = state in _SAME_AGAIN
    return typed
