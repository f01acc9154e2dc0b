"""Texts that other people's code hands us (codes, reasons, messages), made safe to store."""

from __future__ import annotations

CODE_CHARS_MAX = 64


def bounded_text(text: object, chars_max: int) -> str:
    """At most ``chars_max`` characters of valid UTF-8; lone surrogates are written out (``\\udcff``). Raises ``TypeError``
    for what is no text."""
    if not isinstance(text, str):
        raise TypeError("not a text")
    # By the type's own methods: a subclass may say anything of itself.
    cut = str.__getitem__(text, slice(chars_max))
    if str.isascii(cut):
        return cut
    return cut.encode("utf-8", "backslashreplace").decode()[:chars_max]


def bounded_code(text: object, otherwise: str | None = None) -> str:
    """A reason code within ``CODE_CHARS_MAX``. What is no text becomes ``otherwise``, or raises ``TypeError``."""
    if otherwise is not None and not isinstance(text, str):
        return otherwise
    return bounded_text(text, CODE_CHARS_MAX)
