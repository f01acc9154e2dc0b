"""Text from anywhere, made safe to put on a terminal.

What a model, a far side or another person wrote can hold control characters, ANSI sequences, bidirectional overrides
and characters that show nothing. Each is written out as an escape, so that what is read is what is there. Nothing else
in the command line prints such text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from shlex import quote
from typing import Any, Final

import msgspec

CELL_CHARS_MAX: Final = 60
LAST_CELL_CHARS_MAX: Final = 160
MARKS_IN_A_ROW_MAX: Final = 4
"""Combining marks pile up on their letter and reach into other lines."""

_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters, marks and symbols that show nothing, though they count as printable."""


def safe_text(text: str) -> str:
    """One line of harmless text. A backslash is doubled, so an escape can't be imitated."""
    if text.isascii() and text.isprintable():
        return text.replace("\\", "\\\\")
    return _escaped(text.replace("\\", "\\\\"), _python_escape)


def quoted(text: str) -> str:
    """One word of a command line that can be copied into a shell (bash, zsh) and is harmless to print."""
    if safe_text(text) == text.replace("\\", "\\\\"):
        return quote(text)
    return "$'" + "".join(_shell_escape(char) for char in text) + "'"


def safe_lines(text: str) -> list[str]:
    """Several lines of harmless text: only plain newlines part them."""
    return [safe_text(line) for line in text.split("\n")]


def safe_json(value: object) -> str:
    """A JSON value on one line that reads back as itself; what shows wrongly is a JSON escape."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isascii() and text.isprintable() else _escaped(text, _json_escape)


def shown_json(data: bytes) -> object:
    """JSON bytes as a value; bytes that are none as text."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "backslashreplace")


def machine_json(value: object, *, indent: int | None = None) -> str:
    """JSON in ASCII, for programs: nothing in it can act on a terminal."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(plain(value), ensure_ascii=True, indent=indent, separators=separators)
    return text.replace("\x7f", "\\u007f")


def plain(value: Any) -> Any:
    """Structs as objects, bytes as hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if _is_a(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if _is_a(value, list) or _is_a(value, tuple):
        return [plain(item) for item in value]
    return value


def _is_a(value: object, kind: type[object]) -> bool:
    """Narrows nothing: what the members are isn't known."""
    return isinstance(value, kind)


def _escaped(text: str, escape: Any) -> str:
    parts: list[str] = []
    marks = 0
    for char in text:
        if _combines(char):
            marks += 1
        else:
            marks = 0
        hidden = not char.isprintable() or char in _INVISIBLE or _selects_variant(char)
        parts.append(escape(char) if hidden or marks > MARKS_IN_A_ROW_MAX else char)
    return "".join(parts)


def _combines(char: str) -> bool:
    if char < "\u0300":
        return False
    from unicodedata import combining

    return combining(char) != 0


def _selects_variant(char: str) -> bool:
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def _python_escape(char: str) -> str:
    code = ord(char)
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _shell_escape(char: str) -> str:
    if char in "\\'":
        return "\\" + char
    if char.isascii():
        return char if char.isprintable() else f"\\x{ord(char):02x}"
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _json_escape(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def cut(text: str, chars_max: int) -> str:
    """The text, its end marked where it was longer."""
    return text if len(text) <= chars_max else text[: chars_max - 3] + "..."


def when(at_ms: int) -> str:
    """Store time in UTC; empty for no time."""
    if not at_ms:
        return ""
    try:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms // 1_000))
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return f"{stamp}.{at_ms % 1_000:03d}Z"


def span(duration_ms: int) -> str:
    """A duration for people."""
    seconds, ms = divmod(max(0, duration_ms), 1_000)
    if seconds < 60:
        return f"{seconds}.{ms:03d}s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{seconds:02d}s" if hours else f"{minutes}m{seconds:02d}s"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns; cells are made safe and cut here, the last one is the longest."""
    last = len(columns) - 1
    cells = [
        [
            cut(safe_text(cell), LAST_CELL_CHARS_MAX if number == last else CELL_CHARS_MAX)
            for number, cell in enumerate(row)
        ]
        for row in rows
    ]
    lines = [[column.upper() for column in columns], *cells]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
