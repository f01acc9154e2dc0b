"""Commands to a run: cancel, resume, close, raise limits."""

from __future__ import annotations

import click

from ..runtime.commands import Cancel, Close, OutsideCommand, RaiseLimits, Resume
from .cli_output import OK
from .cli_session import Session, approver, new_command_id, on_store, say_who_goes_on
from .cli_text import safe_text

_COMMAND_ID_HELP = "Of an earlier try: the answer is the first one's."


async def _submit(session: Session, run_id: str, command: OutsideCommand, done: str) -> int:
    answer = await session.submit(run_id, command)
    if session.out.form == "table":
        session.out.line(f"{done}, seq {answer.seq}.")
    else:
        session.out.thing({"done": done, "run": run_id, "seq": answer.seq, "by": command.by})
    await say_who_goes_on(session, run_id)
    return OK


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--command-id", default=None, metavar="ID", help=_COMMAND_ID_HELP)
@on_store
async def cancel(session: Session, run_id: str, command_id: str | None) -> int:
    """End a run: nothing new is begun from the moment this returns; what was sent is waited for or found out."""
    command = Cancel(command_id=command_id or new_command_id(), by=approver())
    return await _submit(session, run_id, command, "Cancel requested")


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--command-id", default=None, metavar="ID", help=_COMMAND_ID_HELP)
@on_store
async def resume(session: Session, run_id: str, command_id: str | None) -> int:
    """Lift a stop. Refused while what stopped the run still stands."""
    command = Resume(command_id=command_id or new_command_id(), by=approver())
    return await _submit(session, run_id, command, "Resumed")


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--command-id", default=None, metavar="ID", help=_COMMAND_ID_HELP)
@on_store
async def close(session: Session, run_id: str, command_id: str | None) -> int:
    """End a stopped run with the outcome that it stopped with."""
    command = Close(command_id=command_id or new_command_id(), by=approver())
    return await _submit(session, run_id, command, "Close requested")


@click.group()
def limits() -> None:
    """Raise limits."""


@limits.command("raise")
@click.argument("run_id", metavar="RUN")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUE...")
@click.option("--command-id", default=None, metavar="ID", help=_COMMAND_ID_HELP)
@on_store
async def raise_(session: Session, run_id: str, values: tuple[str, ...], command_id: str | None) -> int:
    """Raise limits of a run, such as turns=80 cost=0.50 deadline_s=7200. A limit is never lowered."""
    command = RaiseLimits(command_id=command_id or new_command_id(), by=approver(), raised=_read(values))
    names = ", ".join(f"{name}={value}" for name, value in command.raised.items())
    return await _submit(session, run_id, command, f"Raised {safe_text(names)}")


def _read(values: tuple[str, ...]) -> dict[str, int]:
    from ..runtime.limits import RAISABLE, micros

    raised: dict[str, int] = {}
    for pair in values:
        name, sign, text = pair.partition("=")
        if name == "cost":
            name, number = "cost_micros", micros(text)
        elif not sign or not text.isascii() or not text.isdigit() or len(text) > 16:
            raise click.UsageError(f"{pair}: write NAME=VALUE with a whole number")
        elif name == "deadline_s":
            name, number = "deadline_ms", int(text) * 1_000
        else:
            number = int(text)
        if name not in RAISABLE:
            raise click.UsageError(f"{name}: no limit of that name can be raised")
        if name in raised:
            raise click.UsageError(f"{name} is given twice")
        raised[name] = number
    return raised
