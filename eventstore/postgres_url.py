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

SCHEMES = ("postgresql", "postgres")
DEFAULT_SCHEMA = "boundloop"

_OPTIONS = frozenset(("host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "schema"))
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
    shown = without_password(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        # What it raises quotes the URL, password and all.
        raise StoreUrlError(
            shown, "it can't be read as a URL; write % and two hex digits for what isn't ASCII"
        ) from None
    try:
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise StoreUrlError(shown, "its query is no list of name=value") from error
    given = dict(options)
    if len(given) < len(options):
        raise StoreUrlError(shown, "an option is given twice")
    strange = sorted(given.keys() - _OPTIONS)
    if strange:
        raise StoreUrlError(shown, f"no such option: {strange[0]} (known: {', '.join(sorted(_OPTIONS))})")
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


def without_password(url: str) -> str:
    """The URL as it may be shown: whatever stands for a password is ``***``."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        return url
    cut = min((at for at in (rest.find(mark) for mark in "/?#") if at >= 0), default=len(rest))
    # A password may hold an unescaped mark: whatever comes before the last @ belongs to the user.
    at = rest.rfind("@") if rest.rfind("@") > cut and ":" in rest[:cut] else rest[:cut].rfind("@")
    if at < 0:
        return url
    user, colon, _ = rest[:at].partition(":")
    return f"{scheme}://{user}{colon}{'***' if colon else ''}{rest[at:]}"
