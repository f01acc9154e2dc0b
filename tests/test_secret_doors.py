"""A declared secret that comes in through any door is on no record and in nothing that is shown."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
from typing import Any

import msgspec
import pytest
from tests.stepped_runtime import STUCK_S, Site, Stepped, by_run, has, results_in
from tests.tree_play import Play

from boundloop.actors.application import Application, misfit
from boundloop.actors.application_answers import check_answer
from boundloop.actors.context import ToolContext
from boundloop.actors.secret_source import SecretQuestion, Secrets, SecretSettings, settings_of
from boundloop.adapters import ScriptedModel
from boundloop.adapters.script import call, calls, say
from boundloop.runtime import (
    Applied,
    Goal,
    Observed,
    Policy,
    PolicyDecision,
    Redaction,
    ToolError,
    agent,
    tool,
)
from boundloop.runtime import events as e
from boundloop.runtime.commands import ResolveCall, Send
from boundloop.runtime.errors import ConflictError, DeclarationError
from boundloop.runtime.guardrails import GuardrailDecision, Guardrails
from boundloop.runtime.limits import Limits
from boundloop.runtime.state import state_digest
from boundloop.runtime.tool_spec import tool_spec
from boundloop.runtime.toolbox import Toolbox

CANARY = "sk-live-CANARY-4242"
MARK = "[redacted:api_key]"
REDACT = Redaction(values={"api_key": CANARY}, fields=("password",), revision="7")


def seen(site: Site, host: Stepped) -> str:
    """All that is stored, and all that a model was asked."""
    return site.stored() + repr(host.model.recorded)


@tool(risk="read")
async def nested(name: str) -> dict[str, Any]:
    """A result with the secret deep in it."""
    return {"list": [{"text": f"the key is {CANARY}."}], CANARY: 1, "password": "hunter2"}


@tool(risk="read")
def observed(name: str) -> Observed[str]:
    """A result whose source names the secret."""
    return Observed(f"{name} {CANARY}", source_version=f"etag-{CANARY}")


@tool(risk="read", inline=True)
async def inline_too(name: str) -> str:
    """The same in the host's own loop."""
    return CANARY


@tool(risk="read")
def large(name: str) -> dict[str, Any]:
    """A result that is an artifact."""
    return {"head": CANARY, "rows": ["x" * 100] * 1_000, "tail": CANARY}


@tool(risk="read")
def wrong(name: str) -> dict[str, int]:
    """A result that isn't what it declares."""
    return {CANARY: "text"}  # type: ignore[dict-item]  # wrong on purpose


@tool(risk="read")
def says_it_failed(name: str) -> str:
    """Its own words."""
    raise ToolError(f"x{CANARY}", safe_message="y" * 500 + f" with {CANARY}")


@tool(risk="read")
def raises(name: str) -> str:
    """Somebody else's words, and a cause."""
    try:
        raise KeyError(CANARY)
    except KeyError as error:
        raise ValueError(f"bad {CANARY}", {"password": CANARY}) from error


READS = [nested, observed, inline_too, large, wrong, says_it_failed, raises]


@pytest.mark.parametrize("read", READS, ids=lambda it: it.__name__)
@pytest.mark.parametrize("full", [False, True])
def test_a_result_and_an_error_are_recorded_without_it(
    site: Site,
    read: Any,
    full: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if full:
        monkeypatch.setenv("BOUNDLOOP_TOOL_ERRORS", "full")
    host = site.open([call(read.__name__, {"name": "a"}), say("done")], [read], redact=REDACT)
    with caplog.at_level(logging.DEBUG):
        run_id = host.run().run_id
    assert CANARY not in seen(site, host)
    assert CANARY[:12] not in seen(site, host)
    assert "hunter2" not in seen(site, host)
    assert CANARY not in caplog.text
    (result,) = results_in(host.model.recorded[-1])
    if read is not raises:
        assert MARK in result.content.decode() + repr(site.of(run_id, e.CallExecuted))
    assert site.of(run_id, e.RunStarted)[0].pins_sha256
    assert host.state(run_id).pins.redaction == "7"


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps({"name": f"key {CANARY}"}),
        json.dumps({"name": CANARY}).replace("CANARY", "\\u0043ANARY"),
        json.dumps({"name": "x", CANARY: 1}),
        f'{{"name": "{CANARY}"',
        '{"name": "' + CANARY.replace("C", "\\u0043"),
        '{"name": "a", "password": "hunter2"}',
    ],
)
def test_a_secret_that_a_model_proposes_is_refused_and_not_recorded(site: Site, raw: str) -> None:
    host = site.open([call("nested", raw=raw), say(f"I used {CANARY}")], [nested], redact=REDACT)
    result = host.run()
    assert result.text == f"I used {MARK}"
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert (rejected.rung, rejected.code) == ("check", "secret_in_argument")
    assert site.of(result.run_id, e.CallStarted) == []
    stored = seen(site, host)
    assert CANARY not in stored
    assert "ANARY-4242" not in stored
    assert "hunter2" not in stored


