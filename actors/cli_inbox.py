"""Decisions of a person: the inbox, approve and reject, and settling an unknown effect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from ..runtime.commands import Approve, Reject, ResolveCall
from ..runtime.errors import HistoryRefused, LogDamaged
from .cli_inbox_rows import INBOX_COLUMNS, print_row, row_view
from .cli_output import DAMAGED, OK, Refused
from .cli_session import Session, approver, new_command_id, on_store, say_who_goes_on
from .cli_text import quoted, safe_json, safe_text, shown_json

if TYPE_CHECKING:
    from ..eventstore.codec import Recorded
    from ..eventstore.inbox import InboxRow, Kind
    from ..eventstore.port import EventStore
    from ..runtime.state import State

LOGS_SEARCHED_MAX = 1_000

_is_approval_id = re.compile(r"ap_[0-9a-f]{16}").fullmatch


@click.command()
@click.option("--root", "root_id", metavar="RUN", help="Only this run and the runs below it.")
@click.option("--kind", type=click.Choice(["approval", "question", "stop", "unknown"]), help="Only these.")
@click.option("--tenant")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True)
@click.option("--after", default="", metavar="PLACE", help="Go on where the page before ended.")
@on_store
async def inbox(
    session: Session, root_id: str | None, kind: Kind | None, tenant: str | None, limit: int, after: str
) -> int:
    """What waits for a person: approvals with what would be done, questions, effects of which nobody knows, and runs that
    stopped, with what lifts them."""
    from ..eventstore.inbox import KINDS, gather_inbox

    out = session.out
    kinds = KINDS if kind is None else frozenset((kind,))
    found = await gather_inbox(
        session.store, tenant=tenant, root_id=root_id, kinds=kinds, limit=limit, after=after
    )
    for run_id, error in found.unread:
        out.alarm(f"DAMAGED: run {safe_text(run_id)}, nothing of it can be decided: {safe_text(error)}")
    if out.form == "table":
        for row in found.rows:
            print_row(out, row, store=session.store_option)
        out.line(f"{len(found.rows)} waiting." if found.rows else "Nothing waits for a person.")
    else:
        damaged = [
            {"kind": "damaged", "id": run_id, "run": run_id, "problem": error}
            for run_id, error in found.unread
        ]
        out.rows(INBOX_COLUMNS, [*damaged, *(row_view(row) for row in found.rows)])
    if found.truncated:
        out.alarm(f"There are more: --after {quoted(found.after)}")
    return DAMAGED if found.unread else OK


class _Asked(NamedTuple):
    """Which approval a name means. ``row`` is None if it was decided before, by this very command."""

    run_id: str
    approval_id: str
    row: InboxRow | None


async def _find(session: Session, name: str, command_id: str | None) -> _Asked:
    """By an approval id, or by a run that asks for exactly one approval. Raises ``Refused`` and, for a damaged run,
    ``HistoryRefused``."""
    from ..eventstore.inbox import find_asking
    from ..eventstore.reading import read_run

    wanted = ""
    run_id = name
    if _is_approval_id(name):
        wanted = name
        found = await find_asking(session.store, name) or await run_that_asked(session.store, name)
        if found is None:
            raise Refused("approval_not_found", "no run asks or asked for this approval", path=name)
        run_id = found
    read = await read_run(session.store, run_id)
    if read.damage:
        raise HistoryRefused("log_damaged", read.damage, path=run_id)
    state = read.whole()
    seq = state.commands.get(command_id or "")
    if seq is not None:
        # Whether it is the same decision is judged where it is handed in.
        return _Asked(run_id, wanted or getattr(read.records[seq - 1].event, "approval_id", ""), None)
    asked = [row for row in _approvals_of(state) if wanted in ("", row.approval_id)]
    if not asked:
        raise _decided_before(read.records, wanted, name)
    if len(asked) > 1:
        ids = ", ".join(row.approval_id for row in asked)
        raise click.UsageError(f"run {name} asks for {len(asked)} approvals, name one: {ids}")
    return _Asked(run_id, asked[0].approval_id, asked[0])


def _approvals_of(state: State) -> list[InboxRow]:
    """The approvals that this run asks for now."""
    from ..eventstore.inbox import inbox_rows

    return [row for row in inbox_rows(state) if row.kind == "approval"]


async def run_that_asked(store: EventStore, decision_id: str) -> str | None:
    """The run whose log tells of this approval or question, of the latest ``LOGS_SEARCHED_MAX`` runs: it is open no more, so no
    index row names it."""
    from ..eventstore.codec import full_body
    from ..eventstore.port import RunFilter

    wanted = decision_id.encode()
    for run in await store.runs(RunFilter(limit=LOGS_SEARCHED_MAX)):
        seq = 0
        while rows := await store.read(run.run_id, after_seq=seq):
            for row in rows:
                try:
                    if wanted in await full_body(row, store.get_blob):
                        return run.run_id
                except LogDamaged:
                    continue  # of a damaged run nothing can be decided anyway
            seq = rows[-1].first_seq
    return None


def _decided_before(records: Sequence[Recorded], wanted: str, name: str) -> Refused:
    """Why nothing is open: what became of this approval, or of the run's latest."""
    from ..runtime.events import ApprovalDecided, ApprovalLapsed

    for record in reversed(records):
        event = record.event
        if isinstance(event, ApprovalDecided | ApprovalLapsed) and wanted in ("", event.approval_id):
            seq = f"at seq {record.seq}"
            if isinstance(event, ApprovalLapsed):
                return Refused("approval_lapsed", f"it lapsed {seq}: {event.why}", path=name)
            did = "approved" if event.decision == "approve" else "rejected"
            return Refused("approval_used", f"already {did} by {event.approver} {seq}", path=name)
    return Refused("approval_not_found", "this run asks for no approval", path=name)


