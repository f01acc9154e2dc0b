"""What declarations are made of. Anything else is refused by the name of its place: Python's own errors name none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from .errors import DeclarationError

REVISION_CHARS_MAX: Final = 64


def several(given: object, path: str, code: str = "option_type") -> tuple[Any, ...]:
    """The items, read once. Raises ``DeclarationError`` for one text, a mapping, and what has no items."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise DeclarationError(code, "must be several, such as a tuple, not one", path=path)
    return tuple(cast("Iterable[object]", given))


def names_of(given: object, path: str) -> tuple[str, ...]:
    """Several texts. Raises ``DeclarationError``."""
    names = several(given, path)
    if not all(isinstance(name, str) for name in names):
        raise DeclarationError("option_type", "must be texts", path=path)
    return names


def mapped(given: object, path: str, code: str = "option_type") -> dict[Any, Any]:
    """A copy of a mapping. Raises ``DeclarationError`` for anything else."""
    if not isinstance(given, Mapping):
        raise DeclarationError(code, "must map names to values", path=path)
    return dict(cast("Mapping[object, object]", given))


def checked_revision(given: object, code: str) -> str:
    """A revision's name. Raises ``DeclarationError``, also for none."""
    if not isinstance(given, str) or not 0 < len(given) <= REVISION_CHARS_MAX or not given.isascii():
        raise DeclarationError(code, f"1 to {REVISION_CHARS_MAX} ASCII characters", path="revision")
    return given
