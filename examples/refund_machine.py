"""Look up an order, draft a refund, wait for approval, submit it, explain: one run in which everything goes wrong once.

    python examples/refund_machine.py [STORE]

The model is scripted; the bank is a real HTTP service in another process, which counts. On the way to one refund the
model's output is cut off, it makes a tool up, nobody approves in time, the bank pays but doesn't answer, and the model
proposes the same refund again. Exits 0 only if all six marked branches ended as they must.

``boundloop run examples/refund_machine.py:refund`` runs the same application without the mishaps and stops where a
person is asked.
"""

from __future__ import annotations

import atexit
import http.client
import os
import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Final
from uuid import uuid4

import msgspec

sys.path.append(str(Path(__file__).resolve().parent.parent))

from examples.far_side import FarSide, FarSideError

from boundloop.actors import Application, Result, Runtime, ToolContext
from boundloop.adapters import ScriptedModel, call, cut, say
from boundloop.runtime import Absent, Applied, Limits, ToolError, tool
from boundloop.runtime import events as e
from boundloop.runtime.state import State

STORE: Final = "sqlite:///refund-machine.db"
BOOKS: Final = "refund-machine.db-bank.json"
ORDER: Final = {"order_id": "A1042"}
REFUND: Final = {"order_id": "A1042", "amount_cents": 1250}
BANK_TIMEOUT_S: Final = 0.5
APPROVAL_MS: Final = 300

Cents = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


# --- the application -------------------------------------------------------------------------------------------------


def refund_tools(bank: FarSide) -> list[Any]:
    """What the model may propose. Nothing else exists for it."""

    @tool(risk="read")
    def get_order(order_id: str) -> dict[str, Any]:
        """Look up one order."""
        if order_id != "A1042":
            raise ToolError("order_not_found", safe_message="no such order")
        return {"order_id": order_id, "state": "delivered", "total_cents": 1250}

    @tool(risk="write", key=("order_id",), far_side="keyed")
    def create_refund_draft(order_id: str, amount_cents: Cents, ctx: ToolContext) -> dict[str, Any]:
        """Prepare a refund. No money moves."""
        return pay(bank, ctx, draft_for=order_id, amount_cents=amount_cents)

    def look_up(key: str) -> Applied | Absent:
        answer = bank.query(key)
        return Applied(answer["result"]) if answer["applied"] else Absent()

    @tool(
        risk="irreversible",
        key=("order_id",),
        incidental=("reason",),
        far_side="queryable",
        query=look_up,
        query_authoritative=True,
    )
    def submit_refund(
        order_id: str, amount_cents: Cents, ctx: ToolContext, reason: str = ""
    ) -> dict[str, Any]:
        """Pay a refund out, as drafted. A person is asked first."""
        return pay(bank, ctx, refund_for=order_id, amount_cents=amount_cents)

    return [get_order, create_refund_draft, submit_refund]


def pay(bank: FarSide, ctx: ToolContext, **what: object) -> dict[str, Any]:
    """One request under the call's key. Only an answer that says so is proof that nothing happened."""
    try:
        return bank.submit(ctx.key, timeout_s=BANK_TIMEOUT_S, **what)
    except FarSideError as error:
        raise ToolError(f"bank_{error.status}", retryable=True, no_effect=not error.applied) from error
    except (OSError, http.client.HTTPException) as error:
        raise ToolError("bank_no_answer", retryable=True) from error


def refund() -> Application:
    """The application for ``boundloop run``: a model that makes no mistakes, and a bank that keeps its books in a file,
    so that ``--resume`` in a later process meets the bank that it left."""
    bank = FarSide.start(books=BOOKS)
    atexit.register(bank.stop)
    return Application(
        model=ScriptedModel(
            [
                call("get_order", ORDER),
                call("create_refund_draft", REFUND),
                call("submit_refund", REFUND),
                say("I refunded 12.50 for order A1042."),
            ]
        ),
        tools=refund_tools(bank),
        input="Refund order A1042.",
        goal="submit_refund",
        limits=Limits(turns=10, tool_calls=10, cost="0.05"),
        store=STORE,
    )


# --- the run in which everything goes wrong once --------------------------------------------------------------------

MISHAPS: Final = ScriptedModel(
    [
        call("get_order", ORDER),
        call("wire_money", {"to": "me", "amount_cents": 1250}),
        call("create_refund_draft", REFUND),
        cut(call("submit_refund", raw='{"order_id": "A1042", "amount_ce')),
        call("submit_refund", REFUND),
        call("submit_refund", REFUND),
        call("submit_refund", {**REFUND, "reason": "to be on the safe side"}),
        say("I refunded 12.50 for order A1042."),
    ]
)


