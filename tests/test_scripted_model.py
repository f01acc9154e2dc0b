"""The scripted model: same answers whoever asks, every fault as its own finish, files that read back, no task left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundloop.adapters.port import CallPreparing, ModelAdapter, Progress, TextDelta
from boundloop.adapters.script import (
    Script,
    ScriptedCall,
    ScriptedTurn,
    attempts,
    call,
    calls,
    cut,
    empty,
    failed,
    filtered,
    held,
    late,
    lost,
    paused,
    read_script,
    refused,
    say,
    unknown_finish,
    write_script,
)
from boundloop.adapters.scripted import Entry, ScriptedModel, TurnFor
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.model import FINISH, Item, ModelInput, ModelTurn, ResultItem, Usage, UserItem
from boundloop.runtime.prices import FREE


def asked(turn: int = 1, attempt: int = 1, items: Sequence[Item] = (UserItem("hello"),)) -> ModelInput:
    return ModelInput(
        run_id="r1",
        turn=turn,
        attempt=attempt,
        model="scripted-1",
        system="",
        items=items,
        tools=(),
        output_tokens_max=100,
        request_sha256=b"",
    )


def answer(model: ScriptedModel, turn: int = 1, attempt: int = 1, timeout_ms: int = 1_000) -> ModelTurn:
    """The answer of a request that is never held back: the coroutine ends at its first step."""
    request = model.request(asked(turn, attempt), timeout_ms=timeout_ms)
    with pytest.raises(StopIteration) as ended:
        request.send(None)
    assert isinstance(ended.value.value, ModelTurn)
    return ended.value.value


def shown(turn: Entry, *, attempt: int = 1) -> tuple[ModelTurn, list[Progress]]:
    seen: list[Progress] = []
    model = ScriptedModel([turn], delta_chars=4)
    reply = asyncio.run(model.request(asked(1, attempt), timeout_ms=1_000, progress=seen.append))
    return reply, seen


class MovedClock:
    """Sleeps end when the clock is moved; tells when somebody sleeps."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.sleepers: list[tuple[int, asyncio.Future[None]]] = []
        self.somebody_sleeps = asyncio.Event()

    async def sleep_ms(self, ms: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.now_ms + ms, future))
        self.somebody_sleeps.set()
        await future

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        for at_ms, future in self.sleepers:
            if at_ms <= self.now_ms and not future.done():
                future.set_result(None)


# Answers ------------------------------------------------------------------------------------------------------------


def test_it_is_a_model_adapter() -> None:
    adapter: ModelAdapter = ScriptedModel([])
    assert (adapter.family, adapter.model, adapter.price) == ("scripted", "scripted-1", FREE)


def test_turns_are_answered_by_their_number_in_whatever_order_they_are_asked() -> None:
    model = ScriptedModel([call("get_order", {"order_id": "A1"}), say("done")])
    assert answer(model, 2) == answer(model, 2)
    assert answer(model, 2).text == "done"
    first = answer(model, 1)
    assert (first.finish, first.calls[0].name, first.calls[0].arguments) == (
        "calls",
        "get_order",
        b'{"order_id":"A1"}',
    )
    assert model.requests == 4


def test_attempts_are_answered_by_their_number_and_the_last_one_repeats() -> None:
    model = ScriptedModel([attempts(failed(), lost("half"), say("whole"))])
    assert [answer(model, 1, attempt).finish for attempt in (1, 2, 3, 4, 3)] == [
        "provider_error",
        "transport_broken",
        "final",
        "final",
        "final",
    ]


def test_two_models_of_one_script_give_equal_answers() -> None:
    turns = [calls(call("a"), call("b", {"x": 1}), text="two"), say("end")]
    one, other = ScriptedModel(turns), ScriptedModel(turns)
    assert [answer(one, n) for n in (1, 2)] == [answer(other, n) for n in (1, 2)]


@pytest.mark.parametrize("turn", [0, -1, 3, 10**6])
def test_beyond_the_script_is_a_typed_error_and_never_success(turn: int) -> None:
    reply = answer(ScriptedModel([say("a"), say("b")]), turn)
    assert (reply.finish, reply.error_code, reply.retryable) == ("model_error", "script_exhausted", False)
    assert not FINISH[reply.finish].final
    assert not FINISH[reply.finish].executable


def test_an_empty_script_is_exhausted_at_once() -> None:
    assert answer(ScriptedModel([])).error_code == "script_exhausted"


