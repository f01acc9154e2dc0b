"""The address of a PostgreSQL store: ``postgresql://user:password@host:port/database?schema=name&sslmode=verify-full``.

What a URL leaves out is taken from PGHOST, PGUSER, PGPASSWORD, ~/.pgpass and the like, as with every client of PostgreSQL.
Options that change what a store promises (``synchronous_commit``, ``target_session_attrs``) are ours and can't be given.
What the driver could read otherwise than we do is refused: an address means one store, and holds its password in one place.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from ..runtime.errors import StoreUrlError

SCHEMES: Final = ("postgresql", "postgres")
DEFAULT_SCHEMA: Final = "boundloop"

_OPTIONS: Final = frozenset(
    ("host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "schema")
)
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_FILES: Final = frozenset(("sqlite", "memory"))
"""Schemes whose URLs have no user, so that ``:`` and ``@`` in them are part of a name."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_UNESCAPED: Final = "a sign isn't escaped: in a name or a password write %40 for @, %3A for :, %2F for /, %3F for ?, %23 for #"


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


class Misread(Exception):
    """Why an address is refused; its text quotes nothing of it but the names of options."""


def parse_postgres_url(url: str) -> PostgresPlace:
    """Raises ``StoreUrlError``, whose text holds no password."""
    parts, message = None, ""
    try:
        parts = read_postgres_url(url)
    except Misread as misread:
        message = str(misread)
    if parts is None:  # outside, so that what it was raised from, which quotes the address, isn't kept
        raise StoreUrlError(hidden(url), message)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = given.pop("schema", DEFAULT_SCHEMA)
    query = urlencode(given, quote_via=quote, safe="/,")
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, query, ""))
    return PostgresPlace(dsn, schema, marked(url, parts, ":***"))


def hidden(url: str) -> str:
    """What may be shown of a URL that is refused, of whatever kind: nothing behind its scheme if a password may stand there."""
    scheme = url.partition(":")[0]
    if scheme in _FILES or not any(sign in url.removeprefix(f"{scheme}://") for sign in "@:="):
        return url
    beginning = _SCHEME.match(url)
    return f"{beginning[0] if beginning else ''}***"


def marked(url: str, parts: SplitResult, mark: str) -> str:
    """An address that is taken as it was given, with ``mark`` for its password and the sign before it."""
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return url.replace(parts.netloc, f"{name}{mark}{at}{hosts}", 1) if colon else url


def read_postgres_url(url: str) -> SplitResult:
    """The parts of an address that is taken. Raises ``Misread``."""
    if any(sign <= " " or sign == "\x7f" for sign in url):
        # Some of these urlsplit drops without a word, so what it gives wouldn't be what stands here.
        raise Misread("a space or a control character stands in it: write % and two hex digits for it")
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise Misread("it can't be read as a URL; write % and two hex digits for what isn't ASCII") from None
    if parts.fragment or url.endswith("#"):
        raise Misread("a store URL takes no fragment (write %23 for #)")
    user, _, hosts = parts.netloc.rpartition("@")
    if "@" in user or "@" in parts.path or ":" in parts.path:
        raise Misread(_UNESCAPED)
    _refuse_misread_hosts(hosts.split(","))
    given = dict(options)
    if len(given) < len(options):
        raise Misread("an option is given twice")
    if given.keys() - _OPTIONS:
        raise Misread(f"an option isn't known; those that are: {', '.join(sorted(_OPTIONS))}")
    if not parts.path.strip("/"):
        raise Misread("there is no database name")
    if not _SCHEMA.fullmatch(given.get("schema", DEFAULT_SCHEMA)):
        raise Misread("a schema's name is small letters, digits and _, at most 63")
    folder_or_hosts = given.get("host", "")
    if not folder_or_hosts.startswith("/"):
        _refuse_misread_hosts(folder_or_hosts.split(","))
    if any(port and not _is_port(port) for port in given.get("port", "").split(",")):
        raise Misread("a port is a number from 1 to 65535")
    return parts


def _refuse_misread_hosts(hosts: list[str]) -> None:
    for host in hosts:
        name, bracket, after = host.rpartition("]")
        address, colon, port = after.rpartition(":") if bracket else host.rpartition(":")
        if (
            "@" in host
            or (len(hosts) > 1 and not host)
            or (not bracket and ":" in (address if colon else ""))
        ):
            raise Misread(_UNESCAPED)
        if bracket and (name.count("[") != 1 or not name.startswith("[") or address):
            raise Misread("an IPv6 address stands in brackets: [::1]:5432")
        if port and colon and not _is_port(port):
            raise Misread("a port is a number from 1 to 65535")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536
