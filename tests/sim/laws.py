"""The laws, checked after every append and at every request that reaches a far side or a model.

The judge keeps a fold of its own of every run, event by event, and counts for itself: appends that were answered with
yes, intents, results, requests, effects, approvals as the person gave them. Where the world knows better than the code,
the world is asked. The names are those of ``docs/simulation.md``. The first broken law ends the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from boundloop.eventstore.codec import decode_events, spilled
from boundloop.eventstore.history import pins_from
from boundloop.eventstore.port import Append
from boundloop.eventstore.verify import verify_store
from boundloop.runtime import events as e
from boundloop.runtime.canonical import canonical_bytes, decode_canonical
from boundloop.runtime.errors import BugError
from boundloop.runtime.fold import begin, evolve
from boundloop.runtime.invariants import check_state, check_tree
from boundloop.runtime.model import ModelInput
from boundloop.runtime.state import METERED, State, state_digest

from .far_side import Request
from .shop import EFFECTS, FAR_SIDES

if TYPE_CHECKING:
    from .world import World

PREFIXES: Final = 10
"""How many prefixes of each log are folded from nothing at the end."""

_ASKS_A_PERSON: Final = frozenset({"refund"})
_DEFAULTS: Final[dict[str, Any]] = {"reason": ""}
_COUNTED: Final[dict[type[e.Event], str]] = {
    e.ModelRequested: "model_attempts",
    e.ModelResponded: "turns",
    e.CallStarted: "call_attempts",
    e.ChildReserved: "children",
}


class Broken(Exception):
    """A law doesn't hold."""


class RunWatch:
    """What the judge knows of one run."""

    def __init__(self, state: State, started: e.RunStarted, at_ms: int, root_id: str) -> None:
        self.state = state
        self.root_id = root_id
        self.epoch = 0
        self.log: list[tuple[e.AnyEvent, int]] = [(started, at_ms)]
        self.digests: dict[int, bytes] = {}
        self.requested: set[tuple[int, int]] = set()
        self.asked: set[tuple[int, int]] = set()
        self.started: set[tuple[str, int]] = set()
        self.sent: set[tuple[str, int]] = set()
        self.proposed: set[str] = set()
        self.bound: set[str] = set()
        self.tools: dict[str, str] = {}
        self.arguments: dict[str, bytes] = {}
        self.keys: dict[str, str] = {}
        self.yes: dict[str, str] = {}
        self.succeeded: dict[str, int] = {}
        self.last_response: e.ModelResponded | None = None
        self.last_tag = ""
        self.cancelled = False
        self.ended = False
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self.requests = 0


