"""The shop of the scenarios: its tools, and a far side in memory that behaves as the scenario says."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Annotated, Any

import msgspec

from boundloop.actors.context import ToolContext
from boundloop.runtime.errors import ToolError
from boundloop.runtime.far_side import Absent, Applied
from boundloop.runtime.tool_spec import tool

Quantity = Annotated[int, msgspec.Meta(ge=1, le=10)]
Cents = Annotated[int, msgspec.Meta(ge=1, le=100_000)]

MODES = ("ok", "refuse", "lose", "apply_then_hang", "apply_then_fail")


class Shop:
    """One effect a key, everything counted by tool; ``modes`` says how the next submissions are treated."""

    def __init__(self) -> None:
        self.modes: deque[str] = deque()
        self.note = ""
        self.results: dict[str, dict[str, Any]] = {}
        self.counts: Counter[tuple[str, str]] = Counter()

    async def submit(self, what: str, key: str, result: dict[str, Any]) -> dict[str, Any]:
        """Have one effect, or fail at it in the way that is due."""
        self.counts[what, "requests"] += 1
        mode = self.modes.popleft() if self.modes else "ok"
        if key in self.results:
            return {**self.results[key], "replayed": True}
        if mode == "refuse":
            raise ToolError("refused", safe_message="the shop refused", no_effect=True)
        if mode == "lose":
            await asyncio.get_running_loop().create_future()
        self.counts[what, "effects"] += 1
        self.results[key] = result
        if mode == "apply_then_hang":
            await asyncio.get_running_loop().create_future()
        if mode == "apply_then_fail":
            raise ConnectionResetError
        return result

    async def query(self, key: str) -> Applied | Absent:
        """What became of a key."""
        self.counts["any", "queries"] += 1
        return Applied(self.results[key]) if key in self.results else Absent()

    def delete_all_orders(self) -> dict[str, Any]:
        """Maintenance, never declared as a tool. It is here to be found by whoever looks functions up by name."""
        self.counts["delete_all_orders", "effects"] += 1
        return {"deleted": "all"}

    def tools(self) -> list[Any]:
        """Everything that the shop offers."""
        shop = self

        @tool(risk="read")
        async def search(q: str) -> dict[str, Any]:
            """Search the catalogue."""
            shop.counts["search", "requests"] += 1
            found: dict[str, Any] = {"items": [f"{q}-1"]}
            return {**found, "note": shop.note} if shop.note else found

        @tool(risk="read", trust="untrusted")
        async def read_mail(box: str) -> dict[str, Any]:
            """Read the newest mail of a customer."""
            shop.counts["read_mail", "requests"] += 1
            return {"from": "customer", "text": shop.note}

        @tool(risk="read")
        async def get_order(order_id: str) -> dict[str, Any]:
            """Look up one order."""
            shop.counts["get_order", "requests"] += 1
            if order_id != "A1042":
                raise ToolError("order_not_found", safe_message="no such order")
            return {"order_id": order_id, "state": "delivered", "total_cents": 1250}

        @tool(risk="read", timeout_ms=500, max_attempts=2)
        async def slow_report(year: int) -> dict[str, Any]:
            """Make the yearly report. It never comes."""
            shop.counts["slow_report", "requests"] += 1
            await asyncio.get_running_loop().create_future()
            return {}

        @tool(risk="write", key=("sku", "qty"), far_side="keyed", timeout_ms=500)
        async def place_order(sku: str, qty: Quantity, ctx: ToolContext) -> dict[str, Any]:
            """Order something."""
            return await shop.submit("place_order", ctx.key, {"order": f"O-{sku}", "qty": qty})

        @tool(risk="irreversible", key=("order_id",), far_side="keyed", timeout_ms=500)
        async def refund(order_id: str, ctx: ToolContext) -> dict[str, Any]:
            """Give money back at once."""
            return await shop.submit("refund", ctx.key, {"refunded": order_id})

        @tool(risk="write", key=("order_id",), far_side="keyed", timeout_ms=500)
        async def create_refund_draft(order_id: str, amount_cents: Cents, ctx: ToolContext) -> dict[str, Any]:
            """Prepare a refund. No money moves."""
            return await shop.submit(
                "create_refund_draft", ctx.key, {"draft_id": f"D-{order_id}", "amount_cents": amount_cents}
            )

        @tool(
            risk="irreversible",
            key=("order_id",),
            incidental=("reason",),
            far_side="queryable",
            query=shop.query,
            query_authoritative=True,
            timeout_ms=500,
        )
        async def submit_refund(
            order_id: str, amount_cents: Cents, ctx: ToolContext, reason: str = ""
        ) -> dict[str, Any]:
            """Pay a refund out, as drafted."""
            return await shop.submit(
                "submit_refund", ctx.key, {"refund_id": f"R-{order_id}", "amount_cents": amount_cents}
            )

        @tool(
            risk="irreversible",
            key=("order_id",),
            far_side="keyed",
            timeout_ms=500,
            from_results={"order_id": "get_order.order_id"},
        )
        async def cancel_order(order_id: str, ctx: ToolContext) -> dict[str, Any]:
            """Cancel an order that was looked up."""
            return await shop.submit("cancel_order", ctx.key, {"cancelled": order_id})

        @tool(risk="write", key="call", far_side="none", timeout_ms=500)
        async def send_letter(to: str, ctx: ToolContext) -> dict[str, Any]:
            """Post a letter. The post office answers no questions."""
            return await shop.submit("send_letter", ctx.key, {"posted": to})

        return [
            search,
            read_mail,
            get_order,
            slow_report,
            place_order,
            refund,
            create_refund_draft,
            submit_refund,
            cancel_order,
            send_letter,
        ]
