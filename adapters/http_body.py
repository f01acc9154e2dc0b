"""The body of an answer, unpacked, and never more of it than the cap."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Final

import httpx

from .http_failure import Cut, HttpFailed

GZIP_MEMBERS_MAX: Final = 1_024
"""Some servers flush by beginning another gzip member. Empty ones cost work and no bytes, so they are bounded too."""

TAIL_S: Final = 0.25
TAIL_BYTES_MAX: Final = 4_096
"""How long, and for how much, a stream is followed that has said its last."""

Take = Callable[[bytes], bool]
"""Gets unpacked bytes as they come; False: no more are needed."""


async def passed_on(reply: httpx.Response, bytes_max: int, take: Take) -> bool:
    """Hand the unpacked body to ``take`` as it comes; whether it came to its end. Raises ``Cut`` for
    one that is too large, packed in an unknown way, or packed and cut."""
    packed = reply.headers.get("content-encoding", "").strip().lower()
    if packed not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise Cut(HttpFailed("content_encoding", "the answer is packed in a way that wasn't asked for"))
    length = reply.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:18]) > bytes_max:
        raise _too_large(bytes_max)
    unpack = _Unpack(packed, bytes_max) if packed not in ("", "identity") else None
    size = 0
    chunks = reply.aiter_raw()
    async for chunk in chunks:
        if unpack is not None:
            unpacked = bytearray()
            unpack.feed(chunk, unpacked)
            chunk = bytes(unpacked)
        size += len(chunk)
        if size > bytes_max:
            raise _too_large(bytes_max)
        if not take(chunk):
            return await _ends_soon(chunks)
    if unpack is not None and not unpack.whole:
        raise Cut(HttpFailed("connection_lost", "the packed answer broke off"))
    return True


async def _ends_soon(chunks: AsyncIterator[bytes]) -> bool:
    """Whether the body ends by itself now that nothing more of it is needed: its connection can serve again then."""
    left = TAIL_BYTES_MAX
    try:
        async with asyncio.timeout(TAIL_S):
            async for chunk in chunks:
                left -= len(chunk)
                if left < 0:
                    return False
    except TimeoutError:
        return False
    except Exception:  # noqa: BLE001  whichever library's: nothing of it is needed any more
        return False
    return True


def _too_large(bytes_max: int) -> Cut:
    return Cut(HttpFailed("response_too_large", f"the answer is over {bytes_max} bytes"))


class _Unpack:
    """gzip, of any number of members, or deflate, a chunk at a time."""

    def __init__(self, packed: str, bytes_max: int) -> None:
        self._deflate = packed == "deflate"
        self._bytes_max = bytes_max
        self._packed_left = bytes_max
        self._members = 1
        self._padded = False
        self._head: bytes | None = b"" if self._deflate else None
        # 15 bits of window; 32 more read the header of gzip or zlib, 16 more gzip's alone.
        self._inflate = zlib.decompressobj(15 + 32)

    @property
    def whole(self) -> bool:
        """Whether the end of the stream, or of its last member, arrived."""
        return self._inflate.eof

    def feed(self, chunk: bytes, body: bytearray) -> None:
        """Unpack onto ``body``, at most one byte over the cap. Raises ``Cut``."""
        self._packed_left -= len(chunk)
        if self._packed_left < 0:
            raise Cut(HttpFailed("response_too_large", "the packed answer is too large"))
        if self._head is not None:
            # Some servers send deflate without its zlib header; two bytes tell.
            chunk = self._head + chunk
            self._head = chunk if len(chunk) < 2 else None
            if self._head is not None:
                return
            headed = chunk[0] & 0x0F == 8 and int.from_bytes(chunk[:2]) % 31 == 0
            if not headed and not chunk.startswith(b"\x1f\x8b"):
                self._inflate = zlib.decompressobj(-15)
        try:
            while chunk and len(body) <= self._bytes_max:
                if self._inflate.eof:
                    chunk = self._after_a_member(chunk)
                    if not chunk:
                        return
                body += self._inflate.decompress(chunk, self._bytes_max - len(body) + 1)
                chunk = self._inflate.unused_data
        except zlib.error:
            raise Cut(HttpFailed("connection_lost", "the packed answer is damaged")) from None

    def _after_a_member(self, chunk: bytes) -> bytes:
        """What another member begins with. Zeros at the very end are padding; anything else is no whole answer."""
        rest = chunk.lstrip(b"\0")
        self._padded = self._padded or len(rest) < len(chunk)
        if rest:
            if self._padded or self._deflate:
                raise zlib.error("something follows the end")
            self._members += 1
            if self._members > GZIP_MEMBERS_MAX:
                raise zlib.error("too many members")
            self._inflate = zlib.decompressobj(15 + 16)
        return rest
