"""The store's upkeep: ``store migrate`` and ``store rebuild``."""

from __future__ import annotations

import asyncio

import click

from ..runtime.errors import BoundloopError
from .cli_output import DAMAGED, OK, Output
from .cli_session import Session, format_of, on_store, output_option, store_option
from .cli_text import safe_text


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
        for run_id in found.rewritten:
            out.line(f"rewritten {safe_text(run_id)}")
        out.line(f"{found.runs} runs, {len(found.rewritten)} rewritten, {len(found.left)} left alone.")
    else:
        left = [{"run": run_id, "problem": why} for run_id, why in found.left]
        out.thing({"runs": found.runs, "rewritten": list(found.rewritten), "left": left})
    return DAMAGED if found.left else OK
