"""``boundloop serve``: what is ready in the store goes on for as long as it serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.command_line import CommandLine
from tests.ray.process_table import eventually

from boundloop.actors.application import load_application
from boundloop.runtime.errors import DeclarationError

APP = str(Path(__file__).parent / "application_under_test.py")
WITHIN_S: Final = 30.0


def test_an_approved_run_ends_while_it_serves_and_a_signal_ends_it(cli: CommandLine) -> None:
    assert cli("run", f"{APP}:pays").code == 7
    [waiting] = cli("inbox", "-o", "json").value
    command = [sys.executable, "-m", "boundloop", "serve", f"{APP}:pays"]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert serving.stdout is not None
        said = [serving.stdout.readline(), serving.stdout.readline()]
        assert said[0].startswith("serving sqlite:")
        assert said[0].endswith(f"pid {serving.pid}\n")
        assert "boundloop inbox --store sqlite:////" in said[1], "from any folder"
        assert cli("approve", waiting["run"]).code == 0
        assert eventually(
            lambda: cli("runs", "list", "-o", "json").value[0]["status"] == "terminated", WITHIN_S
        )
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(WITHIN_S) == 0
    finally:
        serving.kill()
        serving.wait(WITHIN_S)
        if serving.stdout is not None:
            serving.stdout.close()
    assert cli("store", "check").code == 0


def test_it_needs_a_store(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOUNDLOOP_STORE")
    assert cli("serve", f"{APP}:pays").code == 2


def test_counts_of_actors_are_the_applications_unless_given(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("serve", f"{APP}:pays", "--run-actors", "0").code == 2
    assert cli("run", f"{APP}:pays", "--run-actors", "1", "--warm-actors", "2").code == 2
    application = load_application(f"{APP}:pays")
    few = replace(application, run_actors=2, warm_actors=3)
    with pytest.raises(DeclarationError, match="warm_actors"):
        few.runtime("memory://")
    few.runtime("memory://", run_actors=3).close()