def test_a_secret_that_a_model_writes_as_a_number_is_refused_however_it_is_written(site: Site) -> None:
    ran: list[float] = []

    @tool(risk="read")
    def weigh(n: float) -> float:
        """Weigh."""
        ran.append(n)
        return n

    raw = '{"n": 4111111111111111e-30}'
    redact = Redaction(values={"card": "4111111111111111"})
    host = site.open([call("weigh", raw=raw), say("done")], [weigh], redact=redact)
    (rejected,) = site.of(host.run().run_id, e.CallRejected)
    assert rejected.code == "secret_in_argument"
    assert ran == []
    assert "4111111111111111" not in seen(site, host)


def test_a_persons_result_is_recorded_without_a_number_that_holds_it() -> None:
    secrets = Secrets(SecretSettings(Redaction(values={"card": "4111111111111111"}), None))
    said = ResolveCall(
        command_id="c", by="ops", call="c1", outcome="applied", result='{"n": 4111111111111111e-30}'
    )
    shown = secrets.command(said)
    assert isinstance(shown, ResolveCall)
    assert shown.result == '{"n":"[redacted:card]e-30"}'


def test_the_reason_of_a_kill_switch_is_recorded_without_it(site: Site) -> None:
    host = site.open([say("done")], [], redact=REDACT)
    host.rt.switch("global", on=True, by="ops", reason=f"leaked {CANARY}")
    (turned,) = site.store.switches_known()
    assert (turned.by, turned.reason) == ("ops", f"leaked {MARK}")
    host.rt.switch("global", on=False, by="ops")
    assert site.store.switches_known() == ()


def test_what_a_person_says_is_recorded_without_it(site: Site) -> None:
    host = site.open([say("one")], [], redact=REDACT)
    result = host.run(f"use {CANARY}", system=f"never say {CANARY}")
    assert result.completed
    stored = seen(site, host)
    assert CANARY not in stored
    assert f"use {MARK}" in stored
    assert f"never say {MARK}" in stored


def test_typed_inputs_and_the_labels_of_time_and_trace_are_recorded_without_it(site: Site) -> None:
    host = site.open([say("one")], [], redact=REDACT)
    run_id = host.run(
        given={"key": [CANARY], "password": "hunter2"}, as_of=f"of {CANARY}", trace=CANARY
    ).run_id
    (started,) = site.of(run_id, e.RunStarted)
    assert json.loads(started.given) == {"key": [MARK], "password": "[redacted:password]"}
    assert (started.as_of, started.trace) == (f"of {MARK}", MARK)
    assert CANARY not in seen(site, host)


@pytest.mark.parametrize("application", ["", "shop:app"])
def test_a_run_that_was_started_under_a_redaction_is_left_alone_by_an_application_without_one(
    site: Site, application: str
) -> None:
    @tool(risk="write", key=("name",), approval="always")
    async def key(name: str) -> str:
        """A result with the secret."""
        return CANARY

    host = site.open([call("key", {"name": "a"}), say("done")], [key], redact=REDACT, application=application)
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals
    host.close()
    for secrets in (None, {"other": "other-value"}):
        forgot = site.open(host.model, [key], secrets=secrets, application=application)
        if secrets is None:
            forgot.rt.approve(run_id, waiting.approval_id, by="boss")
        assert "needs a redaction" in misfit(forgot.rt, forgot.state(run_id))
        with pytest.raises(ConflictError) as refused:
            forgot.rest(run_id)
        assert refused.value.code == "other_application"
        forgot.close()
    assert site.of(run_id, e.CallStarted) == []
    again = Redaction(values={"api_key": CANARY}, revision="8")
    newer = site.open(host.model, [key], redact=again, application=application)
    assert newer.rest(run_id).completed
    assert CANARY not in site.stored()


