"""What a PostgreSQL server says about itself that matters to a store, without changing anything."""

from __future__ import annotations

import time

import msgspec

from ..runtime.errors import StoreError
from .postgres_link import Cut, answered, connect
from .postgres_migrate import state_of
from .postgres_url import parse_postgres_url

_FACTS = (
    "SELECT current_setting('server_version') AS version, current_setting('synchronous_standby_names') AS standbys, "
    "current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint AS places, "
    "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS taken, "
    "current_setting('data_checksums') AS checksums"
)


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """``ahead_ms``: the server's clock before this machine's. ``schema``: ``absent``, ``current`` or ``older``."""

    version: str
    standbys: str
    places: int
    taken: int
    checksums: bool
    ahead_ms: int
    schema: str


async def server_facts(url: str) -> ServerFacts:
    """Raises ``StoreUrlError``, ``WrongSettings``, ``NewerSchema``, ``DamagedFile``, ``StoreError``."""
    place = parse_postgres_url(url)
    try:
        link = await connect(place, "boundloop doctor")
        ahead_ms = link.server_ms - time.time_ns() // 1_000_000
        try:
            found = await answered(link.connection, link.connection.fetchrow(_FACTS), place)
            schema = await state_of(link.connection, place)
        finally:
            link.connection.terminate()
    except Cut as cut:
        raise StoreError("store_unreachable", str(cut), path=place.shown) from cut
    return ServerFacts(
        version=found["version"],
        standbys=found["standbys"],
        places=found["places"],
        taken=found["taken"],
        checksums=found["checksums"] == "on",
        ahead_ms=ahead_ms,
        schema=schema,
    )
