"""The far side that crash tests and examples count at must itself count right."""

from __future__ import annotations

import http.client
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.far_side import FarSide, FarSideError


@pytest.fixture
def far_side() -> Iterator[FarSide]:
    with FarSide.start() as started:
        yield started


def test_one_effect_a_key_and_every_request_counted(far_side: FarSide) -> None:
    first = far_side.submit("k1", amount=5)
    second = far_side.submit("k1", amount=5)
    assert (first["receipt"], second["receipt"], second["replayed"]) == ("R1", "R1", True)
    far_side.submit("k2")
    counts = far_side.counts()
    assert counts["requests"] == {"k1": 2, "k2": 1}
    assert counts["effects"] == {"k1": 1, "k2": 1}


def test_without_a_key_each_submission_is_an_effect(far_side: FarSide) -> None:
    far_side.submit("")
    far_side.submit("")
    assert far_side.counts()["effects"] == {"no key": 2}


@pytest.mark.parametrize(
    ("mode", "status", "applied"), [("refuse", 422, 0), ("busy", 503, 0), ("apply_then_500", 500, 1)]
)
def test_errors_say_whether_something_was_done(
    far_side: FarSide, mode: str, status: int, applied: int
) -> None:
    far_side.set_modes(mode)
    with pytest.raises(FarSideError) as error:
        far_side.submit("k")
    assert (error.value.status, error.value.applied) == (status, bool(applied))
    assert far_side.query("k")["applied"] is bool(applied)
    assert far_side.counts()["effects"].get("k", 0) == applied


def test_an_applied_submission_may_go_unanswered(far_side: FarSide) -> None:
    far_side.set_modes("apply_then_hang", "apply_then_close")
    with pytest.raises(TimeoutError):
        far_side.submit("k1", timeout_s=0.05)
    with pytest.raises(http.client.HTTPException):
        far_side.submit("k2")
    assert far_side.query("k1")["applied"] is True
    assert far_side.query("k2")["applied"] is True
    assert far_side.counts() == {
        "requests": {"k1": 1, "k2": 1},
        "effects": {"k1": 1, "k2": 1},
        "queries": {"k1": 1, "k2": 1},
    }


def test_an_unknown_mode_is_refused(far_side: FarSide) -> None:
    with pytest.raises(ValueError, match="typo"):
        far_side.set_modes("ok", "typo")


def test_a_client_travels_to_another_process_without_owning_the_service(far_side: FarSide) -> None:
    copy = pickle.loads(pickle.dumps(far_side))
    copy.stop()
    assert copy.submit("k")["receipt"] == "R1"


def test_it_ends_with_whoever_started_it() -> None:
    far_side = FarSide.start()
    process = far_side.process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(10) == 0
    far_side.stop()


def test_books_on_file_are_known_to_the_next_service(tmp_path: Path) -> None:
    books = str(tmp_path / "books.json")
    with FarSide.start(books=books) as first:
        paid = first.submit("k1", cents=1)
    with FarSide.start(books=books) as second:
        assert second.query("k1") == {"applied": True, "result": paid}
        assert second.submit("k1", cents=1) == {**paid, "replayed": True}
        assert second.submit("k2", cents=1)["receipt"] != paid["receipt"]
    with FarSide.start() as third:
        assert third.query("k1")["applied"] is False
