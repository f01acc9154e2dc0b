"""The programs that README.md shows are programs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from boundloop.actors import Application, Result, Runtime
from boundloop.adapters import ScriptedModel, say
from boundloop.runtime import WAIVED, Limits, ToolSpec, tool

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
SMALLEST, TOOL, APPLICATION = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


class Bank:
    """Never reached: the tool is declared, not called."""


@tool(risk="read")
def get_order(order_id: str) -> dict[str, str]:
    """Look up one order."""
    return {"order_id": order_id}


def run(program: str, folder: Path, **names: Any) -> dict[str, Any]:
    """The program as a file of its own, with these names; what it defines."""
    file = folder / "program.py"
    file.write_text(program, "utf-8")
    return runpy.run_path(str(file), init_globals=names)


def test_the_smallest_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(SMALLEST, tmp_path)
    assert capsys.readouterr().out.startswith("completed Order A1042 was shipped. r_")


def test_the_tool_with_an_effect_is_a_tool_and_the_application_takes_it(tmp_path: Path) -> None:
    names = run(TOOL, tmp_path, bank=Bank())
    assert "model=…" in APPLICATION
    names["get_order"], names["the_model"] = get_order, ScriptedModel([say("x")])
    made = run(APPLICATION.replace("…", "the_model"), tmp_path, **names)["refunds"]()
    assert isinstance(made, Application)
    with made.runtime("memory://") as runtime:
        spec = runtime.toolbox.get("submit_refund")
        assert isinstance(spec, ToolSpec)
        assert spec.definition.key == ("order_id",)


def test_the_fields_and_methods_that_it_names_are_there() -> None:
    listed = README.partition("- **`Result`**:")[2].partition("\n- **")[0]
    fields = set(re.findall(r"`(\w+)`", listed)) - {"ended", "stopped", "waiting", "running"}
    assert fields <= {*Result.__struct_fields__, "completed"}
    assert {"status", "outcome", "reason", "text", "approvals"} <= fields
    with Runtime(store="memory://", model=ScriptedModel([say("x")])) as runtime:
        for name in re.findall(r"rt\.aio\.(\w+)\(", README):
            assert callable(getattr(runtime.aio, name))
        for name in re.findall(r"rt\.(\w+)\(", README):
            assert callable(getattr(runtime, name))


def test_the_times_that_it_names_are_the_defaults() -> None:
    values = Limits(cost=WAIVED).values
    assert (values.deadline_ms, values.approval_ms) == (3_600_000, 86_400_000)
    assert "deadline is 1 hour" in README
    assert "an approval may take 24 hours" in README
    two_days = Limits(cost=WAIVED, deadline_s=172_800, approval_ms=172_800_000).values
    assert two_days.deadline_ms == two_days.approval_ms == 172_800_000
    assert "deadline_s=172_800, approval_ms=172_800_000" in README
