"""What an import may pull in, seen from a fresh interpreter.

A finder at the head of `sys.meta_path` writes down every module that an import asks for, so an attempt that fails and
is caught counts as well. Modules that the interpreter has loaded before are not seen; the import contracts read those.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

ATTEMPTS = """
import sys
class Recorder:
    names = set()
    def find_spec(self, name, path=None, target=None):
        self.names.add(name)
        return None
sys.meta_path.insert(0, Recorder())
import {module}
print("\\n".join(sorted(Recorder.names)))
"""

IO = {"http", "multiprocessing", "select", "socket", "sqlite3", "ssl", "subprocess"}
THIRD_PARTY_IO = {"aiosqlite", "anyio", "asyncpg", "httpx", "psycopg", "ray", "requests"}
IMPURE = {"asyncio", "concurrent", "logging", "random", "secrets", "selectors", "signal", "threading"}


def attempts(module: str) -> set[str]:
    """Top-level names that `import module` asks for in an interpreter that has loaded nothing of ours."""
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPTS.format(module=module)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    names = set(done.stdout.split())
    assert module in names  # else the recorder saw nothing
    return {name.partition(".")[0] for name in names}


def test_recorder_sees_an_attempt() -> None:
    assert "socket" in attempts("http.client")


def test_the_core_asks_for_nothing_that_does_io() -> None:
    asked = attempts("boundloop.runtime")
    assert asked & (IO | THIRD_PARTY_IO | IMPURE | {"click", "pydantic"}) == set()


@pytest.mark.skipif(
    importlib.util.find_spec("boundloop.actors.cli") is None, reason="there is no command line"
)
def test_the_command_line_starts_without_ray_pydantic_and_httpx() -> None:
    asked = attempts("boundloop.actors.cli")
    assert asked & {"ray", "pydantic", "httpx", "asyncpg", "psycopg"} == set()
