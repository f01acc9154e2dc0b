"""Given, when, then over the real ``decide`` and ``fold``; and a pure driver that checks the laws after every event.

``given(events...).when(command, at).then(events...)`` is for single decisions. ``Run`` plays a whole run: it appends what
is decided, advances until nothing is due, keeps the ledger as a store would, and after every append compares the live
state with the fold of the log. Nothing here waits, sleeps or reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from boundloop.eventstore.codec import Recorded
from boundloop.eventstore.ledger_audit import RunClaims, ledger_faults
from boundloop.eventstore.rules import KeyRows, accepts_claim, claimed, settled
from boundloop.runtime import events as e
from boundloop.runtime.canonical import canonical_bytes
from boundloop.runtime.commands import (
    Advance,
    Approve,
    Cancel,
    ChecksDone,
    ClaimLost,
    Command,
    Executed,
    Guarded,
    ModelReplied,
    OutsideCommand,
    Queried,
    Refused,
    Reject,
    TakeOver,
)
from boundloop.runtime.decide import decide
from boundloop.runtime.decision import Decision
from boundloop.runtime.definitions import DefinitionChange, changes
from boundloop.runtime.fold import begin, evolve, fold
from boundloop.runtime.guarded import answer_sha256, input_sha256
from boundloop.runtime.index import run_index
from boundloop.runtime.invariants import check_state
from boundloop.runtime.ladder import admit
from boundloop.runtime.ledger import LedgerRow
from boundloop.runtime.model import FinishKind, ModelTurn, ProposedCall, Usage
from boundloop.runtime.orders import (
    GuardAnswer,
    GuardResult,
    Order,
    Query,
    RequestModel,
    RunChecks,
    pending_orders,
    shown_phase,
    wake_at_ms,
)
from boundloop.runtime.pins import Pins
from boundloop.runtime.start import NewRunSpec, start_run
from boundloop.runtime.state import CallState, State, state_digest
from boundloop.runtime.tool_definition import ToolDefinition

from .shop import BY_NAME, POLICY, pins

T0 = 1_000_000
ADVANCES_MAX = 2_000
USAGE = Usage(10, 5)

Arrow = tuple[str, str, str]
RUN_ARROWS: set[Arrow] = set()
CALL_ARROWS: set[Arrow] = set()
"""Every (phase, tag, phase) that any test of this process has walked."""
SHOWN_ARROWS: set[tuple[str, str]] = set()
"""Every change of the phase that a person is shown, between two appends."""


class Ledger:
    """The store's part of the ledger, by the rules that every store shares."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, bytes], LedgerRow] = {}
        self.earlier: dict[tuple[str, bytes], tuple[LedgerRow, ...]] = {}

    def row(self, tenant: str, key: bytes | None) -> LedgerRow | None:
        return None if key is None else self.rows.get((tenant, key))

    def append(self, run: Run, decision: Decision) -> LedgerRow | None:
        """Claim and settle as one append does; the row that refused the claim, if one did."""
        run_id, epoch, claim = run.state.run_id, run.state.epoch, decision.claim
        if claim is not None:
            place = claim.tenant, claim.key
            rows = self.key_rows(place)
            if not accepts_claim(rows, run_id, claim):
                return rows.held
            self.put(place, claimed(rows, run_id, epoch, claim, run.now))
        for settlement in decision.settlements:
            place = settlement.tenant, settlement.key
            self.put(place, settled(self.key_rows(place), run_id, epoch, settlement, run.now))
        return None

    def key_rows(self, place: tuple[str, bytes]) -> KeyRows:
        return KeyRows(self.rows.get(place), self.earlier.get(place, ()))

    def put(self, place: tuple[str, bytes], rows: KeyRows) -> None:
        self.earlier[place] = rows.earlier
        if rows.held is None:
            self.rows.pop(place, None)
        else:
            self.rows[place] = rows.held


def ledger_drift(runs: Iterable[Run]) -> list[str]:
    """What the rows of these runs' one ledger have otherwise than their logs, as ``verify`` would find it."""
    rows: list[LedgerRow] = []
    claims: list[RunClaims] = []
    for run in runs:
        rows = list(run.ledger.rows.values())
        epoch, records = 1, list[Recorded]()
        for seq, (event, at_ms) in enumerate(run.log, start=1):
            epoch = event.epoch if isinstance(event, e.RunResumed) else epoch
            records.append(Recorded(seq, e.tag_of(event), 1, at_ms, epoch, event))
        claims.append(RunClaims(run.state.run_id))
        claims[-1].take(records)
    return ledger_faults(rows, claims)


