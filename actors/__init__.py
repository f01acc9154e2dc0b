"""Hosting runs: the driver, the host, and what applications hold. Names load on first use, so that reading commands
start without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .application import Application
    from .client import AsyncRuntime, RunHandle, Runtime
    from .context import CancelToken, ToolContext
    from .pool_spec import Pool
    from .result import Approval, Result
    from .run_options import StartOptions
    from .waiting import StillRunning
    from .wishes import CommandRefused

__all__ = [
    "Application",
    "Approval",
    "AsyncRuntime",
    "CancelToken",
    "CommandRefused",
    "Pool",
    "Result",
    "RunHandle",
    "Runtime",
    "StartOptions",
    "StillRunning",
    "ToolContext",
]

_HOME = {
    "Application": "application",
    "Approval": "result",
    "AsyncRuntime": "client",
    "CancelToken": "context",
    "CommandRefused": "wishes",
    "Pool": "pool_spec",
    "Result": "result",
    "RunHandle": "client",
    "Runtime": "client",
    "StartOptions": "run_options",
    "StillRunning": "waiting",
    "ToolContext": "context",
}


if not TYPE_CHECKING:  # a type checker sees the names above, and no others

    def __getattr__(name: str) -> object:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f".{home}", __name__), name)
