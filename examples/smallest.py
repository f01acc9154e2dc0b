"""The smallest useful program: one read tool, one question, hard limits, and a log that outlives the process."""

from __future__ import annotations

from boundloop.actors import Runtime
from boundloop.adapters import ScriptedModel, call, say
from boundloop.runtime import Limits, tool


@tool(risk="read")
def get_order(order_id: str) -> dict[str, str]:
    """Look up one order."""
    return {"order_id": order_id, "state": "shipped"}


# Stands in for a real model, so that this runs anywhere. Everything else is what a real program has.
model = ScriptedModel([call("get_order", {"order_id": "A1042"}), say("Order A1042 was shipped.")])

with Runtime(store="sqlite:///runs.db", model=model, tools=[get_order]) as rt:
    result = rt.run_sync("What is the state of order A1042?", limits=Limits(tool_calls=4, cost="0.05"))
    print(result.outcome, result.text, result.run_id)