def step(state: State, event: e.AnyEvent, at_ms: int) -> None:
    """``evolve`` with its arrows noted and every law checked."""
    run_before = state.phase
    # A fact names the call that it is from and moves nothing of it.
    name: str | None = None if isinstance(event, e.FactRecorded) else getattr(event, "call", None)
    before = state.calls[name].phase if name in state.calls else ""
    bound = (*state.unknown_calls, *state.absent_calls)
    if name is not None and name not in state.calls and name in bound:
        before = "bound"
    evolve(state, event, at_ms)
    tag = e.tag_of(event)
    RUN_ARROWS.add((run_before, tag, state.phase))
    if name is not None:
        after = state.calls[name].phase if name in state.calls else "bound"
        CALL_ARROWS.add((before, tag, after))
    check_state(state)


def call(name: str, label: str = "", **arguments: Any) -> ProposedCall:
    """A proposal with these arguments as JSON."""
    return ProposedCall(name, msgspec.json.encode(arguments), label)


class Run:
    """One run under test, with its own log and a ledger that may be shared with other runs."""

    def __init__(
        self,
        pinned: Pins | None = None,
        *,
        ledger: Ledger | None = None,
        run_id: str = "r1",
        operation_id: str = "op1",
        on_stop: str = "suspend",
        now: int = T0,
        fold_every_append: bool = True,
        settled: bool = True,
        started: e.RunStarted | None = None,
    ) -> None:
        self.pins = pins() if pinned is None else pinned
        self.ledger = Ledger() if ledger is None else ledger
        self.now = now
        self.fold_every_append = fold_every_append
        if started is None:
            spec = NewRunSpec(run_id=run_id, input="hello", operation_id=operation_id, on_stop=on_stop)
            started, _, _ = start_run(spec, self.pins)
        self.blobs = {started.pins_sha256: self.pins}
        self.log: list[tuple[e.AnyEvent, int]] = [(started, now)]
        self.state = begin(started, self.pins, now)
        RUN_ARROWS.add(("", "run_started", self.state.phase))
        self.refusal = ""
        if settled:
            self.settle()

    # --- appending -------------------------------------------------------------------------------------------------

    def append(self, decision: Decision) -> LedgerRow | None:
        taken = self.ledger.append(self, decision)
        if taken is not None:
            return taken
        shown = shown_phase(self.state)
        for event in decision.events:
            step(self.state, event, self.now)
            self.log.append((event, self.now))
        if shown_phase(self.state) != shown:
            SHOWN_ARROWS.add((shown, shown_phase(self.state)))
        if decision.events and self.fold_every_append:
            self.check_replay()
        return None

    def check_replay(self) -> None:
        """The fold of the log, through its bytes, is the live state, and so is everything derived from it."""
        stored = msgspec.msgpack.decode(
            msgspec.msgpack.encode([event for event, _ in self.log]), type=list[e.AnyEvent]
        )
        replayed = fold(zip(stored, (at for _, at in self.log), strict=True), self.blobs)
        assert state_digest(replayed) == state_digest(self.state)
        assert run_index(replayed) == run_index(self.state)

    def decide(self, command: Command) -> tuple[e.AnyEvent, ...]:
        """One command's own events, appended; a lost claim is answered as a driver answers it."""
        before = state_digest(self.state) if self.fold_every_append else b""
        decision = decide(self.state, command, self.now)
        assert not before or state_digest(self.state) == before, "decide changed the state"
        if not isinstance(command, Advance):
            self.refusal = "" if decision.refusal is None else decision.refusal.code
        assert decision.refusal is None or not decision.events
        taken = self.append(decision)
        if taken is None:
            return decision.events
        assert decision.claim is not None
        return self.decide(ClaimLost(call=decision.claim.call_id, row=taken))

    def send(self, command: Command) -> tuple[e.AnyEvent, ...]:
        """A command and everything that is then due."""
        events = self.decide(command)
        return events + self.settle()

    def settle(self) -> tuple[e.AnyEvent, ...]:
        """Advance until nothing is due; then the run isn't stranded."""
        done: list[e.AnyEvent] = []
        for _ in range(ADVANCES_MAX):
            events = self.decide(Advance())
            if not events:
                self.check_moves_on()
                return tuple(done)
            done += events
        raise AssertionError(f"advance does not come to an end: {done[-4:]}")

    def check_moves_on(self) -> None:
        """No stranded state: an order, a timer, or somebody to wait for. And the timer tells the truth."""
        state, now = self.state, self.now
        if state.phase == "terminated":
            assert wake_at_ms(state) is None
            assert not pending_orders(state, now)
            return
        orders = pending_orders(state, now)
        wake = wake_at_ms(state, now)
        ending = state.cancel_reason or state.close_requested
        assert orders or wake is not None or (state.phase == "suspended" and not ending), "stranded"
        if wake is None:
            return
        assert wake > now
        if wake - 1 > now:
            assert not decide(state, Advance(), wake - 1).events, "due before its timer"
            assert pending_orders(state, wake - 1) == orders, "an order before its timer"
        moved = decide(state, Advance(), wake).events or pending_orders(state, wake) != orders
        assert moved, f"nothing is due at {wake - now} ms"

    # --- what a driver reports -------------------------------------------------------------------------------------

    def orders(self) -> list[Order]:
        return pending_orders(self.state, self.now)

    def reply(
        self,
        *calls: ProposedCall,
        finish: FinishKind | None = None,
        text: str = "",
        usage: Usage | None = USAGE,
        **fields: Any,
    ) -> tuple[e.AnyEvent, ...]:
        """Answer the open model request: with calls, or with a final text."""
        order = next(order for order in self.orders() if isinstance(order, RequestModel))
        kind: FinishKind = finish or ("calls" if calls else "final")
        turn = ModelTurn(finish=kind, text=text, calls=calls, usage=usage, response_id="resp", **fields)
        return self.send(ModelReplied(turn=order.turn, attempt=order.attempt, reply=turn))

    def final(self, text: str = "done") -> tuple[e.AnyEvent, ...]:
        return self.reply(text=text)

    def checks(self, name: str, **fields: Any) -> ChecksDone:
        """The verdicts of one ordered pass over a call: everything allowed, unless said otherwise."""
        order = next(order for order in self.orders() if isinstance(order, RunChecks) and order.call == name)
        state, subject = self.state, self.state.calls[name]
        values: dict[str, Any] = {
            "definition_sha256": BY_NAME[subject.tool].definition_sha256 if subject.tool in BY_NAME else b"",
            "handler_revision": BY_NAME[subject.tool].handler_revision if subject.tool in BY_NAME else "",
            "policy_revision": POLICY,
        }
        key = subject.key
        if order.recheck and subject.approval is not None:
            # A preview is made again for everything that a person was asked about.
            values["preview"] = subject.approval.preview
        if not order.recheck:
            admitted = admit(state, subject)
            if isinstance(admitted, Refused):
                values["refused"] = admitted
            else:
                values["admitted"] = admitted[0]
                key = admitted[0].key
        values["row"] = self.ledger.row(state.tenant, key)
        values.update(fields)
        return ChecksDone(call=name, recheck=order.recheck, **values)

    def check(self, name: str, **fields: Any) -> tuple[e.AnyEvent, ...]:
        return self.send(self.checks(name, **fields))

    def ask(self, name: str, **fields: Any) -> tuple[e.AnyEvent, ...]:
        """A pass whose policy wants a person."""
        preview = canonical_bytes({"call": name})
        return self.check(name, **{"ask": True, "preview": preview, "resource_version": "v1", **fields})

    def report(
        self,
        name: str,
        outcome: Literal["succeeded", "failed", "unknown"] = "succeeded",
        result: Any = None,
        *,
        attempt: int | None = None,
        **fields: Any,
    ) -> tuple[e.AnyEvent, ...]:
        """An executor's report on a call."""
        return self.send(self.executed(name, outcome, result, attempt=attempt, **fields))

    def executed(
        self,
        name: str,
        outcome: Literal["succeeded", "failed", "unknown"] = "succeeded",
        result: Any = None,
        *,
        attempt: int | None = None,
        **fields: Any,
    ) -> Executed:
        subject = self.call(name)
        shown = canonical_bytes({} if result is None else result)
        return Executed(
            call=name,
            attempt=subject.attempt if attempt is None else attempt,
            outcome=outcome,
            result=shown if outcome == "succeeded" and not fields.get("code") else None,
            **fields,
        )

    def query(
        self, name: str, outcome: Literal["applied", "absent", "unknown"], result: Any = None, **fields: Any
    ) -> tuple[e.AnyEvent, ...]:
        """The far side's answer to the query that is ordered now."""
        order = next(order for order in self.orders() if isinstance(order, Query) and order.call == name)
        shown = None if result is None else canonical_bytes(result)
        values: dict[str, Any] = {"number": order.number, "asked_at_ms": self.now, **fields}
        return self.send(Queried(call=name, outcome=outcome, result=shown, **values))

    def judge_result(self, name: str, verdict: e.Verdict = "allow", code: str = "") -> tuple[e.AnyEvent, ...]:
        """A guardrail's verdict on the executed result that is to be judged now."""
        assert GuardResult(name) in self.orders()
        about = input_sha256(self.state, self.call(name))
        said = e.RungVerdict("guardrail", verdict, code, "g1")
        return self.send(Guarded(call=name, verdict=said, input_sha256=about))

    def judge_answer(self, verdict: e.Verdict = "allow", code: str = "") -> tuple[e.AnyEvent, ...]:
        """A guardrail's verdict on the final text that is to be judged now."""
        assert self.orders() == [GuardAnswer(self.state.turn)]
        said = e.RungVerdict("guardrail", verdict, code, "g1")
        return self.send(Guarded(call="", verdict=said, input_sha256=answer_sha256(self.state)))

    def approve(self, name: str, by: str = "boss", **fields: Any) -> tuple[e.AnyEvent, ...]:
        return self.send(
            Approve(command_id=f"approve-{len(self.log)}", by=by, approval_id=self.approval(name), **fields)
        )

    def reject(self, name: str, by: str = "boss", **fields: Any) -> tuple[e.AnyEvent, ...]:
        return self.send(
            Reject(command_id=f"reject-{len(self.log)}", by=by, approval_id=self.approval(name), **fields)
        )

    def cancel(self, **fields: Any) -> tuple[e.AnyEvent, ...]:
        return self.send(Cancel(command_id=f"cancel-{len(self.log)}", by="user", **fields))

    def outside(self, kind: type[OutsideCommand], **fields: Any) -> tuple[e.AnyEvent, ...]:
        values: dict[str, Any] = {"command_id": f"outside-{len(self.log)}", "by": "user", **fields}
        return self.send(kind(**values))

    def tick(self, milliseconds: int) -> tuple[e.AnyEvent, ...]:
        """Time passes; what became due is done."""
        self.now += milliseconds
        return self.settle()

    def wake(self) -> int | None:
        """The next timer after now."""
        return wake_at_ms(self.state, self.now)

    def tick_to_wake(self) -> tuple[e.AnyEvent, ...]:
        wake = self.wake()
        assert wake is not None
        return self.tick(wake - self.now)

    def crash(
        self,
        cause: Literal["host_died", "woken", "command"] = "host_died",
        *,
        present: Iterable[ToolDefinition] | None = None,
    ) -> tuple[e.AnyEvent, ...]:
        """The host is gone: another folds the log, takes the run over and goes on. ``present``: the definitions that its
        application has; None for the run's own."""
        self.state = fold(self.log, self.blobs)
        definitions: tuple[DefinitionChange, ...] = ()
        if present is not None:
            definitions = changes(self.state.tools, {it.name: it for it in present}.get)
        return self.send(
            TakeOver(epoch=self.state.epoch + 1, host="other", cause=cause, definitions=definitions)
        )

    # --- what became of it -----------------------------------------------------------------------------------------

    def call(self, name: str) -> CallState:
        found = self.state.calls.get(name)
        return found if found is not None else self.state.unknown_calls[name]

    def approval(self, name: str) -> str:
        approval = self.call(name).approval
        assert approval is not None
        return approval.approval_id

    def phase(self, name: str) -> str:
        return self.call(name).phase

    def bound(self, name: str) -> tuple[str, str]:
        """Status and code of a call's one result."""
        found = [event for event, _ in self.log if isinstance(event, e.ResultBound) and event.call == name]
        assert len(found) == 1, f"{name} has {len(found)} results"
        return found[0].status, found[0].code

    def stop(self) -> tuple[str, str, str]:
        """Phase, outcome and reason."""
        return self.state.phase, self.state.outcome, self.state.reason

    def started(self, name: str) -> int:
        """How many attempts of a call were dispatched."""
        return sum(1 for event, _ in self.log if isinstance(event, e.CallStarted) and event.call == name)

    def tags(self, since: int = 0) -> list[str]:
        return [e.tag_of(event) for event, _ in self.log[since:]]


