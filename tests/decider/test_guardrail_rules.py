"""Guardrails by the state alone: nothing unjudged is shown or believed, whoever carries the run on, and nothing waits for ever."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.commands import Guarded, RaiseLimits, ResolveCall, Resume
from boundloop.runtime.decision import Decision
from boundloop.runtime.goal import Goal
from boundloop.runtime.guarded import answer_sha256, input_sha256
from boundloop.runtime.guardrails import result_sha256
from boundloop.runtime.model import ResultItem
from boundloop.runtime.orders import GuardAnswer, GuardResult
from boundloop.runtime.pins import Pins

from .family import Family, family_pins
from .shop import limits, pins
from .spec import Run, call, given, tags

SECRET = {"note": "canary-secret"}


def guarded_pins(**fields: Any) -> Pins:
    return pins(guarded=("result", "answer"), **fields)


def executed(run: Run, tool: str = "get_order", result: Any = SECRET, **arguments: Any) -> None:
    """The first call of the run, executed and not judged yet."""
    run.reply(call(tool, **{"order_id": "A", **arguments}))
    run.check("c1.0")
    run.report("c1.0", result=result)


def shown(run: Run) -> list[dict[str, Any]]:
    """What the model was shown of results."""
    items = [item for item in run.state.items if isinstance(item, ResultItem)]
    return [msgspec.json.decode(item.content) for item in items]


# --- results -----------------------------------------------------------------------------------------------------


def test_a_result_is_on_record_before_it_is_judged_and_bound_after() -> None:
    run = Run(guarded_pins())
    executed(run)
    assert run.phase("c1.0") == "executed"
    assert run.orders() == [GuardResult("c1.0")]
    assert tags(run.judge_result("c1.0")) == ["result_guarded", "result_bound", "model_requested"]
    assert shown(run)[0]["data"] == SECRET


@pytest.mark.parametrize(("verdict", "retryable"), [("deny", False), ("unknown", True)])
def test_what_is_not_allowed_is_withheld_and_stays_on_record(verdict: e.Verdict, retryable: bool) -> None:
    run = Run(guarded_pins())
    executed(run)
    run.judge_result("c1.0", verdict, "leak")
    assert run.bound("c1.0") == ("error", "withheld")
    (told,) = shown(run)
    assert "canary" not in str(told)
    assert told.get("retryable", False) is retryable
    kept = next(event for event, _ in run.log if isinstance(event, e.CallExecuted))
    assert kept.result is not None
    assert b"canary-secret" in kept.result
    judged = next(event for event, _ in run.log if isinstance(event, e.ResultGuarded))
    assert (judged.verdict, judged.code, judged.revision) == (verdict, "leak", "g1")
    assert len(judged.input_sha256) == 32


def test_a_withheld_effect_stays_succeeded_in_the_ledger_and_is_never_run_again() -> None:
    run = Run(guarded_pins(goal=Goal.of("set_state")))
    executed(run, "set_state", state="x")
    run.judge_result("c1.0", "deny", "leak")
    (row,) = run.ledger.rows.values()
    assert row.status == "succeeded"
    assert run.state.effects == {"set_state": 1}
    # What the model wasn't shown is no evidence of anything.
    assert run.state.evidence == [0]
    assert run.state.counters.denials == 1
    assert run.state.counters.failures == 0


def test_a_withheld_result_taints_nobody() -> None:
    run = Run(guarded_pins())
    executed(run)
    run.judge_result("c1.0", "deny")
    assert run.state.untrusted == ()


@pytest.mark.parametrize(
    "about", ["another call", "another result", "another attempt's result", "the answer"]
)
def test_a_verdict_on_anything_else_changes_nothing(about: str) -> None:
    run = Run(guarded_pins())
    executed(run)
    name = {"another call": "c1.9", "the answer": ""}.get(about, "c1.0")
    subject = run.call("c1.0")
    digest = input_sha256(run.state, subject)
    if about == "another result":
        digest = result_sha256(subject.tool, subject.args_sha256, "", "", bytes(32))
    if about == "another attempt's result":
        digest = result_sha256(subject.tool, subject.args_sha256, "timeout", "", None)
    verdict = e.RungVerdict("guardrail", "allow", "", "g1")
    given(run).when(Guarded(call=name, verdict=verdict, input_sha256=digest), run.now).then_nothing()


def test_ask_is_no_answer_of_a_guardrail() -> None:
    run = Run(guarded_pins())
    executed(run)
    run.judge_result("c1.0", "ask")
    assert run.bound("c1.0") == ("error", "withheld")


def test_a_crash_between_execution_and_verdict_leaves_it_to_whoever_goes_on() -> None:
    run = Run(guarded_pins())
    executed(run, "set_state", state="x")
    run.crash()
    assert run.orders() == [GuardResult("c1.0")]
    assert run.started("c1.0") == 1
    run.judge_result("c1.0", "deny")
    assert run.bound("c1.0") == ("error", "withheld")


def test_words_of_a_failed_tool_are_judged_and_a_silent_failure_is_not() -> None:
    run = Run(guarded_pins())
    run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
    for name in ("c1.0", "c1.1"):
        run.check(name)
    run.report("c1.0", "failed", code="tool_error")
    assert run.bound("c1.0") == ("error", "tool_error")
    run.report("c1.1", "failed", code="tool_error", safe_message="canary-secret")
    run.judge_result("c1.1", "deny")
    assert run.bound("c1.1") == ("error", "withheld")
    assert "canary" not in str(shown(run))


def test_a_failure_that_is_tried_again_is_judged_when_no_further_attempt_is_left() -> None:
    run = Run(guarded_pins())
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    for _ in range(2):
        run.report("c1.0", "failed", code="busy", safe_message="try later", retryable=True)
        assert run.orders() == []
        run.tick_to_wake()
    run.report("c1.0", "failed", code="busy", safe_message="try later", retryable=True)
    assert run.orders() == [GuardResult("c1.0")]
    run.judge_result("c1.0")
    assert run.bound("c1.0") == ("error", "busy")


def test_the_words_of_an_attempt_that_may_not_be_repeated_are_left_out() -> None:
    run = Run(guarded_pins())
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0", "failed", code="busy", safe_message="canary-secret", retryable=True, no_effect=True)
    run.tick_to_wake()
    run.check("c1.0", verdicts=(e.RungVerdict("policy", "deny", "no"),))
    assert run.bound("c1.0")[0] == "error"
    assert "canary" not in str(shown(run))


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_run_that_ends_waits_for_no_verdict_and_withholds(how: str) -> None:
    run = Run(guarded_pins())
    executed(run)
    if how == "cancel":
        run.cancel()
    else:
        run.tick_to_wake()
    assert run.bound("c1.0") == ("error", "withheld")
    assert "canary" not in str(shown(run))
    assert not run.orders()


def replay(second: Run, verdict: e.Verdict) -> None:
    """A pass over a call whose effect is on record already, judged on the way."""
    subject = second.call("c1.0")
    checks = second.checks("c1.0")
    assert checks.row is not None
    digest = subject.args_sha256 or (b"" if checks.admitted is None else checks.admitted.args_sha256)
    about = result_sha256(subject.tool, digest, "", "", checks.row.result_sha256)
    said = e.RungVerdict("guardrail", verdict, "", "g1")
    second.send(msgspec.structs.replace(checks, replay=said, replay_sha256=about))


def two_runs() -> tuple[Run, Run]:
    """An effect on record, and another run that proposes it."""
    first = Run(guarded_pins())
    executed(first, "set_state", state="x")
    first.judge_result("c1.0")
    second = Run(first.pins, ledger=first.ledger, run_id="r2")
    second.reply(call("set_state", order_id="A", state="x"))
    return first, second


@pytest.mark.parametrize(
    ("verdict", "bound"),
    [("allow", ("ok", "replayed")), ("deny", ("error", "withheld")), ("unknown", ("error", "withheld"))],
)
def test_a_replayed_result_is_judged_before_it_is_shown(verdict: e.Verdict, bound: tuple[str, str]) -> None:
    _, second = two_runs()
    replay(second, verdict)
    assert second.bound("c1.0") == bound
    assert second.started("c1.0") == 0
    assert ("canary" in str(shown(second))) is (verdict == "allow")


def test_a_recorded_result_that_nobody_judged_for_this_call_is_looked_up_again() -> None:
    _, second = two_runs()
    second.check("c1.0")
    waiting = next(event for event, _ in second.log if isinstance(event, e.CallWaiting))
    assert waiting.why == "succeeded"
    assert second.phase("c1.0") == "waiting_key"
    replay(second, "deny")
    assert second.bound("c1.0") == ("error", "withheld")


def test_an_effect_that_a_person_settles_is_judged_once_the_run_goes_on() -> None:
    run = Run(guarded_pins())
    run.reply(call("pay", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0", "unknown", code="timeout")
    assert run.state.reason == "outcome_unknown"
    run.outside(ResolveCall, call="c1.0", outcome="applied", result='{"note":"canary-secret"}')
    assert run.state.phase == "open_calls"
    run.judge_result("c1.0", "deny")
    assert "canary" not in str(shown(run))


def test_an_agents_result_is_judged_and_nothing_of_it_is_shown_if_it_is_withheld() -> None:
    tree = Family(family_pins(guarded=("result",)))
    tree.root.reply(call("helper", input="do it"))
    tree.root.check("c1.0")
    child = tree.start(tree.root, "c1.0")
    assert child.pins.guarded == ("result",)
    child.reply(call("pay", order_id="A", amount=5))
    child.check("c1.0")
    child.report("c1.0")
    child.judge_result("c1.0")
    child.reply(finish="refused", text="canary-secret")
    assert tree.settle(tree.root, "c1.0")
    tree.root.judge_result("c1.0", "deny")
    (told,) = shown(tree.root)
    assert told == {"code": "withheld", "message": told["message"], "status": "error"}


# --- the answer --------------------------------------------------------------------------------------------------


def test_a_final_answer_completes_only_once_it_was_allowed() -> None:
    run = Run(guarded_pins())
    run.final()
    assert run.state.phase == "deciding"
    run.judge_answer()
    assert run.stop() == ("terminated", "completed", "final")


def test_a_denied_answer_is_asked_for_again_and_then_ends_the_run() -> None:
    run = Run(guarded_pins())
    run.final("the password is canary")
    run.judge_answer("deny", "secret")
    assert run.state.phase == "model_requested"
    run.final("it is still canary")
    run.judge_answer("deny", "secret")
    assert run.stop() == ("terminated", "failed", "policy_denied")
    assert run.state.final_text == ""
    assert "secret" in run.state.detail


def test_a_corrected_answer_is_judged_anew() -> None:
    run = Run(guarded_pins())
    run.final("the password is canary")
    run.judge_answer("deny", "secret")
    run.final("I can't tell.")
    assert run.state.phase == "deciding"
    run.judge_answer()
    assert run.state.final_text == "I can't tell."


def test_without_a_corrective_turn_a_denied_answer_ends_at_once() -> None:
    run = Run(guarded_pins(bounds=limits(corrective_turns=0)))
    run.final()
    run.judge_answer("deny", "secret")
    assert run.stop() == ("terminated", "failed", "policy_denied")


def test_an_answer_that_nobody_could_judge_stops_until_somebody_resumes() -> None:
    run = Run(guarded_pins())
    run.final()
    run.judge_answer("unknown", "timeout")
    assert run.stop() == ("suspended", "incomplete", "evidence_missing")
    assert run.state.counters.corrective_turns == 0
    run.outside(Resume)
    run.final()
    run.judge_answer()
    assert run.stop() == ("terminated", "completed", "final")


def test_an_answer_without_its_evidence_is_not_even_judged() -> None:
    run = Run(guarded_pins(goal=Goal.of("set_state")))
    run.final()
    assert run.state.phase == "model_requested"
    run.final()
    assert run.stop() == ("suspended", "incomplete", "evidence_missing")


def test_an_answer_is_judged_by_whoever_takes_the_run_over() -> None:
    run = Run(guarded_pins())
    run.final()
    run.crash()
    assert run.orders() == [GuardAnswer(1)]
    run.judge_answer()
    assert run.stop() == ("terminated", "completed", "final")


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_run_that_ends_while_its_answer_is_judged_never_completes(how: str) -> None:
    run = Run(guarded_pins())
    run.final()
    verdict = e.RungVerdict("guardrail", "allow", "", "g1")
    late = Guarded(call="", verdict=verdict, input_sha256=answer_sha256(run.state))
    if how == "cancel":
        run.cancel()
    else:
        run.tick_to_wake()
    run.send(late)
    assert run.state.outcome in ("cancelled", "incomplete")
    assert run.state.final_text == ""


def test_a_verdict_on_another_answer_changes_nothing() -> None:
    run = Run(guarded_pins())
    run.final("one")
    verdict = e.RungVerdict("guardrail", "allow", "", "g1")
    other = Run(guarded_pins())
    other.final("two")
    about = answer_sha256(other.state)
    given(run).when(Guarded(call="", verdict=verdict, input_sha256=about), run.now).then_nothing()


def test_a_run_that_is_not_guarded_has_no_orders_of_guardrails() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    assert tags(run.report("c1.0")) == ["call_executed", "result_bound", "model_requested"]
    assert tags(run.final()) == ["model_responded", "run_terminated"]


# --- a verdict is about one attempt ------------------------------------------------------------------------------------


def out_of_attempts() -> Run:
    """Two failures have used up the run's attempts; the first read was approved, so it is checked before each dispatch."""
    run = Run(guarded_pins(bounds=limits(call_attempts=3)))
    run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
    run.ask("c1.0")
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1")
    run.check("c1.1")
    for name in ("c1.0", "c1.1"):
        run.report(name, "failed", code="busy", safe_message="try later", retryable=True)
    run.tick_to_wake()
    assert GuardResult("c1.0") in run.orders()
    return run


