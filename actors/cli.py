"""``boundloop``: the command line. Each group of commands is loaded when it is used, so that reading stays quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from .cli_output import FORMATS, INTERRUPTED, OK, USAGE, Format, Output, hung_up
from .cli_scrub import scrubbed
from .cli_text import safe_text

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    # name: (module:attribute, what it does)
    "demo": (".cli_demo:demo", "One refund on real parts in which everything goes wrong once."),
    "run": (".cli_run:run", "Start a run, or go on with one, and follow it to its end or a wait."),
    "serve": (".cli_serve:serve", "Host an application's runs until told to end."),
    "runs": (".cli_runs:runs", "List runs."),
    "show": (".cli_runs:show", "One run as it stands."),
    "why": (".cli_why:why", "How a run stopped, or on whom it waits."),
    "log": (".cli_runs:log", "What happened, one line an event."),
    "tree": (".cli_tree:tree", "A run and the runs that it started."),
    "request": (".cli_request:request", "What a model was asked, from the log alone."),
    "tokens": (".cli_tokens:tokens", "What a backend said of a turn token by token."),
    "replay": (".cli_runs:replay", "The state at a seq, from the log alone."),
    "verify": (".cli_verify:verify", "Whether the logs are what was written."),
    "inbox": (".cli_inbox:inbox", "What waits for a person."),
    "approve": (".cli_inbox:approve", "Approve one preview."),
    "reject": (".cli_inbox:reject", "Say no to one preview."),
    "answer": (".cli_people:answer", "Answer one question."),
    "send": (".cli_people:send", "Say something to a run."),
    "call": (".cli_inbox:call", "Settle a call."),
    "cancel": (".cli_control:cancel", "End a run."),
    "resume": (".cli_control:resume", "Lift a stop."),
    "close": (".cli_control:close", "End a stopped run as it stopped."),
    "limits": (".cli_control:limits", "Raise limits."),
    "switch": (".cli_switch:switch", "Stop or permit new effects."),
    "decode": (".cli_decode:decode", "What a provider's answer means."),
    "store": (".cli_store:store", "The store itself."),
    "doctor": (".cli_doctor:doctor", "What about this machine, Ray and the store breaks a promise."),
}


class LazyGroup(click.Group):
    """Loads a command's module when the command is asked for; the list of commands loads none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place[0].partition(":")
        command: click.Command = getattr(importlib.import_module(module, __package__), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, does) for name, (_, does) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="boundloop", prog_name="boundloop")
@click.option(
    "--store", "store_url", metavar="URL", help="The store, for any command; may stand after it too."
)
def boundloop(store_url: str | None) -> None:
    """Runs of a bounded interpreter for model-proposed actions: start, watch, decide, and find out why.

    Exit codes: 0 ok, 1 a difference or a failed run, 2 wrong usage, 3 not found, 4 conflict or owned, 5 the store, 6
    damaged, 7 waits for a person, 8 a limit, 130 interrupted.
    """


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and answer its exit code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _invoke(given)
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:  # outside of ``Output``: click's own help
        hung_up()
        code = OK
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        hung_up()
    return code


def _invoke(given: list[str]) -> int:
    from ..runtime.errors import BoundloopError

    try:
        # Not Group.main: it answers a reader that hung up with exit code 1.
        with boundloop.make_context("boundloop", given) as context:
            code = boundloop.invoke(context)
    except click.exceptions.Exit as error:
        return int(error.exit_code)
    except click.ClickException as error:
        return _usage(error, given)
    except BoundloopError as error:  # a command's own format is known to the command only
        return Output().error(error)
    return code if isinstance(code, int) else OK


def _usage(error: click.ClickException, given: Sequence[str]) -> int:
    if error.format_message().startswith("Usage:"):  # nothing was asked for: the help, as it is
        sys.stderr.write(error.format_message() + "\n")
        return USAGE
    context = getattr(error, "ctx", None)
    if isinstance(context, click.Context):
        sys.stderr.write(context.get_usage() + "\n")
    message = safe_text(scrubbed(error.format_message()))
    sys.stderr.write(f"boundloop: usage: {message}\n")
    Output(_format_asked_for(given)).usage_error(message)
    return USAGE


def _format_asked_for(given: Sequence[str]) -> Format:
    """The command line couldn't be read, so by its words: the last that names a format."""
    found: Format = "table"
    for place, word in enumerate(given):
        after = given[place + 1] if place + 1 < len(given) else ""
        for name in FORMATS:
            if word in (f"-o{name}", f"--output={name}") or (word in ("-o", "--output") and after == name):
                found = name
    return found


def main() -> None:
    """Entry point."""
    sys.exit(invoke())
