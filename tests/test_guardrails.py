"""Guardrails in a live Runtime: before a call, before a result is shown, before an answer is believed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.stepped_runtime import Site, Stepped, has, results_in
from tests.tree_play import Play

from boundloop.actors.host import Host
from boundloop.actors.read_back import whole_result
from boundloop.adapters.port import Progress, TextDelta
from boundloop.adapters.script import ScriptedTurn, call, say
from boundloop.runtime import events as e
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.guardrails import GuardrailDecision, GuardrailQuestion, Guardrails
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import ModelInput
from boundloop.runtime.observed import Observed
from boundloop.runtime.policy import Policy
from boundloop.runtime.tool_spec import tool

CANARY = "canary-4711"
LOOK = [call("look"), say("done")]
Answer = Callable[[GuardrailQuestion], Any]


class Desk:
    """A tool that finds a secret, and one that has an effect and returns it."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def tools(self) -> list[Any]:
        desk = self

        @tool(risk="read")
        async def look(where: str = "here") -> dict[str, str]:
            """Look somewhere."""
            desk.done["look"] += 1
            return {"found": CANARY}

        @tool(risk="write", key=("what",), far_side="keyed")
        async def order(what: str) -> dict[str, str]:
            """Order something."""
            desk.done["order"] += 1
            return {"confirmation": CANARY}

        return [look, order]


def no_canary(question: GuardrailQuestion) -> GuardrailDecision:
    """Denies what holds the canary."""
    if CANARY in str(question.result) or CANARY in question.text:
        return GuardrailDecision(answer="deny", code="leak")
    return GuardrailDecision(answer="allow")


def policy(*, inline: bool = True, **guards: Any) -> Policy:
    return Policy(inline=inline, guardrails=Guardrails(revision="g1", **guards))


def was_shown(host: Stepped) -> str:
    """All results that the model was ever shown."""
    return "".join(str(results_in(request)) for request in host.model.recorded)


@pytest.mark.parametrize("inline", [True, False])
def test_a_result_that_is_denied_never_reaches_the_model_and_stays_in_the_log(
    site: Site, inline: bool
) -> None:
    desk = Desk()
    host = site.open(LOOK, desk.tools(), policy=policy(inline=inline, result=no_canary))
    result = host.run()
    assert result.completed
    assert CANARY not in was_shown(host)
    assert "withheld" in was_shown(host)
    (executed,) = site.of(result.run_id, e.CallExecuted)
    assert CANARY in str(executed.result)
    (judged,) = site.of(result.run_id, e.ResultGuarded)
    assert (judged.verdict, judged.code, judged.revision) == ("deny", "leak", "g1")


@pytest.mark.parametrize("inline", [True, False])
def test_what_is_allowed_is_shown_and_its_verdict_is_on_record(site: Site, inline: bool) -> None:
    seen: list[GuardrailQuestion] = []

    def allow(question: GuardrailQuestion) -> str:
        seen.append(question)
        return "allow"

    host = site.open(
        LOOK, Desk().tools(), policy=policy(inline=inline, call=allow, result=allow, answer=allow)
    )
    result = host.run()
    assert result.completed
    assert result.text == "done"
    assert CANARY in was_shown(host)
    assert [(one.place, one.tool) for one in seen] == [("call", "look"), ("result", "look"), ("answer", "")]
    assert seen[1].result == {"found": CANARY}
    assert seen[2].text == "done"
    assert len(site.of(result.run_id, e.AnswerGuarded)) == 1
    validated = site.of(result.run_id, e.CallValidated)[0]
    assert ("guardrail", "allow", "g1") in [(v.rung, v.verdict, v.revision) for v in validated.verdicts]


def refuses(question: GuardrailQuestion) -> str:
    return "deny"


def gives_none(question: GuardrailQuestion) -> None:
    return None


def raises(question: GuardrailQuestion) -> str:
    raise RuntimeError(CANARY)


def exits(question: GuardrailQuestion) -> str:
    raise SystemExit(1)


def truthy(question: GuardrailQuestion) -> Any:
    return True


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("answer", [gives_none, raises, exits, truthy])
def test_no_answer_denies_everywhere_after_bounded_tries(site: Site, answer: Answer, inline: bool) -> None:
    tried: Counter[str] = Counter()

    def counted(question: GuardrailQuestion) -> Any:
        tried[question.place] += 1
        return answer(question)

    desk = Desk()
    script = [call("order", {"what": "x"}), call("look"), say("done")]

    before = site.open(script[:1] + script[2:], desk.tools(), policy=policy(inline=inline, call=counted))
    run_id = before.run().run_id
    (refused,) = site.of(run_id, e.CallRejected)
    assert (refused.rung, refused.retryable) == ("guardrail", True)
    before.close()
    after = site.open(script, desk.tools(), policy=policy(inline=inline, result=counted))
    assert after.run().completed
    assert CANARY not in was_shown(after)
    after.close()
    last = site.open([say("done")], desk.tools(), policy=policy(inline=inline, answer=counted))
    result = last.run()
    assert (result.status, result.reason, result.text) == ("stopped", "evidence_missing", "")
    assert desk.done == {"order": 1, "look": 1}
    assert tried == {"call": 3, "result": 6, "answer": 3}
    assert CANARY not in repr([one for one in site.events(run_id) if not isinstance(one, e.CallExecuted)])


