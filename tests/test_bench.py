"""Each measurement runs at a tiny size and prints what it promises. No figure is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from bench.lists import filters
from bench.run import main

ROOT = Path(__file__).resolve().parent.parent
MACHINE = {
    "python",
    "sqlite",
    "cpus",
    "filesystem",
    "libraries",
    "load_1m",
    "yardstick_commits_per_s",
    "yardstick_sha256_1k_cpu_us",
    "yardstick_python_cpu_us",
}
STEP = {"steps_per_s", "us_per_step", "cpu_s_per_1000", "events_per_step", "appends_per_step"}
SMALL = ["--repeat", "1", "--seconds", "0.05", "-o", "json"]

PROMISED: dict[str, tuple[list[str], set[str]]] = {
    "w1": (["--steps", "3", "--runs", "2"], STEP | {"bytes_per_step", "lane", "tool", "runs", "steps"}),
    "w1 write": (["--steps", "3", "--tool", "write", "--lane", "task"], STEP | {"bytes_per_step"}),
    "w1 thread": (["--steps", "3", "--lane", "thread", "--store", "memory"], STEP),
    "w1 null": (["--steps", "12", "--store", "null"], STEP),
    "w1 growth": (["--growth", "--steps", "12"], {"growth", "growth_cpu", "steps_100", "steps_12"}),
    "w2": (["--steps", "3"], {"total_s", "import_s", "after_import_s", "load_ms", "bare_python_s"}),
    "w3": (["--runs", "3"], {"runs_per_s", "cpu_s_per_1000", "bytes_per_run", "at_once"}),
    "w4": (["--steps", "3"], {"events_per_s", "fold_events_per_s", "verified_events_per_s", "events"}),
    "w5": (
        ["--runs", "3", "--wakes", "2"],
        {
            "bytes_per_run",
            "resident_bytes_per_run",
            "processes",
            "idle_cpu",
            "idle_cpu_empty",
            "wake_ms_p50",
            "ended_ms_p50",
        },
    ),
    "tree": (
        ["--runs", "1", "--placement", "process"],
        {"trees_per_s", "runs_per_s", "turns_per_s", "bytes_per_run"},
    ),
    "core": (["--steps", "3"], {"us_per_step", "fold_events_per_s", "events_per_step"}),
    "store": (["--runs", "2"], {"appends_per_s", "appends_per_bare_commit", "append_cpu_in_sha256_1k"}),
    "layers": (
        ["--steps", "12"],
        {"decide_fold_cpu_us", "parse_schema_cpu_us", "encode_cpu_us", "chain_cpu_us", "commits_us"},
    ),
}


@pytest.fixture(autouse=True)
def _quick_yardsticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.measure.YARDSTICK_S", 0.0)


@pytest.mark.parametrize("name", PROMISED)
def test_prints_what_it_promises(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, keys = PROMISED[name]
    main([name.split()[0], *options, *SMALL, "--folder", str(tmp_path)])
    results: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(results) == 1
    result = results[0]
    assert result["workload"] == name.split()[0] or name == "w1 growth"
    assert keys | MACHINE | {"repeat", "spread"} <= set(result)
    figures = result["spread"]
    assert all(low <= result[figure] <= high for figure, (low, high) in figures.items())
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was found"


def test_a_step_of_a_quick_read_is_seven_events_in_two_appends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["w1", "--steps", "50", *SMALL, "--folder", str(tmp_path)])
    result = json.loads(capsys.readouterr().out)
    assert round(result["events_per_step"]) == 7
    assert round(result["appends_per_step"]) == 2


def test_lists_are_measured_on_both_stores(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.lists.CALLS", 1)
    monkeypatch.setattr("bench.lists.COMMANDS", 1)
    with tempfile.TemporaryDirectory() as folder:
        main(["lists", "--runs", "200", *SMALL, "--folder", folder])
        assert list(Path(folder).iterdir()) == [], "the folder is left as it was found"
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["store"] for one in results] == ["sqlite", "postgres"]
    for one in results:
        assert one["ms"].keys() == one["deep_ms"].keys() == filters(200).keys()
        assert one["ms_max"] >= max(one["ms"].values())
        assert one["command_ms"] > 0
        assert one["start_ms"] > 0


def test_stores_are_measured_against_their_databases(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.raw_stores.POSTGRES_RUNS", (1, 4))
    monkeypatch.setattr("bench.raw_stores.LINEAR_APPENDS", 20)
    # Not pytest's folder: a server that root starts is another user's, whom pytest keeps out.
    with tempfile.TemporaryDirectory() as folder:
        main(["store", "--runs", "1", "--raw", *SMALL, "--folder", folder])
        assert list(Path(folder).iterdir()) == [], "the folder is left as it was found"
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()][1:]
    measured = [
        (one["store"], one["events_per_append"], one["runs"])
        for one in results
        if one.get("events_per_raw_event", 0) > 0
    ]
    assert measured == [
        *(("sqlite", 1, 1), ("sqlite", 100, 1)),
        *(("postgres", 1, 1), ("postgres", 1, 4), ("postgres", 100, 1)),
    ]
    assert [one["store"] for one in results if "bytes_of_2n_over_n" in one] == ["sqlite", "postgres"]


def test_started_as_a_file_it_prints_a_table() -> None:
    done = subprocess.run(
        [sys.executable, "bench/run.py", "core", "--steps", "3", "--repeat", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("fold_events_per_s ") for line in done.stdout.splitlines())


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["w9"])
    assert refused.value.code == 2
    assert "w9" in capsys.readouterr().err
