"""Server-sent events, fed with bytes as they come: sans I/O, linear in the bytes, bounded.

Chunks may end anywhere: within a character, within CRLF, within a frame. What servers do beside the standard is taken in:
a last frame without its blank line counts at the end, a field ``error`` is an event of that name, and lines that are no
field at all (an error body in a stream's place) are kept aside. ``docs/adr/0201`` says why this isn't a library.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
STRAY_BYTES_MAX: Final = 64 * 1024

_line_end = re.compile(rb"\r\n|\r|\n")
_MARK: Final = b"\xef\xbb\xbf"
_IGNORED: Final = frozenset({b"id", b"retry"})


class Frame(NamedTuple):
    """One event: its name, ``""`` where none was given, and its data lines joined by newlines."""

    event: str
    data: bytes


class FrameTooLarge(Exception):
    """One frame is over the bound. The parser is of no further use."""


class SseParser:
    """``feed`` and, at the end of the bytes, ``finish`` answer the frames that are complete.

    ``work`` counts the bytes that were looked at, each once but for those at the joints of chunks.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_event",
        "_frame_bytes",
        "_frame_bytes_max",
        "_line",
        "_started",
        "stray",
        "work",
    )

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._line = bytearray()
        self._data: list[bytes] = []
        self._event = b""
        self._frame_bytes = 0
        self._after_cr = False
        self._started = False
        self.stray = bytearray()
        """Lines that are no field, up to ``STRAY_BYTES_MAX``."""
        self.work = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that this chunk completes. Raises ``FrameTooLarge``."""
        frames: list[Frame] = []
        if not chunk:
            return frames
        self.work += len(chunk)
        start = 0
        if self._after_cr:
            # The line ended with the CR that the last chunk ended with; an LF now is that end's second half.
            self._after_cr = False
            start = int(chunk.startswith(b"\n"))
        for found in _line_end.finditer(chunk, start):
            if self._line:
                self._line += chunk[start : found.start()]
                line = bytes(self._line)
                self._line.clear()
            else:
                line = chunk[start : found.start()]
            start = found.end()
            self._end_line(line, frames)
        if start < len(chunk):
            self._line += chunk[start:]
            self._bounded(len(self._line))
        elif chunk.endswith(b"\r"):
            self._after_cr = True
        return frames

    def finish(self) -> list[Frame]:
        """What was complete but for its end. Nothing may be fed afterwards."""
        frames: list[Frame] = []
        if self._line:
            line = bytes(self._line)
            self._line.clear()
            self._end_line(line, frames)
        self._end_frame(frames)
        return frames

    def _bounded(self, more: int) -> None:
        if self._frame_bytes + more > self._frame_bytes_max:
            raise FrameTooLarge

    def _end_line(self, line: bytes, frames: list[Frame]) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(_MARK)
        if not line:
            self._end_frame(frames)
            return
        self._frame_bytes += len(line)
        self._bounded(0)
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value
        elif name == b"error" and colon:
            # One server's way to say that it failed; what it sent before of this frame is void.
            self._event, self._data = b"error", [value]
        elif name and name not in _IGNORED and len(self.stray) + len(line) < STRAY_BYTES_MAX:
            self.stray += line + b"\n"

    def _end_frame(self, frames: list[Frame]) -> None:
        if self._data:
            frames.append(Frame(self._event.decode("utf-8", "replace"), b"\n".join(self._data)))
        self._event, self._data, self._frame_bytes = b"", [], 0
