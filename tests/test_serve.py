"""A process that only serves ends when it is told to, with its runs put down for the next."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from tests.attach_play import LIMITS, Member, runtime_on
from tests.ray.process_table import eventually

from boundloop.actors.client import Runtime
from boundloop.actors.supervisor import DRAIN_S
from boundloop.runtime.errors import StoreError

WITHIN_S: Final = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def close_once_it_serves(runtime: Runtime) -> None:
    assert eventually(lambda: bool(vars(runtime)["_closed_words"]), WITHIN_S)
    runtime.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_its_runs_go_on_in_the_next(path: Path, tmp_path: Path, number: int) -> None:
    gate = tmp_path / "gate"
    with Member(path) as member:
        member.ask("start", run="r1", plan="hold look", input=str(gate))
        member.ask("serve")
        began = time.monotonic()
        member.process.send_signal(number)
        assert member.answer() == {"closed": True}
        assert time.monotonic() - began < DRAIN_S
        gate.touch()
        with runtime_on(path) as following:
            assert following.result("r1", WITHIN_S).outcome == "completed"


def test_signals_mean_what_they_meant_before_and_after(path: Path) -> None:
    def handler(number: int, frame: object) -> None:
        """Never called."""

    before = signal.signal(signal.SIGTERM, handler)
    try:
        runtime = runtime_on(path)
        with ThreadPoolExecutor(1) as threads:
            ending = threads.submit(close_once_it_serves, runtime)
            runtime.serve()
            ending.result(WITHIN_S)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_serves_until_it_is_closed_and_leaves_signals_alone(path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    runtime = runtime_on(path)
    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(runtime.serve)
        assert runtime.run_sync("go", system="look", limits=LIMITS).outcome == "completed"
        assert signal.getsignal(signal.SIGTERM) is before
        close_once_it_serves(runtime)
        serving.result(WITHIN_S)
    with pytest.raises(StoreError, match="closed"):
        runtime.serve()
