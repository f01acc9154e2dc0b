"""A key that is never shown: not by repr, not in an error, not in a provider's text that repeats it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ..runtime.errors import DeclarationError
from ..runtime.foreign_text import bounded_text

SECRET_CHARS_MAX: Final = 8_192
_SHOWN_LEAST: Final = 6
"""A shorter secret is too likely to stand for something else in a text."""

_header_value = re.compile(r"[\x21-\x7e]+(?: [\x21-\x7e]+)*").fullmatch
_key_like = re.compile(r"(?:sk|gsk|xai|pplx|AIza|key)[-_][\w*.-]{4,}|(?i:bearer)\s+\S+")
_control = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")


class Secret:
    """A text that goes into a header and nowhere else. It pickles with its value: whoever may use the adapter has it."""

    __slots__ = ("_text",)

    def __init__(self, text: str, *, name: str = "api_key") -> None:
        """Raises ``DeclarationError``, without the value, for what can't be a header."""
        if len(text) > SECRET_CHARS_MAX or _header_value(text) is None:
            raise DeclarationError("secret", "printable ASCII on one line", path=name)
        self._text = text

    def reveal(self) -> str:
        """The value."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def safe_text(text: str, chars_max: int, secrets: Iterable[Secret] = ()) -> str:
    """A provider's words for people: bounded, on one line, without control and direction characters, with the given
    secrets and whatever looks like a key taken out."""
    # Cut first, so that a huge text costs nothing, but so late that a secret on the border is still whole.
    text = bounded_text(text, chars_max + SECRET_CHARS_MAX)
    for secret in secrets:
        if len(secret.reveal()) >= _SHOWN_LEAST:
            text = text.replace(secret.reveal(), "[key]")
    text = _key_like.sub("[key]", text)
    return _control.sub(" ", text).strip()[:chars_max]
