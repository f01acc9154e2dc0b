"""From the bytes of an answer to its fields: whatever is read must say one thing, whatever isn't may be odd.

Servers send numbers beyond 64 bits and keys twice in fields that nobody asks for. So an answer that the strict parser
refuses is looked at once more, by the places that count.
"""

from __future__ import annotations

import json
from typing import Final, cast

from ..runtime.canonical import INT_MAX, INT_MIN
from ..runtime.strict_json import JsonRefused, parse_object
from .openai_chat_wire import MISSING, WireCompletion, decode_completion

RESPONSE_DEPTH_MAX: Final = 48
RESPONSE_NODES_MAX: Final = 500_000

_ELSEWHERE: Final = frozenset({"dup_key", "int_range", "overflow", "depth"})
"""What may stand where nobody reads."""

_ONCE: Final = ("id", "model", "choices", "error")
"""Fields of an answer that may not be there twice. A second ``usage`` makes the usage unreported and no more."""


def read_completion(body: bytes) -> WireCompletion:
    """The answer's fields. Raises ``JsonRefused`` for what isn't one JSON object, unambiguous where it is read, and what
    msgspec raises for known fields of another shape. One pass over the body, or three if it is odd."""
    odd = False
    try:
        parse_object(body, bytes_max=len(body), depth_max=RESPONSE_DEPTH_MAX, nodes_max=RESPONSE_NODES_MAX)
    except JsonRefused as error:
        # The depth is found before the values are counted.
        odd = error.code in _ELSEWHERE and sum(map(body.count, (b",", b"[", b"{"))) < RESPONSE_NODES_MAX
        if not odd:
            raise
    completion = decode_completion(body)
    if odd and _usage_disputed(body):
        completion.usage = MISSING
    return completion


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


def _usage_disputed(body: bytes) -> bool:
    """Raise ``JsonRefused`` if a field that counts is ambiguous; say whether the usage is."""
    top = cast(_Members, _decode_written(body.decode()))
    names = [name for name, _ in top]
    if any(names.count(name) > 1 for name in _ONCE):
        raise JsonRefused("dup_key", "a field of the answer is there twice")
    for name, value in top:
        if name == "choices":
            _leave_out_arguments(value)
        if name in _ONCE:
            _refuse_odd(value)
    return names.count("usage") > 1


def _leave_out_arguments(choices: object) -> None:
    """Arguments that came as an object instead of a string are the model's: whether they hold a key twice is for the
    ladder to refuse, call by call."""
    for message in (message for choice in _items(choices) for message in _named(choice, "message")):
        calls = [call for calls in _named(message, "tool_calls") for call in _items(calls)]
        functions = [function for call in calls for function in _named(call, "function")]
        for function in (*functions, *_named(message, "function_call")):
            if isinstance(function, _Members):
                function[:] = [
                    (name, None if name == "arguments" and isinstance(value, _Members) else value)
                    for name, value in function
                ]


def _items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) and not isinstance(value, _Members) else []


def _named(value: object, name: str) -> list[object]:
    return [member for found, member in value if found == name] if isinstance(value, _Members) else []


def _refuse_odd(value: object) -> None:
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
                stack += [(depth + 1, member) for _, member in node]
            else:
                stack += [(depth + 1, item) for item in cast("list[object]", node)]


def _refuse_surrogate(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise JsonRefused("surrogate", "text holds a lone surrogate") from None
