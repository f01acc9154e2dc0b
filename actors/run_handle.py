"""A started run, as an application holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .result import Result
from .run_options import checked_text

if TYPE_CHECKING:
    from .client import Runtime


class RunHandle:
    """A started run. ``run_id`` is all that another process needs to go on with it."""

    __slots__ = ("_runtime", "run_id")

    def __init__(self, runtime: Runtime, run_id: str) -> None:
        self._runtime = runtime
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r})"

    def result(self, timeout_s: float | None = None) -> Result:
        """See ``Runtime.result``."""
        return self._runtime.result(self.run_id, timeout_s)

    def wait(self, timeout_s: float | None = None) -> Result:
        """See ``Runtime.wait``."""
        return self._runtime.wait(self.run_id, timeout_s)

    def cancel(self) -> None:
        """See ``Runtime.cancel``."""
        self._runtime.cancel(self.run_id)


AnyRun: TypeAlias = "str | RunHandle"
"""A run by its id or its handle."""


def id_of(run: AnyRun) -> str:
    """Raises ``DeclarationError`` for what is neither."""
    if isinstance(run, RunHandle):
        return run.run_id
    return checked_text(run, "run_id")
