"""Runs written to a store step by step by the interpreter itself, without a host: what a test needs to read back."""

from __future__ import annotations

import json
from secrets import token_bytes
from typing import Any, Literal

from boundloop.eventstore.chain import GENESIS, append_hash
from boundloop.eventstore.codec import encode_events, spill
from boundloop.eventstore.port import APPEND_SCHEMA_VERSION, Append, Appended, EventStore, NewRun
from boundloop.runtime.commands import Advance, ChecksDone, Command, Executed, ModelReplied
from boundloop.runtime.decide import decide
from boundloop.runtime.events import AnyEvent, RungVerdict, RunStarted
from boundloop.runtime.fold import begin, evolve
from boundloop.runtime.goal import Goal
from boundloop.runtime.index import run_index
from boundloop.runtime.ladder import admit
from boundloop.runtime.ledger import Claim, LedgerRow, Settlement
from boundloop.runtime.limits import LimitValues
from boundloop.runtime.model import FinishKind, ModelTurn, ProposedCall, Usage
from boundloop.runtime.orders import Execute, RequestModel, RunChecks, pending_orders
from boundloop.runtime.pins import Pins, encode_pins
from boundloop.runtime.prices import FREE
from boundloop.runtime.start import NewRunSpec, start_run
from boundloop.runtime.state import State
from boundloop.runtime.tool_spec import tool, tool_spec


@tool(risk="read", quick=True)
async def get_order(order_id: str) -> dict[str, Any]:
    "Look up one order."
    return {"order_id": order_id}


@tool(risk="irreversible", key=("order_id",), incidental=("reason",))
async def refund(order_id: str, cents: int, reason: str = "") -> dict[str, Any]:
    "Pay one order back."
    return {"order_id": order_id}


TOOLS = tuple(tool_spec(declared) for declared in (get_order, refund))
PARKED_HOST = "host_of_the_test"


def pins_for(
    limits: LimitValues | None = None, goal: Goal | None = None, *, separate_approver: bool = False
) -> Pins:
    return Pins(
        producer="test",
        model="scripted",
        api_family="scripted",
        adapter_revision="1",
        template_revision="1",
        system="",
        tools=tuple(spec.definition for spec in TOOLS),
        permissions=(),
        policy_revision="default-1",
        separate_approver=separate_approver,
        limits=limits or LimitValues(cost_micros=0),
        goal=goal,
        price=FREE,
        price_revision="free",
    )


