"""Where a model's API is and what goes with each request, from an adapter's settings: URLs, headers, further fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Any, Final, cast
from urllib.parse import unquote_plus, urlsplit

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.errors import CallerError, DeclarationError
from .secret import Secret, is_secret

HEADERS_MAX: Final = 16

_CLIENTS_OWN: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "content-type"}
)
_NO_KEY_QUERY: Final = frozenset({"api-version", "alt"})
"""Parameters of a URL that are known to be no key."""


def endpoint(base_url: str, path: str, *, guarded: bool, query: str = "") -> tuple[Secret, str]:
    """The URL to post to, whose query may hold a key, and its host name. A base URL that ends with ``path`` already is whole;
    its query stays behind the path, with ``query`` before it. ``guarded``: a key goes with it, so not over plain HTTP to another
    machine. Raises ``DeclarationError``."""
    if len(base_url) > 2_048 or not base_url.isascii() or not base_url.isprintable() or " " in base_url:
        raise DeclarationError("base_url", "an http or https URL", path="base_url")
    try:
        parts = urlsplit(base_url)
        host, _port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise DeclarationError("base_url", "an http or https URL", path="base_url") from None
    if parts.scheme not in ("http", "https") or not host or parts.fragment:
        raise DeclarationError("base_url", "an http or https URL", path="base_url")
    if parts.username is not None or parts.password is not None:
        raise DeclarationError("base_url", "no user or password in a URL", path="base_url")
    if parts.scheme == "http" and guarded and not _is_loopback(host):
        raise DeclarationError(
            "insecure_http",
            "a key over plain HTTP to another machine; insecure_http=True allows it",
            path="base_url",
        )
    whole = parts.path.rstrip("/")
    if not whole.endswith(path):
        whole += path
    both = "&".join(one for one in (query, parts.query) if one)
    return Secret(parts._replace(path=whole, query=both).geturl(), name="base_url"), host


def without_query(base_url: str) -> str:
    """The URL as it may be shown."""
    return urlsplit(base_url)._replace(query="").geturl()


def query_secrets(base_url: str) -> tuple[Secret, ...]:
    """What a query says may be a key, except for the parameters that are known to be none."""
    pairs = [part.partition("=") for part in urlsplit(base_url).query.split("&")]
    written = [value for name, _, value in pairs if value and name not in _NO_KEY_QUERY]
    plain = [unquote_plus(value) for value in written]
    return tuple(Secret(value) for value in {*written, *plain} if is_secret(value))


def secret_headers(headers: Mapping[str, str]) -> dict[str, Secret]:
    """Further headers, kept as secrets. Raises ``DeclarationError``."""
    if len(headers) > HEADERS_MAX:
        raise DeclarationError("headers", f"at most {HEADERS_MAX}", path="headers")
    kept: dict[str, Secret] = {}
    for name, value in headers.items():
        lower = name.lower()
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise DeclarationError("headers", "not a header's name", path="headers")
        if lower in _CLIENTS_OWN:
            raise DeclarationError("headers", "the client sets this header", path=lower)
        kept[lower] = Secret(value, name=lower)
    return kept


def further_fields(extra: Mapping[str, Any], owned: Collection[str]) -> bytes:
    """Further fields of a request, canonical; none that the runtime depends on. Raises ``DeclarationError``."""
    taken = sorted(set(owned) & set(extra))
    if taken:
        raise DeclarationError("extra", "the runtime sets this field", path=taken[0])
    try:
        return canonical_bytes(cast(JSON, dict(extra)))
    except CallerError as error:
        raise DeclarationError("extra", error.message, path=f"extra{error.path[1:]}") from error


def refuse_owned_in(extra: Mapping[str, Any], group: str, owned: Collection[str]) -> None:
    """Raises ``DeclarationError`` where this group of further fields sets one that the runtime sets, or is none."""
    fields: object = extra.get(group, {})
    if not isinstance(fields, Mapping) or not cast("Mapping[object, object]", fields).keys().isdisjoint(
        owned
    ):
        raise DeclarationError("extra", "the runtime sets a field of this", path=group)


def definitions(hosted: Mapping[str, Any]) -> bytes:
    """The provider's own tools by name, canonical. Raises ``DeclarationError``."""
    try:
        return canonical_bytes(cast(JSON, dict(hosted)))
    except CallerError as error:
        raise DeclarationError("hosted", error.message, path=f"hosted{error.path[1:]}") from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
