"""A cancelled call of a SQLite store loses nothing, doubles nothing and leaves nothing behind; neither does a program that
forgets to close one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shell import ROOT
from tests.sqlite_faults.cancelled import CALLS, MOMENTS, Cancellations, Moment

from boundloop.eventstore.location import open_store
from boundloop.eventstore.verify import verify_store

STUCK_S = 60.0


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", ["open", *CALLS])
def test_a_call_that_is_cancelled_wherever_it_waits_is_done_or_not_done(name: str, moment: Moment) -> None:
    cancellations = Cancellations()
    cancellations.all_steps(name, moment)
    assert cancellations.broken == []
    assert cancellations.trials.total() >= 1


FORGETFUL = """
import asyncio, sys
from boundloop.eventstore.location import open_store
from tests.contract.log_writer import LogWriter

async def main():
    store = await open_store("sqlite:///" + sys.argv[1])
    logs = [LogWriter(store, f"r{number}") for number in range(20)]
    await asyncio.gather(*(log.write("one") for log in logs))
    appending = [asyncio.ensure_future(log.append("x" * 90_000)) for log in logs]
    await asyncio.sleep(0)
    if sys.argv[2] == "cancelled":
        for one in appending:
            one.cancel()
    elif sys.argv[2] == "awaited":
        await asyncio.gather(*appending)
    print("the end", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["awaited", "cancelled", "left"])
def test_a_program_that_ends_with_an_open_store_ends(tmp_path: Path, way: str) -> None:
    path = tmp_path / "runs.db"
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, str(path), way],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")

    async def rows() -> list[int]:
        store = await open_store(f"sqlite:///{path}")
        assert (await verify_store(store)).ok
        found = [len(await store.read(f"r{number}")) for number in range(20)]
        await store.close()
        return found

    found = asyncio.run(rows())
    assert found == [2] * 20 if way == "awaited" else set(found) <= {1, 2}
