"""What the command line says will happen next is what happens: nothing is recommended that would be refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import CommandLine
from tests.written_runs import WrittenRun, asking, finished, pins_for, unknown

from boundloop.actors.application import load_application
from boundloop.eventstore.port import EventStore
from boundloop.runtime.limits import LimitValues

APP = str(Path(__file__).parent / "application_under_test.py")

KILLED = """
import sys
from boundloop.actors.application import load_application
application = load_application(sys.argv[2])
runtime = application.runtime(sys.argv[1], reference=sys.argv[2])
run = runtime.start(application.input, run_id="r1", **application.start_options())
runtime.watch(lambda *of_run: print("committed", flush=True))
print("started", flush=True)
runtime.wait(run.run_id)
"""


def nexts(cli: CommandLine, run: str = "r1") -> list[str]:
    return re.findall(r"^Next: boundloop (.*)$", cli("why", run).out, re.MULTILINE)


def test_after_the_last_unknown_effect_is_settled_the_next_host_goes_on(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        await unknown(store, "r1")

    cli.build(build)
    assert nexts(cli)[-1] == "close r1"
    assert "ready" not in cli("why", "r1").out
    settled = cli("call", "resolve", "r1", "c1.0", "--absent")
    for done in (settled, cli("why", "r1")):
        assert "It is ready: the next Runtime on this store picks it up" in done.out
        assert "boundloop run MODULE:SPEC --resume r1" in done.out
    assert nexts(cli) == []


def test_after_a_cancel_without_a_host_the_run_has_ended(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        await asking(store, "r1")

    cli.build(build)
    assert nexts(cli)[0].startswith("approve ap_")
    assert "The run has ended: cancelled, by_user." in cli("cancel", "r1").out
    done = cli("why", "r1")
    assert "ended: cancelled, by_user" in done.out
    assert "ready" not in done.out
    assert "Next:" not in done.out


def test_after_a_death_nobody_is_waited_for(cli: CommandLine) -> None:
    reference = f"{APP}:hangs"
    command = [sys.executable, "-c", KILLED, cli.url, reference]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "started\n":
                break
        process.kill()
    done = cli("why", "r1")
    assert done.code == 0
    assert "Waits for a host: the next host to go on with" in done.out
    assert "Waits for a tool" not in done.out
    assert "Nothing runs it now. It is ready" in done.out
    assert f"boundloop run {reference} --resume r1" in done.out
    shown = cli("show", "r1", "-o", "json").value
    assert shown["ready"] is True
    assert shown["host"] == "" or shown["host"].endswith(" (gone)")
    assert cli("run", f"{APP}:reads", "--resume", "r1").code == 0


def test_a_ready_run_of_another_application_says_what_a_host_needs_to_take_it(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        await asking(store, "r1")

    cli.build(build)
    other = load_application(f"{APP}:reads")
    with other.runtime(cli.url):
        assert cli("approve", "r1").code == 0
        done = cli("why", "r1")
    assert "It is ready. h_" in done.out
    assert "takes it up at once if it runs the same application" in done.out
    assert "the model scripted:scripted and the tools get_order, refund" in done.out


@pytest.mark.parametrize("reason", ["max_turns", "outcome_unknown", "asking"])
def test_what_is_recommended_is_accepted(cli: CommandLine, reason: str) -> None:
    async def build(store: EventStore) -> None:
        if reason == "asking":
            await asking(store, "r1")
        elif reason == "outcome_unknown":
            await unknown(store, "r1")
        else:
            run = await WrittenRun.start(store, "r1", pins=pins_for(LimitValues(cost_micros=0, turns=1)))
            await run.replies(calls=[("get_order", {"order_id": "A1"})])
            await run.checks()
            await run.executes({"state": "shipped"})

    cli.build(build)
    commands = nexts(cli)
    assert commands
    for _ in range(4):
        if not commands:
            return
        words = commands[0].replace("=N", "=99").replace("JSON", "null").replace("TEXT", "no").split()
        done = cli(*words)
        assert done.code == 0, (words, done)
        commands = nexts(cli)


def test_a_run_that_ended_recommends_nothing(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        await finished(store, "r1")

    cli.build(build)
    done = cli("why", "r1")
    assert "Next:" not in done.out
    assert "ready" not in done.out
