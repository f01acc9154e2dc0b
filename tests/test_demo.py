"""``boundloop demo`` as a newcomer runs it: a process of its own, in an empty folder, judged from outside."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from tests.model_server import seen

from boundloop.actors.cli import COMMANDS
from boundloop.actors.demo_proof import Found, Killed, checks, summary
from boundloop.actors.demo_timeline import COLUMNS_MAX
from boundloop.eventstore.history import fold_records, read_records
from boundloop.eventstore.location import connect_store
from boundloop.runtime import events as e

SLOW_START: Final = (
    "import sys; from boundloop.actors.cli_demo import perform; from boundloop.actors.cli_output import Output;"
    "from boundloop.actors.demo import Plan; sys.exit(perform(Plan(store='sqlite:///late.db', within_s=1), Output()))"
)
LAST_LINE: Final = "completed, one refund, one kill survived, one replayed result, one refused call"
DEMO: Final = (sys.executable, "-m", "boundloop", "demo")
FORGETFUL: Final = str(Path(__file__).parent / "forgetful_shop.py")
STORE: Final = "boundloop-demo.db"
RUN_S: Final = 120
END_S: Final = 30


class Started:
    """A demo that runs; whatever it starts carries its mark in its environment."""

    def __init__(
        self, folder: Path, *options: str, command: tuple[str, ...] = DEMO, stdin: int | None = None
    ):
        self.folder = folder
        self.mark = uuid4().hex
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "DEMO_MARK": self.mark,
            "RAY_ADDRESS": "10.0.0.1:6379",  # somebody else's cluster is left alone
            **{name: os.environ[name] for name in ("PYTHONPATH", "TMPDIR") if name in os.environ},
        }
        self.process = subprocess.Popen(
            [*command, *options],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out = self.err = ""

    def end(self) -> int:
        """Wait for it; its exit status."""
        out, err = self.process.communicate(timeout=RUN_S)
        self.out += out
        self.err += err
        return self.process.returncode

    def read_until(self, pattern: str, stream: str = "out") -> re.Match[str]:
        """Read its lines until one matches."""
        pipe = self.process.stdout if stream == "out" else self.process.stderr
        assert pipe is not None
        for line in pipe:
            setattr(self, stream, getattr(self, stream) + line)
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"{pattern} never came: {self.out}{self.err}")

    def left(self) -> list[str]:
        """Processes with its mark that live, by their command lines."""
        found: list[str] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found.append((entry / "cmdline").read_text().replace("\0", " "))
                except OSError:
                    continue
        return found

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=RUN_S)


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A command line that the demo named, typed into another shell."""
    return subprocess.run(
        shlex.split(line), cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """One demo that was run to its end."""
    demo = Started(tmp_path_factory.mktemp("demo"))
    try:
        demo.end()
        yield demo
    finally:
        demo.kill()


@pytest.fixture(scope="module")
def approved(played: Started) -> Iterator[tuple[Started, dict[str, Any]]]:
    """A second one in the same folder, for programs, approved from another shell."""
    demo = Started(played.folder, "--approve", "ask", "-o", "json")
    try:
        line = demo.read_until(r"another shell:; ([^;]+); ", "err")[1]
        done = shell(played.folder, line)
        assert (done.returncode, done.stderr) == (0, ""), done
        demo.end()
        yield demo, json.loads(demo.out)
    finally:
        demo.kill()


def test_it_ends_well_and_says_nothing_else(played: Started) -> None:
    assert (played.process.returncode, played.err) == (0, ""), played.out
    lines = played.out.splitlines()
    assert lines[-1] == LAST_LINE
    assert max(map(len, lines)) <= COLUMNS_MAX or max(map(len, lines)) == max(map(len, next_commands(played)))
    assert len(lines) < 60
    assert "\x1b" not in played.out
    assert "ray" not in played.out.replace("Ray, a model server", "").lower()


def test_each_mishap_is_seen_to_happen(played: Started) -> None:
    happened = [
        r"demo +SIGKILL to the run's actor, pid \d+",
        r"runtime +the run goes on in host h_\w+",
        r"shop +c4\.0 draft_refund: .*number=D1",
        r"policy +c5\.0 is irreversible, a person is asked \(ap_\w+\): for_order=A1042, pays=12\.50",
        r"approver +c5\.0 approved by demo:approver",
        r"runtime +c5\.0 attempt 1 is unknown \(shop_no_answer\)",
        r"ledger +c5\.0 is settled by the tool's query: applied",
        r"ledger +c6\.0 replayed: c5\.0's recorded result",
        r"Spent: 9 turns, 5 calls",
        r"of it by the child run: 2 turns, 1 call",
    ]
    places = [re.search(pattern, played.out) for pattern in happened]
    assert all(places), [pattern for pattern, place in zip(happened, places, strict=True) if place is None]
    starts = [place.start() for place in places if place is not None]
    assert starts == sorted(starts)


def next_commands(demo: Started) -> list[str]:
    listed = demo.out.partition("Try next:\n")[2]
    return [line for line in listed.splitlines() if line.startswith("  ") and " --store " in line]


def test_what_it_names_next_works(played: Started) -> None:
    commands = next_commands(played)
    verbs = [shlex.split(line)[-4] for line in commands]
    assert verbs == [verb for verb in ("show", "why", "log", "tree", "verify") if verb in COMMANDS]
    for line in commands:
        done = shell(played.folder, line)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert done.stdout


def test_nothing_that_it_started_lives(played: Started) -> None:
    assert seen(lambda: not played.left()), played.left()


def test_a_person_in_another_shell_approves_and_programs_get_one_object(
    approved: tuple[Started, dict[str, Any]], played: Started
) -> None:
    demo, told = approved
    assert demo.process.returncode == 0
    assert (told["proven"], told["summary"]) == (True, LAST_LINE)
    assert told["shop"] == {
        "requests": {"orders": 1, "rules": 1, "drafts": 2, "refunds": 1, "queries": 1},
        "effects": {"drafts": 1, "refunds": 1},
    }
    assert told["spent_by_child"]["turns"] == 2
    assert told["run"] not in played.out  # a fresh run, in the same file
    decided = found_in(demo.folder, told).of(e.ApprovalDecided)
    assert [event.approver.partition(":")[0] for event in decided] == ["os"]


# --- every check can fail ----------------------------------------------------------------------------------------------


def found_in(folder: Path, told: dict[str, Any]) -> Found:
    """What a demo found, read again."""

    async def read() -> Found:
        store = await connect_store(f"sqlite:///{folder}/{STORE}", must_exist=True)
        try:
            own, child = [await read_records(store, told[name]) for name in ("run", "child")]
            return Found(
                events=[record.event for record in own],
                state=await fold_records(store, own),
                child_events=[record.event for record in child],
                child_state=await fold_records(store, child),
                counts=told["shop"],
                model_requests=told["model_requests"],
                verified=(2, 2),
                killed=Killed(**told["killed"]),
            )
        finally:
            await store.close()

    return asyncio.run(read())


def without(found: Found, kind: type[Any]) -> Found:
    return replace(found, events=[event for event in found.events if not isinstance(event, kind)])


def with_counts(found: Found, what: str, kind: str, number: int) -> Found:
    counts = {name: dict(of_name) for name, of_name in found.counts.items()}
    counts[what][kind] = number
    return replace(found, counts=counts)


def failing(found: Found) -> list[str]:
    return [check.name for check in checks(found) if not check.ok]


def test_every_check_can_fail(approved: tuple[Started, dict[str, Any]]) -> None:
    demo, told = approved
    found = found_in(demo.folder, told)
    assert (failing(found), summary(found)) == ([], LAST_LINE)
    killed = found.killed
    assert killed is not None
    assert failing(with_counts(found, "effects", "refunds", 2)) == ["one refund"]
    assert failing(with_counts(found, "requests", "refunds", 2)) == ["one refund"]
    assert failing(with_counts(found, "requests", "queries", 0)) == ["one refund"]
    assert failing(without(found, e.CallReconciled)) == ["one refund"]
    assert failing(with_counts(found, "effects", "drafts", 2)) == ["one kill survived"]
    assert failing(with_counts(found, "requests", "drafts", 1)) == ["one kill survived"]
    assert failing(replace(found, killed=None)) == ["one kill survived"]
    assert failing(replace(found, killed=killed._replace(gone=False))) == ["one kill survived"]
    assert failing(without(found, e.RunResumed)) == ["one kill survived"]
    assert failing(with_counts(found, "requests", "credits", 1)) == ["one refused call"]
    assert failing(without(found, e.CallRejected)) == ["one refused call"]
    assert failing(without(found, e.ResultBound)) == ["one replayed result"]
    assert failing(without(found, e.ApprovalRequested)) == ["one replayed result"]
    assert failing(without(found, e.RunTerminated)) == ["completed"]
    assert failing(without(found, e.ChildSettled)) == ["one child run in its lease"]
    assert failing(replace(found, child_events=[])) == ["one child run in its lease", "model requests"]
    assert failing(replace(found, model_requests={told["run"]: 7})) == ["model requests"]
    assert failing(replace(found, verified=(1, 2))) == ["verified"]


def test_a_shop_that_makes_a_draft_twice_is_seen(tmp_path: Path) -> None:
    demo = Started(tmp_path, command=(sys.executable, FORGETFUL))
    try:
        assert demo.end() == 1, demo.err
    finally:
        demo.kill()
    marked = [line.split()[1:4] for line in demo.out.splitlines() if line.startswith("  NOT")]
    assert marked == [["one", "kill", "survived:"]]
    assert demo.out.splitlines()[-1] == "not proven: " + LAST_LINE.replace("one kill", "no kill")


# --- otherwise than well -----------------------------------------------------------------------------------------------


def test_a_no_in_the_terminal_pays_nothing_in_any_folder(tmp_path: Path) -> None:
    for name in ("json", "ray"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of somebody else')")
    keyboard, terminal = pty.openpty()
    safe = (sys.executable, "-P", *DEMO[1:])
    demo = Started(tmp_path, "--approve", "ask", command=safe, stdin=terminal)
    try:
        demo.read_until("waits for a person: y or n here")
        os.write(keyboard, b"perhaps\nn\n")
        assert demo.end() == 1, demo.err
    finally:
        demo.kill()
        os.close(keyboard)
        os.close(terminal)
    assert "y or n, please" in demo.out
    assert "the run ends: incomplete, evidence_missing" in demo.out
    assert "was not refunded" in demo.out
    assert demo.out.splitlines()[-1] == (
        "not proven: incomplete, no refund, one kill survived, no replayed result, two refused calls"
    )
    assert demo.err == ""


def test_interrupted_it_ends_all_and_leaves_no_run_to_go_on(tmp_path: Path) -> None:
    demo = Started(tmp_path, "--approve", "ask")
    try:
        demo.read_until("waits for a person")
        began = time.monotonic()
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 130
        assert time.monotonic() - began < END_S
        assert seen(lambda: not demo.left()), demo.left()
    finally:
        demo.kill()
    listed = shell(tmp_path, f"{sys.executable} -m boundloop runs list --store sqlite:///{STORE} -o json")
    assert {row["status"] for row in json.loads(listed.stdout)} == {"terminated"}
    assert "Traceback" not in demo.err


def test_late_it_ends_all_and_says_so(tmp_path: Path) -> None:
    demo = Started(tmp_path, command=(sys.executable, "-c", SLOW_START))
    try:
        assert demo.end() == 1
        assert demo.err.startswith("boundloop: demo_timeout at --timeout: it was not over after 1 s")
        assert "Traceback" not in demo.err
        assert seen(lambda: not demo.left()), demo.left()
    finally:
        demo.kill()


def test_a_shop_whose_starter_is_gone_ends_without_a_word() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        command = [sys.executable, "-m", "boundloop.actors.demo_far_side"]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=writes,
            stderr=subprocess.PIPE,
            timeout=RUN_S,
            check=False,
        )
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_store_that_another_process_owns_is_refused(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from boundloop.actors import Runtime\nwith Runtime(store='sqlite:///{STORE}'): print(1, flush=True); input()",
        ],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"1\n"
        demo = Started(tmp_path)
        assert demo.end() == 4
        assert f"{owner.pid}" in demo.err
    finally:
        owner.communicate(b"\n", timeout=RUN_S)
