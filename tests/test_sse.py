"""Events of a stream, in whatever chunks and with whatever ends of lines they come."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_examples import examples

from boundloop.adapters.sse import STRAY_BYTES_MAX, Frame, FrameTooLarge, SseParser


def parsed(data: bytes, *chunks: int) -> list[Frame]:
    """The frames, with the bytes cut at these places."""
    parser = SseParser()
    frames: list[Frame] = []
    for start, end in zip([0, *chunks], [*chunks, len(data)], strict=True):
        frames += parser.feed(data[start:end])
    return frames + parser.finish()


ONE = (
    "\ufeff: a comment\r\n"
    'event: first\r\ndata: {"a":"é"}\r\ndata: more\r\nid: 7\r\nretry: 10\r\n\r\n'
    "data:no blank\r\rdata\n\nevent: nothing\n\n:\n\ndata: last"
).encode()
FRAMES = [
    Frame("first", '{"a":"é"}\nmore'.encode()),
    Frame("", b"no blank"),
    Frame("", b""),
    Frame("", b"last"),
]


def test_fields_comments_names_and_ends_of_lines() -> None:
    # A field without a colon is that field, empty; an event without data is none.
    assert parsed(ONE) == FRAMES


def test_any_cut_gives_the_same_frames() -> None:
    whole = parsed(ONE)
    for place in range(len(ONE) + 1):
        assert parsed(ONE, place) == whole
    assert parsed(ONE, *range(1, len(ONE))) == whole


@given(st.binary(max_size=200).map(lambda raw: raw.replace(b"\x00", b"\r\n")), st.randoms())
@settings(max_examples=examples(200), deadline=None)
def test_any_bytes_in_any_chunks_are_the_same_frames(data: bytes, rng: random.Random) -> None:
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    assert parsed(data, *places) == parsed(data)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_each_end_of_line_ends_a_line(end: str) -> None:
    data = f"event: a{end}data: 1{end}data: 2{end}{end}data: 3{end}{end}".encode()
    assert parsed(data) == [Frame("a", b"1\n2"), Frame("", b"3")]


def test_a_cr_at_the_end_of_a_chunk_ends_its_line_at_once_and_its_lf_is_no_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\r\n\r") == [Frame("", b"1")]
    assert parser.feed(b"\ndata: 2\n\n") == [Frame("", b"2")]


def test_a_field_called_error_is_an_event_of_that_name() -> None:
    assert parsed(b'data: half\nerror: {"message":"no"}\n\n') == [Frame("error", b'{"message":"no"}')]


def test_lines_that_are_no_field_are_kept_aside_and_bounded() -> None:
    parser = SseParser()
    parser.feed(b'{\n  "error": {"code": 1}\n}\n')
    assert bytes(parser.stray) == b'{\n  "error": {"code": 1}\n}\n'
    parser.feed((b"x" * 999 + b"\n") * 1_000)
    assert len(parser.stray) <= STRAY_BYTES_MAX


@pytest.mark.parametrize("data", [b"data: " + b"x" * 200, b"data: x\n" * 40, b": comment\n" * 40, b"x" * 200])
def test_a_frame_over_the_bound_is_refused(data: bytes) -> None:
    parser = SseParser(frame_bytes_max=100)
    for byte in data[:100]:
        parser.feed(bytes([byte]))
    with pytest.raises(FrameTooLarge):
        parser.feed(data[100:])


def test_many_frames_under_the_bound_are_no_large_one() -> None:
    parser = SseParser(frame_bytes_max=100)
    assert len(parser.feed(b"data: x\n\n" * 1_000)) == 1_000


def test_each_byte_is_looked_at_once_however_it_comes() -> None:
    data = b"data: " + b"x" * 100_000 + b"\n\n"
    parser = SseParser()
    for place in range(0, len(data), 7):
        parser.feed(data[place : place + 7])
    assert parser.work == len(data)
