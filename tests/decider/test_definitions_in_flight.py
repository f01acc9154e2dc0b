"""A run that is taken up under another deploy: what it adopts, what lapses, what stops it, and what is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.children import child_start
from boundloop.runtime.commands import Advance, Answer, Approve, ModelReplied, RaiseLimits, Resume, TakeOver
from boundloop.runtime.definitions import (
    ADOPTED_FIELDS,
    CONTRACT_FIELDS,
    adopted,
    changes,
    contract_kept,
    decode_definition,
    encode_definition,
    tools_offered,
)
from boundloop.runtime.errors import HistoryRefused
from boundloop.runtime.fold import evolve, fold
from boundloop.runtime.goal import Evidence, Goal
from boundloop.runtime.model import ModelTurn
from boundloop.runtime.orders import Execute
from boundloop.runtime.pins import read_pins
from boundloop.runtime.question_tool import ask_user
from boundloop.runtime.questions import question_id
from boundloop.runtime.tool_definition import ToolDefinition

from .family import AGENTS, family_pins
from .shop import BY_NAME, TOOLS, changed, limits, pins
from .spec import USAGE, Run, call

NEW_TEXT = changed("refund", description="Refund an order, within a day.")
WITHOUT_REFUND = tuple(it for it in TOOLS if it.name != "refund")


def adoptions(events: tuple[e.AnyEvent, ...]) -> list[e.DefinitionAdopted]:
    return [event for event in events if isinstance(event, e.DefinitionAdopted)]


def request_hashes(run: Run) -> list[bytes]:
    return [event.request_sha256 for event, _ in run.log if isinstance(event, e.ModelRequested)]


def asked() -> Run:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.ask("c1.0")
    return run


def test_a_child_has_the_tools_that_its_parent_goes_by_and_not_those_that_it_began_with() -> None:
    run = Run(family_pins())
    tighter = changed("pay", approval="always")
    run.crash(present=(*tighter, *AGENTS))
    run.crash(present=(*TOOLS, *AGENTS))  # a deploy that loosens it again
    run.reply(call("helper", input="go"))
    run.check("c1.0")
    event, encoded = child_start(run.state, run.call("c1.0"))
    (pay,) = (it for it in read_pins(event.pins_sha256, encoded).tools if it.name == "pay")
    assert pay == run.state.tools["pay"]
    assert pay.approval == "always"


def test_a_child_may_have_a_tool_that_its_parent_lost() -> None:
    run = Run(family_pins())
    run.crash(present=(*(it for it in TOOLS if it.name != "pay"), *AGENTS))
    run.reply(call("helper", input="go"))
    run.check("c1.0")
    event, encoded = child_start(run.state, run.call("c1.0"))
    (pay,) = (it for it in read_pins(event.pins_sha256, encoded).tools if it.name == "pay")
    assert pay.offered  # it is withdrawn from the child, too, where that is taken up without it


def test_a_changed_description_is_adopted_by_an_event_that_holds_the_new_definition() -> None:
    run = Run()
    [event] = adoptions(run.crash(present=NEW_TEXT))
    new = {it.name: it for it in NEW_TEXT}["refund"]
    assert (event.tool, event.was_sha256, event.definition_sha256) == (
        "refund",
        BY_NAME["refund"].definition_sha256,
        new.definition_sha256,
    )
    assert decode_definition(event.definition, "refund") == new == run.state.tools["refund"]
    assert [tool.name for tool in tools_offered(run.state)] == [tool.name for tool in TOOLS]


def test_the_next_request_has_another_hash_and_an_older_one_is_rebuilt_with_the_definition_of_its_time() -> (
    None
):
    plain, run = Run(), Run()
    for one, present in ((plain, TOOLS), (run, NEW_TEXT)):
        one.reply(call("get_order", order_id="A"))
        one.check("c1.0")
        one.crash(present=present)
        one.report("c1.0")
    first, second = request_hashes(run)
    assert first == request_hashes(plain)[0]
    assert second != request_hashes(plain)[1]
    before = next(at for at, (event, _) in enumerate(run.log) if isinstance(event, e.DefinitionAdopted))
    assert tools_offered(fold(run.log[:before], run.blobs)) == TOOLS
    assert tools_offered(run.state) == NEW_TEXT


def test_nothing_is_adopted_where_nothing_changed_or_only_where_the_code_runs() -> None:
    run = Run()
    assert adoptions(run.crash(present=TOOLS)) == []
    moved = changed("refund", pool="other", group="shop", inline=True, handler_revision="2.0")
    assert adoptions(run.crash(present=moved)) == []
    assert adoptions(run.crash(present=(*TOOLS, msgspec.structs.replace(TOOLS[0], name="new_tool")))) == []


def test_an_adopted_definition_is_adopted_once() -> None:
    run = Run()
    assert len(adoptions(run.crash(present=NEW_TEXT))) == 1
    assert adoptions(run.crash(present=NEW_TEXT)) == []
    assert len(adoptions(run.crash(present=TOOLS))) == 1
    assert run.state.tools == {it.name: it for it in TOOLS}


def test_a_take_over_that_comes_again_after_its_append_adopts_nothing_again() -> None:
    run = Run()
    run.crash(present=NEW_TEXT)
    assert run.send(run_take_over(run)) == ()


def run_take_over(run: Run) -> TakeOver:
    definitions = changes(BY_NAME, {it.name: it for it in NEW_TEXT}.get)
    return TakeOver(epoch=run.state.epoch, host="other", cause="host_died", definitions=definitions)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("effect_version", "2"),
        ("parameters", {"type": "object", "properties": {}, "additionalProperties": False}),
        ("risk", "write"),
        ("key", ("order_id", "amount")),
        ("incidental", ()),
        ("far_side", "none"),
        ("from_results", {"order_id": ("results",)}),
    ],
)
def test_what_a_call_means_is_never_adopted(field: str, value: Any) -> None:
    run = Run()
    assert adoptions(run.crash(present=changed("refund", **{field: value, "description": "other"}))) == []
    assert run.state.tools["refund"] == BY_NAME["refund"]


def test_every_field_of_a_definition_is_adopted_or_kept_or_the_hosts_own() -> None:
    hosts_own = {"pool", "group", "quick", "inline", "check_inline", "handler_revision"}
    the_runs = {"agents", "offered"}
    named = {*ADOPTED_FIELDS, *CONTRACT_FIELDS, *hosts_own, *the_runs}
    assert set(ToolDefinition.__struct_fields__) == named
    assert not set(ADOPTED_FIELDS) & set(CONTRACT_FIELDS)


def test_the_page_names_all_of_the_contract() -> None:
    page = (Path(__file__).parents[2] / "docs" / "versions.md").read_text("utf-8")
    [row] = [line for line in page.splitlines() if "what a call means" in line]
    named = {name.strip(" `") for name in row.split("|")[1].partition(":")[0].split(",")}
    words = {"incidental": "incidental fields", "far_side": "far side"}
    assert named == {words.get(field, field) for field in CONTRACT_FIELDS}


def test_a_deploy_loosens_no_run_in_flight() -> None:
    strict = msgspec.structs.replace(
        BY_NAME["pay"], permissions=("pay",), approval="always", trust="untrusted", after_untrusted="deny"
    )
    loose = msgspec.structs.replace(
        strict, permissions=("other",), approval="never", trust="trusted", after_untrusted="allow"
    )
    now = adopted(strict, loose)
    assert now is not None
    assert (now.permissions, now.approval) == (("other", "pay"), "always")
    assert (now.trust, now.after_untrusted) == ("untrusted", "deny")
    assert adopted(now, loose) is None


def test_a_new_time_out_holds_from_the_next_start_on() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.crash(present=changed("get_order", timeout_ms=500, max_attempts=2))
    assert run.state.calls["c1.0"].valid_until_ms == run.now + 500
    run.report("c1.0", "failed", code="x", retryable=True)
    assert run.bound("c1.0") == ("error", "x")


# --- approvals ---------------------------------------------------------------------------------------------------------


def test_a_pending_approval_lapses_and_is_asked_for_anew_under_the_new_definition() -> None:
    run = asked()
    first = run.approval("c1.0")
    events = run.crash("woken", present=NEW_TEXT)
    assert [e.tag_of(event) for event in events] == [
        "run_resumed",
        "definition_adopted",
        "approval_lapsed",
    ]
    run.ask("c1.0", definition_sha256=b"n" * 32)
    assert run.approval("c1.0") != first
    assert run.phase("c1.0") == "waiting_approval"
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1", definition_sha256=b"n" * 32)
    assert run.started("c1.0") == 1


def test_the_lapsed_approval_can_not_be_used_any_more() -> None:
    run = asked()
    first = run.approval("c1.0")
    run.crash("woken", present=NEW_TEXT)
    run.ask("c1.0")
    run.send(Approve(command_id="late", by="boss", approval_id=first))
    assert run.refusal == "approval_not_found"
    assert run.phase("c1.0") == "waiting_approval"


def test_an_approval_of_another_tool_stands() -> None:
    run = asked()
    run.crash("woken", present=changed("get_order", description="other"))
    assert run.phase("c1.0") == "waiting_approval"
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1")
    assert run.started("c1.0") == 1


def test_deploys_without_end_ask_a_person_only_so_often() -> None:
    run = Run(pins(bounds=limits(approval_rounds=2)))
    run.reply(call("refund", order_id="A", amount=5))
    run.ask("c1.0")
    for number in range(2):
        run.crash("woken", present=changed("refund", description=f"text {number}"))
        run.ask("c1.0")
    assert run.bound("c1.0") == ("error", "approval_stale")


def test_while_the_person_is_not_asked_the_key_is_free_for_another_run() -> None:
    run = asked()
    run.crash("woken", present=NEW_TEXT)
    other = Run(ledger=run.ledger, run_id="r2")
    other.reply(call("refund", order_id="A", amount=5))
    other.check("c1.0")
    other.report("c1.0", result={"refunded": 5})
    run.check("c1.0")
    assert run.bound("c1.0") == ("ok", "replayed")


# --- tools that are gone ------------------------------------------------------------------------------------------------


def test_a_tool_that_is_gone_is_not_offered_any_more_and_the_run_goes_on() -> None:
    run = Run()
    [event] = adoptions(run.crash(present=WITHOUT_REFUND))
    assert (event.definition, event.definition_sha256) == (b"", b"")
    assert tools_offered(run.state) == WITHOUT_REFUND
    run.reply(call("refund", order_id="A", amount=5), call("get_order", order_id="A"))
    run.check("c1.0")
    assert run.state.calls["c1.0"].code == "unknown_tool"
    run.check("c1.1")
    run.report("c1.1")
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


def test_what_a_person_was_asked_about_a_tool_that_is_gone_is_refused() -> None:
    run = asked()
    run.crash("woken", present=WITHOUT_REFUND)
    assert run.bound("c1.0") == ("error", "unknown_tool")
    assert not run.ledger.rows


def test_a_question_stays_open_where_its_tool_is_gone_and_its_answer_counts() -> None:
    """A person may be about to answer, and the answer needs nothing of the application."""
    run = Run(pins(tools=(*TOOLS, ask_user.definition)))
    run.reply(call("ask_user", question="which order?"))
    run.check("c1.0")
    run.crash("woken", present=TOOLS)
    assert run.phase("c1.0") == "waiting_answer"
    assert tools_offered(run.state) == TOOLS
    run.outside(Answer, question_id=question_id("r1", "c1.0"), text="A1042", by="ann")
    assert run.bound("c1.0") == ("ok", "")
    run.reply(call("ask_user", question="and which amount?"))
    run.check("c2.0")
    assert run.bound("c2.0") == ("error", "unknown_tool")


def test_a_question_that_nobody_answers_lapses_where_its_tool_is_gone() -> None:
    run = Run(pins(tools=(*TOOLS, ask_user.definition), bounds=limits(answer_ms=1_000)))
    run.reply(call("ask_user", question="which order?"))
    run.check("c1.0")
    run.crash("woken", present=TOOLS)
    run.tick_to_wake()
    assert run.bound("c1.0") == ("error", "question_expired")


def test_an_approved_call_of_a_tool_that_is_gone_is_refused() -> None:
    run = asked()
    run.approve("c1.0")
    run.crash("woken", present=WITHOUT_REFUND)
    run.check("c1.0", contract_kept=False, resource_version="v1")
    assert run.bound("c1.0") == ("error", "unknown_tool")
    assert run.started("c1.0") == 0


def test_a_read_whose_tool_is_gone_is_not_tried_again() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.crash(present=tuple(it for it in TOOLS if it.name != "get_order"))
    assert not [order for order in run.orders() if isinstance(order, Execute)]
    assert run.bound("c1.0") == ("error", "lost")


def test_an_admitted_read_whose_tool_is_gone_is_refused() -> None:
    run = Run(pins(bounds=limits(parallel=1)))
    run.reply(call("get_order", order_id="A"), call("credit_check", order_id="B"))
    run.check("c1.0")
    run.check("c1.1")
    run.crash(present=tuple(it for it in TOOLS if it.name != "credit_check"))
    run.report("c1.0")
    assert run.bound("c1.1") == ("error", "unknown_tool")


def test_an_unknown_effect_of_a_tool_that_is_gone_is_for_a_person() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.crash(present=WITHOUT_REFUND)
    run.tick_to_wake()
    run.check("c1.0", contract_kept=False)
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")


def test_a_goal_that_needs_a_tool_that_is_gone_blocks_and_a_deploy_that_has_it_lifts_that() -> None:
    run = Run(pins(goal=Goal(evidence=(Evidence("refund"),))))
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.crash(present=WITHOUT_REFUND)
    run.report("c1.0")
    assert run.stop() == ("suspended", "incomplete", "blocked")
    run.crash("woken", present=TOOLS)
    run.outside(Resume)
    assert tools_offered(run.state) == TOOLS
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c2.0")
    run.report("c2.0")
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


def test_a_goal_that_a_tool_has_met_does_not_need_it_any_more() -> None:
    run = Run(pins(goal=Goal(evidence=(Evidence("refund"),))))
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0")
    run.crash(present=WITHOUT_REFUND)
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


# --- wherever the run is ------------------------------------------------------------------------------------------------


def at_created() -> Run:
    return Run(settled=False)


def at_model_retry() -> Run:
    run = Run()
    run.reply(finish="provider_error")
    return run


def at_deciding() -> Run:
    run = Run()
    turn = ModelTurn(finish="final", text="done", usage=USAGE, response_id="resp")
    run.decide(ModelReplied(turn=1, attempt=1, reply=turn))
    return run


def at_results_ready() -> Run:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.decide(run.executed("c1.0"))
    run.decide(Advance())
    return run


def at_suspended() -> Run:
    run = Run(pins(bounds=limits(turns=1)))
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0")
    return run


@pytest.mark.parametrize(
    ("place", "phase"),
    [
        (at_created, "created"),
        (at_model_retry, "model_retry"),
        (at_deciding, "deciding"),
        (at_results_ready, "results_ready"),
        (asked, "open_calls"),
        (at_suspended, "suspended"),
    ],
)
def test_a_definition_is_adopted_wherever_a_run_is_taken_up(place: Any, phase: str) -> None:
    run: Run = place()
    assert run.state.phase == phase
    assert len(adoptions(run.crash("woken", present=NEW_TEXT))) == 1
    assert run.state.tools["refund"].description == "Refund an order, within a day."


def test_a_stopped_run_adopts_before_it_goes_on() -> None:
    run = at_suspended()
    run.crash("woken", present=NEW_TEXT)
    run.outside(RaiseLimits, raised={"turns": 5})
    run.outside(Resume)
    assert request_hashes(run)[-1] == run.state.request_sha256
    assert run.state.phase == "model_requested"


# --- logs ---------------------------------------------------------------------------------------------------------------


def test_a_definition_reads_back_as_it_was_written() -> None:
    for definition in TOOLS:
        assert decode_definition(encode_definition(definition), definition.name) == definition
        assert contract_kept(definition, decode_definition(encode_definition(definition), definition.name))


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"name":"refund"}', encode_definition(BY_NAME["pay"])])
def test_an_adopted_definition_that_can_not_be_read_is_a_refused_history(data: bytes) -> None:
    run = Run()
    event = e.DefinitionAdopted("refund", BY_NAME["refund"].definition_sha256, bytes(32), data)
    run.state.phase = "results_ready"
    with pytest.raises(HistoryRefused, match="adopted definition"):
        evolve(run.state, event, run.now)


def test_a_question_tool_that_was_withdrawn_comes_back_and_is_asked_again() -> None:
    run = Run(pins(tools=(*TOOLS, ask_user.definition)))
    run.reply(call("ask_user", question="which?"))
    by_hand = {"definition_sha256": ask_user.definition_sha256, "handler_revision": "1"}
    run.check("c1.0", **by_hand)
    assert not adoptions(run.crash(present=(*TOOLS, ask_user.definition)))
    [gone] = adoptions(run.crash(present=TOOLS))
    assert (gone.tool, run.state.tools["ask_user"].offered) == ("ask_user", False)
    assert run.phase("c1.0") == "waiting_answer"
    [back] = adoptions(run.crash(present=(*TOOLS, ask_user.definition)))
    assert decode_definition(back.definition, "ask_user") == ask_user.definition
    assert [tool.name for tool in tools_offered(run.state)][-1] == "ask_user"
    assert not adoptions(run.crash(present=(*TOOLS, ask_user.definition)))


def test_a_tool_that_took_the_name_of_a_withdrawn_question_tool_does_not_bring_it_back() -> None:
    run = Run(pins(tools=(*TOOLS, ask_user.definition)))
    run.crash(present=TOOLS)
    other = msgspec.structs.replace(BY_NAME["get_order"], name="ask_user")
    assert adoptions(run.crash(present=(*TOOLS, other))) == []
