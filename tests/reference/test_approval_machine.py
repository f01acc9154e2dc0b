"""People decide in time, too late, twice, at once and for somebody else, while what was shown to them changes.

Each decision counts or is refused as the reference says, and a call is started only under an approval that stands: of two
that decide from the same place in the log one is too late, and no approval serves a second execution.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.decider.shop import BY_NAME, limits, pins
from tests.decider.spec import Run, call
from tests.random_examples import examples

from boundloop.runtime import events as e
from boundloop.runtime.commands import Approve, ChecksDone, Executed, ModelReplied, Reject, ResolveCall
from boundloop.runtime.decide import decide
from boundloop.runtime.decision import Decision
from boundloop.runtime.fold import fold
from boundloop.runtime.limits import CEILING
from boundloop.runtime.model import ModelTurn, Usage
from boundloop.runtime.orders import Execute, RequestModel, RunChecks

from .desk import REQUESTER, Asked, Desk, Wish, World

APPROVAL_MS = 600_000
Some = tuple[int, int]
SOME: st.SearchStrategy[Some] = st.tuples(st.integers(0, 15), st.integers(0, 2**32))
Decided = tuple[Wish, str, Decision, int]
"""A decision that was made from a place in the log and isn't appended yet: command, command id, decision, seq."""


class ApprovalMachine(RuleBasedStateMachine):
    prepared: Bundle[Decided] = Bundle("prepared")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.taken = 0
        self.orders = 0
        self.commands = 0
        self.checked: dict[str, World] = {}
        self.effects: dict[str, int] = {}

    @initialize(separate=st.booleans(), rounds=st.integers(1, 3))
    def run_begins(self, separate: bool, rounds: int) -> None:
        many = dict.fromkeys(
            ("denials", "failures", "turns_without_progress", "turns", "model_attempts"), 999
        )
        bounds = limits(
            **many,
            tool_calls=999,
            call_attempts=999,
            approval_rounds=rounds,
            approval_ms=APPROVAL_MS,
            deadline_ms=CEILING,
            active_ms=CEILING,
            input_tokens=CEILING,
            output_tokens=CEILING,
            total_tokens=CEILING,
            model_attempts_per_turn=999,
        )
        self.run = Run(pins(bounds=bounds, separate_approver=separate), fold_every_append=False)
        assert self.run.state.principal == REQUESTER
        self.desk = Desk(rounds, separate)
        self.take()

    def teardown(self) -> None:
        if self.taken:
            self.run.check_replay()

    # --- what the log says -------------------------------------------------------------------------------------------------

    def take(self) -> None:
        for event, at_ms in self.run.log[self.taken :]:
            match event:
                case e.ApprovalRequested():
                    expires = min(at_ms + APPROVAL_MS, self.run.state.deadline_at_ms)
                    assert event.expires_at_ms == expires
                    shown = self.checked[event.call]
                    self.desk.show(Asked(event.approval_id, event.call, event.round, shown, expires))
                case e.ApprovalLapsed():
                    self.desk.asked[event.approval_id].lapsed = True
                case e.CallStarted():
                    self.started(event, at_ms)
                case _:
                    pass
        self.taken = len(self.run.log)

    def started(self, event: e.CallStarted, at_ms: int) -> None:
        """The promise itself: nothing starts without a yes that stands, and each yes is good for one call."""
        asked = self.desk.asked[self.desk.current[event.call]]
        assert asked.decided == "approve"
        assert not asked.lapsed
        assert at_ms < asked.expires_at_ms
        assert not (self.desk.separate and asked.by == REQUESTER)
        assert not asked.served or event.attempt > 1, "a second execution"
        asked.served = True

    # --- the ordinary way --------------------------------------------------------------------------------------------------

    def work(self, some: Some) -> None:
        steps, seed = some
        chance = Random(seed)
        for _ in range(steps):
            self.do_next(chance)
            self.take()

    def do_next(self, chance: Random) -> None:
        run = self.run
        waiting = [held for held in run.state.calls.values() if held.phase == "waiting_approval"]
        orders = run.orders()
        if waiting and chance.random() < 0.5:
            asked = self.desk.current[chance.choice(waiting).call]
            self.person(
                "approve" if chance.random() < 0.75 else "reject", asked, chance.choice(["boss", REQUESTER])
            )
        elif orders:
            self.carry_out(chance, chance.choice(orders))
        elif run.state.phase == "suspended":
            for held in list(run.state.calls.values()):
                if held.phase == "reconciling":
                    outcome = "applied" if self.effects.get(held.call) else "absent"
                    run.outside(ResolveCall, call=held.call, outcome=outcome, by="boss")

    def carry_out(self, chance: Random, order: object) -> None:
        run = self.run
        match order:
            case RequestModel():
                tools = [chance.choice(["refund", "pay"]) for _ in range(chance.randint(1, 2))]
                calls = tuple(
                    call(tool, order_id=f"O{self.orders + n}", amount=1) for n, tool in enumerate(tools)
                )
                self.orders += len(calls)
                reply = ModelTurn(finish="calls", calls=calls, usage=Usage(1, 1))
                run.send(ModelReplied(turn=order.turn, attempt=order.attempt, reply=reply))
            case RunChecks():
                self.check(order.call)
            case Execute():
                self.execute(chance, order)
            case _:
                raise AssertionError(f"no such order here: {order}")

    def checks(self, name: str) -> ChecksDone:
        world = self.world
        return self.run.checks(
            name,
            ask=True,
            definition_sha256=bytes([world.definition]) * 32,
            policy_revision=f"policy-{world.policy}",
            resource_version=f"v{world.resource}",
            preview=b'{"preview":%d}' % world.preview,
        )

    def check(self, name: str) -> None:
        """A pass over a call as the world is now; before a dispatch it ends as the reference says."""
        run, held = self.run, self.run.state.calls[name]
        phase, attempt = held.phase, held.attempt + 1
        self.checked[name] = self.world
        command = self.checks(name)
        resolved = phase == "checking" and attempt > 1
        if phase == "proposed":
            run.send(command)
            assert run.phase(name) == "waiting_approval"
            return
        expected = self.desk.start(
            name,
            self.world,
            now_ms=run.now,
            attempt=1 if resolved else attempt,
            unknown=phase == "reconciling",
        )
        if attempt > BY_NAME[held.tool].max_attempts:
            expected = "not_sent"
        run.send(command)
        after = run.state.calls.get(name)
        match expected:
            case "start":
                assert after is not None
                assert (after.phase, after.attempt) == ("started", attempt)
            case "ask_again":
                assert after is not None
                assert after.phase == "waiting_approval"
            case "expired":
                assert run.bound(name) == ("error", "approval_expired")
            case "given_up":
                assert run.bound(name) == ("error", "approval_stale")
            case "not_sent":
                assert after is None or after.phase != "started"

    def execute(self, chance: Random, order: Execute) -> None:
        run = self.run
        keyed = run.call(order.call).tool == "refund"
        kind = chance.choice(["done", "done", "refused", "unheard", "lost"])
        if kind in ("done", "unheard"):
            self.effects[order.call] = 1 if keyed else self.effects.get(order.call, 0) + 1
        report = Executed(call=order.call, attempt=order.attempt, outcome="succeeded", result=b"{}")
        if kind == "refused":
            report = Executed(
                call=order.call,
                attempt=order.attempt,
                outcome="failed",
                retryable=True,
                no_effect=True,
                code="no",
            )
        elif kind != "done":
            report = Executed(call=order.call, attempt=order.attempt, outcome="unknown", code="lost")
        run.send(report)

    # --- people ------------------------------------------------------------------------------------------------------------

    def command(self, kind: str, name: str, by: str, command_id: str) -> Approve | Reject:
        made = Approve if kind == "approve" else Reject
        return made(command_id=command_id, by=by, approval_id=name)

    def waits(self, name: str) -> bool:
        asked = self.desk.asked.get(name)
        held = None if asked is None else self.run.state.calls.get(asked.call)
        return held is not None and held.phase == "waiting_approval"

    def person(self, kind: str, name: str, by: str, command_id: str = "") -> None:
        """One decision, handed in now."""
        self.commands += 1
        command_id = command_id or f"p{self.commands}"
        command = (kind, name, by)
        expected = self.desk.refusal(command, command_id, now_ms=self.run.now, waiting=self.waits(name))
        if not self.run.state.live or self.gone(name):
            expected = "approval_not_found" if expected not in (None, "command_id_reused") else expected
        events = self.run.send(self.command(*command, command_id))
        if expected is None:
            assert not any(isinstance(event, e.ApprovalDecided) for event in events)
            assert self.run.refusal == ""
            return
        assert self.run.refusal == expected
        if expected == "":
            self.desk.decide(command, command_id)

    def gone(self, name: str) -> bool:
        """Whether the call that was asked about is of an earlier turn."""
        asked = self.desk.asked.get(name)
        return asked is None or asked.call not in self.run.state.calls

    def some_approval(self, which: int) -> str:
        names = list(self.desk.asked) or ["ap_unknown"]
        return names[-1 - which % len(names)]

    WHO = st.sampled_from(["boss", "other", REQUESTER])
    KIND = st.sampled_from(["approve", "reject"])
    WHICH = st.integers(0, 5)

    @rule(some=SOME, kind=KIND, which=WHICH, by=WHO)
    def somebody_decides(self, some: Some, kind: str, which: int, by: str) -> None:
        """About any approval there ever was."""
        self.work(some)
        self.person(kind, self.some_approval(which), by)
        self.take()

    @rule(some=SOME, kind=KIND, which=WHICH, by=WHO, again=st.integers(1, 50))
    def a_command_comes_again(self, some: Some, kind: str, which: int, by: str, again: int) -> None:
        """Under an id that may have been used, for this or for another decision."""
        self.work(some)
        used = list(self.desk.used_commands.items())
        if used:
            command_id, command = used[again % len(used)]
            self.person(*command, command_id)
            self.person(kind, self.some_approval(which), by, command_id)
        self.take()

    @rule(target=prepared, some=SOME, kind=KIND, which=WHICH, by=WHO)
    def somebody_decides_elsewhere(self, some: Some, kind: str, which: int, by: str) -> Decided:
        """Another process folds the log and decides; others may append before it does."""
        self.work(some)
        self.commands += 1
        command = (kind, self.some_approval(which), by)
        state = fold(self.run.log, self.run.blobs)
        decision = decide(state, self.command(*command, f"e{self.commands}"), self.run.now)
        return command, f"e{self.commands}", decision, state.seq

    @rule(elsewhere=prepared)
    def what_was_decided_elsewhere_is_appended(self, elsewhere: Decided) -> None:
        """The log's place is compared and set: it goes in exactly where it was decided, or not at all."""
        command, command_id, decision, seq = elsewhere
        if seq != self.run.state.seq or not decision.events or command_id in self.desk.used_commands:
            return
        asked = self.desk.asked[command[1]]
        assert not asked.decided
        self.run.append(decision)
        self.desk.decide(command, command_id)
        self.run.settle()
        self.take()

    # --- what changes --------------------------------------------------------------------------------------------------------

    @rule(
        some=SOME, what=st.sampled_from(["definition", "policy", "resource", "preview"]), to=st.integers(0, 2)
    )
    def something_changes(
        self, some: Some, what: Literal["definition", "policy", "resource", "preview"], to: int
    ) -> None:
        self.work(some)
        values = {"definition": self.world.definition, "policy": self.world.policy}
        values |= {"resource": self.world.resource, "preview": self.world.preview}
        self.world = World(**{**values, what: to})

    @rule(some=SOME, passed=st.sampled_from([1, 15_000, APPROVAL_MS - 1, APPROVAL_MS]), noticed=st.booleans())
    def time_passes(self, some: Some, passed: int, noticed: bool) -> None:
        """``noticed``: whether the timers fire before anybody does anything else."""
        self.work(some)
        self.run.now += passed
        if noticed:
            self.run.settle()
            self.take()

    @rule(some=SOME)
    def a_host_dies(self, some: Some) -> None:
        self.work(some)
        if self.run.state.phase != "terminated":
            self.run.check_replay()
            self.run.crash("woken")
            self.take()

    # --- laws ----------------------------------------------------------------------------------------------------------------

    @invariant()
    def a_call_takes_effect_once(self) -> None:
        assert all(count <= 1 for count in self.effects.values())

    @invariant()
    def what_took_effect_was_approved(self) -> None:
        for name in self.effects:
            asked = self.desk.asked[self.desk.current[name]]
            assert asked.served
            assert asked.decided == "approve"


TestApprovals = ApprovalMachine.TestCase
TestApprovals.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