def test_a_message_and_a_reason_are_recorded_without_it(site: Site) -> None:
    @tool(risk="write", key=("order",), approval="always")
    def pay(order: str) -> str:
        """Pay."""
        return order

    host = site.open([call("pay", {"order": "1"}), say("done")], [pay], redact=REDACT)
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals
    host.rt.send(run_id, f"it is {CANARY}")
    again = Send(command_id="m1", by="ann", text=f"it is {CANARY}")
    assert host.rt.submit(run_id, again) == host.rt.submit(run_id, again)
    host.rt.record_fact(run_id, "order_note", f"noted {CANARY}")
    host.rt.record_fact(run_id, "password", "hunter2")
    host.rt.approve(run_id, waiting.approval_id, by="boss", reason=f"with {CANARY}")
    assert host.rest(run_id).completed
    stored = seen(site, host)
    assert CANARY not in stored
    assert f"it is {MARK}" in stored
    assert f"with {MARK}" in stored
    assert f"noted {MARK}" in stored
    assert "hunter2" not in stored


def preview(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"order": arguments["order"], "key": f"by {CANARY}"}


def version_of(arguments: dict[str, Any]) -> str:
    return f"v {CANARY}"


def check(arguments: dict[str, Any]) -> str:
    return "x" * 50 + CANARY


def query(key: str) -> Applied:
    return Applied(Observed({"paid": f"by {CANARY}"}, source_version=CANARY))


def test_a_preview_a_version_and_the_codes_of_checks_are_recorded_without_it(site: Site) -> None:
    @tool(
        risk="write",
        key=("order",),
        approval="always",
        preview=preview,
        version_of=version_of,
    )
    def pay(order: str) -> str:
        """Pay."""
        return order

    @tool(risk="read", check=check)
    def denied(order: str) -> str:
        """Never runs."""
        return order

    def decide(question: Any) -> PolicyDecision:
        return PolicyDecision(answer="allow", code=CANARY)

    host = site.open(
        [calls(call("pay", {"order": "1"}), call("denied", {"order": "2"})), say("done")],
        [pay, denied],
        redact=REDACT,
        policy=Policy(decide),
    )
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals
    host.rt.approve(run_id, waiting.approval_id, by="boss")
    assert host.rest(run_id).completed
    stored = seen(site, host)
    assert CANARY not in stored
    assert CANARY[:12] not in stored
    assert f"by {MARK}" in stored


def test_a_late_report_and_a_querys_answer_are_recorded_without_it(site: Site) -> None:
    entered, let_go = threading.Event(), threading.Event()

    @tool(risk="write", key=("order",), timeout_ms=1_000)
    def late(order: str) -> str:
        """Answers too late."""
        entered.set()
        assert let_go.wait(STUCK_S)
        return CANARY

    host = site.open([call("late", {"order": "1"}), say("done")], [late], redact=REDACT)
    run_id = host.start()
    assert entered.wait(STUCK_S)
    host.advance(1_000)
    assert host.rest(run_id).reason == "outcome_unknown"
    ended = threading.Event()
    host.rt.watch(lambda run, state, events, seq: ended.set() if state.phase == "terminated" else None)
    let_go.set()
    assert ended.wait(STUCK_S)
    assert host.rest(run_id).completed
    stored = seen(site, host)
    assert CANARY not in stored
    assert MARK in stored


def test_what_a_far_side_says_of_a_key_is_recorded_without_it(site: Site) -> None:
    @tool(
        risk="write",
        key=("order",),
        far_side="queryable",
        query=query,
    )
    def pay(order: str) -> dict[str, str]:
        """Its outcome is unknown."""
        raise ConnectionError(CANARY)

    host = site.open([call("pay", {"order": "1"}), say("done")], [pay], redact=REDACT)
    run_id = host.start()
    host.settle()
    host.advance(60_000)
    assert host.rest(run_id).completed
    (reconciled,) = site.of(run_id, e.CallReconciled)
    assert reconciled.result == json.dumps({"paid": f"by {MARK}"}, separators=(",", ":")).encode()
    assert CANARY not in seen(site, host)


