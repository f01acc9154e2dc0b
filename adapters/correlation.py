"""One id for one attempt at a model request, for both ends' logs: run, turn and attempt in a header.

OpenAI keeps it with its own request id; servers that don't know it ignore it. It says nothing about what is asked.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

REQUEST_ID_HEADER: Final = "x-client-request-id"
_pattern = re.compile(r"([A-Za-z0-9_.:-]{1,200})/t([0-9]{1,9})/a([0-9]{1,9})").fullmatch


class Attempt(NamedTuple):
    """Which attempt at which turn of which run."""

    run: str
    turn: int
    attempt: int


def request_id(run: str, turn: int, attempt: int) -> str:
    """The header's value; empty where a run's id doesn't fit into a header."""
    text = f"{run}/t{turn}/a{attempt}"
    return text if _pattern(text) else ""


def read_request_id(text: str) -> Attempt | None:
    """What ``request_id`` wrote, None for anything else."""
    found = _pattern(text)
    return Attempt(found[1], int(found[2]), int(found[3])) if found else None
