"""What a host shows of a running attempt, and when it is over."""

from __future__ import annotations

import asyncio

import pytest

from boundloop.actors.provisional import Mark, Provisional
from boundloop.adapters.port import AttemptReset, TextDelta
from boundloop.runtime.events import AnyEvent, CancelRequested, ModelFailed, ModelResponded

ANSWERED: AnyEvent = ModelResponded(
    1, 1, "final", "stop", "hello", 0, None, 1, 1, 0, "", "", None, 1, 1, (), None, None
)
FAILED: AnyEvent = ModelFailed(1, 1, "overloaded", True, 0, 0, 0, 0)
OTHER: AnyEvent = CancelRequested(reason="by_user", by="ann", command_id="k")
LONG_S = 60.0


def showing() -> Provisional:
    shown = Provisional()
    shown.add("r1", TextDelta(1, 1, 0, "hel"), 3)
    return shown


@pytest.mark.asyncio
@pytest.mark.parametrize("event", [ANSWERED, FAILED])
async def test_text_is_over_with_what_became_of_its_attempt(event: AnyEvent) -> None:
    shown = showing()
    assert (await shown.after("r1", Mark(), 0)).items == (TextDelta(1, 1, 0, "hel"),)
    shown.committed("r1", (OTHER,))
    assert (await shown.after("r1", Mark(), 0)).items
    shown.committed("r1", (OTHER, event))
    assert (await shown.after("r1", Mark(), 0)).items == ()


@pytest.mark.asyncio
async def test_a_reset_takes_the_text_back() -> None:
    shown = showing()
    shown.add("r1", AttemptReset(1, 1), 3)
    assert (await shown.after("r1", Mark(), 0)).items == ()


@pytest.mark.asyncio
@pytest.mark.parametrize("event", [ANSWERED, OTHER])
async def test_who_waits_for_a_run_is_told_of_each_commit_of_it_and_of_no_others(event: AnyEvent) -> None:
    shown = Provisional()
    waiting = asyncio.ensure_future(shown.after("r1", Mark(), LONG_S))
    await asyncio.sleep(0)
    shown.committed("r2", (event,))
    await asyncio.sleep(0)
    assert not waiting.done()
    shown.committed("r1", (event,))
    assert (await waiting).items == ()
