"""Questions to people through the real Runtime: hosted, parked, in a tree, after a crash, from another shell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import CommandLine
from tests.stepped_runtime import Site, Stepped, by_run, has, results_in

from boundloop.actors.client import CommandRefused, Runtime
from boundloop.adapters.script import call, calls, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.inbox import gather_inbox
from boundloop.runtime import events as e
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.commands import Answer, encode_command
from boundloop.runtime.errors import DuplicateTool, UnknownTool
from boundloop.runtime.limits import Limits
from boundloop.runtime.question_tool import ask_user
from boundloop.runtime.questions import question_id
from boundloop.runtime.tool_spec import tool, tool_spec
from boundloop.runtime.toolbox import Toolbox

ASK = call("ask_user", {"question": "which order?", "choices": ["A1", "A2"]})
ONE = Limits(cost="1")


def asking(site: Site, *turns: Any, **options: Any) -> tuple[Stepped, str]:
    """A run that waits for an answer, and its host."""
    host = site.open(list(turns or (ASK, say("done"))), **{"tools": [ask_user], **options})
    result = host.run("go")
    assert (result.status, result.phase) == ("waiting", "waiting_answer")
    return host, result.run_id


def said(host: Stepped) -> str:
    """The last result that the model was shown."""
    return results_in(host.model.recorded[-1])[-1].content.decode()


def test_a_run_that_asks_waits_without_a_host_and_goes_on_with_the_answer(site: Site) -> None:
    host, run_id = asking(site)
    row = asyncio.run(site.store.run(run_id))
    assert row is not None
    assert (row.owner, row.ready) == ("", False)
    [asked] = host.rest(run_id).questions
    assert (asked.question, asked.choices) == ("which order?", ("A1", "A2"))
    host.rt.answer(run_id, asked.question_id, "A2", by="ann")
    assert host.rest(run_id).completed
    assert '"data":{"answer":"A2"}' in said(host)
    assert '"trust":"person"' in said(host)


def test_the_tool_is_offered_where_the_host_says_so() -> None:
    with Runtime(store="memory://", model=ScriptedModel([ASK, say("done")]), questions=True) as rt:
        assert rt.run_sync("go", limits=ONE).phase == "waiting_answer"
    with Runtime(store="memory://", model=ScriptedModel([ASK, say("done")])) as rt:
        assert rt.run_sync("go", limits=ONE).completed
    both = ScriptedModel([ASK, say("done")])
    with Runtime(store="memory://", model=both, tools=[ask_user], questions=True) as rt:
        assert rt.run_sync("go", limits=ONE, tools=[]).completed


@tool(risk="write", key=("order",), from_results={"order": "ask_user.answer"})
async def mend(order: str) -> str:
    """Mend what a person named."""
    return order


NAMES_IT = agent(name="clerk", description="Asks.", system="You ask.", tools=("ask_user",))


@pytest.mark.parametrize("named", [mend, NAMES_IT], ids=["as a source", "as an agent's tool"])
@pytest.mark.parametrize("given", ["list", "generator", "list with it", "toolbox with it"])
def test_other_tools_may_name_the_tool_that_the_host_adds(named: Any, given: str) -> None:
    tools: Any = {
        "list": [named],
        "generator": (one for one in [named]),
        "list with it": [ask_user, named],
        "toolbox with it": Toolbox([named, ask_user]),
    }[given]
    with Runtime(store="memory://", model=ScriptedModel([]), tools=tools, questions=True) as rt:
        assert sorted(rt.toolbox) == sorted([tool_spec(named).name, "ask_user"])


def test_a_name_that_no_tool_has_is_refused_also_where_the_host_adds_one() -> None:
    with pytest.raises(UnknownTool):
        Runtime(store="memory://", model=ScriptedModel([]), tools=[mend])
    clerk = agent(name="clerk", description="Asks.", system="You ask.", tools=("nobody",))
    with pytest.raises(UnknownTool):
        Runtime(store="memory://", model=ScriptedModel([]), tools=[clerk], questions=True)


def test_a_tool_of_that_name_is_no_question() -> None:
    @tool(risk="read", name="ask_user")
    async def mine(question: str) -> str:
        """Mine."""
        return question

    with pytest.raises(DuplicateTool):
        Runtime(store="memory://", model=ScriptedModel([]), tools=[mine], questions=True)


def test_two_questions_of_a_turn_are_answered_in_any_order(site: Site) -> None:
    host, run_id = asking(site, calls(ASK, call("ask_user", {"question": "and why?"})), say("done"))
    first, second = host.rest(run_id).questions
    host.rt.answer(run_id, second.question_id, "because", by="ann")
    [left] = host.rest(run_id).questions
    assert left == first
    host.rt.answer(run_id, first.question_id, "A1", by="ben")
    assert host.rest(run_id).completed
    shown = [item.content.decode() for item in results_in(host.model.recorded[-1])]
    assert ["A1" in shown[0], "because" in shown[1]] == [True, True]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", [e.QuestionAsked, e.ResultBound])
def test_a_host_that_dies_at_an_append_around_the_wait_changes_nothing(
    site: Site, at: type[e.Event], before: bool
) -> None:
    first = site.open([ASK, say("done")], [ask_user])
    first.line.cut_at(has(at), before=before)
    run_id = first.start("go")
    first.settle()
    if at is e.ResultBound:
        first.rt.answer(run_id, question_id(run_id, "c1.0"), "A1", by="ann")
        first.settle()
    assert first.line.broken.is_set()
    first.crash()
    second = site.after_crash(first, [ask_user])
    second.settle()
    if at is e.QuestionAsked:
        [asked] = second.rest(run_id).questions
        second.rt.answer(run_id, asked.question_id, "A1", by="ann")
    assert second.rest(run_id).completed
    assert len(site.of(run_id, e.QuestionAsked)) == 1
    assert len(site.of(run_id, e.QuestionAnswered)) == 1
    assert '"answer":"A1"' in said(second)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_host_that_dies_at_the_append_of_an_answer_loses_it_only_unacknowledged(
    site: Site, before: bool
) -> None:
    first, run_id = asking(site)
    first.line.cut_at(has(e.QuestionAnswered), before=before)
    command = Answer(command_id="once", by="ann", question_id=question_id(run_id, "c1.0"), text="A1")
    pending = asyncio.run_coroutine_threadsafe(first.rt.aio.submit(run_id, command), first.loop)
    first.settle()
    assert not pending.done()
    first.crash()
    second = site.after_crash(first, [ask_user])
    assert (second.rest(run_id).status == "waiting") == before
    assert second.rt.submit(run_id, command).accepted
    assert second.rest(run_id).completed
    assert len(site.of(run_id, e.QuestionAnswered)) == 1


def test_fifty_answers_at_once_are_one(site: Site) -> None:
    host, run_id = asking(site, call("ask_user", {"question": "which?"}), say("done"))
    [asked] = host.rest(run_id).questions

    async def all_at_once() -> list[bool]:
        commands = [
            Answer(command_id=f"k{n}", by=f"p{n}", question_id=asked.question_id, text=str(n))
            for n in range(50)
        ]
        answers = await asyncio.gather(*(host.rt.aio.submit(run_id, command) for command in commands))
        return [answer.accepted for answer in answers]

    accepted = asyncio.run(all_at_once())
    assert sum(accepted) == 1
    assert host.rest(run_id).completed
    [event] = site.of(run_id, e.QuestionAnswered)
    assert event.by == f"p{accepted.index(True)}"


def test_the_same_command_again_is_the_same_answer(site: Site) -> None:
    host, run_id = asking(site)
    [asked] = host.rest(run_id).questions
    command = Answer(command_id="k", by="ann", question_id=asked.question_id, text="A1")
    first = host.rt.submit(run_id, command)
    host.rest(run_id)
    assert host.rt.submit(run_id, command) == first
    other = Answer(command_id="k", by="ann", question_id=asked.question_id, text="A2")
    assert host.rt.submit(run_id, other).code == "command_id_reused"


def test_a_cancelled_run_asks_nobody_any_more(site: Site) -> None:
    host, run_id = asking(site)
    [asked] = host.rest(run_id).questions
    host.rt.cancel(run_id)
    assert host.rest(run_id).outcome == "cancelled"
    with pytest.raises(CommandRefused, match="question_not_found"):
        host.rt.answer(run_id, asked.question_id, "A1", by="ann")


def test_a_question_that_nobody_answers_lapses_and_the_run_goes_on(site: Site) -> None:
    host = site.open([ASK, say("done")], [ask_user])
    result = host.run("go", limits=Limits(cost="1", answer_ms=60_000))
    host.advance(60_000)
    assert host.rest(result.run_id).completed
    assert "question_expired" in said(host)


# --- in a tree -------------------------------------------------------------------------------------------------------

CLERK = agent(name="clerk", description="Looks things up.", system="You look things up.", tools=("ask_user",))


def test_a_question_of_a_child_is_in_the_roots_inbox_and_nobody_is_kept_for_it(site: Site) -> None:
    host = site.open(
        by_run([call("clerk", {"input": "look"}), say("done")], [ASK, say("A2 it is")]), [ask_user, CLERK]
    )
    result = host.run("go", tools=["clerk"])
    assert result.status == "waiting"
    [asked] = result.questions
    assert (asked.run_id, result.waiting_for) != (result.run_id, "")
    inbox = asyncio.run(gather_inbox(site.store, root_id=result.run_id))
    assert [(row.kind, row.run_id, row.question_id) for row in inbox.rows] == [
        ("question", asked.run_id, asked.question_id)
    ]
    for run_id in (result.run_id, asked.run_id):
        row = asyncio.run(site.store.run(run_id))
        assert row is not None
        assert row.owner == ""
    with pytest.raises(CommandRefused, match="question_not_found"):
        host.rt.answer(result.run_id, asked.question_id, "A2", by="ann")
    host.rt.answer(asked.run_id, asked.question_id, "A2", by="ann")
    assert host.rest(result.run_id).completed


def test_a_message_to_a_child_goes_to_its_own_run(site: Site) -> None:
    host = site.open(
        by_run([call("clerk", {"input": "look"}), say("done")], [ASK, say("A2 it is")]), [ask_user, CLERK]
    )
    result = host.run("go", tools=["clerk"])
    [asked] = result.questions
    host.rt.send(asked.run_id, "be quick")
    host.rt.answer(asked.run_id, asked.question_id, "A2", by="ann")
    assert host.rest(result.run_id).completed
    assert host.state(asked.run_id).counters.messages == 1
    assert host.state(result.run_id).counters.messages == 0


# --- from another shell ----------------------------------------------------------------------------------------------


def parked(cli: CommandLine, *, choices: bool = True, count: int = 1) -> list[str]:
    """A run ``r1`` on disk that waits for answers, with nobody to host it; the questions' ids."""
    text = {"question": "which \x1b[31morder?\nsay", **({"choices": ["A1", "A2"]} if choices else {})}
    turn = calls(*(call("ask_user", text) for _ in range(count)))
    with Runtime(store=cli.url, model=ScriptedModel([turn, say("done")]), tools=[ask_user]) as rt:
        result = rt.run_sync("go", run_id="r1", limits=ONE)
        return [asked.question_id for asked in result.questions]