def tags(events: Iterable[e.AnyEvent]) -> list[str]:
    return [e.tag_of(event) for event in events]


# --- given, when, then ---------------------------------------------------------------------------------------------


class Then:
    """What was decided."""

    def __init__(self, state: State, decision: Decision) -> None:
        self.state = state
        self.decision = decision

    def then(self, *expected: e.AnyEvent | type[e.AnyEvent]) -> Then:
        """Exactly these events, in order; a type stands for any event of it."""
        found = self.decision.events
        assert len(found) == len(expected), f"{found} is not {expected}"
        for one, wanted in zip(found, expected, strict=True):
            assert type(one) is wanted if isinstance(wanted, type) else one == wanted
        return self

    def then_nothing(self) -> Then:
        assert self.decision == Decision()
        return self

    def then_refused(self, code: str) -> Then:
        assert self.decision.refusal is not None
        assert self.decision.refusal.code == code
        assert not self.decision.events
        return self


class Given:
    """A log, folded."""

    def __init__(self, log: Iterable[tuple[e.AnyEvent, int]], blobs: dict[bytes, Pins]) -> None:
        self.log = list(log)
        self.blobs = blobs

    def when(self, command: Command, at: int) -> Then:
        state = fold(self.log, self.blobs)
        before = state_digest(state)
        decision = decide(state, command, at)
        assert state_digest(state) == before, "decide changed the state"
        return Then(state, decision)


def given(run: Run) -> Given:
    """The log that a run has by now."""
    return Given(run.log, run.blobs)
