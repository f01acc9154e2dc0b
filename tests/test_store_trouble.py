"""A store that fails under a living host: full for a while, or committing without saying so. And programs that end
without closing anything."""

# pyright: reportPrivateUsage=false
# What a caller would wait for can't be waited for where time stands still, so the coroutines are reached for.

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from examples.far_side import FarSide
from tests.shell import ROOT, Shell
from tests.stepped_runtime import Site, Stepped

from boundloop.actors.context import ToolContext
from boundloop.adapters.script import ScriptedTurn, call, calls, say
from boundloop.eventstore.memory import MemoryStore
from boundloop.runtime import events as e
from boundloop.runtime.commands import Approve
from boundloop.runtime.errors import ConflictError, DiskFull, StoreError
from boundloop.runtime.limits import Limits
from boundloop.runtime.tool_spec import tool

FAILURES = 3
APPENDS = 12
"""Of ``SCRIPT``, the approval included; a test counts them."""

STUCK_S = 60.0
PATIENCE_MS = 20_000
T = TypeVar("T")
When = Literal["before", "after"]


class Troubled(MemoryStore):
    """Fails the named method ``times`` times from its call ``at`` on: ``before`` it did anything, or ``after`` it did
    everything."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock=clock)
        self.calls: Counter[str] = Counter()
        self.plan: tuple[str, int, int, When] = ("", 0, 0, "before")
        self.failed = 0

    async def fail(self, name: str, work: Any) -> Any:
        self.calls[name] += 1
        method, at, times, when = self.plan
        due = name == method and at <= self.calls[name] < at + times
        if due and when == "before":
            work.close()
            self.failed += 1
            raise DiskFull("the store")
        answer = await work
        if due:
            self.failed += 1
            raise StoreError("no_answer", "committed, perhaps")
        return answer


def _troubled(name: str) -> Any:
    original = getattr(MemoryStore, name)

    async def method(self: Troubled, *args: Any, **options: Any) -> Any:
        return await self.fail(name, original(self, *args, **options))

    return method


METHODS = (
    "append",
    "ledger_row",
    "release",
    "acquire",
    "ready_runs",
    "next_wake_ms",
    "switches",
    "run",
    "read",
)
for _name in METHODS:
    setattr(Troubled, _name, _troubled(_name))


class Mail:
    """Counts what was sent, by key; knows at each sending whether its intent was durable."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sent: Counter[str] = Counter()
        self.without_intent = 0

    def tools(self) -> list[Any]:
        mail = self

        @tool(risk="read", inline=True)
        async def look_up(n: int) -> int:
            """Look one up."""
            return n

        @tool(risk="write", key=("n",), far_side="none", inline=True)
        async def send(n: int, ctx: ToolContext) -> int:
            """Send one."""
            mail.note(f"send {n}", ctx)
            return n

        @tool(risk="irreversible", key=("n",), far_side="none", approval="always", inline=True)
        async def pay(n: int, ctx: ToolContext) -> int:
            """Pay, once a person said yes."""
            mail.note(f"pay {n}", ctx)
            return n

        return [look_up, send, pay]

    def note(self, what: str, ctx: ToolContext) -> None:
        self.sent[what] += 1
        log = self.site.store._runs[ctx.run_id].log
        self.without_intent += not any(b"call_started" in row.body for row in log)


SCRIPT: list[ScriptedTurn] = [
    calls(call("send", {"n": 1}), call("look_up", {"n": 1}), call("send", {"n": 2})),
    call("pay", {"n": 1}),
    call("send", {"n": 3}),
    say("Done."),
]
ALL_SENT = {"send 1": 1, "send 2": 1, "send 3": 1, "pay 1": 1}


def troubled(site: Site) -> Troubled:
    """Put a store that can fail in the place of the site's."""
    store = Troubled(site.now_ms)
    site.store = store
    return store


def through(site: Site, host: Stepped, run_id: str) -> None:
    """Let time pass until the run has ended, approving on the way; a command that failed is given again."""
    for _ in range(40):
        host.advance(1_000)
        row = asyncio.run(MemoryStore.run(site.store, run_id))
        assert row is not None
        if row.index.status == "terminated":
            return
        if row.index.waiting_for.startswith("approval:") and not row.ready and not row.owner:
            approved = row.index.waiting_for.partition(":")[2]
            command = Approve(command_id=f"yes {approved}", by="os:ann@desk", approval_id=approved)
            try:
                assert patiently(host, host.rt.aio.submit(run_id, command)).accepted
            except StoreError:
                continue
    raise AssertionError(f"{run_id} is stranded")


def check(site: Site, mail: Mail, run_id: str) -> None:
    assert mail.sent == ALL_SENT
    assert mail.without_intent == 0
    [ended] = site.of(run_id, e.RunTerminated)
    assert (ended.outcome, ended.reason) == ("completed", "final")
    assert len(site.of(run_id, e.ApprovalDecided)) == 1


def patiently(host: Stepped, work: Coroutine[Any, Any, T]) -> T:
    """Wait for it while time passes: after a failure the host leaves the store alone for a while."""
    future = asyncio.run_coroutine_threadsafe(work, host.loop)
    host.advance(PATIENCE_MS)
    return future.result(STUCK_S)


def start_once(host: Stepped) -> str:
    return patiently(host, host.rt._embedded.start("go", {"run_id": "r1", "limits": Limits(cost=0)}))


