"""Arguments whose values must come from results: what counts as such a value, and what an invented one comes to."""

from __future__ import annotations

import json
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime import provenance
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.canonical import JSON, canonical_bytes
from boundloop.runtime.commands import Answer, Send
from boundloop.runtime.errors import DeclarationError, UnknownTool
from boundloop.runtime.goal import Goal
from boundloop.runtime.model import ResultItem
from boundloop.runtime.pins import Pins, encode_pins
from boundloop.runtime.provenance import (
    INDEXED_BYTES_MAX,
    PLACES_OF_RESULT_MAX,
    VALUES_OF_RESULT_MAX,
    Watched,
    digest,
    given_bytes,
    sources_from,
    split_digests,
)
from boundloop.runtime.question_tool import ask_user
from boundloop.runtime.read_result import READ_RESULT, part_of
from boundloop.runtime.start import NewRunSpec, start_run
from boundloop.runtime.tool_spec import tool, tool_spec
from boundloop.runtime.toolbox import Toolbox

from .family import Family, family_pins
from .shop import BY_NAME, changed, limits, pins
from .spec import Ledger, Run, call


def sourced(*sources: str, **fields: Any) -> Pins:
    """The shop, where a refund's order must come from these sources, or from any result."""
    named = sources_from({"order_id": sources} if sources else ("order_id",), "test")
    return pins(tools=changed("refund", from_results=named), **fields)


def looked_up(result: Any, *sources: str, order_id: str = "A", **fields: Any) -> Run:
    """A run with one result of ``get_order`` on record."""
    run = Run(sourced(*sources), **fields)
    run.reply(call("get_order", order_id=order_id))
    run.check("c1.0")
    run.report("c1.0", result=result)
    return run


def refund(run: Run, order_id: Any) -> tuple[str, str]:
    """Propose a refund in the next turn: the phase and the code that it gets to."""
    run.reply(call("refund", order_id=order_id, amount=5))
    name = f"c{run.state.turn}.0"
    run.check(name)
    if name not in run.state.calls:
        name = f"c{run.state.turn - 1}.0"
    found = next(
        (event for event, _ in run.log if isinstance(event, e.CallRejected) and event.call == name), None
    )
    return ("rejected", found.code) if found else (run.phase(name), "")


def test_an_invented_id_is_refused_before_anything_else_is_asked() -> None:
    run = looked_up({"order_id": "A"})
    assert refund(run, "B") == ("rejected", "not_from_results")
    rejected = next(event for event, _ in run.log if isinstance(event, e.CallRejected))
    assert (rejected.rung, rejected.path) == ("provenance", "$.order_id")
    shown = run.state.items[-1]
    assert isinstance(shown, ResultItem)
    assert b"look it up first" in shown.content
    assert run.started("c2.0") == 0
    assert run.state.counters.denials == 1


def test_an_id_that_a_result_holds_goes_on() -> None:
    assert refund(looked_up({"found": [{"order": {"id": "B"}}]}), "B") == ("started", "")


def test_an_argument_of_an_earlier_call_is_no_result() -> None:
    assert refund(looked_up({}, order_id="B"), "B") == ("rejected", "not_from_results")


@pytest.mark.parametrize("outcome", ["failed", "refused"])
def test_only_successful_results_count(outcome: str) -> None:
    run = Run(sourced())
    run.reply(call("get_order", order_id="B") if outcome == "failed" else call("unknown_B", order_id="B"))
    run.check("c1.0")
    if outcome == "failed":
        run.report("c1.0", "failed", code="B", safe_message="B")
    assert refund(run, "B") == ("rejected", "not_from_results")


def test_a_text_that_only_contains_the_value_is_another_value() -> None:
    assert refund(looked_up({"note": "please refund B now"}), "B") == ("rejected", "not_from_results")


@pytest.mark.parametrize("result", [{"B": 1}, {"x": True}, {"x": None}, {"x": "b"}, {"x": "B "}])
def test_names_of_members_flags_and_other_texts_are_no_such_value(result: Any) -> None:
    assert refund(looked_up(result), "B") == ("rejected", "not_from_results")


