"""What the demo says as it goes: one line for what happened, who decided it and why."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Final, cast

from ..runtime import events as e
from .cli_output import Output
from .cli_text import cut, safe_text, shown_json

COLUMNS_MAX: Final = 110
LINES_MAX: Final = 2
_WHO_CHARS: Final = 9
_PREFIX_CHARS: Final = 8 + _WHO_CHARS + 1

_COLOURS: Final = {
    "model": "36",
    "policy": "31",
    "approver": "35",
    "demo": "33",
    "shop": "34",
    "child": "36",
}


class Timeline:
    """Lines for people. Prints nothing in the other formats. On a terminal it also shows what is being waited for, on a
    line that goes away again."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._began = time.monotonic()
        self._shown = out.form == "table"
        terminal = self._shown and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._live = terminal
        self._coloured = terminal and not os.environ.get("NO_COLOR")
        self._doing = False

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def doing(self, text: str) -> None:
        """What is going on, until the next line; on a terminal only. ``text`` is safe already."""
        if self._live:
            self.clear()
            sys.stdout.write(f"\r{self.seconds:6.1f}s  … {text}")
            sys.stdout.flush()
            self._doing = True

    def line(self, who: str, text: str) -> None:
        """One line, or a few if it is long; whatever is in it is made safe here."""
        if not self._shown:
            return
        self.clear()
        name = f"{who:<{_WHO_CHARS}}"
        colour = _COLOURS.get(who)
        if self._coloured and colour:
            name = f"\x1b[{colour}m{name}\x1b[0m"
        words = wrap(safe_text(text), COLUMNS_MAX - _PREFIX_CHARS, break_on_hyphens=False) or [""]
        self._out.line(f"{self.seconds:6.1f}s {name} {words[0]}")
        if len(words) > LINES_MAX:
            words[LINES_MAX - 1] = cut(words[LINES_MAX - 1] + " ...", COLUMNS_MAX - _PREFIX_CHARS)
        for more in words[1:LINES_MAX]:
            self._out.line(" " * _PREFIX_CHARS + more)

    def plain(self, text: str = "") -> None:
        """A line without time, safe already."""
        if self._shown:
            self.clear()
            self._out.line(text)

    def alarm(self, text: str, more: Iterable[str]) -> None:
        """What nobody may miss: on stderr in the formats for programs. Its parts are safe already."""
        if self._shown:
            self.line("demo", text)
            for line in more:
                self.plain(f"  {line}")
        else:
            self._out.to_stderr("; ".join((text, *more)))

    def verdict(self, text: str, *, good: bool) -> None:
        """The same, in the colour of good or bad news."""
        self.plain(f"\x1b[{'32' if good else '31'}m{text}\x1b[0m" if self._coloured else text)

    def clear(self) -> None:
        """Nothing is waited for any more."""
        if self._doing:
            sys.stdout.write("\r\x1b[2K")
            self._doing = False


