"""What every request that offers the same tools has in common, hashed and counted once."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from .pins import Pins
from .tool_definition import ToolDefinition


def request_head(pins: Pins, tools: tuple[ToolDefinition, ...]) -> tuple[bytes, int]:
    """The hash of adapter, model, system text, tool definitions and declared
    hosted tools, and what they count for in a request's input bound."""
    head = msgspec.json.encode(
        (
            pins.api_family,
            pins.adapter_revision,
            pins.template_revision,
            pins.model,
            pins.system,
            [tool.definition_sha256.hex() for tool in tools],
            *([pins.hosted] if pins.hosted else ()),
        )
    )
    return sha256(head).digest(), len(head) + sum(tool.size_bytes for tool in tools)