def test_a_child_run_and_what_it_answers_are_recorded_without_it(site: Site) -> None:
    helper = agent(name="helper", description="Helps.", system="helper", tools=("nested",))
    play = Play(
        {
            "": [call("helper", {"input": "look"}), say("done")],
            "helper": [call("nested", {"name": "a"}), say(f"it is {CANARY}")],
        },
        record_max=100,
    )
    host = site.open(play.model, [helper, nested], redact=REDACT)
    result = host.run(tools=["helper"])
    assert result.text == "done"
    stored = seen(site, host)
    assert CANARY not in stored
    assert f"it is {MARK}" in stored


def test_a_childs_typed_answer_stays_one_under_what_was_declared_since(site: Site) -> None:
    """The host dies with a child ended and not settled; the next one takes out what the child's own log still has."""
    output = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    counter = agent(name="counter", description="Counts.", system="counter", goal=Goal.of(output=output))
    script = by_run([call("counter", {"input": "count"}), say("done")], [say('{"n": 4829153}')])
    host = site.open(script, [counter], redact=REDACT)
    host.line.cut_at(has(e.ChildSettled), before=True)
    run_id = host.start()
    host.settle()
    assert host.line.broken.is_set()
    host.crash()
    since = Redaction(values={"pin": "4829153"}, fields=("password",), revision="8")
    after = site.after_crash(host, [counter], redact=since)
    after.settle()
    assert after.rest(run_id).text == "done"
    (told,) = results_in(host.model.recorded[-1])
    data = msgspec.json.decode(told.content)["data"]
    assert (data["output"], data["text"]) == ({"n": "[redacted:pin]"}, '{"n":"[redacted:pin]"}')


def test_nothing_of_a_running_attempts_text_is_shown(site: Site) -> None:
    shown: list[Any] = []
    host = site.open([say(f"it is {CANARY}")], [], redact=REDACT)
    host.rt.watch_progress(lambda run, item: shown.append(item))
    events: list[Any] = []
    host.rt.watch(lambda run, state, committed, seq: events.extend(committed))
    host.run()
    assert CANARY not in repr(shown)
    assert "it is" not in repr(shown)
    assert MARK in repr(events)
    assert CANARY not in repr(events)


def test_without_a_declaration_nothing_is_looked_for(site: Site) -> None:
    host = site.open([call("nested", {"name": CANARY}), say("done")], [nested])
    run_id = host.run().run_id
    assert CANARY in site.stored()
    assert host.state(run_id).pins.redaction == ""
    assert [event.withheld for event in site.of(run_id, e.CallProposed)] == [""]


def test_a_replay_of_the_log_is_the_live_state(site: Site) -> None:
    host = site.open(
        [call("nested", {"name": CANARY}), call("nested", {"name": "b"}), say("done")],
        [nested],
        redact=REDACT,
    )
    live: list[bytes] = []
    host.rt.watch(lambda run, state, events, seq: live.append(state_digest(state)))
    run_id = host.run().run_id
    assert live[-1] == state_digest(host.state(run_id))


# --- references ------------------------------------------------------------------------------------------------------

USED: list[str] = []
NAMES = ("billing", "nobody", "down")


@tool(risk="write", key=("order", "token"), approval="always", secret_arguments={"token": NAMES})
async def charge(order: str, token: str, note: str = "") -> str:
    """Charge an order with a token."""
    USED.append(token)
    return f"charged with {token} ({note})"


@tool(risk="read", secret_arguments={"token": NAMES})
def look(token: str, ctx: ToolContext) -> str:
    """Look, and fail with the token in everything."""
    USED.append(token)
    raise ToolError("no", safe_message=f"{token} is wrong")


@tool(risk="read", inline=True, secret_arguments={"token": NAMES})
async def look_inline(token: str) -> str:
    """The same in the host."""
    USED.append(token)
    return token


@pytest.fixture(autouse=True)
def forget() -> None:
    USED.clear()


