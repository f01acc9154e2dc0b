"""A store's URL as people, logs and shells may see it: without what may be a password, however wrong the URL is.

A wrong URL is shown in the message that refuses it, and a mistyped scheme, a forgotten escape or a strange option is what a
password in it comes with. So nothing here relies on the URL being one that can be read.
"""

from __future__ import annotations

from typing import Final

SAFE_OPTIONS: Final = frozenset(
    ("host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "schema")
)
"""The options of a PostgreSQL URL. The value of any other may be a secret."""

_FILES: Final = frozenset(("sqlite", "memory"))
"""Schemes whose URLs have no user, so that ``:`` and ``@`` in them are part of a name."""


def shown_url(url: str) -> str:
    """``***`` stands for whatever may be a password."""
    return _without(url, "***")


def url_to_type(url: str) -> str:
    """For a command that somebody types or pastes: nothing stands for the password, which PGPASSWORD or ~/.pgpass gives."""
    return _without(url, "")


def _without(url: str, mark: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, separator, rest = url.partition(":")
    if scheme in _FILES or not separator:
        return url
    beginning = scheme + separator
    cut = min((at for at in (rest.find(sign) for sign in "/?#") if at >= 0), default=len(rest))
    # A password may hold an unescaped sign: whatever comes before the last @ belongs to the user.
    at = rest.rfind("@") if rest.rfind("@") > cut and ":" in rest[:cut] else rest[:cut].rfind("@")
    if at >= 0:
        user, colon, _ = rest[:at].partition(":")
        beginning += user + (colon + mark if colon and mark else "")
        rest = rest[at:]
    path, question, query = rest.partition("?")
    if not question:
        return beginning + rest
    query, hash_sign, fragment = query.partition("#")
    options = "&".join(filter(None, (_option(one, mark) for one in query.split("&"))))
    return beginning + path + (question + options if options else "") + hash_sign + fragment


def _option(option: str, mark: str) -> str:
    name, equals, _ = option.partition("=")
    if name in SAFE_OPTIONS or not equals:
        return option
    return f"{name}={mark}" if mark else ""
