"""A short session of the simulation, that it is the same each time, and that its judge can find something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.decider.family import Family
from tests.decider.spec import Run, call
from tests.sim.kinds import KINDS
from tests.sim.laws import RunWatch
from tests.sim.plan import Plan, Root, Strike, plan_of
from tests.sim.promises import Broken, Promises
from tests.sim.report import headline, lines, story
from tests.sim.run import played
from tests.sim.shrink import shrunk
from tests.sim.summary import Summary, Violation
from tests.sim.world import World, play

from boundloop.actors.driver import RunDriver
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import AcquireAnswer, Append
from boundloop.runtime import events as e
from boundloop.runtime.events import CallStarted
from boundloop.runtime.state import CallState, State

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = 60
ONE_RUN = Root("root0", 0, "roomy", "", "op", "suspend", hosted=True)


@pytest.fixture(scope="module")
def session() -> Summary:
    return played(range(SEEDS))


def test_no_law_breaks_in_a_short_session(session: Summary) -> None:
    assert [headline(violation) for violation in session.violations] == []


def test_the_short_session_is_worth_something(session: Summary) -> None:
    """Runs act, most kinds of faults strike, and few runs end by a limit alone."""
    runs = sum(session.runs)
    assert runs >= 2 * SEEDS
    assert session.runs_with_effect > 0.7 * runs
    assert session.runs_ended_by_limit < 0.1 * runs
    assert len(session.faults) > 0.6 * len(KINDS)
    assert session.epochs_most > 2


def test_the_report_names_what_there_is(session: Summary) -> None:
    text = "\n".join(lines(session, 1.0, uncovered=True))
    assert f"seeds {SEEDS}" in text
    assert "violations 0" in text
    assert "not covered: " in text
    told = Summary(violations=[Violation(7, "I4", "twice")], events=[1], runs=[1])
    assert "FAILING SEED 7 breaks I4: twice" in "\n".join(lines(told, 1.0, uncovered=False))


@pytest.mark.parametrize("seed", [3, 38])
def test_a_seed_is_the_same_each_time(seed: int) -> None:
    assert play(plan_of(seed)).digest() == play(plan_of(seed)).digest()


def test_a_seed_is_the_same_in_any_process() -> None:
    told: set[str] = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "sim" / "run.py"), "--seed", "11"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        told.add(done.stdout)
    assert len(told) == 1
    assert f"trace {play(plan_of(11)).digest()}" in told.pop()


def test_other_seeds_are_other_worlds() -> None:
    assert len({play(plan_of(seed)).digest() for seed in range(6)}) == 6


def plan(*strikes: Strike, **fields: Any) -> Plan:
    made = Plan(seed=5, hosts=2, slow_store=False, pooled=False, roots=(ONE_RUN,), strikes=strikes)
    return msgspec.structs.replace(made, **fields)


def broken(world: World) -> str:
    return world.judge.violation[0] if world.judge.violation else ""


def test_each_kind_of_fault_is_planned_and_has_a_point() -> None:
    planned = {strike.kind for seed in range(400) for strike in plan_of(seed).strikes}
    assert planned == set(KINDS)


# --- the judge finds what is broken on purpose -----------------------------------------------------------------------


def test_a_host_that_dispatches_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = RunDriver._dispatch  # pyright: ignore[reportPrivateUsage]  # it is broken on purpose

    def twice(self: RunDriver, now: int) -> bool:
        dispatch(self, now)
        self._out.orders.clear()  # pyright: ignore[reportPrivateUsage]  # as if nothing were out
        return dispatch(self, now)

    monkeypatch.setattr(RunDriver, "_dispatch", twice)
    assert {broken(play(plan_of(seed))) for seed in range(3)} & {"I4", "I7"}


def test_a_store_that_lets_old_epochs_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def everybody(self: MemoryStore, run_id: str, host_id: str, **_: Any) -> AcquireAnswer:
        answer = await acquire(self, run_id, host_id)
        self._runs[run_id].row = msgspec.structs.replace(self._runs[run_id].row, epoch=1)  # pyright: ignore[reportPrivateUsage]  # it is broken on purpose
        return answer

    acquire = MemoryStore.acquire
    monkeypatch.setattr(MemoryStore, "acquire", everybody)
    assert any(broken(play(plan_of(seed))) for seed in range(20))


def test_a_lost_append_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = MemoryStore._write  # pyright: ignore[reportPrivateUsage]  # it is broken on purpose

    def forgets(self: MemoryStore, request: Append, run: Any, now_ms: int) -> list[str]:
        woken = write(self, request, run, now_ms)
        if 0 < request.expected_seq < 6:
            run.log[-1] = msgspec.structs.replace(run.log[-1], at_ms=request.at_ms + 1)
        return woken

    monkeypatch.setattr(MemoryStore, "_write", forgets)
    assert broken(play(plan())) in ("I1", "I11")


def test_an_effect_without_its_intent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.sim import laws

    take = laws.Judge._before  # pyright: ignore[reportPrivateUsage]  # as if the log lacked it

    def overlooks(self: laws.Judge, watch: laws.RunWatch, event: Any) -> None:
        if not isinstance(event, CallStarted):
            take(self, watch, event)

    monkeypatch.setattr(laws.Judge, "_before", overlooks)
    assert broken(play(plan())) == "I4"


def test_a_wait_without_a_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from boundloop.runtime import index

    def nobody(state: State, call: CallState) -> int:
        return 0

    monkeypatch.setattr(index, "held_by_rate_until", nobody)
    assert any(broken(play(plan_of(seed))) == "I12" for seed in range(200))


@pytest.mark.parametrize("cancelled", ["before it is made", "before it is told of", "later"])
def test_a_child_that_acts_though_its_parent_was_cancelled_before_it_began_is_found(cancelled: str) -> None:
    """No short session gets a host to die between a lease and its child, and a cancel there; so the law is asked directly."""
    family = Family()
    root = family.root
    root.reply(call("helper", input="go"))
    root.check("c1.0")
    promises, parent = Promises(play(plan())), watched(root)

    def cancel() -> None:
        root.cancel()
        parent.cancelled = True

    if cancelled == "before it is made":
        cancel()
    child = family.start(root, "c1.0")
    promises.begun(child.state, root.state)
    if cancelled == "before it is told of":
        cancel()
    promises.before(parent, e.ChildStarted("c1.0", child.state.run_id))
    if cancelled == "later":
        cancel()
    asks = next(event for event, _ in child.log if isinstance(event, e.ModelRequested))
    if cancelled == "later":  # what it did before it was told is no fault of anybody
        promises.before(watched(child), asks)
        return
    with pytest.raises(Broken, match="I8"):
        promises.before(watched(child), asks)


def watched(run: Run) -> RunWatch:
    started, at_ms = run.log[0]
    assert isinstance(started, e.RunStarted)
    return RunWatch(run.state, started, at_ms, "r1")


def test_a_failing_seed_is_shrunk_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several faults only the one that matters is left."""

    async def refuses(self: MemoryStore, run_id: str, host_id: str, epoch: int, *, ready: bool) -> None:
        """Runs are never let go of."""

    monkeypatch.setattr(MemoryStore, "release", refuses)
    faults = (Strike("clock_back", 10, 1), Strike("cancel", 100, 1), Strike("overrun", 1, 9))
    failing = next(
        world for seed in range(40) if broken(world := play(plan(*faults, seed=seed))) in ("I10", "I12")
    )
    small = shrunk(failing.plan, broken(failing))
    assert broken(small) == broken(failing)
    assert len(small.plan.strikes) < len(faults)
    told = "\n".join(story(small))
    assert "run_started" in told
    assert "LAW" in told
