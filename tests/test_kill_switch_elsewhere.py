"""A kill switch that another shell turns stops a run in full flight: what is dispatched after the command line has
answered has seen it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.stepped_runtime import Site
from tests.test_other_shell import boundloop

from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, held, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.location import connect_store
from boundloop.eventstore.port import Switch
from boundloop.runtime.limits import Limits
from boundloop.runtime.prices import FREE
from boundloop.runtime.redaction import Redaction
from boundloop.runtime.tool_spec import tool


class Bank:
    def __init__(self) -> None:
        self.paid: list[int] = []

    def tool(self) -> Any:
        @tool(risk="write", key=("n",), far_side="keyed")
        async def pay(n: int) -> dict[str, int]:
            """Pay."""
            self.paid.append(n)
            return {"n": n}

        return pay


def paying() -> ScriptedModel:
    """One payment, then more of them once the gate "go on" is open."""
    turns = [call("pay", {"n": n}) for n in range(1, 20)]
    return ScriptedModel([turns[0], held(turns[1], "go on"), *turns[2:], say("done")], price=FREE)


@pytest.mark.parametrize("scope", [("global",), ("tool", "pay"), ("tenant", "default")], ids=" ".join)
def test_the_command_line_stops_a_run_in_flight(tmp_path: Path, scope: tuple[str, ...]) -> None:
    bank, model = Bank(), paying()
    path = tmp_path / "runs.db"
    with Runtime(store=f"sqlite:///{path}", model=model, tools=[bank.tool()]) as rt:
        handle = rt.start("go", limits=Limits(cost="1", turns=30, denials=3))
        assert model.gate("go on").wait_reached(30)
        done = boundloop(path, "switch", "on", *scope, "--reason", "stop")
        assert done.returncode == 0, done.stderr
        model.gate("go on").open()
        result = handle.result()
        assert bank.paid == [1]
        if scope[0] != "tool":
            assert (result.outcome, result.reason) == ("cancelled", "kill_switch")


def test_the_reason_of_a_switch_turned_elsewhere_is_redacted_by_the_owner(tmp_path: Path) -> None:
    """The command line knows no redaction; what it asks for enters the store in the owner's process."""
    path = tmp_path / "runs.db"
    redact = Redaction(values={"api_key": "sk-live-CANARY-4242"})
    with Runtime(store=f"sqlite:///{path}", model=ScriptedModel([], price=FREE), redact=redact):
        done = boundloop(path, "switch", "on", "global", "--reason", "leaked sk-live-CANARY-4242")
        assert done.returncode == 0, done.stderr
        listed = boundloop(path, "switch", "list", "-o", "json").stdout
        assert "leaked [redacted:api_key]" in listed
    assert b"CANARY" not in b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())


def test_a_switch_turned_off_elsewhere_lets_effects_through_again(tmp_path: Path) -> None:
    bank, model = Bank(), paying()
    path = tmp_path / "runs.db"
    with Runtime(store=f"sqlite:///{path}", model=model, tools=[bank.tool()]) as rt:
        rt.switch("tool", "pay", on=True, by="ann")
        handle = rt.start("go", limits=Limits(cost="1", turns=30))
        assert model.gate("go on").wait_reached(30)
        assert bank.paid == []
        assert boundloop(path, "switch", "off", "tool", "pay").returncode == 0
        model.gate("go on").open()
        assert handle.result().completed
        assert bank.paid == list(range(2, 20))


def test_a_switch_that_came_over_the_socket_is_known_when_the_socket_answers(tmp_path: Path) -> None:
    bank, model = Bank(), paying()
    url = f"sqlite:///{tmp_path / 'runs.db'}"

    async def turn_on() -> None:
        store = await connect_store(url)
        try:
            await store.set_switch(
                Switch(scope="global", target="", by="ann", reason="", at_ms=store.now_ms()), on=True
            )
        finally:
            await store.close()

    with Runtime(store=url, model=model, tools=[bank.tool()]) as rt:
        handle = rt.start("go", limits=Limits(cost="1", turns=30))
        assert model.gate("go on").wait_reached(30)
        asyncio.run(turn_on())
        model.gate("go on").open()
        result = handle.result()
        assert (result.outcome, result.reason) == ("cancelled", "kill_switch")
        assert bank.paid == [1]


def test_a_switch_that_another_host_of_the_store_turned_is_seen(site: Site) -> None:
    bank, model = Bank(), paying()
    host = site.open(model, [bank.tool()])
    other = site.open([])
    run_id = host.start()
    host.settle()
    other.rt.switch("global", on=True, by="ann")
    model.gate("go on").open()
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == ("cancelled", "kill_switch")
    assert bank.paid == [1]
