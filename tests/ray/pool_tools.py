"""Tools that behave as badly as tools do. Their executors import this module by its name."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from boundloop.runtime.errors import ToolError
from boundloop.runtime.tool_spec import tool
from boundloop.runtime.toolbox import Toolbox

CANARY = "canary-7f3a-must-not-be-seen"


def note(path: str, line: str) -> None:
    """One line at the end of a file, whole even if several processes write."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


@tool(risk="write", key="call", far_side="natural")
def pay(path: str, ctx: Any) -> dict[str, Any]:
    """Leave a line at the far side, and say who did it."""
    note(path, ctx.call_id)
    return {"pid": os.getpid(), "principal": ctx.principal, "key": ctx.key, "rate": ctx.dependencies["rate"]}


@tool(risk="write", key="call", timeout_ms=60_000)
def pay_and_hang(path: str) -> int:
    """Leave the process's id at the far side, and never come back."""
    note(path, str(os.getpid()))
    threading.Event().wait()
    return 0


@tool(risk="read", timeout_ms=60_000)
def read_and_hang(path: str) -> int:
    """The same as a read."""
    note(path, str(os.getpid()))
    threading.Event().wait()
    return 0


@tool(risk="write", key="call", timeout_ms=60_000)
def spin(path: str) -> int:
    """Start one program in a session of its own, one with no environment, fork a child, and spin."""
    for program in (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True),
        subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True),
    ):
        note(path, str(program.pid))
    child = os.fork()
    if child == 0:
        os.setsid()
        threading.Event().wait()
    note(path, str(child))
    note(path, str(os.getpid()))
    while True:
        pass


@tool(risk="write", key="call", timeout_ms=60_000)
def listen(path: str, ctx: Any) -> str:
    """Go on until asked to stop."""
    note(path, str(os.getpid()))
    return "stopped" if ctx.cancel.wait(50) else "never asked"


@tool(risk="write", key="call", timeout_ms=60_000)
async def wait_async(path: str) -> int:
    """Wait on the loop."""
    note(path, str(os.getpid()))
    await asyncio.get_running_loop().create_future()
    return 0


@tool(risk="write", key="call", timeout_ms=60_000)
async def deaf_async(path: str) -> int:
    """Wait on the loop, whoever cancels it, until a file is there."""
    await _deaf(path)
    return 0


@tool(risk="read", timeout_ms=60_000)
async def read_deaf_async(path: str) -> int:
    """The same without an effect."""
    await _deaf(path)
    return 0


@tool(risk="write", key="call", timeout_ms=60_000)
async def thread_async(path: str) -> int:
    """Work in a thread, which nobody can stop."""
    note(path, str(os.getpid()))
    await asyncio.to_thread(threading.Event().wait, 1_000)
    return 0


async def _deaf(path: str) -> None:
    note(path, str(os.getpid()))
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    while not lines(Path(f"{path}.end")):
        try:
            await asyncio.wait([never], timeout=0.05)
        except asyncio.CancelledError:
            continue


@tool(risk="read", timeout_ms=60_000)
async def look_async(value: int) -> int:
    """Answer at once."""
    return value


@tool(risk="write", key="call", timeout_ms=60_000)
async def block_loop(path: str, seconds: int) -> int:
    """Hold the loop up."""
    note(path, str(os.getpid()))
    threading.Event().wait(seconds)
    return 0


@tool(risk="read")
def leave(effect: bool) -> int:
    """End the process as the system would."""
    os._exit(137)


@tool(risk="write", key="call")
def leave_after_effect(path: str) -> int:
    """The same after an effect."""
    note(path, "done")
    os._exit(137)


@tool(risk="read")
def talk(times: int) -> int:
    """Print where everybody could read it."""
    for _ in range(times):
        print(CANARY, flush=True)
        print(CANARY, file=sys.stderr, flush=True)
    os.write(1, CANARY.encode())
    os.write(2, CANARY.encode())
    subprocess.run(["sh", "-c", f"echo {CANARY}; echo {CANARY} >&2"], check=True)
    return times


@tool(risk="read")
def big(bytes_count: int) -> str:
    """As many characters."""
    return "x" * bytes_count


@tool(risk="read", quick=True)
def rate(value: int) -> int:
    """Short: raises for -1, hangs for -2, takes 1 ms from 10,000 on."""
    if value >= 10_000:
        threading.Event().wait(0.001)
    if value == -1:
        raise ValueError(CANARY)
    if value == -2:
        while True:
            pass
    return value


@tool(risk="write", key="call", group="bank", timeout_ms=4_000)
def pay_limited(path: str, dies: bool) -> int:
    """One of a few at a time at the far side. Its stay is on record there, open if it never ended."""
    mine = f"{os.getpid()}-{time.monotonic_ns()}"
    note(path, f"in {mine} {time.monotonic_ns()}")
    if dies:
        os._exit(137)
    threading.Event().wait(0.02)
    note(path, f"out {mine} {time.monotonic_ns()}")
    return 0


class LockHolder(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Odd(Exception):
    def __init__(self, one: int, *, two: int) -> None:
        super().__init__("built unlike its arguments")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


class Local(ToolError):
    def __init__(self) -> None:
        super().__init__("x", safe_message="safe")
        self.code = self  # type: ignore[assignment]  # a tool may put anything there


def _chained() -> Exception:
    error = Odd(1, two=2)
    error.__cause__ = LockHolder()
    return error


NASTY: dict[str, Any] = {
    "lock": LockHolder,
    "odd": lambda: Odd(1, two=2),
    "huge": lambda: ValueError("x" * 50_000_000),
    "secret": lambda: ValueError(CANARY),
    "unprintable": Unprintable,
    "unpicklable": Unpicklable,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "stop": StopIteration,
    "base": lambda: BaseException("bare"),
    "group": lambda: BaseExceptionGroup("many", [LockHolder(), SystemExit(1)]),
    "chained": _chained,
    "tool": Local,
    "memory": MemoryError,
    "recursion": RecursionError,
}


@tool(risk="write", key="call")
def raise_it(name: str) -> int:
    """Raise one of those."""
    raise NASTY[name]()


@tool(risk="read")
async def raise_it_async(name: str) -> int:
    """The same on a loop."""
    raise NASTY[name]()


TOOLS = Toolbox(
    [
        pay,
        pay_and_hang,
        read_and_hang,
        spin,
        listen,
        wait_async,
        deaf_async,
        read_deaf_async,
        thread_async,
        look_async,
        block_loop,
        leave,
        leave_after_effect,
        talk,
        big,
        rate,
        pay_limited,
        raise_it,
        raise_it_async,
    ]
)


def lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []
