"""What the doctor says about a PostgreSQL store."""

from __future__ import annotations

import msgspec
import pytest
from tests.command_line import CommandLine
from tests.postgres_server import Server

from boundloop.actors.doctor_postgres import findings
from boundloop.eventstore.postgres_facts import ServerFacts

FACTS = ServerFacts(
    version="18.1", standbys="s1", places=97, taken=3, checksums=True, ahead_ms=5, schema="current"
)


def levels(facts: ServerFacts) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings(facts) if finding.level != "ok"}


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        ({}, {}),
        ({"standbys": ""}, {"store.standby": "warn"}),
        ({"taken": 90}, {"store.connections": "warn"}),
        ({"ahead_ms": -1_001}, {"store.clock": "warn"}),
        ({"checksums": False}, {"store.checksums": "warn"}),
        ({"schema": "absent"}, {}),
    ],
)
def test_each_fact_has_its_finding(changed: dict[str, object], level: dict[str, str]) -> None:
    assert levels(msgspec.structs.replace(FACTS, **changed)) == level


def test_a_server_is_looked_at_and_not_changed(postgres: Server, cli: CommandLine) -> None:
    url = postgres.url("never_made")
    for _ in range(2):
        done = cli("doctor", "--store", url, "-o", "json")
        found = {row["name"]: row for row in done.value}
        assert found["store.server"]["found"].startswith("PostgreSQL ")
        assert "not there yet" in found["store.schema"]["found"]


def test_a_server_that_is_not_there_is_a_failure_without_its_password(cli: CommandLine) -> None:
    done = cli("doctor", "--store", "postgresql://app:s3cret@/x?host=/nowhere", "-o", "json")
    row = next(row for row in done.value if row["name"] == "store.server")
    assert row["level"] == "fail"
    assert "s3cret" not in done.out
    assert done.code == 1