def start(host: Stepped) -> str:
    """Start the run, as a caller does who tries again after an error."""
    for _ in range(FAILURES):
        try:
            return start_once(host)
        except ConflictError:
            return "r1"  # it had been written after all
        except StoreError:
            continue
    return start_once(host)


def test_the_appends_are_all_of_them(site: Site) -> None:
    store = troubled(site)
    mail = Mail(site)
    host = site.open(SCRIPT, mail.tools())
    through(site, host, start(host))
    check(site, mail, "r1")
    assert store.calls["append"] == APPENDS


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, APPENDS + 1))
def test_an_append_that_fails_is_made_up_for(site: Site, at: int, when: When) -> None:
    store = troubled(site)
    store.plan = ("append", at, 1 if when == "after" else FAILURES, when)
    mail = Mail(site)
    host = site.open(SCRIPT, mail.tools())
    through(site, host, start(host))
    assert store.failed == store.plan[2]
    check(site, mail, "r1")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_any_other_call_that_fails_strands_nothing(site: Site, method: str, at: int, when: When) -> None:
    store = troubled(site)
    mail = Mail(site)
    host = site.open(SCRIPT, mail.tools())
    before = store.calls[method]
    store.plan = (method, before + at, 2, when)
    through(site, host, start(host))
    check(site, mail, "r1")


def test_a_full_disk_at_the_start_is_told_and_leaves_nothing(site: Site) -> None:
    store = troubled(site)
    store.plan = ("append", 1, 1, "before")
    mail = Mail(site)
    host = site.open(SCRIPT, mail.tools())
    with pytest.raises(DiskFull):
        start_once(host)
    assert asyncio.run(MemoryStore.run(store, "r1")) is None
    assert mail.sent == {}
    through(site, host, start_once(host))
    check(site, mail, "r1")


def test_a_start_that_was_committed_without_an_answer_is_a_start(site: Site) -> None:
    store = troubled(site)
    store.plan = ("append", 1, 1, "after")
    mail = Mail(site)
    host = site.open(SCRIPT, mail.tools())
    assert start_once(host) == "r1"
    through(site, host, "r1")
    check(site, mail, "r1")


# --- a real file that can't grow --------------------------------------------------------------------------------------


def test_without_space_nothing_is_begun_and_with_space_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with FarSide.start() as far, Shell(path, far) as host:
        host.ask("start", run="r1", plan="book refund ship")
        [approval] = host.ask("result", run="r1")["approvals"]
        before = far.counts()
        host.ask("limit_files", bytes=4_096)
        assert host.ask("start", run="r2", plan="book")["actor"] == "store"
        assert host.ask("approve", run="r1", approval=approval)["actor"] == "store"
        assert far.counts() == before
        host.ask("limit_files", bytes=0)
        host.ask("start", run="r2", plan="book")
        assert host.ask("wait", run="r2")["outcome"] == "completed"
        assert "seq" in host.ask("approve", run="r1", approval=approval)
        assert host.ask("wait", run="r1")["outcome"] == "completed"
        assert set(far.counts()["requests"].values()) == {1}


@pytest.mark.parametrize("append", range(1, 9))
def test_space_that_ends_in_the_middle_of_a_run_holds_it_up_and_no_more(tmp_path: Path, append: int) -> None:
    path = tmp_path / "runs.db"
    with FarSide.start() as far, Shell(path, far) as host:
        host.ask("start", run="warm", plan="look_up")
        host.ask("wait", run="warm")
        host.ask("limit_files_at_append", append=append, bytes=4_096)
        host.tell("start", run="r1", plan="book post_letter ship")
        host.tell("append_failed")
        started = host.answer()
        assert host.answer() == {"failed": True}
        # Of each effect one append holds the intent and the next one the outcome.
        sent = sum(far.counts()["requests"].values())
        assert sent <= (append - 1) // 2
        host.ask("limit_files", bytes=0)
        if "started" not in started:
            assert (append, started["actor"]) == (1, "store")
            host.ask("start", run="r1", plan="book post_letter ship")
        assert host.ask("wait", run="r1")["outcome"] == "completed"
        counts = far.counts()
        assert list(counts["requests"].values()) == [1, 1, 1]


# --- programs that end -----------------------------------------------------------------------------------------------

PROGRAM = """
import sys, threading
from boundloop.actors import Runtime
from boundloop.adapters.script import call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime import Limits, tool

reached = threading.Event()

def for_ever(*given, **named):
    reached.set()
    threading.Event().wait()

{declaration}

rt = Runtime(store="sqlite:///" + sys.argv[1], model=ScriptedModel([call("work", {{"n": 1}}), say("Done.")]), tools=[work])
run = rt.start("go", limits=Limits(cost=0))
{wait}
print("the end", flush=True)
"""

STUCK = {
    "nothing is stuck": (
        '@tool(risk="read")\ndef work(n: int) -> int:\n    "Work."\n    return n',
        "assert run.result(30).completed",
    ),
    "a tool": (
        '@tool(risk="read")\ndef work(n: int) -> int:\n    "Work."\n    return for_ever()',
        "assert reached.wait(30)",
    ),
    "a check": (
        '@tool(risk="read", check=for_ever, check_inline=False)\ndef work(n: int) -> int:\n    "Work."\n    return n',
        "assert reached.wait(30)",
    ),
}


@pytest.mark.parametrize("stuck", STUCK)
def test_a_program_that_forgets_to_close_ends(tmp_path: Path, stuck: str) -> None:
    declaration, wait = STUCK[stuck]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(declaration=declaration, wait=wait), str(tmp_path / "runs.db")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end\n", "")
