"""``boundloop demo``: look an order up, draft a refund, ask a person, submit it, explain. One run on real parts in which
everything goes wrong once.

The model is a script behind a real HTTP server, the far side a real HTTP service, both processes of their own; runs are
hosted by actors of a Ray cluster of this machine; the store is a SQLite file. On the way the run's actor is killed between
an effect and its result, the refund's answer is lost, the model proposes the refund again, and it obeys an order's note.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, TypeVar
from uuid import uuid4

import msgspec

from ..adapters.loopback_process import LoopbackProcess
from ..eventstore.history import fold_records, read_records
from ..eventstore.location import connect_store, parse_url
from ..eventstore.owned import lock_path, real_path
from ..eventstore.owner import live_owner
from ..eventstore.port import EventStore
from ..eventstore.verify import verify_run
from ..runtime import events as e
from ..runtime.errors import BoundloopError, OwnedError
from .cli_session import approver
from .cli_text import quoted, safe_text
from .client import Runtime
from .demo_application import (
    AGENT,
    APPROVER,
    POLICY,
    TASK,
    demo_limits,
    demo_model,
    demo_script,
    demo_tools,
)
from .demo_asking import Terminal, is_terminal
from .demo_processes import descendants, end_all, kill_and_wait
from .demo_proof import Found, Killed
from .demo_shop import COMMAND, ShopProcess
from .demo_timeline import EventWords, Timeline, counts

T = TypeVar("T")

HELD_S: Final = 20.0
"""How long the shop is waited for to have the draft, whose answer it holds back."""

ENDING_S: Final = 10
"""What the run's own deadline leaves of the demo's, to tell what happened and to close."""

CANCELLED_S: Final = 5.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """``approve``: "self" approves what it has shown, "ask" waits for a person. ``within_s`` bounds all of it.
    ``shop_command`` starts the far side; ``boundloop``: how a reader's shell reaches the command line."""

    store: str
    approve: Literal["self", "ask"] = "self"
    within_s: int = 90
    shop_command: Sequence[str] = COMMAND
    boundloop: str = "boundloop"


def play(plan: Plan, timeline: Timeline) -> Found:
    """The whole story, and what was found afterwards. Everything that it started has ended then, also if it raises:
    ``OwnedError`` if another process has the store, ``BoundloopError``, ``OSError``, and whatever a signal's handler
    raises."""
    refuse_owned(plan.store)
    started: dict[int, int] = {}
    try:
        with contextlib.ExitStack() as stack:
            timeline.line("demo", "a model server, a shop and a cluster start here; 3 to 20 s")
            timeline.doing("the model server and the shop start")
            model = stack.enter_context(LoopbackProcess(demo_script()))
            shop = stack.enter_context(ShopProcess(plan.shop_command))
            timeline.doing("Ray starts on this machine")
            runtime = stack.enter_context(
                Runtime(
                    ray="local",
                    store=plan.store,
                    model=demo_model(model.base_url),
                    tools=demo_tools(shop),
                    policy=POLICY,
                    run_actors=2,
                )
            )
            started.update(descendants())
            timeline.line(
                "demo",
                f"Ray, a model server and a shop run here, {len(started)} processes; store {plan.store}",
            )
            try:
                return _Story(plan, timeline, runtime, model, shop).play()
            finally:
                started.update(descendants())
                timeline.doing("everything is ended")
    finally:
        started.update(descendants())
        end_all(started)


def refuse_owned(url: str) -> None:
    """Raise ``OwnedError`` if another process has the store: its runs, and its far side, would be that process's."""
    location = parse_url(url)
    if location.kind != "sqlite":
        return
    path = real_path(location.path)
    owner = live_owner(lock_path(path))
    if owner is not None and not owner.brief:
        raise OwnedError(owner.process.pid, owner.process.host, path=path)


