"""Commands that read: what they print, in every format, and their exit codes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.command_line import NOON_MS, CommandLine, Done
from tests.written_runs import WrittenRun, asking, finished, unknown

from boundloop.eventstore import family
from boundloop.eventstore.port import EventStore

GOLDEN = Path(__file__).parent / "golden"

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egpj.exe\u200b\x9b31m\r\nrm -rf"


async def one_finished(store: EventStore) -> WrittenRun:
    return await finished(store, "r1")


async def three(store: EventStore) -> None:
    await finished(store, "r1")
    await asking(store, "r2", tenant="shop", operation_id="op_2")
    await unknown(store, "r3")


def golden(name: str, done: Done) -> None:
    assert done.out.splitlines() == (GOLDEN / f"{name}.txt").read_text("utf-8").splitlines()
    assert done.err == ""


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("runs_list", ("runs", "list"), 0),
        ("show_finished", ("show", "r1"), 0),
        ("log_finished", ("log", "r1"), 0),
        ("log_unknown", ("log", "r3"), 0),
        ("why_finished", ("why", "r1"), 0),
        ("why_unknown", ("why", "r3"), 0),
        ("inbox", ("inbox",), 0),
        ("verify", ("verify",), 0),
    ],
)
def test_what_people_see(cli: CommandLine, name: str, arguments: tuple[str, ...], code: int) -> None:
    cli.build(three, at_ms=NOON_MS)
    done = cli(*arguments)
    assert done.code == code
    golden(name, done)


READERS = [
    ("runs", "list"),
    ("show", "r1"),
    ("why", "r2"),
    ("log", "r2"),
    ("replay", "r2", "--at", "3"),
    ("verify",),
    ("inbox",),
    ("switch", "list"),
    ("store", "info"),
    ("store", "check"),
    ("store", "path"),
]


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_every_reader_speaks_json(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    cli.build(three)
    whole = cli(*arguments, "-o", "json")
    lines = cli(*arguments, "-o", "jsonl")
    assert (whole.code, lines.code, whole.err, lines.err) == (0, 0, "", "")
    assert whole.out.isascii()
    parsed = [json.loads(line) for line in lines.out.splitlines()]
    assert parsed in (whole.value, [whole.value])
    assert cli(*arguments, "-o", "plain").code == 0


def test_runs_are_filtered_and_paged(cli: CommandLine) -> None:
    cli.build(three)

    def listed(*options: str) -> list[str]:
        return [row["run"] for row in cli("runs", "list", "-o", "json", *options).value]

    assert listed() == ["r3", "r2", "r1"]
    assert listed("--tenant", "shop") == ["r2"]
    assert listed("--status", "terminated") == ["r1"]
    assert listed("--operation", "op_2") == ["r2"]
    assert listed("--waiting-for", "approval") == ["r2"]
    assert listed("--agent", "nobody") == []
    assert listed("--limit", "2") == ["r3", "r2"]
    assert listed("--limit", "2", "--after", "r2") == ["r1"]
    assert "There are more: --after r2" in cli("runs", "list", "--limit", "2").out


@pytest.mark.parametrize("arguments", [("runs", "list"), ("inbox",), ("log", "r2")], ids=" ".join)
def test_a_page_that_is_not_the_last_says_so_beside_what_programs_parse(
    cli: CommandLine, arguments: tuple[str, ...]
) -> None:
    async def build(store: EventStore) -> None:
        for run_id in ("r1", "r2", "r 3"):
            await asking(store, run_id)

    cli.build(build, at_ms=NOON_MS)
    said = cli(*arguments, "--limit", "1").out.splitlines()[-1]
    assert said.startswith("There are more: --after ")
    whole = cli(*arguments, "-o", "json").value
    for form in ("json", "jsonl", "plain"):
        done = cli(*arguments, "--limit", "1", "-o", form)
        assert done.err == f"boundloop: {said}\n"
        assert "There are more" not in done.out
        assert cli(*arguments, "-o", form).err == ""
    goes_on = shlex.split(said.partition(": ")[2])
    rest = cli(*arguments, "-o", "json", *goes_on).value
    assert rest == whole[1:]


def test_a_tree_that_is_larger_than_is_looked_at_says_so(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.build(one_finished)
    monkeypatch.setattr(family, "RUNS_MAX", 0)
    assert cli("tree", "r1").out.endswith("\nThere are more runs than are looked at.\n")
    assert cli("tree", "r1", "-o", "json").err == "boundloop: There are more runs than are looked at.\n"


def test_runs_are_listed_by_outcome_and_time(cli: CommandLine) -> None:
    cli.build(one_finished, at_ms=NOON_MS)
    cli.build(lambda store: asking(store, "r2"), at_ms=NOON_MS + 86_400_000)

    def listed(*options: str) -> list[str]:
        return [row["run"] for row in cli("runs", "list", "-o", "json", *options).value]

    assert listed("--outcome", "completed") == ["r1"]
    assert listed("--outcome", "failed") == []
    for of in ("created", "updated"):
        assert listed(f"--{of}-since", "2023-11-15") == ["r2"]
        assert listed(f"--{of}-until", "2023-11-15T00:00-02:00") == ["r1"]
        assert (
            listed(
                f"--{of}-since",
                "2023-11-14T22:13:20Z",
                f"--{of}-until",
                "2023-11-15",
                "--status",
                "suspended",
            )
            == []
        )
        assert listed(f"--{of}-since", "24h") == []
        assert listed(f"--{of}-until", "24h") == ["r2", "r1"]


def test_the_inbox_goes_on_where_the_page_before_ended(cli: CommandLine) -> None:
    async def five(store: EventStore) -> None:
        for number in range(5):
            await asking(store, f"r {number}")

    cli.build(five, at_ms=NOON_MS)
    seen: list[str] = []
    options: tuple[str, ...] = ()
    for _ in range(3):
        seen += [row["run"] for row in cli("inbox", "--limit", "2", "-o", "json", *options).value]
        last = cli("inbox", "--limit", "2", *options).out.splitlines()[-1]
        if "--after" not in last:
            break
        options = tuple(shlex.split(last.partition(": ")[2]))
    assert seen == [f"r {number}" for number in range(5)]
    assert cli("inbox", "--after", "nowhere").code == 2


def test_replay_answers_the_digest_of_that_seq(cli: CommandLine) -> None:
    cli.build(three)
    first = cli("replay", "r1", "--at", "4", "-o", "json").value
    assert first == cli("replay", "r1", "--at", "4", "-o", "json").value
    assert first["seq"] == 4
    later = cli("replay", "r1", "--at", "5", "-o", "json").value
    assert later["state_sha256"] != first["state_sha256"]


@pytest.mark.parametrize("command", ["show", "why", "log", "verify", "cancel", "resume", "close"])
def test_a_run_that_is_not_there_exits_3(cli: CommandLine, command: str) -> None:
    cli.build(one_finished)
    done = cli(command, "r9")
    assert (done.code, done.out) == (3, "")
    assert done.err == "boundloop: run_not_found at r9: no such run (to act: whoever typed this)\n"


def test_an_error_is_an_object_too_for_programs(cli: CommandLine) -> None:
    cli.build(one_finished)
    done = cli("show", "r9", "-o", "json")
    assert done.code == 3
    assert done.value["error"] == {
        "code": "run_not_found",
        "message": "no such run",
        "path": "r9",
        "actor": "caller",
        "exit_code": 3,
    }


def test_a_seq_out_of_range_exits_3(cli: CommandLine) -> None:
    cli.build(one_finished)
    assert cli("replay", "r1", "--at", "9999").code == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("show",),
        ("show", "r1", "-o", "xml"),
        ("runs", "list", "--limit", "0"),
        ("runs", "list", "--status", "nonsense"),
        ("runs", "list", "--outcome", "nonsense"),
        ("runs", "list", "--created-since", "yesterday"),
        ("runs", "list", "--updated-until", "9d9h"),
        ("replay", "r1"),
        ("replay", "r1", "--at", "0"),
        ("show", "r1", "--store", "mysql://x"),
        ("show", "r1", "--store", "sqlite://host/x"),
        ("store", "path", "--store", "sqlite:///"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_in_one_line(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    cli.build(one_finished)
    done = cli(*arguments)
    assert done.code == 2
    last = done.err.splitlines()[-1]
    assert last.startswith("boundloop: ")
    is_usage = "Usage: " in done.err
    assert is_usage != last.endswith(" (to act: whoever typed this)")


@pytest.mark.parametrize("asked", [("-o", "json"), ("-ojson",), ("--output", "jsonl"), ("--output=json",)])
def test_wrong_usage_is_an_object_for_programs_too(cli: CommandLine, asked: tuple[str, ...]) -> None:
    done = cli("runs", "list", *asked, "--status", "nonsense")
    assert done.code == 2
    error = done.value["error"]
    assert (error["code"], error["actor"], error["exit_code"]) == ("usage", "caller", 2)
    assert "'nonsense' is not one of" in error["message"]
    assert cli("runs", "list", "--status", "nonsense").out == ""


def test_a_list_knows_the_words_of_a_result(cli: CommandLine) -> None:
    cli.build(one_finished)
    ended = cli("runs", "list", "--status", "ended", "-o", "json").value
    assert [row["status"] for row in ended] == ["terminated"]
    assert cli("runs", "list", "--status", "stopped", "-o", "json").value == []


def test_without_a_store_nothing_is_guessed(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOUNDLOOP_STORE")
    assert cli("runs", "list").code == 2


def test_a_reader_makes_no_file(cli: CommandLine) -> None:
    done = cli("runs", "list")
    assert done.code == 5
    assert "no_such_store" in done.err
    assert not cli.path.exists()


def test_the_path_of_a_store_that_can_not_be_is_an_error_like_any_other(cli: CommandLine) -> None:
    cli.build(one_finished)
    assert cli("store", "path", "--store", f"sqlite:///{cli.path.parent}/no_folder/x.db").code == 2
    (cli.path.parent / "second.db").hardlink_to(cli.path)
    done = cli("store", "path", "-o", "json")
    assert (done.code, done.value["error"]["code"]) == (5, "hard_links")


def test_a_file_that_is_no_store_exits_5(cli: CommandLine) -> None:
    cli.path.write_bytes(b"certainly not a database " * 400)
    for command in (("verify",), ("runs", "list")):
        done = cli(*command)
        assert done.code == 5
        assert done.err.endswith("(to act: whoever runs the store)\n")


def test_one_changed_byte_exits_6_and_names_the_append(cli: CommandLine) -> None:
    cli.build(three)
    log = cli("log", "r1", "-o", "json").value
    [seq] = [line["seq"] for line in log if line["tag"] == "call_executed"]
    cli.change_bytes(b'"shipped"', b'"stopped"')
    done = cli("verify")
    assert done.code == 6
    first = done.out.splitlines()[0]
    assert first.startswith("DAMAGED r1: the first bad append holds seq ")
    assert "2 of 3 runs verify" in done.out
    row = next(row for row in cli("verify", "-o", "json").value if row["run"] == "r1")
    assert row["first_bad_seq"] <= seq <= row["last_bad_seq"]
    assert cli("verify", "r1").code == 6
    assert cli("verify", "r2").code == 0
    assert cli("store", "check").code == 6


def test_a_quarantined_run_is_shown_and_exits_6(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        await finished(store, "r1")
        await store.mark_damaged("r1", "seq 3 to 4")

    cli.build(build)
    done = cli("show", "r1")
    assert done.code == 6
    assert done.out.startswith("DAMAGED: seq 3 to 4.\n")
    assert re.search(r"^status: +damaged$", done.out, re.MULTILINE)


def test_an_index_row_that_lies_is_found_by_the_check(cli: CommandLine) -> None:
    cli.build(one_finished)
    assert cli("store", "check").code == 0
    cli.change_bytes(b"terminatedcompletedfinal", b"terminatedcompletedfinis")
    done = cli("store", "check")
    assert done.code == 6
    assert "its index row says something else" in done.out


# --- hostile content ---------------------------------------------------------------------------------------------


async def hostile(store: EventStore) -> None:
    run = await finished(store, "r1", text=HOSTILE)
    assert run.state.outcome == "completed"
    run = await asking(store, "r2", reason=HOSTILE, principal="ann")
    other = await WrittenRun.start(store, "r3", text=HOSTILE)
    await other.replies(calls=[("x" + HOSTILE, HOSTILE)])
    await other.checks()
    await other.replies(text=HOSTILE)
    failed = await WrittenRun.start(store, "r4")
    await failed.replies(calls=[("refund", {"order_id": "A1", "cents": 5})])
    await failed.checks()
    await failed.executes(outcome="unknown", code=HOSTILE, message=HOSTILE)


ON_HOSTILE = [
    ("runs", "list"),
    ("inbox",),
    ("store", "info"),
    ("verify",),
    *((command, run) for command in ("show", "why", "log") for run in ("r1", "r2", "r3", "r4")),
    ("replay", "r3", "--at", "5"),
    ("show", HOSTILE),
    ("runs", "list", "--after", HOSTILE),
    ("nonsense" + HOSTILE,),
]


@pytest.mark.parametrize("form", ["table", "plain", "json", "jsonl"])
def test_nothing_in_content_acts_on_a_terminal(cli: CommandLine, form: str) -> None:
    cli.build(hostile)
    for arguments in ON_HOSTILE:
        done = cli(*arguments, *(("-o", form) if "nonsense" not in arguments[0] else ()))
        for char in done.out + done.err:
            assert char.isprintable() or char in "\n\t", (arguments, char)
        if form == "table":
            assert "\t" not in done.out
