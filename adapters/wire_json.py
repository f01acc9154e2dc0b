"""Whether JSON of a provider's says one thing where it is read; what nobody reads may be odd.

Servers send numbers beyond 64 bits and keys twice in fields that nobody asks for. So a text that the strict parser
refuses is looked at once more, by the places that count.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final, cast

import msgspec
from msgspec import Raw

from ..runtime.canonical import INT_MAX, INT_MIN, JSON
from ..runtime.strict_json import JsonRefused, parse_object

RESPONSE_DEPTH_MAX: Final = 48
RESPONSE_NODES_MAX: Final = 500_000
MISSING: Final = Raw(b"")

_ELSEWHERE: Final = frozenset({"dup_key", "int_range", "overflow", "depth"})
"""What may stand where nobody reads."""


def check_object(body: bytes, *, once: Collection[str], opaque: Collection[str]) -> frozenset[str]:
    """Refuse what isn't one JSON object, unambiguous where it is read: the fields ``once`` at the top and all within them,
    but for members named in ``opaque``, which the model wrote and the ladder judges, call by call.

    Returns the names of further fields that stand there twice. Raises ``JsonRefused``, and ``ValueError`` or
    ``RecursionError`` for what no parser reads. One pass over the body, or three if it is odd.
    """
    try:
        parse_object(body, bytes_max=len(body), depth_max=RESPONSE_DEPTH_MAX, nodes_max=RESPONSE_NODES_MAX)
    except JsonRefused as error:
        # The depth is found before the values are counted.
        if error.code not in _ELSEWHERE or sum(map(body.count, (b",", b"[", b"{"))) >= RESPONSE_NODES_MAX:
            raise
    else:
        return frozenset()
    top: object = _decode_written(body.decode())
    if not isinstance(top, _Members):
        raise JsonRefused("not_object", "an object is expected")
    names = [name for name, _ in top]
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set[str]()
    if not twice.isdisjoint(once):
        raise JsonRefused("dup_key", "a field of the answer is there twice")
    for name, value in top:
        if name in once:
            _refuse_odd(value, opaque)
    return frozenset(twice)


class _Members(list["tuple[str, object]"]):
    """An object as it is written: every member, in order."""


_ODD: Final = object()
"""Stands where a number was that has no place in 64 bits or a double."""


def _integer(digits: str) -> object:
    return int(digits) if len(digits) <= 20 and INT_MIN <= int(digits) <= INT_MAX else _ODD


def _float(digits: str) -> object:
    number = float(digits)
    return number if number - number == 0 else _ODD


_decode_written = json.JSONDecoder(
    object_pairs_hook=_Members, parse_int=_integer, parse_float=_float, parse_constant=lambda _: _ODD
).decode


def _refuse_odd(value: object, opaque: Collection[str]) -> None:
    stack = [(1, value)]
    while stack:
        depth, node = stack.pop()
        if node is _ODD:
            raise JsonRefused("int_range", "a number outside 64 bits or a double")
        if isinstance(node, str):
            _refuse_surrogate(node)
        elif isinstance(node, list):
            if depth > RESPONSE_DEPTH_MAX:
                raise JsonRefused("depth", f"nested deeper than {RESPONSE_DEPTH_MAX}")
            if isinstance(node, _Members):
                names = [name for name, _ in node]
                if len(set(names)) < len(names):
                    raise JsonRefused("dup_key", "a key occurs twice in one object")
                for name in names:
                    _refuse_surrogate(name)
                stack += [
                    (depth + 1, member)
                    for name, member in node
                    if not (name in opaque and isinstance(member, _Members))
                ]
            else:
                stack += [(depth + 1, item) for item in cast("list[object]", node)]


def _refuse_surrogate(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise JsonRefused("surrogate", "text holds a lone surrogate") from None


# --- loosely written values -------------------------------------------------------------------------------------------


def present(raw: Raw) -> bool:
    """Whether a field came with a value."""
    return len(memoryview(raw)) > 0 and bytes(raw) != b"null"


def text_of(value: object) -> str:
    """A string, or "" for whatever else stands there."""
    return value if isinstance(value, str) else ""


def count_of(value: object) -> int | None:
    """A count of tokens; None for what is none: not reported is never zero."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def value_of(raw: Raw) -> JSON:
    """The value of bytes that were checked."""
    return cast(JSON, msgspec.json.decode(raw))


def written_bytes(raw: Raw) -> bytes:
    """An argument text as the model wrote it: what a JSON string holds, nothing for null, and any other value as its own
    bytes."""
    if not present(raw):
        return b""
    data = bytes(raw)
    return msgspec.json.decode(data, type=str).encode() if data.startswith(b'"') else data