class WrittenRun:
    """One run and its writer, which no host row backs: whoever comes later may take the run."""

    def __init__(self, store: EventStore, state: State, head: bytes) -> None:
        self.store = store
        self.state = state
        self.head = head
        self.events: list[AnyEvent] = []
        self.settlements: list[Settlement] = []
        self.claim: Claim | None = None

    @classmethod
    async def start(
        cls,
        store: EventStore,
        run_id: str,
        *,
        text: str = "What is the state of order A1042?",
        pins: Pins | None = None,
        tenant: str = "default",
        operation_id: str = "",
        principal: str = "local",
    ) -> WrittenRun:
        pins = pins or pins_for()
        spec = NewRunSpec(
            run_id=run_id,
            input=text,
            operation_id=operation_id or f"op_{run_id}",
            tenant=tenant,
            principal=principal,
        )
        started, _, encoded = start_run(spec, pins)
        await store.put_blob(encoded)
        assert encode_pins(pins) == encoded
        run = cls(store, begin(started, pins, store.now_ms()), GENESIS)
        run.events.append(started)
        run.advance()
        await run.append()
        return run

    # --- what a host would do -----------------------------------------------------------------------------------

    def put(self, command: Command) -> None:
        now_ms = self.now_ms()
        decision = decide(self.state, command, now_ms)
        assert decision.refusal is None, decision.refusal
        assert self.claim is None or decision.claim is None, "one claim an append"
        self.claim = self.claim or decision.claim
        for event in decision.events:
            evolve(self.state, event, now_ms)
        self.events += decision.events
        self.settlements += decision.settlements

    def advance(self) -> None:
        for _ in range(100):
            before = len(self.events)
            self.put(Advance())
            if len(self.events) == before:
                return
        raise AssertionError("no end in sight")

    def now_ms(self) -> int:
        # An append has one time, so the clock stands still until it is written.
        return self.state.at_ms if self.events else max(self.state.at_ms, self.store.now_ms())

    async def append(self, *, release: bool = False, ready: bool = False) -> None:
        if not self.events:
            return
        state, events = self.state, self.events
        first = state.seq - len(events) + 1
        body, blobs = spill(encode_events(events))
        append_id = token_bytes(16)
        epoch = state.epoch
        head = append_hash(
            self.head,
            state.run_id,
            first,
            len(events),
            epoch,
            state.at_ms,
            append_id,
            "test",
            APPEND_SCHEMA_VERSION,
            body,
        )
        started = events[0]
        answer = await self.store.append(
            Append(
                run_id=state.run_id,
                expected_seq=first - 1,
                epoch=epoch,
                append_id=append_id,
                at_ms=state.at_ms,
                causation="test",
                body=body,
                event_count=len(events),
                prev_hash=self.head,
                hash=head,
                index=run_index(state),
                host_id="",
                create=NewRun(
                    tenant=state.tenant,
                    agent=state.agent,
                    operation_id=state.operation_id,
                    root_id=state.run_id,
                )
                if isinstance(started, RunStarted)
                else None,
                claim=self.claim,
                settlements=tuple(self.settlements),
                release=release,
                ready=ready,
                blobs=blobs,
            )
        )
        assert isinstance(answer, Appended), answer
        self.head = head
        self.events, self.settlements, self.claim = [], [], None

    # --- steps --------------------------------------------------------------------------------------------------

    async def replies(
        self,
        text: str = "",
        calls: list[tuple[str, object]] | None = None,
        *,
        finish: FinishKind | None = None,
        retryable: bool = True,
    ) -> None:
        """The model's turn: its calls are (tool, arguments), arguments as raw text or as values."""
        [order] = pending_orders(self.state, self.now_ms())
        assert isinstance(order, RequestModel)
        proposed = tuple(
            ProposedCall(
                name, (given if isinstance(given, str) else json.dumps(given)).encode(), f"p{number}"
            )
            for number, (name, given) in enumerate(calls or [])
        )
        turn = ModelTurn(
            finish=finish or ("calls" if proposed else "final"),
            text=text,
            calls=proposed,
            usage=Usage(100, 20),
            response_id=f"resp_{order.turn}",
            retryable=retryable,
        )
        self.put(ModelReplied(turn=order.turn, attempt=order.attempt, reply=turn))
        self.advance()
        await self.append()

    async def checks(
        self,
        *,
        ask: bool = False,
        preview: object = None,
        deny: RungVerdict | None = None,
        terminal: bool = False,
        row: LedgerRow | None = None,
    ) -> None:
        """One pass over the rungs of every call that waits for it."""
        for order in pending_orders(self.state, self.now_ms()):
            if isinstance(order, RunChecks):
                await self._check(order, ask, preview, deny, terminal, row)

    async def _check(
        self,
        order: RunChecks,
        ask: bool,
        preview: object,
        deny: RungVerdict | None,
        terminal: bool,
        row: LedgerRow | None,
    ) -> None:
        call = self.state.calls[order.call]
        admitted = None if order.recheck else admit(self.state, call)
        definition = self.state.tools.get(call.tool)
        command = ChecksDone(
            call=order.call,
            recheck=order.recheck,
            admitted=admitted[0] if isinstance(admitted, tuple) else None,
            refused=None if isinstance(admitted, tuple | None) else admitted,
            verdicts=() if deny is None else (deny,),
            terminal=terminal,
            ask=ask,
            row=row,
            definition_sha256=b"" if definition is None else definition.definition_sha256,
            policy_revision="default-1",
            preview=None if preview is None else json.dumps(preview).encode(),
        )
        self.put(command)
        self.advance()
        await self.append()

    async def executes(
        self,
        result: object = None,
        *,
        outcome: Literal["succeeded", "failed", "unknown"] = "succeeded",
        code: str = "",
        message: str = "",
    ) -> None:
        """Every dispatched call comes to this."""
        for order in pending_orders(self.state, self.now_ms()):
            if isinstance(order, Execute):
                self.put(
                    Executed(
                        call=order.call,
                        attempt=order.attempt,
                        outcome=outcome,
                        result=json.dumps(result).encode() if outcome == "succeeded" else None,
                        code=code,
                        safe_message=message,
                    )
                )
                self.advance()
                await self.append()


async def finished(store: EventStore, run_id: str, **given: Any) -> WrittenRun:
    """One read, then the answer."""
    run = await WrittenRun.start(store, run_id, **given)
    await run.replies(calls=[("get_order", {"order_id": "A1042"})])
    await run.checks()
    await run.executes({"state": "shipped"})
    await run.replies(text="Order A1042 was shipped.")
    assert run.state.outcome == "completed"
    return run


async def asking(store: EventStore, run_id: str, *, reason: str = "late", **given: Any) -> WrittenRun:
    """A refund that waits for a person."""
    run = await WrittenRun.start(store, run_id, text="Refund order A1042.", **given)
    await run.replies(calls=[("refund", {"order_id": "A1042", "cents": 500, "reason": reason})])
    await run.checks(ask=True, preview={"pays": "5.00", "reason": reason})
    assert run_index(run.state).waiting_for.startswith("approval:")
    return run


async def unknown(store: EventStore, run_id: str, **given: Any) -> WrittenRun:
    """A refund that was sent and of which nobody knows."""
    run = await WrittenRun.start(store, run_id, text="Refund order A1042.", **given)
    await run.replies(calls=[("refund", {"order_id": "A1042", "cents": 500})])
    await run.checks()
    await run.executes(outcome="unknown", code="timeout", message="no answer in time")
    assert run.state.reason == "outcome_unknown"
    return run


def approval_of(run: WrittenRun) -> str:
    [call] = [call for call in run.state.calls.values() if call.phase == "waiting_approval"]
    assert call.approval is not None
    return call.approval.approval_id
