"""Run actors that die, hang, refuse and fail to be made, played by fakes on a real store whose time is moved."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec
import pytest
from tests.stepped_loop import SteppedLoop
from tests.written_runs import pins_for

from boundloop.actors import seats
from boundloop.actors.provisional import Mark, Shown
from boundloop.actors.seats import Seating
from boundloop.actors.supervisor import (
    ADOPT_S,
    ALONE_MAX,
    ANSWER_S,
    DRAIN_S,
    END_S,
    REFUSALS_MAX,
    START_BACKOFF_S,
    LetGo,
    Supervisor,
)
from boundloop.adapters.port import TextDelta
from boundloop.eventstore.admission import create_unhosted
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import Acquired, HostRow
from boundloop.runtime.commands import Cancel, CommandAnswer, OutsideCommand
from boundloop.runtime.errors import CallerError, ConflictError, StoreError
from boundloop.runtime.events import RunStarted
from boundloop.runtime.start import NewRunSpec, start_run

TENANT: Final = "default"
CANCEL: Final = Cancel(command_id="1", by="os:ann@desk", reason="by_user")
ROW_VALID_MS: Final = 14_000
"""A row that was just renewed has expired by then, and the reaper has seen it."""


def spec_of(run_id: str) -> NewRunSpec:
    return NewRunSpec(tenant=TENANT, principal="p", operation_id=run_id, run_id=run_id, agent="a", input="go")


class FakeActor:
    """A run actor as its supervisor sees it. ``stop``: it says nothing any more, and renews nothing."""

    def __init__(self, stage: Stage, name: str, dense: bool) -> None:
        self.stage = stage
        self.name = name
        self.dense = dense
        self.host_id = f"host-{name}"
        self.ended = asyncio.Event()
        self.running = asyncio.Event()
        self.running.set()
        self.kills = 0
        self.has: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.refuses: dict[str, str] = {}
        self.calls: list[str] = []
        self.drains = 0
        self.drain_hangs = False
        self.dies_of_kill = True

    async def open(self) -> None:
        await self.stage.store.register_host(
            HostRow(host_id=self.host_id, node="n", pid=1, pid_start=1, boot_id="b")
        )
        self.stage.aside(self._renew())

    async def _renew(self) -> None:
        while not self.ended.is_set():
            await self.running.wait()
            await self.stage.store.renew_host(self.host_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await self.ended.wait()

    async def _call(self, what: str) -> None:
        self.calls.append(what)
        if self.ended.is_set():
            raise ConnectionError("dead")
        waits = [asyncio.ensure_future(self.running.wait()), asyncio.ensure_future(self.ended.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.ended.is_set():
            raise ConnectionError("died")

    async def adopt(self, run_ids: Sequence[str], number: int) -> dict[str, str]:
        await self._call("adopt")
        refused: dict[str, str] = {}
        for run_id in run_ids:
            if run_id in self.refuses:
                refused[run_id] = self.refuses[run_id]
                continue
            answer = await self.stage.store.acquire(run_id, self.host_id)
            if isinstance(answer, Acquired):
                self.has[run_id] = answer.epoch
                self.numbers[run_id] = number
                self.stage.adopted.append((run_id, self.name, answer.died))
            else:
                refused[run_id] = ""
        return refused

    async def nudge(self, run_ids: Sequence[str]) -> None:
        await self._call("nudge")

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        await self._call("submit")
        return CommandAnswer(accepted=True, seq=7) if run_id in self.has else None

    async def shown(self, run_id: str, mark: Mark, timeout_s: float) -> Shown:
        await self._call("shown")
        return Shown(mark, 1, (TextDelta(1, 1, 0, self.name),)) if run_id in self.has else Shown(mark)

    async def drain(self) -> None:
        await self._call("drain")
        self.drains += 1
        if self.drain_hangs:
            await asyncio.get_running_loop().create_future()
        await self.stage.store.drop_host(self.host_id)

    async def gone(self) -> None:
        await self.ended.wait()

    def kill(self) -> None:
        self.kills += 1
        if self.dies_of_kill:
            self.ended.set()

    # --- what the test does ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        self.running.clear()

    def die(self) -> None:
        self.ended.set()

    async def let_go(
        self, run_id: str, *, ready: bool = False, failed: str = "", lingering: bool = False
    ) -> None:
        await self.stage.store.release(run_id, self.host_id, self.has.pop(run_id), ready=ready)
        self.stage.supervisor.let_go(LetGo(self.name, run_id, self.numbers[run_id], failed, lingering))


class Stage:
    """A supervisor, its fakes, and an owner's host that hands ready runs to it."""

    def __init__(self, loop: SteppedLoop) -> None:
        self.loop = loop
        self.store = MemoryStore(clock=lambda: 1_700_000_000_000 + loop.now_ms)
        self.actors: list[FakeActor] = []
        self.adopted: list[tuple[str, str, bool]] = []
        self.left_alone: dict[str, BaseException] = {}
        self.told: list[tuple[str, BaseException | None]] = []
        self.attempts: list[int] = []
        self.fail_to_make: Exception | None = None
        self.looks = 0
        self.dense = False
        self._aside: set[asyncio.Task[None]] = set()

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        self._aside.add(self.loop.create_task(work))

    async def open(self, *, warm: int = 1, solo_max: int = 2, dense_max: int = 0) -> None:
        self.supervisor = Supervisor(
            self.store,
            self._make,
            seating=Seating(warm=warm, solo_max=solo_max, dense_max=dense_max),
            tenant=TENANT,
            label="test",
            look=self._look,
            leave_alone=self.left_alone.__setitem__,
            watch=lambda run_id, error: self.told.append((run_id, error)),
        )
        await self.supervisor.open()
        await self.loop.settle()

    async def _make(self, name: str, dense: bool) -> FakeActor:
        self.attempts.append(self.loop.now_ms)
        if self.fail_to_make is not None:
            raise self.fail_to_make
        actor = FakeActor(self, name, dense)
        await actor.open()
        self.actors.append(actor)
        return actor

    def _look(self) -> None:
        self.looks += 1
        self.aside(self._hand_out())

    async def _hand_out(self) -> None:
        for run_id in await self.store.ready_runs():
            if not self.supervisor.holds(run_id) and run_id not in self.left_alone:
                row = await self.store.run(run_id)
                assert row is not None
                self.supervisor.takes(row, self.started(run_id))

    def started(self, run_id: str) -> RunStarted:
        spec = NewRunSpec(
            tenant=TENANT,
            principal="p",
            operation_id=run_id,
            run_id=run_id,
            agent="a",
            input="go",
            dense=self.dense,
        )
        return start_run(spec, pins_for())[0]

    async def run(self, run_id: str) -> None:
        spec = spec_of(run_id)
        event, _, encoded = start_run(spec, pins_for())
        await create_unhosted(self.store, event, encoded, root_id=run_id)
        self._look()
        await self.loop.settle()

    @property
    def seats(self) -> list[FakeActor]:
        return [actor for actor in self.actors if not actor.ended.is_set()]

    def with_run(self, run_id: str) -> FakeActor:
        return next(actor for actor in self.seats if run_id in actor.has)

    async def close(self) -> None:
        closing = asyncio.ensure_future(self.supervisor.close())
        await self.loop.advance(int((DRAIN_S + 3 * END_S) * 1_000))
        assert closing.done(), "close has its bound"
        await closing
        for task in self._aside:
            task.cancel()
        await asyncio.gather(*self._aside, return_exceptions=True)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left