class EventWords:
    """The words for the events of one run. Remembers which call is of which tool."""

    def __init__(self) -> None:
        self.tool_of: dict[str, str] = {}
        self._agent_calls: set[str] = set()

    def lines(self, event: e.AnyEvent) -> list[tuple[str, str]]:
        """(who, what) for what a reader of the timeline wants to see; nothing for the rest."""
        match event:
            case e.RunStarted():
                return [("runtime", f"run {event.run_id}: {event.input}")]
            case e.RunResumed() if event.cause == "host_died":
                return [
                    (
                        "runtime",
                        f"the run goes on in host {event.host}, epoch {event.epoch}, from its log alone",
                    )
                ]
            case e.ModelResponded() if event.finish == "final":
                return [("model", f"answers: {event.text}")]
            case e.CallProposed():
                self.tool_of[event.call] = event.tool
                return [("model", f"{event.call} proposes {event.tool} {members(event.arguments)}".rstrip())]
            case e.RunTerminated():
                return [("runtime", f"the run ends: {event.outcome}, {event.reason} {event.detail}".rstrip())]
            case e.RunSuspended():
                return [
                    ("runtime", f"the run stops: {event.outcome}, {event.reason} {event.detail}".rstrip())
                ]
            case e.ChildReserved() | e.ChildSettled():
                return [self._child(event)]
            case e.ApprovalRequested() | e.ApprovalDecided() | e.ApprovalLapsed():
                return [self._approval(event)]
            case _:
                return self._call(event)

    def _call(self, event: e.AnyEvent) -> list[tuple[str, str]]:
        match event:
            case e.CallValidated() if event.key is not None:
                text = f"{event.call} has idempotency key {event.key.hex()[:12]}: at most one effect"
                return [("ladder", text)]
            case e.CallRejected(rung="policy"):
                text = (
                    f"{event.call} refused: {event.code}; what a result says is no authority, nothing is sent"
                )
                return [("policy", text)]
            case e.CallRejected():
                return [("ladder", f"{event.call} refused at {event.rung}: {event.code}; nothing is sent")]
            case e.CallStarted() if event.attempt > 1:
                return [("runtime", f"{event.call} attempt {event.attempt} is sent under the same key")]
            case e.CallExecuted() if event.call not in self._agent_calls:
                return [self._executed(event)]
            case e.CallReconciled():
                by = "the tool's query" if event.by == "query" else event.by
                return [
                    ("ledger", f"{event.call} is settled by {by}: {event.outcome}, {members(event.result)}")
                ]
            case e.ResultBound() if event.replayed is not None:
                other = ", other reason" if event.replayed.arguments_differ else ""
                text = f"{event.call} replayed: {event.replayed.call}'s recorded result{other}"
                return [("ledger", f"{text}; nothing runs, nobody is asked")]
            case _:
                return []

    def _executed(self, event: e.CallExecuted) -> tuple[str, str]:
        tool = self.tool_of.get(event.call, "")
        if event.outcome == "succeeded":
            return "shop", f"{event.call} {tool}: {members(event.result)}"
        if event.outcome == "unknown":
            text = f"{event.call} attempt {event.attempt} is unknown ({event.code}): it may have taken effect"
            return "runtime", text
        return "shop", f"{event.call} {tool} failed: {event.code}"

    def _approval(self, event: e.ApprovalRequested | e.ApprovalDecided | e.ApprovalLapsed) -> tuple[str, str]:
        match event:
            case e.ApprovalRequested():
                preview = members(event.preview, "preview")
                return (
                    "policy",
                    f"{event.call} is irreversible, a person is asked ({event.approval_id}): {preview}",
                )
            case e.ApprovalDecided():
                reason = f": {event.reason}" if event.reason else ""
                did = "approved" if event.decision == "approve" else "rejected"
                return "approver", f"{event.call} {did} by {event.approver}{reason}"
            case e.ApprovalLapsed():
                return "runtime", f"{event.call} approval {event.approval_id} lapsed: {event.why}"

    def _child(self, event: e.ChildReserved | e.ChildSettled) -> tuple[str, str]:
        if isinstance(event, e.ChildReserved):
            self._agent_calls.add(event.call)
            return "runtime", f"{event.call} is a child run under a lease: {leased(event.granted)}"
        return (
            "runtime",
            f"{event.call} {event.outcome}, its lease is settled: {leased(event.spent)} spent",
        )


def members(data: bytes | None, inside: str = "") -> str:
    """The members of a JSON object as ``name=value``; other JSON as it is. ``inside``: of the object in that member."""
    value = None if data is None else shown_json(data)
    if inside and isinstance(value, dict):
        value = cast("dict[str, object]", value).get(inside)
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    return ", ".join(f"{name}={item}" for name, item in cast("dict[str, object]", value).items())


def leased(of: Mapping[str, int]) -> str:
    """The quantities of a lease that people think in."""
    parts = [counts(of.get("turns", 0), "turn"), counts(of.get("tool_calls", 0), "call")]
    parts.append(f"{of.get('total_tokens', 0):,} tokens")
    if "cost_micros" in of:
        parts.append(f"cost {money(of['cost_micros'])}")
    return ", ".join(parts)


def money(micros: int) -> str:
    """Micro-units as an amount of at least two decimals."""
    whole, fraction = divmod(micros, 1_000_000)
    return f"{whole}.{f'{fraction:06d}'.rstrip('0'):0<2}"


def counts(number: int, thing: str) -> str:
    """``1 turn``, ``2 turns``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
