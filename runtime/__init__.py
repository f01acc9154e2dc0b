"""The interpreter, pure, and what users declare: ``tool``, ``Toolbox``, ``Limits``, ``Goal``, ``Policy``."""

from __future__ import annotations

from .errors import BoundloopError, CallerError, ProviderError, StoreError, ToolError
from .far_side import Absent, Applied
from .goal import Evidence, Goal
from .limits import WAIVED, Limits
from .policy import Policy, PolicyDecision, PolicyQuestion
from .prices import FREE, Price, PriceTable
from .tool import ToolSpec, tool
from .toolbox import Toolbox

__all__ = [
    "FREE",
    "WAIVED",
    "Absent",
    "Applied",
    "BoundloopError",
    "CallerError",
    "Evidence",
    "Goal",
    "Limits",
    "Policy",
    "PolicyDecision",
    "PolicyQuestion",
    "Price",
    "PriceTable",
    "ProviderError",
    "StoreError",
    "ToolError",
    "ToolSpec",
    "Toolbox",
    "tool",
]
