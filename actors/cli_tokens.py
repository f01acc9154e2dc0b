"""``boundloop tokens``: what a backend said of a turn token by token, from the store alone."""

from __future__ import annotations

from typing import BinaryIO

import click

from ..runtime.errors import CallerError
from .cli_session import Session, on_store


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("turn", type=click.IntRange(1), metavar="TURN")
@click.option(
    "--to", "file", type=click.File("wb", lazy=True), metavar="FILE", help="Write the bytes; - is stdout."
)
@on_store
async def tokens(session: Session, run_id: str, turn: int, file: BinaryIO | None) -> int:
    """The token ids, log-probabilities and masks of a turn, as they came.

    Without --to it says what there is. A turn without any is exit code 3.
    """
    from ..eventstore.reading import read_run
    from ..eventstore.token_data import token_bytes, tokens_named
    from .cli_output import NOT_FOUND
    from .cli_reading import code_of, damage_view, say_damage

    found = await read_run(session.store, run_id)
    named = tokens_named(run_id, found.records, turn)
    if file is None or file.name != "-":
        say_damage(session.out, found)
    if named is None:
        session.out.note(f"Turn {turn} has no token data.")
        return code_of(found) or NOT_FOUND
    data = await token_bytes(session.store, named)
    if file is not None:
        if data is None:
            raise CallerError(
                "token_data_not_kept", "it was too large, or withheld", path=f"{run_id}/t{turn}"
            )
        file.write(data)
        if file.name == "-":
            return code_of(found)
    session.out.thing(
        {
            "run": run_id,
            "turn": named.turn,
            "attempt": named.attempt,
            "seq": named.seq,
            "bytes": named.size,
            "kept": named.sha256 is not None,
            "sha256": "" if named.sha256 is None else named.sha256.hex(),
            **damage_view(found),
        }
    )
    return code_of(found)
