"""The ends of calls in executors, in this process: what goes on of a call is seen, and ends with the process in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import msgspec
import pytest
from tests.ray.process_table import eventually

from boundloop.actors import call_ledger, ray_executor
from boundloop.actors.dispatch_wire import BatchReply, WireCall, decode_reply, encode_calls, encode_grants
from boundloop.actors.ray_executor import ENDED, AsyncExecutor, SyncExecutor
from boundloop.actors.shipping import Shipment
from boundloop.runtime.policy import Policy
from boundloop.runtime.tool_spec import tool
from boundloop.runtime.toolbox import Toolbox

VALID_MS: Final = 300
DONE: dict[str, int] = {}
OPEN: dict[str, threading.Event] = {}


def enter(name: str) -> None:
    """Count, and stay until the test opens."""
    DONE[name] = DONE.get(name, 0) + 1
    OPEN.setdefault(name, threading.Event()).wait(30)


@tool(risk="write", key="call")
async def pay_on_a_thread(name: str) -> int:
    """Its thread can't be cancelled."""
    await asyncio.to_thread(enter, name)
    return 1


@tool(risk="write", key="call")
async def pay_shielded(name: str) -> int:
    """Its inner task is asked too."""
    await asyncio.shield(asyncio.create_task(_forever()))
    return 1


@tool(risk="write", key="call")
async def pay_deaf(name: str) -> int:
    """Swallows what it is told."""
    await _deaf(name)
    return 1


@tool(risk="read")
async def look_deaf(name: str) -> int:
    """The same without an effect."""
    await _deaf(name)
    return 1


@tool(risk="read", group="bank")
async def look_deaf_limited(name: str) -> int:
    """The same in a limited group."""
    await _deaf(name)
    return 1


@tool(risk="write", key="call")
async def pay_async(name: str) -> int:
    """At once."""
    DONE[name] = DONE.get(name, 0) + 1
    return DONE[name]


@tool(risk="write", key="call")
async def pay_promptly(name: str) -> int:
    """Ends when it is told to."""
    await _forever()
    return 1


@tool(risk="write", key="call")
def pay(name: str) -> int:
    """At once."""
    DONE[name] = DONE.get(name, 0) + 1
    return DONE[name]


@tool(risk="write", key="call")
def pay_beside(name: str) -> int:
    """By a thread that it doesn't wait for."""
    threading.Thread(target=enter, args=(name,), daemon=True).start()
    raise TimeoutError


@tool(risk="write", key="call")
def pay_slowly(name: str) -> int:
    """Takes as long as the test wants."""
    enter(name)
    return 1


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


async def _deaf(name: str) -> None:
    opened = OPEN.setdefault(name, threading.Event())
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    while not opened.is_set():
        try:
            await asyncio.wait([never], timeout=0.02)
        except asyncio.CancelledError:
            continue


TOOLS: Final = Toolbox(
    [
        pay_on_a_thread,
        pay_shielded,
        pay_deaf,
        look_deaf,
        look_deaf_limited,
        pay_async,
        pay_promptly,
        pay,
        pay_beside,
        pay_slowly,
    ]
)


class Guard:
    """Counts what the real one would end."""

    made: Guard

    def __init__(self) -> None:
        self.ended = 0
        Guard.made = self

    def end(self) -> None:
        self.ended += 1

    def clear(self) -> None: ...


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    shipment = Shipment(
        toolbox=TOOLS,
        policy=Policy(),
        adapter=None,
        permissions_of=lambda tenant, principal: frozenset(),
        dependencies={},
        groups={"bank": 1},
        application="",
    )

    def shipped(data: bytes) -> Shipment:
        return shipment

    DONE.clear()
    OPEN.clear()
    monkeypatch.setattr(ray_executor, "silence", lambda: None)
    monkeypatch.setattr(ray_executor, "Guard", Guard)
    monkeypatch.setattr(ray_executor, "unpack", shipped)
    monkeypatch.setattr(ray_executor, "OVERDUE_S", 1.0)
    yield
    for opened in OPEN.values():
        opened.set()


