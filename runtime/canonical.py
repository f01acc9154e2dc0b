"""Canonical JSON: one value, one sequence of bytes. What is hashed is what is stored, shown, approved and run.

RFC 8785, with one exception: a number whose value is an integer within int64 is written as that exact integer,
whether it came as `1` or as `1.0` (RFC 8785 rounds integers above 2^53 to a double's shortest digits, and then two
different arguments would share one hash). -0 is 0. Non-finite numbers, integers outside int64 and lone surrogates
have no canonical form and are refused. Text isn't normalised; keys sort by UTF-16 code units.
"""

from __future__ import annotations

import hashlib
import json
import re
from json.encoder import encode_basestring as _quote
from typing import Final, TypeAlias, cast

import msgspec

from .errors import CallerError

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
CANONICAL_DEPTH_MAX = 64
"""Containers within containers. Arguments are bounded lower by the parser; this bounds what a tool returns."""

_PLAIN: Final = frozenset({str, bool, type(None)})

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode
_has_long_digits = re.compile(rb"[0-9]{19}").search
_surrogate = re.compile("[\ud800-\udfff]").search
_plain_name = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII).fullmatch


class CanonicalRefused(CallerError):
    """A value without a canonical form.

    Codes: `non_finite`, `int_range`, `surrogate`, `type` (not a JSON type), `key` (a key that isn't a string),
    `depth`, `syntax` (bytes that aren't JSON).
    """


def sha256(data: bytes) -> bytes:
    """The 32 raw bytes of SHA-256."""
    return hashlib.sha256(data).digest()


def canonical_bytes(value: JSON) -> bytes:
    """The canonical bytes of `value`; raises `CanonicalRefused` with the JSON path of what has no canonical form.

    Exact JSON types only: a tuple, an enum or any subclass is refused, since its meaning would be a guess.
    """
    if _is_plain(value, CANONICAL_DEPTH_MAX):
        try:
            return _encode(value)
        except UnicodeEncodeError:
            pass  # a lone surrogate: the slow writer says where
    parts: list[str] = []
    _write(value, parts, "$", CANONICAL_DEPTH_MAX)
    return "".join(parts).encode()


def decode_canonical(data: bytes) -> JSON:
    """The value of bytes that `canonical_bytes` wrote. An integer beyond int64 can only come from a float and is one."""
    try:
        if _has_long_digits(data) is None:
            return cast(JSON, _decode(data))
        return cast(JSON, json.loads(data, parse_int=_int_or_float))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CanonicalRefused("syntax", "not JSON") from error


def child_path(path: str, key: str) -> str:
    """The JSON path of a member. Strange keys are quoted, escaped to ASCII and cut, since a model chooses them."""
    if _plain_name(key) is not None:
        return f"{path}.{key}"
    return f"{path}[{json.dumps(key[:64])}]"


def _int_or_float(digits: str) -> int | float:
    number = int(digits)
    return number if INT_MIN <= number <= INT_MAX else float(digits)


def _is_plain(value: JSON, depth: int) -> bool:
    """True if the fast encoder's bytes are canonical: no floats, integers in range, ASCII keys, exact types.

    For ASCII keys its order (by code point) and UTF-16 order agree, and its escapes are those of RFC 8785.
    """
    if type(value) in _PLAIN:
        return True
    if type(value) is int:
        return INT_MIN <= value <= INT_MAX
    if depth <= 0:
        return False
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii():
                return False
            if type(item) not in _PLAIN and not _is_plain(item, depth - 1):
                return False
        return True
    if type(value) is list:
        for item in value:  # noqa: SIM110 (a generator costs more than the items)
            if type(item) not in _PLAIN and not _is_plain(item, depth - 1):
                return False
        return True
    return False


def _write(value: JSON, parts: list[str], path: str, depth: int) -> None:
    if value is None:
        parts.append("null")
    elif value is True:
        parts.append("true")
    elif value is False:
        parts.append("false")
    elif type(value) is str:
        parts.append(_string(value, path))
    elif type(value) is int:
        if not INT_MIN <= value <= INT_MAX:
            raise CanonicalRefused("int_range", "an integer outside 64 bits", path=path)
        parts.append(str(value))
    elif type(value) is float:
        parts.append(_number(value, path))
    elif depth <= 0:
        raise CanonicalRefused("depth", f"nested deeper than {CANONICAL_DEPTH_MAX}", path=path[:200])
    elif type(value) is list:
        _write_list(value, parts, path, depth)
    elif type(value) is dict:
        _write_dict(value, parts, path, depth)
    else:
        name = type(cast(object, value)).__name__
        raise CanonicalRefused("type", f"{name[:64]} is no JSON type", path=path)


def _write_list(items: list[JSON], parts: list[str], path: str, depth: int) -> None:
    parts.append("[")
    for index, item in enumerate(items):
        if index:
            parts.append(",")
        _write(item, parts, f"{path}[{index}]", depth - 1)
    parts.append("]")


def _write_dict(members: dict[str, JSON], parts: list[str], path: str, depth: int) -> None:
    for key in members:
        if type(key) is not str:
            raise CanonicalRefused("key", "an object's key must be a string", path=path)
        if _surrogate(key):
            raise CanonicalRefused("surrogate", "a key holds a lone surrogate", path=path)
    parts.append("{")
    ordered = sorted(members.items(), key=lambda member: member[0].encode("utf-16-be"))
    for index, (key, item) in enumerate(ordered):
        if index:
            parts.append(",")
        parts.append(_quote(key))
        parts.append(":")
        _write(item, parts, child_path(path, key), depth - 1)
    parts.append("}")


def _string(text: str, path: str) -> str:
    if _surrogate(text):
        raise CanonicalRefused("surrogate", "text holds a lone surrogate", path=path)
    return _quote(text)


def _number(number: float, path: str) -> str:
    """ECMAScript's Number::toString over Python's shortest digits, which are the same digits."""
    if number - number != 0:  # NaN and both infinities
        raise CanonicalRefused("non_finite", "NaN and infinities have no canonical form", path=path)
    if number.is_integer() and INT_MIN <= number < 2.0**63:
        return str(int(number))
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading_zeros = len(whole + fraction) - len(digits)
    point = len(whole) - leading_zeros + int(exponent or 0)  # the value is 0.digits * 10**point
    digits = digits.rstrip("0")
    sign = "-" if number < 0 else ""
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"
