"""What a person says to a run: messages, and answers to its questions."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from ..runtime.commands import MESSAGE_BYTES_MAX, Answer, Send
from .cli_output import OK, Refused
from .cli_session import Session, approver, new_command_id, on_store, say_who_goes_on
from .cli_text import quoted, safe_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..eventstore.codec import Recorded

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


class _Asked(NamedTuple):
    """Which question a name means."""

    run_id: str
    question_id: str
    question: str
    choices: tuple[str, ...]


_is_question_id = re.compile(r"q_[0-9a-f]{16}").fullmatch


@click.command()
@click.argument("name", metavar="QUESTION|RUN")
@click.argument("text", required=False, default=None)
@click.option(
    "--choice", type=click.IntRange(1), default=None, metavar="N", help="The choice of that number."
)
@click.option(
    "--cannot", is_flag=True, help="Nobody can answer. The run goes on without, unless its goal needs it."
)
@click.option("--stop", is_flag=True, help="With --cannot: the run stops, blocked.")
@click.option("--reason", default="", help="Recorded; with --cannot the model is told.")
@click.option("--command-id", default=None, metavar="ID", help=_COMMAND_ID_HELP)
@on_store
async def answer(
    session: Session,
    name: str,
    text: str | None,
    choice: int | None,
    cannot: bool,
    stop: bool,
    reason: str,
    command_id: str | None,
) -> int:
    """Answer one question, by its id or by a run that asks exactly one; TEXT "-" is read from standard input."""
    if (text is not None) + (choice is not None) + cannot != 1:
        raise click.UsageError("say one of TEXT, --choice N and --cannot")
    if stop and not cannot:
        raise click.UsageError("--stop goes with --cannot")
    asked = await _find(session, name, command_id)
    command = Answer(
        command_id=command_id or new_command_id(),
        by=approver(),
        question_id=asked.question_id,
        text=_chosen(asked, choice) if choice is not None else "" if text is None else _text(text),
        cannot=cannot,
        stop=stop,
        reason=reason,
    )
    seq = (await session.submit(asked.run_id, command)).seq
    if session.out.form != "table":
        session.out.thing(
            {
                "answered": "cannot" if cannot else "answer",
                "question": asked.question_id,
                "run": asked.run_id,
                "seq": seq,
                "by": command.by,
            }
        )
        return OK
    session.out.line(f"Answered {asked.question_id} as {safe_text(command.by)}, seq {seq}.")
    session.out.line(f"  {safe_text(asked.question)}")
    await say_who_goes_on(session, asked.run_id)
    return OK


def _chosen(asked: _Asked, number: int) -> str:
    if not asked.choices:
        raise click.UsageError("this question has no choices: write the answer")
    if number > len(asked.choices):
        raise click.UsageError(f"this question has {len(asked.choices)} choices")
    return asked.choices[number - 1]


async def _find(session: Session, name: str, command_id: str | None) -> _Asked:
    """By a question's id, open or not, or by a run that asks exactly one. Whether it may still be answered is judged where
    the answer is handed in. Raises ``Refused``, ``UsageError`` and, for a damaged run, ``HistoryRefused``."""
    from ..eventstore.inbox import find_asking
    from ..eventstore.reading import read_run
    from ..runtime.errors import HistoryRefused
    from .cli_inbox import run_that_asked

    wanted = name if _is_question_id(name) else ""
    run_id = name
    if wanted:
        found = await find_asking(session.store, name) or await run_that_asked(session.store, name)
        if found is None:
            raise Refused("question_not_found", "no run asks or asked this", path=name)
        run_id = found
    read = await read_run(session.store, run_id)
    if read.damage:
        raise HistoryRefused("log_damaged", read.damage, path=run_id)
    state = read.whole()
    seq = state.commands.get(command_id or "")
    if seq is not None:
        # Answered before, by this very command: whether it is the same answer is judged where it is handed in.
        wanted = wanted or getattr(read.records[seq - 1].event, "question_id", "")
    opened = {
        call.question.question_id
        for call in state.calls.values()
        if call.question is not None and call.phase == "waiting_answer"
    }
    asked = [one for one in _questions(run_id, read.records) if one.question_id == wanted]
    if not wanted:
        asked = [one for one in _questions(run_id, read.records) if one.question_id in opened]
        if len(asked) > 1:
            ids = ", ".join(one.question_id for one in asked)
            raise click.UsageError(f"run {name} asks {len(asked)} questions, name one: {ids}")
    if not asked:
        raise Refused("question_not_found", "this run asks no question", path=name)
    return asked[0]


def _questions(run_id: str, records: Sequence[Recorded]) -> list[_Asked]:
    from ..runtime.events import QuestionAsked

    return [
        _Asked(run_id, record.event.question_id, record.event.question, record.event.choices)
        for record in records
        if isinstance(record.event, QuestionAsked)
    ]
