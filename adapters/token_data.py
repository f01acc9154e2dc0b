"""The token-level data of an answer: which fields have it, and how their pieces become one blob.

The blob is a JSON object: the name of each field that came, with the list of its values in the order in which they came, each
byte for byte as it was written. A whole answer has one value a field; of a stream each piece is one, and none is merged with another. Names
are paths in the answer, without the numbers of a list.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec
from msgspec import Raw

from .wire_json import present

SHORT_BYTES: Final = 64
"""A longer value says something. A shorter one is looked at: servers write ``[]`` and ``{"content":null}`` where nothing was asked for."""


class TokenPieces:
    """Collects the values of one answer."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[str, list[bytes]] = {}

    def keep(self, name: str, raw: Raw) -> None:
        """One value as it came; one that says nothing isn't kept."""
        if not present(raw):
            return
        data = bytes(raw)
        if len(data) > SHORT_BYTES or _says_something(data):
            self._fields.setdefault(name, []).append(data)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def take(self, other: TokenPieces) -> None:
        """All values of another collection, behind these."""
        for name, values in other._fields.items():
            self._fields.setdefault(name, []).extend(values)

    def blob(self) -> bytes | None:
        """All of it; None for nothing."""
        if not self._fields:
            return None
        members = (
            msgspec.json.encode(name) + b":[" + b",".join(values) + b"]"
            for name, values in self._fields.items()
        )
        return b"{" + b",".join(members) + b"}"


def _says_something(data: bytes) -> bool:
    try:
        return _holds_something(msgspec.json.decode(data))
    except (msgspec.MsgspecError, ValueError):
        return True  # a number beyond what anybody counts with: kept as it is, since nobody reads it


def _holds_something(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_something, cast("dict[str, object]", value).values()))
    if isinstance(value, list):
        return bool(cast("list[object]", value))
    return value is not None
