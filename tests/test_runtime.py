"""The surface that applications hold: starting, waiting, commands, closing, from scripts, tools and running loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.actors.client import CommandRefused, Runtime
from boundloop.adapters.script import ScriptedTurn, attempts, call, failed, held, say
from boundloop.adapters.scripted import Gate, ScriptedModel
from boundloop.runtime import events as e
from boundloop.runtime.errors import (
    CallerError,
    ConflictError,
    DeclarationError,
    DuplicateTool,
    MissingLimits,
    RunNotFound,
    StoreError,
    StoreUrlError,
    UnknownTool,
)
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.model import ModelInput, UserItem
from boundloop.runtime.prices import Price, PriceTable
from boundloop.runtime.tool_spec import tool

STUCK_S = 30.0
ONE = Limits(cost="1")


@tool(risk="read")
async def look(at: str) -> dict[str, Any]:
    """Look at something."""
    return {"at": at}


@tool(risk="irreversible", key=("order",), far_side="keyed")
async def refund(order: str) -> dict[str, Any]:
    """Refund an order; a person is asked."""
    return {"refunded": order}


def memory(*turns: Any, tools: Any = (look, refund), **options: Any) -> Runtime:
    return Runtime(store="memory://", model=ScriptedModel(turns), tools=tools, **options)


# --- start and results -----------------------------------------------------------------------------------------------


def test_the_smallest_program() -> None:
    with memory(call("look", {"at": "a"}), say("seen")) as rt:
        result = rt.run_sync("look", limits=ONE)
    assert (result.outcome, result.reason, result.text) == ("completed", "final", "seen")
    assert (result.status, result.resumable, result.spent["tool_calls"]) == ("ended", False, 1)


def test_a_started_run_goes_on_by_itself_and_its_handle_waits_for_it() -> None:
    model = ScriptedModel([held(say("seen"), "gate")])
    with Runtime(store="memory://", model=model) as rt:
        handle = rt.start("look", limits=ONE, run_id="mine")
        assert handle.run_id == "mine"
        assert rt.state("mine").phase == "model_requested"
        model.gate("gate").open()
        assert handle.result(STUCK_S).text == "seen"
        assert handle.wait(STUCK_S).text == "seen"


def test_a_time_out_of_the_caller_leaves_the_run_alone() -> None:
    model = ScriptedModel([held(say("seen"), "gate")])
    with Runtime(store="memory://", model=model) as rt:
        handle = rt.start("look", limits=ONE)
        with pytest.raises(TimeoutError):
            handle.result(0.0)
        model.gate("gate").open()
        assert handle.result(STUCK_S).completed


def test_result_returns_at_a_wait_and_wait_goes_through_it() -> None:
    with memory(call("refund", {"order": "1"}), say("done")) as rt:
        result = rt.run_sync("refund", limits=ONE)
        assert (result.status, result.outcome) == ("waiting", "")
        with pytest.raises(TimeoutError):
            rt.wait(result.run_id, 0.0)
        rt.approve(result.run_id, result.approvals[0].approval_id, by="bob")
        assert rt.wait(result.run_id, STUCK_S).completed


def test_the_run_is_offered_the_named_subset_of_tools_that_its_principal_may_use() -> None:
    @tool(risk="read", permissions=("audit",))
    async def audit() -> dict[str, Any]:
        """Look at the books."""
        return {}

    granted = {"ann": frozenset({"audit"}), "bob": frozenset[str]()}
    model = ScriptedModel(lambda request: say(",".join(item.name for item in request.tools)))
    with Runtime(
        store="memory://",
        model=model,
        tools=[look, refund, audit],
        permissions=lambda tenant, principal: granted[principal],
    ) as rt:
        assert rt.run_sync("?", limits=ONE, principal="ann").text == "look,refund,audit"
        assert rt.run_sync("?", limits=ONE, principal="bob").text == "look,refund"
        assert rt.run_sync("?", limits=ONE, principal="ann", tools=["audit", "look"]).text == "look,audit"


# --- what is refused before anything is written ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "path"),
    [
        ({}, MissingLimits, "limits"),
        ({"limits": ONE, "tools": ["look", "lok"]}, UnknownTool, "lok"),
        ({"limits": ONE, "run_id": "x" * 201}, DeclarationError, "run_id"),
        ({"limits": ONE, "run_id": "a\nb"}, DeclarationError, "run_id"),
        ({"limits": ONE, "tenant": "\x1b[0m"}, DeclarationError, "tenant"),
    ],
)
def test_a_start_that_says_too_little_or_nonsense_writes_nothing(
    site: Site, options: dict[str, Any], error: type[Exception], path: str
) -> None:
    host = site.open([say("hi")], [look])
    with pytest.raises(error) as refused:
        host.rt.start("go", **options)
    assert getattr(refused.value, "path", None) == path
    assert host.model.requests == 0


def test_an_input_that_cannot_be_stored_is_refused_at_the_start() -> None:
    with memory(say("hi")) as rt:
        for text, code in (("\ud800", "input_encoding"), ("x" * 1_048_577, "input_size")):
            with pytest.raises(DeclarationError) as refused:
                rt.start(text, limits=ONE)
            assert refused.value.code == code


def test_a_run_id_is_used_once() -> None:
    with memory(say("hi")) as rt:
        assert rt.run_sync("go", limits=ONE, run_id="mine").completed
        with pytest.raises(ConflictError) as refused:
            rt.start("go", limits=ONE, run_id="mine")
        assert refused.value.code == "run_exists"


def test_of_starts_at_once_under_one_run_id_one_is_made_and_the_others_are_told() -> None:
    model = ScriptedModel([held(say("hi"), "gate")])
    with Runtime(store="memory://", model=model) as rt:

        async def start_all() -> list[Any]:
            starts = (rt.aio.start("go", limits=ONE, run_id="mine") for _ in range(10))
            return await asyncio.gather(*starts, return_exceptions=True)

        answers = asyncio.run(start_all())
        assert sum(not isinstance(answer, Exception) for answer in answers) == 1
        assert {type(answer) for answer in answers if isinstance(answer, Exception)} == {ConflictError}
        model.gate("gate").open()
        assert rt.result("mine", STUCK_S).completed
    assert model.requests == 1


def test_a_cost_limit_needs_a_known_price() -> None:
    table = PriceTable(revision="2026-01", entries={"other": Price(input=1, output=1)})
    for price, limits in ((None, ONE), (None, Limits(cost=0))):
        model = ScriptedModel([say("hi")], price=price)
        with Runtime(store="memory://", model=model, prices=table) as rt:
            with pytest.raises(DeclarationError) as refused:
                rt.start("go", limits=limits)
            assert refused.value.code == "price_unknown"
            assert rt.run_sync("go", limits=Limits(cost=WAIVED)).completed


def test_a_cost_limit_is_kept_with_the_tables_price(site: Site) -> None:
    table = PriceTable(revision="2026-01", entries={"scripted-1": Price(input=1_000_000, output=1_000_000)})
    model = ScriptedModel(lambda request: call("look", {"at": str(request.turn)}), price=None)
    host = site.open(model, [look], prices=table)
    result = host.run(limits=Limits(cost=2_000, output_tokens_per_request=100))
    assert (result.outcome, result.reason) == ("incomplete", "budget_cost")
    assert 0 < result.spent["cost_micros"] <= 2_000


@pytest.mark.parametrize(
    "url", ["", "runs.db", "sqlite://runs.db", "postgres://x", "memory://x", "sqlite:///", "sqlite:///a?b=1"]
)
def test_a_wrong_store_url_is_the_callers_mistake(url: str) -> None:
    with pytest.raises(StoreUrlError):
        Runtime(store=url, model=ScriptedModel([]))


def test_two_tools_of_one_name_are_refused_when_the_runtime_is_made() -> None:
    with pytest.raises(DuplicateTool):
        memory(tools=[look, look])


def test_a_runtime_without_a_model_serves_commands_and_starts_nothing(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    script = [call("refund", {"order": "1"}), say("done")]
    with Runtime(store=store, model=ScriptedModel(script), tools=[refund]) as rt:
        waiting = rt.run_sync("go", limits=ONE)
    with Runtime(store=store) as rt:
        with pytest.raises(DeclarationError):
            rt.start("go", limits=ONE)
        rt.approve(waiting.run_id, waiting.approvals[0].approval_id, by="bob")
    with Runtime(store=store, model=ScriptedModel(script), tools=[refund]) as rt:
        assert rt.wait(waiting.run_id, STUCK_S).completed


def test_a_run_that_does_not_exist_is_not_found() -> None:
    with memory(say("hi")) as rt:
        for act in (rt.result, rt.wait, rt.state, rt.cancel, rt.resume, rt.close_run):
            with pytest.raises(RunNotFound):
                act("no such run")


# --- commands ----------------------------------------------------------------------------------------------------------


def test_cancel_ends_a_run_that_waits_for_its_model(site: Site) -> None:
    host = site.open([held(say("late"), "gate")])
    run_id = host.start()
    host.rt.cancel(run_id)
    result = host.rest(run_id)
    assert (result.outcome, result.reason, result.status) == ("cancelled", "by_user", "ended")
    with pytest.raises(CommandRefused) as refused:
        host.rt.cancel(run_id)
    assert refused.value.code == "run_ended"


def test_a_stop_is_lifted_by_what_it_asks_for_and_by_nothing_less(site: Site) -> None:
    host = site.open([call("look", {"at": "a"}), say("done")], [look])
    stopped = host.run(limits=Limits(cost="1", turns=1))
    assert (stopped.reason, stopped.resumable) == ("max_turns", True)
    with pytest.raises(CommandRefused):
        host.rt.resume(stopped.run_id)
    refused: list[dict[str, Any]] = [{"turns": 1}, {"nonsense": 5}, {"depth": 9}, {}]
    for raised in refused:
        with pytest.raises(CommandRefused):
            host.rt.raise_limits(stopped.run_id, **raised)
    host.rt.raise_limits(stopped.run_id, turns=2)
    host.rt.resume(stopped.run_id)
    assert host.rest(stopped.run_id).completed


def test_a_stopped_run_is_closed_as_it_stopped(site: Site) -> None:
    host = site.open([call("look", {"at": "a"})], [look])
    stopped = host.run(limits=Limits(cost="1", turns=1))
    host.rt.close_run(stopped.run_id)
    ended = host.rest(stopped.run_id)
    assert (ended.status, ended.outcome, ended.reason) == ("ended", "incomplete", "max_turns")
    with pytest.raises(CommandRefused):
        host.rt.resume(stopped.run_id)


def test_a_run_that_may_not_be_stopped_ends_instead(site: Site) -> None:
    host = site.open([call("look", {"at": "a"})], [look])
    result = host.run(limits=Limits(cost="1", turns=1), on_stop="end")
    assert (result.status, result.reason) == ("ended", "max_turns")


def test_a_reject_goes_back_to_the_model_and_a_reject_that_stops_ends_the_run(site: Site) -> None:
    script = [call("refund", {"order": "1"}), say("was refused")]
    host = site.open(script, [refund])
    first = host.run(operation_id="a")
    host.rt.reject(first.run_id, first.approvals[0].approval_id, by="bob", reason="no")
    assert host.rest(first.run_id).text == "was refused"
    second = host.run(operation_id="b")
    host.rt.reject(second.run_id, second.approvals[0].approval_id, by="bob", stop=True)
    ended = host.rest(second.run_id)
    assert (ended.outcome, ended.reason) == ("failed", "approval_denied")


@pytest.mark.parametrize("applied", [True, False])
def test_a_person_settles_an_unknown_effect(site: Site, applied: bool) -> None:
    ran: list[str] = []

    @tool(risk="write", key=("order",), max_attempts=3)
    async def pay(order: str) -> dict[str, Any]:
        """Pay; the far side offers nothing."""
        ran.append(order)
        if len(ran) == 1:
            raise ConnectionResetError
        return {"paid": order}

    host = site.open([call("pay", {"order": "1"}), say("done")], [pay])
    stopped = host.run()
    assert (stopped.reason, stopped.unknown_effects) == ("outcome_unknown", ("c1.0",))
    with pytest.raises(CommandRefused):
        host.rt.resume(stopped.run_id)
    with pytest.raises(CommandRefused):
        host.rt.resolve_call(stopped.run_id, "c1.0", by="bob", applied=True, result="{not json")
    host.rt.resolve_call(stopped.run_id, "c1.0", by="bob", applied=applied, result='{"paid":"1"}')
    assert host.rest(stopped.run_id).completed
    assert len(ran) == (1 if applied else 2)


@pytest.mark.parametrize("scope", [("all", ""), ("global", "x"), ("tool", ""), ("tenant", "")])
def test_a_switch_needs_a_scope_that_exists(scope: tuple[str, str]) -> None:
    with memory(say("hi")) as rt, pytest.raises(DeclarationError):
        rt.switch(*scope, on=True, by="ops")


# --- loops and threads -------------------------------------------------------------------------------------------------


def test_coroutines_use_aio_on_their_own_running_loop() -> None:
    async def main() -> None:
        async with memory(call("look", {"at": "a"}), say("seen")) as rt:
            result = await rt.aio.run("look", limits=ONE)
            assert result.text == "seen"
            handle = await rt.aio.start("look", limits=ONE)
            assert (await rt.aio.result(handle.run_id, STUCK_S)).completed
            assert (await rt.aio.wait(handle.run_id, STUCK_S)).completed
            with pytest.raises(RunNotFound):
                await rt.aio.result("no such run")

    asyncio.run(main())


def test_sync_methods_work_inside_a_running_loop_as_in_a_notebook() -> None:
    async def cell() -> str:
        with memory(call("look", {"at": "a"}), say("seen")) as rt:
            return rt.run_sync("look", limits=ONE).text

    assert asyncio.run(cell()) == "seen"


def test_fifty_runs_at_once_from_one_loop() -> None:
    model = ScriptedModel(lambda request: call("look", {"at": "a"}) if request.turn == 1 else say("seen"))
    with Runtime(store="memory://", model=model, tools=[look]) as rt:

        async def run_all() -> list[Any]:
            return await asyncio.gather(*(rt.aio.run("look", limits=ONE) for _ in range(50)))

        assert {result.text for result in asyncio.run(run_all())} == {"seen"}


def test_two_runtimes_in_one_process_on_two_files_share_nothing(tmp_path: Path) -> None:
    script = [call("refund", {"order": "1"}), say("done")]
    urls = [f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db")]
    with (
        Runtime(store=urls[0], model=ScriptedModel(script), tools=[refund]) as first,
        Runtime(store=urls[1], model=ScriptedModel(script), tools=[refund]) as second,
    ):
        one = first.run_sync("go", limits=ONE, run_id="r", operation_id="o")
        two = second.run_sync("go", limits=ONE, run_id="r", operation_id="o")
        first.approve("r", one.approvals[0].approval_id, by="bob")
        assert first.wait("r", STUCK_S).completed
        assert second.result("r", STUCK_S).status == "waiting"
        second.reject("r", two.approvals[0].approval_id, by="bob")
        assert second.wait("r", STUCK_S).completed


def test_a_sync_call_from_the_runtimes_own_loop_is_refused_and_not_a_deadlock() -> None:
    refusals: list[CallerError] = []

    @tool(risk="read")
    async def meddle() -> dict[str, Any]:
        """Call back into the runtime."""
        for act in (
            lambda: rt.run_sync("go", limits=ONE),
            lambda: rt.cancel("x"),
            lambda: rt.close(),
        ):
            try:
                act()
            except CallerError as error:
                refusals.append(error)
        return {}

    rt = memory(call("meddle"), say("done"), tools=[meddle])
    with rt:
        assert rt.run_sync("go", limits=ONE).completed
    assert [error.code for error in refusals] == ["own_loop"] * 3


def test_a_sync_tool_may_start_and_await_another_run() -> None:
    @tool(risk="read")
    def ask_other() -> dict[str, Any]:
        """Ask another run."""
        return {"said": rt.run_sync("inner", limits=ONE).text}

    def answer(request: ModelInput) -> ScriptedTurn:
        inner = request.items[0] == UserItem("inner")
        return say("done") if inner or request.turn == 2 else call("ask_other")

    model = ScriptedModel(answer)
    rt = Runtime(store="memory://", model=model, tools=[ask_other])
    with rt:
        assert rt.run_sync("outer", limits=ONE).completed


# --- the end -----------------------------------------------------------------------------------------------------------


def test_after_close_every_call_says_closed() -> None:
    rt = memory(say("hi"))
    rt.close()
    rt.close()
    acts: list[Callable[[], Any]] = [
        lambda: rt.start("go", limits=ONE),
        lambda: rt.run_sync("go", limits=ONE),
        lambda: rt.result("r"),
        lambda: rt.wait("r"),
        lambda: rt.state("r"),
        lambda: rt.cancel("r"),
        lambda: rt.approve("r", "ap", by="bob"),
        lambda: rt.switch("global", on=True, by="ops"),
        lambda: asyncio.run(rt.aio.run("go", limits=ONE)),
        lambda: asyncio.run(rt.aio.start("go", limits=ONE)),
        lambda: asyncio.run(rt.aio.result("r")),
        lambda: asyncio.run(rt.aio.wait("r")),
    ]
    for act in acts:
        with pytest.raises(StoreError) as refused:
            act()
        assert refused.value.code == "closed"
    asyncio.run(rt.aio.close())


def test_closing_wakes_whoever_waits_and_leaves_the_run_for_the_next_runtime(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    model = ScriptedModel([held(say("seen"), "gate")])
    rt = Runtime(store=store, model=model)
    handle = rt.start("go", limits=ONE)
    told: list[StoreError] = []

    def wait() -> None:
        try:
            handle.result()
        except StoreError as error:
            told.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert model.gate("gate").wait_reached(STUCK_S)
    rt.close()
    waiter.join(STUCK_S)
    assert [error.code for error in told] == ["closed"]
    with Runtime(store=store, model=ScriptedModel([say("seen")])) as again:
        assert again.result(handle.run_id, STUCK_S).text == "seen"


def test_closing_while_an_async_tool_runs_does_not_wait_for_it(tmp_path: Path) -> None:
    gate = Gate("far side")
    ended = threading.Event()

    @tool(risk="read", timeout_ms=600_000)
    async def wait() -> dict[str, Any]:
        """Wait for ever."""
        try:
            await gate.passed()
        finally:
            ended.set()
        return {}

    rt = memory(call("wait"), tools=[wait])
    rt.start("go", limits=ONE)
    assert gate.wait_reached(STUCK_S)
    rt.close()
    assert ended.is_set()


def test_a_store_of_the_application_stays_open(site: Site) -> None:
    first = site.open([call("refund", {"order": "1"}), say("done")], [refund])
    waiting = first.run()
    first.close()
    second = site.open(first.model, [refund])
    second.rt.approve(waiting.run_id, waiting.approvals[0].approval_id, by="bob")
    assert second.rest(waiting.run_id).completed


def test_watchers_hear_of_committed_events_in_order(site: Site) -> None:
    host = site.open([call("look", {"at": "a"}), say("seen")], [look])
    heard: list[tuple[int, str]] = []

    def watch(run_id: str, state: Any, events: tuple[e.AnyEvent, ...], first_seq: int) -> None:
        heard.extend((first_seq + place, type(event).__name__) for place, event in enumerate(events))

    host.rt.watch(watch)
    result = host.run()
    written = [(seq, type(event).__name__) for seq, event in enumerate(site.events(result.run_id), 1)]
    assert heard == written


def test_a_resumed_run_does_not_repeat_what_its_model_was_asked(site: Site) -> None:
    host = site.open([attempts(failed(retryable=False), say("seen"))])
    stopped = host.run()
    assert (stopped.outcome, stopped.reason, stopped.resumable) == ("failed", "model_failed", True)
    host.rt.resume(stopped.run_id)
    assert host.rest(stopped.run_id).text == "seen"
    assert host.model.requests == 2
