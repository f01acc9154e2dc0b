"""A sync tool that spins for ever and has started a program in a session of its own: cancelled, and timed out, while
siblings in other executors go on; and runs that wait for a person beside it all."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.ray.process_table import eventually
from tests.scale.census import System
from tests.scale.ground import one_node
from tests.scale.verdicts import Verdicts

from boundloop.actors import Result, Runtime
from boundloop.actors.pool_spec import Pool
from boundloop.adapters import ScriptedModel
from boundloop.adapters.script import ScriptedTurn, call, say
from boundloop.runtime import Limits, tool
from boundloop.runtime.model import ModelInput, UserItem

GRACE_S: Final = 10.0
SPARE_S: Final = 3.0
LIMITS: Final = Limits(cost="1", deadline_s=300)
TIMEOUT_MS: Final = 2_000


@dataclass(frozen=True)
class Size:
    siblings: int
    sibling_s: float
    parked: int
    cancel: bool


FULL: Final = Size(siblings=3, sibling_s=15.0, parked=200, cancel=True)
SHORT: Final = Size(siblings=1, sibling_s=2.5, parked=3, cancel=False)


def tools_in(folder: str, sibling_s: float) -> list[Any]:
    """``spin`` and ``spin_short`` note their pid and their program's before they spin."""

    def spin_for_ever(name: str) -> dict[str, str]:
        import os

        program = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        noted = Path(folder) / f"{name}.new"
        noted.write_text(f"{os.getpid()} {program.pid}")
        noted.rename(Path(folder) / name)
        while True:
            pass

    @tool(risk="read", timeout_ms=120_000, max_attempts=1)
    def spin(name: str) -> dict[str, str]:
        """Spin for ever."""
        return spin_for_ever(name)

    @tool(risk="read", timeout_ms=TIMEOUT_MS, max_attempts=1)
    def spin_short(name: str) -> dict[str, str]:
        """Spin for ever, but be given little time."""
        return spin_for_ever(name)

    @tool(risk="read", timeout_ms=120_000, max_attempts=1)
    def work(name: str) -> dict[str, str]:
        """Work for a while."""
        threading.Event().wait(sibling_s)
        return {"worked": name}

    @tool(risk="irreversible", key=("name",), far_side="keyed")
    def pay(name: str) -> dict[str, str]:
        """Pay, once a person agrees."""
        return {"paid": name}

    return [spin, spin_short, work, pay]


def answer(request: ModelInput) -> ScriptedTurn:
    """The input is ``TOOL NAME``: one call of it, then an answer."""
    if request.turn > 1:
        return say("Done.")
    first = request.items[0]
    assert isinstance(first, UserItem)
    name, argument = first.text.split()
    return call(name, {"name": argument})


def check(size: Size, verdicts: Verdicts) -> None:
    """Siblings first, then both ways to an end."""
    with (
        one_node(),
        tempfile.TemporaryDirectory(prefix="scale-") as folder,
        Runtime(
            store=f"sqlite:///{Path(folder) / 'runs.db'}",
            model=ScriptedModel(answer),
            tools=tools_in(folder, size.sibling_s),
            ray="require",
            run_actors=6,
            warm_actors=1,
            pools={"default": Pool(executors=size.siblings + 2, warm=size.siblings + 2)},
        ) as runtime,
    ):
        system = System()
        before = system.census()
        for number in range(-2, size.parked):
            if number == 0:
                before = system.settled()
            runtime.run_sync(f"pay p{number}", limits=LIMITS)
        after = system.settled()
        verdicts.figure("runs parked, one after the other", size.parked)
        verdicts.equal("processes with them", after.processes, before.processes)
        siblings = [runtime.start(f"work w{number}", limits=LIMITS) for number in range(size.siblings)]
        timed_out = runtime.start("spin_short timed-out", limits=LIMITS)
        pids = _pids(folder, "timed-out")
        began = time.monotonic()
        gone_s = _until_gone(pids, began, TIMEOUT_MS / 1_000 + GRACE_S)
        verdicts.at_most(
            "timed out: tool and program gone, s after they began", gone_s, TIMEOUT_MS / 1_000 + SPARE_S
        )
        if size.cancel:
            _cancelled(runtime, folder, verdicts)
        verdicts.equal("the run whose tool timed out", _shown(timed_out.wait(30)), "completed: final")
        results = [handle.wait(60) for handle in siblings]
        verdicts.equal("siblings that completed", sum(one.completed for one in results), size.siblings)


def _cancelled(runtime: Runtime, folder: str, verdicts: Verdicts) -> None:
    cancelled = runtime.start("spin cancelled", limits=LIMITS)
    pids = _pids(folder, "cancelled")
    began = time.monotonic()
    cancelled.cancel()
    gone_s = _until_gone(pids, began, 3 * GRACE_S)
    verdicts.at_most("cancelled: tool and program gone, s", gone_s, GRACE_S + SPARE_S)
    verdicts.equal("the cancelled run", _shown(cancelled.wait(30)), "cancelled: by_user")


def _pids(folder: str, name: str) -> list[int]:
    noted = Path(folder) / name
    if not eventually(noted.exists, 60.0):
        raise RuntimeError(f"{name} did not begin")
    return [int(pid) for pid in noted.read_text().split()]


def _until_gone(pids: list[int], began: float, seconds: float) -> float:
    eventually(lambda: not any(_runs(pid) for pid in pids), seconds)
    return time.monotonic() - began


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _shown(result: Result) -> str:
    return f"{result.outcome}: {result.reason}"
