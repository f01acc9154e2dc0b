"""What waits for a person: approvals with their previews, questions, and effects of which nobody knows whether they
happened."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..runtime.errors import StoreError
from ..runtime.state import ApprovalState, CallState, QuestionState, State
from .forensics import unknown_effects
from .history import PinsCache
from .port import EventStore, RunFilter
from .reading import read_run

PAGE_RUNS = 100
Kind = Literal["approval", "question", "unknown_effect"]


class InboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One decision that is asked of a person. ``arguments``, ``preview`` are canonical JSON; ``preview`` is an approval's.
    ``requester`` may not decide where ``separate_approver`` is set, but may answer. ``expires_at_ms`` 0: never."""

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

    @property
    def decision_id(self) -> str:
        """By which it is decided, where it has an id of its own."""
        return self.approval_id or self.question_id


class Inbox(msgspec.Struct, frozen=True, kw_only=True):
    """``truncated``: there is more than was asked for. ``unread``: runs that are damaged or can't be read, with what is
    wrong; nothing of them is offered for a decision."""

    rows: tuple[InboxRow, ...]
    truncated: bool = False
    unread: tuple[tuple[str, str], ...] = ()


def inbox_rows(state: State) -> tuple[InboxRow, ...]:
    """What this run asks of a person now: pure, from its state."""
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
            rows.append(_row(state, call, "unknown_effect", call.observed_at_ms))
    return tuple(rows)


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
        expires_at_ms=question.expires_at_ms,
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
    store: EventStore, *, tenant: str | None = None, root_id: str | None = None, limit: int = 100
) -> Inbox:
    """The inbox of a tenant or of a tree of runs: at most ``limit`` rows, the oldest of them first.

    Each log is checked against its chain first. A run that is damaged or can't be read is named and doesn't hide the
    others.
    """
    rows: list[InboxRow] = []
    unread: list[tuple[str, str]] = []
    pins = PinsCache()
    for run_id in await _candidates(store, tenant, root_id, limit + 1):
        try:
            read = await read_run(store, run_id, pins)
        except StoreError as error:
            unread.append((run_id, str(error)))
            continue
        if read.damage:
            unread.append((run_id, read.damage))
            continue
        rows += inbox_rows(read.whole())
        if len(rows) > limit:
            break
    rows.sort(key=lambda row: (row.since_ms, row.run_id, row.call))
    return Inbox(rows=tuple(rows[:limit]), truncated=len(rows) > limit, unread=tuple(unread))


_ASKING = ("approval:", "answer:", "person:")
"""What a run that asks a person waits for, by its index row."""


async def _candidates(store: EventStore, tenant: str | None, root_id: str | None, limit: int) -> list[str]:
    """Runs whose index or whose ledger rows say that a person is asked for."""
    found: dict[str, None] = {}
    for prefix in _ASKING:
        after = ""
        while len(found) < limit:
            page = await store.runs(
                RunFilter(waiting_for_prefix=prefix, tenant=tenant, after=after, limit=PAGE_RUNS)
            )
            found |= {
                row.run_id: None for row in page if root_id in (None, row.root_id or row.run_id, row.run_id)
            }
            if len(page) < PAGE_RUNS:
                break
            after = page[-1].run_id
    for row in await store.unknown_effects(tenant, limit):
        if row.run_id not in found and await _belongs(store, row.run_id, root_id):
            found[row.run_id] = None
    return list(found)


async def _belongs(store: EventStore, run_id: str, root_id: str | None) -> bool:
    if root_id is None:
        return True
    row = await store.run(run_id)
    return row is not None and root_id in (row.root_id, row.run_id)


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
