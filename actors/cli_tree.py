"""``boundloop tree``: a run and the runs that it started, down to the last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from .cli_output import DAMAGED, OK
from .cli_session import Session, on_store
from .cli_text import safe_text

if TYPE_CHECKING:
    from ..eventstore.family import Relative

COLUMNS: Final = (
    "run",
    "agent",
    "call",
    "status",
    "outcome",
    "reason",
    "turns",
    "tool_calls",
    "total_tokens",
    "cost_micros",
    "waiting_for",
)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--whole", is_flag=True, help="From the run at the top, whichever RUN is.")
@on_store
async def tree(session: Session, run_id: str, whole: bool) -> int:
    """A run and the runs below it: what became of each, and what it spent, its children's spend included."""
    from ..eventstore.family import read_family

    out = session.out
    family = await read_family(session.store, run_id, whole=whole)
    troubled = [run for run in family.runs if run.problem]
    for run in troubled:
        out.alarm(f"DAMAGED: run {safe_text(run.run_id)}: {safe_text(run.problem)}")
    top = family.runs[0].depth
    indent = out.form == "table"
    out.rows(COLUMNS, [_view(run, "  " * max(0, run.depth - top) if indent else "") for run in family.runs])
    if family.truncated:
        out.alarm("There are more runs than are looked at.")
    return DAMAGED if troubled else OK


def _view(run: Relative, indent: str) -> dict[str, Any]:
    return {
        "run": indent + run.run_id,
        "parent": run.parent_run,
        "call": run.parent_call,
        "depth": run.depth,
        "agent": run.agent,
        "status": run.status,
        "outcome": run.outcome,
        "reason": run.reason,
        "waiting_for": run.waiting_for,
        "problem": run.problem,
        **run.spent,
    }
