"""A watcher sees each committed event of a run once and in order, whoever committed it in this host."""

from __future__ import annotations

from typing import Any

from boundloop.actors import Runtime
from boundloop.adapters import ScriptedModel, call, say
from boundloop.runtime import Limits, tool
from boundloop.runtime.events import AnyEvent, tag_of
from boundloop.runtime.state import State


@tool(risk="irreversible", key=("order_id",), far_side="natural")
async def refund(order_id: str) -> dict[str, Any]:
    """Give money back."""
    return {"refunded": order_id}


def test_commands_to_a_parked_run_are_watched_too() -> None:
    seen: list[tuple[int, str]] = []

    def watch(run_id: str, state: State, events: tuple[AnyEvent, ...], first_seq: int) -> None:
        seen.extend((seq, tag_of(event)) for seq, event in enumerate(events, first_seq))

    model = ScriptedModel([call("refund", {"order_id": "A1"}), say("Done")])
    with Runtime(store="memory://", model=model, tools=[refund]) as rt:
        rt.watch(watch)
        asked = rt.run_sync("Refund A1", limits=Limits(cost="0.01"))
        rt.approve(asked.run_id, asked.approvals[0].approval_id, by="bob")
        ended = rt.wait(asked.run_id)
    assert ended.completed
    assert [seq for seq, _ in seen] == list(range(1, ended.seq + 1))
    assert "approval_decided" in [tag for _, tag in seen]
