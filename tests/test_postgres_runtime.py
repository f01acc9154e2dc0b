"""Runtimes beside each other on one PostgreSQL store: no owner, every host lives by its row."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import CommandLine
from tests.postgres_server import Server

from boundloop.actors.cli_text import quoted
from boundloop.actors.client import CommandRefused, Runtime
from boundloop.actors.streaming import Committed, FollowItem, HostedElsewhere
from boundloop.adapters.script import call, held, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.tool_spec import tool

ROOT = Path(__file__).parents[1]
APP = str(Path(__file__).parent / "application_under_test.py")
STUCK_S = 60.0
FREE = Limits(cost=WAIVED)


@tool(risk="read")
async def look(at: str) -> dict[str, Any]:
    """Look at something."""
    return {"at": at}


@tool(risk="irreversible", key=("order",), far_side="keyed")
async def refund(order: str) -> dict[str, Any]:
    """Refund an order; a person is asked."""
    return {"refunded": order}


class Runtimes:
    """Runtimes on one store, made by calling; ``close`` ends them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: list[Runtime] = []

    def __call__(self, *turns: Any, model: ScriptedModel | None = None) -> Runtime:
        made = Runtime(store=self.url, model=model or ScriptedModel(turns), tools=[look, refund])
        self._made.append(made)
        return made

    def close(self) -> None:
        for made in self._made:
            made.close()


@pytest.fixture
def runtime(postgres: Server) -> Iterator[Runtimes]:
    runtimes = Runtimes(postgres.url())
    yield runtimes
    runtimes.close()


def test_a_run_goes_its_way(runtime: Runtimes) -> None:
    result = runtime(call("look", {"at": "a"}), say("seen")).run_sync("look", limits=FREE)
    assert (result.outcome, result.reason, result.text) == ("completed", "final", "seen")


def test_a_second_runtime_beside_the_first_leaves_its_runs_alone(runtime: Runtimes) -> None:
    model = ScriptedModel([held(say("seen"), "gate")])
    handle = runtime(model=model).start("look", limits=FREE, run_id="r1")
    second = runtime(say("mine"))
    assert second.run_sync("look", limits=FREE).text == "mine"
    model.gate("gate").open()
    assert handle.result(STUCK_S).text == "seen"
    assert second.result("r1", STUCK_S).text == "seen"


def test_a_command_reaches_the_live_host_of_another_runtime(runtime: Runtimes) -> None:
    model = ScriptedModel([held(say("late"), "gate"), say("never")])
    handle = runtime(model=model).start("look", limits=FREE, run_id="r1")
    second = runtime()
    with pytest.raises(CommandRefused) as caught:
        second.approve("r1", "a9", by="bob")
    assert caught.value.code == "approval_not_found"
    second.cancel("r1")
    result = handle.result(STUCK_S)
    assert (result.outcome, result.reason) == ("cancelled", "by_user")


def test_a_run_that_waits_is_approved_elsewhere_and_goes_on_where_there_is_a_host(
    runtime: Runtimes,
) -> None:
    first = runtime(call("refund", {"order": "1"}), say("done"))
    waiting = first.run_sync("refund", limits=FREE, run_id="r1")
    (asked,) = waiting.approvals
    first.close()
    second = runtime(call("refund", {"order": "1"}), say("done"))
    second.approve("r1", asked.approval_id, by="bob")
    assert second.wait("r1", STUCK_S).text == "done"


def test_an_idle_runtime_hears_of_a_run_that_another_process_made_ready(
    runtime: Runtimes, cli: CommandLine
) -> None:
    host = runtime(call("refund", {"order": "1"}), say("done"))
    waiting = host.run_sync("refund", limits=FREE, run_id="r1")
    (asked,) = waiting.approvals
    done = cli("approve", asked.approval_id, "--store", runtime.url)
    assert (done.code, done.err) == (0, "")
    assert host.wait("r1", STUCK_S).text == "done"


HOST = """
import sys
from boundloop.actors.client import Runtime
from boundloop.adapters.script import held, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.limits import WAIVED, Limits
from tests.test_postgres_runtime import look, refund

with Runtime(store=sys.argv[1], model=ScriptedModel([held(say("never"), "gate")]), tools=[look, refund]) as rt:
    rt.start("look", limits=Limits(cost=WAIVED), run_id="r1")
    print("started", flush=True)
    sys.stdin.read()
"""


def test_the_runs_of_a_killed_process_go_on_elsewhere_when_its_row_has_expired(
    runtime: Runtimes,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST, runtime.url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        survivor = runtime(say("went on"))
        assert survivor.state("r1").outcome == ""
        process.send_signal(signal.SIGKILL)
    result = survivor.wait("r1", STUCK_S)
    assert (result.outcome, result.text) == ("completed", "went on")


def test_whoever_follows_a_run_that_another_runtime_hosts_is_told_that_nothing_more_is_shown(
    runtime: Runtimes,
) -> None:
    model = ScriptedModel([held(say("seen"), "gate")])
    runtime(model=model).start("look", limits=FREE, run_id="r1")
    following = runtime().follow("r1")
    items: list[FollowItem] = []
    while not any(isinstance(item, HostedElsewhere) for item in items):
        items.append(next(following))
    model.gate("gate").open()
    items += list(following)
    (elsewhere,) = (item for item in items if isinstance(item, HostedElsewhere))
    assert (elsewhere.run_id, elsewhere.host_id[:2]) == ("r1", "h_")
    seqs = [item.seq for item in items if isinstance(item, Committed)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) + 1 == len(items)


def test_a_stream_follows_a_run_that_another_runtime_hosts(runtime: Runtimes) -> None:
    model = ScriptedModel([held(call("look", {"at": "a"}), "gate"), say("seen")])
    runtime(model=model).start("look", limits=FREE, run_id="r1")
    second = runtime()
    seqs: list[int] = []

    def follow() -> None:
        seqs.extend(item.seq for item in second.stream("r1"))

    thread = threading.Thread(target=follow)
    thread.start()
    model.gate("gate").open()
    thread.join(STUCK_S)
    assert not thread.is_alive()
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) > 5


