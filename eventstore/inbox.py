"""What waits for a person: approvals with their previews, questions, effects of which nobody knows whether they happened,
and runs that stopped and can be lifted."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final, Literal

import msgspec

from ..runtime.errors import CallerError, RunNotFound, StoreError
from ..runtime.events import UnknownBelow
from ..runtime.questions import answerable_until_ms
from ..runtime.state import ApprovalState, CallState, QuestionState, State
from .forensics import unknown_effects
from .history import PinsCache
from .next_commands import goes_on_by_itself, next_commands
from .port import EventStore, RunFilter, RunRow
from .reading import read_run
from .unknown_below import still_unknown

PAGE_RUNS = 100
EFFECTS_MAX = 1_000
"""Unknown effects that one look takes account of: those that became unknown first."""
Kind = Literal["approval", "question", "stop", "unknown"]
KINDS: Final[frozenset[Kind]] = frozenset(("approval", "question", "stop", "unknown"))


class InboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One decision that is asked of a person. ``arguments``, ``preview`` are canonical JSON; ``preview`` is an approval's.
    ``requester`` may not decide where ``separate_approver`` is set, but may answer. ``expires_at_ms`` 0: never.

    Of a ``stop``, which is about no call: how it stopped, what is ``unfinished``, what to type next (unescaped, quoted for a
    shell, without the store), and the ``unknown`` effects of the run and of ended runs below it, ``unknown_more`` beyond."""

    kind: Kind
    run_id: str
    tenant: str
    agent: str
    operation_id: str
    requester: str
    separate_approver: bool
    call: str
    tool: str
    risk: str
    arguments: bytes
    since_ms: int
    approval_id: str = ""
    round: int = 0
    preview: bytes = b""
    preview_sha256: bytes = b""
    resource_version: str = ""
    policy_revision: str = ""
    expires_at_ms: int = 0
    key: bytes = b""
    question_id: str = ""
    question: str = ""
    choices: tuple[str, ...] = ()
    root_id: str = ""
    outcome: str = ""
    reason: str = ""
    detail: str = ""
    unfinished: tuple[str, ...] = ()
    next_commands: tuple[str, ...] = ()
    unknown: tuple[UnknownBelow, ...] = ()
    unknown_more: int = 0

    @property
    def decision_id(self) -> str:
        """By which it is decided, where it has an id of its own."""
        return self.approval_id or self.question_id


class Inbox(msgspec.Struct, frozen=True, kw_only=True):
    """``truncated``: there is more than was asked for; ``after`` is what ``gather_inbox`` goes on with. ``unread``: runs that are damaged or can't be read, with what is
    wrong; nothing of them is offered for a decision."""

    rows: tuple[InboxRow, ...]
    truncated: bool = False
    after: str = ""
    unread: tuple[tuple[str, str], ...] = ()


def inbox_rows(state: State, now_ms: int | None = None) -> tuple[InboxRow, ...]:
    """What this run asks of a person as of ``now_ms``, else of its last event: pure, from its state."""
    rows: list[InboxRow] = []
    if state.live and not state.cancel_reason and not state.close_requested:
        for call in state.calls.values():
            if call.phase == "waiting_approval" and call.approval is not None and not call.approval.decision:
                rows.append(_approval_row(state, call, call.approval))
            elif call.phase == "waiting_answer" and call.question is not None:
                rows.append(_question_row(state, call, call.question))
    for effect in unknown_effects(state):
        if effect.for_person:
            call = state.calls.get(effect.call) or state.unknown_calls[effect.call]
            rows.append(_row(state, call, "unknown", call.observed_at_ms))
    at_ms = state.at_ms if now_ms is None else now_ms
    if _is_escalated(state, at_ms):
        rows.append(_stop_row(state, at_ms))
    return tuple(rows)


def _is_escalated(state: State, now_ms: int) -> bool:
    """Whether the run rests at a stop until a person lifts or closes it. One that stopped for an unknown effect asks for
    that, and goes on by itself once it is settled."""
    if state.phase != "suspended" or state.cancel_reason or state.close_requested:
        return False
    return state.reason != "outcome_unknown" and not goes_on_by_itself(state, now_ms)


