"""Tokens as a Chat Completions server reports them."""

from __future__ import annotations

from msgspec import Raw

from ..runtime.canonical import JSON
from ..runtime.model import Usage
from ..runtime.strict_json import JsonRefused, parse_value
from .wire_json import present


def read_usage(raw: Raw) -> Usage | None:
    """The same from its bytes; None also for what is ambiguous."""
    if not present(raw):
        return None
    try:
        return usage_of(parse_value(bytes(raw)))
    except JsonRefused:
        return None


def usage_of(value: JSON) -> Usage | None:
    """Tokens as reported. What isn't a count is not reported, never zero.

    A total above prompt and completion counts as output: some servers leave reasoning out of the completion, and an
    unreported token would be an unspent one.
    """
    if not isinstance(value, dict):
        return None
    given, made, total = (_count(value.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
    if given is None and made is None:
        return None
    if given is not None and made is not None and total is not None:
        made = max(made, total - given)
    return Usage(
        input_tokens=given,
        output_tokens=made,
        cached_input_tokens=_detail(value, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=_detail(value, "completion_tokens_details", "reasoning_tokens"),
    )


def _count(value: JSON) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _detail(usage: dict[str, JSON], group: str, name: str) -> int:
    members = usage.get(group)
    return (_count(members.get(name)) or 0) if isinstance(members, dict) else 0
