"""w2: how long a new process needs to take an interrupted run to its next step."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.interrupted import RUN_ID
from bench.measure import Facts, Figures, repeated

from boundloop.eventstore.history import load_run
from boundloop.eventstore.sqlite import SqliteStore

SCRIPT = str(Path(__file__).with_name("interrupted.py"))
PROCESS_MAX_S = 300


def seconds_to_next_step(folder: str, *, steps: int, repeat: int) -> Facts:
    """``total_s``: from just before the new process is made until it sends the model request that the killed process
    had sent before it died. ``load_ms``: reading, decoding and folding the log alone, in a process that is warm."""
    path = os.path.join(folder, f"w2_{steps}.db")
    begun = subprocess.run(
        [sys.executable, SCRIPT, "begin", path, str(steps)], timeout=PROCESS_MAX_S, check=False
    )
    if begun.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the first process ended with {begun.returncode}, not by SIGKILL")

    def once(number: int) -> Figures:
        # Each time a copy of what the dead process left: a run that loses its host again and again is stopped.
        left = os.path.join(folder, f"w2_{steps}_{number}.db")
        for tail in ("", "-wal"):
            if os.path.exists(path + tail):
                shutil.copyfile(path + tail, left + tail)
        return {**_process(left, steps), "load_ms": asyncio.run(_load_ms(left)), **_interpreter()}

    return {"workload": "w2", "steps": steps, **repeated(once, repeat)}


def _process(path: str, steps: int) -> Figures:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, SCRIPT, "go_on", path, str(steps)],
        timeout=PROCESS_MAX_S,
        check=True,
        stdout=subprocess.PIPE,
    )
    told = json.loads(done.stdout)
    if told["turn"] != steps + 1:
        raise RuntimeError(f"the run went on at turn {told['turn']}")
    return {
        "total_s": told["asked_s"] - start,
        "import_s": told["imported_s"] - told["began_s"],
        "after_import_s": told["asked_s"] - told["imported_s"],
    }


def _interpreter() -> Figures:
    """What a Python process costs that does nothing."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], timeout=PROCESS_MAX_S, check=True)
    return {"bare_python_s": time.monotonic() - start}


async def _load_ms(path: str) -> float:
    store = await SqliteStore.open(path)
    try:
        await load_run(store, RUN_ID)
        start = time.perf_counter()
        await load_run(store, RUN_ID)
        return (time.perf_counter() - start) * 1e3
    finally:
        await store.close()
