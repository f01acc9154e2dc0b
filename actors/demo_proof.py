"""What the demo proved: judged from the logs, from the counters of the shop and of the model server, and from nothing
that the demo did or meant to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from ..runtime import events as e
from ..runtime.state import METERED, State
from .demo_timeline import counts

E = TypeVar("E")
_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Check(NamedTuple):
    """One thing that must be so, whether it is, and what was found."""

    name: str
    ok: bool
    found: str


class Killed(NamedTuple):
    """The process that was killed: its host, and whether it is gone."""

    pid: int
    host: str
    gone: bool


@dataclass(kw_only=True)
class Found:
    """What was read after the end. ``verified``: runs whose chain is as written, and all that were looked at."""

    events: Sequence[e.AnyEvent]
    state: State
    child_events: Sequence[e.AnyEvent] = ()
    child_state: State | None = None
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    model_requests: Mapping[str, int] = field(default_factory=dict[str, int])
    verified: tuple[int, int] = (0, 0)
    killed: Killed | None = None

    def of(self, kind: type[E]) -> list[E]:
        """The run's events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def calls_of(self, tool: str) -> list[str]:
        """Ids of the calls of a tool that were proposed."""
        return [event.call for event in self.of(e.CallProposed) if event.tool == tool]

    def asked(self, kind: str) -> int:
        """Requests of this kind that the shop saw."""
        return self.counts.get("requests", {}).get(kind, 0)

    def effects(self, kind: str) -> int:
        """Effects of this kind that the shop had."""
        return self.counts.get("effects", {}).get(kind, 0)


def checks(found: Found) -> list[Check]:
    """All of them. The first five are the demo's last line."""
    return [one(found) for one in _CHECKS]


def summary(found: Found) -> str:
    """The last line: what it came to, counted; and that it isn't what was to be proven, if it isn't."""
    made = checks(found)
    words = (
        found.state.outcome or found.state.phase,
        counted(found.effects("refunds"), "refund"),
        f"{counted(len(_host_deaths(found)) if _one_kill(found).ok else 0, 'kill')} survived",
        counted(len(_replayed(found)), "replayed result"),
        counted(len(found.of(e.CallRejected)), "refused call"),
    )
    return ("" if all(check.ok for check in made) else "not proven: ") + ", ".join(words)


def counted(number: int, thing: str) -> str:
    """``one refund``, ``no refund``, ``two refunds``."""
    word = _NUMBERS[number] if number < len(_NUMBERS) else str(number)
    return f"{word} {thing}" if number in (0, 1) else f"{word} {thing}s"


def spent(state: State) -> dict[str, int]:
    """What a run spent, its children included, by the names of its limits."""
    return {name: getattr(state.meters, name).spent for name in METERED}


# --- the checks --------------------------------------------------------------------------------------------------------


def _completed(found: Found) -> Check:
    ends = found.of(e.RunTerminated)
    ok = [(end.outcome, end.reason, end.detail) for end in ends] == [("completed", "final", "")]
    how = ", ".join(f"{end.outcome}: {end.reason} {end.detail}".rstrip() for end in ends) or "it did not end"
    return Check("completed", ok, f"{how}, with the evidence that its goal asks for" if ok else how)


def _one_refund(found: Found) -> Check:
    submits = found.calls_of("submit_refund")[:1]
    unknown = [event.call for event in found.of(e.CallExecuted) if event.outcome == "unknown"]
    settled = [
        event.call
        for event in found.of(e.CallReconciled)
        if (event.outcome, event.by) == ("applied", "query") and event.call in unknown
    ]
    sent, done, queries = found.asked("refunds"), found.effects("refunds"), found.asked("queries")
    ok = (sent, done) == (1, 1) and queries >= 1 and bool(submits) and settled == submits
    text = f"the shop was asked {sent} time, paid {done}; the answer was lost"
    return Check("one refund", ok, f"{text}, {queries} query settled {counts(len(settled), 'call')}")


def _one_kill(found: Found) -> Check:
    deaths, killed = _host_deaths(found), found.killed
    drafts = found.calls_of("draft_refund")
    attempts = [event.attempt for event in found.of(e.CallStarted) if event.call in drafts]
    sent, done = found.asked("drafts"), found.effects("drafts")
    ok = (
        killed is not None
        and killed.gone
        and len(deaths) == 1
        and deaths[0].host not in ("", killed.host)
        and done == 1
        and sent >= 2
        and len(attempts) >= 2
    )
    who = "nobody" if killed is None else f"pid {killed.pid}"
    return Check(
        "one kill survived",
        ok,
        f"SIGKILL to {who}; the draft was asked for {counts(sent, 'time')} and made {counts(done, 'time')}",
    )


