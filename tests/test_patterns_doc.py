"""``docs/patterns.md`` says what the declaration of a tool accepts and refuses."""

from __future__ import annotations

import pytest

from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.schema_pattern import (
    PATTERN_CHARS_MAX,
    PATTERN_CHOICES_MAX,
    PATTERN_GROUPS_MAX,
    PATTERN_REPEAT_MAX,
    compile_pattern,
)

ACCEPTED = [
    r"^[a-z]+-[0-9]+$",
    r"^(?:red|rose)$",
    r"^\w+@\w+$",
    r"^[^.]*\.pdf$",
    r"^\d+(?:,\d+)*$",
    r"^(a|b)$",
    r"^a{2}b{1,3}c{2,}$",
    r"^.\D\W\S\s\n\x41\u00e9$",
    r"^[^,]?$",
]
REFUSED = {
    r"^[a-z]*a$": "pattern_ambiguous",
    r"^(?:a+)+$": "pattern_ambiguous",
    r"^.*\.pdf$": "pattern_ambiguous",
    r"^(?:\d+,)*\d+$": "pattern_ambiguous",
    r"[a-z]+": "pattern_unanchored",
    r"^a|b$": "pattern_unanchored",
    r"^(a)\1$": "pattern_feature",
    r"^\ba$": "pattern_feature",
    r"^(?=a)a$": "pattern_feature",
    r"^(?P<n>a)$": "pattern_feature",
    r"^a+?$": "pattern_syntax",
    r"^(?i:a)$": "pattern_feature",
}


@pytest.mark.parametrize("pattern", ACCEPTED)
def test_what_the_page_calls_accepted_is(pattern: str) -> None:
    compile_pattern(pattern)


@pytest.mark.parametrize(("pattern", "code"), REFUSED.items())
def test_what_the_page_calls_refused_is(pattern: str, code: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        compile_pattern(pattern)
    assert refused.value.code == code


def test_the_bounds_are_those_of_the_page() -> None:
    bounds = (PATTERN_CHARS_MAX, PATTERN_GROUPS_MAX, PATTERN_REPEAT_MAX, PATTERN_CHOICES_MAX)
    assert bounds == (256, 16, 4096, 64)
