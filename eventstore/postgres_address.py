"""What the address of a PostgreSQL store may say: ``postgresql://user:password@host:port/database?schema=name&sslmode=…``.

What the driver could read otherwise than libpq does, or than a person, is refused: an address means one store, and holds
its password in one place. That place is behind the user's name; a sign by which a password might stand elsewhere (one
that wasn't escaped, or was escaped with all the rest) is refused wherever names have no need of it.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, unquote

from .store_address import AddressRefused, split_address

SCHEMES: Final = ("postgresql", "postgres")
DEFAULT_SCHEMA: Final = "boundloop"
TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

_OPTIONS: Final = frozenset(("host", "port", "sslmode", "schema", *TLS_FILES))
_SSL_MODES: Final = ("allow", "disable", "prefer", "require", "verify-ca", "verify-full")
_SCHEMA: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_IN_BRACKETS: Final = re.compile(r"\[[0-9A-Fa-f:.]+(?:%[\w.~%-]+)?\](?::([^:]+))?")
_BARE_IPV6: Final = re.compile(r"[0-9A-Fa-f:.]+(?:%[\w.~%-]*)?")

_LIBPQ: Final = """
    user password dbname hostaddr passfile require_auth channel_binding connect_timeout client_encoding options
    application_name fallback_application_name keepalives keepalives_idle keepalives_interval keepalives_count
    tcp_user_timeout replication gssencmode sslnegotiation sslcompression sslpassword sslcertmode sslcrldir sslsni
    requirepeer ssl_min_protocol_version ssl_max_protocol_version min_protocol_version max_protocol_version krbsrvname
    gsslib gssdelegation service servicefile target_session_attrs load_balance_hosts sslkeylogfile scram_client_key
    scram_server_key oauth_issuer oauth_client_id oauth_client_secret oauth_scope ssl requiressl
"""
"""Options of other clients that are named where they are refused. Any other name may be a piece of a password."""

_UNESCAPED: Final = (
    "a sign isn't escaped: in a password write %40 for @, %3A for :, %2F for /, %3F for ?, %23 for #"
)
_SUSPECT: Final = "the name of a user, a host, a database or a file with one of : = & ; % in it isn't taken: a password may stand there"
_NO_BINDING: Final = (
    "leave channel_binding out, which the driver doesn't do; with sslmode=verify-full it knows the server"
)
_BRACKETS: Final = "an IPv6 address stands in brackets: [::1]:5432"


def read_postgres_url(url: str) -> SplitResult:
    """The parts of an address that is taken. Raises ``AddressRefused``."""
    parts = split_address(url)
    if " " in url:
        raise AddressRefused("a space stands in it: write %20 for it")
    if parts.fragment or url.endswith("#"):
        raise AddressRefused("a store URL takes no fragment (write %23 for #)")
    user, _, hosts = parts.netloc.rpartition("@")
    if "@" in user or "@" in parts.path or ":" in parts.path:
        raise AddressRefused(_UNESCAPED)
    if _has(":=&;%", unquote(user.partition(":")[0])) or _has("@:=&;%", unquote(parts.path)):
        raise AddressRefused(_SUSPECT)
    if hosts:
        _check_hosts(hosts.split(","), escaped=True)
    given = read_options(parts.query)
    if not parts.path.strip("/"):
        raise AddressRefused("there is no database name")
    if hosts and ("host" in given or "port" in given):
        raise AddressRefused(
            "a host and its port stand before the database or in host= and port=, not in both"
        )
    _check_options(given)
    return parts


def read_options(query: str) -> dict[str, str]:
    """Decoded, each of them known and given once, with a value. Raises ``AddressRefused``."""
    fields = [field.partition("=") for field in query.split("&")] if query else []
    if not all(name and value for name, _, value in fields):
        raise AddressRefused("an option is name=value, with & before each but the first")
    # As libpq does: a plus is itself, and no space as in a form of the web.
    given = {unquote(name): unquote(value) for name, _, value in fields}
    if len(given) < len(fields):
        raise AddressRefused("an option is given twice")
    if unknown := given.keys() - _OPTIONS:
        known = ", ".join(sorted(unknown.intersection(_LIBPQ.split())))
        why = f"an option of other clients is not taken: {known}" if known else "an option isn't known"
        if "channel_binding" in unknown:
            why = f"{why}; {_NO_BINDING}"
        raise AddressRefused(f"{why}; those that are: {', '.join(sorted(_OPTIONS))}")
    return given


def _check_options(given: dict[str, str]) -> None:
    if not _SCHEMA.fullmatch(given.get("schema", DEFAULT_SCHEMA)):
        raise AddressRefused(
            "a schema's name is small letters, digits and _, at most 63; it begins with a letter or _, and not with pg_"
        )
    if given.get("sslmode", "prefer") not in _SSL_MODES:
        raise AddressRefused(f"sslmode is one of {', '.join(_SSL_MODES)}")
    hosts = given["host"].split(",") if "host" in given else []
    folders = [host for host in hosts if host.startswith("/")]
    if any(_has("=&;", name) for name in (*folders, *(given.get(option, "") for option in TLS_FILES))):
        raise AddressRefused(_SUSPECT)
    have_ports = _check_hosts(hosts)
    if "port" not in given:
        return
    ports = given["port"].split(",")
    if have_ports:
        raise AddressRefused("a port stands in host= or in port=, not in both")
    if not all(map(_is_port, ports)):
        raise AddressRefused("a port is a number from 1 to 65535")
    if len(ports) > 1 and len(ports) != len(hosts):
        raise AddressRefused("there are as many ports as hosts, or one")


def _check_hosts(hosts: list[str], *, escaped: bool = False) -> bool:
    """Whether one of them has a port. A folder, which begins with ``/``, has none. ``escaped``: they are still, a folder's ``/``
    too, and behind one a port may stand."""
    if len(hosts) > 1 and "" in hosts:
        raise AddressRefused("between commas there is no host")
    have_ports = [_has_port(host, escaped=escaped) for host in hosts if not host.startswith("/")]
    return any(have_ports)


def _has_port(host: str, *, escaped: bool) -> bool:
    if "[" in host or "]" in host:
        found = _IN_BRACKETS.fullmatch(host)
        if found is None:
            raise AddressRefused(_BRACKETS)
        port = found[1] or ""
    else:
        name, colon, port = host.partition(":")
        if ":" in port and _BARE_IPV6.fullmatch(host):
            raise AddressRefused(_BRACKETS)
        if ":" in port or _has("@", host):
            raise AddressRefused(_UNESCAPED)
        decoded = unquote(name)
        is_folder = escaped and decoded.startswith("/")
        if _has("@=&;%" if is_folder else "@:=&;%", decoded):
            raise AddressRefused(_SUSPECT)
        if "," in decoded:
            raise AddressRefused("a comma between hosts isn't escaped: write it as it is")
        if colon and not name:
            raise AddressRefused("a port stands behind a host; beside a host of the environment write ?port=")
    if port and not _is_port(port):
        raise AddressRefused("a port is a number from 1 to 65535")
    return bool(port)


def _has(signs: str, text: str) -> bool:
    return any(sign in text for sign in signs)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536
