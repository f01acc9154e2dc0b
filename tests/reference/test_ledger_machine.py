"""Three runs race for the same keys over a real store, at far sides that lose answers and deliver late.

Each call gets what the table of effects says, each row is what the facts made of it, whoever waits is woken, and a far side
that can't tell repetition from a new wish sees one effect a key at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.decider.shop import BY_NAME, limits, pins
from tests.decider.spec import Run, call
from tests.random_examples import examples

from boundloop.eventstore.verify import verify_store
from boundloop.runtime import events as e
from boundloop.runtime.commands import ChecksDone, Executed, ModelReplied, Queried, ResolveCall
from boundloop.runtime.model import ModelTurn, ProposedCall, Usage
from boundloop.runtime.orders import Execute, Query, RequestModel, RunChecks
from boundloop.runtime.state import CallState

from .effect_rows import Row, Rows, Verdict, Want, verdict
from .stored_ledger import StoredLedger
from .two_stores import Kind, Opened

TOOLS = ("refund", "set_state", "pay", "ship", "book")
RUNS = ("r1", "r2", "r3")
WORK_MAX = 12
Fate = Literal["done", "done_unheard", "refused", "refused_retryable", "lost", "late", "unusable"]

FATES: st.SearchStrategy[Fate] = st.sampled_from(
    ["done", "done", "done_unheard", "refused", "refused_retryable", "lost", "late", "late", "unusable"]
)


def proposals_of(tools: list[str]) -> st.SearchStrategy[ProposedCall]:
    """Mostly the same wish again; sometimes reworded, for another order, or with other arguments."""
    return st.builds(
        proposal,
        st.sampled_from(tools),
        st.sampled_from("AAAAAB"),
        st.sampled_from([1, 1, 1, 2]),
        st.sampled_from(["", "again"]),
    )


def proposal(tool: str, order: str, amount: int, reason: str) -> ProposedCall:
    match tool:
        case "refund":
            return call("refund", order_id=order, amount=amount, reason=reason)
        case "set_state":
            return call("set_state", order_id=order, state=f"s{amount}")
        case "pay":
            return call("pay", order_id=order, amount=amount)
        case _:
            return call(tool, order_id=order)


@dataclass
class Way:
    """An attempt on its way to its far side; it arrives while it is valid, or never."""

    key: bytes
    tool: str
    valid_until_ms: int


@dataclass
class FarSides:
    """How often each key took effect. One that takes keys, and one at which repetition is natural, are never moved twice."""

    applied: dict[bytes, int] = field(default_factory=dict[bytes, int])
    on_the_way: list[Way] = field(default_factory=list[Way])

    def apply(self, key: bytes, tool: str) -> None:
        again = BY_NAME[tool].far_side in ("keyed", "natural") and key in self.applied
        self.applied[key] = self.applied.get(key, 0) + (0 if again else 1)

    def may_arrive(self, key: bytes) -> bool:
        return any(way.key == key for way in self.on_the_way)


@dataclass
class Looked:
    """Verdicts of one pass that aren't delivered yet, and the row as it was looked up."""

    command: ChecksDone
    row: Row | None
    changes: int


