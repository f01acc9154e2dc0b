"""The laws, checked after every append and at every request that reaches a far side or a model.

The judge keeps a fold of its own of every run, event by event, and counts for itself: appends that were answered with
yes, intents, results, requests, effects, approvals as the person gave them. Where the world knows better than the code,
the world is asked. The names are those of ``docs/simulation.md``. The first broken law ends the seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from boundloop.eventstore.codec import decode_events, spilled
from boundloop.eventstore.history import pins_from
from boundloop.eventstore.port import Append
from boundloop.eventstore.verify import verify_store
from boundloop.runtime import events as e
from boundloop.runtime.canonical import decode_canonical
from boundloop.runtime.errors import BugError
from boundloop.runtime.fold import begin, evolve
from boundloop.runtime.invariants import check_state, check_tree
from boundloop.runtime.model import AssistantItem, Item, ModelInput, ResultItem, UserItem
from boundloop.runtime.state import METERED, State, state_digest

from .far_side import Request
from .people import same_arguments
from .promises import Broken, Promises
from .shop import EFFECTS, FAR_SIDES, ONE_A_KEY

if TYPE_CHECKING:
    from .world import World

PREFIXES: Final = 10
"""How many prefixes of each log are compared with a fold from nothing, at the end and when its host dies."""

CANCEL_MS_MAX: Final = 90_000
"""A cancelled run waits for what is out, at most its validity and the margin, and asks its far side at most five times."""

PREFIX_EVERY: Final = 3
"""Every so many appends of a run its state is kept, as a digest, for that."""

_ASKS_A_PERSON: Final = frozenset({"refund"})
_OUTSIDERS: Final = frozenset({"mail"})
"""Tools whose results outsiders write: effects that are proposed after one of them need a person."""

_COUNTED: Final[dict[type[e.Event], str]] = {
    e.ModelRequested: "model_attempts",
    e.ModelResponded: "turns",
    e.CallStarted: "call_attempts",
    e.ChildReserved: "children",
}


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
        self.expiries: dict[str, int] = {}
        self.resumed_epoch = 0
        self.succeeded: dict[str, int] = {}
        self.last_response: e.ModelResponded | None = None
        self.last_tag = ""
        self.cancelled = False
        self.cancelled_ms = 0
        self.ended = False
        self.ended_ms = 0
        self.appends: list[tuple[int, int, bytes]] = []
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self.requests = 0
        self.messages: list[str] = []
        self.messages_due: list[str] = []
        self.message_after_request = False
        self.tainted = any(source.declared for source in started.tainted_by)
        self.tainted_at_request = self.tainted
        self.needs_yes: set[str] = set()
        self.stage = 0
        self.stage_of: dict[str, int] = {}
        self.left: dict[str, int] = {}


class Judge:
    """``violation`` is the first law that broke, as (law, what happened)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: dict[str, RunWatch] = {}
        self.promises = Promises(world)
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
        watch.appends.append((request.expected_seq + 1, request.event_count, request.hash))
        if len(watch.appends) % PREFIX_EVERY == self._world.plan.seed % PREFIX_EVERY:
            watch.digests[watch.state.seq] = state_digest(watch.state)
        waits = request.index.waiting_for or request.index.status in ("suspended", "terminated")
        if request.release and not request.ready and not waits:
            raise Broken("I12", f"it is let go of at {request.index.status}, and waits for nobody by name")
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
        self.promises.begun(state, None if parent is None else parent.state)
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
        if isinstance(event, e.CallStarted) and at_ms >= watch.expiries.get(
            watch.yes.get(event.call, ""), at_ms + 1
        ):
            raise Broken("I5", f"{event.call} starts after its approval expired")
        self.promises.before(watch, event)
        evolve(state, event, at_ms)
        watch.log.append((event, at_ms))
        watch.last_tag = tag
        check_state(state)
        self.checks += 1
        self._after(watch, event)
        self.promises.after(watch, event)
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
                watch.stage_of[event.call] = watch.stage
                if watch.tainted_at_request:
                    watch.needs_yes.add(event.call)
            case e.ResultBound():
                if event.call in watch.bound or event.call not in watch.proposed:
                    raise Broken("I13", f"{event.call} is bound twice, or was never proposed")
                watch.bound.add(event.call)
                self._bound(watch, event)
            case e.ModelRequested():
                watch.requested.add((event.turn, event.attempt))
                watch.tainted_at_request = watch.tainted
                if watch.last_response is None or watch.last_response.finish != "paused":
                    # Into a turn that the provider paused nothing is put; what people said comes after it.
                    watch.messages_due = list(watch.messages)
                    watch.message_after_request = False
                self._all_bound(watch, "a model request")
            case e.RunTerminated():
                watch.ended = True
                watch.ended_ms = self._world.loop_ms()
                self._all_bound(watch, "the end")
                self._judge_end(watch, event)
            case e.CancelRequested():
                watch.cancelled = True
                watch.cancelled_ms = self._world.loop_ms()
            case e.ModelResponded():
                watch.last_response = event
            case e.CallStarted():
                if (event.call, event.attempt) in watch.started:
                    raise Broken("I4", f"the intent of {event.call}, attempt {event.attempt}, is there twice")
                if event.call in watch.bound:
                    raise Broken("I13", f"{event.call} starts after its result")
                watch.started.add((event.call, event.attempt))
                self._judge_stage(watch, event.call)
            case e.MessageReceived():
                if event.source == "user":
                    watch.messages.append(event.text)
                    watch.message_after_request = True
            case e.StageEntered():
                self._entered(watch)
            case e.QuestionAnswered():
                said = None if event.result is None else decode_canonical(event.result)
                if event.result is not None and not self._world.people.answered(event.question_id, said):
                    raise Broken("I5", f"{event.call}: nobody answered {said!r}")
            case e.ChildSettled():
                watch.tainted = watch.tainted or any(source.declared for source in event.tainted_by)
            case e.RunResumed() if event.host:
                if event.epoch <= watch.resumed_epoch:
                    raise Broken("I3", f"epoch {event.epoch} is opened after {watch.resumed_epoch}")
                watch.resumed_epoch = event.epoch
            case e.ApprovalRequested():
                if event.approval_id in watch.expiries:
                    raise Broken("I5", f"{event.approval_id} asks for a second decision")
                watch.expiries[event.approval_id] = event.expires_at_ms
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
        watch.tainted = watch.tainted or tool in _OUTSIDERS
        if watch.stage_of.get(event.call) == watch.stage:
            watch.left[tool] = watch.left.get(tool, 0) + 1
        if tool in EFFECTS and self._world.far_side.happened(watch.keys.get(event.call, "")) is None:
            raise Broken("I14", f"{event.call} {tool} succeeded and its far side knows nothing of it")

    def _judge_end(self, watch: RunWatch, event: e.RunTerminated) -> None:
        if event.outcome != "completed":
            return
        last = watch.last_response
        if last is None or last.finish != "final" or not last.text.strip():
            raise Broken("I14", "completed without a final answer")
        if watch.message_after_request:
            raise Broken("I14", "completed by an answer that didn't know a message")
        if watch.stage + 1 < len(watch.state.pins.stages):
            raise Broken("I14", "completed before its last stage")
        goal = watch.state.pins.goal
        for wanted in () if goal is None else goal.evidence:
            if watch.succeeded.get(wanted.tool, 0) < wanted.count:
                raise Broken("I14", f"completed without {wanted.name()}")

    def _judge_stage(self, watch: RunWatch, call: str) -> None:
        stages = watch.state.pins.stages
        if stages and watch.tools[call] not in stages[watch.stage_of[call]].tools:
            raise Broken("I5", f"{call} {watch.tools[call]} starts in a stage that doesn't offer it")

    def _entered(self, watch: RunWatch) -> None:
        """A stage is left by bound successes of calls that were proposed in it."""
        for wanted in watch.state.pins.stages[watch.stage].leave:
            if watch.left.get(wanted.tool, 0) < wanted.count:
                raise Broken("I14", f"stage {watch.stage} is left without {wanted.name()}")
        watch.stage += 1
        watch.left.clear()

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
        folded = watch.state
        if state.seq != folded.seq:  # it heard late of its append, and another host went on
            folded = self._folded(watch, frozenset(), to_seq=state.seq)
        if state != folded:
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
        wrong = _unpaired(request.items)
        if wrong:
            self.broken("I13", f"{request.run_id}: turn {place} is asked with {wrong}")
        said = {item.text for item in request.items if isinstance(item, UserItem)}
        missing = [text for text in watch.messages_due if text not in said]
        if missing:
            self.broken("I14", f"{request.run_id}: turn {place} is asked without {missing[0]!r}")

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
        validated = decode_canonical(watch.arguments.get(request.call, b"null"))
        if not same_arguments(validated, request.arguments):
            self.broken("I5", f"{name}: {request.arguments} aren't the validated arguments")
        if request.tool not in EFFECTS:
            return
        counted = FAR_SIDES[request.tool] in ("queryable", "none") and request.tool not in ONE_A_KEY
        if counted and request.key in self._world.far_side.effects:
            self.broken("I4", f"{name}: a second request for an effect that happened")
        if request.tool in _ASKS_A_PERSON or request.call in watch.needs_yes:
            approval = watch.yes.get(request.call, "")
            if not self._world.people.said_yes(approval, request.arguments):
                self.broken("I5", f"{name}: no person approved {request.arguments}")

    def cancels(self, calm_ms: int) -> None:
        """At rest: a cancelled run and all below it ended soon, counted from the last fault if that came later."""
        for run_id, watch in self.runs.items():
            above = watch
            while not above.cancelled and above.state.parent_run in self.runs:
                above = self.runs[above.state.parent_run]
            if not above.cancelled:
                continue
            took_ms = watch.ended_ms - max(above.cancelled_ms, calm_ms)
            if not watch.ended or took_ms > CANCEL_MS_MAX:
                took = f"ended {took_ms} ms later" if watch.ended else "doesn't end"
                self.broken("I8", f"{above.state.run_id} was cancelled and {run_id} {took}")

    # --- folds from nothing, and the end -----------------------------------------------------------------------------

    def fork(self, run_id: str) -> State | None:
        """A state of its own, folded from nothing, as it stands now."""
        watch = self.runs.get(run_id)
        return None if watch is None else self._folded(watch, frozenset())

    def refold(self, run_id: str, chance: Any) -> None:
        """The log folds to the live states at these prefixes, and to the present one."""
        watch = self.runs[run_id]
        seqs = list(watch.digests)
        state = self._folded(watch, frozenset(chance.sample(seqs, k=min(PREFIXES, len(seqs)))))
        if state != watch.state:
            self.broken("I9", f"{run_id}: folded from nothing it differs at seq {state.seq}")

    def _folded(self, watch: RunWatch, compare: frozenset[int], to_seq: int = 0) -> State:
        started, at_ms = watch.log[0]
        assert isinstance(started, e.RunStarted)
        state = begin(started, watch.state.pins, at_ms)
        for event, at_ms in watch.log[1:]:
            evolve(state, event, at_ms)
            if state.seq == to_seq:
                break
            if state.seq in compare and state_digest(state) != watch.digests[state.seq]:
                self.broken("I9", f"{state.run_id}: folded from nothing it differs at seq {state.seq}")
        return state

    async def verify(self) -> None:
        """At the end: every log as it was acknowledged, every chain, and the ledger."""
        store = self._world.store
        for run_id, watch in self.runs.items():
            rows = await store.read(run_id, rows_max=10_000)
            stored = [(row.first_seq, row.event_count, row.hash) for row in rows]
            for place in watch.acknowledged:
                if place not in stored:
                    self.broken("I1", f"{run_id}: the acknowledged append at seq {place[0]} is gone")
            # That the bytes are those of the hashes is what ``verify_store`` computes.
            if stored != watch.appends:
                self.broken("I1", f"{run_id}: the log isn't what was appended")
            self.refold(run_id, self._world.dice("prefixes", run_id))
        verdict = await verify_store(store)
        if not verdict.ok:
            faults = [*verdict.faults, *(str(run) for run in verdict.runs if not run.ok)]
            self.broken("I11", "; ".join(faults)[:600])


def _unpaired(items: Sequence[Item]) -> str:
    """What is wrong with the calls and results of a request: each call is followed by its one result, with nothing else
    in between."""
    opened: set[str] = set()
    for item in items:
        if isinstance(item, ResultItem):
            if item.call_id not in opened:
                return f"a result without its call: {item.call_id}"
            opened.discard(item.call_id)
        elif opened:
            return f"calls without results: {sorted(opened)}"
        elif isinstance(item, AssistantItem):
            opened = {call.call_id for call in item.calls}
    return f"calls without results: {sorted(opened)}" if opened else ""
