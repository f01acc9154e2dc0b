"""A run as fields: what ``show``, ``replay`` and ``runs list`` print. Values are unescaped; printing escapes them."""

from __future__ import annotations

from typing import Any

from ..eventstore.forensics import spend
from ..eventstore.port import RunRow
from ..runtime.answer import answer_of
from ..runtime.index import waiting_for
from ..runtime.orders import shown_phase
from ..runtime.state import CallState, State
from ..runtime.taint import TaintSource
from .cli_output import Output
from .cli_text import plain, safe_lines, shown_json, when

RUN_COLUMNS = ("run", "status", "outcome", "reason", "waiting_for", "agent", "tenant", "updated")
CALL_COLUMNS = ("call", "tool", "phase", "status", "code", "attempt", "arguments")
CITATION_COLUMNS = ("id", "call", "tool", "observed_at_ms", "source_version")
SPEND_COLUMNS = ("limit", "spent", "reserved", "granted", "overrun")


def row_view(row: RunRow) -> dict[str, Any]:
    """A run's index row."""
    index = row.index
    return {
        "run": row.run_id,
        "status": "damaged" if row.damaged else index.status,
        "outcome": index.outcome,
        "reason": index.reason,
        "waiting_for": index.waiting_for,
        "agent": row.agent,
        "tenant": row.tenant,
        "operation": row.operation_id,
        "root": row.root_id,
        "parent": row.parent_id,
        "created": when(row.created_at_ms),
        "updated": when(row.updated_at_ms),
        "wake_at": when(index.wake_at_ms or 0),
        "seq": row.seq,
        "epoch": row.epoch,
        "head": row.head.hex(),
        "host": row.owner,
        "ready": row.ready,
        "damaged": row.damaged,
        "pruned": when(row.pruned_at_ms),
    }


def state_view(state: State) -> dict[str, Any]:
    """A folded state."""
    return {
        "run": state.run_id,
        "status": shown_phase(state),
        "outcome": state.outcome,
        "reason": state.reason,
        "detail": state.detail,
        "waiting_for": waiting_for(state),
        "unfinished": list(state.unfinished),
        "agent": state.agent,
        "tenant": state.tenant,
        "principal": state.principal,
        "operation": state.operation_id,
        "application": state.application,
        "model": state.pins.model,
        "turn": state.turn,
        "stage": "" if not state.pins.stages else state.pins.stages[state.stage].name,
        "seq": state.seq,
        "epoch": state.epoch,
        "at": when(state.at_ms),
        "cancelled": state.cancel_reason,
        "messages": state.counters.messages,
        "unread": len(state.unread),
        "as_of": state.as_of,
        "trace": state.trace,
        "given": shown_json(state.given) if state.given else None,
        "facts": {name: shown_json(fact.value) for name, fact in state.facts.items()},
        "taint": [_taint_source(source) for source in state.untrusted],
    }


def _taint_source(source: TaintSource) -> str:
    """Which call of which tool brought words of outsiders; of another run's, with its id."""
    place = "/".join(part for part in (source.run, source.call) if part)
    name = f"{place} {source.tool}" if place else source.tool
    return name if source.declared else f"{name} (undeclared)"


def call_view(call: CallState) -> dict[str, Any]:
    """One call of the open turn."""
    return {
        "call": call.call,
        "tool": call.tool,
        "phase": call.phase,
        "status": call.status or call.outcome,
        "code": call.code,
        "attempt": call.attempt,
        "key": None if call.key is None else call.key.hex(),
        "child": None if call.child is None else call.child.run_id,
        "arguments": shown_json(call.raw if call.arguments is None else call.arguments),
        "result": None if call.result is None else shown_json(call.result),
    }


def spend_view(state: State, *, used_only: bool = False) -> list[dict[str, Any]]:
    """Spend against limits; ``used_only`` leaves out what wasn't touched."""
    return [
        {
            "limit": row.name,
            "spent": row.spent,
            "reserved": row.reserved,
            "granted": "waived" if row.limit is None else row.limit,
            "overrun": row.overrun,
        }
        for row in spend(state)
        if not used_only or row.spent or row.reserved
    ]


def print_state(out: Output, view: dict[str, Any], state: State) -> None:
    """The fields, then calls, spend and text; one object with all of it for programs."""
    calls = [call_view(call) for call in state.calls.values()]
    text = state.final_text or state.last_text
    citations = answer_of(state, state.final_text).citations if state.final_text else ()
    if out.form != "table":
        cited = {"citations": [plain(one) for one in citations]} if citations else {}
        out.thing({**view, "calls": calls, "spend": spend_view(state), "text": text, **cited})
        return
    out.thing(view)
    if calls:
        out.line()
        out.rows(CALL_COLUMNS, calls)
    out.line()
    out.rows(SPEND_COLUMNS, spend_view(state, used_only=True))
    if text:
        out.line()
        out.line("Answer:" if state.final_text else "Last said by the model:")
        for line in safe_lines(text):
            out.line("  " + line)
    if citations:
        out.line()
        out.rows(CITATION_COLUMNS, [plain(one) for one in citations])
