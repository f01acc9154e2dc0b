"""One row of the inbox: as lines for people, and as fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .cli_output import Output
from .cli_text import plain, quoted, safe_json, safe_lines, safe_text, shown_json, when

if TYPE_CHECKING:
    from ..eventstore.inbox import InboxRow

INBOX_COLUMNS: Final = ("kind", "id", "run", "call", "tool", "since", "expires", "preview")


def print_row(out: Output, row: InboxRow, *, store: str = "") -> None:
    """What a person is asked, with the real arguments. ``store`` is added to each command."""
    if row.kind == "stop":
        _print_stop(out, row, store=store)
        return
    out.line(
        f"{_TITLES[row.kind]}: {safe_text(row.tool)} ({row.risk}), call {safe_text(row.call)} of run {safe_text(row.run_id)}"
    )
    out.line(f"  asked by   {safe_text(row.requester)}, since {when(row.since_ms)}")
    if row.kind == "question":
        _print_question(out, row, store=store)
        return
    out.line(f"  arguments  {safe_json(shown_json(row.arguments))}")
    if row.kind == "approval":
        if row.preview not in (b"", b"{}"):
            out.line(f"  preview    {safe_json(shown_json(row.preview))}")
        out.line(f"  expires    {when(row.expires_at_ms)}")
        if row.separate_approver:
            out.line("  who asked may not approve it")
        out.line(f"  boundloop approve {row.approval_id}{store}")
    else:
        settle = f"boundloop call resolve {quoted(row.run_id)} {quoted(row.call)}"
        out.line(f"  {settle} --applied JSON{store}")
        out.line(f"  {settle} --absent{store}")
    out.line()


_TITLES: Final = {"approval": "Approval", "question": "Question", "unknown": "Unknown effect"}


def _print_question(out: Output, row: InboxRow, *, store: str) -> None:
    """The question's own words, each line of them marked as such: a model wrote them."""
    for line in safe_lines(row.question):
        out.line(f"  | {line}")
    for number, choice in enumerate(row.choices, start=1):
        out.line(f"  {number:>3}. {safe_text(choice)}")
    out.line(f"  expires    {when(row.expires_at_ms)}")
    out.line(f"  boundloop answer {row.question_id} {'--choice N' if row.choices else 'TEXT'}{store}")
    out.line(f"  boundloop answer {row.question_id} --cannot{store}")
    out.line()


def _print_stop(out: Output, row: InboxRow, *, store: str) -> None:
    of = "" if row.root_id in ("", row.run_id) else f", below run {safe_text(row.root_id)}"
    out.line(f"Stopped: run {safe_text(row.run_id)} of {safe_text(row.agent)}{of}")
    detail = f" ({safe_text(row.detail)})" if row.detail else ""
    out.line(
        f"  how        {safe_text(row.outcome)}, {safe_text(row.reason)}{detail}, since {when(row.since_ms)}"
    )
    for name in row.unfinished:
        out.line(f"  unfinished {safe_text(name)}")
    for one in row.unknown:
        what = (
            f"{safe_text(one.tool)}, call {safe_text(one.call)}" if one.call else "nobody knows what it did"
        )
        out.line(f"  unknown    {what} of run {safe_text(one.run)}")
    if row.unknown_more:
        out.line(f"  unknown    {row.unknown_more} more below")
    for command in row.next_commands:
        out.line(f"  {safe_text(command)}{store}")
    out.line()


def row_view(row: InboxRow) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "id": row.decision_id or (f"{row.run_id}/{row.call}" if row.call else row.run_id),
        "approval": row.approval_id,
        "run": row.run_id,
        "root": row.root_id,
        "call": row.call,
        "tool": row.tool,
        "risk": row.risk,
        "tenant": row.tenant,
        "agent": row.agent,
        "operation": row.operation_id,
        "requester": row.requester,
        "separate_approver": row.separate_approver,
        "since": when(row.since_ms),
        "expires": when(row.expires_at_ms),
        "round": row.round,
        "resource_version": row.resource_version,
        "policy_revision": row.policy_revision,
        "preview_sha256": row.preview_sha256.hex(),
        "arguments": shown_json(row.arguments) if row.arguments else None,
        "preview": shown_json(row.preview) if row.preview else None,
        "question": row.question,
        "choices": list(row.choices),
        "outcome": row.outcome,
        "reason": row.reason,
        "detail": row.detail,
        "unfinished": list(row.unfinished),
        "unknown": plain(row.unknown),
        "unknown_more": row.unknown_more,
        "next": list(row.next_commands),
    }
