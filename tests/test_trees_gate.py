"""What an agent says of itself holds however it is called: alone, or as one of several of a ``spawn``."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stepped_runtime import Site
from tests.tree_play import Play, child_runs

from boundloop.adapters import ScriptedTurn, call, calls, say
from boundloop.runtime import Limits, ToolSpec, agent, spawn, tool
from boundloop.runtime import events as e
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.model import ModelInput
from boundloop.runtime.toolbox import Toolbox


@tool(risk="read")
def search(query: str) -> dict[str, Any]:
    "Search."
    return {"found": query}


careful = agent(name="careful", description="Careful.", system="careful", approval="always")
secretive = agent(name="secretive", description="Secret.", system="secretive", permissions=("finance",))
writer = agent(name="writer", description="Writes.", system="writer")
PARTS = {name: [say(f"{name} ran")] for name in ("careful", "secretive", "writer")}


def asks_for(name: str) -> Play:
    """A root that asks for one agent of a spawn, and then ends."""
    return Play({"": [call("spawn", {"agent": name, "input": "x"}), say("done")], **PARTS})


def test_an_agent_of_several_asks_a_person_as_it_says(site: Site) -> None:
    host = site.open(asks_for("careful").model, [spawn([careful, writer])])
    result = host.run()
    assert result.status == "waiting"
    assert not child_runs(site, result.run_id)
    host.rt.approve(result.run_id, result.approvals[0].approval_id, by="boss")
    assert host.rest(result.run_id).outcome == "completed"
    assert len(child_runs(site, result.run_id)) == 1


def test_the_agents_beside_it_ask_nobody(site: Site) -> None:
    host = site.open(asks_for("writer").model, [spawn([careful, writer])])
    result = host.run()
    assert (result.outcome, len(child_runs(site, result.run_id))) == ("completed", 1)


def test_what_is_said_of_all_agents_holds_for_each(site: Site) -> None:
    host = site.open(asks_for("writer").model, [spawn([writer], approval="always")])
    assert host.run().status == "waiting"


@pytest.mark.parametrize("permitted", [(), ("finance",)])
def test_an_agent_of_several_needs_its_permissions(permitted: tuple[str, ...], site: Site) -> None:
    host = site.open(asks_for("secretive").model, [spawn([secretive, writer])], permissions=permitted)
    result = host.run()
    assert len(child_runs(site, result.run_id)) == len(permitted)
    refused = [(event.rung, event.code) for event in site.of(result.run_id, e.CallRejected)]
    assert refused == ([] if permitted else [("authorisation", "not_permitted")])


def test_who_may_use_none_of_the_agents_is_not_offered_them() -> None:
    toolbox = Toolbox([spawn([secretive])])
    assert toolbox.offered(frozenset()) == ()
    assert [one.name for one in toolbox.offered(frozenset({"finance"}))] == ["spawn"]
    assert [one.name for one in Toolbox([spawn([secretive, writer])]).offered(frozenset())] == ["spawn"]


def test_permissions_that_were_taken_away_count_for_an_agent_of_several(site: Site) -> None:
    granted = {"finance"}

    def permissions_of(tenant: str, principal: str) -> frozenset[str]:
        return frozenset(granted)

    def taken_away(_: ModelInput) -> ScriptedTurn:
        granted.clear()
        return calls(call("spawn", {"agent": "secretive", "input": "y"}))

    play = Play(
        {
            "": [
                call("spawn", {"agent": "secretive", "input": "x"}),
                taken_away,
                say("done"),
            ],
            **PARTS,
        }
    )
    host = site.open(play.model, [spawn([secretive])], permissions=permissions_of)
    result = host.run()
    assert (result.outcome, len(child_runs(site, result.run_id))) == ("completed", 1)


def test_a_kill_switch_by_the_agents_own_name_holds(site: Site) -> None:
    play = Play(
        {
            "": [
                calls(*(call("spawn", {"agent": name, "input": "x"}) for name in ("careful", "writer"))),
                say("done"),
            ],
            **PARTS,
        }
    )
    host = site.open(play.model, [spawn([careful, writer])])
    host.rt.switch("tool", "careful", on=True, by="ops")
    result = host.run()
    assert result.outcome == "completed"
    (refused,) = site.of(result.run_id, e.CallRejected)
    assert (refused.call, refused.rung, refused.code) == ("c1.0", "switch", "kill_switch_tool")
    assert len(child_runs(site, result.run_id)) == 1


def test_what_became_stricter_in_a_deploy_holds_for_an_agent_of_several(site: Site) -> None:
    def tools(*, strict: bool) -> list[Any]:
        approval: Any = "always" if strict else "policy"
        return [spawn([agent(name="writer", description="Writes.", system="writer", approval=approval)])]

    host = site.open(asks_for("writer").model, tools(strict=False))
    host.line.cut_at(lambda events: isinstance(events[0], e.ModelResponded), before=True)
    run_id = host.start()
    host.settle()
    host.line.bury()
    host.crash()
    again = site.after_crash(host, tools(strict=True))
    again.settle()
    assert again.rest(run_id).status == "waiting"


def test_parameters_of_its_own_have_no_place_in_a_spawn() -> None:
    params = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}
    own = agent(name="own", description="Own.", params=params)
    with pytest.raises(DeclarationError) as refused:
        spawn([writer, own])
    assert (refused.value.code, refused.value.path) == ("spawn_params", "own")


def by_agents_own_argument() -> ToolSpec:
    params = {
        "type": "object",
        "properties": {"agent": {"type": "string"}, "input": {"type": "string"}},
        "required": ["agent", "input"],
    }
    return agent(name="writer", description="Writes.", system="writer", params=params)


def test_an_argument_named_agent_of_an_agents_own_reaches_it(site: Site) -> None:
    play = Play({"": [call("writer", {"agent": "007", "input": "x"}), say("done")], **PARTS})
    host = site.open(play.model, [by_agents_own_argument()])
    result = host.run(limits=Limits(cost="1"))
    (child,) = child_runs(site, result.run_id)
    (started,) = site.of(child, e.RunStarted)
    assert started.input == '{"agent":"007","input":"x"}'
