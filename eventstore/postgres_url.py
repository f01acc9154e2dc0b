"""The address of a PostgreSQL store, read: for the driver, and for people.

What a URL leaves out is taken from PGHOST, PGUSER, PGPASSWORD, ~/.pgpass and the like, as with every client of PostgreSQL,
but for the database, which says which store it is. Options that change what a store promises (``synchronous_commit``,
``target_session_attrs``) are ours and can't be given.
"""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import quote, urlencode, urlunsplit

import msgspec

from ..runtime.errors import StoreUrlError
from .postgres_address import DEFAULT_SCHEMA, read_options, read_postgres_url
from .shown_url import hidden, marked
from .store_address import AddressRefused


class PostgresPlace(msgspec.Struct, frozen=True):
    """``dsn`` is for the driver, with the password if there is one; ``shown`` is what people and logs may see."""

    dsn: str
    schema: str
    shown: str

    def __repr__(self) -> str:
        return f"PostgresPlace({self.shown!r})"

    @property
    def channel(self) -> str:
        """Where processes of this store hint to each other."""
        return f"boundloop_{sha256(self.schema.encode()).hexdigest()[:16]}"


def parse_postgres_url(url: str) -> PostgresPlace:
    """Raises ``StoreUrlError``, whose text holds no password."""
    try:
        parts = read_postgres_url(url)
        given = read_options(parts.query)
    except AddressRefused as refusal:
        raise StoreUrlError(hidden(url), str(refusal)) from None
    schema = given.pop("schema", DEFAULT_SCHEMA)
    query = urlencode(given, quote_via=quote, safe="/,")
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, query, ""))
    return PostgresPlace(dsn, schema, marked(url, parts, ":***"))