def asked_by_name(asked: SecretQuestion) -> str:
    if asked.name == "down":
        raise OSError(CANARY)
    return {"billing": CANARY}[asked.name]


SOURCES: list[Any] = [{"billing": CANARY, "other": "other-value"}, asked_by_name]


@pytest.mark.parametrize("source", SOURCES, ids=["mapping", "callable"])
def test_a_reference_is_resolved_only_where_the_tool_runs(site: Site, source: Any) -> None:
    host = site.open(
        [
            call("charge", {"order": "1", "token": "secret://billing", "note": "secret://billing"}),
            say("done"),
        ],
        [charge],
        secrets=source,
    )
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals
    assert b'"token":"secret://billing"' in site.of(run_id, e.ApprovalRequested)[0].preview
    host.rt.approve(run_id, waiting.approval_id, by="boss")
    assert host.rest(run_id).completed
    assert USED == [CANARY]
    stored = seen(site, host)
    assert CANARY not in stored
    assert "charged with [redacted:billing] (secret://billing)" in stored
    # What was resolved once is taken out of what others say as well.
    assert host.run(f"is it {CANARY}?").status
    assert CANARY not in seen(site, host)


@pytest.mark.parametrize("source", SOURCES, ids=["mapping", "callable"])
@pytest.mark.parametrize("read", [look, look_inline], ids=lambda it: it.__name__)
def test_what_a_call_returns_or_raises_has_its_value_taken_out(site: Site, source: Any, read: Any) -> None:
    host = site.open(
        [call(read.__name__, {"token": "secret://billing"}), say("done")], [read], secrets=source
    )
    host.run()
    assert USED == [CANARY]
    assert CANARY not in seen(site, host)
    assert "[redacted:billing]" in seen(site, host)


@pytest.mark.parametrize("read", [look, look_inline], ids=lambda it: it.__name__)
@pytest.mark.parametrize(("name", "code"), [("nobody", "secret_unknown"), ("down", "secret_unavailable")])
def test_a_name_without_a_value_fails_with_proof_that_nothing_ran(
    site: Site, name: str, code: str, read: Any
) -> None:
    host = site.open(
        [call(read.__name__, {"token": f"secret://{name}"}), say("done")], [read], secrets=asked_by_name
    )
    run_id = host.start()
    host.settle()
    host.advance(60_000)
    assert host.rest(run_id).completed
    assert USED == []
    executed = site.of(run_id, e.CallExecuted)
    assert {(it.outcome, it.code) for it in executed} == {("failed", code)}
    assert len(executed) == (1 if code == "secret_unknown" else 3)
    assert CANARY not in seen(site, host)


def test_an_effect_without_its_secret_is_failed_and_its_key_is_free(site: Site) -> None:
    host = site.open(
        [call("charge", {"order": "1", "token": "secret://nobody"}), say("done")],
        [charge],
        secrets=asked_by_name,
    )
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals
    host.rt.approve(run_id, waiting.approval_id, by="boss")
    assert host.rest(run_id).completed
    assert USED == []
    (executed,) = site.of(run_id, e.CallExecuted)
    assert (executed.outcome, executed.code) == ("failed", "secret_unknown")  # without proof it were unknown


@pytest.mark.parametrize(
    "token", ["hunter2", "secret://", "secret://no such name", "", ["hunter2"], {"a": "hunter2"}, 4242]
)
def test_a_secret_argument_takes_a_reference_and_nothing_else(site: Site, token: Any) -> None:
    host = site.open([call("look", {"token": token}), say("done")], [look], secrets={"billing": CANARY})
    run_id = host.run().run_id
    assert USED == []
    (rejected,) = site.of(run_id, e.CallRejected)
    assert (rejected.code, rejected.path) == ("secret_in_argument", "$.token")
    (proposed,) = site.of(run_id, e.CallProposed)
    assert proposed.arguments == b'{"token":"[redacted:argument]"}'


def test_a_reference_in_an_argument_that_takes_none_is_plain_text(site: Site) -> None:
    host = site.open(
        [call("observed", {"name": "secret://billing"}), say("done")], [observed], secrets={"billing": CANARY}
    )
    run_id = host.run().run_id
    (executed,) = site.of(run_id, e.CallExecuted)
    assert executed.result == b'"secret://billing [redacted:billing]"'


