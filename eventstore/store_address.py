"""What holds for the address of every store: it is what it looks like, or it is refused without a word of it."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import SplitResult, urlsplit


class AddressRefused(Exception):
    """Why an address isn't taken; its text quotes nothing of it but the names of known options."""


def split_address(url: str) -> SplitResult:
    """Raises ``AddressRefused``."""
    # Some of these urlsplit drops without a word, so what it gives wouldn't be what stands here.
    if url.endswith(("\n", "\r")):
        raise AddressRefused("the address ends with a line's end")
    if any(sign < " " or sign == "\x7f" for sign in url):
        raise AddressRefused("a control character stands in it: write % and two hex digits for it")
    parts = None
    with suppress(ValueError):
        parts = urlsplit(url)
    # Raised out here, because what urlsplit raises quotes the address. Which brackets it takes differs by Python's version.
    if "[" in url and (parts is None or "[" in parts.netloc.rpartition("@")[0]):
        raise AddressRefused(
            "brackets stand around an IPv6 address only: in a password write %5B for [ and %5D for ]"
        )
    if parts is None:
        raise AddressRefused("it can't be read as a URL; write % and two hex digits for what isn't ASCII")
    return parts
