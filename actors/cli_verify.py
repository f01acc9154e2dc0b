"""``verify``: whether the logs are what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .cli_output import DAMAGED, OK, Output
from .cli_session import Session, on_store
from .cli_text import safe_text

if TYPE_CHECKING:
    from ..eventstore.verify import RunVerdict

VERDICT_COLUMNS = ("run", "verdict", "events", "first_bad_seq", "last_bad_seq", "problem")


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@on_store
async def verify(session: Session, run_id: str | None) -> int:
    """Recompute the hash chains of one run, or of all runs and the file.

    Names the first append that can't be trusted and its seq range; everything before it is as written. Exits 6 if
    anything is damaged, 5 if the file can't be opened.
    """
    from ..eventstore.verify import verify_run, verify_store

    if run_id is not None:
        verdict = await verify_run(session.store, run_id)
        return print_verdicts(session.out, (verdict,), ())
    found = await verify_store(session.store)
    return print_verdicts(session.out, found.runs, found.faults)


def print_verdicts(out: Output, verdicts: tuple[RunVerdict, ...], faults: tuple[str, ...]) -> int:
    """What is bad comes first and alone for people; programs get every run."""
    bad = [verdict for verdict in verdicts if not verdict.ok]
    code = DAMAGED if bad or faults else OK
    if out.form != "table":
        rows = [_row(verdict) for verdict in verdicts] + [
            {"run": "", "verdict": "damaged", "problem": fault} for fault in faults
        ]
        out.rows(VERDICT_COLUMNS, rows)
        return code
    for verdict in bad:
        out.line(
            f"DAMAGED {safe_text(verdict.run_id)}: the first bad append holds seq {verdict.first_bad_seq} to "
            f"{verdict.last_bad_seq}: {safe_text(verdict.problem)}"
        )
    for fault in faults:
        out.line(f"DAMAGED file: {safe_text(fault)}")
    events = sum(verdict.events for verdict in verdicts)
    good = len(verdicts) - len(bad)
    pruned = sum(verdict.pruned for verdict in verdicts)
    also = f" {pruned} are pruned: nothing of their logs is there." if pruned else ""
    out.line(f"{good} of {len(verdicts)} runs verify, {events} events.{also}")
    return code


def _row(verdict: RunVerdict) -> dict[str, Any]:
    return {
        "run": verdict.run_id,
        "verdict": "damaged" if not verdict.ok else "pruned" if verdict.pruned else "ok",
        "appends": verdict.rows,
        "events": verdict.events,
        "head": verdict.head.hex(),
        "first_bad_seq": verdict.first_bad_seq,
        "last_bad_seq": verdict.last_bad_seq,
        "problem": verdict.problem,
    }
