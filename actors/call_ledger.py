"""The calls of one executor: which are at work, which were stopped before they came, which have begun and don't begin again,
and under which leases nothing begins any more. For any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from . import execution
from .call_work import CallWork, LatestEnds
from .dispatch_wire import Stop, WireCall, encode_reply
from .execution import Report
from .executors import Dispatch
from .reception import refused

EARLY_STOPS_MAX: Final = 1_000
"""Requests to stop a call that hasn't arrived: they may overtake it."""

GIVEN_UP_MAX: Final = 10_000
"""Leases that were given up, of which nothing begins any more; the oldest are forgotten."""

BEGUN_MAX: Final = 10_000
"""Calls that have begun here and don't begin again; the oldest are forgotten."""

REPLIES_KEPT: Final = 64
REPLY_KEPT_BYTES: Final = 65_536
"""Of so many of them the reply is kept, if it is no larger."""

K = TypeVar("K")
V = TypeVar("V")
CallId = tuple[str, str, int]


class CallLedger:
    """``end_process`` is called when a call is at work past its time that mustn't be."""

    def __init__(self, end_process: Callable[[], None]) -> None:
        self.done = 0
        self._lock = threading.Lock()
        self._latest = LatestEnds(end_process)
        self._running: dict[CallId, CallWork] = {}
        self._stopped: OrderedDict[CallId, None] = OrderedDict()
        self._given_up: OrderedDict[str, None] = OrderedDict()
        self._begun: OrderedDict[CallId, tuple[int, bytes]] = OrderedDict()
        self._kept: deque[tuple[CallId, bytes]] = deque()

    @property
    def running(self) -> tuple[CallId, ...]:
        """(run, call, attempt) of those at work."""
        with self._lock:
            return tuple(self._running)

    def begin(self, call: WireCall, dispatch: Dispatch, work: CallWork) -> Report | None:
        """Note it as at work. A report if it must not begin: refused with proof, or unknown because it has come before."""
        of = call_id(call)
        with self._lock:
            unknown = Report(execution.lost(dispatch.spec, call.call, call.attempt, 0))
            if of in self._begun:
                return unknown
            if of in self._stopped:
                del self._stopped[of]
                return refused(call, "cancelled")
            if call.grant and call.grant in self._given_up:
                return refused(call, "place_given_up")
            _note(self._begun, of, (call.epoch, encode_reply([unknown])), BEGUN_MAX)
            self._running[of] = work
            self._latest.expect(work)
        return None

    def end(self, call: WireCall) -> None:
        """It has an outcome; what it has begun beside itself may go on."""
        with self._lock:
            self._running.pop(call_id(call), None)
            self.done += 1

    def goes_on(self, work: CallWork, report: Report) -> bool:
        """Whether something of a call that is reported so may still do what it mustn't. It is looked at again when its time
        is over."""
        goes_on = execution.may_go_on(report.executed) and not work.ended()
        if not goes_on:
            self._latest.forget(work)
        return goes_on

    def earlier_reply(self, call: WireCall) -> bytes:
        """The reply to a call that came before: the first's, or if that isn't here (yet or any more) that nothing is known.
        Empty for one that didn't come. Asked before anything is refused: a refusal says that nothing ran."""
        with self._lock:
            epoch, reply = self._begun.get(call_id(call), (0, b""))
        return reply if epoch == call.epoch else b""

    def replied(self, call: WireCall, reply: bytes) -> bytes:
        """The same bytes, kept for a call that comes twice."""
        of = call_id(call)
        with self._lock:
            if len(reply) <= REPLY_KEPT_BYTES and of in self._begun:
                epoch, unknown = self._begun[of]
                self._begun[of] = (epoch, reply)
                self._kept.append((of, unknown))
                if len(self._kept) > REPLIES_KEPT:
                    oldest, unknown = self._kept.popleft()
                    if oldest in self._begun:
                        self._begun[oldest] = (self._begun[oldest][0], unknown)
        return reply

    def stop(self, stop: Stop) -> None:
        """Ask it to stop, also if it hasn't arrived yet."""
        with self._lock:
            work = self._running.get(call_id(stop))
            if work is None:
                _note(self._stopped, call_id(stop), None, EARLY_STOPS_MAX)
        if work is not None:
            work.stop()

    def was_stopped(self, of: WireCall) -> bool:
        """Before it came."""
        with self._lock:
            return call_id(of) in self._stopped

    def give_up(self, grants: Sequence[str]) -> list[CallWork]:
        """Nothing under these leases begins from now on. What is at work under them, which is asked to stop."""
        with self._lock:
            for grant in grants:
                _note(self._given_up, grant, None, GIVEN_UP_MAX)
            works = self._latest.under(frozenset(grants))
        for work in works:
            work.stop()
        return works


def _note(book: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    book[key] = value
    if len(book) > most:
        book.popitem(last=False)


def call_id(of: WireCall | Stop) -> CallId:
    """Names one attempt for good."""
    return (of.run_id, of.call, of.attempt)
