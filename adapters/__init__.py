"""Models behind one port. Names load on first use, so that importing the port alone costs nothing more."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .anthropic import AnthropicMessages
    from .calling import CallableModel
    from .gemini import GeminiModel
    from .gemini_interactions import GeminiInteractions
    from .http_model import HttpOptions
    from .openai_chat import OpenAIChat
    from .openai_responses import OpenAIResponses
    from .recorded import RecordedModel
    from .script import ScriptedTurn, attempts, call, calls, cut, held, late, lost, say
    from .scripted import ScriptedModel

__all__ = [
    "AnthropicMessages",
    "CallableModel",
    "GeminiInteractions",
    "GeminiModel",
    "HttpOptions",
    "OpenAIChat",
    "OpenAIResponses",
    "RecordedModel",
    "ScriptedModel",
    "ScriptedTurn",
    "attempts",
    "call",
    "calls",
    "cut",
    "held",
    "late",
    "lost",
    "say",
]

_ELSEWHERE = {
    "AnthropicMessages": "anthropic",
    "CallableModel": "calling",
    "GeminiInteractions": "gemini_interactions",
    "GeminiModel": "gemini",
    "HttpOptions": "http_model",
    "OpenAIChat": "openai_chat",
    "OpenAIResponses": "openai_responses",
    "RecordedModel": "recorded",
    "ScriptedModel": "scripted",
}


if not TYPE_CHECKING:  # a type checker sees the names above, and no others

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_ELSEWHERE.get(name, 'script')}", __name__), name)
