"""Reading runs: ``runs list``, ``show``, ``log`` and ``replay``."""

from __future__ import annotations

from typing import Final, get_args

import click

from ..runtime.errors import CallerError, LogDamaged
from ..runtime.orders import ShownPhase
from ..runtime.stops import Outcome
from .cli_output import OK
from .cli_session import Session, on_store
from .cli_text import cut, quoted, safe_text, span, when
from .cli_time import MOMENT

LOG_LINES_DEFAULT = 1_000

_AS_RESULTS_SAY: Final = {"ended": "terminated", "stopped": "suspended"}


@click.group()
def runs() -> None:
    """List runs."""


@runs.command("list")
@click.option(
    "--status",
    type=click.Choice((*get_args(ShownPhase), *_AS_RESULTS_SAY)),
    metavar="STATUS",
    help="As the list shows it; a Result's ended and stopped mean terminated and suspended.",
)
@click.option("--outcome", type=click.Choice(get_args(Outcome)))
@click.option("--tenant")
@click.option("--agent")
@click.option("--operation", "operation_id", metavar="ID")
@click.option("--root", "root_id", metavar="RUN", help="Runs of one tree.")
@click.option("--waiting-for", metavar="PREFIX", help="approval, key, child, timer or person.")
@click.option(
    "--created-since", type=MOMENT, metavar="TIME", help="Such as 2026-01-31T12:00Z (UTC), or 24h: ago."
)
@click.option("--created-until", type=MOMENT, metavar="TIME", help="Before then.")
@click.option("--updated-since", type=MOMENT, metavar="TIME", help="Whose last event is from then on.")
@click.option("--updated-until", type=MOMENT, metavar="TIME", help="Whose last event is before then.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True)
@click.option("--after", default="", metavar="RUN", help="Go on after the last run of the page before.")
@on_store
async def list_runs(
    session: Session,
    status: str | None,
    outcome: str | None,
    tenant: str | None,
    agent: str | None,
    operation_id: str | None,
    root_id: str | None,
    waiting_for: str | None,
    created_since: int | None,
    created_until: int | None,
    updated_since: int | None,
    updated_until: int | None,
    limit: int,
    after: str,
) -> int:
    """Runs, the newest first. All filters that are given must fit."""
    from ..eventstore.port import RunFilter
    from .cli_run_view import RUN_COLUMNS, row_view

    where = RunFilter(
        status=None if status is None else _AS_RESULTS_SAY.get(status, status),
        outcome=outcome,
        tenant=tenant,
        agent=agent,
        operation_id=operation_id,
        root_id=root_id,
        waiting_for_prefix=waiting_for,
        created_since_ms=created_since,
        created_until_ms=created_until,
        updated_since_ms=updated_since,
        updated_until_ms=updated_until,
        after=after,
        limit=limit + 1,
    )
    page = await session.store.runs(where)
    session.out.rows(RUN_COLUMNS, [row_view(row) for row in page[:limit]])
    if len(page) > limit:
        session.out.alarm(f"There are more: --after {quoted(page[limit - 1].run_id)}")
    return OK


@click.command()
@click.argument("run_id", metavar="RUN")
@on_store
async def show(session: Session, run_id: str) -> int:
    """One run as it stands: where it is, its open calls, what it spent, its answer. Of a pruned one, what is left."""
    from ..eventstore.reading import read_run
    from .cli_reading import code_of, damage_view, say_damage
    from .cli_run_view import print_state, row_view, state_view
    from .cli_standing import standing_of

    row = await session.store.run(run_id)
    if row is not None and row.pruned_at_ms:
        session.out.thing(row_view(row))
        return OK
    found = await read_run(session.store, run_id)
    say_damage(session.out, found)
    seen = row_view(found.row)
    if found.state is None:
        session.out.thing({**seen, **damage_view(found)})
        return code_of(found)
    stands = await standing_of(session.store, found.row, found.state)
    names = ("created", "updated", "wake_at", "root", "parent", "ready")
    view = {**state_view(found.state), **{name: seen[name] for name in names}, "host": stands.host_text()}
    view["ready"] = stands.ready and not found.damage
    print_state(session.out, {**view, **damage_view(found)}, found.state)
    return code_of(found)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--after", "after_seq", type=click.IntRange(0), default=0, metavar="SEQ", help="Only later events."
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=LOG_LINES_DEFAULT,
    show_default=True,
    metavar="LINES",
)
@on_store
async def log(session: Session, run_id: str, after_seq: int, limit: int) -> int:
    """What happened, one line an event; times count from the run's start.

    From a damaged append on, a line begins with ``?``: that is what the file says now, not what was written.
    """
    from ..eventstore.forensics import timeline
    from ..eventstore.reading import read_run
    from .cli_reading import code_of, say_damage

    out = session.out
    found = await read_run(session.store, run_id)
    say_damage(out, found)
    trusted = len(found.records)
    lines = [line for line in timeline([*found.records, *found.doubtful]) if line.seq > after_seq]
    shown = lines[:limit]
    if out.form == "table":
        # Columns of fixed width, so that pages of one log line up.
        for line in shown:
            call = cut(safe_text(line.call), 8)
            seq = f"{line.seq if line.seq <= trusted else f'?{line.seq}':>6}"
            out.line(
                f"{seq}  {'+' + span(line.after_ms):>12}  {line.tag:<18}  {call:<8}  {safe_text(line.text)}".rstrip()
            )
    else:
        columns = ("seq", "at", "after_ms", "epoch", "tag", "call", "text", "trusted")
        rows = [
            {
                "seq": line.seq,
                "at": when(line.at_ms),
                "after_ms": line.after_ms,
                "epoch": line.epoch,
                "tag": line.tag,
                "call": line.call,
                "text": line.text,
                "trusted": line.seq <= trusted,
            }
            for line in shown
        ]
        out.rows(columns, rows)
    if len(lines) > limit:
        out.alarm(f"There are more: --after {shown[-1].seq}")
    return code_of(found)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--at", "seq", type=click.IntRange(1), required=True, metavar="SEQ", help="Up to and including SEQ."
)
@on_store
async def replay(session: Session, run_id: str, seq: int) -> int:
    """The state at a seq, folded from the log alone: no model, no tool, no clock.

    The digest covers every field of the state; two replays of one log give the same. Nothing is folded beyond the last
    event before a damage.
    """
    from ..eventstore.history import fold_records
    from ..eventstore.reading import read_run
    from ..runtime.orders import pending_orders
    from ..runtime.state import state_digest
    from .cli_reading import code_of, damage_view, say_damage
    from .cli_run_view import print_state, state_view

    found = await read_run(session.store, run_id)
    say_damage(session.out, found)
    found.whole()
    if seq > len(found.records):
        if found.damage:
            raise LogDamaged(run_id, found.first_bad_seq, found.last_bad_seq, f"seq {seq} isn't as written")
        has = f"the log has seq 1 to {len(found.records)}"
        raise CallerError("seq_range", has, path=f"{run_id}@{seq}")
    state = await fold_records(session.store, found.records[:seq])
    orders = [type(order).__name__ for order in pending_orders(state, state.at_ms)]
    view = {**state_view(state), "orders": orders, "state_sha256": state_digest(state).hex()}
    print_state(session.out, {**view, **damage_view(found)}, state)
    return code_of(found)
