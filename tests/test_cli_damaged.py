"""A log that isn't what was written is never shown as if it were."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from tests.command_line import CommandLine
from tests.written_runs import asking, finished

from boundloop.eventstore.port import EventStore

READERS = [
    ("show", "r1"),
    ("why", "r1"),
    ("log", "r1"),
    ("replay", "r1", "--at", "2"),
]


async def two(store: EventStore) -> None:
    await finished(store, "r1")
    await asking(store, "r2")


def bad_range(cli: CommandLine, run: str) -> tuple[int, int]:
    row = next(row for row in cli("verify", "-o", "json").value if row["run"] == run)
    return row["first_bad_seq"], row["last_bad_seq"]


def run_sql(cli: CommandLine, statement: str) -> None:
    with closing(sqlite3.connect(cli.path)) as connection, connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        assert connection.execute(statement).rowcount == 1
        for _, sql in triggers:  # without them the file is refused before its logs are looked at
            connection.execute(sql)


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_one_changed_byte_is_the_first_thing_that_people_read(
    cli: CommandLine, arguments: tuple[str, ...]
) -> None:
    cli.build(two)
    cli.change_bytes(b'"shipped"', b'"stopped"')
    first, last = bad_range(cli, "r1")
    done = cli(*arguments)
    assert done.code == 6
    assert done.out.startswith(f"DAMAGED: first bad append seq {first} to {last}: ")
    assert f"up to seq {first - 1}" in done.out
    if arguments[0] != "log":
        assert "completed" not in done.out


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
@pytest.mark.parametrize("form", ["json", "jsonl", "plain"])
def test_programs_are_told_by_code_and_on_stderr_and_still_parse(
    cli: CommandLine, arguments: tuple[str, ...], form: str
) -> None:
    cli.build(two)
    cli.change_bytes(b'"shipped"', b'"stopped"')
    done = cli(*arguments, "-o", form)
    assert done.code == 6
    assert done.err.startswith("boundloop: DAMAGED: first bad append seq ")
    if form == "json" and arguments[0] != "log":
        first, last = bad_range(cli, "r1")
        assert (done.value["status"], done.value["first_bad_seq"], done.value["last_bad_seq"]) == (
            "damaged",
            first,
            last,
        )


def test_the_log_marks_what_stands_after_the_damage(cli: CommandLine) -> None:
    cli.build(two)
    before = cli("log", "r1").out.splitlines()
    cli.change_bytes(b'"shipped"', b'"stopped"')
    first, _ = bad_range(cli, "r1")
    _, *after = cli("log", "r1").out.splitlines()
    assert after[: first - 1] == before[: first - 1]
    assert len(after) == len(before)
    assert all(line.lstrip().startswith("?") for line in after[first - 1 :])
    rows = cli("log", "r1", "-o", "json").value
    assert [row["seq"] for row in rows if row["trusted"]] == list(range(1, first))


def test_nothing_is_folded_beyond_the_damage(cli: CommandLine) -> None:
    cli.build(two)
    cli.change_bytes(b'"shipped"', b'"stopped"')
    first, _ = bad_range(cli, "r1")
    done = cli("replay", "r1", "--at", str(first))
    assert done.code == 6
    assert "isn't as written" in done.err
    assert len(done.out.splitlines()) == 1


def test_a_log_that_was_cut_off_is_damaged(cli: CommandLine) -> None:
    cli.build(two)
    of_r1 = "run_key = (SELECT run_key FROM runs WHERE run_id = 'r1')"
    run_sql(
        cli,
        f"DELETE FROM appends WHERE {of_r1} AND first_seq = (SELECT max(first_seq) FROM appends WHERE {of_r1})",
    )
    for arguments in READERS:
        done = cli(*arguments)
        assert (done.code, done.out[:9]) == (6, "DAMAGED: "), done
    assert "the run's row says" in cli("show", "r1").out


def test_a_damaged_run_is_listed_and_offers_nothing(cli: CommandLine) -> None:
    cli.build(two)
    cli.change_bytes(b'"5.00"', b'"0.05"')
    done = cli("inbox")
    assert done.code == 6
    assert done.out.startswith("DAMAGED: run r2, nothing of it can be decided: ")
    assert "boundloop approve" not in done.out
    [row] = cli("inbox", "-o", "json").value
    assert (row["kind"], row["run"]) == ("damaged", "r2")
    assert "Next:" not in cli("why", "r2").out
    assert cli("approve", "r2").code == 6


def test_a_run_whose_pins_were_altered_is_listed_and_shown_as_damaged(cli: CommandLine) -> None:
    cli.build(two)
    cli.change_bytes(b"Pay one order back.", b"Pay all orders now.")
    done = cli("inbox")
    assert done.code == 6
    assert done.out.startswith("DAMAGED: run r2, ")
    assert "boundloop approve" not in done.out
    for command in ("show", "why", "log"):
        assert cli(command, "r1").code == 6, command
        assert cli(command, "r1").out.startswith("DAMAGED: "), command
    assert cli("approve", "r2").code == 6