def test_the_command_line_reads_and_checks_the_store_and_shows_no_password(
    runtime: Runtimes, cli: CommandLine
) -> None:
    runtime(call("look", {"at": "a"}), say("seen")).run_sync("look", limits=FREE, run_id="r1")
    url = runtime.url.replace("postgres@", "postgres:s3cret@")
    for command in (
        ("show", "r1"),
        ("log", "r1"),
        ("why", "r1"),
        ("runs", "list"),
        ("verify",),
        ("store", "check"),
    ):
        done = cli(*command, "--store", url)
        assert (done.code, done.err) == (0, ""), command
        assert "s3cret" not in done.out
    info = cli("store", "info", "--store", url, "-o", "json").value
    assert (info["runs"], info["by_status"]) == (1, {"terminated": 1})
    assert info["url"] == url.replace("s3cret", "***")


def test_what_run_names_for_the_next_prompt_has_no_password(cli: CommandLine, postgres: Server) -> None:
    url = postgres.url().replace("postgres@", "postgres:s3cret@")
    assert "s3cret" in url
    done = cli("run", f"{APP}:pays", "--store", url)
    assert done.code == 7
    assert "boundloop approve " in done.out
    assert "--resume" in done.out
    assert "s3cret" not in done.out + done.err
    where = f"--store {quoted(url.replace(':s3cret', ''))}"
    assert done.out.count(where) == 3
    approve = next(line for line in done.out.splitlines() if "boundloop approve" in line)
    assert cli(*shlex.split(approve)[1:]).code == 0


@pytest.mark.parametrize("scheme", ["postgresql+asyncpg", "postgresq", "mysql"])
@pytest.mark.parametrize("command", [("runs", "list"), ("doctor",), ("store", "path")])
def test_a_mistyped_scheme_shows_no_password(cli: CommandLine, scheme: str, command: tuple[str, ...]) -> None:
    for form in ("table", "json"):
        done = cli(*command, "--store", f"{scheme}://app:s3cret@h/runs", "-o", form)
        assert done.code != 0
        assert "s3cret" not in done.out + done.err


URL = "postgresql://app:s3cret@h/runs"


@pytest.mark.parametrize(
    "given",
    [
        (URL,),
        (f"--{URL}",),
        ("postgresql:app:s3cret@h/runs",),
        ("runs", "list", "--status", URL),
        ("runs", "list", "--status", r"postgresql://app:s3\cret@h/runs"),
        ("runs", "list", "--status", "postgresql://app:s3cret'\"@h/runs"),
        ("runs", "list", "--status", "postgresql://app:s3cret@h/runs\n"),
        ("runs", "list", "--limit", URL),
        ("runs", "list", f"--limit={URL}"),
        ("runs", "list", "--limit", "host=h password=s3cret"),
        ("runs", "list", "--limit", "host=h password = 'a s3cret'"),
        ("runs", "list", "--limit", "postgresql://app:a s3cret@h/runs"),
        ("runs", "list", URL),
        *((command, URL) for command in ("show", "why", "log", "verify", "tree", "inbox")),
        *((command, URL) for command in ("approve", "reject", "cancel", "resume", "close", "run", "serve")),
        ("send", URL, "hello"),
        ("answer", URL, "hello"),
        ("request", URL, "1"),
        ("replay", URL, "--at", "1"),
        ("show", "postgresql://app:s3cret/runs"),
        ("show", "postgresql%3A%2F%2Fapp%3As3cret%40h/runs"),
        ("show", "mysql://app%3As3cret%40h/runs"),
        ("show", "app:s3cret@h/runs"),
        ("show", "postgresql://app@h/runs?password=s3cret"),
        ("run", f"{URL}:app"),
        ("run", f"{APP}:pays", "--resume", URL),
        ("store", "import", URL),
        ("store", "export", URL),
        ("store", "backup", URL),
        ("decode", URL, APP),
        ("decode", "anthropic", URL),
    ],
)
def test_an_address_in_a_wrong_place_is_quoted_without_its_password(
    cli: CommandLine, given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.build(lambda store: store.identity())
    monkeypatch.setenv("BOUNDLOOP_STORE", cli.url)
    for form in ("table", "json"):
        done = cli(*given, "-o", form)
        assert done.code != 0
        assert "***" in done.err
        assert "cret" not in done.out + done.err


def test_an_address_in_a_wrong_place_is_recognised(cli: CommandLine) -> None:
    assert "'postgresql://app:***@h/runs'" in cli("runs", "list", "--limit", URL).err


def test_a_store_that_is_not_there_is_named_and_not_made(cli: CommandLine, postgres: Server) -> None:
    url = postgres.url("nothing_here")
    for _ in range(2):
        done = cli("runs", "list", "--store", url)
        assert done.code == 5
        assert "there is no store in schema nothing_here; boundloop store migrate --create" in done.err
