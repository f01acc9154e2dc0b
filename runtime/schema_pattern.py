"""Patterns that match in linear time, or a refusal at declaration.

A pattern is parsed by the small grammar below, anything else is refused, and the matcher is written from the parsed
tree, so there is no second reading of it. Accepted are patterns in which, at each place, the next character alone
decides what to do next: repeats and alternatives never overlap with what may follow them. A backtracking matcher
then has no second choice to come back to. Beyond these, only patterns without repeats and with few alternatives.

Deliberate differences to Python's `re`: the whole text is matched (`$` never stops before a last newline), `\\d` and
`\\w` are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from .errors import DeclarationError

PATTERN_CHARS_MAX: Final = 256
PATTERN_GROUPS_MAX: Final = 16
PATTERN_REPEAT_MAX: Final = 4096
PATTERN_CHOICES_MAX: Final = 64
"""Ways through a pattern whose alternatives overlap; only patterns without repeats have a number of ways at all."""

_CODE_POINT_MAX: Final = 0x10FFFF

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"

_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CONTROLS: Final = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B}
_CLASSES: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}


@dataclass(frozen=True, slots=True)
class _Chars:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    branches: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    body: _Node
    low: int
    high: int | None


_Node: TypeAlias = "_Chars | _Sequence | _Choice | _Repeat"


def compile_pattern(pattern: str) -> Callable[[str], object]:
    """A function that gives a true value if the whole text matches; raises `DeclarationError` (codes `pattern_*`)."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise DeclarationError("pattern_size", f"longer than {PATTERN_CHARS_MAX} characters")
    if not (pattern.startswith("^") and _ends_with_anchor(pattern)):
        raise DeclarationError(
            "pattern_unanchored", "must start with ^ and end with $, and match the whole text"
        )
    tree = _Parser(pattern[1:-1]).parse()
    if isinstance(tree, _Choice):
        raise DeclarationError(
            "pattern_unanchored", "group alternatives: ^(?:a|b)$, since ^a|b$ anchors one side each"
        )
    if not (_is_decided(tree, ()) or 0 < _choices(tree) <= PATTERN_CHOICES_MAX):
        raise DeclarationError("pattern_ambiguous", "a repeat or alternative overlaps with what follows it")
    return re.compile(_write(tree)).fullmatch