def play(test: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    """On a loop whose time is moved; nothing may be left when the supervisor is closed."""
    loop = SteppedLoop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))

    async def body() -> None:
        stage = Stage(loop)
        await test(stage)
        await stage.close()

    try:
        loop.run_until_complete(body())
    finally:
        loop.close()
    assert not faults, faults


def test_a_death_gives_the_runs_back_at_once_and_they_resume_alone() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        for run_id in ("r1", "r2"):
            await stage.run(run_id)
        before = stage.loop.now_ms
        stage.with_run("r1").die()
        await stage.loop.settle()
        assert stage.loop.now_ms == before
        assert [entry for entry in stage.adopted if entry[0] == "r1"][-1][2], (
            "its next host is told of the death"
        )
        assert stage.supervisor.deaths == 1
        assert stage.with_run("r1") is not stage.with_run("r2")

    play(test)


def test_a_suspect_dense_run_gets_a_seat_to_itself() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(dense_max=1, solo_max=3)
        dense: dict[str, FakeActor] = {}
        for run_id in ("r1", "r2"):
            await stage.run(run_id)
            await stage.with_run(run_id).let_go(run_id, ready=True)
            row = await stage.store.run(run_id)
            assert row is not None
            stage.supervisor.takes(row, msgspec.structs.replace(stage.started(run_id), dense=True))
            await stage.loop.settle()
            dense[run_id] = stage.with_run(run_id)
        assert dense["r1"] is dense["r2"]
        dense["r1"].die()
        await stage.loop.settle()
        assert stage.with_run("r1") is not stage.with_run("r2")
        assert not stage.with_run("r1").dense

    play(test)


