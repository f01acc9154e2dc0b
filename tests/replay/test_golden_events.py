"""Bytes of events are kept for ever: what was stored is read, and what is written is what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e

from .events_in_full import EVENTS, encoded

GOLDEN = [
    (tag, bytes.fromhex(data))
    for tag, data in (
        line.split() for line in Path(__file__).with_name("golden_events.txt").read_text().splitlines()
    )
]
BY_TAG = {e.tag_of(event): event for event in EVENTS}


def test_every_event_has_golden_bytes() -> None:
    assert {tag for tag, _ in GOLDEN} == set(e.EVENTS_BY_TAG)
    assert set(BY_TAG) == set(e.EVENTS_BY_TAG)


@pytest.mark.parametrize(("tag", "data"), GOLDEN, ids=[tag for tag, _ in GOLDEN])
def test_golden_bytes_are_read(tag: str, data: bytes) -> None:
    event = msgspec.msgpack.decode(data, type=e.AnyEvent)
    assert e.tag_of(event) == tag


@pytest.mark.parametrize("event", EVENTS, ids=e.tag_of)
def test_what_is_written_is_golden_and_reads_back(event: e.AnyEvent) -> None:
    data = encoded(event)
    assert (e.tag_of(event), data) in GOLDEN
    assert msgspec.msgpack.decode(data, type=e.AnyEvent) == event


@pytest.mark.parametrize("event", EVENTS, ids=e.tag_of)
def test_every_field_is_set(event: e.AnyEvent) -> None:
    """A default would hide a field from the golden bytes."""
    for field in msgspec.structs.fields(event):
        if field.default is not msgspec.NODEFAULT:
            assert getattr(event, field.name) != field.default, field.name


@pytest.mark.parametrize("event", EVENTS, ids=e.tag_of)
def test_decoding_is_strict(event: e.AnyEvent) -> None:
    fields = msgspec.msgpack.decode(encoded(event), type=list[Any])
    nested: list[Any] = []
    for broken in (
        ["no_such_tag", *fields[1:]],
        fields[:1],
        [*fields, "more"],
        [fields[0], nested, *fields[2:]],
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(broken), type=e.AnyEvent)


def test_older_shorter_events_are_read_with_their_defaults() -> None:
    for event in EVENTS:
        fields = msgspec.msgpack.decode(encoded(event), type=list[Any])
        required = [field for field in msgspec.structs.fields(event) if field.required]
        short = msgspec.msgpack.encode(fields[: 1 + len(required)])
        read = msgspec.msgpack.decode(short, type=e.AnyEvent)
        for field in required:
            assert getattr(read, field.name) == getattr(event, field.name)
