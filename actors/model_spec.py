"""From a model spec string to an adapter.

``scripted:FILE`` plays a script. ``openai-chat:MODEL`` is OpenAI's own API with the key in ``OPENAI_API_KEY``;
``openai-chat:MODEL@BASE_URL`` is a compatible server, with the key in ``BOUNDLOOP_API_KEY`` if that is set: a key for one
provider is never sent to another by mistake.
"""

from __future__ import annotations

import os
import re
from typing import Final

from ..adapters.port import ModelAdapter
from ..runtime.errors import DeclarationError

OPENAI_KEY_ENV: Final = "OPENAI_API_KEY"
COMPATIBLE_KEY_ENV: Final = "BOUNDLOOP_API_KEY"

# A model's name may hold an @ itself, so the address begins at its scheme.
_chat = re.compile(r"(.+?)(?:@(https?://.*))?").fullmatch


def adapter_from(spec: str) -> ModelAdapter:
    """The adapter that a spec names. Raises ``DeclarationError`` for an unknown family, an unreadable script or an
    unusable URL. Whether a key is accepted only a request can tell."""
    family, _, rest = spec.partition(":")
    if family == "scripted" and rest:
        from ..adapters.scripted import ScriptedModel

        return ScriptedModel.from_file(rest)
    if family == "openai-chat" and (found := _chat(rest)):
        return _openai_chat(found[1], found[2])
    raise DeclarationError(
        "model_spec",
        "known models: scripted:FILE, openai-chat:MODEL[@BASE_URL], or a ModelAdapter",
        path=spec[:200],
    )


def _openai_chat(model: str, base_url: str | None) -> ModelAdapter:
    from ..adapters.openai_chat import OpenAIChat

    if base_url is None:
        return OpenAIChat(model=model, api_key_env=OPENAI_KEY_ENV)
    key_env = COMPATIBLE_KEY_ENV if os.environ.get(COMPATIBLE_KEY_ENV) else None
    return OpenAIChat(model=model, base_url=base_url, api_key_env=key_env)
