"""Lists of runs: each filter, alone and with others, whole and in pages."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from ...runtime.ledger import RunIndex
from ..port import RunFilter, RunRow
from .log_writer import ENDED, OPEN, LogWriter
from .world import World

BEGAN_MS = 1_700_000_000_000

INDEXES = (
    OPEN,
    RunIndex(status="requesting_model"),
    RunIndex(status="waiting_approval", waiting_for="approval:a1"),
    RunIndex(status="waiting_child", waiting_for="child:r1"),
    RunIndex(status="executing", waiting_for="timer", wake_at_ms=BEGAN_MS),
    RunIndex(status="suspended", outcome="incomplete", reason="max_turns"),
    RunIndex(status="suspended", outcome="incomplete", reason="outcome_unknown", waiting_for="person:c1"),
    ENDED,
    RunIndex(status="terminated", outcome="failed", reason="tool_failed"),
)

FILTERS: tuple[dict[str, Any], ...] = (
    {"status": "open_calls"},
    {"status": "executing"},
    {"status": "waiting_approval"},
    {"status": "suspended"},
    {"status": "terminated"},
    {"status": "nothing"},
    {"status": ""},
    {"outcome": ""},
    {"outcome": "incomplete"},
    {"outcome": "completed"},
    {"outcome": "failed"},
    {"tenant": "acme"},
    {"tenant": ""},
    {"agent": "clerk"},
    {"agent": "cl\0rk"},
    {"operation_id": "op"},
    {"operation_id": ""},
    {"root_id": "r1"},
    {"root_id": ""},
    {"created_since_ms": BEGAN_MS + 3},
    {"created_until_ms": BEGAN_MS + 3},
    {"created_since_ms": BEGAN_MS + 2, "created_until_ms": BEGAN_MS + 6},
    {"created_since_ms": BEGAN_MS + 6, "created_until_ms": BEGAN_MS + 2},
    {"updated_since_ms": BEGAN_MS + 1_003},
    {"updated_until_ms": BEGAN_MS + 1_003},
    {"updated_since_ms": BEGAN_MS + 4, "updated_until_ms": BEGAN_MS + 1_012},
    {"waiting_for_prefix": "approval:"},
    {"waiting_for_prefix": "approval:a\0"},
    {"waiting_for_prefix": "appr%"},
    {"waiting_for_prefix": "child:\U0010ffff"},
    {"waiting_for_prefix": "\U0010ffff"},
    {"waiting_for_prefix": ""},
)


def _fits(row: RunRow, given: dict[str, Any]) -> bool:
    index = row.index
    for name, value in given.items():
        match name:
            case "status" | "outcome":
                fits = getattr(index, name) == value
            case "waiting_for_prefix":
                fits = index.waiting_for.startswith(value)
            case "created_since_ms" | "updated_since_ms":
                fits = getattr(row, name.replace("since", "at")) >= value
            case "created_until_ms" | "updated_until_ms":
                fits = getattr(row, name.replace("until", "at")) < value
            case _:
                fits = getattr(row, name) == value
        if not fits:
            return False
    return True


class ListCases:
    """See ``contract.Contract``."""

    async def _fill(self, world: World) -> list[LogWriter]:
        """Runs of every kind, made in an order that isn't that of their names or times."""
        logs: list[LogWriter] = []
        waits = ("approval:a\0b", "child:\U0010ffff", "\U0010ffff\U0010ffff")
        more = tuple(RunIndex(status="waiting_answer", waiting_for=wait) for wait in waits)
        for number, index in enumerate((*INDEXES, *more, *reversed(INDEXES))):
            log = world.writer(f"r{(number * 7) % 100}", tenant=("acme", "other", "")[number % 3])
            log.agent = ("clerk", "cl\0rk")[number % 2]
            log.operation_id = ("op", "", f"op{number}")[number % 3]
            log.root_id = ("", "r1")[number % 4 == 0]
            log.at_ms = BEGAN_MS + (number * 5) % 11
            await log.write("one", index=INDEXES[number % 3])
            if number % 3:
                log.at_ms += 1_000
                await log.write("two", index=index)
            logs.append(log)
        return logs

    async def test_each_filter_finds_what_fits_and_nothing_else(self, world: World) -> None:
        await self._fill(world)
        everything = await world.store.runs(RunFilter(limit=1_000))
        both = itertools.combinations(FILTERS, 2)
        for given in (*FILTERS, *(one | two for one, two in both if not one.keys() & two.keys())):
            found = [row.run_id for row in await world.store.runs(RunFilter(**given))]
            assert found == [row.run_id for row in everything if _fits(row, given)], given

    async def test_pages_of_a_filter_are_its_list(self, world: World) -> None:
        await self._fill(world)
        for given in FILTERS:
            where = RunFilter(limit=1_000, **given)
            whole = [row.run_id for row in await world.store.runs(where)]
            paged: list[str] = []
            where = msgspec.structs.replace(where, limit=2)
            while page := [row.run_id for row in await world.store.runs(where)]:
                paged += page
                where = msgspec.structs.replace(where, after=page[-1])
            assert paged == whole, given

    async def test_a_page_goes_on_where_the_last_one_ended_though_runs_changed(self, world: World) -> None:
        logs = await self._fill(world)
        first = await world.store.runs(RunFilter(tenant="acme", limit=3))
        rest = await world.store.runs(RunFilter(tenant="acme", after=first[-1].run_id))
        # The one that the page ended with is of another status by now, older ones changed, and there are new ones.
        for log in logs:
            log.at_ms += 5_000
            await log.write("later", index=ENDED)
        await world.writer("new").write("one")
        again = await world.store.runs(RunFilter(tenant="acme", after=first[-1].run_id))
        assert [row.run_id for row in again] == [row.run_id for row in rest]
        assert await world.store.runs(RunFilter(status="waiting_approval", after=first[-1].run_id)) == []

    async def test_a_run_is_found_by_what_it_is_now(self, world: World) -> None:
        log = world.writer("r1")
        log.at_ms = BEGAN_MS
        for index in (*INDEXES, *reversed(INDEXES), *INDEXES[::2]):
            log.at_ms += 10
            await log.write("on", index=index)
            for given in FILTERS:
                where = RunFilter(**given)
                [row] = await world.store.runs(RunFilter())
                assert bool(await world.store.runs(where)) == _fits(row, given), (index, given)
            moved = RunFilter(updated_since_ms=log.at_ms, updated_until_ms=log.at_ms + 1)
            assert len(await world.store.runs(moved)) == 1