def test_the_many_runs_of_a_dead_dense_actor_stay_together_and_go_on_alone_only_after_a_second_death() -> (
    None
):
    async def test(stage: Stage) -> None:
        stage.dense = True
        await stage.open(dense_max=1, solo_max=2)
        run_ids = [f"r{number}" for number in range(ALONE_MAX + 1)]
        for run_id in run_ids:
            await stage.run(run_id)
        stage.with_run("r0").die()
        await stage.loop.settle()
        second = stage.with_run("r0")
        assert second.dense
        assert all(stage.with_run(run_id) is second for run_id in run_ids)
        await second.let_go("r0", ready=True)  # it came to a wait: that death wasn't its fault
        await stage.loop.settle()
        stage.with_run("r1").die()
        await stage.loop.settle()
        assert stage.with_run("r0").dense
        assert [actor.dense for actor in stage.seats if actor.has].count(False) == 2

    play(test)


def test_a_stopped_actor_loses_its_runs_with_its_row_whether_or_not_it_can_be_killed() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        await stage.run("r1")
        stopped = stage.with_run("r1")
        stopped.dies_of_kill = False
        stopped.stop()
        await stage.loop.advance(ROW_VALID_MS)
        assert stopped.kills
        assert not stopped.ended.is_set()
        assert stage.adopted[-1][:2] != ("r1", stopped.name)
        assert stage.adopted[-1][0] == "r1"
        stopped.dies_of_kill = True

    play(test)


def test_an_adoption_that_hangs_holds_up_nobody_else() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=2, solo_max=3)
        first, second = stage.seats
        first.stop()
        await stage.run("r1")
        await stage.run("r2")
        assert "adopt" in first.calls
        assert "r2" in second.has
        await stage.loop.advance(ROW_VALID_MS)
        assert "r1" in stage.with_run("r1").has

    play(test)


def test_an_adoption_of_a_live_actor_that_never_answers_ends_it() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(solo_max=2)
        first = stage.seats[0]
        never: asyncio.Future[dict[str, str]] = stage.loop.create_future()

        async def adopt(run_ids: Sequence[str], number: int) -> dict[str, str]:
            return await never

        first.adopt = adopt  # type: ignore[method-assign]  # one that hangs
        await stage.run("r1")
        await stage.loop.advance(int(ADOPT_S * 1_000) + 100)
        assert first.ended.is_set()
        assert "r1" in stage.with_run("r1").has

    play(test)


def test_a_free_run_that_nobody_takes_is_left_alone_in_the_end() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=2)
        for actor in stage.seats:
            actor.refuses["r1"] = ""
        await stage.run("r1")
        await stage.loop.settle()
        assert "r1" in stage.left_alone
        assert sum(actor.calls.count("adopt") for actor in stage.seats) == REFUSALS_MAX
        assert not stage.supervisor.holds("r1")

    play(test)


def test_a_run_that_cannot_be_carried_is_left_alone_at_once_with_the_reason() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        stage.seats[0].refuses["r1"] = "ConflictError: its tool refund isn't here"
        await stage.run("r1")
        assert "refund" in str(stage.left_alone["r1"])

    play(test)


def test_a_run_that_somebody_else_has_is_no_refusal() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        await stage.store.register_host(HostRow(host_id="other", node="n", pid=2, pid_start=2, boot_id="b"))
        await stage.run("r1")
        await stage.with_run("r1").let_go("r1", ready=False)
        for _ in range(REFUSALS_MAX * 2):
            # Taken in the moment between the hand-out and the adoption.
            row = await stage.store.run("r1")
            assert row is not None
            taken = await stage.store.acquire("r1", "other")
            assert isinstance(taken, Acquired)
            stage.supervisor.takes(row, stage.started("r1"))
            await stage.loop.settle()
            assert not stage.supervisor.holds("r1")
            await stage.store.release("r1", "other", taken.epoch, ready=False)
        assert not stage.left_alone

    play(test)


