"""The ledger beside the logs: what was changed, taken out or put in is named, and what isn't, isn't."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from boundloop.actors.client import Runtime
from boundloop.adapters.script import ScriptedTurn, call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.location import open_store
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.sqlite_file import connect
from boundloop.eventstore.verify import StoreVerdict, verify_store
from boundloop.runtime import events as e
from boundloop.runtime.errors import DamagedFile, ToolError
from boundloop.runtime.ledger import LedgerRow
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.tool_spec import tool

from .log_writer import LogWriter, begin, effect, settlement

KEY = b"k" * 32
ANOTHER = (
    "INSERT INTO ledger SELECT tenant, zeroblob(32), tool, status, intent_sha256, args_sha256, run_id, call_id, "
    "attempt, epoch, valid_until_ms, at_ms, result, result_sha256 FROM ledger WHERE run_id = 'r1'"
)


@tool(risk="write", key=("order",), far_side="none")
async def pay(order: str) -> dict[str, int]:
    """Pay an order: one goes through, one is refused before anything happens, one nobody knows of."""
    if order == "refused":
        raise ToolError("closed", no_effect=True)
    if order == "lost":
        raise ToolError("gone")
    return {"paid": 1}


@tool(risk="irreversible", key=("order",), far_side="none")
async def refund(order: str) -> dict[str, int]:
    """Refund an order; a person is asked."""
    return {"refunded": 1}


def run(url: str, run_id: str, *calls: ScriptedTurn, reject: bool = False) -> None:
    limits = Limits(cost=WAIVED)
    with Runtime(store=url, model=ScriptedModel([*calls, say("done")]), tools=[pay, refund]) as runtime:
        result = runtime.run_sync("x", limits=limits, run_id=run_id, operation_id="op")
        if reject:
            runtime.reject(run_id, result.approvals[0].approval_id, by="boss")
            runtime.wait(run_id)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with rows of all kinds: succeeded and replayed, unknown, freed, rejected, waiting."""
    path = str(tmp_path / "runs.db")
    url = f"sqlite:///{path}"
    run(url, "r1", call("pay", {"order": "A"}), call("pay", {"order": "refused"}))
    run(url, "r2", call("pay", {"order": "A"}), call("pay", {"order": "lost"}))
    run(url, "r3", call("refund", {"order": "B"}), reject=True)
    run(url, "r4", call("refund", {"order": "C"}))
    return path


async def verdict(path: str) -> StoreVerdict:
    store = await open_store(f"sqlite:///{path}")
    try:
        return await verify_store(store)
    finally:
        await store.close()


def change(path: str, sql: str) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute(sql).rowcount > 0
    connection.commit()
    connection.close()


@pytest.mark.asyncio
async def test_what_was_written_verifies(path: str) -> None:
    connection = connect(path)
    rows = connection.execute("SELECT run_id, status FROM ledger ORDER BY run_id").fetchall()
    connection.close()
    assert rows == [("r1", "succeeded"), ("r2", "unknown"), ("r3", "rejected"), ("r4", "waiting_approval")]
    assert await verdict(path) == StoreVerdict(runs=(await verdict(path)).runs)
    assert (await verdict(path)).ok