async def _decide(session: Session, asked: _Asked, decided: str, command: Approve | Reject) -> int:
    seq = (await session.submit(asked.run_id, command)).seq
    out, by = session.out, command.by
    if out.form != "table":
        out.thing(
            {"decided": decided, "approval": asked.approval_id, "run": asked.run_id, "seq": seq, "by": by}
        )
        return OK
    out.line(f"{decided.capitalize()} {asked.approval_id} as {safe_text(by)}, seq {seq}.")
    if asked.row is not None:
        out.line(f"  {safe_text(asked.row.tool)} {safe_json(shown_json(asked.row.arguments))}")
    await say_who_goes_on(session, asked.run_id)
    return OK


@click.command()
@click.argument("name", metavar="APPROVAL|RUN")
@click.option("--reason", default="")
@click.option(
    "--command-id", default=None, metavar="ID", help="Of an earlier try: the answer is the first one's."
)
@on_store
async def approve(session: Session, name: str, reason: str, command_id: str | None) -> int:
    """Approve one preview, by its approval id or by a run that asks for exactly one."""
    asked = await _find(session, name, command_id)
    command = Approve(
        command_id=command_id or new_command_id(),
        by=approver(),
        approval_id=asked.approval_id,
        reason=reason,
    )
    return await _decide(session, asked, "approved", command)


@click.command()
@click.argument("name", metavar="APPROVAL|RUN")
@click.option("--reason", default="")
@click.option("--stop", is_flag=True, help="End the run too.")
@click.option(
    "--command-id", default=None, metavar="ID", help="Of an earlier try: the answer is the first one's."
)
@on_store
async def reject(session: Session, name: str, reason: str, stop: bool, command_id: str | None) -> int:
    """Say no to one preview. The run goes on without the action, unless --stop."""
    asked = await _find(session, name, command_id)
    command = Reject(
        command_id=command_id or new_command_id(),
        by=approver(),
        approval_id=asked.approval_id,
        reason=reason,
        on_reject="stop" if stop else "continue",
    )
    return await _decide(session, asked, "rejected", command)


@click.group()
def call() -> None:
    """Settle a call."""


@call.command("resolve")
@click.argument("run_id", metavar="RUN")
@click.argument("call_id", metavar="CALL")
@click.option("--applied", "result", default=None, metavar="JSON", help="It took effect, with this result.")
@click.option("--absent", is_flag=True, help="It took no effect.")
@click.option("--reason", default="")
@click.option(
    "--command-id", default=None, metavar="ID", help="Of an earlier try: the answer is the first one's."
)
@on_store
async def resolve(
    session: Session,
    run_id: str,
    call_id: str,
    result: str | None,
    absent: bool,
    reason: str,
    command_id: str | None,
) -> int:
    """Say what became of an unknown effect, after you looked at the far side."""
    if (result is None) != absent:
        raise click.UsageError("say either --applied JSON or --absent")
    if result == "":
        raise click.UsageError("--applied takes a JSON value, such as null")
    by = approver()
    command = ResolveCall(
        command_id=command_id or new_command_id(),
        by=by,
        call=call_id,
        outcome="absent" if absent else "applied",
        result=result or "",
        reason=reason,
    )
    try:
        answer = await session.submit(run_id, command)
    except Refused as error:
        if error.code == "not_unknown" and not await _is_a_call(session, run_id, call_id):
            raise Refused("call_not_found", "the run has no such call", path=f"{run_id} {call_id}") from error
        raise
    settled = "absent" if absent else "applied"
    if session.out.form == "table":
        session.out.line(f"Settled {safe_text(call_id)} as {settled} by {safe_text(by)}, seq {answer.seq}.")
    else:
        session.out.thing({"settled": settled, "run": run_id, "call": call_id, "seq": answer.seq, "by": by})
    await say_who_goes_on(session, run_id)
    return OK


async def _is_a_call(session: Session, run_id: str, call_id: str) -> bool:
    from ..eventstore.history import read_records

    records = await read_records(session.store, run_id)
    return any(getattr(record.event, "call", "") == call_id for record in records)
