"""A host that only adopts gives back each run that its row names and nobody drives, and its owner's supervisor hears of it.

The store's time is moved; a read or a release of it fails once, as in a moment of trouble.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import pytest
from tests.stepped_loop import SteppedLoop
from tests.written_runs import TOOLS, pins_for

from boundloop.actors import host as hosting
from boundloop.actors.fit import Fit
from boundloop.actors.host import Host
from boundloop.actors.owner_row import RENEW_S
from boundloop.actors.provisional import Mark, Shown
from boundloop.actors.seats import Seating
from boundloop.actors.supervisor import LetGo, Supervisor
from boundloop.adapters.script import say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.admission import create_unhosted
from boundloop.eventstore.memory import MemoryStore
from boundloop.runtime.commands import Cancel, CommandAnswer, OutsideCommand
from boundloop.runtime.errors import StoreError
from boundloop.runtime.pins import Pins
from boundloop.runtime.policy import Policy
from boundloop.runtime.start import NewRunSpec, start_run
from boundloop.runtime.state import State
from boundloop.runtime.toolbox import Toolbox

RUN: Final = "r1"
CANCEL: Final = Cancel(command_id="1", by="os:ann@desk", reason="by_user")


class TroubledStore(MemoryStore):
    """The next call of ``fails`` raises."""

    fails = ""

    def _trouble(self, name: str) -> None:
        if self.fails == name:
            self.fails = ""
            raise StoreError("io_error", "for a moment")

    async def read(self, *args: Any, **options: Any) -> Any:
        self._trouble("read")
        return await super().read(*args, **options)

    async def release(self, *args: Any, **options: Any) -> None:
        self._trouble("release")
        await super().release(*args, **options)

    async def acquire(self, *args: Any, **options: Any) -> Any:
        answer = await super().acquire(*args, **options)
        if self.fails == "read after acquire":
            self.fails = "read"
        return answer


class Adopting:
    """A run actor without Ray: a host that doesn't look, as ``RunActor`` has one."""

    def __init__(self, name: str, store: TroubledStore, model: ScriptedModel) -> None:
        self.name = name
        self.adopted: list[str] = []
        self._ended = asyncio.Event()
        self.host = Host(
            store,
            toolbox=Toolbox(list(TOOLS)),
            policy=Policy(),
            adapter=model,
            permissions_of=lambda tenant, principal: frozenset(),
            looks=False,
        )

    @property
    def host_id(self) -> str:
        return self.host.host_id

    async def adopt(self, run_ids: Sequence[str], number: int) -> dict[str, str]:
        refused: dict[str, str] = {}
        for run_id in run_ids:
            self.adopted.append(run_id)
            try:
                taken = await self.host.take_up(run_id)
            except StoreError:
                taken = False
            if not taken:
                refused[run_id] = ""
        return refused

    async def nudge(self, run_ids: Sequence[str]) -> None:
        """Nothing waits here."""

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        return None

    async def shown(self, run_id: str, mark: Mark, timeout_s: float) -> Shown:
        return Shown(mark)

    async def drain(self) -> None:
        await self.host.close()

    async def gone(self) -> None:
        await self._ended.wait()

    def kill(self) -> None:
        self._ended.set()


class Stage:
    def __init__(self, loop: SteppedLoop) -> None:
        self.loop = loop
        self.store = TroubledStore(clock=lambda: 1_700_000_000_000 + loop.now_ms)
        self.model = ScriptedModel([say("Done."), say("Done.")])
        self.store.on_ready = self._hand_out
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self.supervisor = Supervisor(
            self.store,
            self._make,
            seating=Seating(warm=1, solo_max=1, dense_max=0),
            tenant="default",
            label="test",
            look=lambda: self._hand_out([RUN]),
            leave_alone=lambda run_id, error: None,
        )
        await self.supervisor.open()
        await self.loop.settle()

    async def _make(self, name: str, dense: bool) -> Adopting:
        self.actor = Adopting(name, self.store, self.model)
        await self.actor.host.open()
        return self.actor

    def _hand_out(self, run_ids: Sequence[str]) -> None:
        task = asyncio.get_running_loop().create_task(self._handed_out())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handed_out(self) -> None:
        """As the owner's host does with what is ready."""
        for run_id in await self.store.ready_runs():
            row = await self.store.run(run_id)
            assert row is not None
            self.supervisor.takes(row, start_run(SPEC, pins_for())[0])

    async def start(self) -> None:
        event, _, encoded = start_run(SPEC, pins_for())
        await create_unhosted(self.store, event, encoded, root_id=RUN)
        await self.loop.settle()

    async def owner(self) -> str:
        row = await self.store.run(RUN)
        assert row is not None
        return row.owner


