"""What a demo has started is ended whole, whatever is being started in that moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from tests.ray.process_table import eventually

MULTIPLIES = """
import os, time
for _ in range(100):
    if os.fork() == 0:
        os.execv("/bin/sleep", ["sleep", "60"])
    time.sleep(0.001)
print("many", flush=True)
for _ in range(1_000):
    if os.fork() == 0:
        os.execv("/bin/sleep", ["sleep", "60"])
    time.sleep(0.001)
time.sleep(60)
"""
STARTS_AND_ENDS = """
import subprocess, sys
from boundloop.actors.demo_processes import descendants, end_all
with subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=-1, text=True) as process:
    assert process.stdout.readline() == "many\\n"
    known = descendants()
    assert len(known) > 100
    print(end_all(known) > len(known))
"""


def marked(mark: str) -> set[int]:
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def test_a_process_that_goes_on_beginning_others_leaves_none() -> None:
    """A cluster that is just starting does."""
    mark = f"MARK-{uuid4().hex}"
    done = subprocess.run(
        [sys.executable, "-c", STARTS_AND_ENDS, MULTIPLIES],
        stdout=-1,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "MARK": mark},
    )
    assert done.stdout == "True\n"
    assert eventually(lambda: not marked(mark), 5.0), marked(mark)