def _stop_row(state: State, now_ms: int) -> InboxRow:
    own = unknown_effects(state)
    for_person = [effect.call for effect in own if effect.for_person]
    return InboxRow(
        kind="stop",
        run_id=state.run_id,
        tenant=state.tenant,
        agent=state.agent,
        operation_id=state.operation_id,
        requester=state.principal,
        separate_approver=state.pins.separate_approver,
        call="",
        tool="",
        risk="",
        arguments=b"",
        since_ms=state.stopped_at_ms,
        expires_at_ms=state.deadline_at_ms if now_ms < state.deadline_at_ms else 0,
        outcome=state.outcome,
        reason=state.reason,
        detail=state.detail,
        unfinished=state.unfinished,
        next_commands=tuple(next_commands(state, for_person, now_ms)),
        unknown=(
            *(UnknownBelow(state.run_id, effect.call, effect.tool) for effect in own),
            *state.unknown_below,
        ),
        unknown_more=state.unknown_more,
    )


def _approval_row(state: State, call: CallState, approval: ApprovalState) -> InboxRow:
    return msgspec.structs.replace(
        _row(state, call, "approval", approval.requested_at_ms),
        approval_id=approval.approval_id,
        round=approval.round,
        preview=approval.preview,
        preview_sha256=approval.preview_sha256,
        resource_version=approval.resource_version,
        policy_revision=approval.policy_revision,
        expires_at_ms=approval.expires_at_ms,
    )


def _question_row(state: State, call: CallState, question: QuestionState) -> InboxRow:
    return msgspec.structs.replace(
        _row(state, call, "question", question.asked_at_ms),
        question_id=question.question_id,
        question=question.question,
        choices=question.choices,
        expires_at_ms=answerable_until_ms(state, question),
    )


def _row(state: State, call: CallState, kind: Kind, since_ms: int) -> InboxRow:
    definition = state.tools.get(call.tool)
    return InboxRow(
        kind=kind,
        run_id=state.run_id,
        tenant=state.tenant,
        agent=state.agent,
        operation_id=state.operation_id,
        requester=state.principal,
        separate_approver=state.pins.separate_approver,
        call=call.call,
        tool=call.tool,
        risk="" if definition is None else definition.risk,
        arguments=call.raw if call.arguments is None else call.arguments,
        since_ms=since_ms,
        key=call.key or b"",
    )


async def gather_inbox(
    store: EventStore,
    *,
    tenant: str | None = None,
    root_id: str | None = None,
    kinds: AbstractSet[Kind] = KINDS,
    limit: int = 100,
    after: str = "",
) -> Inbox:
    """The inbox of a tenant or of a tree of runs: the ``limit`` oldest rows of these ``kinds``, oldest first. ``after``: only
    what stands behind the place that a page before named, whatever was decided since.

    Each log is checked against its chain first. A run that is damaged or can't be read is named and doesn't hide the
    others. Runs are read in the order in which they were created, and none once all rows to be shown are older than it.
    Raises ``RunNotFound`` for a ``root_id`` that no run has: that nothing waits below it would be no answer; ``CallerError``
    (``bad_cursor``) for an ``after`` that no page named.
    """
    place = _place(after)
    if root_id is not None and await store.run(root_id) is None:
        raise RunNotFound(root_id)
    rows: list[InboxRow] = []
    unread: list[tuple[str, str]] = []
    pins = PinsCache()
    for created_at_ms, run_id, updated_at_ms in sorted(await _candidates(store, tenant, root_id, kinds)):
        if updated_at_ms < place[0]:
            continue  # whatever it asks for, it asked before that place
        if len(rows) > limit and rows[limit].since_ms < created_at_ms:
            break
        try:
            read = await read_run(store, run_id, pins)
        except StoreError as error:
            unread.append((run_id, str(error)))
            continue
        if read.damage:
            unread.append((run_id, read.damage))
            continue
        state = read.whole()
        asked = inbox_rows(state, max(store.now_ms(), state.at_ms))
        rows += [
            await _in_its_tree(store, state, row, read.row.root_id, pins)
            for row in asked
            if row.kind in kinds and _sort_key(row) > place
        ]
        rows.sort(key=_sort_key)
        del rows[limit + 1 :]  # one more than is shown says that there is more
    if len(rows) <= limit:
        return Inbox(rows=tuple(rows), unread=tuple(unread))
    del rows[limit:]
    since_ms, run_id, call = _sort_key(rows[-1])
    return Inbox(rows=tuple(rows), truncated=True, after=f"{since_ms}/{call}/{run_id}", unread=tuple(unread))


