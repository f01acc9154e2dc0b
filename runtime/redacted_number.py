"""A declared value in a number: one number can be written in many ways, and a value found in one of them alone isn't found.

Looked for are the number as it is written, and its digits: without sign and point, with the zeros that its exponent adds, so
that ``4.111e3``, ``411.1e1``, ``4111e-30`` and ``4111.0`` all hold the digits 4111.
"""

from __future__ import annotations

import re
from typing import Final

DIGITS_MIN: Final = 8
"""Fewer digits of a value are looked for only as they are written: without the point they stand in too many numbers."""

number_or_text: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|(-?[0-9][0-9.eE+-]*+)', re.DOTALL)
"""Each text and each number (group 1) of JSON, also of what is almost JSON. One pass, no backtracking."""

maybe_number: Final = re.compile(rb"[0-9][0-9.e+-]{4,}+")
"""What of canonical JSON, whose texts aren't told apart here, may be a number of so many digits."""

written_as_number: Final = re.compile(r"[0-9.eE+-]+")
"""What can stand in a number as it is."""

_EXPONENT_DIGITS_MAX: Final = 10
_parts = re.compile(r"-?([0-9]+)(?:\.([0-9]*))?(?:[eE]([+-]?)0*([0-9]*))?")
_value = re.compile(r"[+-]?0*([0-9]*)(?:\.([0-9]*?)0*)?")


def digits_of_value(value: str) -> str:
    """The digits by which a declared value is known in a number: without sign, point and the zeros that a number needn't have.
    Empty for a value that is no number or has too few."""
    found = _value.fullmatch(value)
    if found is None:
        return ""
    digits = (found[1] + (found[2] or "")).lstrip("0")
    return digits if len(digits) >= DIGITS_MIN else ""


def zeros_at_the_end(digits: str) -> int:
    """So many zeros behind a number's own digits can belong to these."""
    return len(digits) - len(digits.rstrip("0"))


def digits_of_number(written: str, zeros_max: int) -> str:
    """All digits of a number that JSON writes so; of what isn't quite one, those of its beginning. ``zeros_max``: of the zeros
    that its exponent adds no more are of use."""
    found = _parts.match(written)
    if found is None:
        return ""
    whole, behind, sign, exponent = found[1], found[2] or "", found[3], found[4] or "0"
    if sign == "-":
        return whole + behind
    # ``int`` of thousands of digits raises, and no text is so long that an exponent of ten of them leaves it a fraction.
    zeros = int(exponent[:_EXPONENT_DIGITS_MAX]) - len(behind)
    return whole + behind + "0" * min(max(zeros, 0), zeros_max)
