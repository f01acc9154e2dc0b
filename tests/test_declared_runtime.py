"""Pools, groups and counts are refused when a Runtime is made: alike with and without Ray, and before Ray is started."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from typing import Any, ClassVar

import pytest

from boundloop.actors import ray_cluster
from boundloop.actors.client import Runtime
from boundloop.actors.pool_spec import Pool
from boundloop.actors.ray_cluster import RayUnavailable
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.tool_spec import tool


@tool(risk="read", group="bank")
def balance(account: str) -> int:
    """Of a limited group."""
    return len(account)


@tool(risk="read", pool="gpu")
def embed(text: str) -> int:
    """In a pool of its own."""
    return len(text)


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a negative group": ({"groups": {"a": -1}}, "out_of_bounds", "groups.a"),
    "a group of nothing": ({"groups": {"a": 0}}, "out_of_bounds", "groups.a"),
    "a group by truth": ({"groups": {"a": True}}, "out_of_bounds", "groups.a"),
    "groups in a list": ({"groups": ["a"]}, "option_type", "groups"),
    "a group's name": ({"groups": {7: 1}}, "option_type", "groups"),
    "an empty name": ({"groups": {"": 1}}, "option_value", "groups"),
    "a number for a pool": ({"pools": {"a": 1}}, "pool_type", "pools.a"),
    "pools in a list": ({"pools": [1]}, "option_type", "pools"),
    "a pool's name": ({"pools": {7: Pool()}}, "option_type", "pools"),
    "a pool of nothing": ({"pools": {"a": Pool(executors=0)}}, "out_of_bounds", "pools.a.executors"),
    "a tool's pool": ({"tools": [embed]}, "pool_unknown", "embed.pool"),
    "a tool's group": ({"tools": [balance]}, "group_unknown", "balance.group"),
    "a group misspelt": ({"tools": [balance], "groups": {"bnak": 4}}, "group_unknown", "balance.group"),
    "a text for a count": ({"run_actors": "8"}, "option_type", "run_actors"),
    "no run actor": ({"run_actors": 0}, "option_value", "run_actors"),
    "more warm than there may be": ({"run_actors": 2, "warm_actors": 3}, "option_value", "warm_actors"),
    "no name": ({"name": ""}, "option_value", "name"),
    "no address": ({"ray": ""}, "option_type", "ray"),
    "a URL for an address": ({"ray": "http://head:8265"}, "ray_address", "ray"),
    "a word for an address": ({"ray": "head"}, "ray_address", "ray"),
    "a port that is none": ({"ray": "head:99999"}, "ray_address", "ray"),
}


@pytest.mark.parametrize("ray", [None, "local"], ids=["without Ray", "on Ray"])
@pytest.mark.parametrize(("options", "code", "path"), WRONG.values(), ids=WRONG.keys())
def test_what_is_declared_wrongly_is_refused_alike(
    ray: str | None, options: dict[str, Any], code: str, path: str, no_ray: None
) -> None:
    given: dict[str, Any] = {"store": "memory://" if ray is None else "sqlite:///x.db", "ray": ray, **options}
    with pytest.raises(DeclarationError) as refused:
        Runtime(**given)
    assert (refused.value.code, refused.value.path) == (code, path)
    assert refused.value.message


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that starts Ray fails."""

    def join(ray_option: str | None) -> None:
        raise AssertionError(f"Ray is joined: {ray_option}")

    monkeypatch.setattr("boundloop.actors.ray_cluster_use.join", join)


class Held:
    """What no pickler takes."""

    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.mine = threading.Lock()


def test_what_needs_no_cluster_to_be_seen_is_told_before_there_is_one(no_ray: None) -> None:
    with pytest.raises(DeclarationError) as memory:
        Runtime(store="memory://", ray="local")
    assert (memory.value.code, memory.value.path) == ("store_not_shared", "store")
    with pytest.raises(DeclarationError) as unpickled:
        Runtime(store="sqlite:///x.db", ray="local", dependencies={"held": Held()})
    assert (unpickled.value.code, unpickled.value.path) == ("not_shippable", "dependencies.held")
    with pytest.raises(DeclarationError) as option:
        Runtime(store="sqlite:///x.db", ray="local", pools={"a": Pool(ray_options={"cpus": 1})})
    assert option.value.path == "pools.a.ray_options.cpus"


@pytest.mark.parametrize("says", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", "closed"])
def test_an_address_without_a_cluster_is_told_soon(
    says: bytes | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens; another server; one that hangs up; one that says nothing."""
    monkeypatch.setattr(ray_cluster, "GREETING_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        taken: list[socket.socket] = []

        def answer() -> None:
            with contextlib.suppress(OSError):
                there, _ = server.accept()
                taken.append(there)
                if isinstance(says, bytes):
                    there.sendall(says)
                    there.shutdown(socket.SHUT_WR)

        if says == "closed":
            server.close()
        else:
            threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(RayUnavailable) as refused:
            Runtime(store="sqlite:///x.db", ray=address)
        assert (refused.value.code, refused.value.path) == ("ray_unreachable", address)
        assert "doctor" in refused.value.message
        for there in taken:
            there.close()


def test_declared_groups_and_pools_are_accepted(tmp_path: Any) -> None:
    with Runtime(
        store="memory://", tools=[balance, embed], groups={"bank": 1}, pools={"gpu": Pool()}
    ) as runtime:
        assert set(runtime.toolbox) == {"balance", "embed"}


def test_wrong_options_import_no_ray() -> None:
    script = (
        "import sys\nfrom boundloop.actors import Runtime\n"
        "try:\n    Runtime(store='memory://', groups={'a': 0})\n"
        "except Exception as error:\n    print(error.code, 'ray' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["out_of_bounds", "False"], done.stderr