def test_a_function_answers_from_the_last_results() -> None:
    def reads_result(request: ModelInput) -> ScriptedTurn:
        last = request.items[-1]
        assert isinstance(last, ResultItem)
        return say(last.content.decode())

    model = ScriptedModel([call("get_order"), reads_result])
    result = ResultItem("c1.0", "call_1_0", "get_order", False, b'{"state":"shipped"}')
    reply = asyncio.run(model.request(asked(2, items=(UserItem("q"), result)), timeout_ms=1))
    assert reply.text == '{"state":"shipped"}'


def test_one_function_may_answer_every_request() -> None:
    model = ScriptedModel(lambda request: say(f"turn {request.turn}"))
    assert [answer(model, n).text for n in (1, 9_999)] == ["turn 1", "turn 9999"]


def raises(request: ModelInput) -> ScriptedTurn:
    raise RuntimeError("secret text")


def means_nothing(request: ModelInput) -> ScriptedTurn:
    return late(say("x"), -1)


@pytest.mark.parametrize("function", [raises, means_nothing])
def test_a_function_that_fails_is_a_failed_model_without_its_text(function: TurnFor) -> None:
    model = ScriptedModel([function])
    reply = answer(model)
    assert (reply.finish, reply.error_code, reply.retryable) == ("model_error", "script_failed", False)
    assert "secret" not in reply.safe_message
    assert model.last_error is not None


def test_finished_turns_of_the_application_pass_through() -> None:
    made = ModelTurn(finish="context_exceeded", finish_raw="too long")
    assert answer(ScriptedModel([made])) is made


@pytest.mark.parametrize(
    ("turn", "finish", "executable", "final"),
    [
        (say("x"), "final", False, True),
        (call("t"), "calls", True, False),
        (cut("x"), "truncated", False, False),
        (cut(call("t", raw='{"order_')), "truncated", False, False),
        (refused("no"), "refused", False, False),
        (filtered(), "filtered", False, False),
        (paused(), "paused", False, False),
        (unknown_finish("novel", call("t")), "unknown_finish", False, False),
        (lost("x"), "transport_broken", False, False),
        (failed(), "provider_error", False, False),
        (empty(), "final", False, True),
    ],
)
def test_each_fault_has_its_finish(turn: ScriptedTurn, finish: str, executable: bool, final: bool) -> None:
    reply = answer(ScriptedModel([turn]))
    rule = FINISH[reply.finish]
    assert (reply.finish, rule.executable, rule.final) == (finish, executable, final)


def test_an_unknown_finish_keeps_the_raw_value() -> None:
    assert answer(ScriptedModel([unknown_finish("novel")])).finish_raw == "novel"


def test_a_provider_error_keeps_code_and_delay() -> None:
    reply = answer(ScriptedModel([failed("rate_limited", retry_after_ms=700)]))
    assert (reply.error_code, reply.retry_after_ms, reply.retryable, reply.usage) == (
        "rate_limited",
        700,
        True,
        None,
    )


def test_usage_is_the_models_unless_the_turn_says_otherwise() -> None:
    model = ScriptedModel(
        [say("a"), say("b", usage=None), say("c", usage=Usage(10**9, -5)), say("d", usage=Usage(None, 3))],
        usage=Usage(7, 8),
    )
    assert [answer(model, n).usage for n in (1, 2, 3, 4)] == [
        Usage(7, 8),
        None,
        Usage(10**9, -5),
        Usage(None, 3),
    ]


def test_call_ids_are_made_up_kept_empty_or_repeated_as_the_script_says() -> None:
    model = ScriptedModel([calls(call("a"), call("b", id=""), call("c", id="x"), call("d", id="x"))])
    assert [made.provider_call_id for made in answer(model).calls] == ["call_1_0", "", "x", "x"]


@pytest.mark.parametrize("raw", [b"\xff\xfe", b'{"a":1,"a":2}', b"", b'{"order_'])
def test_raw_arguments_are_sent_as_they_stand(raw: bytes) -> None:
    assert answer(ScriptedModel([call("t", raw=raw)])).calls[0].arguments == raw


# What is shown while it is written ----------------------------------------------------------------------------------


def test_text_comes_in_pieces_that_add_up_and_calls_by_name_only() -> None:
    reply, seen = shown(calls(call("get_order", {"order_id": "SECRET"}), text="Let me look"))
    deltas = [step for step in seen if isinstance(step, TextDelta)]
    assert "".join(step.text for step in deltas) == reply.text
    assert [step.offset for step in deltas] == [0, 4, 8]
    assert [step for step in seen if isinstance(step, CallPreparing)] == [CallPreparing(1, 1, 0, "get_order")]
    assert "SECRET" not in repr(seen)


