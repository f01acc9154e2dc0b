"""One seed's world: a store, hosts on it, runs, far sides, people, and the faults that strike.

    plan ─▶ World.play: start runs ─▶ faults strike ─▶ calm ─▶ everything comes to rest ─▶ verify

Everything happens on one ``VirtualLoop`` in one thread, in an order that the seed alone decides. The host code is the
real one; what is simulated stands in the files beside this one, one subject each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from hashlib import sha256
from random import Random
from typing import Any, Final

from boundloop.actors.epochs import Epochs
from boundloop.eventstore.admission import create_unhosted
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import Append, AppendAnswer, Appended, RunRow, Switch
from boundloop.eventstore.submit import decode_answer
from boundloop.runtime.canonical import canonical_bytes
from boundloop.runtime.commands import (
    Cancel,
    CommandAnswer,
    OutsideCommand,
    encode_command,
)
from boundloop.runtime.errors import BoundloopError, ConflictError, StoreError
from boundloop.runtime.events import RunStarted
from boundloop.runtime.model import ModelInput
from boundloop.runtime.policy import PolicyDecision, PolicyQuestion
from boundloop.runtime.start import NewRunSpec, start_run

from . import pinned
from .clock import TURNS_MAX, Group, StandsStill, VirtualLoop, passed
from .far_side import FarSide
from .hosts import SimHost
from .kinds import KINDS, Point
from .laws import Judge
from .line import unavailable
from .people import People
from .plan import Plan, Root, Strike, dice
from .shop import APPLICATION, STAGE, VARIANTS
from .triples import Triples

START_MS: Final = 1_700_000_000_000
FAULTS_MS_MAX: Final = 40_000
REST_MS_MAX: Final = 900_000
"""How long after the last fault everything may take to come to rest: past every deadline, approval and back-off."""

TRIES_MAX: Final = 8
WAITS: Final = ("approval:", "question:", "key:", "child:", "person:")


class WatchedStore(MemoryStore):
    """The memory store, with the judge at its side."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=world.wall_ms, on_submit=None, on_ready=world.told_ready)
        self._world = world

    async def append(self, request: Append) -> AppendAnswer:
        run = self._runs.get(request.run_id)
        head = request.prev_hash if run is None else run.row.head
        answer = await super().append(request)
        if isinstance(answer, Appended):
            self._world.committed(request, head)
        return answer

    def blob(self, digest: bytes) -> bytes:
        return self._blobs[digest]

    def rows(self) -> list[RunRow]:
        """Every run's row, in the order of creation."""
        return [run.row for run in self._runs.values()]


