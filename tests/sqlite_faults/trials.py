"""The program once for each N: the N-th operation fails, for each way in which it can, until a whole program meets no fault."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from tests.sqlite_faults.file_shim import FileShim, How, find_library
from tests.sqlite_faults.program import FORBIDDEN, Program
from tests.sqlite_faults.statement_shim import Manner, StatementShim

HOWS: Final[tuple[How, ...]] = ("once", "full", "torn", "unsynced", "dropped", "gone", "power")
MANNERS: Final[tuple[Manner, ...]] = ("refused", "undone", "done", "stuck", "no_memory")
N_MAX: Final = 5_000
"""No program has so many operations: a bound on a loop."""

FOLDER: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Memory, where there is some: what a disk would keep is the shim's to say, and thousands of real fsyncs show no more."""


class Trials:
    """``counts`` are of all trials so far; ``broken`` names the trials that broke a law, at most ``BROKEN_MAX``."""

    BROKEN_MAX: Final = 20

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.trials: Counter[str] = Counter()
        self.broken: list[str] = []
        self._wanted = self._held_without_faults()

    def files(self, how: How, *, every: int = 1, first: int = 1) -> None:
        """Faults of files: N is ``first``, and then each ``every`` further."""
        library = find_library()
        assert library is not None
        self._all(f"files, {how}", lambda: FileShim(library), lambda shim, n: shim.arm(n, how), every, first)

    def statements(self, manner: Manner, *, every: int = 1, first: int = 1) -> None:
        """Faults of statements."""
        self._all(f"statements, {manner}", StatementShim, lambda shim, n: shim.arm(n, manner), every, first)

    def _all(
        self,
        name: str,
        make: Callable[[], Any],
        arm: Callable[[Any, int], None],
        every: int,
        first: int,
    ) -> None:
        for number in range(first, N_MAX, every):
            if not self._one(name, number, make(), arm):
                return
        raise AssertionError("the program has no end")

    def _one(self, name: str, number: int, shim: Any, arm: Callable[[Any, int], None]) -> bool:
        held: Any = None
        with tempfile.TemporaryDirectory(prefix="faults-", dir=FOLDER) as folder:
            entered: AbstractContextManager[Any] = shim
            with entered:
                program = Program(Path(folder) / "runs.db", shim.heal)
                arm(shim, number)
                try:
                    held = asyncio.run(program.run())
                except Exception as error:  # noqa: BLE001  an error that nobody may get is a finding; on to the next N
                    held = error
        program.counts["ended as something else"] += held != self._wanted
        program.counts["file left open"] += shim.left_open
        if shim.fired:
            self.trials[f"{name}: {shim.fired}"] += 1
        self.counts.update(program.counts)
        wrong = [law for law in FORBIDDEN if program.counts[law]]
        if wrong and len(self.broken) < self.BROKEN_MAX:
            raised = f", {held!r}" if isinstance(held, Exception) else ""
            self.broken.append(f"{name}, N={number} ({shim.fired}): {', '.join(wrong)}{raised}")
        return bool(shim.fired)

    @staticmethod
    def _held_without_faults() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="faults-", dir=FOLDER) as folder:
            return asyncio.run(Program(Path(folder) / "runs.db", lambda: None).run())
