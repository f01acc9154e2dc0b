"""One run's driver: decide, append, fold, dispatch, wait. asyncio, no Ray; everything that hosts runs wraps this.

    commands ── decide ──▶ events ── append ──▶ (durable) ── pending_orders ──▶ dispatch ──▶ observations ── …

A *step* takes all observations at hand, lets ``decide`` turn each into facts and the fold apply them, runs the checks
that may run inline, and appends the lot as one row (two if both claim a key). Nothing is dispatched, answered or shown
before the store said yes. The state in memory runs ahead of the log only inside a step: if the append fails in any way,
the state is thrown away and folded from the log again, and the step's commands are decided anew. The set of what is in
flight is the only thing that isn't in the log.

A conflict or a newer epoch means that another host has the run: this driver stops and forgets it. Never retried.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Protocol

import msgspec

from ..adapters.port import ModelAdapter, Progress, TextDelta
from ..eventstore.history import load_intact
from ..eventstore.port import (
    AlreadyDone,
    Appended,
    ClaimTaken,
    Conflict,
    EventStore,
    Fenced,
    NewRun,
)
from ..runtime.advance import advance
from ..runtime.children import redacted_end
from ..runtime.commands import (
    ChecksDone,
    ChildEnded,
    ClaimLost,
    Command,
    CommandAnswer,
    Executed,
    Outside,
    Queried,
)
from ..runtime.decide import decide
from ..runtime.decision import Decision
from ..runtime.errors import BugError, DamagedFile, HistoryRefused, LogDamaged, StoreError
from ..runtime.events import AnyEvent, RungVerdict
from ..runtime.facts import facts_in
from ..runtime.fold import evolve
from ..runtime.goal import predicates_met
from ..runtime.guarded import answer_checked
from ..runtime.ledger import LedgerRow
from ..runtime.orders import (
    AskParent,
    CancelChild,
    Execute,
    GuardAnswer,
    GuardResult,
    Order,
    Query,
    RequestModel,
    RunChecks,
    SettleChild,
    StartChild,
    pending_orders,
    wake_at_ms,
)
from ..runtime.pins import predicates
from ..runtime.read_result import READ_RESULT
from ..runtime.state import CallState, State
from ..runtime.withheld import guards_results
from . import checks, children, guarding, read_back, tool_failures
from .execution import Report, not_dispatched
from .executors import ToolExecutors
from .in_flight import InFlight
from .journal import Journal
from .query import sent_with

STEP_DECISIONS_MAX: Final = 10_000
"""No step can need more: calls a turn, their rungs and their results are bounded. Reaching it is a bug."""

HOLD_MS: Final = 10_000
"""A timer due within this time is waited for here; a later one parks the run."""

TURN_S: Final = 0.002
"""How long a driver that never waits may keep the event loop."""

STORE_RETRY_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
STORE_RETRIES_MAX: Final = 60
"""Failures in a row, of one look at the store or of steps that don't come about; then the run is given up, with the last."""

