"""Eight processes open one new file at once: ``python tests/owner_race.py FOLDER ROUNDS`` prints one line a round.

Each process makes a real ``Runtime``. Whoever opened it keeps it until all have answered. A line is the list of what
they said, ``{"pid", "owned_by": null}`` for an owner; refused ones name pid and host of the one that owns.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from boundloop.actors.client import Runtime
from boundloop.runtime.errors import OwnedError

RACERS: Final = 8


def race(path: Path) -> list[dict[str, Any]]:
    """One round."""
    answers_out, answers_in = os.pipe()
    go_out, go_in = os.pipe()
    done_out, done_in = os.pipe()
    pids: list[int] = []
    for _ in range(RACERS):
        pid = os.fork()
        if pid == 0:
            for other in (answers_out, go_in, done_in):
                os.close(other)
            _run(path, go_out, answers_in, done_out)
        pids.append(pid)
    for end in (answers_in, go_out, done_out):
        os.close(end)
    os.close(go_in)  # off
    answers: list[dict[str, Any]] = []
    with os.fdopen(answers_out, "rb") as lines:
        for line in lines:
            answers.append(json.loads(line))
            if len(answers) == RACERS:
                break
    os.close(done_in)
    for pid in pids:
        os.waitpid(pid, 0)
    return answers


def _run(path: Path, go: int, answers: int, done: int) -> None:
    os.read(go, 1)
    try:
        runtime = Runtime(store=f"sqlite:///{path}")
    except OwnedError as error:
        answer = {"pid": os.getpid(), "owned_by": error.pid, "host": error.host}
        os.write(answers, json.dumps(answer).encode() + b"\n")
    else:
        os.write(answers, json.dumps({"pid": os.getpid(), "owned_by": None}).encode() + b"\n")
        os.read(done, 1)
        runtime.close()
    os._exit(0)


def main(folder: Path, rounds: int) -> None:
    for number in range(rounds):
        print(json.dumps(race(folder / f"{number}.db")), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
