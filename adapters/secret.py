"""A key that is never shown: not by repr, not in an error, not in a provider's text that repeats it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ..runtime.errors import DeclarationError
from ..runtime.foreign_text import bounded_text

SECRET_CHARS_MAX: Final = 8_192
SCANNED_CHARS_MAX: Final = 65_536
"""Of a text that is shown, the part that is searched for secrets."""

HIDDEN: Final = "[key]"
_SHOWN_LEAST: Final = 6
"""A shorter secret is too likely to stand for something else in a text."""

_header_value = re.compile(r"[\x21-\x7e]+(?: [\x21-\x7e]+)*").fullmatch
_key_like = re.compile(
    r"(?<![A-Za-z0-9])(?:sk|gsk|xai|pplx|key)[-_](?!missing\b)[\w*.-]{4,}|AIza[\w-]{20,}|(?i:bearer)\s+\S+"
)
_control = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")


def is_secret(text: str) -> bool:
    """Whether this can be one: printable ASCII on one line, of bounded length."""
    return len(text) <= SECRET_CHARS_MAX and _header_value(text) is not None


class Secret:
    """A text that goes into a header and nowhere else. It pickles with its value: whoever may use the adapter has it."""

    __slots__ = ("_text",)

    def __init__(self, text: str, *, name: str = "api_key") -> None:
        """Raises ``DeclarationError``, without the value, for what can't be a header."""
        if not is_secret(text):
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
    """A provider's words, for people and for the log: on one line, without control and direction characters, the given
    secrets and whatever looks like a key, and at most ``chars_max`` characters of what is left."""
    # What is taken out shortens the text, so it is cut last. A longer text than anybody reads is cut before as well, and
    # loses as much again at its end afterwards as a secret that was cut there could be long.
    scanned = without(_control.sub(" ", text[:SCANNED_CHARS_MAX]), secrets)
    scanned = _key_like.sub(HIDDEN, scanned)
    if len(text) > SCANNED_CHARS_MAX:
        scanned = scanned[:-SECRET_CHARS_MAX]
    return bounded_text(scanned.strip(), chars_max)


def without(text: str, secrets: Iterable[Secret]) -> str:
    """The text with the given secrets taken out, longest first: one may be a part of another."""
    shown = (secret.reveal() for secret in secrets)
    for secret in sorted((one for one in shown if len(one) >= _SHOWN_LEAST), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