def search_source(pattern: str, longest_max: int) -> str:
    """The source of an expression that finds the pattern anywhere in a text, for a match of at most ``longest_max``
    characters: a search then takes at most that many steps at each place. ``pattern`` is written without anchors. Raises
    `DeclarationError` (codes `pattern_*`), also for one that could match nothing or without end."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise DeclarationError("pattern_size", f"longer than {PATTERN_CHARS_MAX} characters")
    if pattern.startswith("^") or _ends_with_anchor(pattern):
        raise DeclarationError("pattern_anchored", "it is searched for anywhere: leave ^ and $ away")
    tree = _Parser(pattern).parse()
    decided = _is_decided(tree, ())
    if not (decided or 0 < _choices(tree) <= PATTERN_CHOICES_MAX):
        raise DeclarationError("pattern_ambiguous", "a repeat or alternative overlaps with what follows it")
    if _nullable(tree):
        raise DeclarationError("pattern_empty", "it matches where there is nothing")
    longest = _longest(tree)
    if longest is None or longest > longest_max:
        raise DeclarationError("pattern_unbounded", f"bound its repeats: at most {longest_max} characters")
    # Where one character decides there is nothing to come back to: a repeat keeps what it took, which is much cheaper to fail.
    return f"(?:{_write(tree, '+' if decided else '')})"


def _ends_with_anchor(pattern: str) -> bool:
    body = pattern[:-1]
    backslashes = len(body) - len(body.rstrip("\\"))
    return len(pattern) > 1 and pattern.endswith("$") and backslashes % 2 == 0


def _refuse(message: str) -> DeclarationError:
    return DeclarationError("pattern_syntax", message)


class _Parser:
    """Recursive descent over the body between the anchors; groups bound its depth."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.groups = 0

    def parse(self) -> _Node:
        node = self.choice()
        if self.at < len(self.text):
            raise _refuse("a closing parenthesis without its opening")
        return node

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self) -> str:
        char = self.peek()
        if not char:
            raise _refuse("ends too early")
        self.at += 1
        return char

    def choice(self) -> _Node:
        branches = [self.sequence()]
        while self.peek() == "|":
            self.at += 1
            branches.append(self.sequence())
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def sequence(self) -> _Node:
        parts: list[_Node] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.quantified())
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def quantified(self) -> _Node:
        body = self.atom()
        bounds = self.quantifier()
        if bounds is None:
            return body
        if self.peek() in ("?", "+", "*", "{"):
            raise _refuse("lazy, possessive and stacked repeats are not read")
        low, high = bounds
        return _Repeat(body, low, high)

    def quantifier(self) -> tuple[int, int | None] | None:
        char = self.peek()
        simple: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
        if char in simple:
            self.at += 1
            return simple[char]
        if char != "{":
            return None
        found = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}").match(self.text, self.at)
        if found is None:
            raise _refuse("a brace that is no repeat must be escaped")
        self.at = found.end()
        low = int(found[1])
        high = low if found[2] is None else int(found[3]) if found[3] else None
        if max(low, high or 0) > PATTERN_REPEAT_MAX or (high is not None and (high < low or high == 0)):
            raise _refuse(f"repeat bounds must rise and be at most {PATTERN_REPEAT_MAX}")
        return low, high

    def atom(self) -> _Node:
        char = self.take()
        if char == "(":
            return self.group()
        if char == "[":
            return _Chars(self.char_class())
        if char == ".":
            return _Chars(_complement(_LINE_ENDS))
        if char == "\\":
            return _Chars(self.escape())
        if char in "^$*+?{}|)]":
            raise _refuse("an operator without its operand; escape it to mean the character")
        return _Chars(((ord(char), ord(char)),))

    def group(self) -> _Node:
        self.groups += 1
        if self.groups > PATTERN_GROUPS_MAX:
            raise DeclarationError("pattern_size", f"more than {PATTERN_GROUPS_MAX} groups")
        if self.peek() == "?":
            if not self.text.startswith("?:", self.at):
                raise DeclarationError(
                    "pattern_feature", "look-around, names, flags and atomic groups are not read"
                )
            self.at += 2
        node = self.choice()
        if self.take() != ")":
            raise _refuse("a group without its end")
        return _Sequence(
            (node,)
        )  # keeps a grouped choice apart from a bare one, which the anchors don't cover

    def escape(self) -> Ranges:
        char = self.take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char.lower() in _CLASSES:
            return _complement(_CLASSES[char.lower()])
        if char in _CONTROLS:
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char in "xu":
            return self.hex_escape(2 if char == "x" else 4)
        if char.isalnum():
            raise DeclarationError(
                "pattern_feature", "back-references, boundaries and this escape are not read"
            )
        return ((ord(char), ord(char)),)

    def hex_escape(self, digits: int) -> Ranges:
        text = self.text[self.at : self.at + digits]
        if re.fullmatch(f"[0-9A-Fa-f]{{{digits}}}", text) is None:
            raise _refuse(f"needs {digits} hexadecimal digits")
        self.at += digits
        return ((int(text, 16), int(text, 16)),)

    def char_class(self) -> Ranges:
        negated = self.peek() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while (char := self.take()) != "]":
            low = self.class_member(char)
            if self.peek() != "-" or self.text[self.at + 1 : self.at + 2] == "]":
                ranges.extend(low)
                continue
            self.at += 1
            high = self.class_member(self.take())
            if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or low[0][0] > high[0][1]:
                raise _refuse("a range in a class needs two characters in order")
            ranges.append((low[0][0], high[0][1]))
        if not ranges:
            raise _refuse("an empty class")
        return _complement(tuple(ranges)) if negated else _merge(ranges)

    def class_member(self, char: str) -> Ranges:
        if char == "[":
            raise _refuse("escape an opening bracket inside a class")
        return self.escape() if char == "\\" else ((ord(char), ord(char)),)


