"""The one JSON parser, for everything that comes from outside: model arguments, configuration, tool results.

It refuses what parsers disagree about: duplicate keys, NaN and infinities, numbers that overflow, integers outside
int64, lone surrogates, any encoding but UTF-8 without a mark, trailing text, deep nesting. Size, depth and node
count are checked on the raw text before it is parsed, so a hostile text costs one linear scan and no recursion.
"""

from __future__ import annotations

import json
import re
from typing import Final, cast

import msgspec

from .canonical import INT_MAX, INT_MIN, JSON, child_path
from .errors import CallerError

JSON_BYTES_MAX: Final = 256 * 1024
JSON_DEPTH_MAX: Final = 32
JSON_NODES_MAX: Final = 20_000

_fast_decode = msgspec.json.Decoder().decode
# Possessive repeats: one pass and no backtracking, also on a string that never ends.
_strings = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_KEYLESS: Final = frozenset({str, bool, float, type(None)})
_OUT_OF_RANGE: Final = -(2**63)
_not_structure = bytes(sorted(set(range(256)) - set(b"[]{}")))
_surrogate = re.compile("[\ud800-\udfff]").search


class JsonRefused(CallerError):
    """Text that isn't the strict JSON asked for.

    Codes: `dup_key`, `non_finite`, `overflow`, `int_range`, `depth`, `nodes`, `surrogate`, `encoding`, `bom`,
    `syntax`, `not_object`, `bytes`. Messages never repeat the text.
    """


class _Refusal:
    """Stands in the parsed tree where the reference parser met what is refused, so that the walk knows its path."""

    __slots__ = ("code", "message")

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message


_NON_FINITE = _Refusal("non_finite", "NaN and infinities are no JSON")
_OVERFLOW = _Refusal("overflow", "a number too large for a double")
_INT_RANGE = _Refusal("int_range", "an integer outside 64 bits")
_DUP_KEY = _Refusal("dup_key", "a key occurs twice in one object")


def parse_object(
    raw: bytes | str,
    *,
    bytes_max: int = JSON_BYTES_MAX,
    depth_max: int = JSON_DEPTH_MAX,
    nodes_max: int = JSON_NODES_MAX,
) -> dict[str, JSON]:
    """Parse one JSON object; raises `JsonRefused`, with code `not_object` for any other value."""
    value = parse_value(raw, bytes_max=bytes_max, depth_max=depth_max, nodes_max=nodes_max)
    if type(value) is not dict:
        raise JsonRefused("not_object", "an object is expected", path="$")
    return value


def parse_value(
    raw: bytes | str,
    *,
    bytes_max: int = JSON_BYTES_MAX,
    depth_max: int = JSON_DEPTH_MAX,
    nodes_max: int = JSON_NODES_MAX,
) -> JSON:
    """Parse one JSON value; raises `JsonRefused`.

    `bytes_max` bounds the UTF-8 text, `depth_max` containers within containers (an object of scalars is 1),
    `nodes_max` all values together.
    """
    if len(raw) > bytes_max:
        raise JsonRefused("bytes", f"longer than {bytes_max} bytes")
    if isinstance(raw, str):
        raw = _to_utf8(raw, bytes_max)
    # A value takes two bytes with its comma, a container its two brackets: short texts can't reach the bounds.
    if len(raw) > 2 * depth_max or len(raw) > nodes_max:
        _scan_bounds(raw, depth_max, nodes_max)
    if b"\\u" not in raw:
        try:
            value: JSON = _fast_decode(raw)
        except msgspec.MsgspecError:
            return _parse_reference(raw)  # names the reason, or accepts: this parser is the one that decides
        # Each member has one colon outside texts, and a text without \u escapes keeps its colons. So as many
        # colons as there are keys, and colons in texts, means that no member was replaced by a later one.
        keys = _count_keys(value)
        colons = raw.count(b":")
        if keys == colons or (keys >= 0 and keys + _count_colons(value) == colons):
            return value
    return _parse_reference(raw)


