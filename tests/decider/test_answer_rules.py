"""What a goal asks of the answer itself: citations of bound results, a typed output, values that come from results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from boundloop.actors.result import result_of
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.answer import CITATIONS_MAX, Citation
from boundloop.runtime.commands import Resume
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.events import Source
from boundloop.runtime.goal import Citations, Evidence, Goal
from boundloop.runtime.goal_spec import checked_goal
from boundloop.runtime.model import NoteItem, ResultItem
from boundloop.runtime.pins import encode_pins
from boundloop.runtime.stage_spec import Stage, stages_from

from .family import Family, family_pins
from .shop import BY_NAME, limits, pins
from .spec import T0, Run, call

CITED = Goal.of(citations="get_order.items.id")
ITEMS = {"items": [{"id": "s1", "text": "Edge"}, {"id": "s2"}, {"id": 7}]}


def found(goal: Goal = CITED, result: Any = ITEMS, *, correct: int = 1, **fields: Any) -> Run:
    """A run with one result on record that is asked for its answer now."""
    run = Run(pins(goal=goal, bounds=limits(corrective_turns=correct)))
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", result=result, **fields)
    return run


def came_to(run: Run) -> str:
    return run.state.reason


def note(run: Run) -> str:
    shown = run.state.items[-1]
    assert isinstance(shown, NoteItem)
    return shown.text


# --- citations -------------------------------------------------------------------------------------------------------


def test_a_citation_of_a_bound_result_completes_and_is_shown_with_its_source() -> None:
    run = found(source=Source("v3", T0 - 5))
    run.final("Two were found [source:s1] and [source:7].")
    assert run.stop() == ("terminated", "completed", "final")
    assert result_of(run.state).citations == (
        Citation("s1", "c1.0", "get_order", T0 - 5, "v3"),
        Citation("7", "c1.0", "get_order", T0 - 5, "v3"),
    )


def test_an_invented_citation_gets_one_corrective_turn_and_then_the_run_stops() -> None:
    run = found()
    run.final("Found [source:s1], [source:s9].")
    assert note(run) == "Not done: The answer doesn't count: citation s9: in no result."
    run.final("Really [source:s9].")
    assert run.stop() == ("suspended", "incomplete", "evidence_missing")
    assert run.state.unfinished == ("citation s9: in no result",)
    assert result_of(run.state).citations == ()


def test_a_corrected_citation_completes() -> None:
    run = found()
    run.final("Found [source:s9].")
    run.final("Found [source:s2].")
    assert came_to(run) == "final"


@pytest.mark.parametrize(
    "text",
    [
        "no citation at all",
        "[source:]",
        "[source: s1]",
        "[source:s1, s2]",
        "[source:s1",
        "[SOURCE:s9] [source:s1]",
        "[source:S1]",
        "[source:Edge]",
        "[source:A]",
        "[source:" + "s" * 500 + "]",
        "(source:s1)",
        "[source:s1\u200b]",
        "[source:07]",
        "[source:7.0]",
    ],
)
def test_what_is_not_exactly_an_id_of_a_result_cites_nothing(text: str) -> None:
    run = found(correct=0)
    run.final(text)
    assert came_to(run) == "evidence_missing"


def test_a_marker_is_found_however_it_is_written() -> None:
    run = found(correct=0)
    run.final("[Source:s1]")
    assert came_to(run) == "final"


def test_too_many_citations_are_refused_and_repeated_ones_count_once() -> None:
    ids = [f"i{number}" for number in range(CITATIONS_MAX + 1)]
    goal = Goal.of(citations=Citations(("get_order.ids",), least=2))
    for cited, reason in ((ids, "evidence_missing"), (ids[:-1], "final"), (ids[:1] * 5, "evidence_missing")):
        run = found(goal, {"ids": ids}, correct=0)
        run.final("".join(f"[source:{one}]" for one in cited))
        assert came_to(run) == reason


def test_citations_may_be_optional_and_are_then_still_checked() -> None:
    goal = Goal.of(citations=Citations(("get_order.items.id",), least=0))
    for text, reason in (("nothing cited", "final"), ("[source:s9]", "evidence_missing")):
        run = found(goal, correct=0)
        run.final(text)
        assert came_to(run) == reason


def test_another_marker_and_other_sources() -> None:
    goal = Goal.of(citations=Citations(("credit_check", "get_order.items.id"), marker="ref"))
    for text, reason in (
        ("[ref:s1]", "final"),
        ("[source:s1]", "evidence_missing"),
        ("[ref:Edge]", "evidence_missing"),
    ):
        run = found(goal, correct=0)
        run.final(text)
        assert came_to(run) == reason


def test_the_newest_result_that_holds_the_id_is_what_is_cited() -> None:
    run = found()
    run.now += 1_000
    run.reply(call("get_order", order_id="B"))
    run.check("c2.0")
    run.report("c2.0", result={"items": [{"id": "s1"}]}, source=Source("v9", 0))
    run.final("[source:s1] [source:s2]")
    first, second = result_of(run.state).citations
    assert (first.call, first.source_version, first.observed_at_ms) == ("c2.0", "v9", T0 + 1_000)
    assert (second.call, second.source_version) == ("c1.0", "")


def test_what_a_failed_result_or_the_model_holds_can_not_be_cited() -> None:
    run = Run(pins(goal=CITED, bounds=limits(corrective_turns=0)))
    run.reply(call("get_order", order_id="s1"), text="s1")
    run.check("c1.0")
    run.report("c1.0", "failed", code="s1")
    run.final("[source:s1]")
    assert came_to(run) == "evidence_missing"


def test_an_answer_of_a_run_that_is_taken_over_is_judged_by_the_same_record() -> None:
    run = found()
    run.crash()
    run.reply(text="[source:s1]")
    assert came_to(run) == "final"


# --- typed output ----------------------------------------------------------------------------------------------------


@dataclass
class Report:
    order_id: str
    cents: int
    sources: list[str]


TYPED = Goal.of("get_order", output=Report)
GOOD = '{"order_id":"s1","cents":5,"sources":["s1"]}'


def test_a_typed_answer_is_strict_json_of_its_schema_and_is_given_as_values() -> None:
    run = found(TYPED)
    run.final(f" {GOOD}\n")
    assert came_to(run) == "final"
    assert result_of(run.state).output == {"order_id": "s1", "cents": 5, "sources": ["s1"]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Here it is: " + GOOD, "output: no JSON (syntax)"),
        ("```json\n" + GOOD + "\n```", "output: no JSON (syntax)"),
        (GOOD + GOOD, "output: no JSON (syntax)"),
        (GOOD.replace('"cents":5', '"cents":5,"cents":6'), "output: no JSON (dup_key)"),
        (GOOD.replace("5", '"5"'), "output: $.cents"),
        (GOOD.replace("5", "5.0"), "output: $.cents"),
        (GOOD.replace('"cents":5,', ""), "output: $.cents"),
        (GOOD.replace("cents", "euros"), "output: $"),
        ("[" * 100_000, "output: no JSON (depth)"),
        ("null", "output: $"),
    ],
)
def test_any_other_answer_is_corrected_once_and_then_stops(text: str, why: str) -> None:
    run = found(TYPED)
    run.final(text)
    assert f"The answer doesn't count: {why}" in note(run)
    run.final(text)
    assert run.stop() == ("suspended", "incomplete", "evidence_missing")
    assert run.state.unfinished[0].startswith(why)
    result = result_of(run.state)
    assert (result.output, result.typed) == (None, False)


def test_values_of_the_output_must_come_from_results() -> None:
    goal = Goal.of(
        output=Report, from_results={"order_id": "get_order.items.id", "sources": "get_order.items.id"}
    )
    for text, reason in (
        (GOOD, "final"),
        (GOOD.replace('"order_id":"s1"', '"order_id":"s9"'), "evidence_missing"),
        (GOOD.replace('["s1"]', '["s1","s9"]'), "evidence_missing"),
        (GOOD.replace('["s1"]', "[]"), "final"),
    ):
        run = found(goal, correct=0)
        run.final(text)
        assert came_to(run) == reason, text


def test_citations_may_stand_in_a_field_of_the_output() -> None:
    goal = Goal.of(output=Report, citations=Citations(("get_order.items.id",), field="sources"))
    for text, reason in (
        (GOOD, "final"),
        (GOOD.replace('["s1"]', '["s9"]'), "evidence_missing"),
        (GOOD.replace('["s1"]', "[]"), "evidence_missing"),
    ):
        run = found(goal, correct=0)
        run.final(text)
        assert came_to(run) == reason, text


def test_evidence_and_answer_are_both_needed_and_both_named() -> None:
    goal = Goal.of("refund", output=Report)
    run = found(goal)
    run.final("done")
    assert note(run) == (
        "Not done: there is no successful result on record for refund. "
        "The answer doesn't count: output: no JSON (syntax)."
    )
    run.final(GOOD)
    assert came_to(run) == "evidence_missing"
    assert run.state.unfinished == ("refund",)


def test_a_run_that_stops_before_its_answer_names_what_is_asked_of_it() -> None:
    goal = Goal.of(output=Report, citations=Citations(("get_order.items.id",), field="sources"))
    run = Run(pins(goal=goal, bounds=limits(turns=1)))
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", result=ITEMS)
    assert run.stop() == ("suspended", "incomplete", "max_turns")
    assert run.state.unfinished == ("output", "citations")


def test_a_childs_typed_output_is_what_its_parents_arguments_may_come_from() -> None:
    clerk = agent(
        name="typed_clerk",
        description="d",
        tools=("get_order",),
        goal=Goal.of(output={"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}),
    ).definition
    BY_NAME[clerk.name] = clerk
    plain = family_pins()
    tools = tuple(
        msgspec.structs.replace(one, from_results={"order_id": ("typed_clerk.output.id",)})
        if one.name == "refund"
        else one
        for one in plain.tools
    )
    family = Family(msgspec.structs.replace(plain, tools=(*tools, clerk)))
    run = family.root
    run.reply(call("typed_clerk", input="go"))
    run.check("c1.0")
    family.start(run, "c1.0").final('{"id":"B"}')
    family.serve()
    shown = run.state.items[-1]
    assert isinstance(shown, ResultItem)
    assert b'"output":{"id":"B"}' in shown.content
    run.reply(call("refund", order_id="B", amount=5))
    run.check("c2.0")
    assert run.phase("c2.0") == "started"


# --- declarations ----------------------------------------------------------------------------------------------------


def test_a_goal_of_evidence_alone_is_pinned_as_it_was() -> None:
    assert (
        msgspec.json.encode(Goal.of("refund"))
        == b'{"evidence":[{"tool":"refund","arguments":{},"result":{},"count":1}]}'
    )
    pinned = pins(goal=TYPED)
    decoded = msgspec.json.decode(encode_pins(pinned), type=type(pinned))
    assert decoded.goal == TYPED


ODD: Any = 5
TEXT = {"type": "string"}


def members(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """A schema of an object."""
    return {"type": "object", "properties": properties, "required": list(required), **more}


def rows_of(item: Any, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least}


LEAF = {"$defs": {"leaf": members({"id": {"anyOf": [TEXT, {"type": "null"}]}})}}


@pytest.mark.parametrize(
    ("output", "path"),
    [
        (Report, "sources"),
        (list[Report], "order_id"),
        (Report | None, "order_id"),
        (dict[str, int], "total"),
        (members({"rows": rows_of(rows_of(members({"id": TEXT})))}), "rows.id"),
        (members({"row": {"$ref": "#/$defs/leaf"}}, **LEAF), "row.id"),
        (members({"row": {"oneOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]}}, **LEAF), "row.id"),
        (members({"row": {"type": "array", "prefixItems": [TEXT, members({"id": TEXT})]}}), "row.id"),
        (members({"any": {}}), "any"),
        (members({"how": {"enum": ["a", None]}}), "how"),
    ],
)
def test_a_path_that_the_output_declares_is_taken(output: Any, path: str) -> None:
    assert Goal.of(output=output, from_results=(path,)).from_results == {path: ("results", "given")}
    assert Goal.of(output=output, citations=Citations(("a",), field=path)).citations is not None


# --- sources that aren't there ---------------------------------------------------------------------------------------


def asks_for(path: str, schema: Any, source: Any = "nosuch.id") -> Goal:
    return Goal.of(output=schema, from_results={path: source})


MUST = members({"id": TEXT}, "id")


@pytest.mark.parametrize(
    ("goal", "blocked"),
    [
        (Goal.of(citations="nosuch.id"), True),
        (Goal.of(citations=Citations(("nosuch.id", "gone"))), True),
        (Goal.of(citations=Citations(("nosuch.id", "get_order.id"))), False),
        (Goal.of(citations=Citations(("nosuch.id",), least=0)), False),
        (Goal.of(citations="read_result"), True),
        (Goal.of(citations="results"), False),
        (Goal.of("get_order", citations="nosuch.id"), True),
        (asks_for("id", MUST), True),
        (asks_for("id", MUST, ("nosuch", "results")), False),
        (asks_for("id", MUST, ("nosuch", "given.id")), True),
        (asks_for("id", members({"id": TEXT})), False),
        (asks_for("id", members({"id": {"type": ["string", "null"]}}, "id")), False),
        (asks_for("id", {"anyOf": [MUST, {"type": "null"}]}), False),
        (asks_for("id", {"anyOf": [MUST, members({"id": {"type": "integer"}}, "id")]}), True),
        (asks_for("id", rows_of(MUST)), False),
        (asks_for("id", rows_of(MUST, 1)), True),
        (asks_for("row.id", members({"row": {"$ref": "#/$defs/r"}}, "row", **{"$defs": {"r": MUST}})), True),
    ],
)
def test_an_answer_that_can_never_count_for_want_of_its_source_is_not_asked_for(
    goal: Goal, blocked: bool
) -> None:
    run = Run(pins(goal=goal))
    assert run.stop()[1:] == (("incomplete", "blocked") if blocked else ("", ""))
    if blocked:
        assert run.state.detail.endswith("is not offered")
        run.outside(Resume)
        assert run.stop()[2] == "blocked"


def test_nothing_can_be_cited_where_only_models_speak() -> None:
    plain = family_pins()
    agents = tuple(one for one in plain.tools if one.kind == "agent")
    run = Run(msgspec.structs.replace(plain, goal=Goal.of(citations="results"), tools=agents))
    assert run.stop()[2] == "blocked"
    assert Run(pins(goal=Goal.of(citations="results"), tools=())).stop()[2] == "blocked"


def test_a_source_of_a_later_stage_is_there_and_one_of_a_stage_that_was_left_only_with_what_it_brought() -> (
    None
):
    stages = stages_from((Stage("one", ("credit_check",), "credit_check"), Stage("two", ("get_order",))))
    for sources, result, blocked in (
        ("get_order.id", {}, False),
        ("credit_check.id", {"id": "A"}, False),
        ("credit_check.id", {"other": "A"}, True),
        ("results", {}, False),
    ):
        goal = Goal.of(citations=sources)
        run = Run(msgspec.structs.replace(pins(goal=goal), stages=stages))
        assert run.state.reason == ""
        run.reply(call("credit_check", order_id="A"))
        run.check("c1.0")
        run.report("c1.0", result=result)
        assert (run.state.reason == "blocked") is blocked, (sources, result)


def test_a_source_that_a_deploy_dropped_blocks_unless_it_was_read_before() -> None:
    for read in (False, True):
        run = Run(pins(goal=Goal.of(citations="get_order.id")))
        if read:
            run.reply(call("get_order", order_id="A"))
            run.check("c1.0")
            run.report("c1.0", result={"id": "s1"})
        run.crash(present=[one for name, one in BY_NAME.items() if name != "get_order"])
        if not read:
            run.reply(call("credit_check", order_id="A"))
            run.check("c1.0")
            run.report("c1.0")
            assert run.stop()[2] == "blocked"
        else:
            run.final("[source:s1]")
            assert run.stop()[2] == "final"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "empty_goal"),
        ({"citations": "given.id"}, "goal_citations"),
        ({"citations": "Get Order"}, "from_results"),
        ({"citations": ODD}, "goal_citations"),
        ({"citations": Citations(())}, "from_results"),
        ({"citations": Citations(("a",), marker="so urce")}, "goal_citations"),
        ({"citations": Citations(("a",), field="x")}, "goal_citations"),
        ({"citations": Citations(("a",), least=-1)}, "goal_citations"),
        ({"citations": Citations(("a",), least=257)}, "goal_citations"),
        ({"from_results": ("id",)}, "goal_output"),
        ({"output": Report, "from_results": ("orderid",)}, "goal_path"),
        ({"output": Report, "from_results": ("order_id.id",)}, "goal_path"),
        ({"output": Report, "citations": Citations(("a",), field="source")}, "goal_path"),
        ({"output": {"type": "object"}, "from_results": ("id",)}, "goal_path"),
        ({"output": members({"order.id": TEXT}), "from_results": ("order.id",)}, "goal_path"),
        ({"output": members({"done": {"type": "boolean"}}), "from_results": ("done",)}, "goal_path"),
        ({"output": members({"how": {"enum": [None, True]}}), "from_results": ("how",)}, "goal_path"),
        ({"output": members({"order": members({"id": TEXT})}), "from_results": ("order",)}, "goal_path"),
        ({"output": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}, None),
        ({"output": object()}, None),
    ],
)
def test_goals_that_mean_nothing_are_refused(options: dict[str, Any], code: str | None) -> None:
    with pytest.raises(DeclarationError) as caught:
        Goal.of(**options)
    assert code is None or caught.value.code == code


def test_a_goal_made_by_hand_is_checked_as_well() -> None:
    with pytest.raises(DeclarationError):
        checked_goal(Goal((Evidence("a", count=0),)))
    with pytest.raises(DeclarationError):
        agent(name="a", description="d", goal=Goal(output={"type": "nonsense"}))
    with pytest.raises(DeclarationError, match="not by an answer"):
        stages_from((Stage("a", ("b",), Goal.of("b", output=Report)), Stage("c")))
    assert checked_goal(Goal()) == Goal()


# --- what only looks like an id --------------------------------------------------------------------------------------

TWO_OF = Goal.of(citations=Citations(("get_order.id",), least=2))
LOOSE: dict[str, Any] = {
    "type": "object",
    "properties": {"sources": {"type": "array", "items": {}}},
    "required": ["sources"],
}
IN_LOOSE = Goal.of(output=LOOSE, citations=Citations(("get_order.id",), field="sources"))


@pytest.mark.parametrize(
    "text", ["[source:0] [source:-0]", "[source:0] [source:00]", "[source:0] [source:+0]"]
)
def test_one_result_is_one_citation_however_its_number_is_spelt(text: str) -> None:
    run = found(TWO_OF, {"id": 0}, correct=0)
    run.final(text)
    assert came_to(run) == "evidence_missing"


def test_a_negative_number_is_cited_as_it_is_written() -> None:
    run = found(TWO_OF, {"id": [-7, 0]}, correct=0)
    run.final("[source:-7] [source:0]")
    assert came_to(run) == "final"


@pytest.mark.parametrize("cited", ["1.5", "{}", '{"id":"?"}', "[{}]"])
def test_what_is_neither_text_nor_integer_cites_nothing_whatever_the_results_hold(cited: str) -> None:
    for result, text in (
        ({"id": "?"}, f'{{"sources":[{cited}]}}'),
        ({"id": ["?", "A"]}, f'{{"sources":["A",{cited}]}}'),
    ):
        run = found(IN_LOOSE, result, correct=0)
        run.final(text)
        assert came_to(run) == "evidence_missing"
        assert run.state.unfinished == ("citation ?: in no result",)


@pytest.mark.parametrize("held", ["A", "A...\n", "A..."])
def test_an_unclosed_marker_cites_nothing_whatever_the_results_hold(held: str) -> None:
    run = found(Goal.of(citations="get_order.id"), {"id": held}, correct=0)
    run.final("[source:A")
    assert came_to(run) == "evidence_missing"