def test_a_result_of_the_same_turn_comes_too_late_for_the_proposal() -> None:
    """Whatever the order of verdicts and results: the model didn't know it when it proposed."""
    run = Run(sourced())
    run.reply(call("get_order", order_id="B"), call("refund", order_id="B", amount=5))
    run.check("c1.0")
    run.report("c1.0", result={"order_id": "B"})
    run.check("c1.1")
    assert run.bound("c1.1") == ("error", "not_from_results")


def test_a_named_field_is_the_only_source() -> None:
    result = {"id": "A", "customer": "C", "lines": [[{"id": "L"}], {"id": "M"}]}
    for sources, value, good in (
        (("get_order.id",), "A", True),
        (("get_order.id",), "C", False),
        (("get_order.lines.id",), "L", True),
        (("get_order.lines.id",), "M", True),
        (("get_order.lines.id",), "A", False),
        (("get_order",), "C", True),
        (("credit_check", "get_order.customer"), "C", True),
        (("credit_check",), "C", False),
        (("given",), "C", False),
        (("results",), "C", True),
    ):
        came = refund(looked_up(result, *sources), value)
        assert came == (("started", "") if good else ("rejected", "not_from_results")), (sources, value)


def test_values_are_compared_as_json() -> None:
    named = sources_from(("amount",), "test")
    for result, amount, good in (
        ({"total": 5}, 5, True),
        ({"total": 5.0}, 5, True),
        ({"total": "5"}, 5, False),
        ({"total": True}, 1, False),
        ([[5]], 5, True),
    ):
        run = Run(pins(tools=changed("pay", from_results=named)))
        run.reply(call("get_order", order_id="A"))
        run.check("c1.0")
        run.report("c1.0", result=result)
        run.reply(call("pay", order_id="A", amount=amount))
        run.check("c2.0")
        refused = any(isinstance(event, e.CallRejected) for event, _ in run.log)
        assert refused is not good, (result, amount)


def many(order_ids: list[str], note: str = "") -> dict[str, Any]:
    "Refund several."
    return {}


def test_each_element_of_a_list_must_have_come_from_a_result_and_what_is_left_out_needs_none() -> None:
    several = tool(risk="read", from_results=("order_ids", "note"))(partial(many))
    definition = tool_spec(several).definition
    BY_NAME[definition.name] = definition
    for values, good in ((["A", "C"], True), ([], True), (["A", "X"], False)):
        run = Run(pins(tools=(*pins().tools, definition)))
        run.reply(call("get_order", order_id="A"))
        run.check("c1.0")
        run.report("c1.0", result={"ids": ["A", "B", "C"]})
        run.reply(call("many", order_ids=values))
        run.check("c2.0")
        assert (run.phase("c2.0") == "started") is good if good else run.bound("c2.0")[0] == "error"


def test_an_object_in_such_an_argument_is_refused_because_its_names_could_say_anything() -> None:
    def pick(which: dict[str, Any]) -> dict[str, Any]:
        "Pick."
        return {}

    definition = tool_spec(tool(risk="read", from_results=("which",))(pick)).definition
    BY_NAME[definition.name] = definition
    run = Run(pins(tools=(*pins().tools, definition)))
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", result={"id": "A"})
    run.reply(call("pick", which={"X": "A"}))
    run.check("c2.0")
    assert run.bound("c2.0") == ("error", "not_from_results")


# --- large, replayed and other people's results --------------------------------------------------------------------


def test_a_large_result_is_judged_by_the_digests_of_the_whole_and_never_by_its_view() -> None:
    view = {"bytes": 99, "head": "B", "truncated": True}
    whole = b'{"rows":[{"id":"B"}]}'
    pinned = sourced()
    for values, good in ((pinned.values_of("get_order", whole), True), (b"", False), (None, False)):
        run = Run(pinned)
        run.reply(call("get_order", order_id="A"))
        run.check("c1.0")
        run.report("c1.0", result=view, artifact=bytes(32), size=99, met=(), values=values)
        assert (refund(run, "B") == ("started", "")) is good