class World:
    """Play it once: ``play`` raises nothing, ``judge.violation`` says what broke."""

    def __init__(self, plan: Plan, loop: VirtualLoop, *, narrate: bool = False) -> None:
        self.plan = plan
        self.loop = loop
        self.context = copy_context()
        self.narrative: list[tuple[int, str, str]] | None = [] if narrate else None
        self.judge = Judge(self)
        self.people = People(self)
        self.triples = Triples(self.judge)
        self.store = WatchedStore(self)
        self.far_side = FarSide(self.judge.arrived)
        self.hosts: list[SimHost] = []
        self.faults: dict[str, int] = {}
        self.in_flight = 0
        self.pending = 0
        self.after_absent: dict[tuple[str, str], Callable[[], None]] = {}
        self.calm = False
        self._calm_ms = 0
        self.outage_until_s = 0.0
        self.full_until_s = 0.0
        self._at_point: dict[tuple[str, int], Strike] = {
            (KINDS[strike.kind].point, strike.nth): strike
            for strike in plan.strikes
            if KINDS[strike.kind].point != "time"
        }
        self._passed: dict[str, int] = {}
        self._clock_off_ms = 0
        self._signals_late_ms = 0
        self._variant = VARIANTS[0]
        self.version = "v1"
        self._revision = "p1"
        self._hosts_made = 0
        self._epochs = Epochs()
        self._latency = self.dice("latency")
        self._trace = sha256()
        self._starting = 0
        self.goals: dict[str, str] = {}

    # --- what everybody here uses ------------------------------------------------------------------------------------

    def dice(self, *names: object) -> Random:
        return dice(self.plan.seed, *names)

    def loop_ms(self) -> int:
        return round(self.loop.now_s * 1_000)

    def wall_ms(self) -> int:
        return START_MS + self.loop_ms() + self._clock_off_ms

    def now_ms(self) -> int:
        return self.store.now_ms()

    def latency_s(self) -> float:
        return self._latency.randrange(1, 30) / 1_000

    async def sleep(self, ms: int) -> None:
        await passed(ms / 1_000)

    def later(self, ms: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Something that somebody outside does after a while."""
        self.pending += 1

        async def do() -> None:
            try:
                await passed(ms / 1_000)
                await work()
            finally:
                self.pending -= 1

        self.loop.create_task(do(), context=self.context)

    def note(self, who: str, what: str) -> None:
        if self.narrative is not None:
            self.narrative.append((self.loop_ms(), who, what))

    def trace(self, what: str) -> None:
        self._trace.update(what.encode("utf-8", "backslashreplace"))

    def digest(self) -> str:
        """One hash over everything that happened, in order."""
        return self._trace.hexdigest()

    # --- the run of things -------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """The whole seed."""
        STAGE.world = self
        for _ in range(self.plan.hosts):
            self.boot("")
        for root in self.plan.roots:
            self._starting += 1
            self.loop.call_later(root.at_ms / 1_000, self._start, root, context=self.context)
        last_ms = max((root.at_ms for root in self.plan.roots), default=0)
        for strike in self.plan.strikes:
            if KINDS[strike.kind].point == "time":
                last_ms = max(last_ms, strike.nth)
                self.loop.call_later(strike.nth / 1_000, self._strike_now, strike, context=self.context)
        while self.loop_ms() < FAULTS_MS_MAX and self.judge.violation is None:
            await self.sleep(700)
            if self.loop_ms() > last_ms and not self._starting and self._all_ended():
                break
        self._calm_down()
        await self._come_to_rest()
        if self.judge.violation is None:
            await self.judge.verify()
        for host in self.hosts:
            self._end(host)
        self.trace(repr(sorted(self.far_side.effects.items())))

    def _calm_down(self) -> None:
        """From here on nothing goes wrong any more."""
        self.calm = True
        self._calm_ms = self.loop_ms()
        self.outage_until_s = self.full_until_s = 0.0
        self._signals_late_ms = 0
        for host in self.hosts:
            host.line.frozen_until_s = host.line.renewals_wait_until_s = 0.0
        if not any(host.alive for host in self.hosts):
            self.boot("")

    async def _come_to_rest(self) -> None:
        until = self.loop_ms() + REST_MS_MAX
        rested = 0
        while self.judge.violation is None:
            await self.sleep(1_000)
            rested = rested + 1 if self._at_rest() else 0
            if rested >= 2:
                break
            if self.loop_ms() > until:
                left = [
                    f"{row.run_id}: {row.index.status} {row.index.waiting_for}" for row in self._restless()
                ]
                self.judge.broken(
                    "I12", f"no rest: {left}, {self.in_flight} in flight, {self.pending} pending"
                )
        self.judge.cancels(self._calm_ms)
        for row in self.store.rows():
            watch = self.judge.runs[row.run_id]
            if row.owner and not watch.ended:
                self.judge.broken("I10", f"{row.run_id} waits for {row.index.waiting_for!r} and has a host")

    def _at_rest(self) -> bool:
        return not (self.in_flight or self.pending or self._starting or self._restless())

    def _restless(self) -> list[RunRow]:
        """Runs that neither ended nor stopped nor wait for somebody, or will be woken by a timer."""
        return [
            row
            for row in self.store.rows()
            if row.index.status != "terminated"
            and (
                (row.index.status != "suspended" and not row.index.waiting_for.startswith(WAITS))
                or self._timer_runs(row)
                or row.owner
            )
        ]

    def _timer_runs(self, row: RunRow) -> bool:
        return row.index.wake_at_ms is not None

    def _all_ended(self) -> bool:
        rows = self.store.rows()
        return not self.in_flight and all(row.index.status == "terminated" for row in rows)

    # --- runs --------------------------------------------------------------------------------------------------------

    def _start(self, root: Root) -> None:
        pins, encoded = pinned.pins(root.profile, root.goal)
        spec = NewRunSpec(
            run_id=root.run_id,
            input="go",
            operation_id=root.operation,
            application=APPLICATION,
            on_stop=root.on_stop,
        )
        event, _, _ = start_run(spec, pins)
        self.loop.create_task(self._begin(root, event, encoded), context=self.context)

    async def _begin(self, root: Root, event: RunStarted, encoded: bytes) -> None:
        """Have the run started, by a host or as one that any host may take up, however often that takes."""
        self.note("person", f"starts {event.run_id}, {root.profile}, goal {root.goal or 'none'}")
        for _ in range(TRIES_MAX * 3):
            host = self._any_host()
            try:
                if root.hosted and host is not None and await self.store.run(event.run_id) is None:
                    await self._in(host, host.start_run(event, encoded, event.run_id))
                elif host is not None:
                    await self._in(host, create_unhosted(host.line, event, encoded, root_id=event.run_id))
            except (StoreError, ConflictError):
                pass
            if await self.store.run(event.run_id) is not None:
                break
            await self.sleep(400)
        self._starting -= 1

    def goal_of(self, request: ModelInput) -> str:
        """The tool that this run's goal asks for; empty if it has none."""
        watch = self.judge.runs.get(request.run_id)
        goal = None if watch is None else watch.state.pins.goal
        return "" if goal is None else goal.evidence[0].tool

    def leave_of(self, request: ModelInput) -> str:
        """The tool by whose success this run leaves its stage; empty in the last one."""
        watch = self.judge.runs.get(request.run_id)
        stages = () if watch is None else watch.state.pins.stages
        leave = stages[watch.stage].leave if watch is not None and stages else ()
        return leave[0].tool if leave else ""

    def committed(self, request: Append, head: bytes) -> None:
        self._trace.update(request.hash)
        before = self.judge.events
        self.judge.committed(request, head)
        if self.narrative is not None:
            self._narrate(request, before)

    def _narrate(self, request: Append, before: int) -> None:
        from boundloop.eventstore.event_line import event_line
        from boundloop.runtime.events import tag_of

        watch = self.judge.runs[request.run_id]
        for event, _ in watch.log[-(self.judge.events - before or 1) :]:
            call, words = event_line(event, 160)
            self.note(request.run_id, f"{tag_of(event)} {call} {words}".rstrip())

    # --- hosts -------------------------------------------------------------------------------------------------------

    def boot(self, dead: str) -> None:
        """A new host; ``dead`` is one whose death it has proved."""
        if sum(host.alive for host in self.hosts) >= self.plan.hosts:
            return
        host = self._made()
        group = host.group
        self.note(group.name, f"begins, {self._variant}, {self._revision}")
        group.task(self._open(host, dead))

    def _made(self) -> SimHost:
        self._hosts_made += 1
        group = Group(f"h{self._hosts_made}")
        epochs = self._epochs if self.plan.pooled else Epochs()
        host = group.context.run(SimHost, self, group, self._variant, self._revision, epochs)
        self.hosts.append(host)

        def failed(error: BaseException) -> None:
            self.loop.call_soon(self.crash, host, context=self.context)

        host.failed_watchers.append(failed)
        return host

    async def _open(self, host: SimHost, dead: str) -> None:
        try:
            await host.open(dead_hosts=(dead,) if dead else ())
        except StoreError:
            self.crash(host)

    def crash(self, host: SimHost) -> None:
        """Everything of this host is gone at once, but for what is on its way already."""
        if not host.alive:
            return
        self.note(host.group.name, "dies")
        for row in self.store.rows():
            if row.owner == host.host_id and row.run_id in self.judge.runs:
                self.judge.refold(row.run_id, self.dice("crash", host.host_id, row.run_id))
        self._look_for_bugs(host)
        self._end(host)
        chance = self.dice("reboot", host.host_id)
        proved = host.host_id if chance.random() < 0.6 else ""
        self.loop.call_later(chance.randint(1, 2_500) / 1_000, self.boot, proved, context=self.context)

    def _end(self, host: SimHost) -> None:
        if host.alive:
            self._look_for_bugs(host)
        host.alive = False
        host.group.cancel()

    def _look_for_bugs(self, host: SimHost) -> None:
        """A driver may give up over a store that stays away; anything else that it raises is ours to mend."""
        for run_id, error in host.failures.items():
            if not isinstance(error, StoreError | ConflictError):
                self.judge.broken("bug", f"{run_id}: {type(error).__name__}: {error}")
        cause = None if host.failed is None else host.failed.__cause__
        if cause is not None and not isinstance(cause, StoreError | TimeoutError):
            self.judge.broken("bug", f"{host.host_id}: {type(cause).__name__}: {cause}")

    def _any_host(self, run_id: str = "") -> SimHost | None:
        """Who decides for a run: its host, else whoever is there first."""
        alive = [host for host in self.hosts if host.alive and host.failed is None]
        row = self.store._runs.get(run_id)  # pyright: ignore[reportPrivateUsage]  # the world looks without asking
        for host in alive:
            if row is not None and row.row.owner == host.host_id:
                return host
        return alive[0] if alive else None

    async def _in(self, host: SimHost, work: Coroutine[Any, Any, Any]) -> Any:
        """Have a host do something; its death is heard as a store that doesn't answer."""
        task = host.group.task(work)
        await asyncio.wait([task])
        if task.cancelled():
            raise unavailable("host_gone")
        return task.result()

    def told_ready(self, run_ids: Any) -> None:
        """The store's signal: to all hosts, late where a fault says so."""
        ids = list(run_ids)
        for host in self.hosts:
            if not host.alive:
                continue
            if self._signals_late_ms:
                self.loop.call_later(
                    self._signals_late_ms / 1_000, host.on_ready, ids, context=host.group.context
                )
            else:
                self.loop.call_soon(host.on_ready, ids, context=host.group.context)

    # --- outside commands --------------------------------------------------------------------------------------------

    async def submitted(self, run_id: str, command_id: str, command: bytes) -> bytes:
        """The store's ``submit``: to the run's host, else to any."""
        host = self._any_host(run_id)
        if host is None:
            raise unavailable("no_owner")
        answer: bytes = await self._in(host, host.on_submit(run_id, command_id, command))
        return answer

    async def ask(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        """Somebody outside wants something, and asks again under the same id while nobody can say what came of it."""
        data = encode_command(command)
        answer: CommandAnswer | None = None
        for _ in range(TRIES_MAX):
            with suppress(StoreError):
                answer = decode_answer(await self.submitted(run_id, command.command_id, data))
                if answer.accepted or answer.actor == "caller":
                    break
            await self.sleep(1_500)
        self.note("person", f"{run_id}: {type(command).__name__} {answer}")
        if answer is not None and answer.actor == "bug":
            self.judge.broken("bug", f"{run_id}: {type(command).__name__}: {answer.code} {answer.message}")
        if answer is not None and answer.accepted:
            await self._same_again(run_id, command, data, answer)
        return answer

    async def _same_again(
        self, run_id: str, command: OutsideCommand, data: bytes, first: CommandAnswer
    ) -> None:
        """A command that was accepted is accepted again with the same answer, and changes nothing."""
        if self.dice("again", command.command_id).random() > 0.2:
            return
        with suppress(StoreError):
            second = decode_answer(await self.submitted(run_id, command.command_id, data))
            if second.accepted and second.seq != first.seq:
                self.judge.broken(
                    "I2", f"{run_id}: {command.command_id} has two events: {first.seq}, {second.seq}"
                )
            elif not second.accepted and second.actor == "caller":
                self.judge.broken(
                    "I1", f"{run_id}: {command.command_id} was accepted and is refused: {second.code}"
                )

    def _cancel(self, run_id: str) -> None:
        command = Cancel(command_id=self.people.command_id(), by="boss")

        async def say() -> None:
            await self.ask(run_id, command)

        self.later(0, say)

    # --- the application's answers -----------------------------------------------------------------------------------

    def checked(self, tool: str) -> bool | str | None:
        strike = self.struck("check")
        if strike is None or strike.kind == "policy_denies":
            return True
        self.triples.at_moment(strike.kind)
        if strike.kind == "check_raises":
            raise KeyError(tool)
        return None

    def version_of(self, arguments: dict[str, Any]) -> str:
        version = f"{self.version}, {self.far_side.version(arguments['order_id'])}"
        self.judge.promises.version_told(canonical_bytes(arguments), version)
        return version

    def decided(self, question: PolicyQuestion) -> PolicyDecision:
        self.judge.promises.policy_asked(question)
        strike = self.struck("check")
        if strike is not None:
            self.triples.at_moment(strike.kind)
            if strike.kind == "check_raises":
                raise KeyError(question.tool)
            if strike.kind == "check_unknown":
                return PolicyDecision(answer="unknown", code="nobody_knows")
            return PolicyDecision(answer="deny", code="not_today", terminal=strike.size % 12 == 0)
        if question.risk == "irreversible" and question.approval != "never":
            return PolicyDecision(answer="ask", code="needs_approval")
        return PolicyDecision(answer="allow")

    # --- faults ------------------------------------------------------------------------------------------------------

    def struck(self, point: Point) -> Strike | None:
        """This point is passed once more: the fault that was planned for that, if any."""
        count = self._passed[point] = self._passed.get(point, 0) + 1
        strike = self._at_point.get((point, count))
        if strike is None or self.calm:
            return None
        self._counted(strike)
        return strike

    def _counted(self, strike: Strike) -> None:
        self.faults[strike.kind] = self.faults.get(strike.kind, 0) + 1
        self.note("FAULT", str(strike))

    def _strike_now(self, strike: Strike) -> None:
        """A fault of a moment. ``size`` chooses whom it strikes and for how long."""
        if self.calm:
            return
        alive = [host for host in self.hosts if host.alive and host.failed is None]
        host = alive[strike.size % len(alive)] if alive else None
        self.triples.at_moment(strike.kind)
        self._counted(strike)
        match strike.kind:
            case "clock_forward":
                # What is under way may be late by nearly the margin: a jump and that lateness stay within it together.
                self._clock_off_ms += strike.size * 40 if not self.in_flight else strike.size * 3 // 10
            case "clock_back":
                self._clock_off_ms -= strike.size * 20
            case "late_signal":
                self._signals_late_ms = 50 + strike.size * 4
            case "resource_changed":
                self.version = f"v{strike.size}"
            case "kill_switch":
                self._kill_switch(strike)
            case "cancel" | "cancel_storm" | "limits_raised" | "message":
                self._storm(strike)
            case _ if host is not None:
                self._strike_host(strike, host)
            case _:
                pass

    def _strike_host(self, strike: Strike, host: SimHost) -> None:
        now_s = self.loop.now_s
        match strike.kind:
            case "zombie":
                # It can't know: its renewals hang until it stops itself, and meanwhile it acts.
                host.line.renewals_wait_until_s = now_s + 2 + strike.size / 100
                self.loop.create_task(self.store.drop_host(host.host_id, died=True), context=self.context)
                self._replace(host)
            case "frozen_host":
                host.line.frozen_until_s = now_s + 0.5 + strike.size / 70
                host.line.renewals_wait_until_s = host.line.frozen_until_s
            case "definition_changed":
                self._variant = VARIANTS[1 + strike.size % (len(VARIANTS) - 1)]
                self.crash(host)
            case "policy_changed":
                self._revision = "p2" if self._revision == "p1" else "p1"
                self.crash(host)
            case _:
                self.crash(host)

    def _replace(self, host: SimHost) -> None:
        """Somebody takes the zombie's place, beside it."""
        other = self._made()
        self.note(other.group.name, f"takes the place of {host.host_id}")
        other.group.task(self._open(other, ""))

    def _kill_switch(self, strike: Strike) -> None:
        scope, target = (("global", ""), ("tool", "refund"), ("tool", "book"), ("tenant", "default"))[
            strike.size % 4
        ]
        switch = Switch(scope=scope, target=target, by="boss", reason="test", at_ms=self.now_ms())  # type: ignore[arg-type]  # one of the four above

        async def turn() -> None:
            await self.store.set_switch(switch, on=True)
            await self.sleep(100 + strike.size * 3)
            await self.store.set_switch(switch, on=False)

        self.later(0, turn)

    def _storm(self, strike: Strike) -> None:
        run_ids = [run_id for run_id, watch in self.judge.runs.items() if not watch.ended]
        if not run_ids:
            return
        if strike.kind == "limits_raised":
            self.people.raise_limits(run_ids[0])
        elif strike.kind == "message":
            self.people.speak(run_ids[strike.size % len(run_ids)], strike.size)
        elif strike.kind == "cancel":
            self._cancel(run_ids[strike.size % len(run_ids)])
        else:
            for run_id in run_ids * 3:
                self._cancel(run_id)


def play(plan: Plan, *, narrate: bool = False) -> World:
    """Play a plan to its end, in a loop of its own."""
    loop = VirtualLoop()
    world_of: list[World] = []
    loop.set_exception_handler(lambda _, context: _unheard(world_of, context))

    async def whole() -> None:
        world = World(plan, loop, narrate=narrate)
        world_of.append(world)
        await world.play()

    try:
        loop.run_until_complete(whole())
    except StandsStill as error:
        world_of[0].judge.broken("I12", str(error))
    except Exception as error:
        if not world_of:
            raise
        world_of[0].judge.broken("bug", f"the world broke: {type(error).__name__}: {error}")
    finally:
        _tidy(loop)
        STAGE.world = None
    return world_of[0]


def _unheard(worlds: list[World], context: dict[str, Any]) -> None:
    """What nobody was told. Of a dead host nobody wants to know."""
    error = context.get("exception")
    if isinstance(error, BoundloopError | asyncio.CancelledError) or not worlds or error is None:
        return
    worlds[0].judge.broken("bug", f"{context.get('message')}: {type(error).__name__}: {error}")


def _tidy(loop: VirtualLoop) -> None:
    """End what is left over, so that nothing is dropped while it waits."""
    loop.turns_left = TURNS_MAX
    for _ in range(5):
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        if not left:
            break
        for task in left:
            task.cancel()
        with suppress(StandsStill):
            loop.run_until_complete(_gathered(left))
    loop.close()


async def _gathered(tasks: list[asyncio.Task[Any]]) -> None:
    with suppress(asyncio.TimeoutError):
        async with asyncio.timeout(600):
            await asyncio.gather(*tasks, return_exceptions=True)
