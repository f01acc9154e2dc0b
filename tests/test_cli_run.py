"""``boundloop run``: from an application to its end, to a person, and on in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.command_line import CommandLine

from boundloop.actors.application import ApplicationError, load_application
from boundloop.actors.client import Runtime
from boundloop.runtime.errors import StoreError
from boundloop.runtime.state import State

APP = str(Path(__file__).parent / "application_under_test.py")


def test_a_run_ends_with_its_answer(cli: CommandLine) -> None:
    done = cli("run", f"{APP}:reads")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split()[0:3:2] == ["1", "run_started"]
    assert " ended: completed, final" in done.out
    assert "  Shipped.\\x1b[2J\\u202eowned\\u200b" in lines
    assert "  Bye." in lines
    assert cli("verify").code == 0
    assert cli("store", "check").code == 0


def test_a_run_that_asks_exits_7_and_goes_on_when_it_is_approved(cli: CommandLine) -> None:
    first = cli("run", f"{APP}:pays")
    assert first.code == 7
    [approve] = [line.split() for line in first.out.splitlines() if line.startswith("  boundloop approve")]
    again = cli("run", *_resume_arguments(first.out))
    assert again.code == 7, "nothing was approved yet"
    approved = cli(*approve[1:])
    assert approved.code == 0
    assert f"boundloop run {APP}:pays --resume" in approved.out
    last = cli("run", *_resume_arguments(first.out))
    assert (last.code, last.err) == (0, "")
    assert "ended: completed, final" in last.out
    [row] = cli("runs", "list", "-o", "json").value
    started = [line for line in cli("log", row["run"], "-o", "json").value if line["tag"] == "call_started"]
    assert [line["call"] for line in started] == ["c1.0", "c2.0"]
    assert cli("store", "check").code == 0


def _resume_arguments(out: str) -> list[str]:
    [line] = [line for line in out.splitlines() if line.startswith("Then go on with: ")]
    return line.partition("boundloop run ")[2].split()


def test_a_stop_at_a_limit_exits_8(cli: CommandLine) -> None:
    done = cli("run", f"{APP}:loops")
    assert done.code == 8
    assert "incomplete, max_turns" in done.out
    run = cli("runs", "list", "-o", "json").value[0]["run"]
    assert cli("run", f"{APP}:loops", "--resume", run).code == 8
    assert cli("limits", "raise", run, "turns=2").code == 0
    assert cli("run", f"{APP}:loops", "--resume", run).code == 8
    assert "turns 2/2" in cli("why", run).out


def test_a_refusal_of_the_model_exits_1(cli: CommandLine) -> None:
    done = cli("run", f"{APP}:refuses", "-o", "json")
    assert done.code == 1
    assert (done.value["outcome"], done.value["reason"]) == ("refused", "model_refusal")


@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
def test_an_answer_is_not_shown_before_it_is_judged(cli: CommandLine, form: str) -> None:
    done = cli("run", f"{APP}:judged", "-o", form)
    assert done.code == 0
    assert "SECRET" not in done.out + done.err
    assert "I can't say." in done.out
    if form == "table":
        assert "model_responded" in done.out
    [run] = cli("runs", "list", "-o", "json").value
    assert "SECRET" in cli("log", run["run"]).out, "the record has it"


def test_a_server_that_is_away_as_the_first_answer_is_shown_is_waited_for(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a run's answers are judged is read with the first of them."""
    state, away = Runtime.state, [StoreError("store_unreachable", "for a while")]

    def sometimes(runtime: Runtime, run_id: str) -> State:
        if away:
            raise away.pop()
        return state(runtime, run_id)

    monkeypatch.setattr(Runtime, "state", sometimes)
    done = cli("run", f"{APP}:judged")
    assert (done.code, away) == (0, [])
    assert "SECRET" not in done.out + done.err
    assert "model_responded" in done.out


def test_the_input_and_the_operation_come_from_the_command_line(cli: CommandLine) -> None:
    done = cli("run", f"{APP}:reads", "Where is it?", "--operation-id", "op_7", "-o", "json")
    assert (done.code, done.value["operation_id"]) == (0, "op_7")
    assert "Where is it?" in cli("log", done.value["run_id"]).out


