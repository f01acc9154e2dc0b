"""Questions to a store's owner that are waits: however many are open, what else its hosts have to say gets through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from boundloop.actors.ray_run_actor import socket_to_owner
from boundloop.eventstore import socket_server
from boundloop.eventstore.location import open_store
from boundloop.eventstore.owned import OwnedSqliteStore, real_path
from boundloop.eventstore.port import HostRow
from boundloop.eventstore.remote import RemoteStore
from boundloop.runtime.errors import StoreError

ANSWER_S = 10.0
ROW = HostRow(host_id="h", node="n", pid=1, pid_start=1, boot_id="b")


def played(path: Path, test: Callable[[RemoteStore, asyncio.Event], Awaitable[None]]) -> None:
    """An owner whose answers to ``hold`` wait for the event, and a host of it on the socket."""

    async def body() -> None:
        released = asyncio.Event()

        async def on_ask(kind: str, question: bytes) -> bytes:
            if kind == "hold":
                await released.wait()
            return question

        owner = await open_store(f"sqlite:///{path}")
        assert isinstance(owner, OwnedSqliteStore)
        owner.on_ask = on_ask
        host = await socket_to_owner(real_path(str(path)))
        try:
            async with asyncio.timeout(60):
                await test(host, released)
        finally:
            released.set()
            await host.close()
            await owner.close()

    asyncio.run(body())


def test_thousands_of_open_questions_keep_neither_a_renewal_nor_an_answer_out(tmp_path: Path) -> None:
    async def test(host: RemoteStore, released: asyncio.Event) -> None:
        await host.register_host(ROW)
        waits = [asyncio.ensure_future(host.ask("hold", b"%d" % number)) for number in range(3_000)]
        async with asyncio.timeout(ANSWER_S):
            assert await host.renew_host(ROW.host_id)
            assert await host.ask("now", b"x") == b"x"
        released.set()
        assert await asyncio.gather(*waits) == [b"%d" % number for number in range(3_000)]

    played(tmp_path / "runs.db", test)


def test_a_question_too_many_is_refused_and_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "ASKS_MAX", 20)

    async def test(host: RemoteStore, released: asyncio.Event) -> None:
        await host.register_host(ROW)
        waits = [asyncio.ensure_future(host.ask("hold", b"")) for _ in range(21)]
        (done,), held = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(StoreError) as refused:
            done.result()
        assert refused.value.code == "too_many_questions"
        assert await host.renew_host(ROW.host_id)
        released.set()
        await asyncio.gather(*held)
        assert await host.ask("hold", b"y") == b"y"

    played(tmp_path / "runs.db", test)