def call(name: str, number: int = 1, *, valid_ms: int = VALID_MS, **options: Any) -> WireCall:
    given: dict[str, Any] = {
        "run_id": "r",
        "call": f"c{number}",
        "attempt": 1,
        "epoch": 1,
        "tool": name,
        "definition_sha256": TOOLS[name].definition_sha256,
        "arguments": b'{"name":"n"}',
        "operation_id": "o",
        "tenant": "t",
        "principal": "p",
        "key": "ab",
        "valid_ms": valid_ms,
        "deadline_ns": 0,
        "boot": "",
        "view_bytes_max": 1_000,
        "grant": "g",
    }
    return WireCall(**{**given, **options})


def read(data: object, of: WireCall) -> BatchReply:
    reply = decode_reply(data, (of,))
    assert reply is not None
    return reply


def on_loop(scene: Callable[[AsyncExecutor], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        await scene(AsyncExecutor(b"", "s", "1"))

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(play(), 30))
    finally:
        for opened in OPEN.values():
            opened.set()
        loop.close()


async def within(executor: AsyncExecutor, of: WireCall) -> BatchReply:
    return read(await executor.run(encode_calls([of])), of)


@pytest.mark.parametrize("name", ["pay_on_a_thread", "pay_deaf", "look_deaf_limited"])
def test_what_goes_on_of_a_call_is_told_and_ends_with_the_process(name: str) -> None:
    async def scene(executor: AsyncExecutor) -> None:
        reply = await within(executor, call(name))
        (report,) = reply.reports
        assert report.executed.code == "timeout"
        assert reply.stuck
        assert await asyncio.to_thread(eventually, lambda: Guard.made.ended > 0, 10)

    on_loop(scene)


@pytest.mark.parametrize("name", ["pay_shielded", "pay_promptly"])
def test_a_call_whose_parts_have_ended_ends_nothing(name: str) -> None:
    async def scene(executor: AsyncExecutor) -> None:
        reply = await within(executor, call(name))
        assert reply.reports[0].executed.outcome == "unknown"
        assert not reply.stuck
        assert await executor.confirm(encode_grants(["g"])) == ENDED
        await within(executor, call("look_deaf", 2))  # longer than the first might have gone on
        assert not Guard.made.ended

    on_loop(scene)


def test_a_deaf_read_may_go_on() -> None:
    async def scene(executor: AsyncExecutor) -> None:
        reply = await within(executor, call("look_deaf"))
        assert (reply.reports[0].executed.outcome, reply.stuck) == ("failed", False)
        assert await executor.confirm(encode_grants(["g"])) == ENDED
        assert not Guard.made.ended

    on_loop(scene)


def test_a_lease_that_is_given_up_is_confirmed_once_its_thread_has_ended() -> None:
    async def scene(executor: AsyncExecutor) -> None:
        of = call("pay_on_a_thread", valid_ms=20_000)
        running = asyncio.ensure_future(within(executor, of))
        assert await asyncio.to_thread(eventually, lambda: bool(DONE), 10)
        confirmed = asyncio.ensure_future(executor.confirm(encode_grants(["g"])))
        reply = await running
        assert (reply.reports[0].executed.code, reply.stuck) == ("cancelled", True)
        assert not confirmed.done()
        OPEN["n"].set()
        assert await confirmed == ENDED
        late = await within(executor, call("pay_async", 2))
        assert (late.reports[0].executed.code, late.reports[0].executed.no_effect) == ("place_given_up", True)

    on_loop(scene)


def test_a_lease_whose_thread_goes_on_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "CONFIRM_S", 0.1)

    async def scene(executor: AsyncExecutor) -> None:
        running = asyncio.ensure_future(within(executor, call("pay_on_a_thread", valid_ms=20_000)))
        assert await asyncio.to_thread(eventually, lambda: bool(DONE), 10)
        assert await executor.confirm(encode_grants(["g"])) == b""
        assert (await running).stuck

    on_loop(scene)


