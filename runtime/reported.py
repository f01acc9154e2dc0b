"""What a provider reported or wrote, made safe to store: counts inside what a log can hold, texts valid and bounded."""

from __future__ import annotations

from typing import Final

from .limits import CEILING
from .model import Usage

LABEL_CHARS_MAX: Final = 256
SPENT_MAX: Final = 2**62
"""A reported cost above this is written as this: it is over every limit that can be set."""


def sound_usage(usage: Usage | None) -> Usage | None:
    """Reported counts inside what a log can hold. Less than nothing was never used, so it counts as not reported."""
    if usage is None:
        return None
    cached, reasoning = usage.cached_input_tokens, usage.reasoning_tokens
    return Usage(
        _count(usage.input_tokens),
        _count(usage.output_tokens),
        (_count(cached) or 0) if cached else 0,
        (_count(reasoning) or 0) if reasoning else 0,
    )


def _count(reported: int | None) -> int | None:
    return None if reported is None or reported < 0 else min(reported, CEILING)


def sound_label(text: str, chars_max: int = LABEL_CHARS_MAX) -> str:
    """A provider's short text: valid UTF-8 and bounded. Lone surrogates are written out, never stored."""
    if len(text) <= chars_max and text.isascii():
        return text
    return sound_text(text[:chars_max])


def sound_text(text: str) -> str:
    """The same for a text that is bounded elsewhere."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
