"""The store itself: ``store info``, ``store check`` and ``store path``. Its upkeep is in
``cli_store_upkeep``, copies of it in ``cli_store_copies``."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from ..runtime.errors import BoundloopError, BugError
from .cli_output import OK, Output
from .cli_session import Session, on_store, output_option, store_option
from .cli_store_copies import backup, export, import_
from .cli_store_upkeep import migrate, prune, rebuild
from .cli_text import safe_text

if TYPE_CHECKING:
    from ..eventstore.port import EventStore, RunRow

PAGE_RUNS = 500


@click.group()
def store() -> None:
    """The store itself."""


store.add_command(backup)
store.add_command(export)
store.add_command(import_)
store.add_command(migrate)
store.add_command(prune)
store.add_command(rebuild)


@store.command()
@on_store
async def info(session: Session) -> int:
    """Where the store is, who hosts runs in it, and how many runs it holds by status."""
    from ..eventstore.submit import proved_dead

    statuses: Counter[str] = Counter()
    async for row in _all_runs(session.store):
        statuses["pruned" if row.pruned_at_ms else "damaged" if row.damaged else row.index.status] += 1
    now_ms = session.store.now_ms()
    dead = await proved_dead(session.store)
    # In a shared store nobody removes the row of a host that died; once it has expired it says nothing.
    hosts = [
        host for host in await session.store.hosts() if host.host_id in dead or host.expires_at_ms > now_ms
    ]
    ready = await session.store.ready_runs(PAGE_RUNS)
    session.out.thing(
        {
            "url": session.url,
            "path": getattr(session.store, "path", ""),
            "runs": sum(statuses.values()),
            "by_status": dict(sorted(statuses.items())),
            "ready": f"{len(ready)} or more" if len(ready) == PAGE_RUNS else len(ready),
            "hosts": [
                f"{host.host_id} ({'dead ' if host.host_id in dead else ''}process {host.pid} on {host.node})"
                for host in hosts
            ],
            "switches": [f"{one.scope} {one.target}".strip() for one in await session.store.switches()],
        }
    )
    return OK


@store.command()
@on_store
async def check(session: Session) -> int:
    """``verify`` all runs and the file, fold every log, and compare each run's index row with its log.

    Slower than ``verify``: it also finds what a wrong program wrote with right hashes.
    """
    from ..eventstore.verify import verify_store
    from .cli_verify import print_verdicts

    found = await verify_store(session.store)
    bad = {verdict.run_id for verdict in found.runs if not verdict.ok}
    faults = list(found.faults)
    async for row in _all_runs(session.store):
        if row.run_id not in bad and not row.pruned_at_ms:
            problem = await _problem(session.store, row)
            if problem:
                faults.append(f"run {row.run_id}: {problem}")
    return print_verdicts(session.out, found.runs, tuple(faults))


async def _problem(opened: EventStore, row: RunRow) -> str:
    """What is wrong with a run whose chain is right; empty if nothing."""
    from ..eventstore.history import fold_to
    from ..runtime.index import run_index
    from ..runtime.invariants import check_state

    try:
        state, _ = await fold_to(opened, row.run_id, row.seq)
        check_state(state)
    except BugError as error:
        return f"its state breaks a law: {error.message}"
    except BoundloopError as error:
        return error.message
    return "" if run_index(state) == row.index else "its index row says something else than its log"


async def _all_runs(opened: EventStore) -> AsyncIterator[RunRow]:
    from ..eventstore.port import RunFilter

    after = ""
    while page := await opened.runs(RunFilter(after=after, limit=PAGE_RUNS)):
        for row in page:
            yield row
        after = page[-1].run_id


@store.command()
@store_option
@output_option
def path(store_url: str, output: str) -> int:
    """The file behind a store URL; nothing is opened."""
    from ..eventstore.location import parse_url, shown_url

    out = Output("json" if output == "json" else "jsonl" if output == "jsonl" else "plain")
    found = ""
    try:
        location = parse_url(store_url)
        if location.path:
            from ..eventstore.owned import real_path

            found = real_path(location.path)
    except BoundloopError as error:
        return out.error(error)
    if out.for_programs:
        out.thing({"url": shown_url(store_url), "kind": location.kind, "path": found})
    else:
        out.line(safe_text(found))
    return OK
