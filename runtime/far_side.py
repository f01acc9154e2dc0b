"""What a tool's ``query(key)`` answers about an effect whose outcome is unknown."""

from __future__ import annotations

from typing import Any


class Applied:
    """The far side has the effect, with this result (what the tool itself would have returned)."""

    __slots__ = ("result",)

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def __repr__(self) -> str:
        return f"Applied({self.result!r})"


class Absent:
    """The far side knows of no such effect. It permits a new attempt only if the tool's query is declared
    authoritative, and only after the lost attempt can't arrive any more."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Absent()"