def allowed(run: Run, name: str) -> Guarded:
    """A verdict on what this call has come to by now."""
    verdict = e.RungVerdict("guardrail", "allow", "", "g1")
    return Guarded(call=name, verdict=verdict, input_sha256=input_sha256(run.state, run.call(name)))


def test_a_verdict_on_a_failure_that_is_tried_again_after_all_changes_nothing() -> None:
    run = out_of_attempts()
    verdict = allowed(run, "c1.0")
    run.outside(RaiseLimits, raised={"call_attempts": 9})
    assert GuardResult("c1.0") not in run.orders()
    given(run).when(verdict, run.now).then_nothing()


def test_a_result_is_judged_for_itself_whatever_the_verdict_on_an_earlier_attempt_was() -> None:
    run = out_of_attempts()
    verdict = allowed(run, "c1.0")
    run.outside(RaiseLimits, raised={"call_attempts": 9})
    run.send(verdict)
    run.check("c1.0", resource_version="v1")
    run.report("c1.0", result=SECRET)
    assert run.phase("c1.0") == "executed"
    assert GuardResult("c1.0") in run.orders()
    run.judge_result("c1.0", "deny")
    assert run.bound("c1.0") == ("error", "withheld")
    assert "canary" not in str(shown(run))


def test_a_recorded_verdict_ends_with_the_attempt_that_it_was_about() -> None:
    """Histories in which a verdict stands on an attempt that was repeated still judge the next one."""
    run = out_of_attempts()
    verdict = allowed(run, "c1.0")
    run.outside(RaiseLimits, raised={"call_attempts": 9})
    run.append(Decision((e.ResultGuarded("c1.0", "allow", "", "g1", verdict.input_sha256),)))
    run.check("c1.0", resource_version="v1")
    assert run.call("c1.0").attempt == 2
    run.report("c1.0", result=SECRET)
    assert run.phase("c1.0") == "executed"
    assert GuardResult("c1.0") in run.orders()


