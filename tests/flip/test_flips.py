"""No changed byte goes unnoticed, and what is wrong is named."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from boundloop.eventstore.port import EventStore
from boundloop.eventstore.sqlite_file import connect
from boundloop.eventstore.verify import StoreVerdict, verify_store
from boundloop.runtime.errors import LogDamaged

from .flips import DirectReads, build, flip_many

FLIPS = 150


@pytest.mark.parametrize("seed", [1, 2])
def test_each_flip_is_noticed_or_changes_nothing(tmp_path: Path, seed: int) -> None:
    fates, missed = flip_many(str(tmp_path), FLIPS, seed)
    assert missed == []
    assert sum(fates.values()) == FLIPS
    assert fates["damaged"] > 0
    assert fates["refused"] > 0


async def tampered(path: Path, change: Callable[[sqlite3.Connection], object]) -> StoreVerdict:
    """The verdict on a store that somebody with a pen has changed."""
    await build(str(path), runs=3)
    connection = connect(str(path))
    try:
        for trigger in ("appends_stay", "appends_remain"):
            connection.execute(f"DROP TRIGGER {trigger}")
        change(connection)
        return await verify_store(cast(EventStore, DirectReads(connection)))
    finally:
        connection.close()


MIDDLE = "(SELECT run_key, first_seq FROM appends WHERE run_key = 2 ORDER BY first_seq LIMIT 1 OFFSET 3)"
ROW = f"WHERE (run_key, first_seq) = {MIDDLE}"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "change",
    [
        f"UPDATE appends SET body = CAST(substr(body, 1, length(body) - 1) || x'7f' AS BLOB) {ROW}",
        f"UPDATE appends SET hash = zeroblob(32) {ROW}",
        f"UPDATE appends SET append_id = x'00' {ROW}",
        f"UPDATE appends SET causation = 'other' {ROW}",
        f"UPDATE appends SET at_ms = at_ms + 1 {ROW}",
        f"UPDATE appends SET epoch = 2 {ROW}",
        f"UPDATE appends SET schema_version = 2 {ROW}",
        f"UPDATE appends SET event_count = event_count + 1 {ROW}",
    ],
)
async def test_a_changed_row_is_named_with_its_seqs(tmp_path: Path, change: str) -> None:
    found: list[tuple[int, int]] = []

    def apply(connection: sqlite3.Connection) -> None:
        found.append(connection.execute(f"SELECT first_seq, event_count FROM appends {ROW}").fetchone())
        assert connection.execute(change).rowcount == 1

    verdict = await tampered(tmp_path / "runs.db", apply)
    (first_seq, event_count), *_ = found
    by_run = {run.run_id: run for run in verdict.runs}
    assert [run_id for run_id, run in by_run.items() if not run.ok] == ["run-001"]
    bad = by_run["run-001"]
    grown = 1 if "event_count + 1" in change else 0
    assert (bad.first_bad_seq, bad.last_bad_seq) == (first_seq, first_seq + event_count - 1 + grown)
    error = bad.error()
    assert isinstance(error, LogDamaged)
    assert (error.path, error.first_bad_seq) == ("run-001", first_seq)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (f"DELETE FROM appends {ROW}", "missing or out of place"),
        ("DELETE FROM appends WHERE run_key = 2 AND first_seq > 5", "the run's row says"),
        ("UPDATE runs SET head = zeroblob(32) WHERE run_key = 2", "isn't the head"),
        ("UPDATE runs SET seq = seq + 1 WHERE run_key = 2", "the run's row says"),
        ("UPDATE runs SET epoch = 0 WHERE run_key = 2", "the run's row says 0"),
    ],
)
async def test_a_removed_row_or_a_moved_end_is_found(tmp_path: Path, change: str, problem: str) -> None:
    verdict = await tampered(tmp_path / "runs.db", lambda connection: connection.execute(change))
    bad = [run for run in verdict.runs if not run.ok]
    assert [run.run_id for run in bad] == ["run-001"]
    assert problem in bad[0].problem
    assert bad[0].last_bad_seq >= bad[0].first_bad_seq > 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("DELETE FROM runs WHERE run_key = 2", "have no run"),
        (
            "UPDATE blob_parts SET data = zeroblob(10) WHERE rowid = (SELECT max(rowid) FROM blob_parts)",
            "isn't what",
        ),
        ("DELETE FROM blobs WHERE size_bytes = 1000", "isn't what"),
    ],
)
async def test_faults_beyond_single_logs_are_found(tmp_path: Path, change: str, fault: str) -> None:
    verdict = await tampered(tmp_path / "runs.db", lambda connection: connection.execute(change))
    assert [run.run_id for run in verdict.runs if not run.ok] == []
    assert not verdict.ok
    assert any(fault in found for found in verdict.faults)


@pytest.mark.asyncio
async def test_a_missing_spilled_body_is_found(tmp_path: Path) -> None:
    verdict = await tampered(
        tmp_path / "runs.db",
        lambda connection: connection.execute("DELETE FROM blobs WHERE size_bytes > 20000"),
    )
    assert ["spilled body is missing" in run.problem for run in verdict.runs if not run.ok] == [True]


@pytest.mark.asyncio
async def test_an_untouched_store_verifies(tmp_path: Path) -> None:
    def nothing(connection: sqlite3.Connection) -> None:
        return None

    verdict = await tampered(tmp_path / "runs.db", nothing)
    assert verdict.ok
    assert len(verdict.runs) == 3
