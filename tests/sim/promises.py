"""Laws over what the world saw for itself: when it was asked, what it was told, whose intent a key stands for.

The judge (``laws.py``) calls ``before`` and ``after`` for each event; hosts, executors, models and people tell the rest as
it happens. Where a time decides, it is the world's own, so a check that was asked for too early or a question that was
sent too early is seen whether or not harm came of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from boundloop.runtime import events as e
from boundloop.runtime.canonical import canonical_bytes, decode_canonical
from boundloop.runtime.limits import MARGIN_MS
from boundloop.runtime.model import ModelInput, Usage
from boundloop.runtime.policy import PolicyQuestion
from boundloop.runtime.state import State

from .shop import EFFECTS, KEYS, declared_limits, without_incidental

if TYPE_CHECKING:
    from .laws import RunWatch
    from .world import World

HOST_DEATHS_MAX: Final = 3

ABSURD: Final = 2**40
"""Tokens that no provider can mean; what is stored of such a number may be less."""

STAMPED: Final = frozenset({"status"})
"""Reads that say the same of an order for ever, and the moment beside it."""

_MONEY: Final = ("input_tokens", "output_tokens", "total_tokens", "cost_micros")
_SETTLES: Final = (
    e.ModelResponded,
    e.ModelFailed,
    e.ChildSettled,
    e.CallExecuted,
    e.LimitsRaised,
)
_INTENTS: Final = (e.ModelRequested, e.CallStarted, e.ChildReserved)


class Broken(Exception):
    """A law doesn't hold: (law, what happened)."""


class Kept:
    """What is kept of one run."""

    def __init__(self) -> None:
        self.deaths: set[int] = set()
        self.turn_calls: list[str] = []
        self.valid_until_ms: dict[str, int] = {}
        self.shown_version: dict[str, str] = {}
        self.recheck_after_s: dict[str, float] = {}
        self.unclear: set[str] = set()
        self.leases: dict[str, dict[str, int]] = {}
        self.equal: dict[tuple[str, bytes], int] = {}
        self.equal_before: dict[tuple[str, bytes], int] = {}
        self.request: e.ModelRequested | None = None


