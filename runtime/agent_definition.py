"""An agent as data: what a child run is started with, pinned inside the definition of the tool that starts it."""

from __future__ import annotations

from typing import Literal

import msgspec

from .goal import Goal
from .stage_definition import StageDefinition


class AgentDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a child run of this agent gets beside its lease.

    ``tools`` are names in the parent's own toolbox; what the parent's principal may not use is left out. ``limits`` are
    asked for, by the names of ``LimitValues`` (``deadline_ms`` from the child's start, ``depth`` below the child): a
    child never gets more than its parent has free. A quantity that isn't named gets a share. ``permissions`` and
    ``approval`` hold for a call of this agent beside those of the tool that it is called by. ``stages`` are the child's own. ``hosted``: of
    what its parent accepts of its provider's own tools.
    """

    name: str
    description: str
    system: str = ""
    tools: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    goal: Goal | None = None
    on_stop: Literal["suspend", "end"] = "end"
    permissions: tuple[str, ...] = ()
    approval: Literal["policy", "always", "never"] = "policy"
    stages: tuple[StageDefinition, ...] = ()
    hosted: tuple[str, ...] = ()
