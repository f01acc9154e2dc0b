"""Outside commands: idempotent by their id, refused with a code, and strict on the wire."""

from __future__ import annotations

import msgspec
import pytest

from boundloop.runtime.commands import (
    Answer,
    Approve,
    Cancel,
    Close,
    OutsideCommand,
    RaiseLimits,
    Reject,
    ResolveCall,
    Resume,
    Send,
    decode_command,
    encode_command,
)

from .shop import pins
from .spec import Run, call, given
from .test_question_rules import WHICH, asked

EVERY: list[OutsideCommand] = [
    Approve(command_id="1", by="u", approval_id="ap"),
    Reject(command_id="2", by="u", approval_id="ap", reason="no", on_reject="stop"),
    Cancel(command_id="3", by="u"),
    Resume(command_id="4", by="u"),
    Close(command_id="5", by="u"),
    RaiseLimits(command_id="6", by="u", raised={"turns": 99}),
    ResolveCall(command_id="7", by="u", call="c1.0", outcome="applied", result="{}"),
    Send(command_id="8", by="u", text="in blue, please"),
    Answer(command_id="9", by="u", question_id="q", text="blue"),
]


@pytest.mark.parametrize("command", EVERY, ids=lambda command: type(command).__name__)
def test_wire_form_is_strict(command: OutsideCommand) -> None:
    data = encode_command(command)
    assert decode_command(data) == command
    fields = msgspec.json.decode(data)
    for broken in ({**fields, "more": 1}, {**fields, "command": "other"}, {**fields, "by": 5}):
        with pytest.raises(msgspec.ValidationError):
            decode_command(msgspec.json.encode(broken))


@pytest.mark.parametrize("command_id", ["", "x" * 129])
def test_command_id_is_bounded(command_id: str) -> None:
    run = Run()
    given(run).when(Cancel(command_id=command_id, by="u"), run.now).then_refused("command_id")


def test_same_id_is_the_same_command() -> None:
    run = Run()
    raised = RaiseLimits(command_id="once", by="u", raised={"turns": 99})
    run.send(raised)
    given(run).when(raised, run.now).then_nothing()
    assert run.log[run.state.commands["once"] - 1][0] == next(
        event for event, _ in run.log if type(event).__name__ == "LimitsRaised"
    )


def accepted(command: type[OutsideCommand]) -> tuple[Run, OutsideCommand]:
    """A run that took this command under the id ``once``."""
    run = Run()
    made: OutsideCommand
    if command is Approve or command is Reject:
        run.reply(call("refund", order_id="A", amount=1))
        run.ask("c1.0")
        made = command(command_id="once", by="u", approval_id=run.approval("c1.0"))
    elif command is ResolveCall:
        run.reply(call("pay", order_id="A", amount=1))
        run.check("c1.0")
        run.report("c1.0", "unknown")
        made = ResolveCall(command_id="once", by="u", call="c1.0", outcome="applied", result="{}")
    elif command is RaiseLimits:
        made = RaiseLimits(command_id="once", by="u", raised={"turns": 99, "tool_calls": 999})
    elif command is Answer:
        run = asked()
        made = Answer(command_id="once", by="u", question_id=WHICH, text="blue")
    elif command is Send:
        made = Send(command_id="once", by="u", text="in blue, please")
    else:
        if command is not Cancel:
            run.reply(finish="truncated")
        made = command(command_id="once", by="u")  # type: ignore[call-arg]  # the others need nothing more
    run.send(made)
    assert "once" in run.state.commands
    return run, made


@pytest.mark.parametrize("kind", [type(command) for command in EVERY], ids=lambda kind: kind.__name__)
def test_an_id_stands_for_one_command(kind: type[OutsideCommand]) -> None:
    """The log alone knows what was accepted under an id; nothing else is ever answered as done."""
    run, command = accepted(kind)
    given(run).when(decode_command(encode_command(command)), run.now).then_nothing()
    others = [msgspec.structs.replace(other, command_id="once") for other in EVERY]
    others.append(msgspec.structs.replace(command, by="somebody else"))
    for other in others:
        if other != command:
            given(run).when(other, run.now).then_refused("command_id_reused")


def test_a_reject_is_not_an_approval_under_its_id() -> None:
    run, rejected = accepted(Reject)
    assert isinstance(rejected, Reject)
    yes = Approve(command_id="once", by="u", approval_id=rejected.approval_id)
    given(run).when(yes, run.now).then_refused("command_id_reused")
    stopping = msgspec.structs.replace(rejected, on_reject="stop")
    given(run).when(stopping, run.now).then_refused("command_id_reused")


def test_order_of_named_limits_is_no_difference() -> None:
    run, command = accepted(RaiseLimits)
    assert isinstance(command, RaiseLimits)
    turned = dict(reversed(command.raised.items()))
    given(run).when(msgspec.structs.replace(command, raised=turned), run.now).then_nothing()


def test_text_that_has_no_bytes_is_refused() -> None:
    run = Run()
    given(run).when(Cancel(command_id="x", by="\udcff"), run.now).then_refused("command_encoding")


def test_idempotency_survives_a_restart_and_the_end() -> None:
    run = Run()
    command = Cancel(command_id="once", by="u")
    run.send(command)
    assert run.stop()[0] == "terminated"
    given(run).when(command, run.now).then_nothing()


def test_refused_command_may_be_sent_again() -> None:
    run = Run()
    command = Resume(command_id="once", by="u")
    given(run).when(command, run.now).then_refused("not_stopped")
    run.reply(finish="truncated")
    run.send(command)
    assert run.state.phase == "model_requested"


def test_resolve_needs_an_unknown_effect_and_json() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=1))
    run.check("c1.0")
    command = ResolveCall(command_id="x", by="boss", call="c1.0", outcome="applied", result="{}")
    given(run).when(command, run.now).then_refused("not_unknown")
    run.report("c1.0", "unknown")
    given(run).when(command, run.now).then_refused("being_reconciled")
    pay = Run(pins(separate_approver=True))
    pay.reply(call("pay", order_id="A", amount=1))
    pay.check("c1.0")
    pay.report("c1.0", "unknown")
    broken = ResolveCall(command_id="x", by="boss", call="c1.0", outcome="applied", result='{"a":1,"a":2}')
    given(pay).when(broken, pay.now).then_refused("result_json")
    own = ResolveCall(command_id="y", by="local", call="c1.0", outcome="absent")
    given(pay).when(own, pay.now).then_refused("same_person")
    pay.outside(Resume)
    assert pay.refusal == "outcome_unknown"
    pay.send(command)
    assert pay.bound("c1.0") == ("ok", "")


def test_person_may_settle_while_another_call_waits_for_approval() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1), call("refund", order_id="B", amount=1))
    run.check("c1.0")
    run.ask("c1.1")
    run.report("c1.0", "unknown")
    assert run.state.phase == "open_calls"
    run.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
    assert run.bound("c1.0") == ("ok", "")
    run.approve("c1.1")
    run.check("c1.1", resource_version="v1")
    assert run.started("c1.1") == 1
