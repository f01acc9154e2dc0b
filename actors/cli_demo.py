"""``demo``: the first thing to run. One refund on real parts in which everything goes wrong once, and what was proven."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Generator
from http.client import HTTPException
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from ..runtime.errors import BoundloopError
from .cli_output import FAILED, OK, Output
from .cli_session import output_option
from .cli_text import quoted, safe_text

if TYPE_CHECKING:
    from .demo import Plan
    from .demo_proof import Check, Found
    from .demo_timeline import Timeline

STORE: Final = "sqlite:///boundloop-demo.db"
WITHIN_S: Final = 90
ASKING_S: Final = 900
WITHIN_S_LEAST: Final = 20
WARNINGS_MAX: Final = 5
MESSAGE_CHARS_MAX: Final = 500
_TREE_COMMAND: Final = "tree"


class DemoTimeOut(BoundloopError):
    """The demo's own deadline is over. Exits 1: what was to be proven isn't."""

    actor = "caller"


class DemoBroken(BoundloopError):
    """A process that the demo needs did not start, or went away."""

    actor = "caller"


@click.command()
@click.option(
    "--approve",
    type=click.Choice(("self", "ask")),
    default="self",
    show_default=True,
    help="The demo approves what it has shown, or waits for a person here or in another shell.",
)
@click.option("--store", "store_url", default=None, metavar="URL", help=f"Default: {STORE}, in this folder.")
@click.option(
    "--timeout",
    "within_s",
    type=click.IntRange(WITHIN_S_LEAST, 86_400),
    default=None,
    metavar="SECONDS",
    help=f"A bound for all of it: {WITHIN_S}, or {ASKING_S} with --approve ask.",
)
@output_option
@click.pass_context
def demo(
    context: click.Context, approve: str, store_url: str | None, within_s: int | None, output: Any
) -> int:
    """Look up an order, draft a refund, ask a person, submit it, explain; and everything goes wrong once on the way.

    Starts a local Ray, a model server and a shop, each a process of its own, and ends them. Exits 0 only if the log and
    the counters of the shop prove all of it: one refund, one kill survived, one replayed result, one refused call; else 1
    with what differed. The store's file stays, for the commands that it names at the end.
    """
    from .demo import Plan

    out = Output(output, at_once=True)
    os.environ.pop("RAY_ADDRESS", None)  # the demo's Ray is its own
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # no process below takes modules from this folder
    return perform(
        Plan(
            store=str(store_url or context.find_root().params.get("store_url") or STORE),
            approve="ask" if approve == "ask" else "self",
            within_s=within_s or (ASKING_S if approve == "ask" else WITHIN_S),
            boundloop=command_name(),
        ),
        out,
    )


def perform(plan: Plan, out: Output) -> int:
    """Play, say what was found, and answer the exit code. On the main thread."""
    from .demo import play
    from .demo_proof import checks
    from .demo_timeline import Timeline

    timeline = Timeline(out)
    with overheard() as warnings:
        try:
            with deadline(plan.within_s), terminating():
                found = play(plan, timeline)
        except KeyboardInterrupt:
            timeline.plain("Interrupted: the run is cancelled, and what was started has ended.")
            raise
        except (BoundloopError, HTTPException, OSError, RuntimeError) as error:
            timeline.clear()
            for text in warnings:
                out.to_stderr(safe_text(text))
            if isinstance(error, BoundloopError):
                return out.error(error)
            return out.error(
                DemoBroken("demo_broken", f"{type(error).__name__}: {error}"[:MESSAGE_CHARS_MAX])
            )
    made = checks(found)
    if out.form == "table":
        tell(timeline, plan.boundloop, plan.store, found, made)
    else:
        out.thing({**as_fields(found, made), "store": plan.store, "seconds": round(timeline.seconds, 1)})
    if all(check.ok for check in made):
        return OK
    for text in warnings:
        out.to_stderr(safe_text(text))
    return FAILED


# --- what was spent, what was proven, what to try next -----------------------------------------------------------------


def tell(timeline: Timeline, boundloop: str, store: str, found: Found, made: list[Check]) -> None:
    """The end of the timeline. Its last line says in words what was counted."""
    from .demo_proof import spent, summary
    from .demo_timeline import leased, money

    state, child = found.state, found.child_state
    timeline.plain()
    timeline.plain(f"Spent: {leased(spent(state))} of {money(state.limits.cost_micros or 0)}")
    if child is not None:
        timeline.plain(f"  of it by the child run: {leased(spent(child))}")
    timeline.plain("Try next:")
    for command in next_commands(boundloop, state.run_id, store):
        timeline.plain(f"  {command}")
    timeline.plain("Checked in the log and at the counters of the shop and of the model server:")
    for check in made:
        mark = "ok " if check.ok else "NOT"
        timeline.verdict(f"  {mark}  {check.name}: {safe_text(check.found)}", good=check.ok)
    timeline.verdict(safe_text(summary(found)), good=all(check.ok for check in made))


def as_fields(found: Found, made: list[Check]) -> dict[str, Any]:
    """The same for programs."""
    from .demo_proof import spent, summary

    state, child = found.state, found.child_state
    return {
        "run": state.run_id,
        "child": "" if child is None else child.run_id,
        "operation": state.operation_id,
        "outcome": state.outcome,
        "reason": state.reason,
        "text": state.final_text,
        "proven": all(check.ok for check in made),
        "summary": summary(found),
        "checks": [check._asdict() for check in made],
        "shop": {kind: dict(counts) for kind, counts in found.counts.items()},
        "model_requests": dict(found.model_requests),
        "killed": None if found.killed is None else found.killed._asdict(),
        "spent": spent(state),
        "spent_by_child": {} if child is None else spent(child),
    }


def next_commands(boundloop: str, run_id: str, store: str) -> list[str]:
    """Commands that work on what the demo leaves behind, for the shell in which it ran."""
    from .cli import COMMANDS

    about = ["show", "why", "log", *(["tree"] if _TREE_COMMAND in COMMANDS else []), "verify"]
    return [f"{boundloop} {verb} {quoted(run_id)} --store {quoted(store)}" for verb in about]


def command_name() -> str:
    """How this reader's shell reaches ``boundloop``: by name, or by the path of the script or Python that runs now."""
    found = shutil.which("boundloop")
    script = Path(sys.argv[0])
    if script.name != "boundloop":
        return f"{quote(sys.executable)} -m boundloop"
    if found is not None and os.path.realpath(found) == os.path.realpath(script):
        return "boundloop"
    return quote(str(script))


class _Overheard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: deque[str] = deque(maxlen=WARNINGS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def overheard() -> Generator[deque[str]]:
    """The last warnings of boundloop's own loggers, kept back: they are told only if the demo fails."""
    handler, logger = _Overheard(), logging.getLogger(__name__.partition(".")[0])
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


# --- bounds ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def deadline(seconds: int) -> Generator[None]:
    """Raise ``DemoTimeOut`` in what runs within after so many seconds. On the main thread."""

    def over(number: int, frame: FrameType | None) -> None:
        raise DemoTimeOut("demo_timeout", f"it was not over after {seconds} s", path="--timeout")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def terminating() -> Generator[None]:
    """Being terminated, or losing the terminal, is like Ctrl-C: what was started is ended."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
