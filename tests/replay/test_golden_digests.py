"""What a compaction makes of a history is kept: a log holds its hash, so other bytes need another revision.

``python -m tests.replay.test_golden_digests`` writes the golden file anew. Do so only together with a new ``DIGEST_REVISION``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tests.decider.shop import BY_NAME, pins
from tests.decider.spec import Run, call

from boundloop.runtime.commands import Answer, RecordFact
from boundloop.runtime.context import compacted, encode_item, turns_of
from boundloop.runtime.digest import DIGEST_REVISION
from boundloop.runtime.question_tool import ask_user
from boundloop.runtime.read_result import READ_RESULT
from boundloop.runtime.state import State
from boundloop.runtime.tool_spec import tool, tool_spec

GOLDEN = Path(__file__).with_name("golden_digests.txt")


@tool(risk="read", facts={"order_state": "state"}, conditions=("total.currency", "terms", "valid"))
def quote(order_id: str) -> dict[str, Any]:
    "A price that holds for a while."
    return {"order_id": order_id}


QUOTE = tool_spec(quote).definition
QUESTION = ask_user.definition


def history() -> State:
    """One of each that a digest has a rule for."""
    run = Run(pins(tools=(BY_NAME["get_order"], BY_NAME["pay"], QUOTE, QUESTION)), settled=False)
    run.decide(RecordFact(command_id="f1", by="host", name="segment", value='"gold\\n"'))
    run.settle()
    quoted = {
        "state": "paid",
        "total": {"amount": 7, "currency": "EUR"},
        "terms": ["x" * 300],
        "text": "ü" * 300,
    }
    for state in ("open", "paid"):
        run.reply(call("quote", order_id="A"), text=f"I look up what is {state}.\n")
        checked(run, "quote")
        run.report(open_call(run), "succeeded", {**quoted, "state": state})
    run.reply(call("get_order", order_id="B"), call("get_order", order_id="C"))
    for name in ("c3.0", "c3.1"):
        run.check(name)
    run.report("c3.0", "failed", code="locked", safe_message="locked by a dispute", no_effect=True)
    run.report("c3.1", "succeeded", {"small": "\n{}"})
    run.reply(call("ask_user", question="which?"), call("ask_user", question="when?"))
    for number in range(2):
        name = f"c4.{number}"
        run.send(run.checks(name, definition_sha256=QUESTION.definition_sha256, handler_revision="1"))
        asked = run.call(name).question
        assert asked is not None
        said = {"text": "blue"} if number else {"cannot": True, "reason": "on holiday until May"}
        run.outside(Answer, question_id=asked.question_id, **said)
    run.reply(call("pay", order_id="A", amount=1))
    run.ask("c5.0")
    run.reject("c5.0")
    run.reply(call("nobody"), call("quote", order_id=7))
    for name in ("c6.0", "c6.1"):
        run.send(run.checks(name))
    run.reply(call("get_order", order_id="D"))
    run.check("c7.0")
    whole = b'"' + b"w" * 5_000 + b'"'
    run.report(
        "c7.0",
        "succeeded",
        {"bytes": 5_002, "text": "w", "truncated": True},
        artifact=whole[:32],
        met=(),
        size=5_002,
    )
    run.reply(call("read_result", handle="7" * 16, offset=4))
    run.send(run.checks("c8.0", definition_sha256=READ_RESULT.definition_sha256, handler_revision="1"))
    run.report(
        "c8.0", "succeeded", {"bytes": 5_002, "handle": "7" * 16, "offset": 4, "text": "w", "next_offset": 5}
    )
    run.reply(call("get_order", order_id="E"))
    run.check("c9.0")
    run.outside(RecordFact, name="segment", value='"silver"')
    run.report("c9.0", "succeeded", {"newest": True})
    return run.state


def open_call(run: Run) -> str:
    return next(one.call for one in run.state.calls.values() if one.open)


def checked(run: Run, name: str) -> None:
    definition = run.state.tools[name]
    call_ = open_call(run)
    run.send(
        run.checks(
            call_,
            definition_sha256=definition.definition_sha256,
            handler_revision=definition.handler_revision,
        )
    )


def made() -> str:
    """The context after one compaction of all but the newest turn, plain and terse, item by item."""
    state = history()
    until = turns_of(state.items)[-2].end
    parts = [f"revision {DIGEST_REVISION}"]
    for without_quotes in (False, True):
        found = compacted(state, until, without_quotes)
        parts.append(
            f"=== {'terse' if without_quotes else 'plain'}: {found.history_bytes} {found.rolling_sha256.hex()}"
        )
        parts += [msgspec.json.encode(item).decode() for item in found.items]
        assert sum(len(encode_item(item)) for item in found.items) == found.history_bytes
    return "\n".join(parts) + "\n"


def test_a_compaction_has_golden_bytes() -> None:
    assert made() == GOLDEN.read_text(), "other digests need another DIGEST_REVISION"


if __name__ == "__main__":
    GOLDEN.write_text(made())