def test_a_lost_connection_shows_what_came_and_hands_over_no_answer() -> None:
    reply, seen = shown(lost("The order was shipped", after_chars=6), attempt=2)
    assert (reply.finish, reply.text, reply.calls, reply.usage) == ("transport_broken", "The or", (), None)
    assert seen == [TextDelta(1, 2, 0, "The "), TextDelta(1, 2, 4, "or")]


# Held back ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_late_answer_comes_when_the_clock_says_so() -> None:
    clock = MovedClock()
    model = ScriptedModel([late(say("at last"), 500)], sleep_ms=clock.sleep_ms)
    request = asyncio.create_task(model.request(asked(), timeout_ms=1_000))
    await clock.somebody_sleeps.wait()
    clock.advance(499)
    await asyncio.sleep(0)
    assert not request.done()
    clock.advance(1)
    assert (await request).text == "at last"


@pytest.mark.asyncio
async def test_an_answer_later_than_the_time_out_is_a_time_out() -> None:
    clock = MovedClock()
    model = ScriptedModel([late(say("too late"), 500)], sleep_ms=clock.sleep_ms)
    request = asyncio.create_task(model.request(asked(), timeout_ms=400))
    await clock.somebody_sleeps.wait()
    clock.advance(400)
    reply = await request
    assert (reply.finish, reply.error_code, reply.text) == ("transport_broken", "timeout", "")


@pytest.mark.asyncio
async def test_a_gate_holds_until_it_is_opened_from_another_thread() -> None:
    clock = MovedClock()
    model = ScriptedModel([held(say("through"), "door")], sleep_ms=clock.sleep_ms)
    opened: list[bool] = []

    def open_when_reached() -> None:
        opened.append(model.gate("door").wait_reached(30))
        model.gate("door").open()

    opener = threading.Thread(target=open_when_reached)
    opener.start()
    reply = await model.request(asked(), timeout_ms=1_000)
    opener.join()
    assert (reply.text, opened) == ("through", [True])
    assert (await model.request(asked(), timeout_ms=1_000)).text == "through"


@pytest.mark.asyncio
async def test_a_gate_that_stays_shut_ends_in_a_time_out_by_the_clock() -> None:
    clock = MovedClock()
    model = ScriptedModel([held(late(say("never"), 100), "door")], sleep_ms=clock.sleep_ms)
    request = asyncio.create_task(model.request(asked(), timeout_ms=400))
    await clock.somebody_sleeps.wait()
    clock.somebody_sleeps.clear()
    clock.advance(100)
    await clock.somebody_sleeps.wait()
    assert clock.sleepers[-1][0] == 400
    clock.advance(300)
    assert (await request).error_code == "timeout"


@pytest.mark.asyncio
async def test_cancelling_a_held_request_leaves_no_task() -> None:
    clock = MovedClock()
    model = ScriptedModel([held(say("x"), "door")], sleep_ms=clock.sleep_ms)
    request = asyncio.create_task(model.request(asked(), timeout_ms=1_000))
    await clock.somebody_sleeps.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    model.gate("door").open()


# Requests on record -------------------------------------------------------------------------------------------------


def test_requests_are_kept_as_far_as_asked_for() -> None:
    model = ScriptedModel([say("x")], record_max=2)
    for attempt in (1, 2, 3):
        answer(model, 1, attempt)
    assert [request.attempt for request in model.recorded] == [2, 3]
    assert model.requests == 3


def test_nothing_is_kept_unless_asked_for() -> None:
    model = ScriptedModel([say("x")])
    answer(model)
    assert len(model.recorded) == 0


# Files --------------------------------------------------------------------------------------------------------------

JSON_TEXT = st.text(max_size=12)
SCRIPTED_CALLS = st.builds(
    ScriptedCall,
    tool=JSON_TEXT,
    arguments=st.none() | st.dictionaries(JSON_TEXT, st.integers(-(2**53), 2**53) | JSON_TEXT, max_size=3),
    id=st.none() | JSON_TEXT,
) | st.builds(ScriptedCall, tool=JSON_TEXT, raw_base64=st.binary(max_size=8))
TURNS = st.builds(
    ScriptedTurn,
    text=JSON_TEXT,
    calls=st.lists(SCRIPTED_CALLS, max_size=3).map(tuple),
    finish=st.none() | st.sampled_from(sorted(FINISH)),
    finish_raw=JSON_TEXT,
    usage=st.none() | st.builds(Usage, st.none() | st.integers(-9, 9), st.none() | st.integers(-9, 9)),
    retryable=st.booleans(),
    retry_after_ms=st.integers(0, 9),
    late_ms=st.integers(0, 9),
    gate=JSON_TEXT,
    continuation_base64=st.none() | st.binary(max_size=4),
    lost_after_chars=st.none() | st.integers(0, 9),
)


