"""Every recorded answer of every family, body or stream, where the recordings are there: what it decodes to, cut and re-chunked.

The expectations are columns of the recordings' index, computed by somebody else's parser. What differs from them here
differs on purpose, and is named with its reason.
"""

from __future__ import annotations

import csv
import json
import os
import pickle
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from boundloop.adapters.answer_draft import Exchange
from boundloop.adapters.decoding import TurnDecoder
from boundloop.adapters.families import decoder_of, family_named
from boundloop.adapters.http_failure import HttpFailed
from boundloop.runtime.model import FINISH, FinishKind, ModelTurn

Row = dict[str, str]
FOLDER: Final = os.environ.get("BOUNDLOOP_RECORDED", "")
BYTES_MAX: Final = 64 * 1024 * 1024
CUT_EVERY_BYTE_TO: Final = 4_096
CUTS_BEYOND: Final = 200
CHUNKINGS: Final = 50
CHUNKED_BYTES: Final = 300_000
"""How many bytes a stream's re-chunkings take in all: a long one gets fewer in a suite; 50 each as a command would have it
are ``BOUNDLOOP_THOROUGH``."""


@cache
def table() -> tuple[Row, ...]:
    if not FOLDER:
        return ()
    csv.field_size_limit(sys.maxsize)
    with open(Path(FOLDER, "index.tsv"), encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def rows(*kinds: str, stream: bool = False) -> list[Row]:
    return [row for row in table() if row["kind"] in kinds and row["file"].endswith(".sse") >= stream]


def data_of(row: Row) -> bytes:
    return Path(FOLDER, row["file"]).read_bytes()


def decoder(row: Row) -> TurnDecoder:
    exchange = Exchange(int(row["http_status"]), json.loads(row["resp_headers"] or "{}"))
    return decoder_of(family_named(row["family"]), exchange, answer_bytes_max=BYTES_MAX)


def decoded(row: Row) -> tuple[ModelTurn, TurnDecoder]:
    one = decoder(row)
    one.feed(data_of(row))
    return one.end(), one


def arguments_of(written: Any) -> Any:
    """What arguments say; an index has them as text or as a value, and nothing is an empty object."""
    if not isinstance(written, str | bytes):
        return written if written is not None else {}
    try:
        return json.loads(written) if written else {}
    except ValueError:
        return written if isinstance(written, str) else written.decode()


needs_recordings = pytest.mark.skipif(not FOLDER, reason="BOUNDLOOP_RECORDED names no recordings")
each = pytest.mark.parametrize("row", rows("response", "error"), ids=lambda row: row["file"])
each_stream = pytest.mark.parametrize(
    "row", rows("response", "error", stream=True), ids=lambda row: row["file"]
)


@needs_recordings
def test_the_recordings_are_as_many_as_they_were() -> None:
    assert len(rows("response", "error")) >= 263
    assert len(rows("response", "error", stream=True)) >= 60
    assert {row["family"] for row in table()} >= {"anthropic", "gemini", "gemini_interactions"}


REFUSED: Final = {
    # Two answers of different ids are mixed in one stream: whose call it is nobody can say. Marked ambiguous.
    "anthropic/vercel-spliced-message-start.sse": "answer_spliced",
    # No finish value at all: nothing but the end of the bytes says that the arguments are whole. Marked ambiguous.
    "openai_chat/llm-tools-streaming-variant-a-t1.sse": "stream_broken",
    "openai_chat/llm-tools-streaming-variant-b-t1.sse": "stream_broken",
}


@needs_recordings
def test_only_what_is_ambiguous_is_refused() -> None:
    ambiguous = {row["file"] for row in table() if "ambiguous" in row["quirks"].split(",")}
    assert set(REFUSED) == ambiguous
    for row in rows("response"):
        if row["file"] in REFUSED:
            turn, _ = decoded(row)
            assert turn.error_code == REFUSED[row["file"]]
            assert turn.calls == ()


@needs_recordings
@each
def test_calls_are_those_of_the_index(row: Row) -> None:
    if row["file"] in REFUSED:
        return
    turn, _ = decoded(row)
    assert [(call.provider_call_id, call.name, arguments_of(call.arguments)) for call in turn.calls] == [
        (call["id"] or "", call["name"], arguments_of(call["arguments"])) for call in json.loads(row["calls"])
    ]


ENDED: Final[dict[str, FinishKind]] = {
    # By the native value alone where calls don't matter; whatever isn't here ends as its calls say.
    "length": "truncated",
    "max_tokens": "truncated",
    "MAX_TOKENS": "truncated",
    "2": "truncated",
    "incomplete": "truncated",
    "incomplete/max_output_tokens": "truncated",
    "content_filter": "filtered",
    "SAFETY": "filtered",
    "promptFeedback:MODEL_ARMOR": "filtered",
    "refusal": "refused",
    "pause_turn": "paused",
    "UNEXPECTED_TOOL_CALL": "model_error",
    "failed": "provider_error",
    "in_progress": "provider_error",
}
FINAL: Final = frozenset({"stop", "completed", "end_turn", "stop_sequence", "STOP"})


def finish_of(row: Row) -> FinishKind:
    """From the index alone."""
    if row["finish"] in ENDED:
        return ENDED[row["finish"]]
    if row["finish"].startswith("error_frame:"):
        return "model_error"  # the server's own check of a call failed, as its code says
    if int(row["refusal"]):
        return "refused"
    if "error" in row["quirks"]:
        return "provider_error"  # a stream that says that it failed in an event or a field of that name
    if int(row["n_calls"]):
        return "calls"
    return "final" if row["finish"] in FINAL else "unknown_finish"


@needs_recordings
@pytest.mark.parametrize("row", rows("response"), ids=lambda row: row["file"])
def test_how_it_ended_is_what_the_index_says(row: Row) -> None:
    if row["file"] in REFUSED:
        return
    turn, one = decoded(row)
    assert turn.finish == finish_of(row)
    if one.judged:
        assert turn.finish_raw == (row["finish"] or turn.finish_raw)
        assert len(turn.text) == int(row["text_len"]) or turn.finish == "refused"
        assert turn.response_id == row["response_id"]
        assert turn.served_model == row["model"]
        assert (turn.continuation is not None) >= (
            bool(int(row["signature"])) and turn.finish != "model_error"
        )


@needs_recordings
@each
def test_what_was_refused_is_what_the_index_says(row: Row) -> None:
    _, one = decoded(row)
    assert bool(one.refusal) == bool(int(row["refusal"]))


@needs_recordings
@each
def test_errors_run_nothing_and_say_what_to_do(row: Row) -> None:
    turn, _ = decoded(row)
    if row["kind"] != "error":
        return
    assert FINISH[turn.finish].retry or turn.finish in ("context_exceeded", "filtered")
    assert not FINISH[turn.finish].executable
    assert turn.error_code
    native = row["finish"].strip("|") or row["http_status"]
    assert native.endswith(turn.finish_raw) or native.startswith(turn.finish_raw)
    assert turn.retryable == (int(row["http_status"]) == 429 and "quota|" not in row["finish"]) or (
        turn.error_code == "tool_use_failed"
    )


@needs_recordings
@pytest.mark.parametrize("row", rows("response"), ids=lambda row: row["file"])
def test_usage_is_counted_by_its_familys_rule(row: Row) -> None:
    turn, one = decoded(row)
    reported = json.loads(row["usage"]) if row["usage"] else None
    if row["file"] in REFUSED or not one.judged:
        assert turn.usage is None  # a part of it is not what was used
        return
    if reported is None or reported["input"] is None:
        assert turn.usage is None
        return
    given, made = reported["input"], reported["output"]
    thought, total = reported["reasoning"] or 0, reported["total"]
    if row["family"] in ("gemini", "gemini_interactions"):
        # Thoughts are counted beside the output there, and what the provider's own tools read beside the input; a zero
        # isn't written at all. The rest of the total is that.
        made = (made or 0) + thought
        given = max(given, total - made)
    elif total:
        made = max(made, total - given)  # reasoning that one server leaves out
    assert turn.usage is not None
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (given, made)
    assert turn.usage.cached_input_tokens == (reported["cached"] or 0)
    assert turn.usage.reasoning_tokens == thought


# --- cut, and in other chunks -----------------------------------------------------------------------------------------


def decoder_ended(one: TurnDecoder) -> bool:
    return one.ended


CUT: Final = HttpFailed("connection_lost", "the answer broke off")


def cuts(data: bytes, rng: random.Random) -> list[int]:
    near = min(len(data), CUT_EVERY_BYTE_TO)
    beyond = [rng.randrange(near, len(data)) for _ in range(CUTS_BEYOND)] if len(data) > near else []
    return sorted({*range(near), *beyond})


@needs_recordings
@each_stream
def test_a_stream_cut_anywhere_is_nothing_before_its_own_last_event(row: Row) -> None:
    data = data_of(row)
    # Read once: each cut is looked at in a copy of the decoder as it was after the last whole frame, which the bytes since then
    # are fed to. From the start each time it was twice as dear.
    reading = decoder_of(family_named(row["family"]), Exchange(), answer_bytes_max=BYTES_MAX)
    read = copied_at = 0
    copied_frames, copied = -1, b""
    for cut in cuts(data, random.Random(row["file"])):
        reading.feed(data[read:cut])
        read = cut
        if reading.ended:
            break  # its own last event is there
        if reading.frames != copied_frames:
            copied, copied_at, copied_frames = pickle.dumps(reading), cut, reading.frames
        one: TurnDecoder = pickle.loads(copied)
        one.feed(data[copied_at:cut])
        turns = one.broke(CUT), one.end()
        if decoder_ended(one):
            continue  # it was the last frame, without its blank line
        for turn in turns:
            assert not FINISH[turn.finish].final
            assert not FINISH[turn.finish].executable
            assert turn.usage is None
            assert not turn.calls
    whole = decoder(row)
    whole.feed(data)
    assert whole.ended or not FINISH[whole.end().finish].executable


@needs_recordings
@each_stream
def test_a_stream_in_any_chunks_is_the_same_turn(row: Row) -> None:
    data = data_of(row)
    expected, _ = decoded(row)
    rng = random.Random(row["file"])
    thorough = "BOUNDLOOP_THOROUGH" in os.environ
    for number in range(CHUNKINGS if thorough else max(2, min(CHUNKINGS, CHUNKED_BYTES // len(data)))):
        one = decoder(row)
        place = 0
        largest = (1, 3)[number] if number < 2 else rng.choice((17, 200, 1_000, 5_000))
        while place < len(data):
            size = rng.randrange(1, largest + 1)
            one.feed(data[place : place + size])
            place += size
        assert one.end() == expected
