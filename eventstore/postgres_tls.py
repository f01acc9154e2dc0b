"""The files that TLS to a PostgreSQL server needs, named by the address or the environment."""

from __future__ import annotations

import os
import ssl
from urllib.parse import parse_qsl, urlsplit

from .postgres_address import TLS_FILES


def fault_of_files(dsn: str) -> str:
    """Which of them can't be read, and why; empty if all can that the driver reads.

    For when the driver failed: its error names no file, and is the same where a socket isn't there.
    """
    given = dict(parse_qsl(urlsplit(dsn).query))
    mode = given.get("sslmode") or os.environ.get("PGSSLMODE", "prefer")
    if mode == "disable":
        return ""
    for option in TLS_FILES:
        file = given.get(option) or os.environ.get(f"PG{option.upper()}", "")
        judges = option in ("sslrootcert", "sslcrl")  # what the server shows, which these modes don't look at
        if not file or (judges and mode in ("allow", "prefer")):
            continue
        try:
            with open(file, "rb"):
                pass
            if judges:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
        except OSError as error:
            return f"{option} can't be read: {error.strerror or error}"[:300]
    return ""
