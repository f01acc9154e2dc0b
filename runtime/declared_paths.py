"""Fields of a result that a tool's declaration names, by dotted paths: its facts and its conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .canonical import JSON

FACTS_EACH_MAX: Final = 16
CONDITIONS_EACH_MAX: Final = 16
PATH_CHARS_MAX: Final = 256

is_fact_name = re.compile(r"[a-z][a-z0-9_.]{0,63}", re.ASCII).fullmatch


def field_at(data: JSON, path: str) -> tuple[JSON, bool]:
    """The value at a dotted path of members, and whether there is one."""
    for name in path.split("."):
        if not isinstance(data, Mapping) or name not in data:
            return None, False
        data = data[name]
    return data, True
