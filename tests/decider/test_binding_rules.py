"""What ties a call to the terms that it ran under: those of the dispatch, and not only of the run's start."""

from __future__ import annotations

from typing import Any

import pytest

from boundloop.runtime import events as e
from boundloop.runtime.binding import request_sha256
from boundloop.runtime.fold import fold

from .shop import BY_NAME, POLICY
from .spec import Run, call

READ = call("get_order", order_id="A")
EFFECT = call("refund", order_id="A", amount=5)


def started(run: Run, number: int = 0) -> e.CallStarted:
    return [event for event, _ in run.log if isinstance(event, e.CallStarted)][number]


@pytest.mark.parametrize("proposed", [READ, EFFECT], ids=["read", "effect"])
def test_nothing_is_recorded_where_nothing_changed_since_the_start(proposed: Any) -> None:
    run = Run()
    run.reply(proposed)
    run.check("c1.0")
    event = started(run)
    assert event.under is None
    assert event.request_sha256 == request_sha256(run.state, run.call("c1.0"), 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("policy_revision", "p2"), ("definition_sha256", b"d" * 32), ("handler_revision", "2.0")],
)
@pytest.mark.parametrize("proposed", [READ, EFFECT], ids=["read", "effect"])
def test_a_request_is_bound_to_what_it_was_checked_under(proposed: Any, field: str, value: Any) -> None:
    run = Run()
    run.reply(proposed)
    run.check("c1.0", **{field: value})
    event = started(run)
    definition = BY_NAME[proposed.name]
    pinned: dict[str, Any] = {
        "policy_revision": POLICY,
        "definition_sha256": definition.definition_sha256,
        "handler_revision": definition.handler_revision,
    }
    assert event.under == e.Revisions(**{**pinned, field: value})
    subject = run.call("c1.0")
    assert event.request_sha256 != request_sha256(run.state, subject, 1)
    # The log alone has what the hash is made from.
    replayed = fold(run.log, run.blobs)
    assert request_sha256(replayed, replayed.calls["c1.0"], 1, event.under) == event.request_sha256
    run.report("c1.0")
    assert run.bound("c1.0") == ("ok", "")
    assert run.state.phase == "model_requested"


def test_a_further_attempt_is_bound_to_the_terms_of_its_own_check() -> None:
    run = Run()
    run.reply(EFFECT)
    run.check("c1.0")
    run.report("c1.0", "failed", code="busy", retryable=True, no_effect=True)
    run.tick_to_wake()
    run.check("c1.0", handler_revision="2.0")
    assert started(run).under is None
    under = started(run, 1).under
    assert under is not None
    assert under.handler_revision == "2.0"
