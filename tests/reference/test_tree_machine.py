"""Trees of up to 200 runs under the limits of one root: reserve, lend, top up and settle in any order, with crashes.

Whatever happens, each meter shows what the world counted (``books``), no run passes a limit of any run above it, and in
the end the root was charged what all runs together used.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.decider.family import Family, family_pins
from tests.decider.shop import BY_NAME, limits
from tests.decider.spec import Run, call
from tests.random_examples import examples

from boundloop.runtime import events as e
from boundloop.runtime.children import child_run_id, child_start
from boundloop.runtime.commands import Close, ModelReplied, RaiseLimits, Resume
from boundloop.runtime.model import FinishKind, ModelTurn, ProposedCall, Usage
from boundloop.runtime.orders import (
    AskParent,
    CancelChild,
    Execute,
    Order,
    RequestModel,
    RunChecks,
    SettleChild,
    StartChild,
)
from boundloop.runtime.pins import read_pins
from boundloop.runtime.prices import FREE

from .books import COUNTS, QUANTITIES, Book, Books, Lease, Request

RUNS_MAX = 200
DRAIN_STEPS_MAX = 20_000
AGENTS = ("helper", "clerk", "team")


CALLS_MAX = 8
TOOLS = ("get_order", "credit_check", "helper", "helper", "clerk", "team")
OUTCOMES = ("succeeded", "succeeded", "failed", "busy", "of another attempt")
FINISHES: tuple[FinishKind, ...] = ("final", "final", "transport_broken", "truncated", "paused")
Some = tuple[int, int]
SOME: st.SearchStrategy[Some] = st.tuples(st.integers(0, 40), st.integers(0, 2**32))
"""How many orders are carried out first, and the seed of what becomes of them."""
WHICH = st.integers(0, RUNS_MAX)


def proposal(tool: str, number: int) -> ProposedCall:
    if tool == "team":
        return call("team", agent="helper", input=f"{number}")
    if tool in AGENTS:
        return call(tool, input=f"{number}")
    return call(tool, order_id=f"{number}")


class TreeMachine(RuleBasedStateMachine):
    """One family of runs. ``read`` says up to where each log was taken into the books."""

    def __init__(self) -> None:
        super().__init__()
        self.family = Family()
        self.books = Books()
        self.taken: dict[str, int] = {}
        self.proposed = 0

    @initialize(
        wide=st.integers(0, 3).map(lambda drawn: drawn == 3),
        turns=st.integers(4, 40),
        calls=st.integers(3, 40),
        children=st.integers(1, 20),
        output=st.sampled_from([600, 3_000, 200_000]),
        cost=st.sampled_from([100, 1_000, None]),
        parallel=st.integers(1, 12),
        depth=st.integers(1, 4),
    )
    def root_begins(
        self,
        wide: bool,
        turns: int,
        calls: int,
        children: int,
        output: int,
        cost: int | None,
        parallel: int,
        depth: int,
    ) -> None:
        """``wide``: nothing but the number of runs is soon used up, so that the tree grows."""
        if wide:
            turns, calls, children, output, cost, parallel, depth = 400, 2_000, RUNS_MAX, 200_000, None, 12, 4
        bounds = limits(
            turns=turns,
            model_attempts=turns + turns // 2,
            tool_calls=calls,
            call_attempts=calls + calls // 2,
            children=children,
            output_tokens=output,
            cost_micros=cost,
            parallel=parallel,
            depth=depth,
            repeats=1_000,
            equal_results=1_000,
            failures=1_000,
            denials=1_000,
            turns_without_progress=1_000,
        )
        self.family = Family(family_pins(bounds=bounds, price=FREE))
        self.root = self.family.root
        self.look()

    # --- the books -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take into the books what every log newly says was set aside or settled, and every order that is out."""
        for name, run in self.family.runs.items():
            if name not in self.books.pages:
                run.fold_every_append = False
            page = self.books.pages.setdefault(name, Book(run.state.parent_run))
            for event, _ in run.log[self.taken.get(name, 0) :]:
                self.take(page, event)
            self.taken[name] = len(run.log)
            if run.state.phase != "model_requested":
                page.nobody_answered()
            for order in run.orders():
                match order:
                    case Execute():
                        cost = BY_NAME[run.call(order.call).tool].cost_micros
                        page.started_call(order.call, order.attempt, cost, child=False)
                    case StartChild():
                        page.started_call(order.call, 1, 0, child=True)
                    case _:
                        pass

    def take(self, page: Book, event: e.AnyEvent) -> None:
        match event:
            case e.ModelRequested():
                page.sent(
                    Request(event.turn, event.attempt, event.input_tokens_bound, event.output_tokens_max)
                )
            case e.CallValidated():
                page.admitted.add(event.call)
            case e.CallRejected() | e.CallStarted() | e.ResultBound():
                page.admitted.discard(event.call)
            case e.CallExecuted():
                page.ended_call(event.call, event.attempt)
            case e.ChildReserved():
                page.leases[event.call] = Lease(event.child_run)
                page.leases[event.call].granted.update(event.granted)
            case e.ChildToppedUp():
                page.leases[event.call].granted.update(event.granted)
            case e.ChildSettled():
                page.leases[event.call].settled = True
            case _:
                pass

    # --- what the world does -------------------------------------------------------------------------------------------

    def work(self, some: Some) -> None:
        """Some orders of some runs are carried out, one at a time."""
        steps, seed = some
        chance = Random(seed)
        for _ in range(steps):
            waiting = [(run, order) for run in self.family.runs.values() for order in self.due(run)]
            if not waiting:
                return
            self.carry_out(chance, *chance.choice(waiting))
            self.look()

    def due(self, run: Run) -> list[Order]:
        """Its orders, without the looks at children that haven't ended."""
        return [
            order
            for order in run.orders()
            if not isinstance(order, SettleChild)
            or self.family.child(run, order.call).state.phase == "terminated"
        ]

    def carry_out(self, chance: Random, run: Run, order: Order) -> None:
        rarely = chance.random() < 0.1
        match order:
            case RequestModel():
                self.answer(run, order, self.turn_of(chance, run))
            case RunChecks():
                run.check(order.call)
            case Execute():
                self.report(run, order, chance.choice(OUTCOMES))
            case StartChild() if rarely:
                self.made_and_not_told(run, order.call)
            case StartChild():
                self.family.start(run, order.call)
            case SettleChild():
                self.family.settle(run, order.call)
            case AskParent() if rarely:
                self.family.answer_from_above(run.state, dict(order.asked))  # and it doesn't arrive
            case AskParent():
                self.family.ask(run)
            case CancelChild():
                self.family.cancel(run, order.call)
            case _:
                raise AssertionError(f"nothing here has an effect: {order}")

    def turn_of(self, chance: Random, run: Run) -> ModelTurn:
        """What a model may answer: mostly calls while the tree has room, and any usage."""
        request = self.books.pages[run.state.run_id].request
        assert request is not None
        most = Usage(request.input_tokens, request.output_tokens)
        above = Usage(request.input_tokens + 700, request.output_tokens + 300)
        usage = chance.choice([Usage(3, 2), Usage(3, 2), Usage(3, 2), Usage(3, 2), None, most, above])
        room = len(self.family.runs) + CALLS_MAX <= RUNS_MAX
        if room and (run is self.root or chance.random() < 0.7):
            calls = self.proposals(chance.choices(TOOLS, k=chance.randint(1, CALLS_MAX)))
            return ModelTurn(finish="calls", calls=calls, usage=usage)
        finish: FinishKind = chance.choice(FINISHES) if room else "final"
        return ModelTurn(finish=finish, text="done", usage=usage, continuation=b"x")

    def proposals(self, tools: list[str]) -> tuple[ProposedCall, ...]:
        self.proposed += len(tools)
        return tuple(proposal(tool, self.proposed * 10 + number) for number, tool in enumerate(tools))

    def answer(self, run: Run, order: RequestModel, turn: ModelTurn) -> None:
        page, usage = self.books.pages[run.state.run_id], turn.usage
        if usage is None or usage.input_tokens is None or usage.output_tokens is None:
            page.nobody_answered()
        else:
            page.answered(usage.input_tokens, usage.output_tokens)
        run.send(ModelReplied(turn=order.turn, attempt=order.attempt, reply=turn))

    def report(self, run: Run, order: Execute, outcome: str) -> None:
        if outcome == "succeeded":
            run.report(order.call, result={"n": len(run.log)})
        elif outcome == "of another attempt":
            run.report(order.call, attempt=order.attempt + 1)
        else:
            run.report(order.call, "failed", code=outcome, retryable=outcome == "busy")

    def made_and_not_told(self, run: Run, name: str) -> None:
        """The child is created and its parent's host dies before it says so."""
        if child_run_id(run.state.run_id, name) not in self.family.runs:
            event, encoded = child_start(run.state, run.state.calls[name])
            pinned = read_pins(event.pins_sha256, encoded)
            made = Run(pinned, ledger=self.family.ledger, now=run.now, started=event, fold_every_append=False)
            self.family.runs[event.run_id] = made

    # --- what else happens ---------------------------------------------------------------------------------------------

    def some_run(self, some: Some, which: int) -> Run:
        self.work(some)
        runs = list(self.family.runs.values())
        return runs[which % len(runs)]

    @rule(some=SOME)
    def work_goes_on(self, some: Some) -> None:
        self.work(some)

    @rule(some=SOME, which=WHICH, cause=st.sampled_from(["host_died", "woken", "command"]))
    def a_host_dies(self, some: Some, which: int, cause: Literal["host_died", "woken", "command"]) -> None:
        run = self.some_run(some, which)
        if run.state.phase != "terminated":
            run.check_replay()
            run.crash(cause)
            self.look()

    @rule(some=SOME, which=WHICH, how=st.sampled_from(["cancel", "close"]))
    def somebody_ends_a_run(self, some: Some, which: int, how: str) -> None:
        run = self.some_run(some, which)
        if run is not self.root:
            run.cancel() if how == "cancel" else run.outside(Close)
            self.look()

    @rule(some=SOME, name=st.sampled_from(["turns", "tool_calls", "children", "output_tokens"]))
    def somebody_lifts_every_stop(self, some: Some, name: str) -> None:
        self.work(some)
        for run in self.family.runs.values():
            if run.state.phase == "suspended":
                run.outside(RaiseLimits, raised={name: getattr(run.state.limits, name) + 5})
                run.outside(Resume)
                self.look()

    @rule(some=SOME, passed=st.sampled_from([1, 500, 20_000]))
    def time_passes(self, some: Some, passed: int) -> None:
        self.work(some)
        now = max(run.now for run in self.family.runs.values()) + passed
        for run in self.family.runs.values():
            run.now = now
            run.settle()
        self.look()

    # --- laws ----------------------------------------------------------------------------------------------------------

    @invariant()
    def meters_show_what_the_world_counted(self) -> None:
        for name, run in self.family.runs.items():
            charged, reserved = self.books.charged(name), self.books.set_aside(name)
            for quantity in QUANTITIES:
                meter = getattr(run.state.meters, quantity)
                if quantity == "cost_micros" and run.state.limits.cost_micros is None:
                    continue
                where = f"{quantity} of {name}"
                assert (meter.spent, meter.reserved) == (charged[quantity], reserved[quantity]), where
                free = meter.granted + meter.overrun - charged[quantity] - reserved[quantity]
                assert free >= 0, where

    @invariant()
    def no_count_of_a_tree_passes_a_limit(self) -> None:
        for name, run in self.family.runs.items():
            below = self.books.used_below(name)
            for quantity in COUNTS:
                assert below[quantity] <= getattr(run.state.limits, quantity), f"{quantity} below {name}"

    @invariant()
    def no_child_has_more_than_its_lease(self) -> None:
        for page in self.books.pages.values():
            for lease in page.leases.values():
                child = self.family.runs.get(lease.child)
                for quantity in QUANTITIES if child is not None else ():
                    assert child is not None
                    limit = getattr(child.state.limits, quantity)
                    assert limit is None or limit <= lease.granted[quantity], f"{quantity} of {lease.child}"

    @invariant()
    def deadlines_and_depth_only_shrink_downwards(self) -> None:
        for run in self.family.runs.values():
            if run.state.parent_run:
                above = self.family.runs[run.state.parent_run].state
                assert run.state.deadline_at_ms <= above.deadline_at_ms
                assert run.state.depth == above.depth + 1 <= self.root.state.limits.depth

    def teardown(self) -> None:
        """Cancelled, the whole tree ends, and the root was charged what all runs used together."""
        self.root.cancel()
        for _ in range(DRAIN_STEPS_MAX):
            self.look()
            self.family.serve()
            out = [
                (run, order)
                for run in self.family.runs.values()
                for order in run.orders()
                if isinstance(order, Execute)
            ]
            if not out:
                break
            for run, order in out:
                run.report(order.call)
        self.look()
        self.meters_show_what_the_world_counted()
        assert all(run.state.phase == "terminated" for run in self.family.runs.values())
        everything = sum(
            (page.used for page in self.books.pages.values()), start=type(self.books.pages["r1"].used)()
        )
        for quantity in QUANTITIES:
            meter = getattr(self.root.state.meters, quantity)
            if quantity != "cost_micros" or self.root.state.limits.cost_micros is not None:
                assert (meter.spent, meter.reserved) == (everything[quantity], 0), quantity
        for run in self.family.runs.values():
            run.check_replay()


TestTrees = TreeMachine.TestCase
TestTrees.settings = settings(
    max_examples=examples(15),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
