"""``read_result``: the built-in tool that reads a recorded result on, part by part.

It is offered once something of the run was truncated or compacted, unless the application has a tool of that name. It is
a read like any other: the ladder lets it pass or not, it is counted, and its result is recorded. What it reads is what
this run's own log holds; a handle that isn't this run's, of whomever, is answered as one that never was.

Its definition isn't pinned: requests of older logs are rebuilt with the one that stands here, so it is never changed without
a new name.
"""

from __future__ import annotations

from typing import Any, Final

from .canonical import JSON, canonical_bytes
from .tool_definition import ToolDefinition

READ_LIMIT_DEFAULT: Final = 4_096
READ_LIMIT_MAX: Final = 65_536
OFFSET_MAX: Final = 2**40
HANDLE_LEAST: Final = 16

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "handle": {"type": "string", "pattern": "^[0-9a-f]+$", "minLength": HANDLE_LEAST, "maxLength": 64},
        "offset": {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX, "default": 0},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": READ_LIMIT_MAX,
            "default": READ_LIMIT_DEFAULT,
        },
    },
    "required": ["handle"],
    "additionalProperties": False,
}

READ_RESULT: Final = ToolDefinition(
    name="read_result",
    description=(
        "Read on in a recorded result of this run that was truncated or compacted. `handle` is the one shown with it,"
        " `offset` and `limit` are bytes of its JSON text. The answer's `next_offset` is where to go on."
    ),
    parameters=_PARAMETERS,
    risk="read",
    result_bytes_max=2 * READ_LIMIT_MAX,
    max_attempts=3,
    handler_revision="1",
)

UNKNOWN_HANDLE: Final = "unknown_handle"
UNKNOWN_HANDLE_TEXT: Final = "there is no such result here"


def part_of(whole: bytes, handle: str, offset: int, limit: int, view_bytes_max: int) -> bytes:
    """The canonical result: at most ``limit`` bytes of ``whole`` (canonical JSON) from ``offset`` on, cut at whole
    characters, and fewer where more wouldn't fit ``view_bytes_max``. Beyond the end it is empty."""
    while 0 < offset < len(whole) and whole[offset] & 0xC0 == 0x80:
        offset += 1
    size = limit
    while True:
        text = whole[offset : offset + size].decode("utf-8", "ignore")
        if not text and offset < len(whole) and size < 4:
            text = whole[offset : offset + 4].decode("utf-8", "ignore")[
                :1
            ]  # one character, however small the limit
        after = offset + len(text.encode())
        body: dict[str, JSON] = {"bytes": len(whole), "handle": handle, "offset": offset, "text": text}
        if after < len(whole):
            body["next_offset"] = after
        part = canonical_bytes(body)
        if len(part) <= view_bytes_max or size <= 4:
            return part
        size = max(4, size * 3 // 4)