def _merge(ranges: list[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: Ranges) -> Ranges:
    outside: list[tuple[int, int]] = []
    start = 0
    for low, high in _merge(list(ranges)):
        if low > start:
            outside.append((start, low - 1))
        start = high + 1
    if start <= _CODE_POINT_MAX:
        outside.append((start, _CODE_POINT_MAX))
    return tuple(outside)


def _overlap(left: Ranges, right: Ranges) -> bool:
    return any(a <= d and c <= b for a, b in left for c, d in right)


def _nullable(node: _Node) -> bool:
    match node:
        case _Chars():
            return False
        case _Sequence(parts):
            return all(_nullable(part) for part in parts)
        case _Choice(branches):
            return any(_nullable(branch) for branch in branches)
        case _Repeat(body, low, _):
            return low == 0 or _nullable(body)
        case _:
            assert_never(node)


def _first(node: _Node) -> Ranges:
    """The characters that a match of `node` can start with."""
    match node:
        case _Chars(ranges):
            return ranges
        case _Sequence(parts):
            starts: list[tuple[int, int]] = []
            for part in parts:
                starts.extend(_first(part))
                if not _nullable(part):
                    break
            return _merge(starts)
        case _Choice(branches):
            return _merge([pair for branch in branches for pair in _first(branch)])
        case _Repeat(body, _, _):
            return _first(body)
        case _:
            assert_never(node)


def _is_decided(node: _Node, follow: Ranges) -> bool:
    """True if one character of lookahead decides every choice in `node`, when `follow` may start what comes after."""
    match node:
        case _Chars():
            return True
        case _Sequence(parts):
            for part in reversed(parts):
                if not _is_decided(part, follow):
                    return False
                follow = _merge([*_first(part), *follow]) if _nullable(part) else _first(part)
            return True
        case _Choice(branches):
            starts = [_first(branch) for branch in branches]
            disjoint = all(not _overlap(a, b) for index, a in enumerate(starts) for b in starts[index + 1 :])
            nullable = sum(map(_nullable, branches))
            leaves_freely = nullable == 0 or (nullable == 1 and not _overlap(_first(node), follow))
            return disjoint and leaves_freely and all(_is_decided(branch, follow) for branch in branches)
        case _Repeat(body, low, high):
            if _nullable(body):
                return False
            if low != high and _overlap(_first(body), follow):
                return False
            return _is_decided(body, follow if high == 1 else _merge([*_first(body), *follow]))
        case _:
            assert_never(node)


def _longest(node: _Node) -> int | None:
    """The most characters that a match can have; None without a bound."""
    match node:
        case _Chars():
            return 1
        case _Sequence(parts):
            lengths = [_longest(part) for part in parts]
            return None if None in lengths else sum(length or 0 for length in lengths)
        case _Choice(branches):
            lengths = [_longest(branch) for branch in branches]
            return None if None in lengths else max(length or 0 for length in lengths)
        case _Repeat(body, _, high):
            length = _longest(body)
            return None if length is None or high is None else length * high
        case _:
            assert_never(node)


def _choices(node: _Node) -> int:
    """The number of ways through a node that has no true repeat; 0 if it has one. Capped well above the bound."""
    match node:
        case _Chars():
            return 1
        case _Sequence(parts):
            product = 1
            for part in parts:
                product = min(product * _choices(part), 10_000)
            return product
        case _Choice(branches):
            ways = [_choices(branch) for branch in branches]
            return 0 if 0 in ways else sum(ways)
        case _Repeat(body, low, high):
            inner = _choices(body)
            if low == high and inner == 1:
                return 1
            return inner + 1 if (low, high) == (0, 1) and inner else 0
        case _:
            assert_never(node)


def _write(node: _Node, keeps: str = "") -> str:
    match node:
        case _Chars(ranges):
            return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]"
        case _Sequence(parts):
            return "".join(_write(part, keeps) for part in parts)
        case _Choice(branches):
            return "(?:" + "|".join(_write(branch, keeps) for branch in branches) + ")"
        case _Repeat(body, low, high):
            return f"(?:{_write(body, keeps)}){{{low},{'' if high is None else high}}}{keeps}"
        case _:
            assert_never(node)
