"""What a Runtime and its start refuse before anything is written, and that both surfaces offer the same."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import pickle
from decimal import Decimal
from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.actors import cli_run
from boundloop.actors.application import Application
from boundloop.actors.client import AsyncRuntime, CommandRefused, Runtime
from boundloop.actors.run_options import ApplicationOptions, StartOptions
from boundloop.actors.waiting import StillRunning
from boundloop.adapters.script import call, held, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.port import RunFilter
from boundloop.runtime import events as e
from boundloop.runtime.commands import Cancel
from boundloop.runtime.errors import BoundloopError, CallerError, MissingLimits, UnknownTool
from boundloop.runtime.goal import Goal
from boundloop.runtime.limits import Limits
from boundloop.runtime.prices import FREE
from boundloop.runtime.stage_spec import Stage, stages_from
from boundloop.runtime.tool_spec import tool
from boundloop.runtime.toolbox import Toolbox

LONE = "\udcff"

WRONG: dict[str, dict[str, Any]] = {
    "on_stop, a capital": {"on_stop": "End"},
    "on_stop, another word": {"on_stop": "ends"},
    "on_stop, no text": {"on_stop": 1},
    "limits, no Limits": {"limits": {"cost": "1"}},
    "limits, a number": {"limits": 5},
    "operation_id": {"operation_id": 7},
    "run_id": {"run_id": b"r1"},
    "agent": {"agent": 7},
    "system, no text": {"system": 7},
    "system, a surrogate": {"system": LONE},
    "system, too long": {"system": "x" * 1_048_577},
    "trace": {"trace": LONE},
    "as_of": {"as_of": LONE},
    "principal": {"principal": LONE},
    "tenant": {"tenant": 7},
    "goal": {"goal": 7},
    "goal, a surrogate": {"goal": LONE},
    "tools, one text": {"tools": "look"},
    "tools, numbers": {"tools": [7]},
    "tools, a number": {"tools": 7},
    "no such option": {"limit": 7},
}


def is_empty(site: Site) -> bool:
    return asyncio.run(site.store.runs(RunFilter())) == []


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG.keys())
def test_an_option_that_is_not_what_it_should_be_is_refused_by_name(
    site: Site, options: dict[str, Any]
) -> None:
    host = site.open([say("done")])
    with pytest.raises(CallerError) as caught:
        host.start(**options)
    assert caught.value.path == next(iter(options))
    assert is_empty(site)


def test_limits_are_required(site: Site) -> None:
    host = site.open([say("done")])
    nothing: dict[str, Any] = {}
    with pytest.raises(MissingLimits):
        host.rt.start("go", **nothing)
    with pytest.raises(UnknownTool):
        host.start(tools=["nobody"])
    assert is_empty(site)


@pytest.mark.parametrize("text", [7, None, b"go", LONE], ids=repr)
def test_an_input_that_is_no_text_is_refused(site: Site, text: Any) -> None:
    host = site.open([say("done")])
    with pytest.raises(CallerError) as caught:
        host.start(text)
    assert caught.value.path == "input"
    assert is_empty(site)


RUNTIMES: dict[str, dict[str, Any]] = {
    "no store": {"store": None},
    "a number for a store": {"store": 7},
    "half a URL": {"store": "memory:"},
    "half a file URL": {"store": "sqlite:runs.db"},
    "permissions, one text": {"permissions": "admin"},
    "permissions, numbers": {"permissions": [1]},
    "permissions, a number": {"permissions": 7},
    "tenant": {"tenant": LONE},
    "principal": {"principal": 7},
    "application": {"application": LONE},
    "model": {"model": 7},
}


@pytest.mark.parametrize("options", RUNTIMES.values(), ids=RUNTIMES.keys())
def test_a_runtime_refuses_what_it_cannot_be_made_of(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {"store": "memory://", **options}
    with pytest.raises(CallerError):
        Runtime(**given)
    assert list(tmp_path.iterdir()) == []


def test_permissions_that_cannot_be_told_start_no_run(site: Site) -> None:
    def permissions_of(tenant: str, principal: str) -> Any:
        return None

    host = site.open([say("done")], permissions=permissions_of)
    with pytest.raises(CallerError, match="permissions"):
        host.start()
    assert is_empty(site)


def test_a_goal_over_a_tool_that_is_not_offered_is_started_and_stops_blocked(site: Site) -> None:
    result = site.open([say("done")]).run(goal=Goal.of("nobody"))
    assert (result.outcome, result.reason) == ("incomplete", "blocked")


# --- commands -----------------------------------------------------------------------------------------------------------


def held_run(site: Site) -> tuple[Any, str]:
    host = site.open([held(say("done"), "slow")])
    run_id = host.start(limits=Limits(cost="0.10", deadline_s=100))
    host.settle()
    return host, run_id


@pytest.mark.parametrize(
    "raised",
    [{"turns": "80"}, {"turns": 80.0}, {"turns": True}, {"turns": None}, {"turns": 2**70}, {"turns": [80]}],
    ids=repr,
)
def test_limits_of_another_type_are_refused_and_the_run_goes_on(site: Site, raised: dict[str, Any]) -> None:
    host, run_id = held_run(site)
    with pytest.raises(CommandRefused) as caught:
        host.rt.raise_limits(run_id, **raised)
    assert caught.value.code in ("command_invalid", "not_higher")
    host.model.gate("slow").open()
    assert host.rest(run_id).completed
    assert site.of(run_id, e.LimitsRaised) == []


@pytest.mark.parametrize(
    "command",
    [
        Cancel(command_id="k1", by=LONE),
        Cancel(command_id="k1", by="x" * 201),
        Cancel(command_id=LONE, by="ann"),
        pickle.loads(pickle.dumps("no command")),
    ],
    ids=lambda command: ascii(command)[:40],
)
def test_a_command_that_is_not_what_its_type_says_is_refused(site: Site, command: Any) -> None:
    host, run_id = held_run(site)
    assert not host.rt.submit(run_id, command).accepted
    host.model.gate("slow").open()
    assert host.rest(run_id).completed
    assert not host.rt.submit(run_id, command).accepted


@pytest.mark.parametrize("reason", [LONE, "x" * 1_001], ids=["surrogate", "long"])
def test_a_reason_that_the_log_could_not_hold_is_refused(site: Site, reason: str) -> None:
    @tool(risk="write", key="call", approval="always")
    async def pay() -> dict[str, Any]:
        """Pay."""
        return {}

    host = site.open([call("pay", {}), say("done")], [pay])
    run_id = host.start()
    (approval,) = host.rest(run_id).approvals
    with pytest.raises(CommandRefused):
        host.rt.approve(run_id, approval.approval_id, by="ann", reason=reason)
    host.rt.approve(run_id, approval.approval_id, by="ann", reason="fine")
    assert host.rest(run_id).completed


def test_cost_and_deadline_are_raised_as_they_are_set(site: Site) -> None:
    host, run_id = held_run(site)
    host.rt.raise_limits(run_id, cost="0.20", deadline_s=200)
    limits = host.state(run_id).limits
    assert (limits.cost_micros, limits.deadline_ms) == (200_000, 200_000)
    host.rt.raise_limits(run_id, cost=Decimal("0.30"))
    assert host.state(run_id).limits.cost_micros == 300_000


@pytest.mark.parametrize(
    "raised",
    [
        {"cost": 0.2},
        {"cost": "much"},
        {"cost": "0.20", "cost_micros": 200_000},
        {"deadline_s": "200"},
        {"deadline_s": 200, "deadline_ms": 200_000},
    ],
    ids=repr,
)
def test_an_amount_that_is_none_is_refused(site: Site, raised: dict[str, Any]) -> None:
    host, run_id = held_run(site)
    with pytest.raises(CallerError):
        host.rt.raise_limits(run_id, **raised)
    assert site.of(run_id, e.LimitsRaised) == []


@pytest.mark.parametrize("wrong", [{"by": LONE}, {"reason": LONE}, {"by": 7}, {"target": LONE}], ids=repr)
def test_a_switch_with_texts_that_the_store_could_not_hold_is_refused(
    site: Site, wrong: dict[str, Any]
) -> None:
    host = site.open([say("done")])
    given: dict[str, Any] = {"target": "pay", "by": "ann", **wrong}
    with pytest.raises(CallerError):
        host.rt.switch("tool", **given, on=True)
    assert asyncio.run(site.store.switches()) == []


# --- waiting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["result", "wait"])
def test_a_wait_that_was_too_short_says_where_the_run_is(name: str) -> None:
    model = ScriptedModel([held(say("done"), "slow")], price=FREE)
    with Runtime(store="memory://", model=model) as rt:
        handle = rt.start("go", limits=Limits(cost="1"))
        assert model.gate("slow").wait_reached(30)
        with pytest.raises(TimeoutError) as caught:
            getattr(handle, name)(0.001)
        error = caught.value
        assert isinstance(error, StillRunning)
        assert (error.path, error.status) == (handle.run_id, "running")
        assert handle.run_id in str(error)
        model.gate("slow").open()
        assert handle.result().completed


def test_a_wait_through_an_approval_names_the_approval() -> None:
    @tool(risk="write", key="call", approval="always")
    async def pay() -> dict[str, Any]:
        """Pay."""
        return {}

    model = ScriptedModel([call("pay", {}), say("done")], price=FREE)
    with Runtime(store="memory://", model=model, tools=[pay]) as rt:
        handle = rt.start("go", limits=Limits(cost="1"))
        (approval,) = handle.result().approvals
        with pytest.raises(StillRunning, match=approval.approval_id) as caught:
            handle.wait(0.001)
        again: BoundloopError = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(again, StillRunning)
        assert str(again) == str(caught.value)
        assert again.waiting_for == f"approval:{approval.approval_id}"


# --- both surfaces ------------------------------------------------------------------------------------------------------


def test_the_coroutine_surface_offers_every_command_with_the_same_parameters() -> None:
    names = ["cancel", "resume", "close_run", "raise_limits", "approve", "reject", "resolve_call", "switch"]
    for name in [*names, "start", "result", "wait", "state", "submit"]:
        sync = inspect.signature(getattr(Runtime, name)).parameters
        assert list(inspect.signature(getattr(AsyncRuntime, name)).parameters.values()) == list(sync.values())


OF_ONE_RUN = {"run_id", "operation_id", "as_of", "trace", "given"}
OF_ONE_HOST = {"take_over", "ray", "name", "clock", "loop"}


def test_an_application_has_every_keyword_of_a_runtime_and_of_start_but_those_it_names() -> None:
    fields = {field.name for field in dataclasses.fields(Application)}
    of_runtime = set(inspect.signature(Runtime.__init__).parameters) - {"self"}
    of_start = set(StartOptions.__annotations__)
    assert of_runtime - fields == OF_ONE_HOST | {"application"}
    assert of_start - fields == OF_ONE_RUN
    assert fields - of_runtime - of_start == {"input", "offered", "reference"}
    about = str(Application.__doc__)
    for name in OF_ONE_HOST | OF_ONE_RUN | {"offered", "reference", "input", "store"}:
        assert f"``{name}``" in about
    assert set(ApplicationOptions.__annotations__) == set(
        Application(model="", limits=Limits(cost="1")).start_options()
    )


def test_the_command_line_gives_what_each_run_has_of_its_own() -> None:
    assert OF_ONE_RUN - {"run_id"} <= {parameter.name for parameter in cli_run.run.params}


def test_an_application_gives_all_it_declares_however_often_it_is_asked(site: Site) -> None:
    """A generator gives its items once: the second run would begin without tools, and nobody would be told."""

    @tool(risk="read", permissions=("looks",))
    def look(n: int) -> int:
        """Look."""
        return n

    stages = (stage for stage in (Stage("one", tools=("look",), leave=(n for n in ["look"])), Stage("two")))
    application = Application(
        model="scripted:none",
        limits=Limits(cost="1"),
        tools=(each for each in [look]),
        stages=stages,
        offered=(name for name in ["look"]),
        hosted=(name for name in ["web_search"]),
        permissions=(name for name in ["looks"]),
    )
    for _ in range(2):
        assert not isinstance(application.tools, Toolbox)
        assert list(Toolbox(application.tools)) == ["look"]
        assert not callable(application.permissions)
        assert tuple(application.permissions) == ("looks",)
        options = application.start_options()
        assert tuple(options.get("tools") or ()) == ("look",)
        assert tuple(options.get("hosted", ())) == ("web_search",)
        one, _ = stages_from(options.get("stages"))
        assert (one.tools, one.leave) == (("look",), Goal.of("look").evidence)


def test_the_coroutine_surface_decides() -> None:
    @tool(risk="write", key="call", approval="always")
    async def pay(n: int) -> dict[str, Any]:
        """Pay."""
        return {"n": n}

    async def main() -> None:
        script = [call("pay", {"n": 1}), call("pay", {"n": 2}), say("done")]
        model = ScriptedModel(script, price=FREE)
        async with Runtime(store="memory://", model=model, tools=[pay]) as rt:
            first = await rt.aio.run("go", limits=Limits(cost="1"))
            run_id = first.run_id
            await rt.aio.raise_limits(run_id, cost="2")
            await rt.aio.approve(run_id, first.approvals[0].approval_id, by="ann")
            second = await rt.aio.result(run_id)
            with pytest.raises(CommandRefused, match="approval_not_found"):
                await rt.aio.approve(run_id, first.approvals[0].approval_id, by="ann")
            await rt.aio.reject(run_id, second.approvals[0].approval_id, by="ann")
            assert (await rt.aio.wait(run_id)).completed
            await rt.aio.switch("global", on=True, by="ann")
            with pytest.raises(CommandRefused, match="run_ended"):
                await rt.aio.cancel(run_id)
            for refused in (rt.aio.resume(run_id), rt.aio.close_run(run_id)):
                with pytest.raises(CommandRefused):
                    await refused
            with pytest.raises(CommandRefused):
                await rt.aio.resolve_call(run_id, "c1.0", by="ann", applied=True)

    asyncio.run(main())
