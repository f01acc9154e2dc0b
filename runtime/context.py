"""The context: what of its history a run sends, under ``context_tokens``.

While everything fits, the context is the whole history. When the next request doesn't fit, whole old turns leave it, the
oldest first, and their digests take their place (``digest``); ``context_compacted`` says which, and the fold
does it. A turn goes or stays as one: an assistant item with its calls, its continuation, and all their results; one that
the provider paused, with the one that continues it. What people and the runtime said is never touched, and never the
newest turn. If that alone doesn't fit, nothing is cut: the run stops, ``context_exhausted``.

A compaction costs a pass over the context and halves what can go, so a long run pays for each item a bounded number of
times: once when it becomes a digest, once more if the digests lose their quotes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from . import events as e
from .canonical import CanonicalRefused, canonical_bytes
from .definitions import tools_offered
from .digest import (
    DIGEST_REVISION,
    DIGESTS_HEAD,
    fact_line,
    item_of,
    lines_in,
    result_line,
    said_line,
    terse,
)
from .errors import BugError, HistoryRefused
from .model import AssistantCall, AssistantItem, DigestItem, Item, ModelInput, NoteItem, ResultItem, UserItem
from .read_result import READ_RESULT
from .request_head import request_head
from .state import ZERO_DIGEST, State
from .strict_json import JsonRefused, parse_object
from .tool_definition import ToolDefinition

BYTES_PER_TOKEN_ESTIMATE: Final = 3
ITEM_OVERHEAD_TOKENS: Final = 8
NEWEST_TURNS_KEPT: Final = 3
"""Turns that stay whole as long as they fit. The newest one always stays."""
DIGESTS_OVERHEAD_BYTES: Final = len(DIGESTS_HEAD) + 16

encode_item = msgspec.msgpack.Encoder().encode
"""The bytes of an item that are counted and hashed."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """One turn in a list of items: from ``start`` up to, not including, ``end``."""

    start: int
    end: int


class Compacted(msgspec.Struct, frozen=True):
    """A context after a compaction, and what is counted and hashed of it."""

    items: list[Item]
    history_bytes: int
    rolling_sha256: bytes


# --- a request -----------------------------------------------------------------------------------------------------


def model_input(state: State) -> ModelInput:
    """The open request, as the adapter gets it. The only place where one is made: what a log's state says of an old
    request is what was sent."""
    items: Sequence[Item] = state.items
    if len(state.items) != state.requested_items:
        items = state.items[: state.requested_items]
    side = state.reserved_side
    return ModelInput(
        run_id=state.run_id,
        turn=state.turn,
        attempt=state.model_attempt,
        model=state.pins.model,
        system=state.pins.system,
        items=items,
        tools=tools_offered(state),
        output_tokens_max=state.reserved_output - (0 if side is None else side.output_tokens),
        request_sha256=state.request_sha256,
        hosted=state.pins.hosted,
        side_attempts_max=0 if side is None else side.attempts,
    )


def request_sha256(
    head_sha256: bytes, rolling_sha256: bytes, turn: int, items: int, output_max: int
) -> bytes:
    """``model_request_sha256``: the head that all requests share, the rolling hash of the items, what is asked for."""
    return sha256(head_sha256 + rolling_sha256 + b"%d/%d/%d" % (turn, items, output_max)).digest()


def rolled(items: Sequence[Item], rolling_sha256: bytes = ZERO_DIGEST) -> tuple[bytes, int]:
    """The rolling hash over these items, and their bytes."""
    size = 0
    for item in items:
        encoded = encode_item(item)
        rolling_sha256 = sha256(rolling_sha256 + encoded).digest()
        size += len(encoded)
    return rolling_sha256, size


# --- the budget ----------------------------------------------------------------------------------------------------


def tokens_bound(state: State, history_bytes: int, items: int, head_bytes: int) -> int:
    """Upper bound (``"bytes"``: a token is at least a byte) or estimate of a request's input tokens."""
    size = history_bytes + head_bytes
    if state.limits.token_bound == "estimate":
        size = -(-size // BYTES_PER_TOKEN_ESTIMATE)
    return size + ITEM_OVERHEAD_TOKENS * items


def input_tokens_bound(state: State) -> int:
    """The same of the next request, as the context stands."""
    return tokens_bound(state, state.counters.history_bytes, len(state.items), state.request_head_bytes)


def fits(state: State) -> bool:
    """Whether the next request fits the context and its output reserve."""
    limits = state.limits
    return (
        input_tokens_bound(state) + limits.output_tokens_per_request <= limits.context_tokens
        and state.counters.history_bytes <= limits.history_bytes
    )


# --- compaction ----------------------------------------------------------------------------------------------------


def compaction(state: State) -> e.ContextCompacted | None:
    """What makes the next request fit: as few of the oldest turns as leave the context half empty, then more; then older
    digests without their quotes. None if what must stay doesn't fit."""
    spans = turns_of(state.items)
    if len(spans) < 2 and not any(isinstance(item, DigestItem) for item in state.items):
        return None
    room = _Room(state)
    until = _until(state, spans, room)
    for without_quotes in (False, True):
        if without_quotes:
            until = spans[-2].end if len(spans) > 1 else 0
        elif not until:
            continue
        made = compacted(state, until, without_quotes)
        if room.has(made.history_bytes, len(made.items)):
            return _event(state, until, without_quotes, made)
    return None


def forced_compaction(state: State) -> e.ContextCompacted | None:
    """For a provider that says the request is too long, by whatever it counts: all turns but the newest become digests; if
    they are, digests lose their quotes. None if nothing gets smaller by it, so this comes to an end."""
    spans = turns_of(state.items)
    until = spans[-2].end if len(spans) > 1 else 0
    for without_quotes in (False, True) if until else (True,):
        made = compacted(state, until, without_quotes)
        if made.history_bytes < state.counters.history_bytes:
            return _event(state, until, without_quotes, made)
    return None


def _event(state: State, until: int, without_quotes: bool, made: Compacted) -> e.ContextCompacted:
    return e.ContextCompacted(
        number=state.compactions + 1,
        until=until,
        terse=without_quotes,
        items=len(made.items),
        history_bytes=made.history_bytes,
        context_sha256=made.rolling_sha256,
        revision=DIGEST_REVISION,
    )


class _Room:
    """What a compacted context may take, with ``read_result`` among the tools."""

    def __init__(self, state: State) -> None:
        limits = state.limits
        self._state = state
        self._tokens = limits.context_tokens - limits.output_tokens_per_request
        self._bytes = limits.history_bytes
        tools = tools_offered(state)
        if not state.reading and reads_on(state):
            tools = (*tools, READ_RESULT)
        _, self._head_bytes = request_head(state.pins, tools)

    def has(self, history_bytes: int, items: int, *, share: int = 1) -> bool:
        """Whether so much fits the budget, or its half with ``share=2``."""
        tokens = tokens_bound(self._state, history_bytes, items, self._head_bytes)
        return tokens <= self._tokens // share and history_bytes <= self._bytes // share


def _until(state: State, spans: Sequence[Span], room: _Room) -> int:
    """Where the turns that go end; 0 if none does. Judged from above: a digest is counted with an item of its own."""
    size, count, until = state.counters.history_bytes, len(state.items), 0
    lines = _Lines(state)
    for number, span in enumerate(spans[:-1], 1):
        recent = number > len(spans) - NEWEST_TURNS_KEPT
        if room.has(size, count, share=1 if recent else 2):
            break
        part = state.items[span.start : span.end]
        digests = [line for item in part for line in lines.of(item)]
        size += sum(len(line) + 1 for line in digests) + DIGESTS_OVERHEAD_BYTES
        size -= sum(len(encode_item(item)) for item in part)
        count += 1 - len(part)
        until = span.end
    return until


def compacted(state: State, until: int, without_quotes: bool) -> Compacted:
    """The context once the turns before ``until`` are digests. A pure function of the state; changes nothing."""
    lines = _Lines(state)
    kept: list[Item] = []
    open_lines: list[bytes] = []

    def close() -> None:
        new = terse(open_lines, lines.is_latest) if without_quotes else open_lines
        if new:
            kept.append(item_of(new))
        open_lines.clear()

    for number, item in enumerate(state.items):
        if isinstance(item, DigestItem):
            open_lines.extend(lines_in(item))
        elif number >= until or isinstance(item, UserItem | NoteItem):
            close()
            kept.append(item)
        else:
            open_lines.extend(lines.of(item))
    close()
    rolling, size = rolled(kept)
    return Compacted(kept, size, rolling)


def check_compaction(state: State, event: e.ContextCompacted) -> Compacted:
    """The compaction that a log records, made again. Raises ``HistoryRefused`` for digests of another revision, which this
    interpreter doesn't make, and ``BugError`` if it comes out otherwise."""
    if event.revision != DIGEST_REVISION:
        raise HistoryRefused(
            "digest_revision",
            f"compaction {event.number} has digests of revision {event.revision[:32]!r}, not {DIGEST_REVISION!r}",
        )
    ends = {span.end for span in turns_of(state.items)[:-1]}
    if event.number != state.compactions + 1 or event.until not in ends | {0}:
        raise BugError("compaction_range", f"compaction {event.number} up to item {event.until}")
    made = compacted(state, event.until, event.terse)
    counted = (len(made.items), made.history_bytes, made.rolling_sha256)
    if counted != (event.items, event.history_bytes, event.context_sha256):
        raise BugError("compaction_differs", f"compaction {event.number} comes out otherwise")
    return made


def turns_of(items: Sequence[Item]) -> list[Span]:
    """The turns, oldest first: assistant items up to the first with calls, and all its results."""
    spans: list[Span] = []
    at = 0
    while at < len(items):
        start = at
        while at < len(items) and isinstance(item := items[at], AssistantItem):
            at += 1
            if item.calls:
                break
        while start < at < len(items) and isinstance(items[at], ResultItem):
            at += 1
        if at > start:
            spans.append(Span(start, at))
        else:
            at += 1
    return spans


def reads_on(state: State) -> bool:
    """Whether ``read_result`` can be offered: not where the application has a tool of that name."""
    return all(tool.name != READ_RESULT.name for tool in state.pins.tools)


def subject(asked: AssistantCall | None, definition: ToolDefinition | None) -> bytes:
    """What a call was about: the fields of its tool's key, else its arguments without the incidental ones. Empty where they
    can't be read or a key field is missing."""
    try:
        arguments = parse_object(asked.arguments) if asked is not None else {}
        if definition is None or not arguments:
            return canonical_bytes(arguments) if arguments else b""
        if not isinstance(definition.key, tuple):
            return definition.intent_sha256(arguments)
        if not all(name in arguments for name in definition.key):
            return b""
        return canonical_bytes({name: arguments[name] for name in definition.key})
    except (JsonRefused, CanonicalRefused):
        return b""


class _Lines:
    """The digests of one pass over a context, item by item and in order."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._asked: dict[str, AssistantCall] = {}
        self._subjects: dict[str, bytes] = {}
        self._succeeded: Counter[tuple[str, bytes]] = Counter()
        self._note_successes()
        self._facts: dict[str, list[str]] = {}
        for name, fact in state.facts.items():
            if fact.call:
                self._facts.setdefault(fact.call, []).append(name)

    def _note_successes(self) -> None:
        """What succeeded of the tools that failed too, by what each call was about."""
        items, tools = self._state.items, self._state.tools
        failed = {item.name for item in items if isinstance(item, ResultItem) and item.is_error}
        if not failed:
            return
        asked: dict[str, AssistantCall] = {}
        for item in items:
            if isinstance(item, AssistantItem):
                asked = {call.call_id: call for call in item.calls}
            elif isinstance(item, ResultItem) and item.name in failed:
                about = subject(asked.get(item.call_id), tools.get(item.name))
                self._subjects[item.call_id] = about
                if not item.is_error:
                    self._succeeded.update((item.name, one) for one in {about, b""})

    def _resolved(self, item: ResultItem) -> bool:
        """Whether a later call of its tool about the same succeeded; a call of which nobody can say what it was about is
        resolved by any."""
        about = self._subjects.get(item.call_id)
        if about is None:
            return False
        if not item.is_error:
            self._succeeded.subtract((item.name, one) for one in {about, b""})
        return self._succeeded[item.name, about] > 0 and item.call_id not in self._state.unknown_calls

    def is_latest(self, name: str, seq: int) -> bool:
        """Whether a fact's value is the one that counts."""
        fact = self._state.facts.get(name)
        return fact is not None and fact.seq == seq

    def of(self, item: Item) -> Iterator[bytes]:
        """What stays of this one."""
        if isinstance(item, AssistantItem):
            self._asked = {call.call_id: call for call in item.calls}
            if item.text.strip():
                yield said_line(item.text)
        elif isinstance(item, ResultItem):
            state = self._state
            yield result_line(
                self._asked.get(item.call_id),
                item,
                state.tools.get(item.name),
                resolved=self._resolved(item),
                approval=state.approvals.get(item.call_id, ""),
            )
            for name in self._facts.get(item.call_id, ()):
                fact = state.facts[name]
                yield fact_line(name, fact.value, fact.call, fact.at_ms, fact.seq)
