"""Fixtures of the tests over the real Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.command_line import CommandLine
from tests.stepped_runtime import Site


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