def goes_on(cli: CommandLine) -> str:
    model = ScriptedModel([ASK, say("done")])
    with Runtime(store=cli.url, model=model, tools=[ask_user]) as rt:
        return rt.wait("r1", 30).outcome


def test_answered_while_nothing_runs_it(cli: CommandLine) -> None:
    [asked] = parked(cli)
    shown = cli("inbox")
    assert f"  boundloop answer {asked} --choice N" in shown.out
    assert "\x1b" not in shown.out
    assert f"Next: boundloop answer {asked} --choice N" in cli("why", "r1").out
    [row] = cli("inbox", "-o", "json").value
    assert (row["kind"], row["id"], row["choices"]) == ("question", asked, ["A1", "A2"])
    assert cli("answer", asked, "A3").code == 4
    done = cli("answer", "r1", "--choice", "2", "--command-id", "k", "-o", "json")
    assert (done.code, done.value["question"]) == (0, asked)
    for name in ("r1", asked):
        again = cli("answer", name, "--choice", "2", "--command-id", "k", "-o", "json")
        assert again.value == done.value
    assert cli("answer", asked, "A1").code == 4
    assert cli("answer", "r1", "A1").code == 3
    assert cli("inbox", "-o", "json").value == []
    assert "A2" in cli("log", "r1").out
    assert goes_on(cli) == "completed"


