"""A store's URL as people, logs and shells may see it: without what may be a password, however wrong the URL is.

Of a URL that is taken, the password's place is known, and all else is shown as it was given: a command with it means the
same store. Of one that is refused nothing can be known: a mistyped scheme, a forgotten escape or another client's form of an
address is what a password in it comes with. So nothing behind its scheme is shown if one of the signs stands there that go
with a password, escaped or not; without any of them it is shown as it was given.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, unquote

from .file_url import read_file_url
from .postgres_address import SCHEMES, read_postgres_url
from .store_address import AddressRefused

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def shown_url(url: str) -> str:
    """``***`` stands for a password, or for all that may hold one."""
    return _without(url, ":***")


def url_to_type(url: str) -> str:
    """For a command that somebody types or pastes: nothing stands for the password, which PGPASSWORD or ~/.pgpass gives."""
    return _without(url, "")


def hidden(url: str) -> str:
    """A URL that is refused, of whatever kind."""
    beginning = _SCHEME.match(url)
    scheme = beginning[0] if beginning else ""
    rest = unquote(
        unquote(url[len(scheme) :])
    )  # twice: what was escaped as a whole may have been escaped before
    return f"{scheme}***" if any(sign in rest for sign in "@:=&;") else url


def marked(url: str, parts: SplitResult, mark: str) -> str:
    """An address that is taken as it was given, with ``mark`` for its password and the sign before it."""
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return url.replace(parts.netloc, f"{name}{mark}{at}{hosts}", 1) if colon else url


def _without(url: str, mark: str) -> str:
    try:
        if url.partition("://")[0] in SCHEMES:
            return marked(url, read_postgres_url(url), mark)
        read_file_url(url)
    except AddressRefused:
        return hidden(url)
    return url
