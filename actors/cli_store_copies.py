"""Copies of a store: ``store export``, ``store import`` and ``store backup``."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from ..runtime.errors import BoundloopError, CallerError
from .cli_output import OK, Output
from .cli_session import Session, format_of, on_store, output_option, store_option
from .cli_text import safe_text

if TYPE_CHECKING:
    from ..eventstore.archive import Contents
    from ..eventstore.export import Imported


@click.command()
@click.argument("file", metavar="FILE")
@on_store
async def export(session: Session, file: str) -> int:
    """Write everything that the store holds to FILE, for a store of any kind.

    The store must be at rest: nobody hosts runs in it. FILE must not be there, and is there once it is whole.
    """
    from ..eventstore.export import export_store

    refuse_existing(file)
    contents = await export_store(session.store, file)
    _say(session.out, contents, f"exported to {file}")
    return OK


@click.command()
@click.argument("file", metavar="FILE")
@on_store
async def backup(session: Session, file: str) -> int:
    """Copy a SQLite store to FILE while runs go on in it.

    The copy's pages are checked; ``store check --store sqlite:///FILE`` checks its logs too. FILE must not be there, and is there once it
    is whole. An old copy that is put back is a past: effects since then are not in its ledger.
    """
    back_up = getattr(session.store, "back_up", None)
    if back_up is None:
        raise CallerError(
            "no_backup", "this store is backed up by its server: pg_dump, or base backups", path=file
        )
    path = os.path.abspath(file)  # noqa: ASYNC240  nothing else waits in this process
    await back_up(path)
    size = os.path.getsize(path)  # noqa: ASYNC240  likewise, one look
    if session.out.form == "table":
        session.out.line(f"{size} bytes copied to {safe_text(file)}.")
    else:
        session.out.thing({"file": path, "bytes": size})
    return OK


@click.command("import")
@click.argument("file", metavar="FILE")
@store_option
@output_option
def import_(store_url: str, output: str, file: str) -> int:
    """Take an export in, whole or not at all, into a store that is empty or new.

    FILE is read to its end before anything is written: one that was cut or changed is refused. A store that has this very
    content already is left as it is, so an import can be repeated.
    """
    out = Output(format_of(output))
    try:
        done = asyncio.run(_import(store_url, file))
    except BoundloopError as error:
        return out.error(error)
    _say(out, done.contents, "were there already" if done.was_there else "imported")
    return OK


async def _import(url: str, file: str) -> Imported:
    from ..eventstore.archive import check_archive
    from ..eventstore.export import import_store
    from ..eventstore.location import connect_store

    # Before a store is made for it.
    await asyncio.to_thread(check_archive, file)
    store = await connect_store(url)
    try:
        return await import_store(store, file)
    finally:
        await store.close()


def refuse_existing(file: str) -> None:
    """Nothing is written over. Raises ``CallerError``."""
    if os.path.lexists(file):
        raise CallerError("file_exists", "there is a file of this name", path=file)


def _say(out: Output, contents: Contents, did: str) -> None:
    if out.form != "table":
        out.thing({"counts": contents.counts, "content_sha256": contents.sha256.hex(), "did": did})
        return
    counts = contents.counts
    out.line(
        f"{counts.get('run', 0)} runs, {counts.get('append', 0)} appends, {counts.get('blob', 0)} blobs, "
        f"{counts.get('ledger', 0) + counts.get('earlier', 0)} ledger rows {safe_text(did)}."
    )
    out.line(f"content {contents.sha256.hex()}")