SPEC: Final = NewRunSpec(tenant="default", principal="p", operation_id=RUN, run_id=RUN, agent="a", input="go")


def play(test: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    loop = SteppedLoop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))

    async def body() -> None:
        stage = Stage(loop)
        await stage.open()
        try:
            await test(stage)
        finally:
            closing = asyncio.ensure_future(stage.supervisor.close())
            await loop.advance(20_000)
            await closing

    try:
        loop.run_until_complete(body())
    finally:
        loop.close()
    assert not faults, faults


@pytest.fixture(autouse=True)
def any_application(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(self: Fit, application: str, pins: Pins) -> str:
        return ""

    monkeypatch.setattr(Fit, "misfit", fits)


def test_a_read_that_fails_after_the_run_was_acquired_strands_nothing() -> None:
    async def test(stage: Stage) -> None:
        stage.store.fails = "read after acquire"
        await stage.start()
        assert await stage.owner() == stage.actor.host_id, "the row names a host that doesn't drive it"
        assert stage.actor.host.hosted(RUN) is None
        await stage.loop.advance(int(RENEW_S * 1_000) + 100)
        assert stage.actor.adopted == [RUN, RUN], "the supervisor heard of it and gave it a seat again"
        row = await stage.store.run(RUN)
        assert row is not None
        assert (row.index.status, row.owner) == ("terminated", "")

    play(test)


def test_a_release_that_fails_under_a_driver_that_failed_is_made_up_for() -> None:
    async def test(stage: Stage) -> None:
        def adapter_for(state: State) -> ScriptedModel:
            stage.store.fails = "release"
            raise ZeroDivisionError("bug")

        sound = stage.actor.host.adapter_for
        stage.actor.host.adapter_for = adapter_for  # type: ignore[method-assign]  # a bug of ours
        let_go: list[str] = []
        stage.actor.host.parked_watchers.append(lambda run_id, _: let_go.append(run_id))
        await stage.start()
        assert let_go == [RUN]
        assert await stage.owner() == stage.actor.host_id
        seat = stage.supervisor.seating.seat_of[RUN]
        stage.supervisor.let_go(LetGo(seat, RUN, 1, "ZeroDivisionError: bug", False))
        assert not stage.supervisor.holds(RUN)
        stage.actor.host.adapter_for = sound  # type: ignore[method-assign]  # which is mended now
        await stage.loop.advance(int(RENEW_S * 1_000) + 100)
        assert stage.actor.adopted == [RUN, RUN]
        row = await stage.store.run(RUN)
        assert row is not None
        assert (row.index.status, row.owner) == ("terminated", "")

    play(test)


def test_what_a_host_leaves_alone_and_why_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "LEFT_ALONE_MAX", 3)

    async def test(stage: Stage) -> None:
        host = Host(
            stage.store,
            toolbox=Toolbox(list(TOOLS)),
            policy=Policy(),
            adapter=stage.model,
            permissions_of=lambda tenant, principal: frozenset(),
        )
        for number in range(10):
            host.leave_alone(f"r{number}", StoreError("not_taken"))
        assert list(host.failures) == list(host._not_ours) == ["r7", "r8", "r9"]
        for number in range(10):
            stage.actor.host.leave_alone(f"r{number}", StoreError("not_taken"))
        assert not stage.actor.host._not_ours, "a host that doesn't look remembers nothing to pass over"

    play(test)