class Judge:
    """``violation`` is the first law that broke, as (law, what happened)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: dict[str, RunWatch] = {}
        self.violation: tuple[str, str] | None = None
        self.events = 0
        self.checks = 0
        self._counts: dict[tuple[str, str], int] = {}
        self.walked: set[tuple[str, str, str]] = set()

    def broken(self, law: str, what: str) -> None:
        """Remember the first violation; whoever plays the world stops then."""
        if self.violation is None:
            self.violation = (law, what)
            self._world.note("LAW", f"{law}: {what}")

    # --- after each append -------------------------------------------------------------------------------------------

    def committed(self, request: Append, first_head: bytes) -> None:
        """An append was made. ``first_head`` is the chain head that it followed, by the store's own row."""
        try:
            self._committed(request, first_head)
        except BugError as error:
            law = "I13" if error.code.startswith("unbound") else "I14" if error.code == "completion" else "I7"
            self.broken(law, f"{request.run_id}: {error}")
        except Broken as broken:
            law, what = broken.args
            self.broken(law, f"{request.run_id}: {what}")

    def _committed(self, request: Append, first_head: bytes) -> None:
        body = request.body
        marker = spilled(body)
        if marker is not None:
            body = dict(request.blobs)[marker.sha256]
        events = decode_events(body)
        watch = self.runs.get(request.run_id)
        at = 0
        if watch is None:
            watch = self._begun(request, events[0])
            at = 1
        if request.expected_seq + at != watch.state.seq:
            raise Broken("I2", f"an append after seq {request.expected_seq} in a log of {watch.state.seq}")
        if request.prev_hash != first_head:
            raise Broken("I11", "an append that doesn't follow the head")
        if request.epoch < watch.epoch:
            raise Broken("I3", f"an append of epoch {request.epoch} after {watch.epoch}")
        watch.epoch = request.epoch
        for event in events[at:]:
            self._take(watch, event, request.at_ms)
        self.events += len(events)
        if watch.state.seq != request.expected_seq + request.event_count:
            raise Broken("I2", f"{request.event_count} events lead to seq {watch.state.seq}")
        watch.digests[watch.state.seq] = state_digest(watch.state)
        self._check_family(watch)

    def _begun(self, request: Append, event: e.AnyEvent) -> RunWatch:
        if not isinstance(event, e.RunStarted):
            raise Broken("I2", "a log that doesn't begin with run_started")
        blobs = dict(request.blobs)
        encoded = blobs.get(event.pins_sha256) or self._world.store.blob(event.pins_sha256)
        state = begin(event, pins_from(event.pins_sha256, encoded), request.at_ms)
        parent = self.runs.get(event.parent_run)
        watch = RunWatch(state, event, request.at_ms, request.run_id if parent is None else parent.root_id)
        self.runs[request.run_id] = watch
        self._world.people.notices(request.run_id, event)
        return watch

    def _take(self, watch: RunWatch, event: e.AnyEvent, at_ms: int) -> None:
        state = watch.state
        tag = e.tag_of(event)
        self.walked.add(("run", state.phase, tag))
        call = state.calls.get(getattr(event, "call", ""))
        if call is not None:
            self.walked.add(("call", call.phase, tag))
        self._before(watch, event)
        evolve(state, event, at_ms)
        watch.log.append((event, at_ms))
        watch.last_tag = tag
        check_state(state)
        self.checks += 1
        self._after(watch, event)
        self._world.people.notices(state.run_id, event)

    def _before(self, watch: RunWatch, event: e.AnyEvent) -> None:
        """What must not follow what is in the log."""
        if watch.ended and not isinstance(event, e.CallReconciled):
            raise Broken("I6", f"{e.tag_of(event)} after the end")
        if watch.cancelled and isinstance(event, e.CallStarted | e.ModelRequested | e.ChildReserved):
            raise Broken("I8", f"{e.tag_of(event)} after the cancel")
        counted = _COUNTED.get(type(event))
        if counted is not None:
            self._count(watch, counted)
        match event:
            case e.CallProposed():
                if event.call in watch.proposed:
                    raise Broken("I13", f"{event.call} is proposed twice")
                watch.proposed.add(event.call)
                watch.tools[event.call] = event.tool
            case e.ResultBound():
                if event.call in watch.bound or event.call not in watch.proposed:
                    raise Broken("I13", f"{event.call} is bound twice, or was never proposed")
                watch.bound.add(event.call)
                self._bound(watch, event)
            case e.ModelRequested():
                watch.requested.add((event.turn, event.attempt))
                self._all_bound(watch, "a model request")
            case e.RunTerminated():
                watch.ended = True
                self._all_bound(watch, "the end")
                self._judge_end(watch, event)
            case e.CancelRequested():
                watch.cancelled = True
            case e.ModelResponded():
                watch.last_response = event
            case e.CallStarted():
                if (event.call, event.attempt) in watch.started:
                    raise Broken("I4", f"the intent of {event.call}, attempt {event.attempt}, is there twice")
                if event.call in watch.bound:
                    raise Broken("I13", f"{event.call} starts after its result")
                watch.started.add((event.call, event.attempt))
            case e.ApprovalDecided():
                if event.decision == "approve":
                    watch.yes[event.call] = event.approval_id
            case e.ApprovalLapsed():
                watch.yes.pop(event.call, None)
            case _:
                pass

    def _after(self, watch: RunWatch, event: e.AnyEvent) -> None:
        if isinstance(event, e.CallValidated):
            call = watch.state.calls[event.call]
            watch.arguments[event.call] = call.arguments or b""
            watch.keys[event.call] = "" if event.key is None else event.key.hex()

    def _all_bound(self, watch: RunWatch, before: str) -> None:
        if watch.proposed != watch.bound:
            raise Broken("I13", f"{sorted(watch.proposed - watch.bound)} not bound before {before}")

    def _bound(self, watch: RunWatch, event: e.ResultBound) -> None:
        """A success of an effect is a thing that its far side knows of."""
        if event.status != "ok":
            return
        tool = watch.tools[event.call]
        watch.succeeded[tool] = watch.succeeded.get(tool, 0) + 1
        if tool in EFFECTS and self._world.far_side.happened(watch.keys.get(event.call, "")) is None:
            raise Broken("I14", f"{event.call} {tool} succeeded and its far side knows nothing of it")

    def _judge_end(self, watch: RunWatch, event: e.RunTerminated) -> None:
        if event.outcome != "completed":
            return
        last = watch.last_response
        if last is None or last.finish != "final" or not last.text.strip():
            raise Broken("I14", "completed without a final answer")
        goal = watch.state.pins.goal
        for wanted in () if goal is None else goal.evidence:
            if watch.succeeded.get(wanted.tool, 0) < wanted.count:
                raise Broken("I14", f"completed without {wanted.name()}")

    # --- counts, over a run and over its tree ------------------------------------------------------------------------

    def _count(self, watch: RunWatch, name: str) -> None:
        """What is counted here is never above what its run, and the run at the top, were granted."""
        for run_id in {watch.state.run_id: 0, watch.root_id: 0}:
            place = (run_id, f"{name}{'' if run_id == watch.root_id else ' alone'}")
            count = self._counts[place] = self._counts.get(place, 0) + 1
            if run_id not in self.runs:
                continue
            limit = getattr(self.runs[run_id].state.limits, name)
            if count > limit:
                raise Broken("I7", f"{count} {name} in the tree of {run_id}, limit {limit}")

    def _check_family(self, watch: RunWatch) -> None:
        family = {
            run_id: other.state for run_id, other in self.runs.items() if other.root_id == watch.root_id
        }
        if len(family) > 1:
            check_tree(family)
            self._check_leases(family)

    def _check_leases(self, family: Mapping[str, State]) -> None:
        """Counted from the leases themselves: what runs below have is set aside above."""
        for state in family.values():
            for call in state.calls.values():
                child = None if call.child is None else family.get(call.child.run_id)
                if child is None or call.child is None or call.phase != "waiting_child":
                    continue
                for name in METERED:
                    meter = getattr(child.meters, name)
                    lease = call.child.granted.get(name)
                    if lease is not None and meter.granted > lease:
                        raise Broken("I7", f"{child.run_id} has {meter.granted} {name} of {lease}")

    # --- what the world sees -----------------------------------------------------------------------------------------

    def acknowledged(self, request: Append) -> None:
        """A host was told yes."""
        watch = self.runs.get(request.run_id)
        if watch is None:
            self.broken("I1", f"{request.run_id}: a yes to an append that wasn't made")
            return
        watch.acknowledged.append((request.expected_seq + 1, request.event_count, request.hash))

    def live(self, run_id: str, state: State) -> None:
        """A host's state after an append, as it goes on from it."""
        watch = self.runs[run_id]
        if state_digest(state) != watch.digests.get(state.seq):
            self.broken("I9", f"{run_id}: the live state at seq {state.seq} isn't what its log folds to")

    def model_asked(self, request: ModelInput) -> None:
        """A request reached the model."""
        watch = self.runs.get(request.run_id)
        place = (request.turn, request.attempt)
        if watch is None or place not in watch.requested:
            self.broken("I7", f"{request.run_id}: turn {place} was asked for without an intent")
            return
        if place in watch.asked:
            self.broken("I7", f"{request.run_id}: turn {place} was asked for twice")
        watch.asked.add(place)

    def arrived(self, request: Request) -> None:
        """A request reached a far side, and is about to take effect."""
        watch = self.runs.get(request.run)
        name = f"{request.run} {request.call} {request.tool}, attempt {request.attempt}"
        place = (request.call, request.attempt)
        self._world.trace(f"{name} {request.key}")
        if watch is None or place not in watch.started:
            self.broken("I4", f"{name}: sent without an intent")
            return
        watch.requests += 1
        if place in watch.sent:
            self.broken("I4", f"{name}: one intent was sent twice")
        watch.sent.add(place)
        if request.tool != watch.tools.get(request.call) or request.key != watch.keys.get(request.call):
            self.broken("I5", f"{name}: another tool or key than was validated")
        if not _same(watch.arguments.get(request.call, b"{}"), request.arguments):
            self.broken("I5", f"{name}: {request.arguments} aren't the validated arguments")
        if request.tool not in EFFECTS:
            return
        if FAR_SIDES[request.tool] in ("queryable", "none") and request.key in self._world.far_side.effects:
            self.broken("I4", f"{name}: a second request for an effect that happened")
        if request.tool in _ASKS_A_PERSON:
            approval = watch.yes.get(request.call, "")
            if not self._world.people.said_yes(approval, request.arguments):
                self.broken("I5", f"{name}: no person approved {request.arguments}")

    # --- folds from nothing, and the end -----------------------------------------------------------------------------

    def fork(self, run_id: str) -> State | None:
        """A state of its own, folded from nothing, as it stands now."""
        watch = self.runs.get(run_id)
        return None if watch is None else self._folded(watch, frozenset())

    def refold(self, run_id: str, chance: Any) -> None:
        """The log folds to the live states at these prefixes, and to the present one."""
        watch = self.runs[run_id]
        seqs = list(watch.digests)
        self._folded(watch, frozenset(chance.sample(seqs, k=min(PREFIXES, len(seqs)))) | {seqs[-1]})

    def _folded(self, watch: RunWatch, compare: frozenset[int]) -> State:
        started, at_ms = watch.log[0]
        assert isinstance(started, e.RunStarted)
        state = begin(started, watch.state.pins, at_ms)
        for event, at_ms in watch.log[1:]:
            evolve(state, event, at_ms)
            if state.seq in compare and state_digest(state) != watch.digests[state.seq]:
                self.broken("I9", f"{state.run_id}: folded from nothing it differs at seq {state.seq}")
        return state

    async def verify(self) -> None:
        """At the end: every log as it was acknowledged, every chain, and the ledger."""
        store = self._world.store
        for run_id, watch in self.runs.items():
            rows = await store.read(run_id, rows_max=10_000)
            stored = {(row.first_seq, row.event_count, row.hash) for row in rows}
            for place in watch.acknowledged:
                if place not in stored:
                    self.broken("I1", f"{run_id}: the acknowledged append at seq {place[0]} is gone")
            events = [event for row in rows for event in decode_events(await _body(store, row.body))]
            if events != [event for event, _ in watch.log]:
                self.broken("I1", f"{run_id}: the log isn't what was appended")
            self.refold(run_id, self._world.dice("prefixes", run_id))
        verdict = await verify_store(store)
        if not verdict.ok:
            faults = [*verdict.faults, *(str(run) for run in verdict.runs if not run.ok)]
            self.broken("I11", "; ".join(faults)[:600])


async def _body(store: Any, body: bytes) -> bytes:
    marker = spilled(body)
    if marker is None:
        return body
    whole: bytes = await store.get_blob(marker.sha256)
    assert sha256(whole).digest() == marker.sha256
    return whole


def _same(validated: bytes, received: Mapping[str, Any]) -> bool:
    """Equal as JSON, but for defaults that the tool's own signature adds."""
    given = decode_canonical(validated)
    if not isinstance(given, dict):
        return False
    return canonical_bytes({**_without(received, given)}) == canonical_bytes(given)


def _without(received: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in received.items()
        if name in given or value != _DEFAULTS.get(name, object())
    }
