"""The judge of the kill suites sees what is broken: each promise is broken once, on purpose."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from examples.far_side import FarSide
from tests.crash.proof import Acknowledged
from tests.kill.acks import Ack, read_acks
from tests.kill.judge import FORBIDDEN, judge, judge_acks
from tests.kill.load import LIMITS, runtime_on
from tests.kill.recovery import Placement, Recovery
from tests.kill.talk import Committed

from boundloop.eventstore.location import open_store


class Case(NamedTuple):
    """A store with one run that ended, what the far side counted, and what was acknowledged."""

    path: str
    counts: dict[str, dict[str, int]]
    acknowledged: list[Acknowledged]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    path = str(tmp_path_factory.mktemp("judge") / "runs.db")
    with FarSide.start(in_order=True) as far:
        with runtime_on(path, far) as runtime:
            runtime.start("Go.", run_id="r1", limits=LIMITS, system="book post_letter ship").wait(30)
        yield Case(path, far.counts(), asyncio.run(appends_of(path)))


async def appends_of(path: str) -> list[Acknowledged]:
    store = await open_store(f"sqlite:///{path}")
    try:
        rows = await store.read("r1")
        return [Acknowledged("r1", row.first_seq, row.event_count, row.hash) for row in rows]
    finally:
        await store.close()


def broken(case: Case, **changed: Any) -> dict[str, int]:
    given = case._replace(**changed)
    found = asyncio.run(judge(f"sqlite:///{given.path}", *given[1:]))
    return {name: found[name] for name in FORBIDDEN if found[name]}


def more(case: Case, what: str, kind: str) -> dict[str, dict[str, int]]:
    """One more of that than there was."""
    name = next(name for name in case.counts[what] if name.startswith(kind))
    return {**case.counts, what: {**case.counts[what], name: case.counts[what][name] + 1}}


def test_nothing_is_wrong_with_what_is_right(case: Case) -> None:
    assert broken(case) == {}
    assert sorted(name.partition(":")[0] for name in case.counts["effects"]) == ["keyed", "none", "queryable"]


def test_an_append_that_was_acknowledged_and_is_not_there_is_seen(case: Case) -> None:
    first, *rest = case.acknowledged
    changed = msgspec.structs.replace(first, hash=b"x" * 32)
    assert broken(case, acknowledged=[changed, *rest]) == {"lost or changed events": first.event_count}
    elsewhere = msgspec.structs.replace(first, run_id="r2")
    assert "lost or changed events" in broken(case, acknowledged=[elsewhere])


@pytest.mark.parametrize("kind", ["keyed", "none", "queryable"])
def test_a_second_effect_is_seen(case: Case, kind: str) -> None:
    assert broken(case, counts=more(case, "effects", kind)) == {"duplicate effects": 1}


def test_a_request_without_an_intent_is_seen_and_so_is_a_second_one_where_none_may_be(case: Case) -> None:
    assert broken(case, counts=more(case, "requests", "keyed")) == {"requests without an intent": 1}
    assert broken(case, counts=more(case, "requests", "none")) == {
        "requests without an intent": 1,
        "none effects asked for twice": 1,
    }
    strange = {**case.counts, "requests": {**case.counts["requests"], "keyed:00": 1}}
    assert broken(case, counts=strange) == {"requests without an intent": 1}


def test_a_yes_that_the_log_knows_nothing_of_is_seen(case: Case, tmp_path: Path) -> None:
    acks = [Ack(what="started", run_id="r1"), Ack(what="approved", run_id="r1", seq=2)]
    assert asyncio.run(judge_acks(f"sqlite:///{case.path}", acks))["lost yeses"] == 1
    written = tmp_path / "acks.jsonl"
    written.write_bytes(b"".join(msgspec.json.encode(ack) + b"\n" for ack in acks) + b'{"what":"sta')
    assert read_acks(written) == acks


def committed(run_id: str, host_id: str, *, rests: bool = False) -> Committed:
    return Committed(run_id, 1, 1, b"", host_id, rests)


def test_recovery_counts_from_the_kill_to_the_next_append_by_another_host() -> None:
    placement, recovery = Placement(), Recovery()
    placement.registered("h1", 7)
    for message in (committed("a", "h1"), committed("b", "h1", rests=True), committed("c", "h2")):
        placement.committed(message)
    hosts = placement.hosts_of(7)
    assert placement.runs_of(hosts) == {"a"}
    recovery.killed("run-actor", placement.runs_of(hosts), hosts, 10.0)
    recovery.committed("a", "h1", 10.1)
    recovery.committed("c", "h2", 10.2)
    assert recovery.open_runs == Counter({"run-actor": 1})
    recovery.committed("a", "h2", 10.5)
    assert recovery.ms == {"run-actor": [500]}
    assert recovery.open_runs == Counter()
    assert recovery.lines()[0] == "recovery ms, run-actor: p50 500, p95 500, p99 500 of 1 runs"
