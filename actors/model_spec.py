"""From a model spec string to an adapter: ``FAMILY:MODEL``, ``FAMILY:MODEL@BASE_URL``, and ``#key=VARIABLE`` behind either.

``scripted:FILE`` plays a script, ``recorded:FILE`` recorded exchanges. Each other family is its provider's own API, with the key in that provider's usual environment
variable, read by whichever process sends a request and kept nowhere else. At another address the key is the one in
``BOUNDLOOP_API_KEY``, if that is set: a key for one provider is never sent to another by mistake. ``#key=VARIABLE`` names another
variable for either; the spec holds the name and never the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ..adapters.port import ModelAdapter
from ..runtime.errors import DeclarationError

COMPATIBLE_KEY_ENV: Final = "BOUNDLOOP_API_KEY"


class Family(NamedTuple):
    """A family that a spec may name: the variable with its key, and where its own API is."""

    key_env: str
    base_url: str


FAMILIES: Final[Mapping[str, Family]] = {
    "openai-responses": Family("OPENAI_API_KEY", "https://api.openai.com/v1"),
    "openai-chat": Family("OPENAI_API_KEY", "https://api.openai.com/v1"),
    "anthropic": Family("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1"),
    "gemini": Family("GEMINI_API_KEY", "https://generativelanguage.googleapis.com/v1beta"),
    "gemini-interactions": Family("GEMINI_API_KEY", "https://generativelanguage.googleapis.com/v1beta"),
}

# A model's name may hold an @ itself, so the address begins at its scheme.
_spec = re.compile(
    r"([^#@][^#]*?)(?:@((?i:https?)://[^#]*))?(?:#key=([A-Za-z_][A-Za-z0-9_]{0,127}))?"
).fullmatch
# What stands behind an @ in a name is a version; what looks like an address was meant to be one, and would go to the provider.
_looks_like_an_address = re.compile(
    r".*@.*[/:].*|.*@localhost|.*@[^@]*\.[A-Za-z]{2,}|.*@\d+(?:\.\d+){3}", re.DOTALL
).fullmatch


def adapter_from(spec: str) -> ModelAdapter:
    """The adapter that a spec names. Raises ``DeclarationError`` for an unknown family, an unreadable script or an
    unusable URL. Whether a key is accepted only a request can tell."""
    family, _, rest = spec.partition(":")
    if family == "scripted" and rest:
        from ..adapters.scripted import ScriptedModel

        return ScriptedModel.from_file(rest)
    if family == "recorded" and rest:
        from ..adapters.recorded import RecordedModel

        return RecordedModel(rest)
    if family in FAMILIES and (found := _spec(rest)):
        model, base_url, key_env = found.groups()
        if _looks_like_an_address(model):
            raise DeclarationError(
                "model_spec",
                "what stands behind @ looks like an address: write it whole, FAMILY:MODEL@http://HOST:PORT/PATH",
                path=spec[:200],
            )
        known = FAMILIES[family]
        if key_env is None:
            compatible = COMPATIBLE_KEY_ENV if os.environ.get(COMPATIBLE_KEY_ENV) else None
            key_env = known.key_env if base_url is None else compatible
        return _adapter(family, model, base_url or known.base_url, key_env)
    raise DeclarationError(
        "model_spec",
        f"known models: scripted:FILE, recorded:FILE, FAMILY:MODEL[@BASE_URL][#key=VARIABLE] with FAMILY one of {', '.join(FAMILIES)}, "
        "or a ModelAdapter",
        path=spec[:200],
    )


def _adapter(family: str, model: str, base_url: str, key_env: str | None) -> ModelAdapter:
    if family == "openai-chat":
        from ..adapters.openai_chat import OpenAIChat

        return OpenAIChat(model=model, base_url=base_url, api_key_env=key_env, stream=True)
    from ..adapters.http_model import HttpOptions

    http = HttpOptions(api_key_env=key_env)
    match family:
        case "openai-responses":
            from ..adapters.openai_responses import OpenAIResponses

            return OpenAIResponses(model=model, base_url=base_url, http=http)
        case "anthropic":
            from ..adapters.anthropic import AnthropicMessages

            return AnthropicMessages(model=model, base_url=base_url, http=http)
        case "gemini":
            from ..adapters.gemini import GeminiModel

            return GeminiModel(model=model, base_url=base_url, http=http)
        case _:
            from ..adapters.gemini_interactions import GeminiInteractions

            return GeminiInteractions(model=model, base_url=base_url, http=http)