class Record:
    """What happened, for the printed timeline and for the six checks at the end."""

    def __init__(self) -> None:
        self.events: list[e.AnyEvent] = []
        self.stops: list[tuple[str, str]] = []
        self.last: Result | None = None
        self.counts: dict[str, dict[str, int]] = {}

    def watch(self, run_id: str, state: State, events: tuple[e.AnyEvent, ...], first_seq: int) -> None:
        """Committed events, as they come."""
        for event in events:
            self.events.append(event)
            line = words(event)
            if line:
                print(f"  {line}", flush=True)

    def stopped(self, result: Result) -> Result:
        """How the run rests."""
        self.stops.append((result.outcome or result.status, result.reason))
        self.last = result
        return result

    def of(self, kind: type[Any]) -> list[Any]:
        """All events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def words(event: e.AnyEvent) -> str:
    """The events that a reader of the timeline wants to see."""
    match event:
        case e.CallProposed():
            return f"{event.call}  the model proposes {event.tool} {event.arguments.decode()}"
        case e.ModelResponded() if event.finish == "truncated":
            return f"--    the model's answer was cut off at its output limit (turn {event.turn})"
        case e.CallRejected():
            return f"{event.call}  refused: {event.code}"
        case e.ApprovalRequested():
            return f"{event.call}  a person is asked, approval {event.approval_id}"
        case e.ApprovalDecided():
            return f"{event.call}  {event.decision} by {event.approver}"
        case e.CallExecuted():
            return f"{event.call}  attempt {event.attempt}: {event.outcome} {event.code}".rstrip()
        case e.CallReconciled():
            return f"{event.call}  the bank says: {event.outcome}"
        case e.ResultBound() if event.replayed is not None:
            return f"{event.call}  this was done before (by {event.replayed.call}); nothing runs"
        case e.RunSuspended():
            return f"--    stops: {event.outcome}, {event.reason}"
        case e.RunTerminated():
            return f"--    ends: {event.outcome}, {event.reason}"
        case _:
            return ""


def play(store: str, record: Record) -> str:
    """The run, with a person at the right moments. Returns its id."""
    with FarSide.start() as bank, Runtime(store=store, model=MISHAPS, tools=refund_tools(bank)) as rt:
        rt.watch(record.watch)
        run = rt.start(
            "Refund order A1042.",
            goal="submit_refund",
            limits=Limits(turns=10, tool_calls=10, cost="0.05", approval_ms=APPROVAL_MS),
            operation_id=f"refund-A1042-{uuid4().hex[:8]}",
        )
        record.stopped(run.wait())  # the model's answer was cut off
        rt.resume(run.run_id)
        record.stopped(run.wait())  # nobody approved in time
        rt.raise_limits(run.run_id, approval_ms=3_600_000)
        bank.set_modes("apply_then_hang")
        rt.resume(run.run_id)
        asked = run.result()
        rt.approve(run.run_id, asked.approvals[0].approval_id, by="you")
        record.stopped(run.wait())
        record.counts = bank.counts()
        return run.run_id


def branches(record: Record) -> dict[str, bool]:
    """The six marked branches, and whether each ended as it must."""
    operation = record.of(e.RunStarted)[0].operation_id
    approvals = [event.approval_id for event in record.of(e.ApprovalRequested)]
    keys = [event.key.hex() for event in record.of(e.CallValidated) if event.key is not None]
    calls = [event.call for event in record.of(e.CallProposed)]
    labels = [event.provider_call_id for event in record.of(e.CallProposed)]
    ids = {operation, *approvals, *keys, *calls, *labels}
    draft, *refunds = keys
    rejected = {event.call: event.code for event in record.of(e.CallRejected)}
    outcomes = [(event.call, event.outcome) for event in record.of(e.CallExecuted)]
    settled = [(event.call, event.outcome, event.by) for event in record.of(e.CallReconciled)]
    replayed = [event.call for event in record.of(e.ResultBound) if event.replayed is not None]
    key = refunds[0]
    return {
        "1. ids: one key for three proposals of one refund, all other ids of their own": (
            set(refunds) == {key}
            and len(refunds) == 3
            and len(ids) == 1 + len(approvals) + 2 + len(calls) + len(labels)
            and draft != key
        ),
        "2. output limit: incomplete, nothing ran, resumed": (
            record.stops[0] == ("incomplete", "truncated") and "c4.0" not in calls
        ),
        "3. unknown tool: refused, the model was told, the run went on": rejected.get("c2.0")
        == "unknown_tool",
        "4. approval expired: incomplete, nothing was sent, resumed with a new approval": (
            record.stops[1] == ("incomplete", "approval_expired")
            and rejected.get("c5.0") == "approval_expired"
            and len(set(approvals)) == 2
        ),
        "5. submit timed out: unknown, settled by asking the bank, sent once": (
            ("c6.0", "unknown") in outcomes
            and settled == [("c6.0", "applied", "query")]
            and record.counts["requests"].get(key) == 1
            and record.counts["effects"].get(key) == 1
        ),
        "6. the same call again: replayed, nothing ran, nobody was asked": replayed == ["c7.0"],
        "The end: completed, with the evidence on record": record.stops[2:] == [("completed", "final")],
    }


def command_line() -> str:
    """How this reader's shell reaches ``boundloop``: by name, or through the Python that runs this."""
    if shutil.which("boundloop"):
        return "boundloop"
    python = Path(sys.executable)
    near = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    script = near.with_name("boundloop")
    return quote(str(script)) if script.exists() else f"{quote(str(near))} -m boundloop"


def main(store: str = STORE) -> int:
    """Play, check, and say what to try next. 0 if all is as it must be."""
    record = Record()
    run_id = play(store, record)
    print()
    ended = branches(record)
    for branch, kept in ended.items():
        print(f"{'ok ' if kept else 'NOT'}  {branch}")
    last = record.last
    if last is not None:
        print(f"\n{last.outcome}: {last.text}")
    key = record.of(e.CallValidated)[-1].key.hex()
    counts = record.counts
    print(
        f"At the bank: {counts['effects'].get(key, 0)} refund, {counts['requests'].get(key, 0)} request, "
        f"{counts['queries'].get(key, 0)} query for key {key[:12]}…"
    )
    print("\nTry next:")
    boundloop = command_line()
    for command in ("log", "why", "verify", "show"):
        print(f"  {boundloop} {command} {run_id} --store {quote(store)}")
    print(f"  {boundloop} run {quote(os.path.relpath(__file__))}:refund")
    return 0 if all(ended.values()) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
