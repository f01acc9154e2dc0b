"""The interpreter, pure, and what users declare: ``tool``, ``agent``, ``Toolbox``, ``Limits``, ``Goal``, ``Stage``, ``Policy``.

Names load on first use: a command that reads one run needs none of what declares tools.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent_spec import agent, spawn
    from .errors import BoundloopError, CallerError, ProviderError, StoreError, ToolError
    from .far_side import Absent, Applied
    from .goal import Citations, Evidence, Goal
    from .guardrails import GuardrailDecision, GuardrailQuestion, Guardrails
    from .limits import WAIVED, Limits
    from .observed import Observed
    from .policy import Policy, PolicyDecision, PolicyQuestion
    from .prices import FREE, Price, PriceTable
    from .question_tool import ask_user
    from .redaction import Redaction
    from .stage_spec import Stage
    from .taint import Taint, TaintSource
    from .tool_spec import ToolSpec, tool
    from .toolbox import Toolbox

__all__ = [
    "FREE",
    "WAIVED",
    "Absent",
    "Applied",
    "BoundloopError",
    "CallerError",
    "Citations",
    "Evidence",
    "Goal",
    "GuardrailDecision",
    "GuardrailQuestion",
    "Guardrails",
    "Limits",
    "Observed",
    "Policy",
    "PolicyDecision",
    "PolicyQuestion",
    "Price",
    "PriceTable",
    "ProviderError",
    "Redaction",
    "Stage",
    "StoreError",
    "Taint",
    "TaintSource",
    "ToolError",
    "ToolSpec",
    "Toolbox",
    "agent",
    "ask_user",
    "spawn",
    "tool",
]

_HOME = {
    "FREE": "prices",
    "WAIVED": "limits",
    "Absent": "far_side",
    "Applied": "far_side",
    "BoundloopError": "errors",
    "CallerError": "errors",
    "Citations": "goal",
    "Evidence": "goal",
    "Goal": "goal",
    "GuardrailDecision": "guardrails",
    "GuardrailQuestion": "guardrails",
    "Guardrails": "guardrails",
    "Limits": "limits",
    "Observed": "observed",
    "Policy": "policy",
    "PolicyDecision": "policy",
    "PolicyQuestion": "policy",
    "Price": "prices",
    "PriceTable": "prices",
    "ProviderError": "errors",
    "Redaction": "redaction",
    "Stage": "stage_spec",
    "StoreError": "errors",
    "Taint": "taint",
    "TaintSource": "taint",
    "ToolError": "errors",
    "ToolSpec": "tool_spec",
    "Toolbox": "toolbox",
    "agent": "agent_spec",
    "ask_user": "question_tool",
    "spawn": "agent_spec",
    "tool": "tool_spec",
}


if not TYPE_CHECKING:  # a type checker sees the names above, and no others

    def __getattr__(name: str) -> object:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{home}", __name__), name)
        globals()[name] = value
        return value
