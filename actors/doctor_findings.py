"""What ``doctor`` says: one finding a subject, each with what it means and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """``fail``: a promise doesn't hold here, or the cluster is open to others. ``warn``: it holds, but something about it
    will surprise. ``found`` is what is the case, ``means`` why it matters, ``do`` what changes it; both are empty for
    most of what is ``ok``."""

    name: str
    level: Level
    found: str
    means: str = ""
    do: str = ""


def ok(name: str, found: str, means: str = "", do: str = "") -> Finding:
    return Finding(name, "ok", found, means, do)


def warn(name: str, found: str, means: str, do: str) -> Finding:
    return Finding(name, "warn", found, means, do)


def fail(name: str, found: str, means: str, do: str) -> Finding:
    return Finding(name, "fail", found, means, do)


def as_row(finding: Finding) -> Mapping[str, str]:
    return {
        "level": finding.level,
        "name": finding.name,
        "found": finding.found,
        "means": finding.means,
        "do": finding.do,
    }