@pytest.mark.parametrize("source", SOURCES, ids=["mapping", "callable"])
def test_an_argument_takes_no_secret_that_its_tool_does_not_name(site: Site, source: Any) -> None:
    host = site.open([call("look", {"token": "secret://other"}), say("done")], [look], secrets=source)
    run_id = host.run().run_id
    assert USED == []
    (rejected,) = site.of(run_id, e.CallRejected)
    assert (rejected.code, rejected.path) == ("secret_not_allowed", "$.token")
    assert "other-value" not in seen(site, host)


def test_a_source_is_told_for_whom_and_for_which_tool_it_is_asked(site: Site) -> None:
    asked: list[SecretQuestion] = []

    def source(question: SecretQuestion) -> str:
        asked.append(question)
        return {("acme", "billing"): CANARY}[question.tenant, question.name]

    script = [call("look_inline", {"token": "secret://billing"}), say("done")] * 2
    host = site.open(script, [look_inline], secrets=source)
    host.run(tenant="acme", principal="ann")
    other = host.run(tenant="other", principal="ann").run_id
    assert asked[0] == SecretQuestion("billing", "acme", "ann", "look_inline")
    assert USED == [CANARY]
    assert [it.code for it in site.of(other, e.CallExecuted)] == ["secret_unknown"]


@pytest.mark.parametrize("inline", [False, True])
def test_a_call_whose_time_is_over_when_its_secret_is_there_never_starts(site: Site, inline: bool) -> None:
    @tool(risk="read", inline=inline, timeout_ms=100, max_attempts=1, secret_arguments={"token": NAMES})
    async def slowly(token: str) -> str:
        """Its secret is slow to come."""
        USED.append(token)
        return "done"

    def source(asked: SecretQuestion) -> str:
        host.loop.now_ms += 200  # as a vault may take
        return CANARY

    host = site.open([call("slowly", {"token": "secret://billing"}), say("done")], [slowly], secrets=source)
    run_id = host.start()
    host.settle()
    host.advance(1_000)
    assert host.rest(run_id).completed
    assert USED == []
    assert {(it.outcome, it.code) for it in site.of(run_id, e.CallExecuted)} == {("failed", "expired")}


@pytest.mark.parametrize("is_sync", [False, True])
def test_a_value_comes_back_by_no_query_of_a_process_that_never_resolved_it(
    site: Site, is_sync: bool
) -> None:
    far: dict[str, str] = {}
    there = [False, True]

    async def asks(key: str) -> Applied:
        return Applied({"sent_with": far["token"]})

    def asks_here(key: str) -> Applied:
        return Applied({"sent_with": far["token"]})

    @tool(
        risk="write",
        key=("order",),
        far_side="queryable",
        query=asks_here if is_sync else asks,
        secret_arguments={"token": NAMES},
    )
    async def send(order: str, token: str) -> dict[str, str]:
        """Its process dies once it is sent."""
        far["token"] = token
        await asyncio.get_running_loop().create_future()
        return {}

    def source(asked: SecretQuestion) -> str:
        if far and not there.pop(0):
            raise OSError(CANARY)
        assert (asked.tenant, asked.tool) == ("default", "send")
        return CANARY

    host = site.open(
        [call("send", {"order": "1", "token": "secret://billing"}), say("done")], [send], secrets=source
    )
    run_id = host.start()
    host.settle()
    assert far == {"token": CANARY}
    host.crash()
    other = site.after_crash(host, [send], secrets=source)
    for _ in range(10):
        other.settle()
        other.advance(30_000)
    assert other.rest(run_id).completed
    said = site.of(run_id, e.CallReconciled)
    assert [(it.outcome, it.result) for it in said][-1] == (
        "applied",
        b'{"sent_with":"[redacted:billing]"}',
    )
    assert there == []  # what the far side says is not had while the value can't be, so it was asked again
    assert CANARY not in seen(site, other)


def test_what_a_check_says_is_redacted_by_what_was_resolved_while_it_ran() -> None:
    settings = settings_of(None, asked_by_name, Toolbox([look]))
    assert settings is not None
    secrets = Secrets(settings)

    def check(arguments: dict[str, Any]) -> str:
        secrets.resolved(tool_spec(look), {"token": "secret://billing"}, "default", "local")
        return f"no {CANARY}"

    assert check_answer(check, {}, secrets)[:2] == ("deny", "no [redacted:billing]")


