"""Fixtures of the tests over the real Runtime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.command_line import CommandLine
from tests.postgres_server import Server, running
from tests.stepped_runtime import Site

# The same histories in every run of the suite, so that a change and nothing else decides whether it passes. New ones are
# looked for on purpose, with BOUNDLOOP_EXAMPLES.
settings.register_profile("suite", derandomize="BOUNDLOOP_EXAMPLES" not in os.environ)
settings.load_profile("suite")


@pytest.fixture
def site() -> Iterator[Site]:
    """A store with its time; its laws are checked at the end."""
    made = Site()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line over a store that a test builds first."""
    made = CommandLine(tmp_path, capsys)
    monkeypatch.setenv("BOUNDLOOP_STORE", made.url)
    return made


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for the whole session; each ``url()`` of it is a store of its own."""
    with running() as server:
        yield server