def test_what_a_verdict_is_about_holds_whatever_the_model_is_shown_beside_the_data() -> None:
    plain = result_sha256("look", bytes(32), "", "", bytes(32))
    assert plain == result_sha256("look", bytes(32), "", "", bytes(32), "", {})
    kinds = {
        plain,
        result_sha256("look", bytes(32), "", "", bytes(32), "v1"),
        result_sha256("look", bytes(32), "", "", bytes(32), "v2"),
        result_sha256("look", bytes(32), "", "", bytes(32), "", {"v1": b'"x"'}),
        result_sha256("look", bytes(32), "", "", bytes(32), "", {"v1": b'"y"'}),
    }
    assert len(kinds) == 5


def test_a_verdict_on_another_version_of_the_same_data_changes_nothing() -> None:
    run = Run(guarded_pins())
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", result=SECRET, source=e.Source("v2", 0))
    subject = run.call("c1.0")
    verdict = e.RungVerdict("guardrail", "allow", "", "g1")
    about = result_sha256(subject.tool, subject.args_sha256, "", "", subject.result_sha256, "v1")
    given(run).when(Guarded(call="c1.0", verdict=verdict, input_sha256=about), run.now).then_nothing()
    run.judge_result("c1.0")
    assert run.bound("c1.0") == ("ok", "")
