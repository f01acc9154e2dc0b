"""What a goal asks of the final text itself: citations of bound results, a typed output, values that come from results.

A pure function of the state: the text is read strictly and held against the record, nothing in it is believed or repaired.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import msgspec

from .canonical import JSON
from .errors import CallerError
from .goal import Citations, Goal
from .provenance import GIVEN, RESULTS, values_at
from .read_result import READ_RESULT
from .state import State
from .strict_json import parse_value
from .values_seen import first_invented, seen_in

CITATIONS_MAX: Final = 256
"""Citations that one answer may make."""

ID_CHARS_MAX: Final = 128
SHOWN_CHARS_MAX: Final = 64


class Citation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an answer refers to: the id that it wrote, and the newest result that holds it. ``observed_at_ms`` and
    ``source_version`` are those of the result's source (empty: its tool says none)."""

    id: str
    call: str
    tool: str
    observed_at_ms: int
    source_version: str = ""


class Answer(msgspec.Struct, frozen=True):
    """A text held against what the goal asks of it. ``missing``: why it doesn't count; empty if it does."""

    output: JSON = None
    citations: tuple[Citation, ...] = ()
    missing: tuple[str, ...] = ()


NOTHING_ASKED: Final = Answer()


def asks_of_answer(goal: Goal | None) -> bool:
    """Whether the goal asks anything of the text."""
    return goal is not None and (goal.output is not None or goal.citations is not None)


def answer_of(state: State, text: str) -> Answer:
    """The text as an answer to the run's goal."""
    goal = state.pins.goal
    if goal is None or not asks_of_answer(goal):
        return NOTHING_ASKED
    output: JSON = None
    if goal.output is not None:
        try:
            output = parse_value(text.encode())
        except CallerError as error:
            return Answer(missing=(f"output: no JSON ({error.code})",))
        validator = goal.validator
        violation = None if validator is None else validator(output)
        if violation is not None:
            return Answer(missing=(f"output: {violation.path}: {violation.message}"[:256],))
        invented = first_invented(state, goal.from_results, output, state.turn + 1)
        if invented:
            return Answer(missing=(f"output: a value of {invented} is in no result",))
    if goal.citations is None:
        return Answer(output)
    made, missing = _cited(state, goal.citations, text, output)
    return Answer(output, made, missing)


def answer_missing(state: State) -> tuple[str, ...]:
    """What the goal still asks of an answer: of the last text if it was a final one, else all of it."""
    goal = state.pins.goal
    if goal is None or not asks_of_answer(goal):
        return ()
    if state.finish == "final" and state.last_text.strip():
        return answer_of(state, state.last_text).missing
    parts = (("output", goal.output), ("citations", goal.citations))
    return tuple(name for name, asked in parts if asked is not None)


def source_missing(state: State) -> str:
    """A source that every answer needs and that holds nothing and never will: its tool isn't offered, neither now nor later.
    Empty if there is none."""
    goal = state.pins.goal
    if goal is None or not asks_of_answer(goal):
        return ""
    for sources in goal.needed:
        if not any(_may_hold(state, source.partition(".")[0]) for source in sources):
            return sources[0]
    return ""


def _may_hold(state: State, source: str) -> bool:
    if source == GIVEN:
        return bool(state.given)
    ahead = {name for stage in state.pins.stages[state.stage :] for name in stage.tools}
    held = {seen.tool for seen in state.sources_seen}
    for name, tool in state.tools.items():
        if name != source and (source != RESULTS or tool.kind == "agent"):
            continue
        to_come = tool.offered and (not state.pins.stages or name in ahead)
        if tool is not READ_RESULT and (to_come or name in held):
            return True
    return False


def _cited(
    state: State, asked: Citations, text: str, output: JSON
) -> tuple[tuple[Citation, ...], tuple[str, ...]]:
    ids = _ids_in_output(output, asked.field) if asked.field else _ids_in_text(text, asked.marker)
    if len(ids) > CITATIONS_MAX:
        return (), (f"citations: more than {CITATIONS_MAX}",)
    made: list[Citation] = []
    missing: list[str] = []
    for one, is_id in ids:
        seen = None
        if is_id and len(one) <= ID_CHARS_MAX:
            seen = seen_in(state, asked.sources, one, state.turn + 1)
            if seen is None and _is_integer(one):
                seen = seen_in(state, asked.sources, int(one), state.turn + 1)
        if seen is None:
            missing.append(f"citation {one[:SHOWN_CHARS_MAX].rstrip()}: in no result")
        else:
            made.append(Citation(one, seen.call, seen.tool, seen.observed_at_ms, seen.version))
    if len(made) < asked.least and not missing:
        missing.append(f"citations: {len(made)} of {asked.least}")
    return tuple(made), tuple(missing)


_Cited = tuple[str, bool]
"""What is cited as it is shown, and whether it can be an id at all: whatever a result holds, what can't be one is none."""


def _ids_in_text(text: str, marker: str) -> list[_Cited]:
    """Each once, in order. A marker that isn't closed cites nothing that there is."""
    found = _marker(marker).findall(text)
    return list(dict.fromkeys((one.removesuffix("]"), one.endswith("]")) for one in found))


@cache
def _marker(name: str) -> re.Pattern[str]:
    return re.compile(rf"\[{re.escape(name)}:([^\]\n]*\]?)", re.IGNORECASE)


def _ids_in_output(output: JSON, field: str) -> list[_Cited]:
    """The texts and integers there, each once. Anything else cites nothing that there is."""
    found = values_at(output, field)
    return list(
        dict.fromkeys((str(one), True) if isinstance(one, str | int) else ("?", False) for one in found)
    )


def _is_integer(text: str) -> bool:
    """Whether this is how an integer is written: each has one spelling, or one result would be two citations."""
    return re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text, re.ASCII) is not None