def test_seats_that_cannot_be_made_are_tried_again_ever_more_slowly_and_whoever_waits_is_told() -> None:
    async def test(stage: Stage) -> None:
        stage.fail_to_make = CallerError("application_code", "no module named refunds")
        await stage.open(warm=1, solo_max=1)
        await stage.run("r1")
        await stage.loop.advance(60_000)
        pauses = [later - sooner for sooner, later in zip(stage.attempts, stage.attempts[1:], strict=False)]
        assert pauses[:5] == [int(pause * 1_000) for pause in START_BACKOFF_S[1:]]
        assert min(pauses[5:]) == int(START_BACKOFF_S[-1] * 1_000)
        assert stage.supervisor.trouble is stage.fail_to_make
        assert ("r1", stage.fail_to_make) in stage.told
        assert stage.supervisor.holds("r1"), "the run goes on once it can"
        stage.fail_to_make = None
        await stage.loop.advance(16_000)
        assert "r1" in stage.with_run("r1").has

    play(test)


def test_actors_that_die_as_soon_as_they_are_made_are_not_made_in_a_circle() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=1)
        for _ in range(10_000):
            if stage.loop.now_ms > 60_000:
                break
            for actor in stage.seats:
                actor.die()
            await stage.loop.advance(100)
        assert len(stage.attempts) < 12
        assert isinstance(stage.supervisor.trouble, StoreError)

    play(test)


def test_a_word_about_a_seat_that_was_cleared_changes_nothing() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        await stage.run("r1")
        old = stage.with_run("r1")
        old.die()
        await stage.loop.settle()
        new = stage.with_run("r1")
        stage.supervisor.let_go(LetGo(old.name, "r1", old.numbers["r1"], "a late failure", True))
        await stage.loop.settle()
        assert stage.supervisor.holds("r1")
        assert not stage.left_alone
        assert not new.drains

    play(test)


def test_a_seat_where_something_of_a_run_lingers_takes_no_other() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=2)
        await stage.run("r1")
        actor = stage.with_run("r1")
        await actor.let_go("r1", lingering=True)
        await stage.run("r2")
        assert actor.drains == 1
        assert actor.ended.is_set()
        assert stage.with_run("r2") is not actor
        assert stage.supervisor.deaths == 0, "one that was retired didn't die"

    play(test)


def test_a_run_made_ready_while_it_had_its_seat_is_handed_out_again() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        await stage.run("r1")
        await stage.with_run("r1").let_go("r1", ready=True)
        await stage.loop.settle()
        assert "r1" in stage.with_run("r1").has

    play(test)


def test_a_run_that_ends_does_not_make_the_owner_look_through_all_that_waits() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        await stage.run("r1")
        looks = stage.looks
        await stage.with_run("r1").let_go("r1", ready=False)
        await stage.loop.settle()
        row = await stage.store.run("r1")
        assert row is not None
        assert stage.looks == looks + (row.index.wake_at_ms is not None)

    play(test)


def test_close_drains_and_then_kills() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=2)
        await stage.run("r1")
        stuck = stage.with_run("r1")
        stuck.drain_hangs = True
        others = [actor for actor in stage.seats if actor is not stuck]
        began = stage.loop.now_ms
        closing = asyncio.ensure_future(stage.supervisor.close())
        await stage.loop.advance(int(DRAIN_S * 1_000) + 10)
        await closing
        assert stage.loop.now_ms - began <= (DRAIN_S + END_S) * 1_000
        assert all(actor.drains == 1 and actor.ended.is_set() for actor in (stuck, *others))
        assert await stage.store.hosts() == []
        assert "r1" in await stage.store.ready_runs()

    play(test)


def test_close_ends_an_actor_that_does_not_hear_of_it() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1)
        actor = stage.seats[0]
        actor.stop()
        actor.dies_of_kill = False
        closing = asyncio.ensure_future(stage.supervisor.close())
        await stage.loop.advance(int((DRAIN_S + END_S) * 1_000) + 10)
        await closing
        assert actor.kills == 2, "killed, and then killed hard"

    play(test)


