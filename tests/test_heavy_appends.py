"""Results that don't fit one frame together, and appends that can't be made at all: each comes to an end."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.stepped_runtime import Site
from tests.written_runs import pins_for

from boundloop.actors import driver
from boundloop.actors.driver import STORE_RETRIES_MAX
from boundloop.actors.fit import Fit
from boundloop.actors.host import Host
from boundloop.actors.ray_run_actor import socket_to_owner
from boundloop.adapters.script import call, calls, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore import socket_protocol
from boundloop.eventstore.admission import create_unhosted
from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import open_store
from boundloop.eventstore.owned import real_path
from boundloop.eventstore.socket_client import SocketStore
from boundloop.runtime import events as e
from boundloop.runtime.errors import StoreError
from boundloop.runtime.pins import Pins
from boundloop.runtime.policy import Policy
from boundloop.runtime.start import NewRunSpec, start_run
from boundloop.runtime.tool_spec import tool, tool_spec
from boundloop.runtime.toolbox import Toolbox

RESULT_BYTES: Final = 2_000_000
FRAME_BYTES: Final = 3_300_000
"""Room for one result and not for two, as 66 MiB are for results of 40 MiB."""

WITHIN_S: Final = 60.0
RUN: Final = "r1"
SPEC: Final = NewRunSpec(tenant="default", principal="p", operation_id=RUN, run_id=RUN, agent="a", input="go")


def two_tables(came: asyncio.Barrier) -> Any:
    @tool(risk="read", inline=True)
    async def table(number: int) -> str:
        """A large table; both are done at once."""
        await came.wait()
        return str(number) * RESULT_BYTES

    return table


def carried(path: Path, test: Callable[[SocketStore, Host, Any], Coroutine[Any, Any, None]]) -> None:
    """A host that reaches its store by the socket and is given one run, which asks for two tables at once."""

    async def body() -> None:
        owner = await open_store(f"sqlite:///{path}")
        store = await socket_to_owner(real_path(str(path)))
        table = two_tables(asyncio.Barrier(2))
        host = Host(
            store,
            toolbox=Toolbox([table]),
            policy=Policy(),
            adapter=ScriptedModel(
                [calls(call("table", {"number": 1}), call("table", {"number": 2})), say("Done.")]
            ),
            permissions_of=lambda tenant, principal: frozenset(),
            looks=False,
        )
        await host.open()
        try:
            pins = msgspec.structs.replace(pins_for(), tools=(tool_spec(table).definition,))
            event, _, encoded = start_run(SPEC, pins)
            await create_unhosted(owner, event, encoded, root_id=RUN)
            async with asyncio.timeout(WITHIN_S):
                await test(store, host, owner)
        finally:
            await host.close()
            await store.close()
            await owner.close()

    asyncio.run(body())


def let_go(host: Host) -> asyncio.Event:
    gone = asyncio.Event()
    host.parked_watchers.append(lambda run_id, state: gone.set())
    return gone


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(self: Fit, application: str, pins: Pins) -> str:
        return ""

    monkeypatch.setattr(Fit, "misfit", fits)
    monkeypatch.setattr(socket_protocol, "FRAME_BYTES_MAX", FRAME_BYTES)
    monkeypatch.setattr(driver, "BLOBS_TOGETHER_BYTES_MAX", FRAME_BYTES // 8)


def test_results_that_do_not_fit_one_frame_together_travel_one_by_one(tmp_path: Path) -> None:
    async def test(store: SocketStore, host: Host, owner: Any) -> None:
        gone = let_go(host)
        assert await host.take_up(RUN)
        await gone.wait()
        state, records = await load_run(owner, RUN)
        assert (state.outcome, host.failures) == ("completed", {})
        results = [record.event for record in records if isinstance(record.event, e.CallExecuted)]
        digests = [event.artifact for event in results if event.artifact is not None]
        assert len(digests) == 2
        for digest in digests:
            assert len(await owner.get_blob(digest) or b"") > RESULT_BYTES

    carried(tmp_path / "runs.db", test)


def test_a_result_that_can_never_be_stored_ends_its_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: SocketStore, host: Host, owner: Any) -> None:
        monkeypatch.setattr(socket_protocol, "FRAME_BYTES_MAX", RESULT_BYTES // 2)
        gone = let_go(host)
        assert await host.take_up(RUN)
        await gone.wait()
        error = host.failures[RUN]
        assert isinstance(error, StoreError)
        assert error.code == "frame_too_large"
        row = await owner.run(RUN)
        assert (row.owner, row.ready) == ("", True), "another host, or a later one, may have it"
        assert await store.renew_host(host.host_id), "the connection is as good as before"

    carried(tmp_path / "runs.db", test)


def test_an_append_that_always_fails_is_tried_ever_more_slowly_and_then_given_up(site: Site) -> None:
    host = site.open([call("look", {}), say("Done.")], [look])
    real = site.store.append
    tried: list[int] = []

    async def append(request: Any) -> Any:
        if request.expected_seq < 2:
            return await real(request)
        tried.append(site.passed_ms)
        raise StoreError("io_error", "not this one")

    site.store.append = append  # type: ignore[method-assign]  # reads go on as ever
    run_id = host.start()
    for _ in range(STORE_RETRIES_MAX + 1):
        host.advance(10_000)
    assert len(tried) == STORE_RETRIES_MAX + 1
    pauses = [later - sooner for sooner, later in pairwise(tried)]
    assert pauses == sorted(pauses)
    host.advance(600_000)
    assert len(tried) == STORE_RETRIES_MAX + 1
    with pytest.raises(StoreError, match="io_error"):
        host.rest(run_id)
    site.store.append = real  # type: ignore[method-assign]  # mended: somebody touches the run
    host.rt.cancel(run_id)
    assert host.rest(run_id).outcome == "cancelled"


@tool(risk="read", inline=True)
async def look() -> str:
    """Look."""
    return "seen"
