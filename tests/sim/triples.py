"""Which faults struck where: (state, event, fault).

At an append each of its events gives two triples: the run's phase before it, and that of its call. Elsewhere the state
is the run's phase, and the event the last one in its log. Reachable are the (phase, event) pairs that any seed of the
session walked, times the kinds that strike at an append: those are the places where a crash or a failing store cuts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boundloop.eventstore.codec import decode_events, spilled
from boundloop.eventstore.port import Append
from boundloop.runtime import events as e
from boundloop.runtime.errors import BugError
from boundloop.runtime.fold import evolve

if TYPE_CHECKING:
    from .laws import Judge

Triple = tuple[str, str, str, str]
"""(``run`` or ``call``, its phase, the event, the kind of fault)."""


class Triples:
    """``at_appends`` are held against what is reachable; ``beside`` is counted."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.at_appends: set[Triple] = set()
        self.beside: set[Triple] = set()

    def at_append(self, kind: str, request: Append) -> None:
        """A fault of the store strikes this append."""
        state = self._judge.fork(request.run_id)
        if state is None or spilled(request.body) is not None:
            self.at_appends.add(("run", "", "run_started", kind))
            return
        if state.seq != request.expected_seq:
            return
        for event in decode_events(request.body):
            tag = e.tag_of(event)
            self.at_appends.add(("run", state.phase, tag, kind))
            call = state.calls.get(getattr(event, "call", ""))
            if call is not None:
                self.at_appends.add(("call", call.phase, tag, kind))
            try:
                evolve(state, event, request.at_ms)
            except BugError:
                return

    def at_run(self, kind: str, run_id: str) -> None:
        """A fault strikes something that this run has out."""
        watch = self._judge.runs.get(run_id)
        if watch is not None:
            self.beside.add(("run", watch.state.phase, watch.last_tag, kind))

    def at_moment(self, kind: str) -> None:
        """A fault strikes whoever lives."""
        for watch in self._judge.runs.values():
            if not watch.ended:
                self.beside.add(("run", watch.state.phase, watch.last_tag, kind))
