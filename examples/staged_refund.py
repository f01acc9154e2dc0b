"""Free enquiry, then a fixed flow: draft, approval, submission. The record moves the run on, never what the model says.

The model is scripted to be in a hurry: it wants to submit at once, makes an order id up, and says that it is done. Exits 0 only
if each of these was refused, a person was asked, and one refund was paid.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from boundloop.actors import Runtime
from boundloop.adapters import ScriptedModel, call, say
from boundloop.runtime import Citations, Goal, Limits, Stage, tool

did: Counter[str] = Counter()


@tool(risk="read")
def get_order(order_id: str) -> dict[str, Any]:
    """Look up one order."""
    return {"order_id": order_id, "state": "delivered", "total_cents": 1250}


@tool(risk="write", key=("order_id",), far_side="natural", from_results={"order_id": "get_order.order_id"})
def create_draft(order_id: str) -> dict[str, Any]:
    """Prepare a refund. No money moves."""
    did["drafts"] += 1
    return {"draft_id": f"D-{order_id}"}


@tool(
    risk="irreversible",
    key=("draft_id",),
    far_side="keyed",
    from_results={"draft_id": "create_draft.draft_id"},
)
def submit_draft(draft_id: str) -> dict[str, Any]:
    """Pay a draft out. A person is asked first."""
    did["refunds"] += 1
    return {"refund_id": draft_id.replace("D-", "R-")}


model = ScriptedModel(
    [
        call("submit_draft", {"draft_id": "D-A1042"}),  # not offered yet
        call("get_order", {"order_id": "A1042"}),
        call("create_draft", {"order_id": "A1024"}),  # no order that was looked up
        say("The refund was paid out."),  # it was not
        call("create_draft", {"order_id": "A1042"}),
        call("submit_draft", {"draft_id": "D-A1042"}),
        say("Refunded 12.50 [source:R-A1042]."),
    ]
)

stages = (
    Stage("enquire", tools=("get_order",), leave="get_order"),
    Stage("draft", tools=("get_order", "create_draft"), leave="create_draft"),
    Stage("submit", tools=("submit_draft",)),
)


def main() -> int:
    """Play it, be the person who is asked, and judge what became of it."""
    goal = Goal.of("submit_draft", citations=Citations(("submit_draft.refund_id",)))
    with Runtime(store="memory://", model=model, tools=[get_order, create_draft, submit_draft]) as rt:
        run = rt.start("Refund order A1042.", limits=Limits(cost="0.05"), goal=goal, stages=stages)
        asked = run.result()
        print(f"{asked.status}: {asked.approvals[0].tool} {asked.approvals[0].preview}")
        rt.approve(run.run_id, asked.approvals[0].approval_id, by="ann")
        result = run.wait()
        print(f"{result.outcome}: {result.text}")
        for cited in result.citations:
            print(f"{cited.id} is in the result of {cited.tool}, call {cited.call}")
    return 0 if result.completed and did == {"drafts": 1, "refunds": 1} else 1


if __name__ == "__main__":
    sys.exit(main())
