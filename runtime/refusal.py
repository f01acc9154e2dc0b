"""Refusals: what the model is told, and which verdict of a pass refuses. The ladder and the re-check share them.

The text is the same for what is missing and what is forbidden.
"""

from __future__ import annotations

from . import events as e
from .commands import ChecksDone
from .effects import LIMIT_TEXT
from .state import CallState

NOT_AVAILABLE = "this tool is not available here"
DENIED = "this action is not permitted"
UNKNOWN_CHECK = "a required check gave no answer; the action was not run"

REFUSAL_TEXT = {
    "check": "the arguments were refused",
    "authorisation": DENIED,
    "policy": DENIED,
    "taint": DENIED,
    "guardrail": DENIED,
    "switch": DENIED,
    "preview": "no preview could be made; the action was not run",
    "limits": LIMIT_TEXT,
    "definition": "this tool was changed while the run was under way; the action was not run",
    "progress": "the same call was made before without news; try something else or finish",
}


def first_refusal(call: CallState, command: ChecksDone) -> e.CallRejected | None:
    """The first verdict that isn't an allow (or an ask), as a refusal. Unknown denies, retryably."""
    for verdict in command.verdicts:
        if verdict.verdict in ("allow", "ask"):
            continue
        unknown = verdict.verdict == "unknown"
        return e.CallRejected(
            call.call,
            verdict.rung,
            verdict.code or ("check_unknown" if unknown else "denied"),
            UNKNOWN_CHECK if unknown else REFUSAL_TEXT.get(verdict.rung, DENIED),
            retryable=unknown,
            terminal=command.terminal and not unknown,
            verdicts=command.verdicts,
        )
    return None
