"""Progress: repeats, equal results, cycles and idle turns."""

from __future__ import annotations

import msgspec

from boundloop.runtime.commands import Resume
from boundloop.runtime.model import ProposedCall, ResultItem

from .shop import limits, pins
from .spec import Run, call

A = call("get_order", order_id="A")
B = call("get_order", order_id="B")


def turn(run: Run, proposal: ProposedCall, result: object = None) -> str:
    """One turn with one read; the code of its result."""
    run.reply(proposal)
    name = f"c{run.state.turn}.0"
    run.check(name)
    if run.started(name):
        run.report(name, result=result)
    return run.bound(name)[1]


def test_repeats_whatever_comes_back() -> None:
    run = Run(pins(bounds=limits(repeats=3)))
    assert turn(run, A, {"n": 1}) == ""
    assert turn(run, A, {"n": 2}) == ""
    assert turn(run, A, {"n": 3}) == "no_progress"
    assert run.stop() == ("suspended", "incomplete", "no_progress")


def test_equal_results() -> None:
    run = Run(pins(bounds=limits(equal_results=3)))
    assert [turn(run, A, {"n": 1}) for _ in range(3)] == ["", "", "no_progress"]
    assert run.stop() == ("suspended", "incomplete", "no_progress")
    last = run.state.items[-1]
    assert isinstance(last, ResultItem)
    assert msgspec.json.decode(last.content)["code"] == "no_progress"


def test_changing_results_are_no_equal_results() -> None:
    run = Run(pins(bounds=limits(equal_results=3)))
    assert [turn(run, A, {"n": n}) for n in range(5)] == [""] * 5


def test_cycle_of_two() -> None:
    run = Run(pins(bounds=limits(equal_results=3)))
    assert [turn(run, proposal, {"n": 1}) for proposal in (A, B, A, B, A)] == ["", "", "", "", "no_progress"]


def test_volatile_fields_are_left_out() -> None:
    run = Run(pins(bounds=limits(equal_results=3)))
    for number in range(2):
        run.reply(A)
        name = f"c{run.state.turn}.0"
        run.check(name)
        run.report(name, result={"at": number}, progress_sha256=b"s" * 32)
    assert turn(run, A) == "no_progress"


def test_white_space_and_order_of_arguments_make_no_other_call() -> None:
    run = Run(pins(bounds=limits(repeats=2)))
    assert turn(run, call("set_state", order_id="A", state="x")) == ""
    assert turn(run, ProposedCall("set_state", b'{ "state":"x", "order_id":"A" }')) == "replayed"
    other = Run(pins(bounds=limits(repeats=2)))
    assert turn(other, ProposedCall("get_order", b'{"order_id":"A"}')) == ""
    assert turn(other, ProposedCall("get_order", b' { "order_id" : "A" } ')) == "no_progress"


def test_turns_without_progress() -> None:
    run = Run(pins(bounds=limits(turns_without_progress=2, equal_results=9)))
    assert [turn(run, A, {"n": 1}) for _ in range(3)] == ["", "", ""]
    assert run.stop() == ("suspended", "incomplete", "no_progress")
    assert run.state.detail == "turns_without_progress"


def test_news_resets_idle_turns() -> None:
    run = Run(pins(bounds=limits(turns_without_progress=2, equal_results=9)))
    for number in (1, 1, 2, 2, 3, 3):
        turn(run, A, {"n": number})
    assert run.state.phase == "model_requested"


def test_lifted_no_progress_goes_on_and_the_same_call_stops_it_again() -> None:
    run = Run(pins(bounds=limits(equal_results=2)))
    turn(run, A, {"n": 1})
    assert turn(run, A) == "no_progress"
    run.outside(Resume)
    assert turn(run, B, {"n": 2}) == ""
    assert turn(run, A) == "no_progress"
    assert run.stop() == ("suspended", "incomplete", "no_progress")


def test_refused_repetition_gives_its_place_back_and_frees_its_key() -> None:
    run = Run(pins(bounds=limits(repeats=2)))
    for number in range(2):
        run.reply(call("send_letter", order_id="A"))
        run.check(f"c{number + 1}.0")
        if number == 0:
            run.report("c1.0")
    assert run.bound("c2.0") == ("error", "no_progress")
    assert run.state.meters.tool_calls.spent == 1
    assert run.state.meters.tool_calls.reserved == 0
    assert len(run.ledger.rows) == 1


def test_invalid_streak_is_broken_by_a_valid_call() -> None:
    run = Run(pins(bounds=limits(invalid_streak=2)))
    bad = ProposedCall("get_order", b"{")
    for proposal in (bad, A, bad, B):
        turn(run, proposal)
    assert run.state.phase == "model_requested"
    turn(run, bad)
    turn(run, bad)
    assert run.stop() == ("suspended", "incomplete", "no_progress")
    assert run.state.detail == "invalid_streak"
