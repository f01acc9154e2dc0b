"""Checks and queries on their way to executors elsewhere, over lines that a test answers: what is taken for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from tests.stepped_loop import SteppedLoop

from boundloop.actors import checks
from boundloop.actors.dispatch_wire import (
    QueryAsked,
    Stop,
    Work,
    decode_work,
    encode_answer,
    encode_reply,
)
from boundloop.actors.guarding import GuardAsked
from boundloop.actors.lines import ExecutorDied, LineDown, NoAnswer
from boundloop.actors.places import Grant, Kind, LossCause, Refused, Want
from boundloop.actors.pool_spec import shapes
from boundloop.actors.pooled_dispatch import PooledExecutors
from boundloop.actors.pooled_questions import LOOP_LATE_S
from boundloop.actors.query import QUERY_TIMEOUT_S, FarSideAnswer
from boundloop.actors.reception import Inquiries
from boundloop.actors.rungs import CHECK_TIMEOUT_S, Rungs, RungsAnswered, RungsAsked
from boundloop.runtime import Absent, Applied
from boundloop.runtime.events import RungVerdict
from boundloop.runtime.limits import RECHECKS_MAX
from boundloop.runtime.policy import Policy, PolicyDecision
from boundloop.runtime.tool_spec import tool
from boundloop.runtime.toolbox import Toolbox

KEY = bytes(range(32))


def positive(arguments: dict[str, Any]) -> bool | str:
    return True if arguments["cents"] > 0 else "too_little"


def shown(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"pays": arguments["cents"]}


def version(arguments: dict[str, Any]) -> int:
    return 3


def applied(key: str) -> Applied:
    return Applied(int(key[:2], 16))


async def absent(key: str) -> Absent:
    return Absent()


@tool(risk="write", key="call", far_side="queryable", query=applied, group="bank", check=positive)
def pay(cents: int) -> int:
    """An effect of a limited group."""
    return cents


@tool(risk="write", key="call", far_side="queryable", query=absent, inline=True)
async def pay_async(cents: int) -> int:
    """An effect that is queried by a coroutine."""
    return cents


@tool(
    risk="irreversible", key=("cents",), check=positive, preview=shown, version_of=version, timeout_ms=60_000
)
async def wire(cents: int) -> int:
    """One that is shown to a person."""
    return cents


@tool(risk="read", inline=True)
async def glance(cents: int) -> int:
    """In the host itself."""
    return cents


TOOLS = Toolbox([pay, pay_async, wire, glance])
POLICY = Policy(revision="p-1")


def permissions_of(tenant: str, principal: str) -> frozenset[str]:
    return frozenset({"may_pay"})


def rungs_of(name: str, *, policy: Policy = POLICY, **fields: Any) -> Rungs:
    spec = TOOLS[name]
    definition = spec.definition
    asked = RungsAsked(
        tool=name,
        definition_sha256=spec.definition_sha256,
        risk=definition.risk,
        approval=definition.approval,
        permissions=definition.permissions,
        cost_micros=0,
        acts=definition.is_effect,
        asked_before=False,
        arguments=b'{"cents":5}',
        tenant="t",
        principal="p",
        operation_id="o",
        tool_calls=1,
    )
    return Rungs(msgspec.structs.replace(asked, **fields), spec, policy, permissions_of)


class Line:
    """What was sent on it, to be answered by the test or as an executor would."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.sent: list[tuple[Work, asyncio.Future[object]]] = []
        self.down = False
        self.gone = False
        self._world = world

    def send(self, calls: bytes) -> asyncio.Future[object]:
        if self.down:
            raise LineDown(self.name)
        answer: asyncio.Future[object] = self._world.loop.create_future()
        self.sent.append((decode_work(calls), answer))
        if self._world.instead:
            instead = self._world.instead.pop(0)
            if isinstance(instead, Exception):
                answer.set_exception(instead)
            elif instead is not None:
                answer.set_result(instead)
        return answer

    def stop(self, stop: Stop) -> None:
        raise AssertionError("a question can't be stopped")

    async def harvest(self, first: Stop) -> object:
        raise AssertionError("a question is no batch")

    def answer(self, policy: Policy = POLICY) -> None:
        work, answer = self.sent[-1]
        inquiries = Inquiries(TOOLS, policy, permissions_of)
        assert not isinstance(work, tuple)
        if isinstance(work, RungsAsked):
            answer.set_result(encode_answer(inquiries.rungs(work)))
        elif isinstance(work, GuardAsked):
            answer.set_result(encode_answer(inquiries.guard(work)))
        else:
            answer.set_result(encode_answer(inquiries.query(work)))


