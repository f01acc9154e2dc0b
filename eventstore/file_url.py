"""The addresses ``memory://``, ``sqlite:///relative/file.db`` and ``sqlite:////absolute/file.db``.

They have no query, no user, no fragment: a store has no options that change what it promises.
"""

from __future__ import annotations

from urllib.parse import unquote

from .store_address import AddressRefused, split_address


def read_file_url(url: str) -> str:
    """The file's path; empty for ``memory://``. Raises ``AddressRefused``."""
    parts = split_address(url)
    if not url[len(parts.scheme) :].startswith("://"):
        raise AddressRefused("write memory://, sqlite:///file or postgresql://host/database")
    if parts.query or parts.fragment:
        raise AddressRefused(
            "a store URL takes neither a query nor a fragment (write %3F for ? and %23 for #)"
        )
    if parts.scheme == "memory":
        if parts.netloc or parts.path not in ("", "/"):
            raise AddressRefused("memory:// takes nothing after it")
        return ""
    if parts.scheme != "sqlite":
        raise AddressRefused("known stores are memory://, sqlite:///file and postgresql://host/database")
    if parts.netloc:
        raise AddressRefused("a file needs three slashes: sqlite:///relative or sqlite:////absolute")
    path = unquote(parts.path[1:])
    if not path or path.endswith("/") or "\0" in path:
        raise AddressRefused("there is no file name")
    return path
