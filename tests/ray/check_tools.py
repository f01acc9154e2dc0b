"""Tools whose checks and queries behave as badly as an application's code can. Executors import this module by its name.

An order's id says what its check does, and where: ``free``, ``hold`` (never lets go of the interpreter), ``exit`` (ends its
process); then a colon and the file that each piece of the application's code leaves its name and its process's id in.
"""

from __future__ import annotations

import os
import tempfile
from itertools import repeat
from pathlib import Path
from typing import Any

from tests.ray.pool_tools import lines, note

from boundloop.runtime import Applied
from boundloop.runtime.policy import PolicyDecision, PolicyQuestion
from boundloop.runtime.tool_spec import tool

HELD_COUNT = 10_000_000_000
"""Steps of a loop in C that lasts for minutes and runs no other thread meanwhile."""


def leave_name(path: str, name: str) -> None:
    note(path, f"{name} {os.getpid()}")


def processes(path: Path, name: str) -> list[int]:
    """Where a piece of the application's code ran, once a time."""
    return [int(line.split()[1]) for line in lines(path) if line.split()[0] == name]


def behave(arguments: dict[str, Any]) -> bool:
    word, _, path = arguments["order_id"].partition(":")
    leave_name(path, "check")
    if word == "hold":
        sum(repeat(0, HELD_COUNT))
    if word == "exit":
        os._exit(137)
    return True


def show(arguments: dict[str, Any]) -> dict[str, str]:
    leave_name(arguments["order_id"].partition(":")[2], "preview")
    return {"shown": "the order"}


def version(arguments: dict[str, Any]) -> str:
    leave_name(arguments["order_id"].partition(":")[2], "version_of")
    return "v1"


def judge(question: PolicyQuestion) -> PolicyDecision:
    path = str(question.arguments.get("order_id", "")).partition(":")[2]
    if path:
        leave_name(path, "policy")
    return PolicyDecision(answer="allow")


@tool(risk="read", inline=True)
async def glance(order_id: str) -> int:
    """In the host itself."""
    return len(order_id)


@tool(risk="write", key=("order_id",), check=behave)
async def book(order_id: str) -> int:
    """Book an order."""
    leave_name(order_id.partition(":")[2], "book")
    return 1


@tool(
    risk="irreversible", key=("order_id",), check=behave, preview=show, version_of=version, approval="always"
)
async def pay(order_id: str) -> int:
    """Pay an order back."""
    leave_name(order_id.partition(":")[2], "pay")
    return 1


def notes_of(key: str) -> Path:
    """Where queries of this key leave their names: they are given nothing else."""
    return Path(tempfile.gettempdir()) / f"boundloop-query-{key}"


def leave_the_first_time(key: str) -> Applied:
    """End the process of whoever asks first; the next is told that the effect is there."""
    leave_name(str(notes_of(key)), "query")
    if len(lines(notes_of(key))) == 1:
        os._exit(137)
    return Applied(7)


async def leave_the_loop_the_first_time(key: str) -> Applied:
    """The same on a loop."""
    return leave_the_first_time(key)


def _forgets(path: str, ctx: Any) -> int:
    note(path, ctx.key)
    raise RuntimeError("nobody knows what happened")


@tool(risk="write", key="call", far_side="queryable", query=leave_the_first_time)
def send(path: str, ctx: Any) -> int:
    """An effect whose outcome nobody knows."""
    return _forgets(path, ctx)


@tool(risk="write", key="call", far_side="queryable", query=leave_the_loop_the_first_time)
def send_queried_on_a_loop(path: str, ctx: Any) -> int:
    """The same, whose far side is asked by a coroutine."""
    return _forgets(path, ctx)


TOOLS = [glance, book, pay, send, send_queried_on_a_loop]