class _Story:
    """One run, and the demo's part in it."""

    def __init__(
        self, plan: Plan, timeline: Timeline, runtime: Runtime, model: LoopbackProcess, shop: ShopProcess
    ) -> None:
        self._plan = plan
        self._timeline = timeline
        self._runtime = runtime
        self._model = model
        self._shop = shop
        self._words = EventWords()
        self._operation = f"refund-A1042-{uuid4().hex[:8]}"
        self._run = f"r_demo_{uuid4().hex[:12]}"
        self._killed: Killed | None = None
        self._terminal: Terminal | None = None

    def play(self) -> Found:
        """Start the run, do what the demo has to do, follow it to its end."""
        self._shop.ask("demo/mishaps", self._operation)
        left_s = self._plan.within_s - ENDING_S - round(self._timeline.seconds)
        self._runtime.start(
            TASK,
            run_id=self._run,
            operation_id=self._operation,
            agent=AGENT,
            goal="submit_refund",
            limits=demo_limits(max(1, left_s)),
            on_stop="end",
        )
        try:
            for item in self._runtime.stream(self._run):
                if isinstance(item.event, e.ChildSettled):
                    self._show_child(item.event.child_run)
                for who, text in self._words.lines(item.event):
                    self._timeline.line(who, text)
                self._act(item.event)
        except BaseException:
            self._leave_nothing_running()
            raise
        finally:
            if self._terminal is not None:
                self._terminal.close()
        return asyncio.run(self._on_store(self._found))

    def _leave_nothing_running(self) -> None:
        """A run that is given up in the middle would go on in the next demo on this file, and meet another shop."""
        with contextlib.suppress(BoundloopError):
            self._runtime.cancel(self._run, by="demo")
            self._runtime.wait(self._run, CANCELLED_S)

    def _act(self, event: e.AnyEvent) -> None:
        match event:
            case e.CallStarted(attempt=1) if self._words.tool_of.get(event.call) == "draft_refund":
                self._kill_the_actor(event.call)
            case e.CallStarted() if self._words.tool_of.get(event.call) == "submit_refund":
                self._timeline.doing("the shop pays and doesn't answer")
            case e.ApprovalRequested():
                self._decide(event.approval_id)
            case e.ApprovalDecided() if self._terminal is not None:
                self._terminal.close()
                self._terminal = None
            case e.CallStarted():
                self._timeline.doing(f"{safe_text(self._words.tool_of.get(event.call, ''))} runs")
            case e.ModelRequested():
                self._timeline.doing("the model is asked")
            case _:
                return

    # --- the kill ------------------------------------------------------------------------------------------------------

    def _kill_the_actor(self, call: str) -> None:
        """The intent is durable and the shop has the draft; its answer is held back until the actor is dead."""
        self._timeline.doing("the shop makes the draft")
        held = self._shop.ask("demo/held", self._operation, within_s=HELD_S, timeout_s=HELD_S + 5)["held"]
        if not held:
            self._timeline.line("demo", "the shop never saw the draft, so nobody is killed")
            return
        made = self._shop.ask("demo/counts", self._operation)["effects"].get("drafts", 0)
        self._timeline.line(
            "shop", f"{call} has taken effect, {counts(made, 'draft')} made; the answer is on its way"
        )
        self._killed = asyncio.run(self._on_store(self._kill))
        self._shop.ask("demo/release", self._operation)
        if self._killed is not None:
            self._timeline.line(
                "demo",
                f"SIGKILL to the run's actor, pid {self._killed.pid}, before it has the result",
            )
        self._timeline.doing("the run is taken up by another actor")

    async def _kill(self, store: EventStore) -> Killed | None:
        row = await store.run(self._run)
        hosts = {host.host_id: host for host in await store.hosts()}
        host = hosts.get(row.owner) if row is not None and row.owner else None
        if host is None:
            self._timeline.line("demo", "the run has no host, so nobody is killed")
            return None
        gone = await asyncio.to_thread(kill_and_wait, host.pid, host.pid_start)
        return Killed(host.pid, host.host_id, gone)

    # --- the decision ----------------------------------------------------------------------------------------------------

    def _decide(self, approval_id: str) -> None:
        if self._plan.approve == "self":
            self._runtime.approve(self._run, approval_id, by=APPROVER, reason="the preview is the draft")
            return
        here = "y or n here, or " if is_terminal() else ""
        where = f"{approval_id} --store {quoted(self._plan.store)}"
        self._timeline.alarm(
            f"waits for a person: {here}in another shell:",
            [f"{self._plan.boundloop} {verb} {where}" for verb in ("approve", "reject")],
        )

        def decided(yes: bool) -> object:
            decide = self._runtime.approve if yes else self._runtime.reject
            return decide(self._run, approval_id, by=approver())

        if self._terminal is not None:
            self._terminal.close()
        self._terminal = Terminal(decided, lambda: self._timeline.alarm("y or n, please", ()))

    # --- what is read --------------------------------------------------------------------------------------------------

    def _show_child(self, child_run: str) -> None:
        words = EventWords()
        for event in asyncio.run(self._on_store(lambda store: _events(store, child_run))):
            for _, text in words.lines(event) if isinstance(event, _OF_CHILD) else ():
                self._timeline.line("child", text)

    async def _on_store(self, work: Callable[[EventStore], Awaitable[T]]) -> T:
        """As another shell would: through the owner's socket."""
        store = await connect_store(self._plan.store, must_exist=True)
        try:
            return await work(store)
        finally:
            await store.close()

    async def _found(self, store: EventStore) -> Found:
        records = await read_records(store, self._run)
        found = Found(
            events=[record.event for record in records],
            state=await fold_records(store, records),
            counts=self._shop.ask("demo/counts", self._operation),
            killed=self._killed,
        )
        runs = [self._run]
        for reserved in found.of(e.ChildReserved)[:1]:
            child = await read_records(store, reserved.child_run)
            found.child_events = [record.event for record in child]
            found.child_state = await fold_records(store, child)
            runs.append(reserved.child_run)
        verdicts = [await verify_run(store, run) for run in runs]
        found.verified = (sum(verdict.ok for verdict in verdicts), len(runs))
        by_run = self._model.counts()["by_run"]
        found.model_requests = {run: by_run[run][0] for run in runs if run in by_run}
        return found


_OF_CHILD: Final = (e.CallProposed, e.ModelResponded)


async def _events(store: EventStore, run_id: str) -> list[e.AnyEvent]:
    return [record.event for record in await read_records(store, run_id)]
