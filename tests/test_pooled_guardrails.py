"""Guardrails asked in executors: the answer is the one that would be had here, and whatever comes instead of it is unknown."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest
from tests.stepped_loop import SteppedLoop
from tests.test_pooled_questions import Line, World, in_world

from boundloop.actors.dispatch_wire import encode_answer
from boundloop.actors.executors import Executors
from boundloop.actors.guarding import ANSWERS_POOL, GuardAsked, judged, place_for
from boundloop.actors.lines import ExecutorDied, NoAnswer
from boundloop.actors.pool_spec import Pool, shapes
from boundloop.actors.rungs import CHECK_TIMEOUT_S
from boundloop.runtime.events import RungVerdict
from boundloop.runtime.guardrails import GuardrailAnswer, GuardrailDecision, GuardrailQuestion, Guardrails
from boundloop.runtime.policy import Policy
from boundloop.runtime.read_result import READ_RESULT
from boundloop.runtime.tool_spec import tool
from boundloop.runtime.toolbox import Toolbox


def no_secret(question: GuardrailQuestion) -> GuardrailDecision:
    leaks = "secret" in f"{question.result} {question.text}"
    return GuardrailDecision(answer="deny" if leaks else "allow", code="leak" if leaks else "")


POLICY = Policy(inline=False, guardrails=Guardrails(result=no_secret, answer=no_secret, revision="g1"))
ABOUT = GuardAsked(
    place="result",
    tenant="t",
    principal="p",
    operation_id="o",
    input_sha256=bytes(32),
    tool="pay",
    arguments=b'{"cents":5}',
    result=b'{"note":"secret"}',
)


def ask(world: World, asked: GuardAsked = ABOUT, patience_s: float = 0.0) -> asyncio.Task[RungVerdict]:
    return world.loop.create_task(world.executors.guarded(asked, POLICY, "default", patience_s))


@pytest.mark.parametrize("result", [b'{"note":"secret"}', b'{"note":"open"}', None])
def test_the_verdict_from_elsewhere_is_the_one_that_would_be_had_here(result: bytes | None) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        asked = msgspec.structs.replace(ABOUT, result=result)
        asking = ask(world, asked)
        await loop.settle()
        line: Line = world.lines["sync-0"]
        line.answer(POLICY)
        assert await asking == judged(POLICY, asked)
        await loop.settle()
        assert not world.held

    in_world(play)


@pytest.mark.parametrize(
    "instead",
    [
        NoAnswer("x"),
        b"",
        b"\xc1",
        "text",
        encode_answer(RungVerdict("policy", "allow")),
        encode_answer(RungVerdict("guardrail", "ask")),
        msgspec.msgpack.encode(["guardrail", "granted"]),
        msgspec.msgpack.encode({"allow": True}),
    ],
)
def test_whatever_comes_instead_of_a_verdict_is_unknown(instead: object) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.instead = [instead] * 5
        verdict = await ask(world)
        assert (verdict.rung, verdict.verdict, verdict.revision) == ("guardrail", "unknown", "g1")

    in_world(play)


def test_one_whose_executor_dies_is_asked_again_and_not_for_ever() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.instead = [ExecutorDied("x"), ExecutorDied("x")]
        asking = ask(world)
        await loop.settle()
        assert world.losses == ["died", "died"]
        world.lines["sync-2"].answer(POLICY)
        assert (await asking).verdict == "deny"
        world.instead = [ExecutorDied("x")] * 5
        assert (await ask(world)).verdict == "unknown"
        assert len(world.losses) == 5

    in_world(play)


def test_one_that_hangs_is_unknown_when_its_time_is_over() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        asking = ask(world)
        await loop.advance(int(CHECK_TIMEOUT_S * 1_000) + 1)
        assert (await asking).code == "timeout"
        assert world.losses == ["overdue"]

    in_world(play)


def test_one_that_hangs_on_a_thread_is_unknown_when_its_time_is_over() -> None:
    let_go, reached = threading.Event(), threading.Event()

    def hangs(question: GuardrailQuestion) -> GuardrailAnswer:
        reached.set()
        let_go.wait(60)
        return "allow"

    policy = Policy(inline=False, guardrails=Guardrails(answer=hangs, revision="g1"))

    async def play() -> RungVerdict:
        executors = Executors()
        asked = msgspec.structs.replace(ABOUT, place="answer", tool="", result=None)
        asking = loop.create_task(executors.guarded(asked, policy, ANSWERS_POOL, 0.0))
        await loop.advance(int(CHECK_TIMEOUT_S * 1_000) + 1)
        return await asking

    loop = SteppedLoop()
    try:
        verdict = loop.run_until_complete(play())
    finally:
        let_go.set()
        loop.close()
    assert (verdict.verdict, verdict.code) == ("unknown", "timeout")


def test_answers_are_judged_in_a_pool_that_is_there_without_any_tool() -> None:
    assert shapes({}, {}, Toolbox(), POLICY).keys() == {(ANSWERS_POOL, "sync")}
    inline = Policy(guardrails=POLICY.guardrails)
    assert not shapes({}, {}, Toolbox(), inline)


@tool(risk="read", pool="db", timeout_ms=120_000)
def slow(sql: str) -> str:
    """A query."""
    return sql


@tool(risk="read", timeout_ms=40_000)
def plain(text: str) -> str:
    """Of the default pool."""
    return text


@pytest.mark.parametrize(("patience_s", "patience_ms"), [(0.0, 10_000), (120.0, 120_000)])
def test_a_place_is_waited_for_as_long_as_a_check_waits(patience_s: float, patience_ms: int) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.free["sync"].clear()
        asking = ask(world, patience_s=patience_s)
        await loop.advance(patience_ms - 1)
        assert not asking.done()
        await loop.advance(2)
        assert (await asking).verdict == "unknown"

    in_world(play)


def test_where_a_guardrail_is_asked_and_how_long_it_waits_for_a_place() -> None:
    box = Toolbox([slow, plain])
    assert place_for(box, box["slow"]) == ("db", 120.0)
    assert place_for(box, box["plain"]) == (ANSWERS_POOL, 40.0)
    assert place_for(box, box.spec_of(READ_RESULT)) == (ANSWERS_POOL, 40.0)
    assert place_for(box, None) == (ANSWERS_POOL, 40.0)
    assert place_for(Toolbox([slow]), None) == (ANSWERS_POOL, 0.0)


def test_the_pool_that_checks_and_judges_read_result_is_there_whatever_pools_the_tools_have() -> None:
    policies = (
        Policy(inline=False),
        Policy(inline=False, guardrails=Guardrails(result=no_secret, revision="g")),
    )
    for policy in policies:
        made = shapes({"db": Pool()}, {}, Toolbox([slow]), policy)
        assert made.keys() == {("db", "sync"), (READ_RESULT.pool, "sync")}
    assert READ_RESULT.pool == ANSWERS_POOL
    assert shapes({"db": Pool()}, {}, Toolbox([slow]), Policy()).keys() == {("db", "sync")}
