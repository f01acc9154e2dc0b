"""``boundloop serve``: what is ready in the store goes on for as long as it serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.command_line import CommandLine
from tests.ray.process_table import eventually

APP = str(Path(__file__).parent / "application_under_test.py")
WITHIN_S: Final = 30.0


def test_an_approved_run_ends_while_it_serves_and_a_signal_ends_it(cli: CommandLine) -> None:
    assert cli("run", f"{APP}:pays").code == 7
    [waiting] = cli("inbox", "-o", "json").value
    command = [sys.executable, "-m", "boundloop", "serve", f"{APP}:pays"]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith("serving sqlite:")
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
