"""A model server on this machine that plays scripts over real HTTP: for tests, demonstrations and load.

It serves ``POST /v1/chat/completions`` (streamed where asked for) on 127.0.0.1 only, ``GET /counts`` for what it was asked, and
``/gates/NAME`` for answers that a script holds back (``GET``: how many stand there; ``POST`` opens it). What it answers
depends on the request alone (``loopback_answer``); only the counts are memory, and they are lost with the process.

    python -m boundloop.adapters.loopback_server --script FILE --port 0

prints one JSON line with its address once it listens, and ends on SIGTERM, SIGINT or, with ``--until-stdin-closes``, when
nobody holds its standard input any more.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from ..runtime.errors import DeclarationError
from .loopback_answer import Answer, answer_chat, error_answer
from .loopback_http import Connection, Request, Site
from .loopback_script import LATENCY_MS_MAX, ServerScript, check_server_script, server_script_from_file

CONNECTIONS_MAX: Final = 8_192
BACKLOG: Final = 4_096
RUNS_COUNTED_MAX: Final = 200_000
GATES_MAX: Final = 1_000
ADDRESS: Final = "127.0.0.1"


class Counts(msgspec.Struct, kw_only=True):
    """What a server was asked since it began. ``answered`` were sent as they were meant to be, injected faults too;
    ``abandoned`` had a client that left first. ``by_run`` holds (requests, highest turn) for each run, or for each first
    user message where a client sends no request id; runs beyond ``RUNS_COUNTED_MAX`` count under ""."""

    total: int = 0
    answered: int = 0
    abandoned: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    connections: int = 0
    connections_max: int = 0
    refused_connections: int = 0
    by_status: dict[str, int] = {}
    by_model: dict[str, int] = {}
    by_fault: dict[str, int] = {}
    by_run: dict[str, tuple[int, int]] = {}


class _Gate:
    def __init__(self) -> None:
        self.open = False
        self.reached = 0
        self.waiting: list[Callable[[], None]] = []


class LoopbackServer(Site):
    """One server on the running loop."""

    def __init__(self, script: ServerScript) -> None:
        check_server_script(script)
        self.counts = Counts()
        self._script = script
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._gates: dict[str, _Gate] = {}

    async def start(self, port: int = 0) -> str:
        """Listen; the base URL to give a client. Raises ``OSError`` if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), ADDRESS, port, backlog=BACKLOG, reuse_address=True
        )
        return f"http://{ADDRESS}:{self._server.sockets[0].getsockname()[1]}/v1"

    async def close(self) -> None:
        """Stop listening and drop every connection, answered or not."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def open_gate(self, name: str) -> None:
        """Let everyone through, now and later."""
        gate = self._gate(name)
        gate.open = True
        waiting, gate.waiting = gate.waiting, []
        for passed in waiting:
            passed()

    # --- what connections call ----------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> bool:
        if len(self._connections) >= CONNECTIONS_MAX:
            self.counts.refused_connections += 1
            return False
        self._connections.add(connection)
        self.counts.connections = len(self._connections)
        self.counts.connections_max = max(self.counts.connections_max, self.counts.connections)
        return True

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.counts.connections = len(self._connections)

    def asked(self, request: Request) -> Answer:
        if request.path.endswith("/chat/completions"):
            if request.method != "POST":
                return error_answer(405, "method", "POST only")
            answer = answer_chat(self._script, request.headers, request.body)
            self._count(answer)
            return answer
        if request.path == "/counts" and request.method == "GET":
            return Answer(status=200, body=msgspec.json.encode(self.counts))
        if request.path.startswith("/gates/"):
            return self._asked_gate(request)
        return error_answer(404, "not_found", "chat/completions, counts, gates/NAME")

    def settled(self, answer: Answer, *, sent: bool) -> None:
        if not answer.run:
            return
        self.counts.in_flight -= 1
        if sent:
            self.counts.answered += 1
        else:
            self.counts.abandoned += 1

    def gate(self, name: str, passed: Callable[[], None]) -> None:
        gate = self._gate(name)
        gate.reached += 1
        if gate.open:
            passed()
        else:
            gate.waiting.append(passed)

    # --- counting -----------------------------------------------------------------------------------------------------

    def _count(self, answer: Answer) -> None:
        counts = self.counts
        counts.total += 1
        status = str(answer.status)
        counts.by_status[status] = counts.by_status.get(status, 0) + 1
        if answer.fault is not None:
            counts.by_fault[answer.fault] = counts.by_fault.get(answer.fault, 0) + 1
        if not answer.run:
            return  # not a request that a script could answer
        counts.in_flight += 1
        counts.in_flight_max = max(counts.in_flight_max, counts.in_flight)
        run = answer.run
        if run not in counts.by_run and len(counts.by_run) >= RUNS_COUNTED_MAX:
            run = ""
        requests, turn = counts.by_run.get(run, (0, 0))
        counts.by_run[run] = (requests + 1, max(turn, answer.turn))
        model = answer.model if answer.model in counts.by_model or len(counts.by_model) < 1_000 else ""
        counts.by_model[model] = counts.by_model.get(model, 0) + 1

    def _gate(self, name: str) -> _Gate:
        if name not in self._gates and len(self._gates) >= GATES_MAX:
            raise DeclarationError("gates", f"at most {GATES_MAX} gates", path=name[:64])
        return self._gates.setdefault(name, _Gate())

    def _asked_gate(self, request: Request) -> Answer:
        name = request.path.removeprefix("/gates/")
        if name not in self._gates and len(self._gates) >= GATES_MAX:
            return error_answer(400, "gates", f"at most {GATES_MAX} gates")
        if request.method == "POST":
            self.open_gate(name)
        gate = self._gate(name)
        return Answer(
            status=200, body=msgspec.json.encode({"name": name, "open": gate.open, "reached": gate.reached})
        )


# --- the process ------------------------------------------------------------------------------------------------------


async def serve(script: ServerScript, port: int, *, until_stdin_closes: bool) -> None:
    """Serve until told to end; prints ``{"base_url": …, "pid": …}`` once it listens."""
    server = LoopbackServer(script)
    base_url = await server.start(port)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    if until_stdin_closes:
        threading.Thread(target=_watch_stdin, args=(loop, over), daemon=True).start()
    print(msgspec.json.encode({"base_url": base_url, "pid": os.getpid()}).decode(), flush=True)
    await over.wait()
    await server.close()


def _watch_stdin(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
    while os.read(sys.stdin.fileno(), 4_096):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(over.set)


def _allow_many_connections() -> None:
    """A connection is a file descriptor; the usual soft limit of 1,024 is below what is served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def main(arguments: list[str] | None = None) -> int:
    """The command; 0 once it was told to end, 2 for a script or a port that can't be served."""
    parser = argparse.ArgumentParser(
        prog="python -m boundloop.adapters.loopback_server",
        description="Play scripts over HTTP on 127.0.0.1, as a model server would.",
    )
    parser.add_argument(
        "--script", required=True, help="a script file, or one with several scripts and faults"
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency-ms", type=int, help=f"instead of the file's, at most {LATENCY_MS_MAX}")
    parser.add_argument("--jitter", type=float, help="instead of the file's, 0 to 1")
    parser.add_argument("--seed", type=int, help="instead of the file's")
    parser.add_argument("--until-stdin-closes", action="store_true")
    given = parser.parse_args(arguments)
    try:
        script = server_script_from_file(given.script)
        changed = {
            name: value
            for name in ("latency_ms", "jitter", "seed")
            if (value := getattr(given, name)) is not None
        }
        script = msgspec.structs.replace(script, **changed)
        check_server_script(script, name=given.script)
    except DeclarationError as error:
        print(error, file=sys.stderr)
        return 2
    _allow_many_connections()
    try:
        asyncio.run(serve(script, given.port, until_stdin_closes=given.until_stdin_closes))
    except OSError as error:
        print(f"port {given.port}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
