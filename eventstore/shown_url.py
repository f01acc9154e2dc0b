"""A store's URL as people, logs and shells may see it: without what may be a password, however wrong the URL is.

Of a URL that is taken, the password is known, and all else is shown as it was given: a command with it means the same store.
Of one that is refused nothing can be known: a mistyped scheme, a forgotten escape or another client's form of an address is
what a password in it comes with. So nothing behind its scheme is shown if a password may stand there.
"""

from __future__ import annotations

from .postgres_url import SCHEMES, Misread, hidden, marked, read_postgres_url


def shown_url(url: str) -> str:
    """``***`` stands for a password, or for all that may hold one."""
    return _without(url, ":***")


def url_to_type(url: str) -> str:
    """For a command that somebody types or pastes: nothing stands for the password, which PGPASSWORD or ~/.pgpass gives."""
    return _without(url, "")


def _without(url: str, mark: str) -> str:
    if url.partition("://")[0] not in SCHEMES:
        return hidden(url)
    try:
        return marked(url, read_postgres_url(url), mark)
    except Misread:
        return hidden(url)
