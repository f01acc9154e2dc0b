"""One command's connection to a store: through its owner, or as its owner for this one command.

Whoever owns the file meanwhile answers others that come through its socket, so commands that meet each other agree.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from ..eventstore.location import connect_store, parse_url, shown_url, url_to_type
from ..eventstore.port import EventStore
from ..runtime.commands import CommandAnswer, OutsideCommand, decode_command, encode_command
from ..runtime.errors import (
    BoundloopError,
    BugError,
    CallerError,
    ConflictError,
    HistoryRefused,
    StoreError,
    StoreUrlError,
)
from .cli_output import FORMATS, Format, Output, Refused
from .cli_text import quoted, safe_text

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


class Session:
    """What a command's body works with."""

    def __init__(self, store: EventStore, url: str, out: Output) -> None:
        self.store = store
        self.url = shown_url(url)
        self.out = out
        self.store_option = store_option_of(url)
        """What a command for the next prompt has to add to mean this store."""

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer:
        """Hand the command to whoever decides for this run. Raises ``Refused`` for a no."""
        from ..eventstore.submit import decode_answer

        answer = decode_answer(await self.store.submit(run_id, command.command_id, encode_command(command)))
        if not answer.accepted:
            raise error_of_answer(answer, run_id)
        return answer


def store_option_of(url: str) -> str:
    """What a command for the next prompt has to add to mean the store of this URL, without its password; empty if the
    environment says it."""
    if os.environ.get("BOUNDLOOP_STORE") == url:
        return ""
    return f" --store {quoted(url_to_type(url))}"


_UNREADABLE = ("log_damaged", "log_start", "log_gap", "log_illegal", "pins_missing", "pins_decode")


def error_of_answer(answer: CommandAnswer, run_id: str) -> BoundloopError:
    """A no as an error of who must act."""
    if answer.code == "owned":
        return ConflictError(answer.code, answer.message, path=run_id)
    if answer.code in _UNREADABLE:
        return HistoryRefused(answer.code, answer.message, path=run_id)
    kind = {"store": StoreError, "bug": BugError}.get(answer.actor, Refused)
    return kind(answer.code, answer.message, path=run_id)


def approver() -> str:
    """Who types this, as the system knows it: ``os:user@host``, never what the environment says."""
    import pwd
    import socket

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"os:{user}@{socket.gethostname()}"


def new_command_id() -> str:
    return f"cli_{token_hex(8)}"


async def open_session(url: str, out: Output) -> Session:
    """Raises ``StoreUrlError``, ``OwnedError`` or another ``StoreError``."""
    parse_url(url)  # a wrong URL is wrong usage, a missing file is the store's
    opened: list[EventStore] = []

    async def decide_here(run_id: str, command_id: str, data: bytes) -> bytes:
        return await _decide(opened[0], run_id, data)

    try:
        store = await connect_store(url, on_submit=decide_here, must_exist=True)
    except StoreUrlError as error:
        raise StoreError("no_such_store", error.message, path=shown_url(url)) from error
    opened.append(store)
    return Session(store, url, out)


async def _decide(store: EventStore, run_id: str, data: bytes) -> bytes:
    """As owner for one command: no runtime lives on this file, so the run has no live host of this process."""
    import msgspec

    from ..eventstore.submit import encode_answer, host_for_one_command, proved_dead, submit_unhosted

    try:
        command = decode_command(data)
    except msgspec.DecodeError as error:
        raise CallerError("command_invalid", str(error)[:200], path=run_id) from error
    async with host_for_one_command(store) as host_id:
        dead = await proved_dead(store)
        return encode_answer(await submit_unhosted(store, run_id, command, host_id=host_id, dead_hosts=dead))


def output_option(function: F) -> F:
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How to print.",
    )(function)


def _store_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """The nearest wins: after the command, before it, the environment."""
    near = context.get_parameter_source("store_url") is ParameterSource.COMMANDLINE
    before = context.find_root().params.get("store_url")
    url = value if near or before is None else str(before)
    if url is None:
        raise click.MissingParameter(ctx=context, param=parameter)
    return url


def store_option(function: F) -> F:
    return click.option(
        "--store",
        "store_url",
        envvar="BOUNDLOOP_STORE",
        callback=_store_url,
        metavar="URL",
        help="The store, such as sqlite:///runs.db or postgresql://host/database.  [env: BOUNDLOOP_STORE]",
    )(function)


def on_store(body: Callable[Concatenate[Session, P], Awaitable[int]]) -> Callable[P, int]:
    """A command whose body works on an open store and answers the exit code."""

    @store_option
    @output_option
    @functools.wraps(body)
    def command(*args: P.args, **kwargs: P.kwargs) -> int:
        url = str(kwargs.pop("store_url"))
        out = Output(format_of(kwargs.pop("output")))

        async def work() -> int:
            session = await open_session(url, out)
            try:
                return await body(session, *args, **kwargs)
            finally:
                await session.store.close()

        try:
            return asyncio.run(work())
        except BoundloopError as error:
            return out.error(error)

    return command


def format_of(value: object) -> Format:
    """What ``-o`` says."""
    for form in FORMATS:
        if form == value:
            return form
    raise click.UsageError(f"no such format: {value}")


async def say_who_goes_on(session: Session, run_id: str) -> None:
    """After a command: that the run has ended, what picks it up, or nothing if nothing has to."""
    if session.out.form != "table":
        return
    from ..eventstore.history import load_run
    from .cli_standing import standing_of

    row = await session.store.run(run_id)
    if row is None:
        return
    state, _ = await load_run(session.store, run_id)
    if state.phase == "terminated":
        session.out.line(f"The run has ended: {safe_text(state.outcome)}, {safe_text(state.reason)}.")
        return
    for line in (await standing_of(session.store, row, state)).who_goes_on(session.store_option):
        session.out.line(line)