def _to_utf8(text: str, bytes_max: int) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise JsonRefused("surrogate", "the text holds a lone surrogate") from None
    if len(data) > bytes_max:
        raise JsonRefused("bytes", f"longer than {bytes_max} bytes")
    return data


def _scan_bounds(raw: bytes, depth_max: int, nodes_max: int) -> None:
    """Refuse too deep or too many values, over the raw bytes, without parsing."""
    if raw.count(b"[") + raw.count(b"{") <= depth_max and raw.count(b",") + raw.count(b":") < nodes_max // 2:
        return
    bare = _strings.sub(b'"', raw)
    depth = 0
    for byte in bare.translate(None, _not_structure):
        if byte in b"[{":
            depth += 1
            if depth > depth_max:
                raise JsonRefused("depth", f"nested deeper than {depth_max}")
        else:
            depth -= 1
    # One value at the root, one more after each comma, and the first of each container.
    if 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{") > nodes_max:
        raise JsonRefused("nodes", f"more than {nodes_max} values")


def _count_keys(value: JSON) -> int:
    """The number of keys in all objects of a parsed value; far below 0 if an integer is out of range."""
    if type(value) is dict:
        count = len(value)
        for item in value.values():
            if type(item) not in _KEYLESS:
                count += _count_keys(item)
        return count
    if type(value) is int:
        return 0 if INT_MIN <= value <= INT_MAX else _OUT_OF_RANGE
    if type(value) is list:
        count = 0
        for item in value:
            if type(item) not in _KEYLESS:
                count += _count_keys(item)
        return count
    return 0


def _count_colons(value: JSON) -> int:
    """The colons in all texts of a parsed value; those of a member that a second one replaced are missing."""
    if type(value) is str:
        return value.count(":")
    if type(value) is dict:
        return sum(key.count(":") + _count_colons(item) for key, item in value.items())
    if type(value) is list:
        return sum(map(_count_colons, value))
    return 0


def _parse_reference(raw: bytes) -> JSON:
    """The parser that decides: the standard library's, with hooks that mark what is refused."""
    _refuse_encoding(raw)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise JsonRefused("encoding", f"not UTF-8 at byte {error.start}") from None
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise JsonRefused("syntax", f"not JSON at character {error.pos}") from None
    _refuse_marked(value)
    return cast(JSON, value)


def _refuse_encoding(raw: bytes) -> None:
    if raw.startswith(b"\xef\xbb\xbf"):
        raise JsonRefused("bom", "starts with a byte order mark")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")) or b"\x00" in raw[:4]:
        raise JsonRefused("encoding", "UTF-16 or UTF-32; only UTF-8 is read")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        members[key] = _DUP_KEY if key in members else value
    return members


def _integer(digits: str) -> object:
    if len(digits) > 20:  # before int(): the cost of long digit strings is quadratic
        return _INT_RANGE
    number = int(digits)
    return number if INT_MIN <= number <= INT_MAX else _INT_RANGE


def _float(digits: str) -> object:
    number = float(digits)
    return number if number - number == 0 else _OVERFLOW


def _constant(_name: str) -> object:
    return _NON_FINITE


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)


def _refuse_marked(value: object) -> None:
    """Raise for the first refused place in document order. Iterative, and paths are built only for refusals."""
    stack: list[tuple[str, object]] = [("$", value)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, _Refusal):
            raise JsonRefused(node.code, node.message, path=path)
        if isinstance(node, str):
            if _surrogate(node):
                raise JsonRefused("surrogate", "text holds a lone surrogate", path=path)
        elif isinstance(node, dict):
            members = cast("dict[str, object]", node)
            for key in members:
                if _surrogate(key):
                    raise JsonRefused("surrogate", "a key holds a lone surrogate", path=path)
            stack.extend((child_path(path, key), item) for key, item in reversed(members.items()))
        elif isinstance(node, list):
            items = cast("list[object]", node)
            stack.extend((f"{path}[{index}]", items[index]) for index in range(len(items) - 1, -1, -1))