def test_a_run_without_an_input_is_not_begun(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "mute.py").write_text(
        "from boundloop.actors import Application\n"
        "from boundloop.adapters import ScriptedModel, say\n"
        "from boundloop.runtime import WAIVED, Limits\n"
        "app = Application(model=ScriptedModel([say('Done.')]), limits=Limits(cost=WAIVED))\n"
    )
    done = cli("run", f"{tmp_path / 'mute.py'}:app")
    assert done.code == 2
    assert "say the INPUT" in done.err
    assert cli("run", f"{tmp_path / 'mute.py'}:app", "go").code == 0


def test_what_a_run_is_begun_with_comes_from_the_command_line(cli: CommandLine) -> None:
    options = ("--as-of", "2026-11-01", "--given", '{"order_id": "A1042"}', "--input-trust", "untrusted")
    trace = ("--trace", "00-0af7-b7ad-01")
    done = cli("run", f"{APP}:reads", "Where is it?", *options, *trace, "-o", "json")
    assert done.code == 0
    shown = cli("show", done.value["run_id"], "-o", "json").value
    assert (shown["as_of"], shown["given"]) == ("2026-11-01", {"order_id": "A1042"})
    assert shown["trace"] == "00-0af7-b7ad-01"
    assert shown["taint"] == ["input", "c1.0 get_order (undeclared)"]


@pytest.mark.parametrize("given", ["[1]", "{", '{"a": 1, "a": 2}'])
def test_given_that_is_no_object_starts_nothing(cli: CommandLine, given: str) -> None:
    refused = cli("run", f"{APP}:reads", "Where is it?", "--given", given)
    assert refused.code == 2
    assert "--given" in refused.err
    assert "run_started" not in refused.out


def test_an_application_whose_model_may_ask_gets_its_answer(cli: CommandLine) -> None:
    first = cli("run", f"{APP}:asks")
    assert first.code == 7
    [row] = cli("inbox", "-o", "json").value
    assert row["kind"] == "question"
    [run] = cli("runs", "list", "-o", "json").value
    assert cli("answer", row["id"], "A1042").code == 0
    last = cli("run", f"{APP}:asks", "--resume", run["run"])
    assert (last.code, last.err) == (0, "")


def test_a_run_of_another_application_is_left_alone(cli: CommandLine, tmp_path: Path) -> None:
    assert cli("run", f"{APP}:pays").code == 7
    run = cli("runs", "list", "-o", "json").value[0]["run"]
    other = tmp_path / "other.py"
    other.write_text(
        "from tests.application_under_test import Application, Limits, ScriptedModel, WAIVED, say\n"
        "app = Application(model=ScriptedModel([say('x')]), limits=Limits(cost=WAIVED))\n"
    )
    done = cli("run", f"{other}:app", "--resume", run)
    assert done.code == 4
    assert "the run needs the tool get_order" in done.err


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("", "application_reference"),
        ("nothing", "application_reference"),
        (":x", "application_reference"),
        ("no_such_module_at_all:x", "application_code"),
        ("no_such_file.py:x", "application_file"),
        (f"{APP}:missing", "application_missing"),
        (f"{APP}:no_application", "application_kind"),
        (f"{APP}:breaks", "application_code"),
        (f"{APP}:get_order", "application_code"),
        (f"{APP}:Application.__doc__", "application_kind"),
    ],
)
def test_what_is_no_application_exits_2_and_says_why(cli: CommandLine, reference: str, code: str) -> None:
    done = cli("run", reference)
    assert done.code == 2
    assert done.err.startswith(f"boundloop: {code}")
    assert not cli.path.exists()
    with pytest.raises(ApplicationError):
        load_application(reference)


def test_run_needs_a_store_and_one_way_to_go(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for more in (
        ["text"],
        ["--operation-id", "o"],
        ["--given", "{}"],
        ["--as-of", "x"],
        ["--trace", "x"],
        ["--input-trust", "trusted"],
    ):
        assert cli("run", f"{APP}:reads", *more, "--resume", "r1").code == 2
    assert cli("run", f"{APP}:reads", "--resume", "r1").code == 3
    monkeypatch.delenv("BOUNDLOOP_STORE")
    assert cli("run", f"{APP}:reads").code == 2
