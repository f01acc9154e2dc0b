"""Messages of people through the real Runtime: hosted, parked, stopped, after a crash, from another shell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.command_line import CommandLine
from tests.stepped_runtime import Site, Stepped, has
from tests.written_runs import WrittenRun, asking, finished

from boundloop.actors.client import CommandRefused, Runtime
from boundloop.adapters.script import call, held, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.history import load_run
from boundloop.eventstore.port import EventStore
from boundloop.runtime import events as e
from boundloop.runtime.commands import MESSAGE_BYTES_MAX, Send
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import UserItem
from boundloop.runtime.tool_spec import tool


@tool(risk="irreversible", key=("order",), far_side="keyed")
async def refund(order: str) -> dict[str, Any]:
    """Refund an order; a person is asked."""
    return {"refunded": order}


def heard(host: Stepped) -> list[list[str]]:
    """What people had said by each request."""
    return [
        [item.text for item in request.items if isinstance(item, UserItem)] for request in host.model.recorded
    ]


def test_a_message_while_the_model_answers_is_answered_in_one_more_turn(site: Site) -> None:
    host = site.open([held(say("done"), "door"), say("done, in blue")])
    run_id = host.start("paint it")
    host.settle()
    host.rt.send(run_id, "in blue, please")
    host.model.gate("door").open()
    result = host.rest(run_id)
    assert (result.outcome, result.text) == ("completed", "done, in blue")
    assert heard(host) == [["paint it"], ["paint it", "in blue, please"]]


def test_a_message_to_a_parked_run_is_in_the_request_after_the_approval(site: Site) -> None:
    host = site.open([call("refund", {"order": "1"}), say("ok")], [refund])
    waiting = host.run("go")
    host.rt.send(waiting.run_id, "and tell me its number")
    still = host.rest(waiting.run_id)
    assert (still.status, still.approvals) == ("waiting", waiting.approvals)
    host.rt.approve(waiting.run_id, waiting.approvals[0].approval_id, by="boss")
    assert host.rest(waiting.run_id).completed
    assert heard(host)[-1] == ["go", "and tell me its number"]


def test_a_stopped_run_keeps_a_message_until_it_is_resumed(site: Site) -> None:
    host = site.open([call("refund", {"order": "1"}), say("ok")], [refund])
    waiting = host.run("go", limits=Limits(cost="1", turns=1))
    host.rt.reject(waiting.run_id, waiting.approvals[0].approval_id, by="boss")
    assert host.rest(waiting.run_id).reason == "max_turns"
    host.rt.send(waiting.run_id, "leave it")
    assert host.rest(waiting.run_id).status == "stopped"
    host.rt.raise_limits(waiting.run_id, turns=2)
    host.rt.resume(waiting.run_id)
    assert host.rest(waiting.run_id).completed
    assert heard(host)[-1] == ["go", "leave it"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_host_that_dies_at_the_append_of_a_message_loses_it_only_unacknowledged(
    site: Site, before: bool
) -> None:
    first = site.open([held(say("done"), "door"), say("heard")])
    run_id = first.start("go")
    first.settle()
    first.line.cut_at(has(e.MessageReceived), before=before)
    command = Send(command_id="once", by="ann", text="wait")
    pending = asyncio.run_coroutine_threadsafe(first.rt.aio.submit(run_id, command), first.loop)
    first.settle()
    assert not pending.done()
    first.crash()
    second = site.after_crash(first, [])
    assert second.rt.submit(run_id, command).accepted
    first.model.gate("door").open()  # now: else the run may have ended by the time that it is told again
    assert second.rest(run_id).completed
    [message] = site.of(run_id, e.MessageReceived)
    assert (message.text, message.by) == ("wait", "ann")
    assert ["go", "wait"] in heard(second)


def test_an_id_used_again_for_another_message_is_refused(site: Site) -> None:
    host = site.open([call("refund", {"order": "1"}), say("ok")], [refund])
    run_id = host.run("go").run_id
    assert host.rt.submit(run_id, Send(command_id="k", by="ann", text="one")).accepted
    again = host.rt.submit(run_id, Send(command_id="k", by="ann", text="one"))
    other = host.rt.submit(run_id, Send(command_id="k", by="ann", text="two"))
    assert (again.accepted, other.code) == (True, "command_id_reused")
    assert len(site.of(run_id, e.MessageReceived)) == 1


def test_what_is_no_message_is_refused_before_it_travels(site: Site) -> None:
    host = site.open([call("refund", {"order": "1"}), say("ok")], [refund])
    run_id = host.run("go").run_id
    for text in ("x" * (MESSAGE_BYTES_MAX + 1), "\udcff"):
        with pytest.raises(DeclarationError):
            host.rt.send(run_id, text)
    with pytest.raises(CommandRefused, match="message_empty"):
        host.rt.send(run_id, " ")
    host.rt.cancel(run_id)
    host.rest(run_id)
    with pytest.raises(CommandRefused, match="run_ended"):
        host.rt.send(run_id, "late")


def test_the_coroutine_surface_sends_too() -> None:
    async def work(rt: Runtime) -> int:
        handle = await rt.aio.start("go", limits=Limits(cost="1"))
        await rt.aio.result(handle)
        return await rt.aio.send(handle, "hello", by="ann")

    model = ScriptedModel([call("refund", {"order": "1"})])
    with Runtime(store="memory://", model=model, tools=[refund]) as rt:
        assert asyncio.run(work(rt)) > 0


# --- from another shell ----------------------------------------------------------------------------------------------


async def one_asking(store: EventStore) -> None:
    await asking(store, "r1")


def messages_of(cli: CommandLine) -> list[e.MessageReceived]:
    async def read(store: EventStore) -> list[e.MessageReceived]:
        _, records = await load_run(store, "r1")
        return [record.event for record in records if isinstance(record.event, e.MessageReceived)]

    return cli.build(read)


def test_sent_while_nothing_runs_it(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.build(one_asking)
    done = cli("send", "r1", "in blue, please", "--command-id", "k", "-o", "json")
    again = cli("send", "r1", "in blue, please", "--command-id", "k", "-o", "json")
    assert (done.code, done.value["done"]) == (0, "sent")
    assert done.value == again.value
    assert [message.text for message in messages_of(cli)] == ["in blue, please"]
    assert "in blue, please" in cli("log", "r1").out
    assert cli("send", "r1", " ").code == 4
    assert cli("send", "r1", "x" * (MESSAGE_BYTES_MAX + 1)).code == 2
    assert cli("send", "r9", "x").code == 3


def test_a_run_that_has_ended_refuses_it(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        await finished(store, "r1")

    cli.build(build)
    done = cli("send", "r1", "late")
    assert done.code == 4
    assert "run_ended" in done.err


def test_a_stopped_run_says_what_lifts_it(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        run = await WrittenRun.start(store, "r1")
        await run.replies(finish="truncated")

    cli.build(build)
    done = cli("send", "r1", "\x1b[31mred")
    assert done.code == 0
    assert "  boundloop resume r1\n" in done.out
    assert "\x1b" not in cli("log", "r1").out