class World:
    """Places, lines to them, and the executors under test. ``instead``: what comes back at once, None for nothing."""

    def __init__(self, loop: SteppedLoop) -> None:
        self.loop = loop
        self.free: dict[Kind, list[str]] = {
            "sync": [f"sync-{number}" for number in range(5)],
            "async": ["async-0"],
        }
        self.lines = {name: Line(self, name) for names in self.free.values() for name in names}
        self.held: dict[str, tuple[Kind, str]] = {}
        self.wants: list[Want] = []
        self.losses: list[LossCause] = []
        self.refusal: Refused | None = None
        self.instead: list[object] = []
        self.executors = PooledExecutors(self, self, holder="h", groups={"bank": 1}, dependencies={})

    async def lease(self, want: Want) -> Grant | Refused:
        self.wants.append(want)
        if self.refusal is not None:
            return self.refusal
        if not self.free[want.kind]:
            await self.loop.create_future()
        actor = self.free[want.kind].pop(0)
        self.held[want.want_id] = (want.kind, actor)
        return Grant(grant_id=want.want_id, actor=actor, contended=True)

    async def give_back(self, grant_id: str) -> None:
        kind, actor = self.held.pop(grant_id)
        self.free[kind].append(actor)

    async def lost(self, grant_id: str, why: LossCause) -> None:
        del self.held[grant_id]
        self.losses.append(why)

    def known(self, name: str) -> Line | None:
        return self.lines[name]

    async def line(self, name: str, kind: Kind) -> Line:
        raise LineDown(name)

    def forget(self, name: str) -> None:
        return

    def ask(self, rungs: Rungs) -> asyncio.Task[RungsAnswered]:
        return self.loop.create_task(self.executors.checked(rungs))

    def query(self, name: str) -> asyncio.Task[FarSideAnswer]:
        return self.loop.create_task(self.executors.queried(TOOLS[name], KEY))

    def out(self) -> list[Work]:
        return [work for line in self.lines.values() for work, answer in line.sent if not answer.done()]


