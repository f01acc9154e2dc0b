"""A short run of what ``tests/fuzz/run.py`` does at length."""

from __future__ import annotations

import random

from tests.fuzz.mutations import MEMORY_BYTES_MAX, garble_many, garbled, seeds, try_one


def test_two_thousand_garbled_answers_all_become_turns() -> None:
    came, failed, grown = garble_many(2_000, "suite")
    assert failed == []
    assert sum(came.values()) == 2_000
    assert grown < MEMORY_BYTES_MAX
    # Most are no answer any more, and some still are one: neither side is tried in vain.
    assert came["transport_broken"] > 200
    assert came["calls"] > 20


def test_a_seed_is_one_mutation() -> None:
    known = seeds()
    assert garbled(known[0][1], random.Random("x")) == garbled(known[0][1], random.Random("x"))
    assert [try_one("x.1", known) for _ in range(3)] == [try_one("x.1", known)] * 3
