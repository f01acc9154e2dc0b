"""The tools, pins and limits that the decider's tests speak about: one shop, one tool for each kind of far side."""

from __future__ import annotations

from typing import Any

import msgspec

from boundloop.runtime.goal import Goal
from boundloop.runtime.limits import LimitValues
from boundloop.runtime.pins import Pins
from boundloop.runtime.prices import FREE, Price
from boundloop.runtime.tool_definition import ToolDefinition
from boundloop.runtime.tool_spec import tool, tool_spec


@tool(risk="read")
def get_order(order_id: str) -> dict[str, Any]:
    "Look up one order."
    return {"order_id": order_id}


@tool(risk="read", cost_micros=40)
def credit_check(order_id: str) -> dict[str, Any]:
    "A read that costs money."
    return {"order_id": order_id}


@tool(risk="irreversible", key=("order_id",), incidental=("reason",), far_side="keyed")
def refund(order_id: str, amount: int, reason: str = "") -> dict[str, Any]:
    "Refund an order; the far side takes the key."
    return {"refunded": amount}


@tool(risk="write", key=("order_id",), far_side="natural")
def set_state(order_id: str, state: str) -> dict[str, Any]:
    "Set an order's state; repeating it is harmless."
    return {"state": state}


@tool(risk="write", key=("order_id",), far_side="none")
def pay(order_id: str, amount: int) -> dict[str, Any]:
    "Pay out; the far side offers nothing."
    return {"paid": amount}


@tool(risk="write", key="call", far_side="none", cost_micros=60)
def send_letter(order_id: str) -> dict[str, Any]:
    "Each proposal is a letter of its own."
    return {"sent": True}


def _query(key: str) -> None:
    "Declared; what it answers is up to each test."


@tool(risk="write", key=("order_id",), far_side="queryable", query=_query, query_authoritative=True)
def ship(order_id: str) -> dict[str, Any]:
    "Ship an order; the carrier knows every key that it has seen."
    return {"shipped": order_id}


@tool(risk="write", key=("order_id",), far_side="queryable", query=_query)
def book(order_id: str) -> dict[str, Any]:
    "Book an order; the far side's list may lag behind."
    return {"booked": order_id}


TOOLS: tuple[ToolDefinition, ...] = tuple(
    tool_spec(declared).definition
    for declared in (get_order, credit_check, refund, set_state, pay, send_letter, ship, book)
)
BY_NAME = {definition.name: definition for definition in TOOLS}
POLICY = "default-1"
MINUTE_MS = 60_000


def limits(**changed: Any) -> LimitValues:
    """Small numbers, so that each limit is reached soon."""
    values: dict[str, Any] = {
        "turns": 12,
        "model_attempts": 24,
        "tool_calls": 20,
        "call_attempts": 30,
        "context_tokens": 100_000,
        "output_tokens_per_request": 100,
        "cost_micros": 10_000,
        "deadline_ms": 60 * MINUTE_MS,
        "approval_ms": 10 * MINUTE_MS,
    }
    return LimitValues(**{**values, **changed})


def pins(
    *,
    bounds: LimitValues | None = None,
    goal: Goal | None = None,
    price: Price | None = FREE,
    tools: tuple[ToolDefinition, ...] = TOOLS,
    separate_approver: bool = False,
    guarded: tuple[str, ...] = (),
) -> Pins:
    """Pins of a run in the shop."""
    return Pins(
        producer="test",
        model="scripted",
        api_family="scripted",
        adapter_revision="1",
        template_revision="1",
        system="",
        tools=tools,
        permissions=(),
        policy_revision=POLICY,
        separate_approver=separate_approver,
        limits=limits() if bounds is None else bounds,
        goal=goal,
        price=price,
        price_revision="1",
        guarded=guarded,
        guardrail_revision="g1" if guarded else "",
    )


def changed(name: str, **fields: Any) -> tuple[ToolDefinition, ...]:
    """The shop's tools with one definition changed."""
    return tuple(
        msgspec.structs.replace(definition, **fields) if definition.name == name else definition
        for definition in TOOLS
    )