@pytest.mark.parametrize("inline", [True, False])
def test_a_denied_answer_is_asked_for_once_more_and_never_completes(site: Site, inline: bool) -> None:
    host = site.open([say(CANARY), say(CANARY)], policy=policy(inline=inline, answer=no_canary))
    result = host.run()
    assert (result.outcome, result.reason, result.text) == ("failed", "policy_denied", "")
    assert len(host.model.recorded) == 2


def test_an_effect_whose_result_is_withheld_happened_once_and_is_never_run_again(site: Site) -> None:
    desk = Desk()
    script = [call("order", {"what": "x"}), call("order", {"what": "x"}), say("done")]
    host = site.open(script, desk.tools(), policy=policy(result=no_canary))
    result = host.run()
    assert desk.done == {"order": 1}
    assert CANARY not in was_shown(host)
    assert [one.code for one in site.of(result.run_id, e.ResultBound)] == ["withheld", "withheld"]
    assert [one.verdict for one in site.of(result.run_id, e.ResultGuarded)] == ["deny", "deny"]


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_between_execution_and_verdict_shows_nothing_unjudged(site: Site, before: bool) -> None:
    desk = Desk()
    rules = policy(inline=False, result=no_canary)
    host = site.open([call("order", {"what": "x"}), say("done")], desk.tools(), policy=rules)
    host.line.cut_at(has(e.ResultGuarded), before=before)
    run_id = host.start()
    host.settle()
    assert host.line.broken.wait(10)
    host.crash()
    assert len(site.of(run_id, e.CallExecuted)) == 1
    again = site.after_crash(host, desk.tools(), policy=rules)
    assert again.rest(run_id).completed
    assert desk.done == {"order": 1}
    assert CANARY not in was_shown(again)
    assert [one.code for one in site.of(run_id, e.ResultBound)] == ["withheld"]


def test_a_host_that_has_the_guardrail_no_more_withholds(site: Site) -> None:
    desk = Desk()
    rules = policy(inline=False, result=no_canary)
    host = site.open(LOOK, desk.tools(), policy=rules)
    host.line.cut_at(has(e.ResultGuarded), before=True)
    run_id = host.start()
    host.settle()
    assert host.line.broken.wait(10)
    host.crash()
    again = site.after_crash(host, desk.tools(), policy=Policy())
    again.rest(run_id)
    assert CANARY not in was_shown(again)
    (judged,) = site.of(run_id, e.ResultGuarded)
    assert (judged.verdict, judged.code) == ("unknown", "guardrail_missing")


def test_a_guardrail_that_changes_what_it_was_given_changes_nothing(site: Site) -> None:
    def meddles(question: GuardrailQuestion) -> str:
        if isinstance(question.result, dict):
            question.result["found"] = "something else"
        return "allow"

    host = site.open(LOOK, Desk().tools(), policy=policy(result=meddles))
    assert host.run().completed
    assert CANARY in was_shown(host)


