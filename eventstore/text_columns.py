"""Texts in columns of a database that has no place for U+0000: escaped on the way in, as they were on the way out.

A run's texts come from callers and models, and the other stores keep any. U+001A begins an escape; a text without both
characters, which is nearly every one, is stored as it is.
"""

from __future__ import annotations

_ESCAPE = "\x1a"


def to_column(text: str) -> str:
    """What is stored."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return text


def from_column(stored: str) -> str:
    """What was given."""
    if _ESCAPE in stored:
        return stored.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
    return stored
