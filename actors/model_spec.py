"""From a model spec string to an adapter: ``scripted:FILE``. Families over HTTP register here as they come."""

from __future__ import annotations

from ..adapters.port import ModelAdapter
from ..runtime.errors import DeclarationError


def adapter_from(spec: str) -> ModelAdapter:
    """The adapter that a spec names. Raises ``DeclarationError`` for an unknown family or an unreadable script."""
    family, _, rest = spec.partition(":")
    if family == "scripted" and rest:
        from ..adapters.scripted import ScriptedModel

        return ScriptedModel.from_file(rest)
    raise DeclarationError("model_spec", "known models: scripted:FILE, or a ModelAdapter", path=spec[:200])