@pytest.mark.parametrize("provisional", [True, False])
def test_text_is_held_back_until_its_answer_is_judged(
    site: Site, provisional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[object] = []

    def hear(self: Host, run_id: str, item: Progress, after_seq: int) -> None:
        heard.append(item)

    monkeypatch.setattr(Host, "progress", hear)
    host = site.open([say("the answer")], policy=policy(answer=refuses, provisional=provisional))
    host.run()
    assert any(isinstance(item, TextDelta) for item in heard) is provisional


def test_a_childs_result_is_judged_before_its_parents_model_sees_it(site: Site) -> None:
    clerk = agent(name="clerk", description="Looks.", system="clerk", tools=("look",))
    play = Play({"": [call("clerk", {"input": "look"}), say("done")], "clerk": [say(f"it is {CANARY}")]})
    host = site.open(play.model, [*Desk().tools(), clerk], policy=policy(result=no_canary))
    result = host.run()
    assert result.completed
    assert [one.code for one in site.of(result.run_id, e.ResultBound)] == ["withheld"]


@pytest.mark.parametrize("withheld", [True, False])
def test_what_was_withheld_is_not_read_back_by_its_handle(site: Site, withheld: bool) -> None:
    desk = Desk()
    clerk = agent(name="clerk", description="Orders.", system="clerk", tools=("order",))
    play = Play(
        {
            "": [call("clerk", {"input": "order"}), say("done")],
            "clerk": [call("order", {"what": "x"}), ScriptedTurn(text=CANARY, finish="refused")],
        }
    )

    def judge(question: GuardrailQuestion) -> str:
        return "deny" if withheld and question.tool == "clerk" else "allow"

    host = site.open(play.model, [*desk.tools(), clerk], policy=policy(result=judge))
    run_id = host.run().run_id
    (executed,) = site.of(run_id, e.CallExecuted)
    assert executed.result_sha256 is not None
    read = asyncio.run(whole_result(site.store, run_id, executed.result_sha256.hex()))
    assert (read is None) is withheld


@tool(risk="read", result_bytes_max=1_024)
async def book() -> str:
    """A long text with a secret at its end."""
    return "x" * 5_000 + CANARY


def test_of_a_large_result_nothing_is_read_but_the_view_that_was_judged(site: Site) -> None:
    seen: list[str] = []

    def judge(question: GuardrailQuestion) -> str:
        seen.append(question.tool)
        return "deny" if CANARY in str(question.result) else "allow"

    def part(offset: int, limit: int) -> Callable[[ModelInput], Any]:
        def asks(request: ModelInput) -> Any:
            handle = msgspec.json.decode(results_in(request)[0].content)["data"]["handle"]
            return call("read_result", {"handle": handle, "offset": offset, "limit": limit})

        return asks

    script = [call("book"), part(5_001, 6), part(5_007, 5), say("done")]
    host = site.open(script, [book], policy=policy(result=judge))
    result = host.run()
    assert result.completed
    assert seen == ["book"]
    assert "canary" not in was_shown(host)
    assert "read_result" not in [tool.name for tool in host.model.recorded[-1].tools]
    assert "handle" not in msgspec.json.decode(results_in(host.model.recorded[-1])[0].content)
    (executed,) = site.of(result.run_id, e.CallExecuted)
    assert executed.artifact is not None
    assert executed.result_sha256 is not None
    whole, view = executed.artifact.hex(), executed.result_sha256.hex()
    assert asyncio.run(whole_result(site.store, result.run_id, whole)) is not None
    assert asyncio.run(whole_result(site.store, result.run_id, whole, views=True)) is None
    assert asyncio.run(whole_result(site.store, result.run_id, view, views=True)) == executed.result


def test_a_handle_that_was_guessed_reads_nothing_behind_a_view_that_was_judged(site: Site) -> None:
    """Once something was compacted there is reading, of what was judged."""

    @tool(risk="read")
    async def pad(n: int) -> str:
        """A long one, and not too long."""
        return "p" * 4_000

    known: list[str] = []

    def reads(request: ModelInput) -> Any:
        known.append(msgspec.json.decode(results_in(request)[0].content)["data"]["handle"])
        return call("pad", {"n": 0})

    def guess(request: ModelInput) -> Any:
        return call("read_result", {"handle": known[0], "offset": 5_001, "limit": 6})

    script = [call("book"), reads, *[call("pad", {"n": n}) for n in range(1, 6)], guess, say("done")]
    host = site.open(script, [book, pad], policy=policy(result=no_canary))
    run_id = host.start(limits=Limits(cost="1", context_tokens=6_000, output_tokens_per_request=100))
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == ("completed", "final")
    assert site.of(run_id, e.ContextCompacted)
    assert site.of(run_id, e.CallExecuted)[-1].code == "unknown_handle"


@pytest.mark.parametrize("inline", [True, False])
def test_facts_of_a_large_result_are_judged_with_it(site: Site, inline: bool) -> None:
    seen: list[dict[str, Any]] = []

    def judge(question: GuardrailQuestion) -> str:
        seen.append(dict(question.facts))
        return "deny" if CANARY in str(question.facts) else "allow"

    @tool(risk="read", result_bytes_max=300, facts={"note": "z"})
    async def dump(z: str) -> dict[str, str]:
        """A long one with a fact behind its view."""
        return {"a": "x" * 3_000, "z": z}

    script = [call("dump", {"z": CANARY}), call("dump", {"z": "fine"}), say("done")]
    host = site.open(script, [dump], policy=policy(inline=inline, result=judge))
    result = host.run()
    assert result.completed
    assert seen == [{"note": CANARY}, {"note": "fine"}]
    assert [fact.value for fact in site.of(result.run_id, e.FactRecorded)] == [b'"fine"']
    assert [one.code for one in site.of(result.run_id, e.ResultBound)] == ["withheld", ""]


@pytest.mark.parametrize("inline", [True, False])
def test_the_version_of_a_source_is_judged_with_its_result(site: Site, inline: bool) -> None:
    @tool(risk="read", trust="untrusted")
    async def fetch(version: str) -> Observed[str]:
        """A page."""
        return Observed("fine", source_version=version)

    def judge(question: GuardrailQuestion) -> str:
        return "deny" if CANARY in question.source_version else "allow"

    script = [call("fetch", {"version": f"v {CANARY}"}), call("fetch", {"version": "v2"}), say("done")]
    host = site.open(script, [fetch], policy=policy(inline=inline, result=judge))
    result = host.run()
    assert result.completed
    assert [one.code for one in site.of(result.run_id, e.ResultBound)] == ["withheld", ""]
    assert CANARY not in "".join(str(item.content) for item in results_in(host.model.recorded[-1]))
    first, second = site.of(result.run_id, e.ResultGuarded)
    assert first.input_sha256 != second.input_sha256


def test_declarations_that_are_none_are_refused() -> None:
    for options in ({"revision": ""}, {"revision": "é"}, {"revision": "1", "call": "x"}):
        with pytest.raises(DeclarationError):
            Guardrails(**options)  # type: ignore[arg-type]  # what a caller may write
