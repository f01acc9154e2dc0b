"""What whoever runs a Runtime on Ray hears of what went wrong in another process, heard at the owner."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boundloop.actors import ray_cluster_use
from boundloop.actors.application import load_application
from boundloop.actors.client import Runtime
from boundloop.actors.pool_spec import Pool
from boundloop.actors.ray_pool_fit import without_a_node
from boundloop.actors.shipping import BY_VALUE, pack
from boundloop.adapters.script import call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.errors import CallerError
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.tool_spec import tool

ray: Any = importlib.import_module("ray")
LIMITS = Limits(cost=WAIVED)
SECRET = "sk-live-4242"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", include_dashboard=False, log_to_driver=False, namespace="boundloop", num_cpus=2)
    yield
    ray.shutdown()


@tool(risk="read")
def fails(number: int) -> int:
    """On its own."""
    raise KeyError(SECRET)


@tool(risk="read", max_attempts=1)
def crashes(number: int) -> int:
    """With its process."""
    os._exit(3)


def opened(tmp_path: Path, **options: Any) -> Runtime:
    given: dict[str, Any] = {"ray": "require", "run_actors": 1, "name": tmp_path.name, **options}
    return Runtime(store=f"sqlite:///{tmp_path}/runs.db", **given)


def test_the_owner_hears_what_a_tool_raised_and_nothing_is_said_of_a_crash_that_is_seen_to(
    cluster: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turns = [call("fails", {"number": 1}), call("crashes", {"number": 1}), say("sorry")]
    with opened(
        tmp_path,
        model=ScriptedModel(turns),
        tools=[fails, crashes],
        pools={"gpu": Pool(ray_options={"num_gpus": 1})},
    ) as runtime:
        assert runtime.ray_address
        result = runtime.run_sync("go", limits=LIMITS)
        assert result.text == "sorry"
        assert SECRET not in str(runtime.state(result.run_id))
    (line,) = [it.getMessage() for it in caplog.records if it.name == "boundloop.tools"]
    assert line.startswith(
        f"fails raised KeyError at {__file__}:{fails.__code__.co_firstlineno + 3} in fails"
    )
    assert result.run_id in line
    (pool,) = [
        it.getMessage() for it in caplog.records if it.name == "boundloop.ray" and "pool" in it.getMessage()
    ]
    assert "1 GPU" in pool
    unhandled = [
        it.getMessage() for it in caplog.records if it.name == "asyncio" and it.levelno >= logging.ERROR
    ]
    assert unhandled == []


def test_an_application_that_workers_cannot_import_is_the_callers_and_says_what_to_do(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "only_there.py").write_text(
        "from boundloop.runtime.tool_spec import tool\n\n"
        "@tool(risk='read')\ndef peep(number: int) -> int:\n    'Peep.'\n    return number\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    only_there: Any = importlib.import_module("only_there")
    try:
        with (
            opened(
                tmp_path, model=ScriptedModel([say("hi")]), tools=[only_there.peep], warm_actors=0
            ) as runtime,
            pytest.raises(CallerError) as refused,
        ):
            runtime.run_sync("go", limits=LIMITS)
        assert "only_there" in refused.value.message
        assert "runtime_env" in refused.value.message
        with pytest.raises(CallerError) as failing:
            opened(
                tmp_path,
                model=ScriptedModel([say("hi")]),
                tools=[only_there.peep],
                pools={"default": Pool(warm=1)},
            )
        assert "only_there" in failing.value.message
        assert "runtime_env" in failing.value.message
    finally:
        sys.modules.pop("only_there")
    told = [
        it.getMessage() for it in caplog.records if it.name == "boundloop.ray" and "load" in it.getMessage()
    ]
    assert len(told) == 1, "once an owner, whatever is tried again"


def test_a_pool_fits_if_one_node_has_all_of_it() -> None:
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 64.0, "tpu-pod": 1.0}]
    pools = {
        "plain": Pool(),
        "gpu": Pool(ray_options={"num_gpus": 1, "num_cpus": 4}),
        "apart": Pool(ray_options={"num_gpus": 1, "num_cpus": 8}),
        "named": Pool(ray_options={"resources": {"tpu-pod": 1}}),
        "kind": Pool(ray_options={"accelerator_type": "A100"}),
    }
    assert without_a_node(pools, nodes) == {"apart": "8 CPU, 1 GPU", "kind": "0.001 accelerator_type:A100"}


APPLICATION = """
from boundloop.actors.application import Application
from boundloop.adapters.scripted import ScriptedModel
from boundloop.adapters.script import say
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.tool_spec import tool

RATE = 7

@tool(risk="read")
def rate(of: int) -> int:
    "Of a file in another folder."
    return RATE * of

app = Application(model=ScriptedModel([say("hi")]), tools=[rate], limits=Limits(cost=WAIVED))
"""
ELSEWHERE = """
import sys
from boundloop.actors.shipping import unpack
application = unpack(sys.stdin.buffer.read())
print(application.toolbox["rate"].handler(of=3))
"""


def test_an_application_in_a_file_of_another_folder_is_loaded_where_that_folder_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped: list[bytes] = []

    def packed(*given: Any) -> bytes:
        shipped.append(pack(*given))
        return shipped[-1]

    def join(ray_option: str | None) -> None:
        raise InterruptedError

    (tmp_path / "in_a_folder.py").write_text(APPLICATION)
    monkeypatch.setattr(ray_cluster_use, "pack", packed)
    monkeypatch.setattr(ray_cluster_use, "join", join)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        application = load_application(f"{tmp_path}/in_a_folder.py:app")
        with pytest.raises(InterruptedError):
            application.runtime(f"sqlite:///{tmp_path}/runs.db", ray="local")
    finally:
        BY_VALUE.discard("in_a_folder")
        ray.cloudpickle.unregister_pickle_by_value(sys.modules.pop("in_a_folder"))
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], input=shipped[0], capture_output=True, check=False, timeout=60
    )
    assert done.stdout.split() == [b"21"], done.stderr
