"""A far side to have effects on: a small payment service in a process of its own, which counts.

It takes an idempotency key and answers a repeated key with the first result. How it treats the next submissions is set
ahead of them, so that every kind of failure can be had on demand, without a clock:

    ok               apply, answer
    refuse           answer 422, nothing applied
    busy             answer 503, nothing applied
    apply_then_hang  apply, keep the caller waiting until it goes away
    apply_then_close apply, close the connection without an answer
    apply_then_500   apply, answer 500

``python examples/far_side.py`` prints its port and serves on loopback until its standard input ends, so it never
outlives whoever started it. ``FarSide.start()`` does that and speaks to it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

MODES: Final = ("ok", "refuse", "busy", "apply_then_hang", "apply_then_close", "apply_then_500")
BODY_BYTES_MAX: Final = 65_536
ANSWER_TIMEOUT_S: Final = 10


class Books:
    """What the service knows: results by key, and how often it was asked for what. With a ``path`` the results outlive
    the process: they are on file before anybody is answered."""

    def __init__(self, path: str = "") -> None:
        self.path = Path(path) if path else None
        self.lock = threading.Lock()
        self.modes: deque[str] = deque()
        self.results: dict[str, dict[str, Any]] = {}
        self.requests: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.queries: Counter[str] = Counter()
        if self.path is not None and self.path.exists():
            self.results = json.loads(self.path.read_bytes())
            self.effects.update(list(self.results))

    def _save(self) -> None:
        if self.path is not None:
            written = self.path.with_name(f"{self.path.name}.new")
            written.write_text(json.dumps(self.results))
            written.replace(self.path)

    def submit(self, key: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The mode that this submission meets, and its result. Without a key each submission is an effect."""
        with self.lock:
            name = key or "no key"
            self.requests[name] += 1
            mode = self.modes.popleft() if self.modes else "ok"
            if key in self.results:
                return mode, {**self.results[key], "replayed": True}
            if mode in ("refuse", "busy"):
                return mode, {}
            self.effects[name] += 1
            result = {"receipt": f"R{sum(self.effects.values())}", **body}
            if key:
                self.results[key] = result
                self._save()
            return mode, result

    def query(self, key: str) -> dict[str, Any]:
        """What became of a key."""
        with self.lock:
            self.queries[key] += 1
            return {"applied": key in self.results, "result": self.results.get(key)}

    def counts(self) -> dict[str, dict[str, int]]:
        """Submissions that arrived, effects that happened and queries, by key."""
        with self.lock:
            return {
                "requests": dict(self.requests),
                "effects": dict(self.effects),
                "queries": dict(self.queries),
            }


class Desk(BaseHTTPRequestHandler):
    """``POST /submit``, ``POST /query``, ``POST /modes``, ``GET /counts``; JSON in, JSON out."""

    books: Books
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200, self.books.counts())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), BODY_BYTES_MAX)))
        if self.path == "/modes":
            with self.books.lock:
                self.books.modes.extend(mode for mode in body["modes"] if mode in MODES)
            self._answer(200, {})
        elif self.path == "/query":
            self._answer(200, self.books.query(body["key"]))
        else:
            self._submit(*self.books.submit(body.pop("key", ""), body))

    def _submit(self, mode: str, result: dict[str, Any]) -> None:
        match mode:
            case "refuse":
                self._answer(422, {"error": "refused"})
            case "busy":
                self._answer(503, {"error": "busy"})
            case "apply_then_500":
                self._answer(500, {"error": "internal"})
            case "apply_then_close":
                self.close_connection = True
            case "apply_then_hang":
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.recv(1)  # returns when the caller has given up
            case _:
                self._answer(200, result)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Counts are the record; nothing is printed."""


class FarSideError(Exception):
    """The service answered with an error. ``applied`` is False only where it said that nothing was done."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.applied = status not in (422, 503)


class FarSide:
    """A client of one such service; picklable by its port. A context manager that ends the process it started."""

    def __init__(self, port: int, process: subprocess.Popen[bytes] | None = None) -> None:
        self.port = port
        self.process = process

    @classmethod
    def start(cls, *, in_order: bool = False, books: str = "") -> FarSide:
        """Start a service of its own. It ends with ``stop``, or when this process ends, however it ends. ``in_order``:
        it serves one caller after the other, so whatever a killed process had sent is done when it answers the next.
        ``books``: a file for its results, which the next service goes on from; else they end with it."""
        options = [*(["in-order"] if in_order else []), *([f"books={books}"] if books else [])]
        command = [sys.executable, str(Path(__file__).resolve()), *options]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the far side did not start")
        return cls(int(line), process)

    def stop(self) -> None:
        """End the process that ``start`` started."""
        if self.process is None:
            return
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(ANSWER_TIMEOUT_S)
        self.process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __reduce__(self) -> tuple[type[FarSide], tuple[int]]:
        return FarSide, (self.port,)

    def set_modes(self, *modes: str) -> None:
        """How the next submissions are treated, in order; ``ok`` after those."""
        unknown = set(modes) - set(MODES)
        if unknown:
            raise ValueError(f"no such mode: {min(unknown)}")
        self._ask("POST", "/modes", {"modes": modes})

    def submit(self, key: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **body: object) -> dict[str, Any]:
        """Ask for one effect. Raises ``FarSideError`` for an answer that is an error, ``TimeoutError`` and other
        ``OSError`` or ``http.client.HTTPException`` for none: then it may have happened."""
        answer: dict[str, Any] = self._ask("POST", "/submit", {**body, "key": key}, timeout_s)
        return answer

    def query(self, key: str) -> dict[str, Any]:
        """``{"applied": bool, "result": … or None}``."""
        answer: dict[str, Any] = self._ask("POST", "/query", {"key": key})
        return answer

    def counts(self) -> dict[str, dict[str, int]]:
        """``requests``, ``effects`` and ``queries``, each a count by key (``no key`` for submissions without)."""
        answer: dict[str, dict[str, int]] = self._ask("GET", "/counts", None)
        return answer

    def _ask(self, method: str, path: str, body: object, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            data = json.loads(answer.read())
            if answer.status != 200:
                raise FarSideError(answer.status)
            return data
        finally:
            connection.close()


class OneDeskServer(HTTPServer):
    """One caller at a time, in the order in which they came."""

    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that was killed in mid-sentence is no news here: what it didn't finish saying never arrived."""
        if not isinstance(sys.exception(), (ConnectionError, json.JSONDecodeError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as it was handed in


class ManyDesksServer(ThreadingHTTPServer):
    """Each caller at once."""

    daemon_threads = True
    request_queue_size = 128


def serve(*, in_order: bool = False, books: str = "") -> None:
    """Serve on a free port of loopback until standard input ends."""
    handler = type("OneDesk", (Desk,), {"books": Books(books)})
    server = (OneDeskServer if in_order else ManyDesksServer)(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.buffer.read()
    server.server_close()


if __name__ == "__main__":
    given = sys.argv[1:]
    kept = next((text.removeprefix("books=") for text in given if text.startswith("books=")), "")
    serve(in_order="in-order" in given, books=kept)