def _one_replayed(found: Found) -> Check:
    replayed, submits = _replayed(found), found.calls_of("submit_refund")
    started = {event.call for event in found.of(e.CallStarted)}
    asked = [event.call for event in found.of(e.ApprovalRequested)]
    ok = (
        len(replayed) == 1
        and len(submits) == 2
        and replayed[0].call == submits[1]
        and replayed[0].replayed is not None
        and (replayed[0].replayed.call, replayed[0].replayed.arguments_differ) == (submits[0], True)
        and submits[1] not in started
        and asked == submits[:1]
    )
    calls = ", ".join(event.call for event in replayed) or "no call"
    return Check(
        "one replayed result",
        ok,
        f"{calls}, no second request; a person was asked {counts(len(asked), 'time')}",
    )


def _one_refused(found: Found) -> Check:
    refused = found.of(e.CallRejected)
    credits = found.calls_of("send_credit")
    ok = [(event.call, event.rung, event.code) for event in refused] == [
        (call, "policy", "account_not_on_file") for call in credits[:1]
    ]
    ok = ok and len(credits) == 1 and found.asked("credits") == 0
    text = ", ".join(f"{event.call} by {event.rung}: {event.code}" for event in refused) or "none"
    return Check(
        "one refused call", ok, f"{text}; the shop was asked for {counts(found.asked('credits'), 'credit')}"
    )


def _child_in_its_lease(found: Found) -> Check:
    leases, settled = found.of(e.ChildReserved), found.of(e.ChildSettled)
    child = found.child_state
    if len(leases) != 1 or len(settled) != 1 or child is None:
        return Check("one child run in its lease", False, f"{len(leases)} leases, {len(settled)} settled")
    used, granted, own = settled[0].spent, leases[0].granted, spent(child)
    within = all(amount <= granted.get(name, 0) for name, amount in used.items() if name in granted)
    same = all(
        used.get(name, 0) == own[name] for name in ("turns", "tool_calls", "total_tokens", "cost_micros")
    )
    wrong = _not_in_the_sum(found)
    ok = within and same and not wrong and child.outcome == settled[0].outcome == "completed"
    text = f"{counts(used.get('turns', 0), 'turn')} and {counts(used.get('tool_calls', 0), 'call')} of it"
    return Check("one child run in its lease", ok, ", ".join((f"{text} are in the parent's sum", *wrong)))


def _not_in_the_sum(found: Found) -> list[str]:
    """Meters of the run that aren't what both logs add up to, counted again without any meter."""
    both = [*found.events, *found.child_events]
    responded = [event for event in both if isinstance(event, e.ModelResponded | e.ModelFailed)]
    counted_again = {
        "turns": len(found.of(e.ModelResponded))
        + sum(isinstance(event, e.ModelResponded) for event in found.child_events),
        "output_tokens": sum(event.spent_output_tokens for event in responded),
        "cost_micros": sum(event.spent_cost_micros for event in responded),
    }
    of_run = spent(found.state)
    return [name for name, amount in counted_again.items() if of_run[name] != amount]


def _model_requests(found: Found) -> Check:
    own = sum(isinstance(event, e.ModelRequested) for event in [*found.events, *found.child_events])
    seen = sum(found.model_requests.values())
    return Check("model requests", own == seen > 0, f"{own} in the logs, {seen} counted at the model server")


def _verified(found: Found) -> Check:
    good, runs = found.verified
    return Check("verified", good == runs == 2, f"{good} of {runs} hash chains are as written")


_CHECKS: Final[tuple[Callable[[Found], Check], ...]] = (
    _completed,
    _one_refund,
    _one_kill,
    _one_replayed,
    _one_refused,
    _child_in_its_lease,
    _model_requests,
    _verified,
)


def _host_deaths(found: Found) -> list[e.RunResumed]:
    return [event for event in found.of(e.RunResumed) if event.cause == "host_died"]


def _replayed(found: Found) -> list[e.ResultBound]:
    return [event for event in found.of(e.ResultBound) if event.replayed is not None]