def in_world(scene: Callable[[World, SteppedLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SteppedLoop()

    async def play() -> None:
        world = World(loop)
        await scene(world, loop)
        closing = loop.create_task(world.executors.close())
        await loop.advance(30_000)
        assert closing.done()
        assert not world.held, "a place was neither given back nor lost"

    try:
        loop.run_until_complete(play())
    finally:
        loop.close()


def unknown_as(code: str) -> RungsAnswered:
    return RungsAnswered(verdicts=(RungVerdict("check", "unknown", code, "p-1"),))


# --- checks --------------------------------------------------------------------------------------------------------------


def asks(question: Any) -> PolicyDecision:
    return PolicyDecision(answer="ask" if question.tool_calls_so_far else "deny", code="why", terminal=True)


@pytest.mark.parametrize(
    ("name", "policy", "fields", "verdicts"),
    [
        ("pay", POLICY, {}, ["allow", "allow"]),
        ("pay", POLICY, {"arguments": b'{"cents":-1}'}, ["deny"]),
        ("pay", POLICY, {"permissions": ("may_pay",)}, ["allow", "allow"]),
        ("pay", POLICY, {"permissions": ("may_not",)}, ["allow", "deny"]),
        ("wire", POLICY, {}, ["allow", "ask"]),
        ("wire", POLICY, {"asked_before": True, "approval": "always"}, ["allow", "ask"]),
        ("wire", Policy(asks, revision="p-1"), {"tool_calls": 0}, ["allow", "deny"]),
        ("wire", POLICY, {"arguments": b"[]"}, ["unknown"]),
    ],
)
def test_the_answer_from_elsewhere_is_the_one_that_would_be_had_here(
    name: str, policy: Policy, fields: dict[str, Any], verdicts: list[str]
) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        rungs = rungs_of(name, policy=policy, **fields)
        asking = world.ask(rungs)
        await loop.settle()
        world.lines["sync-0"].answer(policy)
        answer = await asking
        assert answer == rungs.run()
        assert [it.verdict for it in answer.verdicts] == verdicts
        await loop.settle()
        assert not world.held

    in_world(play)


@pytest.mark.parametrize(
    ("instead", "why"),
    [
        (NoAnswer("x"), "overdue"),
        (b"", "overdue"),
        (b"\xc1", "overdue"),
        ("text", "overdue"),
        (None, "overdue"),
        (encode_reply([]), "overdue"),
        (encode_answer(FarSideAnswer("applied")), "overdue"),
        (msgspec.msgpack.encode({"verdicts": [["policy", "granted"]]}), "overdue"),
        (
            msgspec.msgpack.encode({"verdicts": [["check", "deny", "no"], ["policy", "allow", "", "p-1"]]}),
            "overdue",
        ),
        (msgspec.msgpack.encode({"allow": True}), "overdue"),
    ],
)
def test_whatever_comes_instead_of_an_answer_is_an_unknown(instead: object, why: LossCause) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.instead = [instead]
        asking = world.ask(rungs_of("pay"))
        await loop.advance(int(CHECK_TIMEOUT_S * 1_000))
        assert await asking == unknown_as("timeout" if instead is None else "lost")
        assert world.losses == [why]

    in_world(play)


def test_an_answer_that_was_made_by_another_version_of_the_tool_is_an_unknown() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        others: list[dict[str, Any]] = [{"definition_sha256": bytes(32)}, {"tool": "nowhere"}]
        for fields in others:
            asking = world.ask(rungs_of("pay", **fields))
            await loop.settle()
            (line,) = [line for line in world.lines.values() if line.sent and not line.sent[-1][1].done()]
            line.answer()
            assert [it.verdict for it in (await asking).verdicts] == ["unknown"]

    in_world(play)


def test_a_check_whose_executor_dies_is_asked_again_and_its_answer_counts() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.instead = [ExecutorDied("x")]
        asking = world.ask(rungs_of("pay"))
        await loop.settle()
        world.lines["sync-1"].answer()
        assert not (await asking).refused
        assert world.losses == ["died"]

    in_world(play)


@pytest.mark.parametrize(("down", "code"), [(False, "lost"), (True, "no_executor")])
def test_a_check_that_takes_its_executor_with_it_is_asked_so_often_and_no_more(down: bool, code: str) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.instead = [ExecutorDied("x")] * 9
        for line in world.lines.values():
            line.down = down
        asking = world.ask(rungs_of("pay"))
        await loop.settle()
        assert await asking == unknown_as(code)
        assert world.losses == ["unreached" if down else "died"] * RECHECKS_MAX

    in_world(play)


@pytest.mark.parametrize("code", ["overloaded", "executors_failing", "no_broker", "closed", "no_pool"])
def test_no_place_is_an_unknown(code: Any) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.refusal = Refused(code=code)
        asking = world.ask(rungs_of("pay"))
        await loop.settle()
        assert await asking == unknown_as(code)
        assert len(world.wants) == 1

    in_world(play)


@pytest.mark.parametrize(("name", "patience_ms"), [("pay", 30_000), ("wire", 60_000)])
def test_a_place_is_waited_for_as_long_as_a_call_of_the_tool_might(name: str, patience_ms: int) -> None:
    """Executors that are busy with long calls are no reason to refuse one."""

    async def play(world: World, loop: SteppedLoop) -> None:
        world.free["sync"].clear()
        asking = world.ask(rungs_of(name))
        await loop.advance(patience_ms - 1)
        assert not asking.done()
        await loop.advance(1)
        assert await asking == unknown_as("expired")

    in_world(play)


def test_neither_a_check_nor_a_query_takes_a_place_of_a_limited_group() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.ask(rungs_of("pay"))
        world.query("pay")
        await loop.settle()
        assert [(want.tool, want.group) for want in world.wants] == [("pay", "")] * 2
        assert len(world.out()) == 2

    in_world(play)


def test_a_check_that_nobody_waits_for_any_more_goes_on_to_its_end() -> None:
    """Its executor is none the worse for an answer that isn't wanted."""

    async def play(world: World, loop: SteppedLoop) -> None:
        asking = world.ask(rungs_of("pay"))
        await loop.settle()
        asking.cancel()
        await loop.settle()
        assert asking.cancelled()
        assert world.held
        world.lines["sync-0"].answer()
        await loop.settle()
        assert not world.held
        assert not world.losses

        asking = world.ask(rungs_of("pay"))
        await loop.settle()
        asking.cancel()
        await loop.advance(int(CHECK_TIMEOUT_S * 1_000))
        assert world.losses == ["overdue"]

    in_world(play)


def test_a_check_that_waits_for_a_place_in_vain_wants_none_any_more() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        free, world.free["sync"] = world.free["sync"], []
        for settles in (True, False):
            asking = world.ask(rungs_of("pay"))
            if settles:
                await loop.settle()
            asking.cancel()
            await loop.settle()
            assert asking.cancelled()
        world.free["sync"] = free
        await loop.advance(60_000)
        assert not world.out()

    in_world(play)


def test_closing_gives_up_what_is_out() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        asking = world.ask(rungs_of("pay"))
        await loop.settle()
        await world.executors.close()
        assert world.losses == ["overdue"]
        asking.cancel()
        await loop.settle()

    in_world(play)


# --- queries -------------------------------------------------------------------------------------------------------------


def test_a_query_goes_to_the_kind_of_executor_that_its_function_needs() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        asking = world.query("pay")
        await loop.settle()
        world.lines["sync-0"].answer()
        assert await asking == FarSideAnswer("applied", b"0")
        asking = world.query("pay_async")
        await loop.settle()
        (work,) = world.out()
        assert isinstance(work, QueryAsked)
        said = await Inquiries(TOOLS, POLICY, permissions_of).query_on_loop(work)
        world.lines["async-0"].sent[-1][1].set_result(encode_answer(said))
        assert await asking == FarSideAnswer("absent")
        assert [want.kind for want in world.wants] == ["sync", "async"]

    in_world(play)


@pytest.mark.parametrize(
    "instead",
    [
        ExecutorDied("x"),
        NoAnswer("x"),
        b"",
        b"\xc1",
        None,
        encode_answer(RungsAnswered()),
        msgspec.msgpack.encode({"outcome": "gone"}),
        msgspec.msgpack.encode({"outcome": "absent", "sure": True}),
    ],
)
@pytest.mark.parametrize("name", ["pay", "pay_async"])
def test_whatever_comes_instead_of_an_answer_is_never_absent(name: str, instead: object) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.instead = [instead]
        asking = world.query(name)
        await loop.advance(int((QUERY_TIMEOUT_S + LOOP_LATE_S) * 1_000))
        assert await asking == FarSideAnswer("unknown", reason="timeout" if instead is None else "lost")
        assert len(world.losses) == 1

    in_world(play)


def test_a_query_without_a_place_or_a_question_is_an_unknown() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.refusal = Refused(code="overloaded")
        assert await world.query("pay") == FarSideAnswer("unknown", reason="overloaded")
        assert (await world.query("glance")).reason == "no_query"
        assert (await world.executors.queried(TOOLS["pay"], None)).reason == "no_query"
        assert (await world.executors.queried(None, KEY)).reason == "no_query"

    in_world(play)


# --- the host's own knowledge, and the pools -----------------------------------------------------------------------------


class Elsewhere:
    """Executors that answer what a test says, and turn a switch meanwhile."""

    def __init__(self, says: RungsAnswered, meanwhile: Callable[[], None]) -> None:
        self._says = says
        self._meanwhile = meanwhile

    async def checked(self, rungs: Rungs) -> RungsAnswered:
        self._meanwhile()
        return self._says


class Call:
    call, tool, approval = "c1.1", "wire", None


class Meters:
    class tool_calls:
        spent = 1


class State:
    tools, tenant, principal, operation_id, meters = (
        {spec.name: spec.definition for spec in TOOLS.values()},
        "t",
        "p",
        "o",
        Meters,
    )
    untrusted = ()


ASKED = RungsAnswered(
    verdicts=(RungVerdict("policy", "ask", "needs_approval", "p-1"),),
    ask=True,
    preview=b"{}",
    resource_version="3",
)
UNSEEN = RungsAnswered(verdicts=(RungVerdict("preview", "unknown", "preview_failed"),), ask=True)
DENIED = RungsAnswered(verdicts=(RungVerdict("policy", "deny", "no", "p-1"),), terminal=True)


@pytest.mark.parametrize(
    ("says", "scope", "code", "terminal", "ask"),
    [
        (ASKED, "", "", False, True),
        (ASKED, "tool", "kill_switch_tool", False, False),
        (ASKED, "tenant", "kill_switch_tenant", True, False),
        (UNSEEN, "global", "kill_switch_global", True, False),
        (DENIED, "global", "no", True, False),
    ],
)
def test_a_kill_switch_that_is_turned_while_others_answer_is_seen(
    says: RungsAnswered, scope: str, code: str, terminal: bool, ask: bool
) -> None:
    on: list[str] = [""]
    gate = checks.Gate(TOOLS, POLICY, permissions_of, lambda tenant, name: on[0])
    executors: Any = Elsewhere(says, lambda: on.__setitem__(0, scope))
    state: Any = State()
    call: Any = Call()

    done = asyncio.run(
        checks.run_beside(gate, executors, state, call, None, b'{"cents":5}', None, recheck=False)
    )

    refusing = [it.code for it in done.verdicts if it.verdict in ("deny", "unknown")]
    assert (refusing, done.terminal, done.ask) == ([code] if code else [], terminal, ask)
    assert done.preview == (b"{}" if ask else None)
    assert done.definition_sha256 == TOOLS["wire"].definition_sha256
    assert done.contract_kept


def test_pools_are_those_that_checks_and_queries_need_too() -> None:
    def needed(policy: Policy, *names: str) -> set[tuple[str, Kind]]:
        return set(shapes({}, {}, TOOLS.subset(names), policy))

    beside = Policy(revision="p-1", inline=False)
    assert needed(POLICY, "glance") == set()
    assert needed(beside, "glance") == {("default", "sync")}
    assert needed(POLICY, "pay_async") == {("default", "async")}
    assert needed(POLICY, "wire") == {("default", "async"), ("default", "sync")}
