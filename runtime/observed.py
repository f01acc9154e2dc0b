"""From which version of its source a result came, and whether that is a version that its run may mix with the others.

A handler returns ``Observed(value, source_version=...)``. Reads that declare one ``same_version`` are a group: within one
turn (or one run) their results come from one version of the source. The first success says which; a later read of another
version is a failed one, ``version_conflict``, tried again within its attempts, each of which is told the version to read
(``ctx.same_version``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from .events import Source

if TYPE_CHECKING:
    from .state import CallState, State

SOURCE_VERSION_CHARS_MAX: Final = 256
OBSERVED_AT_MS_MAX: Final = 2**53 - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observed(Generic[T]):
    """A handler's result with its source. ``source_version``: an etag, revision or snapshot name, at most 256 characters,
    compared exactly; empty if there is none. ``observed_at_ms``: when the source was read, in milliseconds since 1970; 0
    for when the result arrived. What isn't of that kind makes the result ``output_invalid``."""

    value: T
    source_version: str = ""
    observed_at_ms: int = 0


def source_of(observed: Observed[object]) -> Source | None:
    """The source as it is recorded; None if nothing was said of it. Raises ``ValueError`` for what a log can't hold."""
    version: object = observed.source_version
    at_ms: object = observed.observed_at_ms
    if type(version) is not str or len(version) > SOURCE_VERSION_CHARS_MAX:
        raise ValueError("source_version")
    if type(at_ms) is not int or not 0 <= at_ms <= OBSERVED_AT_MS_MAX:
        raise ValueError("observed_at_ms")
    try:
        version.encode()
    except UnicodeEncodeError as error:
        raise ValueError("source_version") from error
    return Source(version, at_ms) if version or at_ms else None


def version_to_read(state: State, call: CallState) -> str:
    """Which version the group of this call has read so far; empty if it has read none, or the call is of no group."""
    definition = state.tools[call.tool]
    group = definition.same_version
    if not group:
        return ""
    if definition.same_version_in == "run" and group in state.run_versions:
        return state.run_versions[group]
    # Also what is still to be judged: nothing else beside it is taken. What was withheld has been read by nobody.
    for other in state.calls.values():
        if other is call or other.outcome != "succeeded" or other.source is None or other.status == "error":
            continue
        of = state.tools[other.tool]
        if of.same_version == group and of.same_version_in == definition.same_version_in:
            return other.source.version
    return ""


def version_refusal(state: State, call: CallState, source: Source | None) -> str:
    """Why a result from this source isn't taken; empty if it is."""
    definition = state.tools.get(call.tool)
    if definition is None or not definition.same_version:
        return ""
    if source is None or not source.version:
        return "version_missing"
    group = version_to_read(state, call)
    return "version_conflict" if group and group != source.version else ""


REFUSED_VERSION: Final = {
    "version_missing": "the result does not say from which version of its source it came, and it must",
    "version_conflict": "the source has changed: this result is of another version than what was read with it; "
    "read all of it again",
}