def test_a_call_that_comes_twice_runs_once() -> None:
    """R29: whoever delivers may deliver again."""

    async def scene(executor: AsyncExecutor) -> None:
        of = call("pay_async")
        first, again = await within(executor, of), await within(executor, of)
        assert first == again
        slow = call("pay_on_a_thread", 2, valid_ms=20_000)
        running = asyncio.ensure_future(within(executor, slow))
        assert await asyncio.to_thread(eventually, lambda: DONE["n"] == 2, 10)
        twin = await within(executor, slow)
        assert (twin.reports[0].executed.outcome, twin.reports[0].executed.code) == ("unknown", "lost")
        OPEN["n"].set()
        assert (await running).reports[0].executed.outcome == "succeeded"
        assert DONE == {"n": 2}

    on_loop(scene)


def test_only_the_latest_replies_are_kept_and_what_came_before_them_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_ledger, "REPLIES_KEPT", 1)
    executor = SyncExecutor(b"", "s", "1")
    calls = [call("pay", number, valid_ms=20_000) for number in (1, 2)]
    for of in calls:
        executor.run(encode_calls([of]))
    said = [read(executor.run(encode_calls([of])), of).reports[0].executed for of in calls]
    assert [(it.outcome, it.code) for it in said] == [("unknown", "lost"), ("succeeded", "")]
    assert DONE == {"n": 2}


def test_a_repetition_that_comes_too_late_is_not_refused_with_proof() -> None:
    """The first has run: that it is too late for the second proves nothing."""
    executor = SyncExecutor(b"", "s", "1")
    of = call("pay", valid_ms=20_000)
    first = executor.run(encode_calls([of]))
    assert executor.run(encode_calls([msgspec.structs.replace(of, valid_ms=0)])) == first
    assert DONE == {"n": 1}


def test_a_sync_call_that_comes_twice_runs_once() -> None:
    executor = SyncExecutor(b"", "s", "1")
    of = call("pay", valid_ms=20_000)
    first, again = executor.run(encode_calls([of])), executor.run(encode_calls([of]))
    assert first == again
    assert DONE == {"n": 1}
    other = call("pay", 2, valid_ms=20_000)
    assert read(executor.run(encode_calls([other])), other).reports[0].executed.result == b"2"


def test_a_sync_tools_own_thread_is_told_and_ends_with_the_process() -> None:
    executor = SyncExecutor(b"", "s", "1")
    of = call("pay_beside")
    reply = read(executor.run(encode_calls([of])), of)
    assert (reply.reports[0].executed.outcome, reply.stuck) == ("unknown", True)
    assert eventually(lambda: Guard.made.ended > 0, 10)


def test_a_sync_call_that_is_never_reported_ends_its_process_by_itself() -> None:
    """Whoever would end it may be out of reach."""
    executor = SyncExecutor(b"", "s", "1")
    threading.Thread(target=executor.run, args=(encode_calls([call("pay_slowly")]),), daemon=True).start()
    assert eventually(lambda: Guard.made.ended > 0, 10)


def test_a_call_from_another_machine_that_lay_in_a_loop_that_stood_still_is_refused() -> None:
    """R1: its validity counts from its arrival, which the loop has not seen."""

    async def scene(executor: AsyncExecutor) -> None:
        await within(executor, call("pay_async", valid_ms=20_000))
        threading.Event().wait(1.0)  # what a tool that blocks does
        late = await within(executor, call("pay_async", 2, boot="another"))
        assert (late.reports[0].executed.code, late.reports[0].executed.no_effect) == ("expired", True)
        assert DONE == {"n": 1}

    on_loop(scene)