def test_a_command_to_a_run_that_is_being_adopted_waits_for_the_adoption() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=1)
        actor = stage.seats[0]
        adopt = actor.adopt
        go_on = asyncio.Event()

        async def slow(run_ids: Sequence[str], number: int) -> dict[str, str]:
            await go_on.wait()
            return await adopt(run_ids, number)

        actor.adopt = slow  # type: ignore[method-assign]  # one that takes its time
        await stage.run("r1")
        asked = asyncio.ensure_future(stage.supervisor.submit("r1", CANCEL))
        await stage.loop.settle()
        assert not asked.done()
        go_on.set()
        await stage.loop.settle()
        assert asked.result() == CommandAnswer(accepted=True, seq=7)

    play(test)


def test_a_command_to_a_run_whose_actor_dies_is_for_the_owner_once_the_run_is_free() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=1)
        await stage.run("r1")
        actor = stage.with_run("r1")
        actor.stop()
        asked = asyncio.ensure_future(stage.supervisor.submit("r1", CANCEL))
        await stage.loop.settle()
        stage.fail_to_make = RuntimeError("no more")
        actor.die()
        await stage.loop.settle()
        assert asked.result() is None
        assert isinstance(await stage.store.acquire("r1", "owner"), Acquired)

    play(test)


def test_a_command_to_a_silent_actor_says_so_in_time() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=1)
        await stage.run("r1")
        actor = stage.with_run("r1")

        async def submit(run_id: str, command: OutsideCommand) -> CommandAnswer | None:
            answer: asyncio.Future[CommandAnswer] = stage.loop.create_future()
            return await answer

        actor.submit = submit  # type: ignore[method-assign]  # renews, but doesn't answer
        asked = asyncio.ensure_future(stage.supervisor.submit("r1", CANCEL))
        await stage.loop.advance(int(ANSWER_S * 1_000) + 10)
        with pytest.raises(StoreError, match="host_silent"):
            await asked

    play(test)


def test_what_the_runs_host_raises_is_what_the_caller_gets() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        await stage.run("r1")

        async def submit(run_id: str, command: OutsideCommand) -> CommandAnswer | None:
            raise ConflictError("run_contended", "others have it")

        stage.with_run("r1").submit = submit  # type: ignore[method-assign]  # its host refuses
        with pytest.raises(ConflictError, match="run_contended"):
            await stage.supervisor.submit("r1", CANCEL)

    play(test)


def test_what_a_run_shows_is_asked_of_its_actor_and_lost_with_it() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=1)
        await stage.run("r1")
        actor = stage.with_run("r1")
        shown = await stage.supervisor.shown("r1", Mark(), 1.0)
        assert shown == Shown(Mark(), 1, (TextDelta(1, 1, 0, actor.name),))
        assert await stage.supervisor.shown("r2", Mark(), 1.0) is None, "nobody has it"
        actor.die()
        assert await stage.supervisor.shown("r1", Mark(), 1.0) is None

    play(test)


def test_an_actor_that_does_not_say_what_a_run_shows_is_not_waited_for_longer() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=1)
        await stage.run("r1")

        async def shown(run_id: str, mark: Mark, timeout_s: float) -> Shown:
            answer: asyncio.Future[Shown] = stage.loop.create_future()
            return await answer

        stage.with_run("r1").shown = shown  # type: ignore[method-assign]  # renews, but doesn't answer
        asked = asyncio.ensure_future(stage.supervisor.shown("r1", Mark(), 1.0))
        await stage.loop.advance(int((1.0 + ANSWER_S) * 1_000) + 10)
        assert await asked is None

    play(test)


def test_a_run_that_is_begun_here_has_its_seat_without_a_look() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        started = stage.started("r1")
        stage.supervisor.expects("r1")
        assert stage.supervisor.holds("r1"), "nobody need look for it"
        _, _, encoded = start_run(spec_of("r1"), pins_for())
        await create_unhosted(stage.store, started, encoded, root_id="r1")
        looks = stage.looks
        stage.supervisor.begun(started, created=True)
        await stage.loop.settle()
        assert "r1" in stage.with_run("r1").has
        assert stage.looks == looks

    play(test)