@pytest.mark.asyncio
@pytest.mark.parametrize("run_id", ["r1", "r2", "r3", "r4"])
async def test_a_row_that_was_taken_out_is_missed(path: str, run_id: str) -> None:
    change(path, f"DELETE FROM ledger WHERE run_id = '{run_id}'")
    (fault,) = (await verdict(path)).faults
    assert "is missing" in fault
    assert run_id in fault


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE ledger SET status = 'unknown', result = NULL, result_sha256 = NULL WHERE run_id = 'r1'",
        "UPDATE ledger SET result = x'31' WHERE run_id = 'r1'",
        "UPDATE ledger SET result = NULL, result_sha256 = NULL WHERE run_id = 'r1'",
        "UPDATE ledger SET attempt = 2 WHERE run_id = 'r2'",
        "UPDATE ledger SET intent_sha256 = zeroblob(32) WHERE run_id = 'r3'",
        "UPDATE ledger SET valid_until_ms = valid_until_ms + 1 WHERE run_id = 'r4'",
        "UPDATE ledger SET run_id = 'r9' WHERE run_id = 'r4'",
        "UPDATE ledger SET tenant = 'other' WHERE run_id = 'r1'",
        ANOTHER,
    ],
)
async def test_a_row_that_was_changed_or_put_in_is_named(path: str, sql: str) -> None:
    change(path, sql)
    found = await verdict(path)
    assert not found.ok
    assert all("ledger" in fault for fault in found.faults)
    assert all(one.ok for one in found.runs)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["tenant", "agent", "operation_id", "parent_id", "root_id"])
async def test_whose_run_it_is_is_compared_with_the_log(path: str, name: str) -> None:
    change(path, f"UPDATE runs SET {name} = 'other' WHERE run_id = 'r2'")
    bad = {one.run_id: one.problem for one in (await verdict(path)).runs if not one.ok}
    assert list(bad) == ["r2"]
    assert name in bad["r2"]


@pytest.mark.asyncio
async def test_a_result_that_isnt_what_its_digest_names_is_handed_to_nobody(path: str) -> None:
    change(path, "UPDATE ledger SET result = x'7b7d' WHERE run_id = 'r1'")
    store = await open_store(f"sqlite:///{path}")
    rows = {row.run_id: row for row in await store.ledger_rows()}
    key = rows["r1"].key
    with pytest.raises(DamagedFile):
        await store.ledger_row("default", key)
    assert await store.ledger_row("default", rows["r2"].key) == rows["r2"]
    await store.close()


class Busy(MemoryStore):
    """Something is claimed after the logs were read and before the ledger is."""

    writes = 1

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        if self.writes:
            self.writes -= 1
            log = LogWriter(self, f"r{self.writes}", root_id=f"r{self.writes}")
            await begin(log)
            await effect(log, KEY, 1)
        return await super().ledger_rows(after, limit)


@pytest.mark.asyncio
async def test_a_store_in_use_verifies(tmp_path: Path) -> None:
    store = Busy()
    await begin(LogWriter(store, "r9", root_id="r9"))
    assert (await verify_store(store)).ok
    assert store.writes == 0
    assert len(await store.ledger_rows()) == 1


@pytest.mark.asyncio
async def test_of_two_runs_that_claimed_a_key_the_later_one_has_it() -> None:
    """The row of the first, put back after the second was done, is the first's own and no longer true."""
    store = MemoryStore()
    first, second = (LogWriter(store, name, root_id=name) for name in ("r1", "r2"))
    await begin(first)
    await effect(first, KEY, 1)
    (old,) = await store.ledger_rows()
    await first.write(
        events=[e.CallReconciled("c1.0", "absent", "query")], settlements=(settlement(KEY, "free"),)
    )
    second.at_ms += 10_000
    await begin(second)
    await effect(second, KEY, 2)
    assert (await verify_store(store)).ok
    store._ledger["acme", KEY] = old
    (fault,) = (await verify_store(store)).faults
    assert "status" in fault


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sql",
    [
        "DROP TRIGGER appends_stay",
        "DROP INDEX ledger_unknown",
        "CREATE TRIGGER t AFTER INSERT ON ledger BEGIN DELETE FROM ledger; END",
        "CREATE TABLE more (a)",
    ],
)
async def test_a_file_with_other_tables_or_triggers_is_refused(tmp_path: Path, sql: str) -> None:
    path = str(tmp_path / "runs.db")
    store = await open_store(f"sqlite:///{path}")
    await LogWriter(store, "r1").write("one")
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute(sql)
    connection.close()
    with pytest.raises(DamagedFile):
        await open_store(f"sqlite:///{path}")
