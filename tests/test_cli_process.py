"""The command line as a process: its exit codes, what it loads, and what it does beside a live owner."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import CommandLine
from tests.written_runs import asking, finished

from boundloop.actors.application import load_application
from boundloop.eventstore.port import EventStore

APP = str(Path(__file__).parent / "application_under_test.py")

HEAVY = (
    "ray",
    "httpx",
    "pydantic",
    "aiosqlite",
    "boundloop.adapters",
    "boundloop.actors.client",
    "boundloop.actors.driver",
    "boundloop.runtime.schema",
    "boundloop.runtime.tool_spec",
)

LOADS = """
import json, sys
from boundloop.actors.cli import invoke
code = invoke(sys.argv[1:])
names = json.loads(sys.stdin.read())
print(json.dumps([code, [name for name in names if name in sys.modules]]), file=sys.stderr)
"""


def boundloop(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from boundloop.actors.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


async def _two(store: EventStore) -> None:
    await finished(store, "r1")
    await asking(store, "r2")


@pytest.mark.parametrize(
    "arguments",
    [("show", "r1"), ("why", "r2"), ("log", "r1"), ("runs", "list"), ("inbox",), ("verify",), ("--help",)],
    ids=" ".join,
)
def test_reading_commands_load_nothing_that_they_do_not_need(
    cli: CommandLine, arguments: tuple[str, ...]
) -> None:
    cli.build(_two)
    done = subprocess.run(
        [sys.executable, "-c", LOADS, *arguments],
        input=json.dumps(HEAVY),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]


def test_the_process_exits_with_the_code(cli: CommandLine) -> None:
    assert boundloop("verify").returncode == 5
    cli.build(_two)
    assert boundloop("verify").returncode == 0
    assert boundloop("show", "r9").returncode == 3
    assert boundloop("show").returncode == 2
    assert boundloop("close", "r1").returncode == 4
    assert boundloop("run", f"{APP}:pays").returncode == 7
    cli.change_bytes(b'"shipped"', b'"stopped"')
    assert boundloop("verify").returncode == 6


def test_it_runs_as_a_module(cli: CommandLine) -> None:
    cli.build(_two)
    command = [sys.executable, "-m", "boundloop", "runs", "list", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert [row["run"] for row in json.loads(done.stdout)] == ["r2", "r1"]


def test_a_run_whose_reader_hangs_up_comes_to_its_rest(cli: CommandLine) -> None:
    command = [sys.executable, "-c", "from boundloop.actors.cli import main; main()", "run", f"{APP}:pays"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 7
    [row] = cli("runs", "list", "-o", "json").value
    assert row["status"] == "waiting_approval"
    assert (
        said
        == f"boundloop: nobody reads the output any more; run {row['run']} is followed to its rest without it\n"
    )


def test_a_reader_that_hangs_up_is_no_error(cli: CommandLine) -> None:
    cli.build(_two)
    command = [sys.executable, "-c", "from boundloop.actors.cli import main; main()", "log", "r1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def test_an_interrupted_run_stays_and_says_how_to_go_on(cli: CommandLine) -> None:
    command = [sys.executable, "-uc", "from boundloop.actors.cli import main; main()", "run", f"{APP}:hangs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "model_requested" in line and "turn 2" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    [row] = cli("runs", "list", "-o", "json").value
    assert f"--resume {row['run']}\n" in out  # the environment says the store
    assert (row["host"], row["ready"]) == ("", True)
    assert cli("run", f"{APP}:reads", "--resume", row["run"]).code == 0


def test_another_shell_reads_and_approves_while_a_runtime_lives(cli: CommandLine) -> None:
    application = load_application(f"{APP}:pays")
    with application.runtime(cli.url) as runtime:
        run = runtime.start(application.input, **application.start_options())
        assert run.result(60).status == "waiting"
        asked = json.loads(boundloop("inbox", "-o", "json").stdout)
        assert [row["run"] for row in asked] == [run.run_id]
        refused = boundloop("run", f"{APP}:reads")
        assert refused.returncode == 4
        assert "owned by process" in refused.stderr
        approved = boundloop("approve", asked[0]["approval"])
        assert (approved.returncode, approved.stderr) == (0, "")
        result = run.wait(60)
        assert (result.outcome, result.text) == ("completed", "Paid back.")
        again = boundloop("approve", asked[0]["approval"])
        assert again.returncode == 4
        assert "already approved by os:" in again.stderr
        assert boundloop("verify").returncode == 0
        assert boundloop("cancel", run.run_id).returncode == 4


def test_a_switch_from_another_shell_stops_effects_of_a_living_runtime(cli: CommandLine) -> None:
    application = load_application(f"{APP}:pays")
    with application.runtime(cli.url) as runtime:
        run = runtime.start(application.input, **application.start_options())
        [approval] = run.result(60).approvals
        assert boundloop("switch", "on", "tool", "refund").returncode == 0
        assert boundloop("approve", approval.approval_id).returncode == 0
        result = run.wait(60)
        log = json.loads(boundloop("log", run.run_id, "-o", "json").stdout)
        started = [line["call"] for line in log if line["tag"] == "call_started"]
        assert started == ["c1.0"]
        assert result.completed