def test_a_large_result_that_a_query_found_counts_by_its_digests() -> None:
    run = Run(sourced())
    run.reply(call("ship", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    run.query("c1.0", "applied", {"truncated": True}, met=(), values=digest("results", "B"))
    assert refund(run, "B") == ("started", "")


def test_a_replayed_result_counts() -> None:
    ledger = Ledger()
    first = Run(ledger=ledger)
    first.reply(call("pay", order_id="A", amount=5))
    first.check("c1.0")
    first.report("c1.0", result={"receipt": "B"})
    run = Run(sourced(), ledger=ledger, run_id="r2")
    run.reply(call("pay", order_id="A", amount=5))
    run.check("c1.0")
    assert run.bound("c1.0") == ("ok", "replayed")
    assert refund(run, "B") == ("started", "")


def test_what_an_agent_says_is_a_models_word_unless_its_field_is_named() -> None:
    for sources, good in (((), False), (("helper.text",), True)):
        plain = family_pins()
        named = sources_from({"order_id": sources} if sources else ("order_id",), "test")
        tools = tuple(
            msgspec.structs.replace(one, from_results=named) if one.name == "refund" else one
            for one in plain.tools
        )
        family = Family(msgspec.structs.replace(plain, tools=tools))
        family.root.reply(call("helper", input="go"))
        family.root.check("c1.0")
        family.start(family.root, "c1.0").final("B")
        family.serve()
        assert (refund(family.root, "B") == ("started", "")) is good


def test_a_persons_answer_counts_as_a_result_and_a_persons_message_does_not() -> None:
    for answered in (True, False):
        named = sources_from(("order_id",), "test")
        asking = tool_spec(ask_user).definition
        run = Run(pins(tools=(*changed("refund", from_results=named), asking)))
        if answered:
            run.reply(call("ask_user", question="Which order?"))
            run.check("c1.0")
            question = run.state.calls["c1.0"].question
            assert question is not None
            run.outside(Answer, question_id=question.question_id, text="B")
        else:
            run.outside(Send, text="B")
        assert (refund(run, "B") == ("started", "")) is answered


# --- what the model itself wrote ------------------------------------------------------------------------------------


def read_on(*sources: str, goal: Goal | None = None) -> Run:
    """A run that read a large result on, at an offset of the model's own choice."""
    named = sources_from({"amount": sources} if sources else ("amount",), "test")
    run = Run(pins(tools=changed("refund", from_results=named), goal=goal))
    whole = canonical_bytes({"total": 12, "note": "pay ZZ-9 out", "text": "x" * 3_000})
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    values = run.pins.values_of("get_order", whole)
    artifact = sha256(whole).digest()
    run.report("c1.0", result={"head": "{"}, artifact=artifact, size=len(whole), met=(), values=values)
    handle = artifact.hex()[:16]
    run.reply(call("read_result", handle=handle, offset=777, limit=4))
    run.send(run.checks("c2.0", definition_sha256=READ_RESULT.definition_sha256, handler_revision="1"))
    run.report("c2.0", result=json.loads(part_of(whole, handle, 777, 4, 4_096)))
    assert run.bound("c2.0") == ("ok", "")
    return run


@pytest.mark.parametrize("sources", [(), ("results",), ("results", "get_order")])
def test_a_number_that_a_model_wrote_as_an_offset_is_in_no_result(sources: tuple[str, ...]) -> None:
    for amount, good in ((777, False), (4, False), (3_000, False), (12, True)):
        run = read_on(*sources)
        run.reply(call("refund", order_id="A", amount=amount))
        run.check("c3.0")
        refused = [event.code for event, _ in run.log if isinstance(event, e.CallRejected)]
        assert refused == ([] if good else ["not_from_results"]), amount


@pytest.mark.parametrize("cited", ["777", "xxxx"])
def test_what_a_model_read_back_by_its_own_numbers_can_not_be_cited(cited: str) -> None:
    run = read_on(goal=Goal.of(citations="results"))
    run.final(f"[source:{cited}]")
    assert run.state.live
    run.final(f"[source:{cited}]")
    assert run.stop() == ("suspended", "incomplete", "evidence_missing")


def test_an_applications_own_read_result_is_a_tool_like_any_other() -> None:
    own = tool_spec(tool(risk="read", name="read_result")(partial(read))).definition
    run = Run(pins(tools=(own, *changed("refund", from_results=sources_from(("order_id",), "test")))))
    run.reply(call("read_result", order_id="A"))
    run.check("c1.0", definition_sha256=own.definition_sha256)
    run.report("c1.0", result={"id": "B"})
    assert refund(run, "B") == ("started", "")


# --- given -----------------------------------------------------------------------------------------------------------


def given(pinned: Pins, value: dict[str, Any]) -> Run:
    spec = NewRunSpec(run_id="r1", input="x", operation_id="o", given=given_bytes(value))
    return Run(pinned, started=start_run(spec, pinned)[0])


def test_what_the_caller_gave_counts_where_it_is_a_source() -> None:
    for sources, good in (
        ((), True),
        (("given.order_id",), True),
        (("given.other",), False),
        (("results",), False),
    ):
        run = given(sourced(*sources), {"order_id": "B", "other": "C"})
        assert (refund(run, "B") == ("started", "")) is good, sources


def test_the_text_of_the_input_is_no_given_value() -> None:
    pinned = sourced()
    spec = NewRunSpec(run_id="r1", input="B", operation_id="o")
    run = Run(pinned, started=start_run(spec, pinned)[0])
    assert refund(run, "B") == ("rejected", "not_from_results")


def test_a_child_is_given_what_its_parent_was_and_the_arguments_that_were_held_against_results() -> None:
    clerk = agent(
        name="held_clerk",
        description="d",
        tools=("refund",),
        params={
            "type": "object",
            "properties": {"order_id": {"type": "string"}, "text": {"type": "string"}},
            "required": ["order_id", "text"],
        },
        from_results=("order_id",),
    ).definition
    BY_NAME[clerk.name] = clerk
    plain = family_pins()
    tools = tuple(
        msgspec.structs.replace(one, from_results=sources_from(("order_id",), "test"))
        if one.name == "refund"
        else one
        for one in plain.tools
    )
    pinned = msgspec.structs.replace(plain, tools=(*tools, clerk))
    spec = NewRunSpec(run_id="r1", input="x", operation_id="o", given=given_bytes({"ticket": "T"}))
    family = Family(pinned, started=start_run(spec, pinned)[0])
    run = family.root
    run.reply(call("held_clerk", order_id="B", text="do B"))
    run.check("c1.0")
    assert run.bound("c1.0") == ("error", "not_from_results")
    run.reply(call("get_order", order_id="A"))
    run.check("c2.0")
    run.report("c2.0", result={"order_id": "A"})
    run.reply(call("held_clerk", order_id="A", text="do Z"))
    run.check("c3.0")
    child = family.start(run, "c3.0")
    assert child.state.given == b'{"order_id":"A","ticket":"T"}'
    child.reply(call("refund", order_id="Z", amount=5), call("refund", order_id="A", amount=5))
    child.check("c1.0")
    child.check("c1.1")
    assert child.bound("c1.0") == ("error", "not_from_results")
    assert child.phase("c1.1") == "started"


# --- bounds, crash, cost -------------------------------------------------------------------------------------------


def test_what_the_index_has_no_room_for_was_not_seen_and_that_is_said() -> None:
    run = looked_up({"ids": [f"O{number}" for number in range(VALUES_OF_RESULT_MAX + 1)]})
    assert run.state.values_left_out == 1
    assert refund(run, f"O{VALUES_OF_RESULT_MAX}") == ("rejected", "not_from_results")
    shown = run.state.items[-1]
    assert isinstance(shown, ResultItem)
    assert b"more values than are kept" in shown.content
    assert refund(run, "O0") == ("started", "")


COSTS: list[tuple[Any, int, bool]] = [
    ([f"O{number}" for number in range(VALUES_OF_RESULT_MAX)], VALUES_OF_RESULT_MAX, False),
    ([f"O{number}" for number in range(50_000)], VALUES_OF_RESULT_MAX, True),
    (["O"] * 50_000, 1, False),
    ([*["O"] * PLACES_OF_RESULT_MAX, "P"], 1, True),
    ([*[None] * PLACES_OF_RESULT_MAX, "P"], 0, True),
    ([[]] * (PLACES_OF_RESULT_MAX + 1), 0, True),
    ([{"a": True}] * PLACES_OF_RESULT_MAX, 0, True),
    ([1, 1.0, "1", True, 2, 2], 3, False),
]


@pytest.mark.parametrize(("values", "kept", "left_out"), COSTS)
def test_what_indexing_costs_is_bounded_whatever_a_tool_returns(
    values: Any, kept: int, left_out: bool
) -> None:
    hashed: list[Any] = []

    def counted(source: str, value: Any) -> bytes:
        hashed.append(value)
        return digest(source, value)

    whole = canonical_bytes({"values": values})
    for source in ("results", "t.values"):
        hashed.clear()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(provenance, "digest", counted)
            found, cut = Watched(({"x": (source,)},)).digests("t", is_agent=False, result=whole)
        assert (len(found), bool(cut), len(hashed)) == (kept, left_out, kept)


def test_all_that_is_asked_of_one_result_shares_its_bounds() -> None:
    watched = Watched(({"x": ("t.a", "t.b", "results")},))
    nothing: list[JSON] = [None for _ in range(PLACES_OF_RESULT_MAX)]
    whole = canonical_bytes({"a": nothing, "b": "B"})
    assert watched.digests("t", is_agent=False, result=whole) == ([], True)


def test_what_stands_beside_a_named_field_is_not_even_looked_at() -> None:
    watched = Watched(({"x": ("t.rows.id",)},))
    rows: list[Any] = [{"id": "B", "notes": [0] * PLACES_OF_RESULT_MAX}]
    held: Any = {"before": [0] * PLACES_OF_RESULT_MAX, "rows": rows}
    whole = canonical_bytes(held)
    assert watched.digests("t", is_agent=False, result=whole) == ([digest("t.rows.id", "B")], False)


def test_a_result_too_large_to_be_parsed_in_a_hosts_loop_was_not_seen() -> None:
    parsed: list[bytes] = []

    def parse(data: bytes) -> Any:
        parsed.append(data)
        return ["B"]

    watched = Watched(({"x": ("results",)},))
    most = bytes(INDEXED_BYTES_MAX)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(provenance, "decode_canonical", parse)
        assert watched.digests("t", is_agent=False, result=most) == ([digest("results", "B")], False)
        assert parsed == [most]
        assert watched.digests("t", is_agent=False, result=most + b" ") == ([], True)
        assert parsed == [most]


def test_that_a_large_result_was_indexed_in_part_is_on_record_and_said() -> None:
    for extra, said in ((0, False), (1, True)):
        run = Run(sourced())
        run.reply(call("get_order", order_id="A"))
        run.check("c1.0")
        whole = canonical_bytes([f"O{number}" for number in range(VALUES_OF_RESULT_MAX + extra)])
        values = run.pins.values_of("get_order", whole)
        run.report("c1.0", result={"head": "x"}, artifact=bytes(32), size=len(whole), met=(), values=values)
        assert (run.state.values_left_out, len(run.state.values_seen)) == (extra, VALUES_OF_RESULT_MAX)
        assert refund(run, f"O{VALUES_OF_RESULT_MAX}") == ("rejected", "not_from_results")
        shown = run.state.items[-1]
        assert isinstance(shown, ResultItem)
        assert (b"more values than are kept" in shown.content) is said


def test_the_index_of_a_run_is_bounded() -> None:
    run = Run(
        sourced(
            bounds=limits(
                turns=60, tool_calls=60, call_attempts=60, model_attempts=60, context_tokens=2_000_000
            )
        ),
        fold_every_append=False,
    )
    turns = 34
    for turn in range(1, turns + 1):
        run.reply(call("get_order", order_id=f"T{turn}"))
        run.check(f"c{turn}.0")
        run.report(f"c{turn}.0", result={"ids": [f"{turn}-{number}" for number in range(1_000)]})
    assert len(run.state.values_seen) == 32_768
    assert run.state.values_left_out == turns * 1_000 - 32_768
    assert refund(run, "34-999") == ("rejected", "not_from_results")
    assert refund(run, "1-0") == ("started", "")


def test_a_host_that_takes_over_has_the_same_index() -> None:
    run = looked_up({"order_id": "B"})
    before = dict(run.state.values_seen)
    run.crash()
    assert run.state.values_seen == before
    assert refund(run, "B") == ("started", "")
    assert refund(looked_up({"order_id": "B"}), "C") == ("rejected", "not_from_results")


def test_a_run_that_declares_nothing_indexes_nothing() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", result={"order_id": "A"})
    assert run.pins.watched is None
    assert (run.state.values_seen, run.state.sources_seen) == ({}, [])
    assert run.pins.values_of("get_order", b"{}") is None
    assert b"watched" not in encode_pins(run.pins)


def test_only_what_is_named_is_indexed() -> None:
    run = looked_up({"id": "A", "other": ["x"] * 50}, "get_order.id")
    assert list(run.state.values_seen) == [digest("get_order.id", "A")]


def test_digests_travel_one_behind_the_other() -> None:
    watched = Watched(({"x": ("t.id", "results")},))
    found, left_out = watched.digests("t", is_agent=False, result=b'{"id":"A","n":1}')
    assert (len(found), left_out) == (3, 0)
    assert split_digests(b"".join(found)) == found
    assert watched.digests("other", is_agent=True, result=b'"A"') == ([], 0)


# --- declarations ----------------------------------------------------------------------------------------------------


def read(order_id: str) -> dict[str, Any]:
    "Read."
    return {}


@pytest.mark.parametrize(
    "given_",
    [
        "order_id",
        ("nothing",),
        {"order_id": ()},
        {"order_id": "Get Order"},
        {"order_id": "results.id"},
        {"order_id": "a."},
        {"order_id": 5},
        {"order_id": ("a", 5)},
        (5,),
        {"order_id": "a" + ".b" * 9},
    ],
)
def test_sources_that_mean_nothing_are_refused(given_: Any) -> None:
    with pytest.raises(DeclarationError):
        tool(risk="read", name="fresh", from_results=given_)(partial(read))


def test_a_source_that_is_no_tool_here_is_refused_with_the_toolbox() -> None:
    declared = tool(risk="read", from_results={"order_id": "search.id"})(partial(read))
    with pytest.raises(UnknownTool):
        Toolbox([declared])


@pytest.mark.parametrize("name", ["given", "results"])
def test_no_tool_has_a_name_that_stands_for_a_source_of_another_kind(name: str) -> None:
    with pytest.raises(DeclarationError, match="tool_name"):
        tool(risk="read", name=name)(partial(read))
    with pytest.raises(DeclarationError, match="tool_name"):
        agent(name=name, description="d", tools=("get_order",))


@pytest.mark.parametrize("name", ["given", "results"])
@pytest.mark.parametrize("large", [False, True])
def test_a_tool_of_such_a_name_in_a_log_is_no_source(name: str, large: bool) -> None:
    named = msgspec.structs.replace(BY_NAME["get_order"], name=name)
    rule = sources_from({"order_id": f"{name}.order_id" if name == "given" else name}, "test")
    run = Run(pins(tools=(named, *changed("refund", from_results=rule))))
    run.reply(call(name, order_id="A"))
    run.check("c1.0", definition_sha256=named.definition_sha256, handler_revision="")
    values = run.pins.values_of(name, b'{"order_id":"B"}')
    fields: dict[str, Any] = {"artifact": bytes(32), "size": 99, "met": (), "values": values} if large else {}
    run.report("c1.0", result={"order_id": "B"}, **fields)
    assert refund(run, "B") == ("rejected", "not_from_results")


def test_the_rule_is_part_of_the_definitions_hash_and_only_where_it_is_used() -> None:
    plain = BY_NAME["refund"]
    ruled = msgspec.structs.replace(plain, from_results={"order_id": ("results",)})
    other = msgspec.structs.replace(plain, from_results={"order_id": ("get_order",)})
    assert len({one.definition_sha256 for one in (plain, ruled, other)}) == 3
    assert plain.size_bytes == ruled.size_bytes


@pytest.mark.parametrize(
    "value", [{"a": float("nan")}, {"a": "x" * 70_000}, {"a": list(range(1_100))}, [], "x"]
)
def test_given_inputs_are_bounded_json(value: Any) -> None:
    with pytest.raises(DeclarationError):
        given_bytes(value)
    assert given_bytes({}) == b""
