"""Random long histories in a small context: whatever is compacted and wherever a host dies, what must stay is there, pairs
stay pairs, the budget is kept, and each past request comes out of the log as it was sent."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.random_examples import examples

from boundloop.eventstore.codec import Recorded
from boundloop.eventstore.requests import past_request
from boundloop.runtime import context
from boundloop.runtime import events as e
from boundloop.runtime.commands import ModelReplied, RecordFact, TakeOver
from boundloop.runtime.context import input_tokens_bound, model_input, turns_of
from boundloop.runtime.fold import begin, evolve, fold
from boundloop.runtime.limits import LimitValues
from boundloop.runtime.model import (
    AssistantItem,
    DigestItem,
    FinishKind,
    Item,
    ModelInput,
    ModelTurn,
    ProposedCall,
    ResultItem,
    UserItem,
)
from boundloop.runtime.orders import Execute, RequestModel, RunChecks
from boundloop.runtime.pins import Pins
from boundloop.runtime.read_result import READ_RESULT
from boundloop.runtime.state import State
from boundloop.runtime.tool_spec import tool, tool_spec

from .shop import BY_NAME, limits, pins
from .spec import USAGE, Run, call


@tool(
    risk="read",
    facts={"order_state": "state", "order_total": "total.amount"},
    conditions=("total.currency", "valid_until"),
)
def quote(order_id: str) -> dict[str, Any]:
    "A price that holds for a while."
    return {"order_id": order_id}


QUOTE = tool_spec(quote).definition
TOOLS = (BY_NAME["get_order"], BY_NAME["pay"], QUOTE)


@pytest.fixture(autouse=True)
def _quote_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BY_NAME, "quote", QUOTE)
    monkeypatch.setitem(BY_NAME, READ_RESULT.name, READ_RESULT)


class Watched(Run):
    """Keeps each request as an adapter would have got it, checked as it goes out."""

    sent: dict[tuple[int, int], ModelInput]

    def settle(self) -> tuple[e.AnyEvent, ...]:
        done = super().settle()
        self.__dict__.setdefault("sent", {})
        if self.state.phase == "model_requested":
            request = model_input(self.state)
            key = (request.turn, request.attempt)
            if key not in self.sent:
                self.sent[key] = msgspec.structs.replace(request, items=tuple(request.items))
                check_request(self, self.sent[key])
        return done


def whole_history(run: Run) -> State:
    """The fold of the log with the compactions left out: nothing has gone."""
    started, at_ms = run.log[0]
    assert isinstance(started, e.RunStarted)
    state = begin(started, run.pins, at_ms)
    for event, at in run.log[1:]:
        if isinstance(event, e.ContextCompacted):
            state.tools[READ_RESULT.name] = READ_RESULT
            state.seq += 1
        else:
            evolve(state, event, at)
    return state


def records(run: Run) -> list[Recorded]:
    return [
        Recorded(seq, e.tag_of(event), 1, at_ms, 1, event)
        for seq, (event, at_ms) in enumerate(run.log, start=1)
    ]


def lines_of(items: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, DigestItem):
            found += [json.loads(line) for line in item.text.split("\n")[1:]]
    return found


# --- the laws ------------------------------------------------------------------------------------------------------


def check_request(run: Run, request: ModelInput) -> None:
    state, items = run.state, list(request.items)
    bounds = state.limits
    assert len(items) == state.requested_items
    assert input_tokens_bound(state) + bounds.output_tokens_per_request <= bounds.context_tokens
    assert state.counters.history_bytes <= bounds.history_bytes
    check_pairs(items)
    check_kept(run, items)


def check_pairs(items: list[Item]) -> None:
    """After each assistant item with calls come its results, all of them, in order, and nothing else does."""
    at = 0
    while at < len(items):
        item = items[at]
        assert not isinstance(item, ResultItem), "a result without its call"
        at += 1
        if isinstance(item, AssistantItem) and item.calls:
            results = items[at : at + len(item.calls)]
            assert [result.call_id if isinstance(result, ResultItem) else "" for result in results] == [
                one.call_id for one in item.calls
            ]
            at += len(item.calls)


def check_kept(run: Run, items: list[Item]) -> None:
    history = whole_history(run)
    whole = history.items
    assert [item for item in items if isinstance(item, UserItem)] == [
        item for item in whole if isinstance(item, UserItem)
    ]
    # A turn is there as it was, continuation and all, or it is gone whole; the newest is there.
    turns = [tuple(whole[span.start : span.end]) for span in turns_of(whole)]
    left = [tuple(items[span.start : span.end]) for span in turns_of(items)]
    assert left == turns[len(turns) - len(left) :]
    assert not turns or left
    for earlier, later in pairwise(whole):
        if isinstance(earlier, AssistantItem) and not earlier.calls and isinstance(later, AssistantItem):
            # What the provider paused goes or stays with what continued it.
            assert (earlier in items) == (later in items)
    lines = lines_of(items)
    gone = [item for turn in turns[: len(turns) - len(left)] for item in turn if isinstance(item, ResultItem)]
    digests = [line for line in lines if "call" in line and "fact" not in line]
    assert [line["call"] for line in digests] == [item.call_id for item in gone], "each result once, in order"
    for item, line in zip(gone, digests, strict=True):
        check_digest(run, item, line)
    check_facts(run.state, {item.call_id for item in gone}, lines)


def check_digest(run: Run, item: ResultItem, line: dict[str, Any]) -> None:
    content = json.loads(item.content)
    for name, value in content.items():
        if name not in ("data", "message"):
            assert line[name] == value
    assert line["tool"] == item.name
    state = run.state
    if item.call_id in state.approvals:
        assert line["approval"] == state.approvals[item.call_id]
    about = order_of(run, item.call_id)
    succeeded_later = any(
        isinstance(event, e.ResultBound)
        and event.status == "ok"
        and tool_of(run, event.call) == item.name
        and order_of(run, event.call) == about
        for event, _ in run.log
    )
    if item.is_error and not succeeded_later:
        assert line["message"] == content["message"]
    if item.name == "quote" and not item.is_error:
        data = content["data"]
        assert line["conditions"] == {
            "total.currency": data["total"]["currency"],
            "valid_until": data["valid_until"],
        }
    if "data" in content:
        assert len(line["handle"]) >= 16


def check_facts(state: State, gone: set[str], lines: list[dict[str, Any]]) -> None:
    for name, fact in state.facts.items():
        if fact.call and fact.call not in gone:
            continue
        if not fact.call and state.waiting_facts:
            continue
        shown = [
            line["value"] for line in lines if line.get("fact") == name and line.get("call", "") == fact.call
        ]
        assert shown, f"{name} is not in the context"
        assert json.loads(fact.value) == shown[-1]


def tool_of(run: Run, name: str) -> str:
    return next(
        event.tool for event, _ in run.log if isinstance(event, e.CallProposed) and event.call == name
    )


def order_of(run: Run, name: str) -> bytes:
    return next(
        event.arguments for event, _ in run.log if isinstance(event, e.CallProposed) and event.call == name
    )


# --- random histories ----------------------------------------------------------------------------------------------

PIECES = ["x", 'say "no"\n', "ü", '\n{"fact":"order_state","value":"paid"}', '\n{"call":"c1.0"}']
KINDS: list[FinishKind] = ["calls", "calls", "calls", "calls", "calls", "calls", "paused", "provider_error"]
TOOLS_CALLED = ["get_order", "get_order", "quote", "quote", "pay", "nobody", "read_result"]


def words(chance: Random, most: int) -> str:
    piece = chance.choice(PIECES)
    return piece * (chance.randint(0, most) // len(piece))


def turn(chance: Random) -> ModelTurn:
    kind = chance.choice(KINDS)
    continuation = chance.randbytes(chance.randint(8, 200))
    text = chance.choice(["", 'I look.\n{"call":"c1.0"}'])
    if kind != "calls":
        return ModelTurn(finish=kind, text=text or "hm", continuation=continuation, usage=USAGE)
    proposed: list[ProposedCall] = []
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(TOOLS_CALLED)
        arguments: dict[str, Any] = {"order_id": f"o{chance.choice([1, 2, chance.randint(0, 10_000)])}"}
        if name == "pay":
            arguments["amount"] = 1
        if name == "read_result":
            arguments = {"handle": "0" * 16}
        proposed.append(call(name, **arguments))
    return ModelTurn(finish="calls", text=text, calls=tuple(proposed), continuation=continuation, usage=USAGE)


def result(chance: Random, name: str) -> Any:
    if name == "quote":
        return {
            "state": chance.choice(["open", "paid"]),
            "total": {"amount": chance.randint(0, 9), "currency": "EUR"},
            "valid_until": "2026-12-01",
            "text": words(chance, 400),
        }
    if name == "read_result":
        return {"handle": "0" * 16, "offset": 0, "text": words(chance, 100), "bytes": 200, "next_offset": 100}
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    return chance.choice([{"rows": words(chance, 900)}, deep, "text", None])


def answer(chance: Random, run: Watched) -> None:
    order = run.orders()[0]
    match order:
        case RequestModel():
            run.send(ModelReplied(turn=order.turn, attempt=order.attempt, reply=turn(chance)))
        case RunChecks():
            asked = not order.recheck and run.state.calls[order.call].tool == "pay" and chance.random() < 0.5
            (run.ask if asked else run.check)(order.call)
        case Execute():
            if chance.random() < 0.75:
                run.report(order.call, "succeeded", result(chance, run.state.calls[order.call].tool))
            else:
                run.report(order.call, "failed", code="broken", safe_message="it broke", no_effect=True)
        case _:
            raise AssertionError(order)


def walk(chance: Random, run: Watched, steps: int) -> None:
    for _ in range(steps):
        if not run.state.live:
            return
        what = chance.random()
        asked = [one.call for one in run.state.calls.values() if one.phase == "waiting_approval"]
        if what < 0.05:
            crash_in_between(chance, run)
        elif what < 0.08:
            value = json.dumps(chance.choice(["a", "b" * 60, 7, None]))
            run.outside(RecordFact, name=chance.choice(["segment", "region"]), value=value)
        elif run.orders():
            answer(chance, run)
        elif asked:
            (run.approve if chance.random() < 0.5 else run.reject)(asked[0])
        elif run.wake() is not None:
            run.tick_to_wake()


def crash_in_between(chance: Random, run: Watched) -> None:
    """The host dies; the last events of the log may not have been written, down to a compaction without its request."""
    last, before = run.log[-1][0], run.log[-2][0]
    if isinstance(last, e.ModelRequested):
        most = 2 if isinstance(before, e.ContextCompacted) else 1
        for _ in range(chance.randint(0, most)):
            run.log.pop()
            run.sent.pop((last.turn, last.attempt), None)
    run.state = fold(run.log, run.blobs)
    run.send(TakeOver(epoch=run.state.epoch + 1, host="other", cause="woken"))


def bounds_of(room_tokens: int) -> LimitValues:
    """A context with so much room beside what every request has in common."""
    head_tokens = begin_of(pins(tools=(*TOOLS, READ_RESULT))).request_head_bytes // 3
    return limits(
        context_tokens=head_tokens + 100 + room_tokens,
        turns=200,
        model_attempts=800,
        tool_calls=10_000,
        call_attempts=10_000,
        failures=10_000,
        denials=10_000,
        invalid_streak=10_000,
        repeats=10_000,
        equal_results=10_000,
        turns_without_progress=10_000,
        cost_micros=10**9,
        deadline_ms=10**9,
    )


def begin_of(pinned: Pins) -> State:
    return Run(pinned, settled=False).state


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), room=st.sampled_from([1_000, 2_000, 4_000]))
def test_any_history_in_a_small_context_keeps_what_must_stay(seed: int, room: int) -> None:
    run = Watched(pins(bounds=bounds_of(room), tools=TOOLS), fold_every_append=False, settled=False)
    chance = Random(seed)
    recorded_before_the_first_request(chance, run)
    run.settle()
    walk(chance, run, 160)
    run.check_replay()
    check_rebuilt(run)
    if run.state.reason == "context_exhausted":
        assert context.compaction(run.state) is None


def recorded_before_the_first_request(chance: Random, run: Watched) -> None:
    """As a host does that corrects itself: often more than one context holds, of which the latest value has to stay."""
    for number in range(chance.choice([0, 0, 3, 40])):
        run.now += chance.randint(0, 1)
        name = chance.choice(["segment", "region"])
        value = json.dumps(words(chance, 100))
        run.decide(RecordFact(command_id=f"before{number}", by="host", name=name, value=value))


def test_the_walk_compacts_before_the_first_request() -> None:
    compacted = 0
    for seed in range(20):
        run = Watched(pins(bounds=bounds_of(2_000), tools=TOOLS), fold_every_append=False, settled=False)
        recorded_before_the_first_request(Random(seed), run)
        run.settle()
        compacted += run.state.compactions
        assert run.state.phase == "model_requested"
    assert compacted


def check_rebuilt(run: Watched) -> None:
    """Each past request comes out of the log as it was sent, and its hash says so."""
    log = records(run)
    for (turn_, attempt), request in run.sent.items():
        found = past_request(log, run.blobs, turn_, attempt)
        assert found.request == request
        assert found.intact


def test_the_walk_compacts() -> None:
    """What the laws are worth: the histories do lose turns, more than once."""
    run = Watched(
        pins(
            bounds=limits(
                context_tokens=3_000, turns=40, model_attempts=40, tool_calls=100, call_attempts=100
            ),
            tools=TOOLS,
        )
    )
    for number in range(30):
        run.reply(call("get_order", order_id=f"o{number}"))
        (order,) = run.orders()
        assert isinstance(order, RunChecks)
        name = order.call
        run.check(name)
        run.report(name, "succeeded", {"rows": f"{number} " * 150})
    assert run.state.compactions > 2
    check_rebuilt(run)
    assert any(isinstance(item, DigestItem) for item in run.state.items)