def test_a_call_that_was_out_before_a_value_was_resolved_does_not_hand_it_on(site: Site) -> None:
    opened: list[asyncio.Event] = []

    @tool(risk="read")
    async def slow(name: str) -> str:
        """It is out already."""
        opened.append(asyncio.Event())
        await opened[0].wait()
        return f"env: {CANARY}"

    @tool(risk="read", secret_arguments={"token": NAMES})
    async def use(token: str) -> str:
        """The first to know."""
        opened[0].set()
        return "ok"

    script = [calls(call("slow", {"name": "a"}), call("use", {"token": "secret://billing"})), say("done")]
    host = site.open(script, [slow, use], secrets=asked_by_name)
    assert host.run().completed
    assert "env: [redacted:billing]" in seen(site, host)
    assert CANARY not in seen(site, host)


def test_a_resolver_may_block_it_is_asked_beside_the_loop(site: Site) -> None:
    asked_on: list[int] = []

    def source(asked: SecretQuestion) -> str:
        asked_on.append(threading.get_ident())
        return CANARY

    host = site.open([call("look", {"token": "secret://billing"}), say("done")], [look], secrets=source)
    host.run()

    async def here() -> int:
        return threading.get_ident()

    (thread,) = asked_on
    assert thread != host.on_loop(here())


def test_a_value_that_changes_is_taken_out_under_each_of_its_forms(site: Site) -> None:
    fresh = itertools.cycle(["first-token-1", "second-token-2"])

    def newest(asked: SecretQuestion) -> str:
        return next(fresh)

    host = site.open(
        [
            call("look_inline", {"token": "secret://billing"}),
            call("look", {"token": "secret://billing"}),
            say("done"),
        ],
        [look, look_inline],
        secrets=newest,
    )
    host.run()
    assert USED == ["first-token-1", "second-token-2"]
    host.run("first-token-1 or second-token-2?")
    for token in ("first-token-1", "second-token-2"):
        assert token not in seen(site, host)


def test_nothing_that_holds_secrets_shows_them() -> None:
    source = {"billing": CANARY}
    application = Application(
        model=ScriptedModel([]), limits=Limits(cost="1"), tools=[look], redact=REDACT, secrets=source
    )
    settings = settings_of(REDACT, source, Toolbox([look]))
    assert settings is not None
    secrets = Secrets(settings)
    for held in (REDACT, application, settings, secrets, secrets.redactor, {"all": [settings, secrets]}):
        assert CANARY not in repr(held)


def test_a_tool_that_takes_references_needs_somebody_to_resolve_them(site: Site) -> None:
    with pytest.raises(DeclarationError) as refused:
        site.open([say("done")], [look])
    assert (refused.value.code, refused.value.path) == ("secrets_missing", "look")


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ({"nobody": "billing"}, "secret_unknown"),
        ({"number": "billing"}, "secret_type"),
        (("number",), "secret_names"),
        ({"number": ()}, "secret_names"),
        ({"number": "no name"}, "secret_names"),
        ({"number": 7}, "secret_names"),
        ({"number": [f"n{i}" for i in range(101)]}, "secret_names"),
    ],
)
def test_secret_arguments_are_texts_of_the_tool_and_say_which_secrets_they_take(
    names: Any, code: str
) -> None:
    with pytest.raises(DeclarationError) as refused:

        @tool(risk="read", secret_arguments=names)
        def wrong_kind(number: int) -> int:
            """Takes no text."""
            return number

    assert refused.value.code == code


def test_a_guardrails_code_is_recorded_without_it(site: Site) -> None:
    rails = Guardrails(
        call=lambda question: GuardrailDecision(answer="deny", code=f"x{CANARY}"), revision="1"
    )
    host = site.open(
        [call("nested", {"name": "a"}), say("done")], [nested], redact=REDACT, policy=Policy(guardrails=rails)
    )
    run_id = host.run().run_id
    (rejected,) = site.of(run_id, e.CallRejected)
    assert rejected.code == f"x{MARK}"
    assert CANARY not in seen(site, host)
