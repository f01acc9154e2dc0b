"""Checks, policy and queries in executors of a real cluster: their host's loop goes on, whatever they do.

The runs are hosted by this process. What they ask of the application's code must not run here."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
import ray as real_ray
from tests.attach_play import half_of, on_loop
from tests.ray.check_tools import TOOLS, judge, notes_of, processes
from tests.ray.pool_tools import lines
from tests.ray.process_table import eventually

from boundloop.actors import ray_cluster_use
from boundloop.actors.client import Runtime
from boundloop.actors.pool_spec import Pool
from boundloop.actors.result import Result
from boundloop.actors.rungs import CHECK_TIMEOUT_S
from boundloop.adapters import ScriptedModel, call, say
from boundloop.adapters.script import ScriptedTurn
from boundloop.eventstore.owned import real_path
from boundloop.runtime import events as e
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.limits import RECHECKS_MAX, WAIVED, Limits
from boundloop.runtime.model import ModelInput, UserItem
from boundloop.runtime.policy import Policy, PolicyQuestion

WITHIN_S: Final = 90.0
LIMITS: Final = Limits(cost=WAIVED)
ray: Any = real_ray  # it has few types of its own


def answer(request: ModelInput) -> ScriptedTurn:
    """The input is one call: the tool, and its argument."""
    if request.turn > 1:
        return say("Done.")
    text = next(item.text for item in request.items if isinstance(item, UserItem))
    name, _, argument = text.partition(" ")
    return call(name, {"path" if name.startswith("send") else "order_id": argument})


def runtime_on(path: Path, **options: Any) -> Runtime:
    given: dict[str, Any] = {"tools": TOOLS, "run_actors": 1, "warm_actors": 0, **options}
    return Runtime(store=f"sqlite:///{path}", model=ScriptedModel(answer), ray="require", **given)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        namespace="checks-under-test",
        num_cpus=4,
        logging_level=logging.ERROR,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def runtime(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    with runtime_on(path, policy=Policy(judge, revision="judge-1")) as made:
        yield made


def start_here(runtime: Runtime, text: str) -> str:
    """A run in this process."""
    run_id: str = on_loop(runtime, half_of(runtime).start(text, {"limits": LIMITS}, dense=True))
    return run_id


def events(runtime: Runtime, run_id: str) -> list[e.AnyEvent]:
    return [item.event for item in runtime.stream(run_id, until="rest")]


def rejection(runtime: Runtime, run_id: str) -> tuple[str, str, bool]:
    (found,) = [it for it in events(runtime, run_id) if isinstance(it, e.CallRejected)]
    return found.rung, found.code, found.retryable


def completed(result: Result) -> bool:
    return (result.outcome, result.text) == ("completed", "Done.")


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in ("Z", "X")


def test_nothing_that_may_block_runs_in_the_host(runtime: Runtime, tmp_path: Path) -> None:
    """Check, preview and version, before a person is asked and again before the effect. The policy is declared inline, so
    it comes along only where the rest of its call's rungs goes."""
    path = tmp_path / "notes"
    run_id = start_here(runtime, f"pay free:{path}")
    (approval,) = runtime.result(run_id, WITHIN_S).approvals
    assert '"preview":{"shown":"the order"}' in approval.preview
    runtime.approve(run_id, approval.approval_id, by="someone")
    assert completed(runtime.result(run_id, WITHIN_S))
    for name in ("check", "policy", "preview", "version_of"):
        assert len(processes(path, name)) >= 2, name
        assert os.getpid() not in processes(path, name), name
    assert len(processes(path, "pay")) == 1


def test_a_check_that_holds_the_interpreter_holds_up_no_other_run_and_is_ended_in_time(
    runtime: Runtime, tmp_path: Path
) -> None:
    """R13: on a thread it would stop this process for minutes."""
    path = tmp_path / "notes"
    began = time.monotonic()
    held = start_here(runtime, f"book hold:{path}")
    assert eventually(lambda: bool(processes(path, "check")), WITHIN_S)
    for number in range(5):
        assert completed(runtime.result(start_here(runtime, f"glance free:{path}{number}"), WITHIN_S))
    assert runtime.state(held).phase != "terminated", "the others were not waited for by it"
    assert completed(runtime.result(held, WITHIN_S))
    assert rejection(runtime, held) == ("check", "timeout", True)
    assert time.monotonic() - began >= CHECK_TIMEOUT_S
    (pid,) = processes(path, "check")
    assert eventually(lambda: gone(pid), 10.0)
    assert not processes(path, "book")


def test_a_check_that_ends_its_process_is_asked_again_and_then_denied(
    runtime: Runtime, tmp_path: Path
) -> None:
    path = tmp_path / "notes"
    run_id = start_here(runtime, f"book exit:{path}")
    assert completed(runtime.result(run_id, WITHIN_S))
    assert rejection(runtime, run_id) == ("check", "lost", True)
    assert len(set(processes(path, "check"))) == RECHECKS_MAX
    assert not processes(path, "book")


@pytest.mark.parametrize("tool", ["send", "send_queried_on_a_loop"])
def test_a_query_that_ends_its_process_leaves_the_effect_unknown_and_is_asked_again(
    runtime: Runtime, tmp_path: Path, tool: str
) -> None:
    path = tmp_path / "keys"
    run_id = start_here(runtime, f"{tool} {path}")
    assert completed(runtime.result(run_id, WITHIN_S))
    (key,) = lines(path)
    asked = processes(notes_of(key), "query")
    notes_of(key).unlink()
    said = [it for it in events(runtime, run_id) if isinstance(it, e.CallReconciled)]
    assert [(it.outcome, it.reason) for it in said] == [("unknown", "lost"), ("applied", "")]
    assert len(set(asked)) == 2
    assert os.getpid() not in asked


# --- what can't be sent, and what doesn't come up ------------------------------------------------------------------------


def test_a_policy_that_cannot_travel_is_refused_by_name_and_nothing_is_left(
    cluster: None, tmp_path: Path
) -> None:
    log = (tmp_path / "log").open("w")

    def judged(question: PolicyQuestion) -> Any:
        log.write(question.tool)
        return "allow"

    with pytest.raises(DeclarationError) as refused:
        runtime_on(tmp_path / "runs.db", policy=Policy(judged, inline=False))
    log.close()
    assert (refused.value.code, refused.value.path) == ("not_shippable", "policy")
    with runtime_on(tmp_path / "runs.db") as again:
        assert completed(again.result(start_here(again, "glance 1"), WITHIN_S))


class OnlyAtHome:
    """Can be sent, and can't be received."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("not in this process")


def test_executors_that_cannot_come_up_are_told_of_and_nothing_is_left(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster_use, "WARM_S", 8.0)
    with pytest.raises(DeclarationError) as refused:
        runtime_on(tmp_path / "runs.db", dependencies={"odd": OnlyAtHome()}, pools={"default": Pool(warm=1)})
    assert (refused.value.code, refused.value.path) == ("executors_failing", "pools.default")
    assert "LookupError" in str(refused.value)
    assert eventually(lambda: not named_actors(tmp_path / "runs.db"), 10.0)
    with runtime_on(tmp_path / "runs.db") as again:
        assert completed(again.result(start_here(again, "glance 1"), WITHIN_S))


def named_actors(path: Path) -> list[str]:
    """What is alive of a Runtime on this file."""
    mark = sha256(real_path(str(path)).encode()).hexdigest()[:12]
    return [it["name"] for it in ray.util.list_named_actors(all_namespaces=True) if mark in it["name"]]
