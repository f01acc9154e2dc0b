"""``decide`` is total: whatever text an observation carries, there is a decision, and its events fold. A rule that raised would
do so in each host anew, and the run would never move on."""

from __future__ import annotations

from typing import Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.random_examples import examples

from boundloop.runtime.agent_spec import agent
from boundloop.runtime.commands import ChildEnded, Command, Executed, ModelReplied, Queried
from boundloop.runtime.goal import Goal
from boundloop.runtime.model import FINISH, FinishKind, ModelTurn, ProposedCall

from .family import Family
from .shop import BY_NAME, TOOLS, limits, pins
from .spec import Run, call

TYPED = agent(
    name="counter",
    description="Counts.",
    tools=(),
    goal=Goal.of(output={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
)
BY_NAME[TYPED.name] = TYPED.definition

JSON_TEXTS = st.sampled_from(
    [
        '{"n": 1}',
        '{"n": [redacted:pin]}',
        '{"n": 1',
        '{"n":1,"n":2}',
        "[" * 200,
        "1e999",
        "",
        "null",
        "9" * 40,
        '"\\ud800"',
    ]
)
TEXTS = JSON_TEXTS | st.text(st.characters(exclude_categories=()), max_size=20)
BYTES = TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=8)
RESULTS = st.none() | st.sampled_from(
    [b"{}", b"null", b"[[]]", b'{"n":"[redacted:pin]"}', b'"\xf0\x9f\x90\x9f"']
)
"""What executors report is canonical JSON; of any shape."""
COUNTS = st.dictionaries(st.sampled_from(["turns", "get_order", "refund"]), st.integers(0, 3), max_size=3)


def with_a_child() -> Run:
    family = Family(pins(bounds=limits(children=9, cost_micros=None), tools=(*TOOLS, TYPED.definition)))
    family.root.reply(call("counter", input="go"))
    family.root.check("c1.0")
    family.start(family.root, "c1.0")
    return family.root


def with_an_effect(tool: str) -> Run:
    run = Run()
    run.reply(call(tool, order_id="A", amount=5) if tool in ("refund", "pay") else call(tool, order_id="A"))
    run.check("c1.0")
    return run


def holds(run: Run, command: Command) -> None:
    """The decision is made, and its events are a state by all laws (``Run.append`` checks them)."""
    run.send(command)
    run.check_replay()


few = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(st.sampled_from(["completed", "failed", "incomplete", "cancelled"]), TEXTS, COUNTS, COUNTS, COUNTS)
def test_any_end_of_a_child(
    outcome: str, text: str, spent: dict[str, int], effects: dict[str, int], succeeded: dict[str, int]
) -> None:
    run = with_a_child()
    holds(
        run,
        ChildEnded(
            call="c1.0",
            outcome=outcome,
            reason="final" if outcome == "completed" else "truncated",
            spent=spent,
            text=text,
            effects=effects,
            succeeded=succeeded,
        ),
    )
    assert run.bound("c1.0")[0] == ("ok" if outcome == "completed" else "error")


@few
@given(st.sampled_from(sorted(FINISH)), TEXTS, BYTES, TEXTS, TEXTS)
def test_any_turn_of_a_model(finish: FinishKind, text: str, arguments: bytes, name: str, label: str) -> None:
    run = Run()
    calls = (ProposedCall("get_order", arguments, label), ProposedCall(name, arguments, label))
    for proposed in ((), calls):
        if run.state.phase != "model_requested":
            break
        reply = ModelTurn(finish=finish, text=text, calls=proposed, response_id=label, safe_message=text)
        holds(run, ModelReplied(turn=run.state.turn, attempt=run.state.model_attempt, reply=reply))


@few
@given(
    st.sampled_from(["get_order", "refund"]),
    st.sampled_from(["succeeded", "failed", "unknown"]),
    RESULTS,
    TEXTS,
    TEXTS,
)
def test_any_report_of_an_executor(
    tool: str,
    outcome: Literal["succeeded", "failed", "unknown"],
    result: bytes | None,
    code: str,
    message: str,
) -> None:
    run = with_an_effect(tool)
    holds(
        run, Executed(call="c1.0", attempt=1, outcome=outcome, result=result, code=code, safe_message=message)
    )


@few
@given(st.sampled_from(["applied", "absent", "unknown"]), RESULTS, TEXTS, TEXTS)
def test_any_answer_of_a_far_side(
    outcome: Literal["applied", "absent", "unknown"], result: bytes | None, reason: str, code: str
) -> None:
    run = with_an_effect("refund")
    run.report("c1.0", "unknown")
    holds(
        run,
        Queried(
            call="c1.0",
            number=1,
            asked_at_ms=run.now,
            outcome=outcome,
            result=result,
            reason=reason,
            code=code,
        ),
    )
