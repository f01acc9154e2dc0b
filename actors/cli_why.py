"""``why``: one answer to "what is the matter with this run?"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .cli_output import OK, Output
from .cli_session import Session, on_store
from .cli_text import plain, safe_text, span, when

if TYPE_CHECKING:
    from ..eventstore.forensics import Why


@click.command()
@click.argument("run_id", metavar="RUN")
@on_store
async def why(session: Session, run_id: str) -> int:
    """How a run stopped or on whom it waits, where it first left the straight path, and what to type next."""
    from ..eventstore.forensics import why as find_out
    from ..eventstore.history import load_run

    state, records = await load_run(session.store, run_id)
    found = find_out(state, records)
    if session.out.form == "table":
        print_why(session.out, found, session.store.now_ms())
    else:
        session.out.thing(plain(found))
    return OK


def print_why(out: Output, found: Why, now_ms: int) -> None:
    """For people: a few lines, the most important first."""
    out.line(f"Run {safe_text(found.run_id)}: {_headline(found)}")
    if found.detail:
        out.line(f"  {safe_text(found.detail)}")
    for wait in found.waits:
        call = f" (call {safe_text(wait.call)})" if wait.call else ""
        until = f", until {when(wait.until_ms)}" if wait.until_ms else ""
        since = f", for {span(now_ms - wait.since_ms)}" if wait.since_ms else ""
        out.line(f"Waits for a {wait.on}: {safe_text(wait.what)}{call}{since}{until}")
    for name in found.unfinished:
        out.line(f"Unfinished: {safe_text(name)}")
    for number, deviation in enumerate(found.deviations):
        title = "First deviation" if number == 0 else "Then"
        call = f" {safe_text(deviation.call)}" if deviation.call else ""
        says = f": {safe_text(deviation.text)}" if deviation.text else ""
        out.line(f"{title}: {deviation.kind}, seq {deviation.seq}{call}, {safe_text(deviation.code)}{says}")
    for effect in found.unknown_effects:
        who = "a person must settle it" if effect.for_person else "being found out"
        out.line(f"Unknown effect: {safe_text(effect.call)} {safe_text(effect.tool)}, {who}")
    used = [row for row in found.spend if row.spent or row.reserved]
    if used:
        out.line(
            "Spent: " + ", ".join(f"{row.name} {_of(row.spent + row.reserved, row.limit)}" for row in used)
        )
    for row in found.spend:
        if row.overrun:
            out.line(f"Overrun: {row.name} by {row.overrun}")
    for command in found.next_commands:
        out.line(f"Next: {safe_text(command)}")


def _headline(found: Why) -> str:
    if not found.outcome:
        return safe_text(found.status)
    how = "stopped, can be lifted" if found.resumable else "ended"
    return f"{how}: {safe_text(found.outcome)}, {safe_text(found.reason)}"


def _of(used: int, limit: int | None) -> str:
    return f"{used} (no limit)" if limit is None else f"{used}/{limit}"
