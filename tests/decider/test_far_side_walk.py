"""Several runs want the same effects from far sides that lose answers, deliver late and are asked in between.

The law: a far side that offers nothing and one that can be queried each see one effect a key at most, whatever crashes,
and what the log calls a success is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.random_examples import examples

from boundloop.runtime import events as e
from boundloop.runtime.commands import Executed, ModelReplied, Queried, ResolveCall
from boundloop.runtime.ledger import LedgerRow
from boundloop.runtime.model import ModelTurn, ProposedCall, Usage
from boundloop.runtime.orders import Execute, Query, RequestModel, RunChecks

from .shop import limits, pins
from .spec import Ledger, Run, call, ledger_drift

STEPS_MAX = 60
RUNS = 3


@dataclass
class Sent:
    """An attempt on its way: it arrives at any time while it is valid, or never."""

    key: bytes
    valid_until_ms: int


@dataclass
class FarSide:
    """What took effect, and what may still."""

    applied: dict[bytes, int] = field(default_factory=dict[bytes, int])
    on_the_way: list[Sent] = field(default_factory=list[Sent])
    takes_keys: set[bytes] = field(default_factory=set[bytes])

    def apply(self, key: bytes) -> None:
        if key not in self.takes_keys or key not in self.applied:
            self.applied[key] = self.applied.get(key, 0) + 1

    def pass_time(self, now: int) -> None:
        self.on_the_way = [sent for sent in self.on_the_way if sent.valid_until_ms >= now]

    def can_still_arrive(self, key: bytes) -> bool:
        return any(sent.key == key for sent in self.on_the_way)


@dataclass
class World:
    """The runs with their ledger, the far side, and answers that are known but not yet delivered."""

    runs: list[Run]
    far: FarSide = field(default_factory=FarSide)
    late: list[tuple[Run, Executed | Queried]] = field(default_factory=list[tuple[Run, "Executed | Queried"]])
    asked: set[tuple[str, str, int]] = field(default_factory=set[tuple[str, str, int]])


def proposals(data: st.DataObject) -> tuple[ProposedCall, ...]:
    names = data.draw(st.lists(st.sampled_from(["pay", "ship", "refund"]), min_size=1, max_size=3))
    return tuple(
        call("ship", order_id="A") if name == "ship" else call(name, order_id="A", amount=1) for name in names
    )


def execute(data: st.DataObject, world: World, run: Run, order: Execute) -> None:
    state = run.state.calls[order.call]
    key = state.key
    assert key is not None
    if state.tool == "refund":
        world.far.takes_keys.add(key)
    report = Executed(call=order.call, attempt=order.attempt, outcome="succeeded", result=b"{}")
    lost = Executed(call=order.call, attempt=order.attempt, outcome="unknown", code="lost")
    match data.draw(st.integers(0, 5)):
        case 0:
            world.far.apply(key)
            run.send(report)
        case 1:
            world.far.apply(key)
            run.send(lost)
            world.late.append((run, report))
        case 2 | 3:
            world.far.on_the_way.append(Sent(key, state.valid_until_ms))
            run.send(lost)
        case 4:
            run.send(
                Executed(
                    call=order.call,
                    attempt=order.attempt,
                    outcome="failed",
                    code="refused",
                    retryable=data.draw(st.booleans()),
                    no_effect=True,
                )
            )
        case _:
            world.far.on_the_way.append(Sent(key, state.valid_until_ms))
            run.crash("woken")


def query(data: st.DataObject, world: World, run: Run, order: Query) -> None:
    """The truth as of now; it may be delivered now or later, or twice."""
    mark = (run.state.run_id, order.call, order.number)
    if mark in world.asked:
        return
    key = run.state.calls[order.call].key
    assert key is not None
    applied = world.far.applied.get(key, 0) > 0
    outcome = data.draw(st.sampled_from(["unknown", "applied" if applied else "absent"]))
    answer = Queried(
        call=order.call,
        number=order.number,
        asked_at_ms=run.now,
        outcome=outcome,  # type: ignore[arg-type]  # one of the three
        result=b"{}" if outcome == "applied" else None,
    )
    world.asked.add(mark)
    if data.draw(st.booleans()):
        run.send(answer)
    world.late.append((run, answer))


def person(world: World, run: Run) -> None:
    """Somebody who looks it up once nothing can arrive any more."""
    unsettled = [held for held in run.state.calls.values() if held.phase == "reconciling"]
    for held in (*unsettled, *run.state.unknown_calls.values()):
        if held.key is None or world.far.can_still_arrive(held.key):
            continue
        outcome = "applied" if world.far.applied.get(held.key) else "absent"
        run.outside(ResolveCall, call=held.call, outcome=outcome, by="boss")


def work(data: st.DataObject, world: World, run: Run) -> None:
    orders = run.orders()
    if not orders:
        return
    order = data.draw(st.sampled_from(orders))
    match order:
        case RequestModel():
            reply = ModelTurn(finish="calls", calls=proposals(data), usage=Usage(1, 1))
            run.send(ModelReplied(turn=order.turn, attempt=order.attempt, reply=reply))
        case RunChecks():
            command = run.checks(order.call)
            row = command.row
            if row is not None and row.status == "unknown":
                holder = next(other for other in world.runs if other.state.run_id == row.run_id)
                ended = holder.state.phase == "terminated"
                command = msgspec.structs.replace(command, holder_ended=ended)
            if data.draw(st.booleans()):
                # The row was looked up before the others moved on.
                rival = data.draw(st.sampled_from(world.runs))
                if rival is not run and rival.orders():
                    first = rival.orders()[0]
                    if isinstance(first, RunChecks):
                        rival.check(first.call)
            run.send(command)
        case Execute():
            execute(data, world, run, order)
        case Query():
            query(data, world, run, order)
        case _:
            raise AssertionError(f"no run here has children: {order}")


@settings(
    max_examples=examples(80),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(st.data())
def test_no_far_side_sees_an_effect_twice(data: st.DataObject) -> None:
    ledger = Ledger()
    bounds = limits(repeats=20, equal_results=20, model_attempts_per_turn=10)
    runs = [
        Run(pins(bounds=bounds), ledger=ledger, run_id=f"r{number}", fold_every_append=False)
        for number in range(RUNS)
    ]
    world = World(runs)
    for _ in range(data.draw(st.integers(1, STEPS_MAX))):
        run = data.draw(st.sampled_from(runs))
        match data.draw(st.integers(0, 11)):
            case 0:
                passed = data.draw(st.sampled_from([1, 300, 20_000, 36_000]))
                arriving = [sent for sent in world.far.on_the_way if data.draw(st.booleans())]
                for sent in arriving:
                    world.far.on_the_way.remove(sent)
                    world.far.apply(sent.key)
                for other in runs:
                    other.tick(passed)
                world.far.pass_time(run.now)
            case 1 if world.late:
                receiver, answer = data.draw(st.sampled_from(world.late))
                receiver.send(answer)
            case 2:
                person(world, run)
            case 3:
                match data.draw(st.integers(0, 7)):
                    case 0 | 1:
                        run.crash("woken")
                    case 2 if not run.state.cancel_reason:
                        run.cancel()
                    case _:
                        pass
            case _:
                work(data, world, run)
        assert all(count <= 1 for count in world.far.applied.values()), "an effect twice"
    for run in runs:
        run.check_replay()
        for event, _ in run.log:
            if isinstance(event, e.CallExecuted) and event.outcome == "succeeded":
                assert world.far.applied, "a success that is nowhere"
    assert not ledger_drift(runs)
    rows: list[LedgerRow] = list(ledger.rows.values())
    assert all(row.status != "succeeded" or world.far.applied.get(row.key) == 1 for row in rows)
