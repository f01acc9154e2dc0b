"""A store's URL as people, logs and shells may see it: without what may be a password, however wrong the URL is.

Of a URL that is taken, the password is known, and all else is shown as it was given: a command with it means the same store.
Of one that is refused nothing can be known: a mistyped scheme, a forgotten escape or another client's form of an address is
what a password in it comes with. So nothing behind its scheme is shown if a password may stand there.
"""

from __future__ import annotations

import re
from typing import Final

from .postgres_url import SCHEMES, Misread, read_postgres_url

_FILES: Final = frozenset(("sqlite", "memory"))
"""Schemes whose URLs have no user, so that ``:`` and ``@`` in them are part of a name."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def shown_url(url: str) -> str:
    """``***`` stands for a password, or for all that may hold one."""
    return _without(url, ":***")


def url_to_type(url: str) -> str:
    """For a command that somebody types or pastes: nothing stands for the password, which PGPASSWORD or ~/.pgpass gives."""
    return _without(url, "")


def hidden(url: str) -> str:
    """A URL that is refused."""
    scheme = url.partition(":")[0]
    if scheme in _FILES or not any(sign in url.removeprefix(f"{scheme}://") for sign in "@:="):
        return url
    beginning = _SCHEME.match(url)
    return f"{beginning[0] if beginning else ''}***"


def _without(url: str, mark: str) -> str:
    if url.partition("://")[0] not in SCHEMES:
        return hidden(url)
    try:
        netloc = read_postgres_url(url).netloc
    except Misread:
        return hidden(url)
    user, at, hosts = netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    if not colon:
        return url
    return url.replace(netloc, f"{name}{mark}{at}{hosts}", 1)