BLOBS_TOGETHER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Blobs that travel with their append. If they are more together, each goes before it by itself: any one fits a frame."""

NEVER_STORED: Final = frozenset(("frame_too_large", "log_regressed"))
"""Errors of the store that no further try changes."""


class Surroundings(Protocol):
    """What a driver needs of its host."""

    store: EventStore
    host_id: str
    gate: checks.Gate
    executors: ToolExecutors

    def adapter_for(self, state: State) -> ModelAdapter: ...

    def publish(self, run_id: str, state: State, events: tuple[AnyEvent, ...], first_seq: int) -> None:
        """Committed events, in order; must not block."""
        ...

    def progress(self, run_id: str, item: Progress, after_seq: int) -> None:
        """Provisional text and notices of the running attempt, whose request is in the log up to ``after_seq``."""
        ...

    def landed(self, run_id: str) -> None:
        """The running attempt came to something; its event is about to be appended."""
        ...

    def late(self, run_id: str, report: Report) -> None:
        """A report of an attempt that came after its driver had let go of the run."""
        ...


class Lost(Exception):
    """Another host has the run."""


_Posted = tuple[Command, "asyncio.Future[CommandAnswer] | None"]


class RunDriver:
    """Carries one run from an acquired epoch to its end or a wait. Not reusable."""

    def __init__(
        self,
        around: Surroundings,
        state: State,
        *,
        head: bytes,
        epoch: int,
        create: NewRun | None = None,
        unsaved: tuple[AnyEvent, ...] = (),
        blobs: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.around = around
        self.state = state
        self.epoch = epoch
        self.parked = False
        self._over = False
        self.nudged = False
        """The store said that the run was woken: the mark may be there still when it is let go of."""
        self._journal = Journal(
            head=head, seq=state.seq - len(unsaved), epoch=epoch, create=create, events=unsaved, blobs=blobs
        )
        self._inbox: deque[_Posted] = deque()
        self._commands: list[_Posted] = []
        self._lost_claims: dict[str, LedgerRow] = {}
        self._answers: list[tuple[asyncio.Future[CommandAnswer], CommandAnswer]] = []
        self._out = InFlight()
        self._orders: list[Order] = []
        self._orders_seq = -1
        self._seen_keys: set[tuple[str, str, str]] = set()
        self._looked: set[str] = set()
        self._cancelled: set[str] = set()
        self._stepped_at_ms = -1
        self._wake: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._turned_at = self._loop.time()
        self._stopping = False
        self._asked: tuple[int, int, int] | None = None
        """Turn, attempt and seq of the model request that is out."""
        guardrails = around.gate.policy.guardrails
        self._held_back = answer_checked(state) and not (guardrails is not None and guardrails.provisional)
        self._store_failures = 0
        self._broken: BaseException | None = None
        self.durable: asyncio.Future[bool] = self._loop.create_future()
        """Whether the run's first event is in the store: true as soon as it is, false if the driver was over before."""

    # --- what the host calls ---------------------------------------------------------------------------------------

    def post(self, command: Command, answer: asyncio.Future[CommandAnswer] | None = None) -> None:
        """Hand over an observation or a wish. Answers come after the append."""
        self._inbox.append((command, answer))
        self._ring()

    def nudge(self) -> None:
        """A ledger row or a child that this run waits for may have changed: who looks at them looks again."""
        self.nudged = True
        self._seen_keys.clear()
        self._looked.clear()
        self._ring()

    def stop(self) -> None:
        """Stop dispatching and give up the run without a word to the log (the host lost its row, or closes)."""
        self._stopping = True
        self._ring()

    def over(self, _task: asyncio.Task[None]) -> None:
        """Its task has ended, however."""
        if not self.durable.done():
            self.durable.set_result(False)

    def _became_durable(self) -> None:
        if not self.durable.done():
            self.durable.set_result(True)

    def left_over(self) -> list[_Posted]:
        """Commands without an answer, and late reports: they came while the run was being released, or lost. The host
        submits them again."""
        left = [item for item in self._inbox if item[1] is not None or isinstance(item[0], Executed)]
        self._inbox.clear()
        return left

    async def drive(self) -> None:
        """Until the run ends, waits with nothing to do here, or is lost. Raises ``StoreError`` if the store stays away,
        and whatever bug stops the run; nothing dispatched is left behind."""
        try:
            while not self._stopping:
                done = await self._step()
                if self.parked or self._stopping:
                    return
                if done:
                    await self._wait()
                if self._broken is not None:
                    raise self._broken
        except Lost:
            self._stopping = True
        finally:
            self._over = True  # nobody reads its inbox from now on but who asks for what is left over
            self._out.cancel_all()
            self._set_aside()  # what wasn't answered is for whoever decides for the run from now on

    # --- one step --------------------------------------------------------------------------------------------------

    async def _step(self) -> bool:
        """False: the step's append failed or was refused, and the step is to be done again; or there is to be another look
        whether the run can be let go."""
        # A new run's first event was folded at the time that its state has: its append says that time, or the live state
        # would have another deadline than the fold of the log.
        now = self._now() if self._journal.create is None else self.state.at_ms
        self._stepped_at_ms = -1  # until this step is done, nothing counts as seen to
        try:
            if not self._inbox:
                await self._advance(now)
            while self._inbox:
                # Each command brings what is due because of it; a take-over is the first of its driver's commands.
                await self._take(self._inbox.popleft(), now)
            await self._flush(now, last=True)
        except Retry:
            return False
        except StoreError as error:
            await self._after_store_error(error)
            return False
        self._stepped_at_ms = now
        self._store_failures = 0
        # What was out kept the run here at the append; if it was given up since, nothing may be left that ever rings.
        return not self._dispatch(now)

    async def _take(self, posted: _Posted, now: int) -> None:
        """One command and everything that is due because of it. An outside command gets an append of its own, which
        names it as its cause."""
        command, answer = posted
        outside = command.command_id if isinstance(command, Outside) else ""
        if outside and self._journal.events:
            # If this append fails, the command is still to be decided, after what came before it.
            self._inbox.appendleft(posted)
            await self._flush(now)
            self._inbox.popleft()
        self._commands.append(posted)
        self._journal.causation = outside
        decision = decide(self.state, command, now)
        await self._apply(posted, decision, now)
        if answer is not None:
            self._answers.append((answer, self._answer(command, decision)))
        if outside:
            await self._flush(now)
        await self._advance(now)

    def _answer(self, command: Command, decision: Decision) -> CommandAnswer:
        refusal = decision.refusal
        if refusal is not None:
            return CommandAnswer(accepted=False, code=refusal.code, message=refusal.message, actor="caller")
        if isinstance(command, Outside):
            # Of the event that answers it, now and whenever it is asked again: others may follow from it.
            return CommandAnswer(accepted=True, seq=self.state.commands.get(command.command_id, 0))
        return CommandAnswer(accepted=True, seq=self.state.seq)

    async def _advance(self, now: int) -> None:
        """All that is due, with the inline checks on the way, until the state has nothing more to say."""
        for _ in range(STEP_DECISIONS_MAX):
            decision = advance(self.state, now)
            if decision.events:
                if decision.claim is None:
                    self._fold(decision, now)
                else:
                    await self._apply(None, decision, now)
            elif self.state.phase not in ("open_calls", "deciding") or not await self._inline_checks(now):
                return
        raise BugError("step_bound", "a step did not come to an end")

    async def _inline_checks(self, now: int) -> bool:
        """Run one check order that may run here and now; False if there is none."""
        gate = self.around.gate
        for order in pending_orders(self.state, now):
            if type(order) is GuardResult or type(order) is GuardAnswer:
                if gate.guards_inline and order not in self._out:
                    asked = self._guard_asked(order)
                    verdict = guarding.judged(gate.policy, asked, secrets=gate.secrets)
                    await self._apply_inline(guarding.told(asked, verdict, _guarded_call(order)), now)
                    return True
                continue
            if type(order) is not RunChecks or order in self._out:
                continue
            call = self.state.calls[order.call]
            definition = self.state.tools.get(call.tool)
            if not gate.runs_inline(definition) or not self._unseen(call):
                continue
            if definition is not None and definition.is_effect:
                command = await self._checked(order, call)
            else:
                command = self._check_read(order, call)
            decision = await self._apply_inline(command, now)
            if not decision.events and call.phase != "waiting_key":
                raise BugError("check_without_effect", f"{order!r} in {call.phase}", path=call.call)
            return True
        return False

    async def _apply_inline(self, command: Command, now: int) -> Decision:
        posted = (command, None)
        self._commands.append(posted)
        decision = decide(self.state, command, now)
        await self._apply(posted, decision, now)
        return decision

    def _guard_asked(self, order: GuardResult | GuardAnswer) -> guarding.GuardAsked:
        if isinstance(order, GuardAnswer):
            return guarding.about_answer(self.state)
        return guarding.about_result(self.state, self.state.calls[order.call])

    def _unseen(self, call: CallState) -> bool:
        """Whether a waiting call's row is to be read: once when it began to wait, then whenever the store nudges."""
        if call.phase != "waiting_key":
            return True
        mark = (call.call, call.holder_run, call.holder_call + call.holder_why)
        if mark in self._seen_keys:
            return False
        self._seen_keys.add(mark)
        return True

    async def _apply(self, posted: _Posted | None, decision: Decision, now: int) -> None:
        """Fold a decision's events into the state, ahead of the append. A second claim flushes the first one out."""
        claim = decision.claim
        if claim is not None:
            lost = self._lost_claims.pop(claim.call_id, None)
            if lost is not None:
                decision = decide(self.state, ClaimLost(call=claim.call_id, row=lost), now)
                claim = decision.claim
        if claim is not None and self._journal.claim is not None:
            await self._flush(now)
            if posted is not None:
                self._commands.append(posted)
        self._fold(decision, now)

    def _fold(self, decision: Decision, now: int) -> None:
        for event in decision.events:
            evolve(self.state, event, now)
        self._journal.add(decision)

    # --- append ----------------------------------------------------------------------------------------------------

    async def _flush(self, now: int, *, last: bool = False) -> None:
        """Make the step durable, then answer and publish. On any other answer than yes the step is done over."""
        if self._journal.events:
            await self._append(now, release=last and self._nothing_to_do(now))
        elif last and not self._out and self._nothing_to_do(now):
            await self.around.store.release(self.state.run_id, self.around.host_id, self.epoch, ready=False)
            self.parked = True
        self._commands.clear()
        for future, answer in self._answers:
            if not future.done():
                future.set_result(answer)
        self._answers.clear()

    async def _append(self, now: int, *, release: bool) -> None:
        state, journal = self.state, self._journal
        first = journal.seq + 1
        request = journal.request(state, now, self.around.host_id, release=release)
        events = tuple(journal.events)
        if request.blobs and sum(len(data) for _, data in request.blobs) > BLOBS_TOGETHER_BYTES_MAX:
            for _, data in request.blobs:
                await self.around.store.put_blob(data)
            request = msgspec.structs.replace(request, blobs=())
        answer = await self.around.store.append(request)
        match answer:
            case Appended() | AlreadyDone():
                pass
            case ClaimTaken():
                await self._redo(answer)
                raise Retry
            case Conflict() | Fenced():
                raise Lost
        journal.committed(request)
        self._lost_claims.clear()
        if isinstance(answer, AlreadyDone) or answer.woken:
            # Without a release it told the store that its host has seen what woke the run.
            self._seen_keys.clear()
            self._looked.clear()
        self.parked = release
        self._became_durable()
        self.around.publish(state.run_id, state, events, first)

    def _nothing_to_do(self, now: int) -> bool:
        """Whether this host can give the run up: nothing is out, nothing is to be sent, no timer is near."""
        state = self.state
        if state.phase == "terminated":
            return True
        if self._inbox or self._out:
            return False
        self._orders = orders = pending_orders(state, now)
        self._orders_seq = state.seq
        for order in orders:
            if not self._is_seen_to(order):
                return False
        if state.phase == "suspended":
            return True
        wake = wake_at_ms(state)
        return wake is None or wake - now > HOLD_MS or _waits_for_other(state)

    def _is_seen_to(self, order: Order) -> bool:
        """Whether only somebody else can make this order worth another look."""
        match order:
            case RunChecks():
                call = self.state.calls[order.call]
                mark = (call.call, call.holder_run, call.holder_call + call.holder_why)
                return call.phase == "waiting_key" and mark in self._seen_keys
            case SettleChild():
                return order.call in self._looked
            case CancelChild():
                return order.call in self._cancelled
            case _:
                return False

    async def _after_store_error(self, error: StoreError) -> None:
        """An append, a release or a look at the ledger got no answer, so nothing is known to be committed: wait, fold
        the log again, and decide the step's commands anew. If an append did land after all, they find it done and change
        nothing. A step that fails again and again is tried ever more slowly, and not for ever.
        """
        self._set_aside()
        # Verdicts from before the outage say nothing about after it: their calls are checked again.
        self._inbox = deque(posted for posted in self._inbox if not isinstance(posted[0], ChecksDone))
        self._store_failures += 1
        if isinstance(error, DamagedFile) or error.code in NEVER_STORED:
            raise error  # waiting mends nothing
        for attempt in range(self._store_failures - 1, STORE_RETRIES_MAX):
            if self._stopping and self._journal.create is None:
                return
            if self._stopping:
                raise error
            await asyncio.sleep(_store_pause_s(attempt))
            try:
                if (
                    self._journal.create is not None
                    and await self.around.store.run(self.state.run_id) is None
                ):
                    # The run itself was never written: there is nothing to fold, and its caller is told.
                    raise error
                await self._refold()
            except StoreError:
                if self._journal.create is not None:
                    raise
                continue
            if self._journal.create is not None:
                self._journal.create = None
                self._became_durable()
            return
        raise error

    async def _redo(self, taken: ClaimTaken) -> None:
        """Nothing was appended. Fold again, and decide the step anew with the key's row as the store knows it."""
        claim = self._journal.claim
        self._set_aside()
        await self._refold()
        if claim is None:
            raise BugError("claim_answer", "the store refused a claim that was not made")
        self._lost_claims[claim.call_id] = taken.row
        call = self.state.calls.get(claim.call_id)
        if call is not None and call.phase != "proposed":
            return
        for place, (command, answer) in enumerate(self._inbox):
            if isinstance(command, ChecksDone) and command.call == claim.call_id:
                self._inbox[place] = (msgspec.structs.replace(command, row=taken.row), answer)

    def _set_aside(self) -> None:
        """The step's commands go back to the front of the inbox, with the futures that were not answered."""
        self._inbox.extendleft(reversed(self._commands))
        self._commands.clear()
        self._answers.clear()
        self._journal.drop()

    async def _refold(self) -> None:
        """Believe only the log: what this driver knows of the run is read again."""
        around = self.around
        row = await around.store.run(self.state.run_id)
        if row is None or row.epoch != self.epoch:
            raise Lost
        self.state, head = await load_intact(around.store, self.state.run_id)
        seq = self.state.seq
        if head != row.head:
            raise LogDamaged(self.state.run_id, seq, seq, "the last hash isn't the run's head")
        self._journal.moved(seq, head)
        self._seen_keys.clear()

    # --- dispatch --------------------------------------------------------------------------------------------------

    def _dispatch(self, now: int) -> bool:
        """Start exactly the orders that are not in flight; cancel those that vanished or must stop. True: the last that was
        out was given up, and there is nothing else to do."""
        if self.parked or self._stopping or self._inbox:
            # What landed while the store was at work is decided first: its order may look as if it had never been out.
            return False
        state = self.state
        ending = bool(state.cancel_reason or state.close_requested or now >= state.deadline_at_ms)
        # The end of the step asked already, if nothing was out; no event has come since.
        orders = self._orders if self._orders_seq == state.seq else pending_orders(state, now)
        self._orders_seq = -1
        idle = bool(self._out) and self._out.keep_only(orders)
        for order in orders:
            if order in self._out:
                continue
            match order:
                case RequestModel():
                    adapter = self.around.adapter_for(state)
                    secrets = self.around.gate.secrets
                    self._asked = (order.turn, order.attempt, state.seq)
                    self._out.request_model(
                        order, adapter, state, now, self._land, self._progress, self._keep, secrets
                    )
                case Execute() if ending:
                    # Its intent and the end came in one step: it was never out, and stays so.
                    self._land(order, not_dispatched(order.call, order.attempt, "cancelled"))
                case Execute() if self._reads_back(state.calls[order.call]):
                    self._work(order, self._read_back(order, state.calls[order.call]))
                case Execute():
                    spec = self.around.gate.toolbox.get(state.calls[order.call].tool)
                    if spec is None:
                        self._land(order, not_dispatched(order.call, order.attempt, "tool_not_here"))
                        continue
                    self._out.execute(order, spec, self.around.executors, state, self._now(), self._reported)
                case Query():
                    self._work(order, self._query(order))
                case RunChecks():
                    call = state.calls[order.call]
                    if self._unseen(call):
                        self._work(order, self._run_checks(order, call))
                case GuardResult() | GuardAnswer():
                    if not self.around.gate.guards_inline:
                        self._work(order, self._guard(order))
                case StartChild() | SettleChild() | CancelChild() | AskParent():
                    if not self._is_seen_to(order):
                        self._work(order, self._see_family(order))
        if ending:
            self._out.cancel_executions()
        return idle and not self._out and not self._inbox

    def _work(self, order: Order, work: Coroutine[Any, Any, None]) -> None:
        self._out.work(order, work, self._fail)

    def _land(self, order: Order, command: Command) -> None:
        """An order's observation arrived."""
        if type(order) is RequestModel:
            self._asked = None
            self.around.landed(self.state.run_id)
        self._out.landed(order)
        self._inbox.append((command, None))
        self._ring()

    def _reported(self, order: Execute, report: Report) -> None:
        """An executor's report. One that comes after the run was let go is the host's to hand in, if it can matter."""
        state = self.state
        call = state.calls.get(order.call) or state.unknown_calls.get(order.call)
        if report.raised:
            tool = "a tool" if call is None else call.tool
            tool_failures.tell(tool, state.run_id, order.call, report.executed.attempt, report.raised)
        if report.artifact is not None and call is not None:
            # Evidence is judged here, where the whole result is; the log has a view of it.
            met = predicates_met(predicates(state.pins), call.tool, report.artifact)
            facts = facts_in(state.tools[call.tool].facts, report.artifact)
            values = state.pins.values_of(call.tool, report.artifact)
            report.executed = msgspec.structs.replace(report.executed, met=met, facts=facts, values=values)
        if self.parked or self._over:
            if call is None or call.key is not None:
                self.around.late(state.run_id, report)
            return
        if report.artifact is not None and report.executed.artifact is not None:
            self._journal.blobs.append((report.executed.artifact, report.artifact))
        self._land(order, report.executed)

    def _keep(self, digest: bytes, blob: bytes) -> None:
        """Goes with the next append, which the answer that names it is in."""
        self._journal.blobs.append((digest, blob))

    def _progress(self, item: Progress) -> None:
        asked = self._asked
        if asked is None or (item.turn, item.attempt) != asked[:2]:
            return  # of no attempt that is out
        if type(item) is TextDelta and self._held_back:
            return  # nobody has judged it
        secrets = self.around.gate.secrets
        if secrets is None or secrets.may_be_shown(item):
            self.around.progress(self.state.run_id, item, asked[2])

    def _fail(self, error: BaseException) -> None:
        """Work of our own failed: the run stops here."""
        self._broken = error
        self._ring()

    async def _query(self, order: Query) -> None:
        state = self.state
        call = state.calls[order.call]
        spec = self.around.gate.toolbox.get(call.tool)
        asked = self._now()
        sent = sent_with(spec, call.arguments, state.tenant, state.principal)
        answer = await self.around.executors.queried(spec, call.key, sent)
        self._land(
            order,
            Queried(
                call=order.call,
                number=order.number,
                asked_at_ms=asked,
                outcome=answer.outcome,
                result=answer.result,
                reason=answer.reason,
                code=answer.code,
                met=None
                if answer.whole is None
                else predicates_met(predicates(state.pins), call.tool, answer.whole),
                source=answer.source,
                values=None if answer.whole is None else state.pins.values_of(call.tool, answer.whole),
            ),
        )

    def _reads_back(self, call: CallState) -> bool:
        """Whether this is the built-in ``read_result``, which no executor has: by what the run was offered, and not by what
        the application has under that name."""
        return self.state.tools.get(call.tool) is READ_RESULT

    async def _read_back(self, order: Execute, call: CallState) -> None:
        """Read from the log, within the attempt's validity. A store that gives no answer fails the attempt, not the run."""
        try:
            async with asyncio.timeout(max(0, call.valid_until_ms - self._now()) / 1_000):
                report = await read_back.read_back(self.around.store, self.state, call)
        except (StoreError, HistoryRefused, TimeoutError):
            report = read_back.failed(call, "not_read", "the result could not be read now", retryable=True)
        except asyncio.CancelledError:
            report = read_back.failed(call, "cancelled", "the call was cancelled")
        self._land(order, report)

    async def _guard(self, order: GuardResult | GuardAnswer) -> None:
        """A guardrail that may block, in an executor of the tool's pool."""
        asked = self._guard_asked(order)
        verdict = await self._judged(asked)
        self._land(order, guarding.told(asked, verdict, _guarded_call(order)))

    async def _judged(self, asked: guarding.GuardAsked) -> RungVerdict:
        gate = self.around.gate
        if gate.guards_inline:
            return guarding.judged(gate.policy, asked, secrets=gate.secrets)
        definition = self.state.tools.get(asked.tool)
        spec = None if definition is None else gate.toolbox.spec_of(definition)
        pool, patience_s = guarding.place_for(gate.toolbox, spec)
        return await self.around.executors.guarded(asked, gate.policy, pool, patience_s)

    async def _run_checks(self, order: RunChecks, call: CallState) -> None:
        for attempt in range(STORE_RETRIES_MAX):
            try:
                command = await self._checked(order, call)
            except StoreError:
                if attempt == STORE_RETRIES_MAX - 1:
                    raise
                await asyncio.sleep(_store_pause_s(attempt))
            else:
                self._land(order, command)
                return

    async def _see_family(self, order: StartChild | SettleChild | CancelChild | AskParent) -> None:
        """An order about another run of the tree, until the store lets it through."""
        for attempt in range(STORE_RETRIES_MAX):
            try:
                command = await self._ask_family(order)
                secrets = self.around.gate.secrets
                if secrets is not None and isinstance(command, ChildEnded):
                    command = redacted_end(self.state, command, secrets.redactor)
            except (LogDamaged, HistoryRefused) as error:
                # Another run's log: as this driver's own failure it would have this run quarantined.
                raise BugError("family_unreadable", str(error)[:300], path=error.path) from error
            except StoreError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    # What was under way when this was cancelled failed on its way out, and hid that.
                    raise asyncio.CancelledError from error
                if attempt == STORE_RETRIES_MAX - 1:
                    raise
                await asyncio.sleep(_store_pause_s(attempt))
                continue
            if command is not None:
                self._land(order, command)
            else:
                self._out.landed(order)
                self._ring()
            return

    async def _ask_family(self, order: StartChild | SettleChild | CancelChild | AskParent) -> Command | None:
        """The observation that comes of it, if any. What is marked as seen to before the look is looked at again if a
        nudge comes during it."""
        state, store = self.state, self.around.store
        if isinstance(order, AskParent):
            return await children.ask_parent(store, state, dict(order.asked))
        call = state.calls.get(order.call)
        if call is None or call.phase != "waiting_child":
            return None  # settled while this was on its way
        match order:
            case StartChild():
                return await children.start_child(store, state, call)
            case SettleChild():
                self._looked.add(order.call)
                return await children.look_at_child(store, call)
            case CancelChild():
                await children.cancel_child(store, state, call)
                self._cancelled.add(order.call)
                return None

    async def _checked(self, order: RunChecks, call: CallState) -> ChecksDone:
        """All rungs of the application over one call, the ledger's row with them."""
        state, gate, store = self.state, self.around.gate, self.around.store
        admitted, arguments = checks.pure_rungs(state, call, order.recheck)
        if not isinstance(arguments, bytes):
            return ChecksDone(call=call.call, recheck=order.recheck, refused=arguments)
        key = call.key if admitted is None else admitted.key
        row = None if key is None else await store.ledger_row(state.tenant, key)
        ended = row is not None and row.status == "unknown" and await self._has_ended(row.run_id)
        if gate.runs_inline(state.tools.get(call.tool)):
            done = checks.run_inline(gate, state, call, admitted, arguments, row, recheck=order.recheck)
        else:
            done = await checks.run_beside(
                gate, self.around.executors, state, call, admitted, arguments, row, recheck=order.recheck
            )
        if row is not None and row.status == "succeeded" and guards_results(state):
            digest = call.args_sha256 if admitted is None else admitted.args_sha256
            asked = guarding.about_replay(state, call, arguments, digest, row)
            done = msgspec.structs.replace(
                done, replay=await self._judged(asked), replay_sha256=asked.input_sha256
            )
        return msgspec.structs.replace(done, holder_ended=True) if ended else done

    async def _has_ended(self, run_id: str) -> bool:
        """Whether another run will do nothing more about an effect that it left unknown."""
        if run_id == self.state.run_id:
            return False
        row = await self.around.store.run(run_id)
        return row is None or bool(row.damaged) or row.index.status == "terminated"

    def _check_read(self, order: RunChecks, call: CallState) -> ChecksDone:
        """As ``_checked`` for a read: no key, no look-up, no wait."""
        admitted, arguments = checks.pure_rungs(self.state, call, order.recheck)
        if not isinstance(arguments, bytes):
            return ChecksDone(call=call.call, recheck=order.recheck, refused=arguments)
        return checks.run_inline(
            self.around.gate, self.state, call, admitted, arguments, None, recheck=order.recheck
        )

    # --- wait ------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        """Store time; within a run it never falls."""
        return max(self.state.at_ms, self.around.store.now_ms())

    def _ring(self) -> None:
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def _wait(self) -> None:
        """Until an observation arrives or a timer of the state is due."""
        if self._inbox or self._stopping or self._broken is not None:
            # With a quick store and inline tools nothing here ever waits: let the others have their turn.
            if self._loop.time() - self._turned_at > TURN_S:
                await asyncio.sleep(0)
                self._turned_at = self._loop.time()
            return
        self._wake = self._loop.create_future()
        # What was due by the last step is under way or written: a timer of the past would only ring again at once.
        wake = wake_at_ms(self.state, self._stepped_at_ms)
        timer = None
        if wake is not None:
            delay = max(0.0, (wake - self._now()) / 1_000)
            timer = self._loop.call_later(min(delay, 3_600.0), self._ring)
        try:
            await self._wake
        finally:
            self._wake = None
            self._turned_at = self._loop.time()
            if timer is not None:
                timer.cancel()


def _guarded_call(order: GuardResult | GuardAnswer) -> str:
    return order.call if isinstance(order, GuardResult) else ""


class Retry(Exception):
    """The step's append did not happen; its commands are in the inbox again."""


def _waits_for_other(state: State) -> bool:
    """Whether only a person or another run can move this one: a timer far or near doesn't keep it here."""
    if state.phase != "open_calls":
        return False
    return all(
        call.phase in ("bound", "waiting_approval", "waiting_answer", "waiting_key", "waiting_child")
        for call in state.calls.values()
        if call.open
    )


def _store_pause_s(attempt: int) -> float:
    """How long to leave the store alone after the given failure in a row (from 0)."""
    return STORE_RETRY_S[min(attempt, len(STORE_RETRY_S) - 1)]
