"""What a person says to a run."""

from __future__ import annotations

import sys

import click

from ..runtime.commands import MESSAGE_BYTES_MAX, Send
from .cli_output import OK
from .cli_session import Session, approver, new_command_id, on_store, say_who_goes_on
from .cli_text import quoted

_COMMAND_ID_HELP = "Of an earlier try: the answer is the first one's."


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("text")
@click.option("--command-id", default=None, metavar="ID", help=_COMMAND_ID_HELP)
@on_store
async def send(session: Session, run_id: str, text: str, command_id: str | None) -> int:
    """Say something to a run that hasn't ended; TEXT "-" is read from standard input. The model hears it at its next
    request. A stopped run keeps it until it is resumed."""
    command = Send(command_id=command_id or new_command_id(), by=approver(), text=_text(text))
    answer = await session.submit(run_id, command)
    if session.out.form != "table":
        session.out.thing({"done": "sent", "run": run_id, "seq": answer.seq, "by": command.by})
        return OK
    session.out.line(f"Sent, seq {answer.seq}.")
    row = await session.store.run(run_id)
    if row is not None and row.index.status == "suspended":
        session.out.line("The run has stopped: it hears this when it is resumed.")
        session.out.line(f"  boundloop resume {quoted(run_id)}{session.store_option}")
    await say_who_goes_on(session, run_id)
    return OK


def _text(given: str) -> str:
    """As an argument, or the standard input where that is ``-``. Raises ``UsageError`` for what no message may be."""
    text = sys.stdin.read(MESSAGE_BYTES_MAX + 1) if given == "-" else given
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise click.UsageError("the text isn't valid in this locale's encoding") from None
    if size > MESSAGE_BYTES_MAX:
        raise click.UsageError(f"the text has more than {MESSAGE_BYTES_MAX} bytes")
    return text