class LedgerMachine(RuleBasedStateMachine):
    kind: Kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.opened = Opened(self.kind)
        self.ledger = StoredLedger(self.opened)
        self.rows = Rows()
        self.far = FarSides()
        self.runs: dict[str, Run] = {}
        self.taken: dict[str, int] = {}
        self.keys: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self.looked: dict[str, Looked] = {}
        self.seen: dict[str, int] = {}
        self.late: list[tuple[Run, Executed]] = []

    @initialize(tools=st.lists(st.sampled_from(TOOLS), min_size=1, max_size=2))
    def runs_begin(self, tools: list[str]) -> None:
        self.proposals = proposals_of(tools)
        many = dict.fromkeys(
            ("repeats", "equal_results", "turns_without_progress", "denials", "failures"), 999
        )
        bounds = limits(**many, turns=200, model_attempts=300, tool_calls=200, model_attempts_per_turn=50)
        now = self.opened.clock.at_ms
        for name in RUNS:
            self.runs[name] = Run(
                pins(bounds=bounds), ledger=self.ledger, run_id=name, now=now, fold_every_append=False
            )
        self.take()

    def teardown(self) -> None:
        try:
            for run in self.runs.values():
                run.check_replay()
            if self.runs:
                judged = self.opened.ask(verify_store(self.opened.store))
                assert all(one.ok for one in judged.runs)
                assert judged.faults == ()
        finally:
            self.opened.close()

    # --- what the logs say -----------------------------------------------------------------------------------------------

    def take(self) -> None:
        """The reference hears of every new fact, run by run: at most one run moves between two looks."""
        for name, run in self.runs.items():
            for event, _ in run.log[self.taken.get(name, 0) :]:
                subject: str = getattr(event, "call", "")
                if isinstance(event, e.CallValidated) and event.key is not None:
                    assert event.intent_sha256 is not None
                    self.keys[name, subject] = (event.key, event.intent_sha256)
                if (name, subject) in self.keys:
                    self.rows.fact(name, event, *self.keys[name, subject])
            self.taken[name] = len(run.log)

    def subject(self, run: Run) -> CallState | None:
        """The open call of the run's turn; there is one a turn."""
        return next((held for held in run.state.calls.values() if held.open), None)

    def abandoned(self, row: Row | None, run: Run) -> bool:
        if row is None or row.status != "unknown":
            return False
        holder = self.runs[row.holder[0]]
        if holder is run:
            return row.holder[1] in run.state.unknown_calls
        return holder.state.phase == "terminated"

    # --- what happens ----------------------------------------------------------------------------------------------------

    def work(self, data: st.DataObject) -> None:
        """Some runs do what is next for them, one thing at a time and in any order."""
        for _ in range(data.draw(st.integers(0, WORK_MAX), label="steps")):
            run = self.runs[data.draw(st.sampled_from(RUNS), label="run")]
            self.do_next(data, run)
            self.take()

    def do_next(self, data: st.DataObject, run: Run) -> None:
        name, subject = run.state.run_id, self.subject(run)
        due = run.orders()
        if any(isinstance(order, RequestModel) for order in due):
            self.model_proposes(run, data.draw(self.proposals, label="proposal"))
        elif any(isinstance(order, RunChecks) for order in due):
            if name not in self.looked:
                self.checks_are_made(name, data.draw(st.integers(0, 2), label="asks") == 0)
            elif data.draw(st.integers(0, 2), label="delivered"):
                self.verdicts_arrive(name)
        elif any(isinstance(order, Execute) for order in due):
            self.an_attempt_is_made(run, data.draw(FATES, label="fate"))
        elif any(isinstance(order, Query) for order in due):
            self.the_far_side_is_asked(run, data.draw(st.booleans(), label="knows"))
        elif subject is not None and subject.phase == "waiting_approval" and run.state.live:
            (run.approve if data.draw(st.booleans(), label="yes") else run.reject)(subject.call)
        elif run.state.phase == "suspended":
            self.a_person_settles(run)

    def model_proposes(self, run: Run, proposal: ProposedCall) -> None:
        due = next(order for order in run.orders() if isinstance(order, RequestModel))
        reply = ModelTurn(finish="calls", calls=(proposal,), usage=Usage(1, 1))
        run.send(ModelReplied(turn=due.turn, attempt=due.attempt, reply=reply))

    def checks_are_made(self, name: str, ask: bool) -> None:
        """The key's row is looked up; others may move before the verdicts arrive."""
        run, subject = self.runs[name], self.subject(self.runs[name])
        assert subject is not None
        approved = subject.approval is not None and subject.approval.decision == "approve"
        ask = (ask and subject.phase in ("proposed", "waiting_key")) or approved
        fields = {"ask": True, "preview": b"{}", "resource_version": "v1"} if ask else {}
        command = run.checks(subject.call, **fields)
        key = subject.key if command.admitted is None else command.admitted.key
        assert key is not None
        row = self.rows.rows.get(key)
        command = msgspec.structs.replace(command, holder_ended=row is not None and self.abandoned(row, run))
        self.looked[name] = Looked(command, row, self.rows.changes.get(key, 0))
        self.seen[name] = self.rows.changes.get(key, 0)
        self.ledger.woken.discard(name)

    def verdicts_arrive(self, name: str) -> None:
        run, looked = self.runs[name], self.looked.pop(name, None)
        subject = self.subject(run)
        if looked is None or subject is None or subject.call != looked.command.call:
            return
        wanted = RunChecks(
            subject.call, subject.attempt if looked.command.recheck else 0, looked.command.recheck
        )
        if wanted not in run.orders():
            return
        was, before = subject.phase, copy_of(subject)
        expected = self.expected(run, before, looked)
        run.send(looked.command)
        self.take()
        self.judge(run, before.call, was, expected, asks=looked.command.ask and before.approval is None)

    def expected(
        self, run: Run, subject: CallState, looked: Looked
    ) -> Verdict | Literal["look_again", "not_sent"]:
        admitted = looked.command.admitted
        key = subject.key if admitted is None else admitted.key
        intent = subject.intent_sha256 if admitted is None else admitted.intent_sha256
        assert key is not None
        assert intent is not None
        waits_for = (subject.holder_run, subject.holder_call) if subject.phase == "waiting_key" else None
        want = Want((run.state.run_id, subject.call), intent, BY_NAME[subject.tool].far_side, waits_for)
        # An abandoned effect is waited for first, and taken over by the pass right before a start. A further attempt
        # doesn't wait: it gave the key back itself, and claims it; if another has it by now, the failure stands.
        if subject.attempt >= BY_NAME[subject.tool].max_attempts:
            return "not_sent"  # whoever has no attempt left has no use for the key
        over = looked.command.holder_ended and subject.phase != "proposed"
        told = "go" if subject.phase == "executed" else verdict(looked.row, want, abandoned=over)
        if told != "go":
            return told
        if subject.approval is not None and run.now >= subject.approval.expires_at_ms:
            return "not_sent"
        if subject.phase == "reconciling":
            return told
        if over and looked.command.ask and subject.approval is None:
            return told  # a question about an abandoned effect claims nothing; whoever says yes has the row looked at again
        # Told that it may go, it claims the key; what counts is the row as it is by then.
        now = self.rows.rows.get(key)
        taken_over = over and looked.row is not None and looked.row == now
        found = verdict(now, want, abandoned=taken_over)
        if now is not None and now.status == "rejected":
            return "go"
        if found != "go" and looked.command.ask and subject.phase == "proposed":
            return "look_again"  # the append that would have asked a person admitted the call, too
        return found

    def judge(self, run: Run, name: str, was: str, expected: str, *, asks: bool) -> None:
        """What the call became is what the table says."""
        found = run.state.calls.get(name)
        phase, status, code = (
            ("bound", *run.bound(name)) if found is None else (found.phase, found.status, found.code)
        )
        match expected:
            case "not_sent":
                assert phase != "started"
            case "look_again":
                assert phase == "proposed"
            case "go" if asks:
                assert phase == "waiting_approval"
            case "go":
                assert phase == "started"
            case "wait" if was != "executed":
                assert phase == "waiting_key"
            case "replay":
                assert (phase, code) in (("bound", "replayed"), ("bound", "output_invalid"))
            case "conflict" if was != "executed":
                assert (phase, status, code) == ("bound", "error", "idempotency_conflict")
            case "rejected":
                assert (phase, status, code) == ("bound", "error", "approval_rejected")
            case "left_unknown" if was != "executed":
                assert (phase, status, code) == ("bound", "error", "outcome_unknown")
            case _:
                # A further attempt after a proven failure, and the key is another's by now: the failure stands.
                assert (phase, status) == ("bound", "error")

    def an_attempt_is_made(self, run: Run, fate: Fate) -> None:
        subject = self.subject(run)
        assert subject is not None
        key, tool = subject.key, subject.tool
        assert key is not None
        done = Executed(call=subject.call, attempt=subject.attempt, outcome="succeeded", result=b"{}")
        lost = Executed(call=subject.call, attempt=subject.attempt, outcome="unknown", code="lost")
        if fate in ("done", "done_unheard", "unusable"):
            self.far.apply(key, tool)
        match fate:
            case "done":
                run.send(done)
            case "unusable":
                run.send(msgspec.structs.replace(done, result=None, code="output_invalid"))
            case "refused" | "refused_retryable":
                retryable = fate == "refused_retryable"
                failed = {"outcome": "failed", "no_effect": True, "retryable": retryable, "code": "no"}
                run.send(msgspec.structs.replace(lost, **failed))
            case _:
                if fate == "late":
                    self.far.on_the_way.append(Way(key, tool, subject.valid_until_ms))
                if fate == "done_unheard":
                    self.late.append((run, done))
                run.send(lost)
        self.take()

    def the_far_side_is_asked(self, run: Run, knows: bool) -> None:
        """What it says is true as of now; a list that may lag behind says ``absent`` as well."""
        subject = self.subject(run)
        assert subject is not None
        assert subject.key is not None
        truth: Literal["applied", "absent"] = "applied" if self.far.applied.get(subject.key) else "absent"
        run.send(
            Queried(
                call=subject.call,
                number=subject.queries + 1,
                asked_at_ms=run.now,
                outcome=truth if knows else "unknown",
                result=b"{}" if knows and truth == "applied" else None,
            )
        )
        self.take()

    def a_person_settles(self, run: Run) -> None:
        """Somebody looks it up once nothing can arrive any more."""
        unsettled = [held for held in run.state.calls.values() if held.phase == "reconciling"]
        for held in (*unsettled, *run.state.unknown_calls.values()):
            if held.key is not None and not self.far.may_arrive(held.key):
                outcome = "applied" if self.far.applied.get(held.key) else "absent"
                run.outside(ResolveCall, call=held.call, outcome=outcome, by="boss")
                return

    @rule(data=st.data())
    def work_goes_on(self, data: st.DataObject) -> None:
        self.work(data)

    @rule(data=st.data(), name=st.sampled_from(RUNS))
    def a_person_settles_what_was_left(self, data: st.DataObject, name: str) -> None:
        self.work(data)
        self.a_person_settles(self.runs[name])
        self.take()

    @rule(data=st.data())
    def a_late_report_comes(self, data: st.DataObject) -> None:
        self.work(data)
        if self.late:
            run, report = data.draw(st.sampled_from(self.late))
            run.send(report)
            self.take()

    @rule(data=st.data(), name=st.sampled_from(RUNS))
    def a_host_dies(self, data: st.DataObject, name: str) -> None:
        self.work(data)
        run = self.runs[name]
        if run.state.phase != "terminated":
            subject = self.subject(run)
            if subject is not None and subject.phase == "started" and subject.key is not None:
                self.far.on_the_way.append(Way(subject.key, subject.tool, subject.valid_until_ms))
            self.looked.pop(name, None)
            run.crash("woken")
            self.take()

    @rule(data=st.data(), name=st.sampled_from(RUNS[1:]))
    def a_run_is_cancelled(self, data: st.DataObject, name: str) -> None:
        self.work(data)
        if self.runs[name].state.phase != "terminated" and not self.runs[name].state.cancel_reason:
            self.runs[name].cancel()
            self.take()

    @rule(data=st.data(), passed=st.sampled_from([1, 600, 20_000, 40_000, 700_000]))
    def time_passes(self, data: st.DataObject, passed: int) -> None:
        self.work(data)
        for way in list(self.far.on_the_way):
            if data.draw(st.booleans(), label="arrives"):
                self.far.on_the_way.remove(way)
                self.far.apply(way.key, way.tool)
        self.opened.clock.advance(passed)
        now = self.opened.clock.at_ms
        self.far.on_the_way = [way for way in self.far.on_the_way if way.valid_until_ms >= now]
        for run in self.runs.values():
            run.now = now
            run.settle()
            self.take()

    # --- laws ------------------------------------------------------------------------------------------------------------

    @invariant()
    def a_far_side_sees_one_effect_a_key_at_most(self) -> None:
        assert all(count <= 1 for count in self.far.applied.values())

    @invariant()
    def rows_are_what_the_facts_made_of_them(self) -> None:
        stored = self.opened.ask(self.opened.store.ledger_rows(None, 1_000))
        found = {row.key: Row(row.status, row.intent_sha256, (row.run_id, row.call_id)) for row in stored}
        assert found == self.rows.rows

    @invariant()
    def what_succeeded_happened(self) -> None:
        for key, row in self.rows.rows.items():
            assert row.status != "succeeded" or self.far.applied.get(key) == 1

    @invariant()
    def who_waits_is_woken(self) -> None:
        """Whoever waits for a key on which nobody works any more, and hasn't seen that, is marked."""
        marked = set(self.opened.ask(self.opened.store.ready_runs(1_000))) | self.ledger.woken
        for name, run in self.runs.items():
            subject = self.subject(run)
            if subject is None or subject.phase != "waiting_key" or subject.key is None:
                continue
            row = self.rows.rows.get(subject.key)
            news = self.rows.changes.get(subject.key, 0) > self.seen.get(name, 0)
            if news and (row is None or row.at_rest) and run.state.live:
                assert name in marked, f"{name} waits and isn't woken"


def copy_of(subject: CallState) -> CallState:
    return msgspec.structs.replace(subject)


class LedgerInSqlite(LedgerMachine):
    kind: Kind = "sqlite"


HEALTH = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
TestLedgerInMemory = LedgerMachine.TestCase
TestLedgerInMemory.settings = settings(
    max_examples=examples(20), stateful_step_count=25, deadline=None, suppress_health_check=HEALTH
)
TestLedgerInSqlite = LedgerInSqlite.TestCase
TestLedgerInSqlite.settings = settings(
    max_examples=examples(6), stateful_step_count=25, deadline=None, suppress_health_check=HEALTH
)
