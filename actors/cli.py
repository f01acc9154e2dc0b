"""``boundloop``: the command line. Each group of commands is loaded when it is used, so that reading stays quick."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    # name: (module:attribute, what it does)
    "run": (".cli_run:run", "Start a run, or go on with one, and follow it to its end or a wait."),
    "runs": (".cli_runs:runs", "List runs."),
    "show": (".cli_runs:show", "One run as it stands."),
    "why": (".cli_why:why", "How a run stopped, or on whom it waits."),
    "log": (".cli_runs:log", "What happened, one line an event."),
    "replay": (".cli_runs:replay", "The state at a seq, from the log alone."),
    "verify": (".cli_verify:verify", "Whether the logs are what was written."),
    "inbox": (".cli_inbox:inbox", "What waits for a person."),
    "approve": (".cli_inbox:approve", "Approve one preview."),
    "reject": (".cli_inbox:reject", "Say no to one preview."),
    "call": (".cli_inbox:call", "Settle a call."),
    "cancel": (".cli_control:cancel", "End a run."),
    "resume": (".cli_control:resume", "Lift a stop."),
    "close": (".cli_control:close", "End a stopped run as it stopped."),
    "limits": (".cli_control:limits", "Raise limits."),
    "switch": (".cli_switch:switch", "Stop or permit new effects."),
    "store": (".cli_store:store", "The store itself."),
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
    damaged, 7 waits for a person, 8 a limit.
    """


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and answer its exit code."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Not Group.main: it answers a reader that hung up with exit code 1.
        with boundloop.make_context("boundloop", given) as context:
            code = boundloop.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return int(error.exit_code)
    except click.ClickException as error:
        return _usage(error)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return _hung_up()
    return code if isinstance(code, int) else 0


def _hung_up() -> int:
    """Whoever read has enough. What is still buffered goes nowhere instead of failing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _usage(error: click.ClickException) -> int:
    from .cli_output import USAGE
    from .cli_text import safe_text

    if error.format_message().startswith("Usage:"):  # nothing was asked for: the help, as it is
        sys.stderr.write(error.format_message() + "\n")
        return USAGE
    context = getattr(error, "ctx", None)
    if isinstance(context, click.Context):
        sys.stderr.write(context.get_usage() + "\n")
    sys.stderr.write(f"boundloop: usage: {safe_text(error.format_message())} (to act: whoever typed this)\n")
    return USAGE


def main() -> None:
    """Entry point."""
    sys.exit(invoke())
