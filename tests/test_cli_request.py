"""``boundloop request``: what people and programs see of a past request."""

from __future__ import annotations

import json
from typing import Any

from tests.command_line import CommandLine

from boundloop.actors.cli_request import wire_of
from boundloop.actors.client import Runtime
from boundloop.adapters.openai_chat_encode import ChatOptions, encode_request
from boundloop.adapters.script import call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.requests import PastRequest
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import AssistantItem, ModelInput, UserItem
from boundloop.runtime.prices import FREE
from boundloop.runtime.tool_spec import tool


@tool(risk="read")
async def look(at: str) -> dict[str, Any]:
    """Look."""
    return {"at": at, "text": "\x1b[2J" + "x" * 300}


def long_run(cli: CommandLine) -> list[ModelInput]:
    turns = [*[call("look", {"at": f"p{number}"}) for number in range(9)], say("done")]
    model = ScriptedModel(turns, price=FREE, record_max=100)
    with Runtime(store=cli.url, model=model, tools=[look]) as rt:
        limits = Limits(cost="1", context_tokens=1_400, output_tokens_per_request=100)
        assert rt.run_sync("go", limits=limits, run_id="r1").completed
    return list(model.recorded)


def test_a_request_is_shown_as_it_was_sent(cli: CommandLine) -> None:
    sent = long_run(cli)
    assert any(cli("request", "r1", str(asked.turn), "-o", "json").value["compactions"] for asked in sent)
    for asked in sent:
        done = cli("request", "r1", str(asked.turn), "-o", "json")
        assert done.code == 0
        seen = done.value
        assert (seen["intact"], seen["request_sha256"]) == (True, asked.request_sha256.hex())
        assert [tool["name"] for tool in seen["tools"]] == [one.name for one in asked.tools]
        assert len(seen["items"]) == len(asked.items)
        for item, was in zip(seen["items"], asked.items, strict=True):
            if isinstance(was, UserItem):
                assert item["text"] == was.text
            if isinstance(was, AssistantItem):
                assert [one["call_id"] for one in item["calls"]] == [one.call_id for one in was.calls]
    assert "\x1b" not in cli("request", "r1", "3").out


def test_a_request_that_never_was_is_named(cli: CommandLine) -> None:
    long_run(cli)
    assert cli("request", "r1", "99").code == 3
    assert cli("request", "r1", "1", "--attempt", "2").code == 3
    assert cli("request", "nobody", "1").code == 3


def test_wire_bytes_are_those_of_the_adapter_where_the_log_says_how_it_was_set(cli: CommandLine) -> None:
    request = ModelInput(
        run_id="r",
        turn=1,
        attempt=1,
        model="m",
        system="s",
        items=(UserItem("hi"),),
        tools=(),
        output_tokens_max=5,
        request_sha256=bytes(32),
    )
    for options in (
        ChatOptions(),
        ChatOptions(output_limit_field="max_tokens", strict=False, system_role="user"),
    ):
        past = PastRequest(
            seq=2,
            at_ms=1,
            family="openai_chat",
            adapter_revision=options.revision(),
            compactions=0,
            intact=True,
            request=request,
        )
        assert wire_of(past) == encode_request(options, request)
    long_run(cli)
    refused = cli("request", "r1", "1", "--wire", "-o", "json")
    assert json.loads(refused.out)["error"]["code"] == "no_wire"
    assert refused.code == 2
