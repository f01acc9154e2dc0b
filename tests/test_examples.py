"""The examples run as a reader would run them, and their exit status can be trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from examples import naive_versus_bounded, refund_machine
from examples.far_side import FarSide

from boundloop.actors.application import load_application
from boundloop.runtime import events as e

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """An example as a program of its own, in an empty folder."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_smallest(tmp_path: Path) -> None:
    done = run("smallest", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("completed Order A1042 was shipped. r_")
    assert (tmp_path / "runs.db").exists()


def test_staged_refund(tmp_path: Path) -> None:
    done = run("staged_refund", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "completed: Refunded 12.50 [source:R-A1042]." in done.stdout
    assert "R-A1042 is in the result of submit_draft, call c6.0" in done.stdout


def test_refund_machine(tmp_path: Path) -> None:
    done = run("refund_machine", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\nok ") == 7
    assert "At the bank: 1 refund, 1 request, 1 query" in done.stdout
    again = run("refund_machine", tmp_path)
    assert (again.returncode, again.stderr) == (0, "")


def test_the_refund_of_the_command_line_meets_the_bank_that_it_left(tmp_path: Path) -> None:
    application = f"{EXAMPLES}/refund_machine.py:refund"

    def boundloop(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "boundloop",
            *arguments,
            "--store",
            "sqlite:///refund.db",
            "-o",
            "json",
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    asked = boundloop("run", application)
    assert (asked.returncode, asked.stderr) == (7, "")
    waiting = json.loads(asked.stdout)
    assert boundloop("approve", waiting["run_id"]).returncode == 0
    ended = boundloop("run", application, "--resume", waiting["run_id"])
    assert (ended.returncode, ended.stderr) == (0, "")
    books = json.loads((tmp_path / refund_machine.BOOKS).read_text())
    assert sorted(next(iter(result.keys() - {"receipt", "amount_cents"})) for result in books.values()) == [
        "draft_for",
        "refund_for",
    ]


def test_naive_versus_bounded(tmp_path: Path) -> None:
    done = run("naive_versus_bounded", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Every promise was kept." in done.stdout
    assert "orders: 2" in done.stdout


def test_refund_machine_sees_a_branch_that_ended_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    record = refund_machine.Record()
    refund_machine.play("memory://", record)
    assert all(refund_machine.branches(record).values())
    key = record.of(e.CallValidated)[-1].key.hex()
    record.counts["requests"][key] = 2
    record.stops[0] = ("completed", "final")
    broken = [branch[0] for branch, kept in refund_machine.branches(record).items() if not kept]
    assert broken == ["2", "5"]
    capsys.readouterr()


def test_naive_versus_bounded_sees_a_broken_promise() -> None:
    case = next(case for case in naive_versus_bounded.CASES if case.title.startswith("8"))
    with FarSide.start() as first, FarSide.start() as second:
        _, _, kept = naive_versus_bounded.play(case, (first, second))
        _, _, broken = naive_versus_bounded.play(replace(case, check=lambda: True), (first, second))
    assert (kept, broken) == (True, False)


@pytest.mark.parametrize(
    "reference", ["examples.refund_machine:refund", f"{EXAMPLES}/refund_machine.py:refund"]
)
def test_refund_is_an_application_for_the_command_line(reference: str) -> None:
    application = load_application(reference)
    assert (application.input, application.goal) == ("Refund order A1042.", "submit_refund")
