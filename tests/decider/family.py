"""A tree of runs without a store: what the drivers of parents and children do for each other, done by hand or all at once.

``Family`` keeps the runs by id, over one ledger and one clock. ``serve`` carries out the orders about other runs as a
driver would, and checks the laws of the tree after each of them.
"""

from __future__ import annotations

from typing import Any

from boundloop.runtime import events as e
from boundloop.runtime.agent_spec import agent, spawn
from boundloop.runtime.children import cancel_by_parent, child_run_id, child_start, ended_child
from boundloop.runtime.commands import Cancel, ChildOpened, NothingLeft, RaiseLease, TopUpChild
from boundloop.runtime.invariants import check_tree
from boundloop.runtime.limits import LimitValues
from boundloop.runtime.orders import AskParent, CancelChild, Order, SettleChild, StartChild
from boundloop.runtime.pins import Pins, read_pins
from boundloop.runtime.state import State, run_name
from boundloop.runtime.stops import ends_children
from boundloop.runtime.top_ups import Short, lease_of, lease_raise, short_of, top_up_id

from .shop import BY_NAME, TOOLS, limits, pins
from .spec import Ledger, Run, call

HELPER = agent(
    name="helper",
    description="Does what it is told.",
    system="You help.",
    tools=("get_order", "credit_check", "refund", "pay", "ship", "helper", "team"),
)
CLERK = agent(
    name="clerk",
    description="Does a little.",
    tools=("get_order",),
    limits={"turns": 3, "tool_calls": 2, "deadline_s": 60, "denials": 2},
)
PATIENT = agent(name="patient", description="Waits when it stops.", tools=("get_order",), on_stop="suspend")
ASKED_FOR = agent(name="asked_for", description="A person is asked first.", tools=(), approval="always")
TEAM = spawn([HELPER, CLERK], name="team")
AGENTS = tuple(spec.definition for spec in (HELPER, CLERK, PATIENT, ASKED_FOR, TEAM))
BY_NAME.update({definition.name: definition for definition in AGENTS})


def family_pins(**fields: Any) -> Pins:
    """The shop's pins with the agents beside its tools."""
    bounds = fields.pop("bounds", None) or limits(children=20, cost_micros=None)
    return pins(bounds=bounds, tools=(*TOOLS, *AGENTS), **fields)


class Family:
    """``root`` is its first run; ``runs`` has them all."""

    def __init__(self, pinned: Pins | None = None, **options: Any) -> None:
        self.ledger = Ledger()
        self.root = Run(family_pins() if pinned is None else pinned, ledger=self.ledger, **options)
        self.runs = {self.root.state.run_id: self.root}

    def check(self) -> None:
        check_tree({run_id: run.state for run_id, run in self.runs.items()})

    def child(self, parent: Run, name: str) -> Run:
        """The child of a call."""
        return self.runs[child_run_id(parent.state.run_id, name)]

    # --- one order at a time -----------------------------------------------------------------------------------------

    def orders(self, run: Run) -> list[Order]:
        return [
            order
            for order in run.orders()
            if isinstance(order, StartChild | CancelChild | AskParent | SettleChild)
        ]

    def start(self, parent: Run, name: str) -> Run:
        """Create the child of a durable lease, and say so in the parent's log."""
        assert StartChild(name) in parent.orders()
        event, encoded = child_start(parent.state, parent.state.calls[name])
        if event.run_id not in self.runs:
            self.runs[event.run_id] = Run(
                read_pins(event.pins_sha256, encoded), ledger=self.ledger, now=parent.now, started=event
            )
        parent.send(ChildOpened(call=name))
        self.check()
        return self.runs[event.run_id]

    def settle(self, parent: Run, name: str) -> bool:
        """Whether the child had ended, and was settled."""
        assert SettleChild(name) in parent.orders()
        child = self.child(parent, name)
        if child.state.phase != "terminated":
            return False
        parent.now = max(parent.now, child.now)
        parent.send(ended_child(name, child.state))
        self.check()
        return True

    def cancel(self, parent: Run, name: str) -> None:
        assert CancelChild(name) in parent.orders()
        child = self.child(parent, name)
        child.now = max(child.now, parent.now)
        child.send(cancel_by_parent(parent.state.run_id, child.state.run_id))

    def ask(self, run: Run) -> bool:
        """The open question to the runs above; whether one of them gave something."""
        order = next(order for order in run.orders() if isinstance(order, AskParent))
        answer = self.answer_from_above(run.state, dict(order.asked))
        run.send(answer)
        self.check()
        return isinstance(answer, RaiseLease)

    def answer_from_above(self, child: State, asked: Short) -> RaiseLease | NothingLeft | Cancel:
        parent = self.runs[child.parent_run]
        subject = parent.state.calls.get(child.parent_call)
        if subject is None or subject.phase != "waiting_child":
            return NothingLeft(limits=tuple(asked))
        if ends_children(parent.state):
            return cancel_by_parent(parent.state.run_id, child.run_id)
        command = self.question(child, asked)
        for _ in range(2):
            raised = lease_raise(child, lease_of(subject))
            if raised is not None:
                return raised
            parent.send(command)
            self.check()
            if parent.refusal == "nothing_left" and parent.state.parent_run:
                further = self.answer_from_above(parent.state, short_of(parent.state, asked))
                if isinstance(further, NothingLeft):
                    break
                parent.send(further)
                if isinstance(further, Cancel):
                    return cancel_by_parent(parent.state.run_id, child.run_id)
                parent.send(command)
            elif parent.refusal:
                break
        raised = lease_raise(child, lease_of(subject))
        return NothingLeft(limits=tuple(asked)) if raised is None else raised

    def question(self, child: State, asked: Short) -> TopUpChild:
        return TopUpChild(
            command_id=top_up_id(child, asked),
            by=run_name(child.run_id),
            call=child.parent_call,
            child_run=child.run_id,
            asked=asked,
        )

    # --- all at once -------------------------------------------------------------------------------------------------

    def serve(self, rounds_max: int = 10_000) -> None:
        """Carry out orders about other runs until none is left that changes anything."""
        cancelled: set[tuple[str, str]] = set()
        for _ in range(rounds_max):
            if not any(self._serve_one(run, cancelled) for run in list(self.runs.values())):
                return
        raise AssertionError("the family does not come to rest")

    def _serve_one(self, run: Run, cancelled: set[tuple[str, str]]) -> bool:
        for order in self.orders(run):
            match order:
                case StartChild():
                    self.start(run, order.call)
                    return True
                case AskParent():
                    self.ask(run)
                    return True
                case SettleChild():
                    if self.settle(run, order.call):
                        return True
                case CancelChild():
                    place = (run.state.run_id, order.call)
                    if place not in cancelled:
                        cancelled.add(place)
                        self.cancel(run, order.call)
                        return True
                case _:
                    pass
        return False


def helped(bounds: LimitValues | None = None, *inputs: str, tool: str = "helper", **options: Any) -> Family:
    """A root whose first turn calls an agent once for each input, all checked, reserved and started."""
    family = Family(None if bounds is None else family_pins(bounds=bounds), **options)
    root = family.root
    root.reply(*(call(tool, input=text) for text in inputs or ("go",)))
    for number in range(len(inputs or ("go",))):
        root.check(f"c1.{number}")
    for number in range(len(inputs or ("go",))):
        if root.phase(f"c1.{number}") == "waiting_child":
            family.start(root, f"c1.{number}")
    return family


def reserved(run: Run) -> list[e.ChildReserved]:
    return [event for event, _ in run.log if isinstance(event, e.ChildReserved)]
