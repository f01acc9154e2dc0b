"""A process that carries the tree of ``tests/test_trees_crash.py`` on a SQLite file and kills itself at one append.

``python tests/crash/tree_child.py FILE KEYS AT before|after``: each effect's key goes to the file KEYS, synced, before the tool
returns. AT 0 kills nothing; the number of appends is printed at the end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.tree_play import THREE_LEVELS_LIMITS, three_levels

from boundloop.actors.client import Runtime
from boundloop.eventstore.port import Append, AppendAnswer
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.tool_spec import tool

RUN_ID: Final = "root"


def tools_to(keys: str) -> list[Any]:
    """The toolbox; ``pay`` leaves its key in a file."""

    @tool(risk="read")
    def search(query: str) -> dict[str, Any]:
        "Search."
        return {"found": query}

    @tool(risk="write", key=("order_id",), far_side="keyed")
    def pay(order_id: str, ctx: Any) -> dict[str, Any]:
        "Pay; the far side knows the key."
        with open(keys, "a", encoding="ascii") as file:
            file.write(ctx.key + "\n")
            file.flush()
            os.fsync(file.fileno())
        return {"paid": order_id}

    return [
        search,
        pay,
        agent(name="lead", description="Leads.", system="lead", tools=("worker", "search")),
        agent(name="worker", description="Works.", system="worker", tools=("pay", "search")),
    ]


def die_at(number: int, position: str) -> list[int]:
    """Count the appends of this process in the list's one item; be gone before or after the n-th."""
    seen = [0]
    append = SqliteStore.append

    async def counted(store: SqliteStore, request: Append) -> AppendAnswer:
        seen[0] += 1
        last = seen[0] == number
        if last and position == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await append(store, request)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    SqliteStore.append = counted  # type: ignore[assignment,method-assign]  # a process that is made to die
    return seen


def main(path: str, keys: str, number: str, position: str) -> None:
    seen = die_at(int(number), position)
    with Runtime(store=f"sqlite:///{path}", model=three_levels().model, tools=tools_to(keys)) as runtime:
        runtime.start("go", run_id=RUN_ID, limits=THREE_LEVELS_LIMITS)
        result = runtime.wait(RUN_ID, timeout_s=50)
    print(result.text, seen[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