class Promises:
    """``broken`` raises; who is called by the judge lets that be its violation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: dict[str, Kept] = {}
        self._intents: dict[tuple[str, ...], str] = {}
        self._key_of: dict[str, tuple[str, ...]] = {}
        self._policy_asked_s: dict[tuple[str, str, bytes], float] = {}
        self._versions: dict[bytes, dict[str, float]] = {}
        self._failed_s: dict[str, float] = {}
        self._query_sent_ms: dict[str, int] = {}
        self._usage: dict[tuple[str, int, int], Usage | None] = {}
        self._born_cancelled: set[str] = set()
        """Runs that were made, or given leave to begin, after a cancel of their parent."""

    # --- what is told as it happens ----------------------------------------------------------------------------------

    def policy_asked(self, question: PolicyQuestion) -> None:
        about = (question.operation_id, question.tool, canonical_bytes(dict(question.arguments)))
        self._policy_asked_s[about] = self._world.loop.now_s

    def version_told(self, arguments: bytes, version: str) -> None:
        """What somebody who checks was told of the resource."""
        self._versions.setdefault(arguments, {})[version] = self._world.loop.now_s

    def append_failed(self, run_id: str) -> None:
        """A host was told that its append failed: what it decided for this run before is of no use any more."""
        self._failed_s[run_id] = self._world.loop.now_s

    def query_sent(self, key: str) -> None:
        """The last question about a key that left a host, by the store's clock."""
        self._query_sent_ms[key] = self._world.now_ms()

    def usage_said(self, request: ModelInput, usage: Usage | None) -> None:
        """What the provider reports of a request. Of one without an answer nothing is ever said."""
        self._usage[(request.run_id, request.turn, request.attempt)] = usage

    # --- what the judge tells ----------------------------------------------------------------------------------------

    def begun(self, state: State, parent: State | None) -> None:
        """A run is there."""
        if parent is not None and state.deadline_at_ms > parent.deadline_at_ms:
            raise Broken("I7", f"{state.run_id} has until {state.deadline_at_ms}, after {parent.run_id}")
        if parent is not None and parent.cancel_reason:
            self._born_cancelled.add(state.run_id)

    def before(self, watch: RunWatch, event: e.AnyEvent) -> None:
        """An event is about to be folded."""
        kept = self._of(watch)
        if isinstance(event, _INTENTS) and watch.state.run_id in self._born_cancelled:
            raise Broken("I8", f"{e.tag_of(event)}, and its parent was cancelled before it could begin")
        match event:
            case e.ChildStarted() if watch.cancelled:
                self._born_cancelled.add(event.child_run)
            case e.RunResumed():
                self._resumed(kept, event)
            case e.RunSuspended() | e.RunTerminated() if event.reason == "crash_loop":
                if len(kept.deaths) < HOST_DEATHS_MAX:
                    raise Broken("I12", f"{len(kept.deaths)} hosts died, and it is stopped as crash_loop")
            case e.ModelResponded() | e.ModelFailed():
                self._answered(watch, kept, event)
            case e.CallProposed():
                kept.turn_calls.append(event.call)
            case e.CallStarted():
                self._started(watch, kept, event)
            case e.CallExecuted():
                kept.recheck_after_s[event.call] = self._world.loop.now_s
                if event.outcome == "unknown":
                    kept.unclear.add(event.call)
            case e.CallReconciled():
                self._reconciled(watch, kept, event)
            case e.ApprovalRequested():
                kept.shown_version[event.approval_id] = event.resource_version
            case e.ApprovalDecided():
                kept.recheck_after_s[event.call] = self._world.loop.now_s
            case e.ChildReserved() | e.ChildToppedUp():
                self._granted(watch, kept, event)
            case _:
                pass

    def after(self, watch: RunWatch, event: e.AnyEvent) -> None:
        """An event was folded."""
        state = watch.state
        match event:
            case e.ModelRequested():
                self._of(watch).request = event
                self._within(state)
            case e.CallValidated():
                self._validated(watch, event)
            case e.ResultBound() if event.status == "ok":
                self._seen(watch, event)
                if watch.tools[event.call] in EFFECTS:
                    self._bound(watch, event)
            case _:
                pass
        if isinstance(event, _SETTLES):
            for name in _MONEY:
                meter = getattr(state.meters, name)
                if meter.overrun and meter.free > 0:
                    raise Broken("I7", f"{name}: {meter.free} free beside {meter.overrun} overrun")

    def _of(self, watch: RunWatch) -> Kept:
        kept = self._kept.get(watch.state.run_id)
        if kept is None:
            kept = self._kept[watch.state.run_id] = Kept()
        return kept

    # --- epochs ------------------------------------------------------------------------------------------------------

    def _resumed(self, kept: Kept, event: e.RunResumed) -> None:
        """A death counts once, whatever is lifted in between."""
        if event.cause in ("resume", "resolved"):
            kept.deaths.clear()
            return
        if event.cause == "host_died":
            kept.deaths.add(event.epoch)

    # --- intents and keys --------------------------------------------------------------------------------------------

    def _validated(self, watch: RunWatch, event: e.CallValidated) -> None:
        """One intent has one key, and one key stands for one intent, over all runs."""
        tool = watch.tools[event.call]
        if tool not in EFFECTS or event.key is None:
            return
        state, key = watch.state, event.key.hex()
        rule = KEYS[tool]
        given = decode_canonical(state.calls[event.call].arguments or b"{}")
        assert isinstance(given, dict)
        match rule:
            case "call":
                about = f"{state.run_id}/{event.call}".encode()
            case "arguments":
                about = canonical_bytes(without_incidental(tool, given))
            case _:
                about = canonical_bytes({name: given.get(name) for name in rule})
        intent = (state.operation_id, tool, about.decode())
        if self._intents.setdefault(intent, key) != key or self._key_of.setdefault(key, intent) != intent:
            raise Broken("I4", f"{event.call} {tool}: one key for two intents, or two for {intent}")

    def _seen(self, watch: RunWatch, event: e.ResultBound) -> None:
        """How often a read came to the same, but for the moment that it names."""
        kept, tool = self._of(watch), watch.tools[event.call]
        if tool not in STAMPED or event.replayed is not None:
            return
        same = (tool, watch.arguments.get(event.call, b""))
        kept.equal[same] = kept.equal.get(same, 0) + 1

    def _bound(self, watch: RunWatch, event: e.ResultBound) -> None:
        """What is bound as done is what was asked for, but for words that don't matter."""
        tool = watch.tools[event.call]
        asked = decode_canonical(watch.arguments.get(event.call, b"null"))
        acted = self._world.far_side.acted.get(watch.keys.get(event.call, ""))
        if acted is None or not isinstance(asked, dict):
            return  # the judge says so
        if without_incidental(tool, acted) != without_incidental(tool, asked):
            raise Broken("I14", f"{event.call} {tool} is bound as done, and {acted} was done for {asked}")

    def _started(self, watch: RunWatch, kept: Kept, event: e.CallStarted) -> None:
        """Before an intent: its turn ended as a turn with calls, what it must wait for is bound, and it was checked since."""
        call, state = event.call, watch.state
        last = watch.last_response
        if last is None or last.finish != "calls":
            raise Broken("I14", f"{call} starts, and its turn didn't end as a turn with calls")
        kept.valid_until_ms[call] = event.valid_until_ms
        tool = watch.tools[call]
        effect = tool in EFFECTS
        for other in kept.turn_calls:
            if other == call:
                break
            if (effect or watch.tools[other] in EFFECTS) and other not in watch.bound:
                raise Broken("I13", f"{call} starts before {other} is bound")
        if not effect:
            same = (tool, watch.arguments.get(call, b""))
            seen = kept.equal_before.get(same, 0)
            if seen and seen + 1 >= state.limits.equal_results and event.attempt == 1:
                raise Broken("I7", f"{call} {tool} starts after {seen} equal results")
            return
        about = (state.operation_id, tool, watch.arguments.get(call, b""))
        asked_s = self._policy_asked_s.get(about)
        if asked_s is None or asked_s < self._failed_s.get(state.run_id, 0.0):
            raise Broken("I5", f"{call} {tool} starts by verdicts from before an outage of the store")
        approval = watch.yes.get(call)
        if approval is None:
            return
        version = kept.shown_version[approval]
        told_s = self._versions.get(watch.arguments[call], {}).get(version)
        since_s = kept.recheck_after_s.get(call, 0.0)
        if version and call not in kept.unclear and (told_s is None or told_s < since_s):
            raise Broken("I5", f"{call} {tool} starts, and {version} that was approved isn't there any more")

    # --- what nobody knew --------------------------------------------------------------------------------------------

    def _reconciled(self, watch: RunWatch, kept: Kept, event: e.CallReconciled) -> None:
        """``absent`` counts if the question left when nothing could arrive any more."""
        if event.outcome != "absent" or event.by != "query":
            return
        sent_ms = self._query_sent_ms.get(watch.keys[event.call], 0)
        if sent_ms <= kept.valid_until_ms[event.call] + MARGIN_MS:
            raise Broken("I4", f"{event.call} counts as absent by a question that was sent too early")
        kept.unclear.discard(event.call)
        then = self._world.after_absent.pop((watch.state.run_id, event.call), None)
        if then is not None:
            then()

    # --- limits ------------------------------------------------------------------------------------------------------

    def _granted(self, watch: RunWatch, kept: Kept, event: e.ChildReserved | e.ChildToppedUp) -> None:
        """A child never has more than its agent declares."""
        if isinstance(event, e.ChildReserved):
            kept.leases[event.call] = {}
            if event.deadline_at_ms > watch.state.deadline_at_ms:
                raise Broken("I7", f"{event.child_run} may work longer than {watch.state.run_id}")
            agent = event.agent
        else:
            child = watch.state.calls[event.call].child
            agent = "" if child is None else child.agent
        lease = kept.leases[event.call]
        for name, amount in event.granted.items():
            lease[name] = lease.get(name, 0) + amount
            most = declared_limits(agent).get(name)
            if most is not None and lease[name] > most:
                raise Broken("I7", f"the child of {event.call} has {lease[name]} {name}, and declares {most}")

    def _answered(self, watch: RunWatch, kept: Kept, event: e.ModelResponded | e.ModelFailed) -> None:
        """A request costs what its provider reports, and all that was set aside for it where nothing is known, or where
        nobody waited for the answer."""
        request = kept.request
        if isinstance(event, e.ModelResponded):
            kept.turn_calls = []
            kept.equal_before = dict(kept.equal)
        if request is None:
            return
        lost = isinstance(event, e.ModelFailed) and event.code == "lost"
        usage = None if lost else self._usage.get((watch.state.run_id, event.turn, event.attempt))
        spent = (event.spent_input_tokens, event.spent_output_tokens)
        said = (None, None) if usage is None else (usage.input_tokens, usage.output_tokens)
        reserved = (request.input_tokens_bound, request.output_tokens_max)
        given_up = isinstance(event, e.ModelFailed) and spent == reserved
        if not given_up and not all(map(_is_paid, spent, said, reserved)):
            raise Broken(
                "I7", f"turn {event.turn} cost {spent} tokens, reported {said}, set aside {reserved}"
            )

    def _within(self, state: State) -> None:
        """With what is set aside for this request nothing is above what was granted, whatever was overrun before."""
        for name in _MONEY:
            meter = getattr(state.meters, name)
            if meter.spent + meter.reserved > meter.granted:
                raise Broken("I7", f"{name}: {meter.spent} + {meter.reserved} of {meter.granted}")


def _is_paid(spent: int, said: int | None, reserved: int) -> bool:
    if said is None or said < 0:
        return spent == reserved
    return spent == said or ABSURD <= spent < said
