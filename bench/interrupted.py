"""The two processes of w2: ``python bench/interrupted.py begin|go_on FILE STEPS``.

``begin`` starts a run and ends itself with SIGKILL in the middle of the model request after ``STEPS`` tool steps.
``go_on`` opens the file, takes the run over, and ends itself as soon as that request is sent again; it prints one JSON
line of monotonic times (seconds; one clock for all processes of a machine).
"""

from __future__ import annotations

import time

BEGAN_S = time.monotonic()

import json
import os
import signal
import sys
import threading
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.workload import LIMITS, model_for, tool_for

from boundloop.actors import Runtime
from boundloop.adapters.port import ProgressSink
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.model import ModelInput, ModelTurn

IMPORTED_S = time.monotonic()
RUN_ID = "interrupted"
WAIT_MAX_S = 120.0


class EndsHere(ScriptedModel):
    """Plays on until a turn is asked for, and ends the process there."""

    def __init__(self, steps: int, how: str) -> None:
        self._inner = model_for(steps + 1)
        super().__init__([])
        self._last, self._how = steps + 1, how
        self.opened_s = 0.0

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        """The inner model's answer, or the end."""
        if request.turn < self._last:
            return await self._inner.request(request, timeout_ms=timeout_ms)
        if self._how == "begin":
            os.kill(os.getpid(), signal.SIGKILL)
        at = {"began_s": BEGAN_S, "imported_s": IMPORTED_S, "asked_s": time.monotonic()}
        print(json.dumps({**at, "turn": request.turn, "attempt": request.attempt}), flush=True)
        os._exit(0)


def main() -> None:
    """Does not return: the model ends the process. A wait that is too long is an error with exit code 1."""
    how, path, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = EndsHere(steps, how)
    with Runtime(store=f"sqlite:///{path}", model=model, tools=[tool_for("read", "inline")]) as runtime:
        if how == "begin":
            runtime.start("go", limits=LIMITS, run_id=RUN_ID)
        threading.Event().wait(WAIT_MAX_S)
    sys.exit("the run did not come to its next request")


if __name__ == "__main__":
    main()
