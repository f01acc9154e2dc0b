"""The tests' own server, where root starts it: PostgreSQL runs as another user then, who has to get to its files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres_server import running


@pytest.fixture
def no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is open to all, outside of where temporary ones are."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", f"{folder}/temporary")
        yield Path(folder)


def test_a_server_starts_in_a_closed_folder_of_its_own(no_temporary_folder: Path) -> None:
    """As a bench makes one on the disk that is measured."""
    with (
        tempfile.TemporaryDirectory(dir=no_temporary_folder) as folder,
        running(inside=folder) as server,
    ):
        assert server.socket.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as somebody else")
def test_a_closed_folder_of_others_stays_closed_and_is_named(no_temporary_folder: Path) -> None:
    closed = no_temporary_folder / "closed"
    (closed / "within").mkdir(parents=True)
    closed.chmod(0o700)
    with (
        pytest.raises(AssertionError, match=f"{closed} is closed to the user nobody"),
        running(inside=str(closed / "within")),
    ):
        pass
    assert closed.stat().st_mode & 0o777 == 0o700
