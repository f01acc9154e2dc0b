"""A store's server: whether it can be reached, and what its settings and clock mean for runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from ..eventstore.location import shown_url
from ..eventstore.postgres_facts import ServerFacts, server_facts
from ..runtime.errors import BoundloopError
from .doctor_findings import Finding, fail, ok, warn

PLACES_FEW: Final = 10
AHEAD_MS_MAX: Final = 1_000


def check_postgres(url: str) -> Iterator[Finding]:
    """Connects once, and changes nothing."""
    try:
        facts = asyncio.run(server_facts(url))
    except BoundloopError as error:
        yield fail(
            "store.server", f"{shown_url(url)}: {error.message}", "no run goes on", "docs/postgresql.md"
        )
        return
    yield from findings(facts)


def findings(facts: ServerFacts) -> Iterator[Finding]:
    """What its facts mean."""
    yield ok("store.server", f"PostgreSQL {facts.version}")
    if facts.standbys:
        yield ok("store.standby", f"a commit waits for {facts.standbys}")
    else:
        yield warn(
            "store.standby",
            "no standby is synchronous",
            "a failover may lose commits that were acknowledged, and intents of effects that took place with them",
            "synchronous_standby_names, if there is a standby at all",
        )
    free = facts.places - facts.taken
    if free < PLACES_FEW:
        yield warn(
            "store.connections", f"{free} free", "each process takes two, each command too", "max_connections"
        )
    else:
        yield ok("store.connections", f"{free} free")
    if abs(facts.ahead_ms) > AHEAD_MS_MAX:
        yield warn(
            "store.clock",
            f"the server's clock is {facts.ahead_ms} ms ahead of this machine's",
            "deadlines, approvals and owner rows go by the server's",
            "NTP on both",
        )
    else:
        yield ok("store.clock", f"{facts.ahead_ms} ms ahead of this machine's")
    if facts.checksums:
        yield ok("store.checksums", "on")
    else:
        yield warn(
            "store.checksums",
            "off",
            "the server hands out pages that the disk has altered; verify finds it, later",
            "pg_checksums --enable, with the server stopped",
        )
    yield ok(
        "store.schema",
        {
            "absent": "not there yet: the first Runtime makes it",
            "older": "older: the next Runtime brings it up",
        }.get(facts.schema, facts.schema),
    )
