"""What the command line says of an error, without the passwords in it.

Whoever types a store's address into another place is quoted: by click, by what looks for a run of that name, by the system
that finds no such file. So errors are looked through as they are printed, for whatever looks like an address with a
password; each is shown as ``shown_url`` shows it. Linear in the text's length, which another program may have chosen.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

_WORDS: Final = re.compile(r"(\s+)")
_SCHEME_SIGNS: Final = string.ascii_letters + string.digits + "+.-_"
_AFTER: Final = "'\").,:;"
"""Signs of the sentence around an address."""

_POSTGRES: Final = re.compile(r"postgres[\w+.-]{0,32}:", re.IGNORECASE)
_PASSWORD: Final = re.compile(
    r"((?:password|passwd|pwd)\s{0,4}(?:=|%3D)\s{0,4})(\\*['\"].*|\S+)", re.IGNORECASE | re.DOTALL
)


def scrubbed(text: str) -> str:
    """The text with ``***`` for each password in an address of any form."""
    if ":" in text or "%3a" in text.lower():
        text = "".join(_without_addresses(_WORDS.split(text)))
    return _PASSWORD.sub(lambda found: f"{found[1]}***{_end(found[2])}", text)


def _without_addresses(words: list[str]) -> Iterator[str]:
    """Words, and what parts them."""
    last_at = max((place for place, word in enumerate(words) if "@" in word), default=-1)
    passed = -1
    for place, word in enumerate(words):
        if place <= passed:
            continue
        shown = _word(word)
        if shown != word and "@" not in word and place < last_at:
            passed = last_at  # a space in the password: it reaches as far as an @
            shown = shown.removesuffix(_end(word)) + _end(words[last_at])
        yield shown


def _word(word: str) -> str:
    found = _POSTGRES.search(word)
    colon = found.end() - 1 if found else word.find(":")
    if colon < 0:
        decoded = unquote(word)
        return "***" if ":" in decoded and _word(decoded) != decoded else word
    begin = found.start() if found else len(word[:colon].rstrip(_SCHEME_SIGNS))
    end = len(word) - len(_end(word))
    if not _may_hold_one(unquote(word[colon + 1 : end]), postgres=found is not None):
        return word
    from ..eventstore.shown_url import shown_url

    return word[:begin] + shown_url(word[begin:end]) + word[end:]


def _may_hold_one(rest: str, *, postgres: bool) -> bool:
    """By what stands behind a scheme. ``os:user@host`` and the address of a web page hold none."""
    before, at, after = rest.rpartition("@")
    if postgres:
        return bool(at) or rest.startswith("//")
    return bool(at) and (":" in before or ("/" in after and not rest.startswith("//")))


def _end(word: str) -> str:
    return word[len(word.rstrip(_AFTER)) :]