def test_a_run_with_two_questions_must_be_told_which(cli: CommandLine) -> None:
    first, second = parked(cli, choices=False, count=2)
    done = cli("answer", "r1", "x")
    assert done.code == 2
    assert first in done.err
    assert second in done.err
    assert cli("answer", second, "x").code == 0
    assert cli("answer", "r1", "--cannot", "--reason", "nobody is in").code == 0
    assert "nobody is in" in cli("log", "r1").out


@pytest.mark.parametrize(
    "arguments",
    [(), ("A1", "--cannot"), ("A1", "--choice", "1"), ("A1", "--stop"), ("--choice", "3"), ("--choice", "0")],
)
def test_what_is_no_answer_is_wrong_usage(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    [asked] = parked(cli)
    assert cli("answer", asked, *arguments).code == 2


@pytest.mark.parametrize("name", ["q_0000000000000000", "q_", "r9", ""])
def test_what_is_not_there_exits_3(cli: CommandLine, name: str) -> None:
    parked(cli)
    assert cli("answer", name, "A1").code == 3


def test_answered_through_the_socket_of_a_living_runtime(tmp_path: Path) -> None:
    from boundloop.eventstore.location import connect_store
    from boundloop.eventstore.submit import decode_answer

    url = f"sqlite:///{tmp_path / 'runs.db'}"

    async def through_the_socket(command: Answer) -> bool:
        store = await connect_store(url)
        try:
            return decode_answer(await store.submit("r1", "k", encode_command(command))).accepted
        finally:
            await store.close()

    with Runtime(store=url, model=ScriptedModel([ASK, say("done")]), tools=[ask_user]) as rt:
        [asked] = rt.run_sync("go", run_id="r1", limits=ONE).questions
        command = Answer(command_id="k", by="ann", question_id=asked.question_id, text="A1")
        assert asyncio.run(through_the_socket(command))
        assert rt.wait("r1", 30).completed
