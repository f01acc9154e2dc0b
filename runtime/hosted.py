"""Hosted tools: what a provider runs by itself inside one answer. Off unless declared, and never evidence of an effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from .errors import DeclarationError

HOSTED_MAX: Final = 32
"""Declared names of one run."""

NAME_CHARS_MAX: Final = 64


def hosted_names(given: object) -> tuple[str, ...]:
    """The names, each once, in order. Raises ``DeclarationError`` for one text, too many, or what is no name."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DeclarationError("option_type", "must be several names, not one text", path="hosted")
    names = tuple(cast("Iterable[object]", given))
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
            raise DeclarationError(
                "hosted_name", f"a name has 1 to {NAME_CHARS_MAX} characters", path="hosted"
            )
        if not name.isascii() or not name.isprintable():
            raise DeclarationError("hosted_name", "a name is printable ASCII", path="hosted")
    if len(names) > HOSTED_MAX:
        raise DeclarationError("hosted_count", f"at most {HOSTED_MAX} names", path="hosted")
    return tuple(sorted(set(cast("tuple[str, ...]", names))))
