"""The address of a PostgreSQL store: ``postgresql://user:password@host:port/database?schema=name&sslmode=verify-full``.

What a URL leaves out is taken from PGHOST, PGUSER, PGPASSWORD, ~/.pgpass and the like, as with every client of PostgreSQL.
Options that change what a store promises (``synchronous_commit``, ``target_session_attrs``) are ours and can't be given.
"""

from __future__ import annotations

import re
from hashlib import sha256
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from ..runtime.errors import StoreUrlError
from .shown_url import SAFE_OPTIONS, shown_url

SCHEMES = ("postgresql", "postgres")
DEFAULT_SCHEMA = "boundloop"

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresPlace(msgspec.Struct, frozen=True):
    """``dsn`` is for the driver, with the password if there is one; ``shown`` is what people and logs may see."""

    dsn: str
    schema: str
    shown: str

    @property
    def channel(self) -> str:
        """Where processes of this store hint to each other."""
        return f"boundloop_{sha256(self.schema.encode()).hexdigest()[:16]}"


def parse_postgres_url(url: str) -> PostgresPlace:
    """Raises ``StoreUrlError``, whose text holds no password."""
    shown = shown_url(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        # What it raises quotes the URL, password and all.
        raise StoreUrlError(
            shown, "it can't be read as a URL; write % and two hex digits for what isn't ASCII"
        ) from None
    _refuse_unreadable(url, parts.netloc, shown)
    try:
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise StoreUrlError(shown, "its query is no list of name=value") from error
    given = dict(options)
    if len(given) < len(options):
        raise StoreUrlError(shown, "an option is given twice")
    strange = sorted(given.keys() - SAFE_OPTIONS)
    if strange:
        raise StoreUrlError(shown, f"no such option: {strange[0]} (known: {', '.join(sorted(SAFE_OPTIONS))})")
    if parts.fragment:
        raise StoreUrlError(shown, "a store URL takes no fragment (write %23 for #)")
    if not parts.path.strip("/"):
        raise StoreUrlError(shown, "there is no database name")
    schema = given.pop("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema):
        raise StoreUrlError(shown, "a schema's name is small letters, digits and _, at most 63")
    query = urlencode(given, quote_via=quote, safe="/,")
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, query, ""))
    return PostgresPlace(dsn, schema, shown)


def _refuse_unreadable(url: str, netloc: str, shown: str) -> None:
    """What the driver would misread, and quote in its own words: a sign in a password that ends the password here."""
    user, at, hosts = netloc.rpartition("@")
    if "@" in user or (not at and ":" in hosts and "@" in url):
        raise StoreUrlError(
            shown,
            "a sign isn't escaped: in a user's name or password write %40 for @, %2F for /, %3F for ?, %23 for #",
        )
    for host in hosts.split(","):
        _, colon, port = host.rpartition("]")[2].rpartition(":")
        if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise StoreUrlError(shown, "a port is a number from 1 to 65535")
