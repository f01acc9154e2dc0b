"""The index of values that a run's results held, and the question whether a value is one of them."""

from __future__ import annotations

from .canonical import JSON
from .provenance import (
    ANYWHERE,
    CUT,
    GIVEN,
    VALUES_OF_RUN_MAX,
    Seen,
    Sources,
    Watched,
    digest,
    split_digests,
    values_at,
)
from .read_result import READ_RESULT
from .state import CallState, State


def index_given(state: State, watched: Watched) -> None:
    """Turn 0: what the caller gave was there before the first request."""
    if state.given:
        found, left_out = watched.digests(GIVEN, is_agent=False, result=state.given)
        state.values_left_out += left_out
        _index(state, found, Seen("", GIVEN, state.started_at_ms), turn=0)


def index_result(state: State, call: CallState, watched: Watched) -> None:
    """The values of a bound, successful result, by the whole of it: a large one comes with its digests, and a view without
    them says nothing.

    Nothing of the built-in ``read_result``: its offset is a number that the model chose, its text any piece of a result that
    was indexed as a whole. And nothing under a name that stands for a source of another kind.
    """
    if state.tools.get(call.tool) is READ_RESULT or call.tool in ANYWHERE:
        return
    if call.values is not None:
        found = split_digests(call.values)
        left_out = found[-1:] == [CUT]
        del found[len(found) - left_out :]
    elif call.result is None or call.met is not None or call.artifact is not None:
        return
    else:
        is_agent = call.child is not None
        found, left_out = watched.digests(call.tool, is_agent=is_agent, result=call.result)
    state.values_left_out += left_out
    if found:
        source = call.source
        at_ms = (source and source.observed_at_ms) or call.observed_at_ms or state.at_ms
        seen = Seen(call.call, call.tool, at_ms, "" if source is None else source.version)
        _index(state, found, seen, turn=call.turn)


def _index(state: State, found: list[bytes], seen: Seen, *, turn: int) -> None:
    place = len(state.sources_seen)
    state.sources_seen.append(seen)
    for one in found:
        before = state.values_seen.get(one)
        if before is not None:
            state.values_seen[one] = (before[0], place)
        elif len(state.values_seen) < VALUES_OF_RUN_MAX:
            state.values_seen[one] = (turn, place)
        else:
            state.values_left_out += 1


def seen_in(state: State, sources: tuple[str, ...], value: JSON, before_turn: int) -> Seen | None:
    """The newest result, of a source, that holds the value, if one of an earlier turn than ``before_turn`` did; else None."""
    newest = -1
    for source in sources:
        found = state.values_seen.get(digest(source, value))
        if found is not None and found[0] < before_turn:
            newest = max(newest, found[1])
    return state.sources_seen[newest] if newest >= 0 else None


def first_invented(state: State, sources: Sources, whole: JSON, before_turn: int) -> str:
    """The first of the named places in a JSON object where something stands that no source held; empty if there is none. An
    object there is such a thing: its names could say anything."""
    for name, named in sources.items():
        for value in values_at(whole, name):
            if isinstance(value, dict) or seen_in(state, named, value, before_turn) is None:
                return name
    return ""


def not_seen_text(state: State) -> str:
    """What a model is told about such a value."""
    text = "this value is in no earlier result that it may come from; look it up first"
    return f"{text} (there were more values than are kept to compare with)" if state.values_left_out else text
