"""The far sides: what is asked of them and what takes effect there, counted by themselves.

A far side that takes the key, or whose repetition is natural, has one effect a key whatever it is asked. One that can
only be queried, and one that offers nothing, has an effect for every request: there a second one is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from boundloop.actors.context import ToolContext
from boundloop.runtime.errors import ToolError
from boundloop.runtime.tool_definition import FarSide as Offers


class Request(NamedTuple):
    """What arrived: who sent it (by what the tool was told), under which key, with which arguments."""

    tool: str
    key: str
    run: str
    call: str
    attempt: int
    arguments: dict[str, Any]


class FarSide:
    """``arrived`` is told of each request before anything happens."""

    def __init__(self, arrived: Callable[[Request], None]) -> None:
        self._arrived = arrived
        self.requests: dict[str, int] = {}
        self.effects: dict[str, int] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.acted: dict[str, dict[str, Any]] = {}
        self.runs: set[str] = set()
        self.mode = ""
        self.hidden: set[str] = set()
        self._moved: dict[str, int] = {}

    def read(
        self, tool: str, ctx: ToolContext, arguments: dict[str, Any], result: dict[str, Any]
    ) -> dict[str, Any]:
        """Something without an effect."""
        self._arrived(Request(tool, "", ctx.run_id, ctx.call_id, ctx.attempt, arguments))
        if self.mode in ("tool_raises_before", "tool_raises_after"):
            raise ConnectionResetError
        if self.mode == "tool_refuses":
            raise ToolError("not_found", safe_message="no such thing", retryable=True)
        return {"wrong": True} if self.mode == "output_invalid" else result

    def act(
        self, tool: str, offers: Offers, ctx: ToolContext, arguments: dict[str, Any], result: dict[str, Any]
    ) -> dict[str, Any]:
        """Take effect, or refuse; ``mode`` says what goes wrong with the request that is being served."""
        key = ctx.key
        self._arrived(Request(tool, key, ctx.run_id, ctx.call_id, ctx.attempt, arguments))
        self.requests[key] = self.requests.get(key, 0) + 1
        if self.mode == "tool_refuses":
            raise ToolError("refused", safe_message="the shop refused", no_effect=True, retryable=True)
        if self.mode == "moved_on":
            self.moves(arguments["order_id"])
            raise ToolError("moved_on", safe_message="it has changed", no_effect=True, retryable=True)
        if self.mode == "tool_raises_before":
            raise ConnectionResetError
        again = offers in ("keyed", "natural") and key in self.effects
        if not again:
            self.effects[key] = self.effects.get(key, 0) + 1
            self.results[key] = result
            self.acted[key] = arguments
        self.runs.add(ctx.run_id)
        if self.mode == "tool_raises_after":
            raise ConnectionResetError
        return {"wrong": True} if self.mode == "output_invalid" else self.results[key]

    def moves(self, order: str) -> None:
        """Somebody changes an order."""
        self._moved[order] = self._moved.get(order, 0) + 1

    def version(self, order: str) -> str:
        """Which version of an order there is now."""
        return f"v{1 + self._moved.get(order, 0)}"

    def happened(self, key: str) -> dict[str, Any] | None:
        """The truth about a key."""
        return self.results.get(key)
