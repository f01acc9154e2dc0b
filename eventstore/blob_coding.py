"""How the parts of a blob are kept in a SQLite file: compressed where that saves an eighth, else as they are.

What a blob is called and how large it is go by what it holds, so nothing outside the file's own code sees any of this; it is the one
place where another coding, encryption for one, would go (docs/stores.md). PostgreSQL compresses large values by itself. Bodies of
events stay as they are: most have a few hundred bytes, of which zlib saves little at the cost of every append.
"""

from __future__ import annotations

import zlib
from typing import Final

PART_BYTES: Final = 256 * 1024
"""What one part holds, but for the last one. A blob has at least one part."""

AS_IT_IS: Final = 0
ZLIB: Final = 1

LEAST_BYTES: Final = 1_024
"""Shorter parts stay as they are."""

LEVEL: Final = 1
"""Level 6 makes JSON a quarter smaller again, and takes two to six times as long."""

Part = tuple[int, bytes]
"""(coding, bytes as they are kept)."""


def packed_parts(data: bytes) -> tuple[Part, ...]:
    """All parts of a blob. About 30 ms a megabyte, so large ones are packed beside the event loop."""
    return tuple(packed(data[at : at + PART_BYTES]) for at in range(0, max(len(data), 1), PART_BYTES))


def packed(part: bytes) -> Part:
    """One part."""
    if len(part) >= LEAST_BYTES:
        small = zlib.compress(part, LEVEL)
        if len(small) <= len(part) - len(part) // 8:
            return ZLIB, small
    return AS_IT_IS, part


def unpacked(coding: int, kept: bytes) -> bytes:
    """What a part holds, ``PART_BYTES`` at most. What was damaged is given as it is kept: it isn't what the blob's name says
    then, which whoever asks for a blob checks."""
    if coding != ZLIB:
        return kept
    unpacking = zlib.decompressobj()
    try:
        part = unpacking.decompress(kept, PART_BYTES + 1)
    except zlib.error:
        return kept
    return part if unpacking.eof and len(part) <= PART_BYTES else kept
