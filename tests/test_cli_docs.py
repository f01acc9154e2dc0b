"""``docs/cli.md`` and the command line say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
from tests.command_line import CommandLine

from boundloop.actors.cli import COMMANDS, boundloop
from boundloop.actors.cli_output import EXIT_CODES

DOC = (Path(__file__).parent.parent / "docs/cli.md").read_text("utf-8")


def leaves(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from leaves(below, (*path, name))
    else:
        yield path, command


def usage(path: tuple[str, ...], command: click.Command) -> str:
    arguments = [
        param.make_metavar(click.Context(command))
        for param in command.params
        if isinstance(param, click.Argument)
    ]
    return " ".join([*path, *(_plain(name) for name in arguments)])


def _plain(metavar: str) -> str:
    return "SCOPE" if "|" in metavar and "global" in metavar else metavar.replace("|", "\\|")


def test_each_command_is_in_the_table_once_and_no_other() -> None:
    listed = re.findall(r"^\| `(.+?)` \|", DOC, flags=re.MULTILINE)
    assert sorted(listed) == sorted(usage(path, command) for path, command in leaves(boundloop))


def test_exit_codes_agree() -> None:
    listed = {int(code): text for code, text in re.findall(r"^\| (\d+) \| (.+) \|$", DOC, flags=re.MULTILINE)}
    assert listed == EXIT_CODES


def test_every_command_explains_itself_and_takes_a_format() -> None:
    for path, command in leaves(boundloop):
        assert command.help, path
        assert any(param.name == "output" for param in command.params), path
        assert any(param.name == "store_url" for param in command.params), path


def test_the_list_of_commands_says_what_the_commands_say() -> None:
    context = click.Context(boundloop)
    assert set(COMMANDS) == set(boundloop.list_commands(context))
    for name in COMMANDS:
        command = boundloop.get_command(context, name)
        assert command is not None
        assert command.name == name


def test_a_group_alone_shows_its_help(cli: CommandLine) -> None:
    done = cli("runs")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: boundloop runs")
    assert "\n  list" in done.err
    assert cli("runs", "--help").code == 0
    assert cli("--version").out.startswith("boundloop, version ")