@given(st.lists(TURNS | st.lists(TURNS, min_size=1, max_size=2).map(tuple), max_size=4))
def test_a_script_reads_back_as_what_was_written(
    turns: list[ScriptedTurn | tuple[ScriptedTurn, ...]],
) -> None:
    script = Script(turns=tuple(turns))
    assert read_script(write_script(script)) == script


def test_a_dumped_model_plays_the_same_from_its_file(tmp_path: Path) -> None:
    turns: list[Entry] = [call("t", {"a": 1}), attempts(lost("x"), say("end", usage=None)), cut("half")]
    model = ScriptedModel(turns, model="mine", usage=Usage(1, 2))
    path = tmp_path / "script.json"
    path.write_bytes(model.dump())
    again = ScriptedModel.from_file(path)
    assert again.model == "mine"
    for number, attempt in ((1, 1), (2, 1), (2, 2), (3, 1), (4, 1)):
        assert answer(again, number, attempt) == answer(model, number, attempt)


def test_a_script_as_a_person_writes_it() -> None:
    script = read_script(
        b'{"turns": [{"calls": [{"tool": "get_order", "arguments": {"order_id": "A1042"}}]},'
        b' [{"text": "The or", "lost_after_chars": 6}, {"text": "The order was shipped."}]]}'
    )
    assert script.turns == (
        call("get_order", {"order_id": "A1042"}),
        (lost("The or"), say("The order was shipped.")),
    )


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"turns": [], "turns": []}', "script_dup_key"),
        (b"[]", "script_not_object"),
        (b"{}", "script_shape"),
        (b'{"turns": [{"txt": "x"}]}', "script_shape"),
        (b'{"turns": [{"text": 1}]}', "script_shape"),
        (b'{"turns": [{"finish": "novel"}]}', "script_shape"),
        (b'{"turns": [{"retryable": "yes"}]}', "script_shape"),
        (b'{"turns": [[]]}', "script_attempts"),
        (b'{"turns": [{"late_ms": -1}]}', "script_late"),
        (b'{"turns": [{"retry_after_ms": -1}]}', "script_negative"),
        (b'{"turns": [{"calls": [{"tool": "t", "arguments": {}, "raw": "{}"}]}]}', "script_arguments"),
        (b'{"turns": [{"calls": [{"tool": "t", "raw_base64": "%%"}]}]}', "script_shape"),
        (b'{"turns": [' + b"{}," * 10_000 + b"{}]}", "script_turns"),
        (b'{"turns": ' + b"[" * 100_000, "script_depth"),
        (b"\xff", "script_encoding"),
    ],
)
def test_a_bad_script_is_refused_with_its_name(data: bytes, code: str) -> None:
    with pytest.raises(DeclarationError) as refused_with:
        read_script(data, name="mine.json")
    assert refused_with.value.code == code
    assert refused_with.value.path.startswith("mine.json")


def test_a_missing_file_and_an_endless_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError) as missing:
        ScriptedModel.from_file(tmp_path / "none.json")
    assert missing.value.code == "script_file"
    with pytest.raises(DeclarationError) as endless:
        ScriptedModel.from_file("/dev/zero")
    assert endless.value.code == "script_bytes"


@pytest.mark.parametrize("entry", [raises, ModelTurn(finish="final"), (ModelTurn(finish="final"),)])
def test_what_is_no_data_is_not_dumped(entry: Entry) -> None:
    with pytest.raises(DeclarationError) as refused_with:
        ScriptedModel([entry]).dump()
    assert refused_with.value.code == "script_not_data"


def test_one_function_for_all_is_not_dumped() -> None:
    with pytest.raises(DeclarationError):
        ScriptedModel(raises).dump()


@pytest.mark.parametrize("entry", [(), late(say("x"), -1), lost("x", after_chars=-1)])
def test_turns_that_mean_nothing_are_refused_when_declared(entry: Entry) -> None:
    with pytest.raises(DeclarationError):
        ScriptedModel([entry])


def test_delta_size_must_be_positive() -> None:
    with pytest.raises(DeclarationError):
        ScriptedModel([], delta_chars=0)
