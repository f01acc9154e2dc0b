"""What must not be stored or shown, as an application declares it, and taking it out of what enters.

It is done once, where a text enters (a tool's answer, a model's turn, a person's words), before it is canonical, hashed,
judged or stored: ledger, evidence and replay know the redacted text alone. What was taken out is marked
``[redacted:NAME]``.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, cast
from urllib.parse import quote

from .canonical import JSON, canonical_bytes, child_path
from .declared_shape import mapped, several
from .errors import DeclarationError
from .redacted_number import (
    digits_of_number,
    digits_of_value,
    maybe_number,
    number_or_text,
    written_as_number,
    zeros_at_the_end,
)
from .schema_pattern import search_source
from .secret_arguments import is_reference, is_secret_name

VALUES_MAX: Final = 100
PATTERNS_MAX: Final = 16
FIELDS_MAX: Final = 100
VALUE_CHARS_MIN: Final = 4
"""A shorter one stands for something else in too many texts, and where it is missing would give it away."""

VALUE_CHARS_MAX: Final = 8_192
MATCH_CHARS_MAX: Final = 128
"""The longest match of a pattern; a search takes at most so many steps at each place of a text."""

ENCODED_CHARS_MIN: Final = 8
REVISION_CHARS_MAX: Final = 128

_percent = re.compile(r"%[0-9A-F]{2}")
_MARKED: Final = "[redacted:"
_SHIFTS: Final = (0, 1, 2)


def marker(name: str) -> str:
    """What stands where something was taken out."""
    return f"{_MARKED}{name}]"


class Redaction:
    """A declaration. ``values``: name -> the text itself (from the environment, say), 4 to 8,192 characters; found as it
    is, and JSON-escaped, percent-encoded or in base64. ``patterns``: name -> an expression without anchors, of the safe kind
    that schemas take and with bounded repeats (at most 128 characters a match). ``fields``: names of members, in any
    letter case and at any depth, whose values are taken out whatever they are. ``revision`` is pinned in each run.

    Its ``repr`` shows names only. It pickles with its values, for the processes of the application. Raises
    ``DeclarationError``, which never quotes a value.
    """

    __slots__ = ("_patterns", "_values", "fields", "revision")

    def __init__(
        self,
        *,
        values: Mapping[str, str] | None = None,
        patterns: Mapping[str, str] | None = None,
        fields: tuple[str, ...] | list[str] | frozenset[str] = (),
        revision: str = "1",
    ) -> None:
        self._values = mapped({} if values is None else values, "redact.values", "redaction_type")
        self._patterns = mapped({} if patterns is None else patterns, "redact.patterns", "redaction_type")
        names = several(fields, "redact.fields", "redaction_name")
        self.fields = frozenset(str(name).lower() for name in names)
        self.revision = revision
        for what, given, most in (
            ("values", self._values, VALUES_MAX),
            ("patterns", self._patterns, PATTERNS_MAX),
            ("fields", self.fields, FIELDS_MAX),
        ):
            if len(given) > most:
                raise DeclarationError("redaction_size", f"at most {most}", path=f"redact.{what}")
            if not all(is_secret_name(name) for name in given):
                raise DeclarationError(
                    "redaction_name",
                    "a name is a letter or _, then letters, digits and _.-, at most 64",
                    path=f"redact.{what}",
                )
        if not isinstance(cast(object, revision), str) or not 0 < len(revision) <= REVISION_CHARS_MAX:
            raise DeclarationError(
                "redaction_revision", f"text of 1 to {REVISION_CHARS_MAX} characters", path="redact.revision"
            )
        self.redactor()

    def redactor(self) -> Redactor:
        """What does it. Made anew each time; keep it."""
        return Redactor(self._values.items(), self._patterns, self.fields)

    def __repr__(self) -> str:
        return (
            f"Redaction(values={sorted(self._values)}, patterns={sorted(self._patterns)}, "
            f"fields={sorted(self.fields)}, revision={self.revision!r})"
        )


class Redactor:
    """Immutable. Deterministic, and stable: what it gave back it gives back unchanged. A text costs one search for each
    value and pattern; a result one for each value, and a walk over its members where something is found or there are
    patterns or fields."""

    __slots__ = (
        "_digits",
        "_fields",
        "_in_json",
        "_markers",
        "_named",
        "_needles",
        "_of_numbers",
        "_patterns",
        "_search",
        "_values",
        "_zeros",
    )

    def __init__(
        self,
        values: Iterable[tuple[str, str]],
        patterns: Mapping[str, str],
        fields: frozenset[str] = frozenset(),
    ) -> None:
        self._values = tuple(values)
        self._patterns = dict(patterns)
        self._fields = fields
        names = (name for name, _ in self._values)
        markers = {marker(name) for name in (*names, *patterns, *fields, *_WORDS)}
        self._markers = frozenset(markers)
        named: dict[str, str] = {}
        for name, value in self._values:
            _refuse_value(name, value, markers)
            for form in _forms(value):
                named.setdefault(form, marker(name))
        self._named = named
        self._needles = tuple(sorted(named, key=len, reverse=True))
        self._in_json = tuple(json.dumps(form, ensure_ascii=False)[1:-1].encode() for form in self._needles)
        self._digits = tuple(
            (digits, marker(name)) for name, value in self._values if (digits := digits_of_value(value))
        )
        self._zeros = max((zeros_at_the_end(digits) for digits, _ in self._digits), default=0)
        self._of_numbers = bool(
            self._digits or patterns or any(map(written_as_number.fullmatch, self._needles))
        )
        kept = _either(markers)
        self._search = tuple(
            (re.compile(source), re.compile(f"(?:{kept})|({source})"), _marked_by(marker(name)))
            for name, source in ((name, _source(name, pattern)) for name, pattern in patterns.items())
        )

    def with_values(self, values: Iterable[tuple[str, str]]) -> Redactor:
        """The same, which takes these out as well, by (name, value); a name may have several. Raises ``DeclarationError`` for
        what can't be a value."""
        return Redactor((*self._values, *values), self._patterns, self._fields)

    def text(self, text: str) -> str:
        """The text without what is declared."""
        found = [needle for needle in self._needles if needle in text]
        if found:
            # An expression of all of them would try each at each place of the text: of a large one, for seconds.
            kept = _either(one for one in self._markers if one in text) if _MARKED in text else ""
            forms = _either(found)
            text = re.sub(f"({forms})" if not kept else f"(?:{kept})|({forms})", self._named_for, text)
        for plain, search, marked in self._search:
            if plain.search(text) is not None:
                text = search.sub(marked, text)
        return text

    def said(self, text: object) -> object:
        """What other people's code gave as a text: that without what is declared. What is none stays as it is."""
        return self.text(text) if isinstance(text, str) else text

    def json(self, value: JSON) -> JSON:
        """The value without what is declared in its texts, numbers and the names of its members; itself if there is nothing.
        Raises ``CanonicalRefused``."""
        encoded = canonical_bytes(value)  # also the bound of its depth
        found = tuple(
            needle for needle, written in zip(self._needles, self._in_json, strict=True) if written in encoded
        )
        digits = self._digits and self._digits_in(
            written[0].decode() for written in maybe_number.finditer(encoded)
        )
        if not self._search and not self._fields and not found and not digits:
            return value
        redacted, path = self._of(found, digits)._walk(value, "$", None)
        return redacted if path else value

    def arguments(self, arguments: dict[str, JSON], secret: tuple[str, ...]) -> tuple[dict[str, JSON], str]:
        """Proposed arguments without what is declared, and the path of the first place; empty if there was nothing. A
        reference is no secret unless what is declared stands in its name; nothing else but null may be the value of a
        ``secret`` argument, whatever its type."""
        members = {name: value for name, value in arguments.items() if name not in secret}
        kept, found = self._members(members, "$", is_reference)
        for name in secret:
            value = arguments.get(name)
            if value is not None and not (is_reference(value) and self.text(cast(str, value)) == value):
                value = marker(ARGUMENT)
                found = found or child_path("$", name)
            if name in arguments:
                kept[name] = value
        return kept, found

    def number(self, written: str) -> str:
        """A number as JSON writes it; a text without what is declared if that stands in it, however it is written."""
        text = self.text(written)
        if text == written and self._digits:
            digits = digits_of_number(written, self._zeros)
            return next((mark for value, mark in self._digits if value in digits), written)
        return text

    def numbers(self, text: str) -> str:
        """JSON, or what is almost JSON, in which the numbers that hold something declared are texts without it. What reads a
        number keeps less of it than is written, so this comes before; texts are left to ``json`` and ``arguments``."""
        if not self._of_numbers:
            return text
        written = [found[1] for found in number_or_text.finditer(text) if found[1] is not None]
        # All at once: looked for in each of them, a hundred values are looked for thousands of times.
        joined = "\n".join(written)
        if self.text(joined) == joined and not self._digits_in(written):
            return text
        return number_or_text.sub(self._number_found, text)

    def names_field(self, text: str) -> bool:
        """Whether a text that is no JSON names a declared field."""
        lower = text.lower()
        return any(name in lower for name in self._fields)

    def _of(self, needles: tuple[str, ...], digits: tuple[tuple[str, str], ...]) -> Redactor:
        """The same, for a value of many texts and numbers that holds no others."""
        if needles == self._needles and digits == self._digits:
            return self
        only = copy.copy(self)
        only._needles, only._digits = needles, digits
        return only

    def _digits_in(self, written: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """The values whose digits stand in some of these numbers, whose text needn't be theirs."""
        if not self._digits:
            return ()
        joined = "\n".join(digits_of_number(one, self._zeros) for one in written)
        return tuple(each for each in self._digits if each[0] in joined)

    def _number_found(self, found: re.Match[str]) -> str:
        written = found[1]
        if written is None or (text := self.number(written)) == written:
            return found[0]
        return json.dumps(text)

    def _named_for(self, found: re.Match[str]) -> str:
        text = found[0]
        return text if found[1] is None else self._named[text]

    def _walk(self, value: JSON, path: str, spared: Callable[[JSON], bool] | None) -> tuple[JSON, str]:
        """The value, and where the first change is. ``spared``: values of declared fields that may stay."""
        if isinstance(value, str):
            text = self.text(value)
            return (text, path) if text != value else (value, "")
        if isinstance(value, dict):
            return self._members(value, path, spared)
        if isinstance(value, list):
            items: list[JSON] = []
            first = ""
            for index, item in enumerate(value):
                kept, found = self._walk(item, f"{path}[{index}]", spared)
                items.append(kept)
                first = first or found
            return items, first
        if isinstance(value, int | float) and not isinstance(value, bool):
            digits = canonical_bytes(value).decode()
            text = self.number(digits)
            return (text, path) if text != digits else (value, "")
        return value, ""

    def _members(
        self, value: dict[str, JSON], path: str, spared: Callable[[JSON], bool] | None
    ) -> tuple[dict[str, JSON], str]:
        members: dict[str, JSON] = {}
        first = ""
        for name, item in value.items():
            shown = _free(self.text(name), members)
            below = child_path(path, shown)
            lower = name.lower()
            hidden = lower in self._fields and item not in (None, marker(lower))
            if hidden and not (spared is not None and spared(item)):
                kept, found = cast(JSON, marker(lower)), below
            else:
                kept, found = self._walk(item, below, spared)
            members[shown] = kept
            first = first or found or (below if shown != name else "")
        return members, first


ARGUMENT: Final = "argument"
"""The name in the marker of a secret argument that came as itself and not as a reference."""

UNREADABLE: Final = "unreadable"
"""The name in the marker of arguments that are no JSON and may hold what is declared."""

_WORDS: Final = (ARGUMENT, UNREADABLE)


def _refuse_value(name: str, value: object, markers: set[str]) -> None:
    if not isinstance(value, str) or not VALUE_CHARS_MIN <= len(value) <= VALUE_CHARS_MAX:
        raise DeclarationError(
            "redaction_value", f"a text of {VALUE_CHARS_MIN} to {VALUE_CHARS_MAX} characters", path=name
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DeclarationError("redaction_value", "it holds a lone surrogate", path=name) from None
    if any(value in one for one in markers):
        raise DeclarationError("redaction_value", "it is a part of a name, or of a marker", path=name)


def _source(name: str, pattern: object) -> str:
    try:
        if not isinstance(pattern, str):
            raise DeclarationError("pattern_syntax", "a pattern is a text")
        return search_source(pattern, MATCH_CHARS_MAX)
    except DeclarationError as error:
        raise DeclarationError(error.code, error.message, path=f"redact.patterns.{name}") from error


def _forms(value: str) -> Iterator[str]:
    """The value, and how it is written inside other texts."""
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    for safe in ("", "/", "!$&'()*+,;=:@", "!$&'()*+,;=:@/?"):
        written = quote(value, safe=safe)
        yield written
        yield _percent.sub(lambda found: found[0].lower(), written)
    data = value.encode()
    for shift in _SHIFTS:
        # What precedes it in the same base64 text moves it by so many bytes; characters that it shares with its neighbours
        # are left out.
        encoded = base64.b64encode(bytes(shift) + data).rstrip(b"=")
        start = -(-shift * 8 // 6)
        end = (shift + len(data)) * 8 // 6
        inner = encoded[start:end].decode()
        if len(inner) >= ENCODED_CHARS_MIN:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")


def _either(texts: Iterable[str]) -> str:
    """An expression for any of them, the longest first."""
    return "|".join(re.escape(one) for one in sorted(texts, key=lambda one: (-len(one), one)))


def _free(name: str, members: dict[str, JSON]) -> str:
    """A name that no member has yet: two that differed may be one once redacted."""
    if name not in members:
        return name
    number = 2
    while f"{name}#{number}" in members:
        number += 1
    return f"{name}#{number}"


def _marked_by(mark: str) -> Callable[[re.Match[str]], str]:
    def marked(found: re.Match[str]) -> str:
        return found[0] if found[1] is None else mark

    return marked


NOTHING: Final = Redactor((), {})
