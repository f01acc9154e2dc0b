"""Typed business facts: values that a tool's declaration names in its results, or that the host records. Never prose.

A fact is a scalar under a name; the latest value counts, with the call that it is from and the time. It comes from a far
side, so it is shown as untrusted data, and nothing decides by it. What a tool's declaration finds in a bound result is
recorded with that result, in one append. Where a result is too large to be in the log, its facts come with its report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from . import events as e
from .canonical import JSON, canonical_bytes, decode_canonical
from .commands import RecordFact
from .decision import Decision, refuse
from .declared_paths import field_at, is_fact_name
from .errors import CallerError
from .state import CallState, State
from .strict_json import parse_value

FACTS_MAX: Final = 256
"""Names of facts in one run. A tool's fact beyond them isn't recorded and stays in its result; the host's is refused."""
FACT_BYTES_MAX: Final = 1_024
FACT_RECORDS_MAX: Final = 4_096
"""How often the host records a fact in one run, whatever their names."""


def facts_in(declared: Mapping[str, str], whole: bytes) -> dict[str, bytes]:
    """The declared facts that a result (canonical JSON) holds: scalars of at most ``FACT_BYTES_MAX`` encoded bytes. A field
    that is missing, null, larger, or no scalar sets none."""
    data = decode_canonical(whole) if declared else None
    found: dict[str, bytes] = {}
    for name, path in declared.items():
        value, there = field_at(data, path)
        encoded = _encoded(value) if there and value is not None else None
        if encoded is not None:
            found[name] = encoded
    return found


def _encoded(value: JSON) -> bytes | None:
    if isinstance(value, dict | list):
        return None
    encoded = canonical_bytes(value)
    return encoded if len(encoded) <= FACT_BYTES_MAX else None


def facts_of(state: State, call: CallState) -> tuple[e.FactRecorded, ...]:
    """What the result that is about to be bound as a success sets."""
    declared = state.tools[call.tool].facts
    if not declared or call.result is None:
        return ()
    is_view = call.artifact is not None or call.met is not None
    found = call.facts if is_view else facts_in(declared, call.result)
    events: list[e.FactRecorded] = []
    known = set(state.facts)
    for name, value in found.items():
        if name in known or len(known) < FACTS_MAX:
            known.add(name)
            events.append(e.FactRecorded(name, value, call.call))
    return tuple(events)


def record_fact(state: State, command: RecordFact, now_ms: int) -> Decision:
    """The host's word on a fact, in a run that hasn't ended."""
    if state.phase == "terminated":
        return refuse("run_ended", "the run has ended")
    if is_fact_name(command.name) is None:
        return refuse(
            "fact_name", "lower case letters, digits, dots and underscores, a letter first, at most 64"
        )
    try:
        value = _encoded(parse_value(command.value))
    except CallerError as error:
        return refuse("fact_json", str(error))
    if value is None:
        return refuse(
            "fact_value", f"a text, a number, true, false or null of at most {FACT_BYTES_MAX} bytes"
        )
    if command.name not in state.facts and len(state.facts) >= FACTS_MAX:
        return refuse("facts_max", f"the run has {FACTS_MAX} facts")
    if state.facts_recorded >= FACT_RECORDS_MAX:
        return refuse("facts_max", f"facts were recorded {FACT_RECORDS_MAX} times")
    return Decision((e.FactRecorded(command.name, value, by=command.by, command_id=command.command_id),))
