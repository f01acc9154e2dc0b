"""Models behind one port. Names load on first use, so that importing the port alone costs nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .script import ScriptedTurn, attempts, call, calls, cut, say
    from .scripted import ScriptedModel

__all__ = ["ScriptedModel", "ScriptedTurn", "attempts", "call", "calls", "cut", "say"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import script, scripted

    return getattr(scripted if name == "ScriptedModel" else script, name)
