"""The owner dies by SIGKILL. What it acknowledged is there, whole; what it didn't is there whole or not at all."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from boundloop.eventstore.chain import GENESIS
from boundloop.eventstore.location import open_store
from boundloop.eventstore.port import AlreadyDone, Appended
from boundloop.eventstore.verify import verify_store

from .log_writer import LogWriter, claim

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60

WRITERS = """
import asyncio, os, sys
from boundloop.eventstore.location import open_store
from tests.contract.log_writer import LogWriter

async def write(log):
    while True:
        await log.write("x" * (37 * log.seq % 3_000))
        os.write(1, f"{log.run_id} {log.seq} {log.head.hex()}\\n".encode())

async def main():
    store = await open_store(sys.argv[1])
    await asyncio.gather(*(write(LogWriter(store, f"r{number}")) for number in range(int(sys.argv[2]))))

asyncio.run(main())
"""


@pytest.mark.asyncio
@pytest.mark.parametrize(("runs", "lines"), [(1, 40), (1, 700), (8, 100), (8, 1_500), (50, 2_000)])
async def test_acknowledged_appends_outlive_a_kill(tmp_path: Path, runs: int, lines: int) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with subprocess.Popen(  # noqa: ASYNC220  nothing else runs on this loop
        [sys.executable, "-c", WRITERS, url, str(runs)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        told += process.stdout.readlines()
    if told and not told[-1].endswith("\n"):
        told.pop()
    store = await open_store(url)
    verdict = await verify_store(store)
    assert verdict.ok
    stored = {
        (run.run_id, row.first_seq, row.hash.hex())
        for run in verdict.runs
        for row in await store.read(run.run_id, rows_max=100_000)
    }
    acknowledged = {(run_id, int(seq), head) for run_id, seq, head in (line.split() for line in told)}
    assert len(acknowledged) >= lines
    assert acknowledged <= stored
    assert len(stored) <= len(acknowledged) + runs  # each run had at most one more on its way
    await store.close()


AT_COMMIT = """
import asyncio, os, signal, sqlite3, sys
from boundloop.eventstore.location import open_store
from tests.contract.log_writer import LogWriter, claim

class Deadly(sqlite3.Connection):
    left = None
    def execute(self, sql, *args):
        if sql == "COMMIT" and Deadly.left is not None:
            Deadly.left -= 1
            if Deadly.left == 0:
                if sys.argv[2] == "after":
                    super().execute(sql)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(sql, *args)

original = sqlite3.connect
sqlite3.connect = lambda path, **options: original(path, factory=Deadly, **options)

async def main():
    store = await open_store(sys.argv[1])
    Deadly.left = int(sys.argv[3])
    log = LogWriter(store, "r1")
    for number in range(5):
        await log.write(str(number), claim=claim(bytes([number]) * 32))

asyncio.run(main())
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("nth", [1, 2, 4])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_kill_at_the_commit_leaves_all_of_an_append_or_nothing(
    tmp_path: Path, moment: str, nth: int
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    done = subprocess.run(  # noqa: ASYNC221  nothing else runs on this loop
        [sys.executable, "-c", AT_COMMIT, url, moment, str(nth)], check=False, cwd=ROOT, timeout=PATIENCE_S
    )
    assert done.returncode == -signal.SIGKILL
    store = await open_store(url)
    there = nth if moment == "after" else nth - 1
    rows = await store.read("r1")
    assert len(rows) == there
    assert [await store.ledger_row("acme", bytes([number]) * 32) is not None for number in range(5)] == [
        number < there for number in range(5)
    ]
    log = LogWriter(store, "r1", seq=nth - 1, head=rows[nth - 2].hash if nth > 1 else GENESIS)
    answer = await log.append(str(nth - 1), claim=claim(bytes([nth - 1]) * 32))
    assert isinstance(answer, AlreadyDone if moment == "after" else Appended)
    assert (await verify_store(store)).ok
    await store.close()
