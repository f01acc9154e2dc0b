"""The suites that look for a planted fault, each as a process over the copy that has it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

SIMULATION: Final = "simulation"
SIM_TIMEOUT_S: Final = 420
PYTEST_TIMEOUT_S: Final = 420

PYTEST_SUITES: Final[dict[str, tuple[str, ...]]] = {
    "rules": (
        "tests/decider",
        "tests/test_scenarios.py",
        "tests/test_budget_laws.py",
        "tests/test_canonical.py",
    ),
    "reference models": ("tests/reference",),
    "stores": ("tests/contract", "tests/test_ownership.py", "tests/test_submit_unhosted.py"),
    "runtime": (
        "tests/test_runtime_effects.py",
        "tests/test_trees.py",
        "tests/test_trees_limits.py",
        "tests/test_trees_crash.py",
        "tests/test_driver_timers.py",
        "tests/test_driver_dispatch.py",
        "tests/test_lost_host.py",
        "tests/test_field_reports_crash.py",
        "tests/test_field_reports_pairing.py",
        "tests/test_field_reports_results.py",
        "tests/test_field_reports_approvals.py",
        "tests/test_field_reports_budgets.py",
        "tests/crash/test_crash_memory.py",
    ),
}

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_SEED = re.compile(r"^FAILING SEED (\d+): (.*)$", re.MULTILINE)


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One suite's answer. ``by`` names the law or the test; ``seeds`` is how many the simulation needed (0 elsewhere)."""

    suite: str
    found: bool
    by: str = ""
    seeds: int = 0
    seconds: float = 0.0


def simulate(tree: Path, seeds: int, start: int) -> Look:
    """The simulation over the copy, one process, until the first failing seed."""
    command = ["tests/planted/first_seed.py", str(seeds), str(start)]
    code, output, seconds = _run(tree, command, SIM_TIMEOUT_S)
    if code == 0:
        return Look(suite=SIMULATION, found=False, seeds=seeds, seconds=seconds)
    seed = _SEED.search(output)
    if seed is not None:
        needed = int(seed[1]) - start + 1
        return Look(suite=SIMULATION, found=True, by=seed[2][:120], seeds=needed, seconds=seconds)
    by = "did not come to an end" if code is None else "ended abnormally: " + _last_line(output)
    return Look(suite=SIMULATION, found=True, by=by, seeds=0, seconds=seconds)


def run_tests(tree: Path, suite: str) -> Look:
    """One of the pytest suites over the copy, until the first failure."""
    # A suite without plugins of its own choice: nothing is shared between the copies.
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *PYTEST_SUITES[suite]]
    code, output, seconds = _run(tree, command, PYTEST_TIMEOUT_S)
    if code == 0:
        return Look(suite=suite, found=False, seconds=seconds)
    failed = _FAILED.search(output)
    by = failed[1] if failed else "did not come to an end" if code is None else _last_line(output)
    return Look(suite=suite, found=True, by=by, seconds=seconds)


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no output"])[-1][:160]


def _run(tree: Path, command: list[str], timeout_s: int) -> tuple[int | None, str, float]:
    """Exit status (None: stopped at the time limit), output, seconds."""
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    code: int | None = None
    output = ""
    try:
        output, _ = process.communicate(timeout=timeout_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        pass  # the code stays None
    finally:
        # What a suite started goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if code is None:
        output, _ = process.communicate()
    return code, output, time.monotonic() - started
