"""Processes that share one store without Ray: the first Runtime on a file owns it, the others go through its socket.

``python tests/attach_play.py FILE [other]`` is such a process; it is told what to do line by line, in JSON. What a run
does is written into its system text, one word a turn: ``look`` (a read), ``hold`` (a read that waits for the file
named in the run's input), ``pay`` (asks a person first). With ``other`` its application lacks ``pay``.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.ray.process_table import POLL_S, eventually

from boundloop.actors import client
from boundloop.actors.attached import Attached
from boundloop.actors.client import Runtime
from boundloop.actors.owning import Owning, Parts
from boundloop.actors.ray_run_actor import socket_to_owner
from boundloop.adapters.script import ScriptedTurn, call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.location import parse_url
from boundloop.eventstore.sqlite_file import real_path
from boundloop.runtime.errors import BoundloopError, OwnedError
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.model import ModelInput, UserItem
from boundloop.runtime.tool_spec import tool

ANSWER_S: Final = 60.0
LIMITS: Final = Limits(cost=WAIVED)


class SocketUse:
    """A cluster of this machine's processes: what ``RayClusterUse`` is, without Ray."""

    foreign_errors = True

    async def serve(
        self,
        parts: Parts,
        url: str,
        *,
        take_over: bool,
        clock: Callable[[], int] | None,
        lost: Callable[[], None],
    ) -> Owning | Attached:
        try:
            return await Owning.open(parts, url, take_over=take_over, clock=clock)
        except OwnedError:
            return await Attached.open(await socket_to_owner(real_path(parse_url(url).path)), lost)

    async def leave(self) -> None:
        """There is nothing to leave."""


def use_sockets(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on every Runtime of this process is one of such a cluster."""

    def sockets(*given: object, **wanted: object) -> type[SocketUse]:
        return SocketUse

    patch(client, "cluster_use", sockets)


async def exists(path: str) -> None:
    """Return once the file is there: a gate for all processes."""
    loop = asyncio.get_running_loop()
    there: asyncio.Future[None] = loop.create_future()

    def ask() -> None:
        if there.done():
            return
        if Path(path).exists():
            there.set_result(None)
        else:
            loop.call_later(POLL_S, ask)

    ask()
    await there


@tool(risk="read")
async def look(number: int) -> dict[str, int]:
    """Look something up."""
    return {"number": number, "pid": os.getpid()}


@tool(risk="read")
async def hold(path: str) -> dict[str, int]:
    """Wait until the file is there."""
    await exists(path)
    return {"pid": os.getpid()}


@tool(risk="irreversible", key=("order_id",))
async def pay(order_id: str) -> dict[str, str]:
    """Pay an order back."""
    return {"paid": order_id}


def answer(request: ModelInput) -> ScriptedTurn:
    plan = request.system.split()
    if request.turn > len(plan):
        return say("Done.")
    text = next((item.text for item in request.items if isinstance(item, UserItem)), "")
    arguments: dict[str, dict[str, Any]] = {
        "look": {"number": request.turn},
        "hold": {"path": text},
        "pay": {"order_id": request.run_id},
    }
    word = plan[request.turn - 1]
    return call(word, arguments[word])


def runtime_on(path: Path | str, *, other: bool = False, **options: Any) -> Runtime:
    return Runtime(
        store=f"sqlite:///{path}",
        model=ScriptedModel(answer),
        tools=[look, hold] if other else [look, hold, pay],
        **options,
    )


def half_of(runtime: Runtime) -> Any:
    """Its half on the loop."""
    return vars(runtime)["_embedded"]


def on_loop(runtime: Runtime, work: Any) -> Any:
    """Await something on its loop."""
    return vars(runtime)["_thread"].call(work, ANSWER_S)


class Member:
    """The parent's end of such a process. A context manager that ends it by its pid. ``script``: another one that takes
    the same orders. ``environment``: added to this process's."""

    def __init__(
        self, path: Path, *options: str, script: str = __file__, environment: dict[str, str] | None = None
    ) -> None:
        command = [sys.executable, str(Path(script).resolve()), str(path), *options]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            bufsize=0,
            env=os.environ | (environment or {}),
        )
        self.opened = self.answer()

    def tell(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.tell(do, **arguments)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        pipe = self.process.stdout
        assert pipe is not None
        assert select.select([pipe], [], [], ANSWER_S)[0], "the member says nothing"
        line = pipe.readline()
        assert line, f"the member ended with {self.process.wait(ANSWER_S)}"
        said: dict[str, Any] = json.loads(line)
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(ANSWER_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def obey(runtime: Runtime) -> None:
    """In such a process: do what is told until the input ends. The Runtime is left as it is then."""
    _say({"attached": half_of(runtime).serving.attached, "pid": os.getpid()})
    for line in sys.stdin.buffer:
        told = json.loads(line)
        try:
            _say(_done(runtime, told))
        except BoundloopError as error:
            _say({"error": error.code})


def _done(runtime: Runtime, told: dict[str, Any]) -> dict[str, Any]:
    match told["do"]:
        case "start":
            runtime.start(told["input"], system=told["plan"], run_id=told["run"], limits=LIMITS)
            return {"started": told["run"]}
        case "result":
            result = runtime.result(told["run"], ANSWER_S)
            return {"status": result.status, "outcome": result.outcome, "text": result.text}
        case "serve":
            threading.Thread(target=_say_once_it_serves, args=(signal.getsignal(signal.SIGTERM),)).start()
            runtime.serve()
            return {"closed": True}
        case _:
            runtime.close()
            return {"closed": True}


def _say_once_it_serves(before: object) -> None:
    assert eventually(lambda: signal.getsignal(signal.SIGTERM) is not before, ANSWER_S)
    _say({"serving": os.getpid()})


def _say(said: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(said).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    use_sockets()
    obey(runtime_on(sys.argv[1], other="other" in sys.argv[2:]))