def test_a_start_of_which_nothing_is_known_is_looked_for() -> None:
    async def test(stage: Stage) -> None:
        await stage.open()
        stage.supervisor.expects("r1")
        await stage.run("r1")
        assert "r1" not in stage.seats[0].has
        stage.supervisor.begun(stage.started("r1"), created=False)
        await stage.loop.settle()
        assert "r1" in stage.with_run("r1").has

    play(test)


def test_a_word_that_comes_twice_or_late_frees_nobody_elses_seat() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=1)
        await stage.run("r1")
        actor = stage.with_run("r1")
        first = LetGo(actor.name, "r1", actor.numbers["r1"], "", False)
        await actor.let_go("r1", ready=True)
        await stage.loop.settle()
        assert "r1" in actor.has, "it is back in the same seat"
        stage.supervisor.let_go(first)
        await stage.run("r2")
        assert stage.supervisor.seating.seat_of == {"r1": actor.name}
        assert "r2" not in actor.has

    play(test)


def test_closing_lets_a_seat_that_drains_already_finish() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=2)
        await stage.run("r1")
        actor = stage.with_run("r1")
        go_on = asyncio.Event()
        drain = actor.drain

        async def slow() -> None:
            await go_on.wait()
            await drain()

        actor.drain = slow  # type: ignore[method-assign]  # one that takes its time
        await actor.let_go("r1", lingering=True)
        await stage.loop.settle()
        closing = asyncio.ensure_future(stage.supervisor.close())
        await stage.loop.settle()
        assert not actor.kills
        go_on.set()
        await stage.loop.advance(10)
        await closing
        assert (actor.drains, stage.supervisor.deaths) == (1, 0)
        assert await stage.store.hosts() == []

    play(test)


def test_a_run_whose_actor_drains_has_not_seen_a_death_however_that_ends() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=2, dense_max=1)
        stage.dense = True
        for run_id in ("r1", "r2"):
            await stage.run(run_id)
        actor = stage.with_run("r1")
        assert stage.with_run("r2") is actor
        actor.drain_hangs = True
        await actor.let_go("r1", lingering=True)
        await stage.loop.advance(int(DRAIN_S * 1_000) + 100)
        assert actor.ended.is_set()
        assert stage.supervisor.deaths == 0
        assert stage.with_run("r2").dense, "it is no suspect"
        assert [entry for entry in stage.adopted if entry[0] == "r2"][-1][2] is False

    play(test)


def test_an_adoption_that_meets_a_drain_disturbs_it_not() -> None:
    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=2, dense_max=1)
        stage.dense = True
        await stage.run("r1")
        actor = stage.with_run("r1")
        go_on = asyncio.Event()
        drain = actor.drain

        async def slow() -> None:
            await go_on.wait()
            await drain()

        async def adopt(run_ids: Sequence[str], number: int) -> dict[str, str]:
            await go_on.wait()
            raise StoreError("closed", "it drains")

        actor.drain = slow  # type: ignore[method-assign]  # one that takes its time
        actor.adopt = adopt  # type: ignore[method-assign]  # and what comes meanwhile is refused
        await stage.run("r2")
        assert stage.supervisor.seating.seat_of["r2"] == actor.name
        await actor.let_go("r1", lingering=True)
        await stage.loop.settle()
        assert not actor.kills
        go_on.set()
        await stage.loop.advance(100)
        assert (actor.drains, stage.supervisor.deaths) == (1, 0)
        assert stage.with_run("r2") is not actor

    play(test)


async def quiet(run_id: str) -> None:
    """Nobody is told to look."""


def test_runs_beyond_a_full_queue_are_looked_for_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "QUEUE_MAX", 2)

    async def test(stage: Stage) -> None:
        await stage.open(warm=1, solo_max=1)
        stage.supervisor._look_if_due = quiet  # type: ignore[method-assign]  # as of a run that ended, with no timer left
        run_ids = [f"r{number}" for number in range(6)]
        for run_id in run_ids:
            await stage.run(run_id)
        assert stage.supervisor.queued == 2
        for _ in run_ids:
            (actor,) = [seat for seat in stage.seats if seat.has]
            await actor.let_go(next(iter(actor.has)), ready=False)
            await stage.loop.settle()
        assert {entry[0] for entry in stage.adopted} == set(run_ids)

    play(test)
