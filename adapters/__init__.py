"""Models behind one port. Names load on first use, so that importing the port alone costs nothing more."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .openai_chat import OpenAIChat
    from .script import ScriptedTurn, attempts, call, calls, cut, say
    from .scripted import ScriptedModel

__all__ = ["OpenAIChat", "ScriptedModel", "ScriptedTurn", "attempts", "call", "calls", "cut", "say"]

_ELSEWHERE = {"OpenAIChat": "openai_chat", "ScriptedModel": "scripted"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ELSEWHERE.get(name, 'script')}", __name__), name)
