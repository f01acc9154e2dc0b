"""A PostgreSQL server for one measurement, on the disk that is measured."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.postgres_server import Server

_servers: dict[str, Server] = {}
_ends = ExitStack()


def server_in(folder: str) -> Server:
    """The server whose files are in this folder; the same one each time, until ``end_servers``."""
    server = _servers.get(folder)
    if server is None:
        # The server of the tests: this is the checkout, and whoever measures has what the tests need.
        from tests.postgres_server import running

        server = _servers[folder] = _ends.enter_context(running(inside=folder))
    return server


def end_servers() -> None:
    """Before their folder goes."""
    _servers.clear()
    _ends.close()
