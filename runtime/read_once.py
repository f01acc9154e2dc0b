"""Declarations that several runs are begun with, but whose items can be had only once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def read_once(given: T) -> T:
    """``given``, or for a generator and its like a tuple of its items: read again they would give nothing, which looks like a
    declaration of nothing. Raises what its items raise."""
    return tuple(given) if isinstance(given, Iterator) else given  # type: ignore[return-value]  # items stay items


def all_read_once(declared: object, *fields: str) -> None:
    """The same for these fields of a frozen dataclass that is being made."""
    for name in fields:
        object.__setattr__(declared, name, read_once(getattr(declared, name)))