def _sort_key(row: InboxRow) -> tuple[int, str, str]:
    """A row's place in the inbox: no other row has it."""
    return row.since_ms, row.run_id, row.call


def _place(after: str) -> tuple[int, str, str]:
    """The place that a page named; one before all if none did."""
    if not after:
        return -1, "", ""
    since_ms, _, rest = after.partition("/")
    call, _, run_id = rest.partition("/")
    if not (since_ms.isascii() and since_ms.isdecimal() and len(since_ms) < 20 and run_id):
        raise CallerError("bad_cursor", "no page of the inbox named this place", path=after[:100])
    return int(since_ms), run_id, call


async def _in_its_tree(
    store: EventStore, state: State, row: InboxRow, root_id: str, pins: PinsCache
) -> InboxRow:
    """With the run at the top, and without what was settled below since."""
    unknown = row.unknown
    if unknown and state.unknown_below:
        own = tuple(one for one in unknown if one.run == state.run_id)
        unknown = (*own, *await still_unknown(store, state, pins))
    return msgspec.structs.replace(row, root_id=root_id or row.run_id, unknown=unknown)


_ASKING: Final[tuple[tuple[str, Kind], ...]] = (
    ("approval:", "approval"),
    ("answer:", "question"),
    ("person:", "unknown"),
)
"""What a run that asks a person waits for, by its index row. One that asks for several shows the first of them."""


async def _candidates(
    store: EventStore, tenant: str | None, root_id: str | None, kinds: AbstractSet[Kind]
) -> list[tuple[int, str, int]]:
    """All runs whose index or whose ledger rows say that a person is asked for, each with the time of its creation, before
    which it asked for nothing, and of its last change, since when it asked for nothing more."""
    filters = [
        RunFilter(waiting_for_prefix=prefix, tenant=tenant, limit=PAGE_RUNS)
        for prefix, kind in _ASKING
        if kind in kinds or (kind == "approval" and "question" in kinds)
    ]
    if "stop" in kinds:
        filters.append(RunFilter(status="suspended", tenant=tenant, limit=PAGE_RUNS))
    found: dict[str, tuple[int, int]] = {}
    for wanted in filters:
        after = ""
        while page := await store.runs(msgspec.structs.replace(wanted, after=after)):
            found |= {
                row.run_id: (row.created_at_ms, row.updated_at_ms) for row in page if _belongs(row, root_id)
            }
            if len(page) < PAGE_RUNS:
                break
            after = page[-1].run_id
    for effect in await store.unknown_effects(tenant, EFFECTS_MAX) if "unknown" in kinds else ():
        row = None if effect.run_id in found else await store.run(effect.run_id)
        if row is not None and _belongs(row, root_id):
            found[row.run_id] = row.created_at_ms, row.updated_at_ms
    return [(created, run_id, updated) for run_id, (created, updated) in found.items()]


def _belongs(row: RunRow, root_id: str | None) -> bool:
    return root_id in (None, row.root_id, row.run_id)


async def find_asking(store: EventStore, decision_id: str) -> str | None:
    """The run that asks for this approval or this answer; None if none does. The index shows one of what a run waits for,
    so runs that ask for several are read."""
    for prefix in ("approval:", "answer:"):
        wanted = f"{prefix}{decision_id}"
        exact = await store.runs(RunFilter(waiting_for_prefix=wanted, limit=1))
        if exact and exact[0].index.waiting_for == wanted:
            return exact[0].run_id
    for prefix in ("approval:", "answer:"):
        after = ""
        while page := await store.runs(RunFilter(waiting_for_prefix=prefix, after=after, limit=PAGE_RUNS)):
            for row in page:
                if await _asks_for(store, row.run_id, decision_id):
                    return row.run_id
            after = page[-1].run_id
    return None


async def _asks_for(store: EventStore, run_id: str, decision_id: str) -> bool:
    try:
        read = await read_run(store, run_id)
    except StoreError:
        return False  # in a run that can't be read nothing can be decided either
    state = read.state
    if state is None or read.damage:
        return False
    return any(shown.decision_id == decision_id for shown in inbox_rows(state))
