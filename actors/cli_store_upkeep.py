"""The store's upkeep: ``store migrate``, ``store rebuild`` and ``store prune``."""

from __future__ import annotations

import asyncio

import click

from ..runtime.errors import BoundloopError
from .cli_output import DAMAGED, OK, Output
from .cli_session import Session, format_of, on_store, output_option, store_option
from .cli_text import safe_text
from .cli_time import MOMENT


@click.command()
@click.option("--print-sql", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("--create", is_flag=True, help="Make the store if it isn't there.")
@store_option
@output_option
def migrate(store_url: str, output: str, print_sql: bool, create: bool) -> int:
    """Bring the store's schema to the one of this version.

    Opening a store does it too; this is for whoever may change a schema where the application may not. A schema of a newer
    version is refused, and so is one that other migrations made.
    """
    from ..eventstore.upgrade import migrate_at, schema_at

    out = Output(format_of(output))
    try:
        if print_sql:
            found = asyncio.run(schema_at(store_url))
            if out.for_programs:
                out.thing(
                    {
                        "kind": found.kind,
                        "found": found.found,
                        "newest": found.newest,
                        "sql": found.missing_sql,
                    }
                )
            else:
                # Our own text, for a database's shell: nothing in it is escaped.
                out.line(found.missing_sql.rstrip() or "-- Nothing is missing.")
            return OK
        before, now = asyncio.run(migrate_at(store_url, create=create))
    except BoundloopError as error:
        return out.error(error)
    if out.form == "table":
        did = "was there already" if before.found == now.found else f"reached from {before.found}"
        out.line(f"Schema {now.found}, {did}.")
    else:
        out.thing({"kind": now.kind, "before": before.found, "now": now.found})
    return OK


@click.command()
@on_store
async def rebuild(session: Session) -> int:
    """Write each run's index row anew from its log: what lists, inboxes and timers read.

    A run whose log isn't as written, or doesn't end where its row says, is left alone and named; exits 6 then.
    """
    from ..eventstore.rebuild import rebuild_index

    found = await rebuild_index(session.store)
    out = session.out
    if out.form == "table":
        for run_id, why in found.left:
            out.line(f"LEFT {safe_text(run_id)}: {safe_text(why)}")
        for run_id in found.restored:
            out.line(
                f"restored {safe_text(run_id)}: its row was gone, and nothing else knows where its log ended"
            )
        for run_id in found.rewritten:
            out.line(f"rewritten {safe_text(run_id)}")
        out.line(f"{found.runs} runs, {len(found.rewritten)} rewritten, {len(found.left)} left alone.")
    else:
        left = [{"run": run_id, "problem": why} for run_id, why in found.left]
        out.thing(
            {
                "runs": found.runs,
                "rewritten": list(found.rewritten),
                "restored": list(found.restored),
                "left": left,
            }
        )
    return DAMAGED if found.left else OK


@click.command()
@click.option(
    "--ended-before",
    type=MOMENT,
    required=True,
    metavar="TIME",
    help="Such as 2026-01-31 (UTC), or 90d: ago.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@on_store
async def prune(session: Session, ended_before: int, dry_run: bool) -> int:
    """Remove the logs of runs that ended long ago, and blobs that nobody names any more.

    What stays of a run is its row (when and how it ended, its last seq and head) and its ledger keys: an effect of old is
    still done once. A tree of runs goes as a whole. Damaged runs, and those with an effect of which nobody knows, stay. While any
    log can't be read, or has lost its run's row, no blob is removed (exit code 6).
    """
    from ..eventstore.prune import prune_store

    found = await prune_store(session.store, ended_before_ms=ended_before, dry_run=dry_run)
    out = session.out
    if out.form != "table":
        kept = [{"run": run_id, "why": why} for run_id, why in found.kept]
        fields = {"runs": list(found.runs), "appends": found.rows, "blobs": found.blobs, "kept": kept}
        out.thing({**fields, "unswept": found.unswept, "dry_run": dry_run})
        return DAMAGED if found.unswept else OK
    for run_id, why in found.kept:
        out.line(f"kept {safe_text(run_id)}: {safe_text(why)}")
    if dry_run:
        out.line(f"{len(found.runs)} runs and {found.rows} appends would go. Nothing was changed.")
    else:
        out.line(f"{len(found.runs)} runs, {found.rows} appends and {found.blobs} blobs pruned.")
    if found.unswept:
        out.alarm(f"Other blobs stay, named or not: {safe_text(found.unswept)}.")
    return DAMAGED if found.unswept else OK
