"""What other processes say to a store's owner, by the socket or through the messenger: nobody's waits keep out what has to
be said, nobody speaks for a run actor but a run actor, and nothing that fails for one of them ends it for another."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from boundloop.actors import embedded, places, ray_run_actor
from boundloop.actors.places import GIVE_BACK, LEASE, LOST, Grant, RemotePlaces, Want
from boundloop.actors.ray_run_actor import (
    EXIT_OWNER_GONE,
    EXIT_UNHEARD,
    LET_GO,
    WORD_TRIES,
    LetGoMessage,
    RunActor,
    StoreMessenger,
    ToolsWay,
    Way,
    sealed,
    socket_to_owner,
    unsealed,
)
from boundloop.eventstore import socket_client, socket_server
from boundloop.eventstore.carried import CarriedStore
from boundloop.eventstore.location import open_store
from boundloop.eventstore.owned import OwnedSqliteStore, real_path
from boundloop.eventstore.port import HostRow
from boundloop.eventstore.socket_server import IN_FLIGHT_MAX
from boundloop.runtime.errors import CallerError, DeclarationError, StoreError

ANSWER_S: Final = 10.0
TEST_S: Final = 60.0
TURNS_MAX: Final = 1_000_000
ROW: Final = HostRow(host_id="h", node="n", pid=1, pid_start=1, boot_id="b")
SECRET: Final = "00" * 16
SEAT: Final = "x-run-1"


class Owner:
    """An owner whose answers to leases and commands wait until ``release`` is set; what it is told it writes down."""

    def __init__(self, store: OwnedSqliteStore) -> None:
        self.store = store
        self.release = asyncio.Event()
        self.told: list[str] = []
        self.leases = 0
        store.on_ask = self._asked
        store.on_submit = self._submitted

    async def _asked(self, kind: str, question: bytes) -> bytes:
        if kind != LEASE:
            self.told.append(kind)
            return b""
        self.leases += 1
        await self.release.wait()
        return msgspec.msgpack.encode(Grant(grant_id="g", actor="a", contended=False))

    async def _submitted(self, run_id: str, command_id: str, command: bytes) -> bytes:
        await self.release.wait()
        return b"done"


def played(path: Path, test: Callable[[Owner], Awaitable[None]]) -> None:
    async def body() -> None:
        store = await open_store(f"sqlite:///{path}")
        assert isinstance(store, OwnedSqliteStore)
        owner = Owner(store)
        try:
            async with asyncio.timeout(TEST_S):
                await test(owner)
        finally:
            owner.release.set()
            await store.close()

    asyncio.run(body())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(real_path(str(tmp_path / "runs.db")))


def want(number: int, pool: str = "default") -> Want:
    return Want(want_id=f"h:{number}", host_id="h", tool="t", pool=pool, kind="sync", valid_ms=60_000)


async def turns(until: Callable[[], bool]) -> None:
    async with asyncio.timeout(ANSWER_S):
        for _ in range(TURNS_MAX):
            if until():
                return
            await asyncio.sleep(0)
    raise AssertionError("it doesn't come about")


# --- waits -------------------------------------------------------------------------------------------------------------


def test_a_place_is_given_back_and_a_row_renewed_however_many_wait_for_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "ASKS_MAX", 30)

    async def test(owner: Owner) -> None:
        host = await socket_to_owner(str(path))
        await host.register_host(ROW)
        waits = [asyncio.ensure_future(host.ask(LEASE, b"")) for _ in range(30)]
        await turns(lambda: owner.leases == 30)
        async with asyncio.timeout(ANSWER_S):
            await asyncio.gather(*(host.tell(GIVE_BACK, b"") for _ in range(25)))
            await host.tell(LOST, b"")
            await host.tell(LET_GO, b"")
            assert await host.renew_host(ROW.host_id)
        assert owner.told == [GIVE_BACK] * 25 + [LOST, LET_GO]
        with pytest.raises(StoreError, match="too_many_questions"):
            await host.ask(LEASE, b"")
        assert not any(wait.done() for wait in waits)
        owner.release.set()
        await asyncio.gather(*waits)
        await host.close()

    played(path, test)


def test_commands_that_wait_keep_no_call_of_the_store_out(path: Path) -> None:
    """A run actor needs the store to answer a command, over the very connection that the command may have come by."""

    async def test(owner: Owner) -> None:
        client = await socket_to_owner(str(path))
        await client.register_host(ROW)
        commands = [
            asyncio.ensure_future(client.submit("r1", str(number), b""))
            for number in range(IN_FLIGHT_MAX * 2)
        ]
        async with asyncio.timeout(ANSWER_S):
            assert await client.renew_host(ROW.host_id)
            assert await client.run("nobody") is None
        assert not any(command.done() for command in commands)
        owner.release.set()
        assert set(await asyncio.gather(*commands)) == {b"done"}
        await client.close()

    played(path, test)


def test_a_host_asks_for_so_many_places_of_a_line_at_once_and_for_another_lines_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "LEASES_MAX", 3)
    open_now: set[str] = set()
    told: list[str] = []

    async def body() -> None:
        go_on = asyncio.Event()

        async def ask(kind: str, payload: bytes) -> bytes:
            asked = msgspec.msgpack.decode(payload, type=Want)
            open_now.add(asked.want_id)
            await go_on.wait()
            open_now.discard(asked.want_id)
            return msgspec.msgpack.encode(Grant(grant_id=asked.want_id, actor="a", contended=False))

        async def tell(kind: str, payload: bytes) -> bytes:
            told.append(kind)
            return b""

        remote = RemotePlaces(ask, tell)
        first = [asyncio.ensure_future(remote.lease(want(number))) for number in range(5)]
        other = asyncio.ensure_future(remote.lease(want(9, "another")))
        await turns(lambda: "h:9" in open_now)
        assert open_now == {"h:0", "h:1", "h:2", "h:9"}
        await remote.give_back("h:7")
        assert told == [GIVE_BACK]
        go_on.set()
        assert all(isinstance(answer, Grant) for answer in await asyncio.gather(*first, other))

    asyncio.run(body())


# --- connections -------------------------------------------------------------------------------------------------------


def test_an_owners_own_hosts_take_no_connection_from_command_lines(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "CONNECTIONS_MAX", 2)

    async def test(owner: Owner) -> None:
        owner.store.expect_hosts(3)
        hosts = [await socket_to_owner(str(path)) for _ in range(3)]
        others = [await socket_to_owner(str(path)) for _ in range(2)]
        with pytest.raises(StoreError, match="too_many_connections"):
            await socket_to_owner(str(path))
        for store in (*hosts, *others):
            assert await store.hosts() == []
            await store.close()

    played(path, test)


def test_more_run_actors_than_there_may_be_files_are_refused_when_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limit(which: int) -> tuple[int, int]:
        return (1_024, 1_024)

    monkeypatch.setattr(resource, "getrlimit", limit)

    def declared(run_actors: int) -> object:
        return embedded.cluster_use(
            "local", name="b", run_actors=run_actors, warm=0, dense_actors=0, pools=None
        )

    assert declared(300) is not None
    with pytest.raises(DeclarationError, match="open files"):
        declared(1_000)


# --- through the messenger ---------------------------------------------------------------------------------------------


def through(messenger: StoreMessenger, client: str, path: Path) -> CarriedStore:
    return CarriedStore(str(path), lambda request: messenger.carry(client, request))


def test_each_client_of_a_messenger_has_a_connection_of_its_own(path: Path) -> None:
    async def test(owner: Owner) -> None:
        messenger = StoreMessenger(str(path))
        one, other = through(messenger, "one", path), through(messenger, "other", path)
        await one.register_host(ROW)
        waits = [asyncio.ensure_future(one.submit("r1", str(number), b"")) for number in range(40)]
        assert await other.renew_host(ROW.host_id)
        assert await one.renew_host(ROW.host_id)
        assert len(messenger._stores) == 2
        await (await messenger._stores["one"]).close()
        for wait in waits:
            with pytest.raises(StoreError, match="store_closed"):
                await wait
        assert await other.renew_host(ROW.host_id), "another's connection isn't touched"
        for made in messenger._stores.values():
            await (await made).close()

    played(path, test)


def test_what_is_too_large_to_travel_is_refused_and_ends_no_connection(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(owner: Owner) -> None:
        messenger = StoreMessenger(str(path))
        store = through(messenger, "one", path)
        await store.register_host(ROW)

        def frame(value: object) -> bytes:
            raise StoreError("frame_too_large", "it doesn't fit")

        with monkeypatch.context() as for_it:
            for_it.setattr(socket_client, "frame", frame)
            with pytest.raises(StoreError, match="frame_too_large"):
                await store.put_blob(b"x")
        assert await store.renew_host(ROW.host_id)
        await (await messenger._stores["one"]).close()

    played(path, test)


def test_a_messenger_whose_clients_are_gone_forgets_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_run_actor, "CLIENTS_MAX", 2)

    async def test(owner: Owner) -> None:
        messenger = StoreMessenger(str(path))
        for name in ("one", "two"):
            await through(messenger, name, path).hosts()
        with pytest.raises(StoreError, match="too_many_connections"):
            await through(messenger, "three", path).hosts()
        await (await messenger._stores["one"]).close()
        assert await through(messenger, "three", path).hosts() == []
        for made in messenger._stores.values():
            await (await made).close()

    played(path, test)


def test_a_messenger_without_an_owner_says_so(path: Path) -> None:
    async def body() -> None:
        with pytest.raises(StoreError, match="owner_gone"):
            await through(StoreMessenger(str(path)), "one", path).hosts()

    asyncio.run(body())


# --- the time ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_ran_ahead_of_the_owners_is_put_right_and_never_falls(path: Path) -> None:
    async def test(owner: Owner) -> None:
        host = await socket_to_owner(str(path))
        await host.hosts()
        host._now_at_ns -= 5_000_000_000  # as if this process's clock had gained five seconds
        fast = host.now_ms()
        assert fast >= owner.store.now_ms() + 4_000
        await host.hosts()
        assert 0 <= host.now_ms() - fast < 1_000, "it stands until the owner's time has caught up"
        assert host._now_ms <= owner.store.now_ms()
        await host.close()

    played(path, test)


# --- words of run actors -----------------------------------------------------------------------------------------------


def test_only_a_run_actor_of_this_owner_speaks_of_seats_and_places() -> None:
    sent: list[bytes] = []

    async def send(kind: str, payload: bytes) -> bytes:
        sent.append(payload)
        return b""

    async def body() -> None:
        await sealed(send, SECRET)(LET_GO, b"word")

    asyncio.run(body())
    assert unsealed(sent[0], SECRET) == b"word"
    for forged in (b"word", b"", sent[0][1:], bytes.fromhex("11" * 16) + b"word"):
        with pytest.raises(CallerError, match="not_ours"):
            unsealed(forged, SECRET)


def actor_with(tell: Callable[[str, bytes], Awaitable[bytes]]) -> RunActor:
    actor = RunActor(
        SEAT,
        b"",
        msgspec.msgpack.encode(Way(path="/runs.db", node_id="n")),
        None,
        msgspec.msgpack.encode(ToolsWay(namespace="n", store="s", revision="r", secret=SECRET)),
    )
    actor._tells = sealed(tell, SECRET)
    host: Any = object()
    actor._host = host
    return actor


@pytest.mark.parametrize(
    ("error", "exit_code", "tries"),
    [
        (StoreError("io_error"), EXIT_UNHEARD, WORD_TRIES),
        (CallerError("not_ours"), EXIT_UNHEARD, WORD_TRIES),
        (ZeroDivisionError("bug"), EXIT_UNHEARD, WORD_TRIES),
        (StoreError("owner_gone"), EXIT_OWNER_GONE, 1),
    ],
)
def test_a_run_actor_that_is_not_heard_tries_again_and_then_ends(
    monkeypatch: pytest.MonkeyPatch, error: Exception, exit_code: int, tries: int
) -> None:
    told: list[bytes] = []

    async def tell(kind: str, payload: bytes) -> bytes:
        told.append(payload)
        raise error

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(ray_run_actor, "WORD_PAUSE_S", 0.0)
    monkeypatch.setattr(os, "_exit", leave)
    word = LetGoMessage(SEAT, "r1", 7, "", False)

    async def body() -> None:
        await actor_with(tell)._tell(word)

    with pytest.raises(SystemExit) as ended:
        asyncio.run(body())
    assert ended.value.code == exit_code
    assert len(told) == tries
    assert msgspec.msgpack.decode(unsealed(told[0], SECRET), type=LetGoMessage) == word


def test_a_run_actor_that_closes_takes_nothing_and_says_so() -> None:
    async def tell(kind: str, payload: bytes) -> bytes:
        return b""

    actor = actor_with(tell)
    actor._host = None
    assert asyncio.run(actor.adopt(["r1", "r2"], 3)) == {"r1": "", "r2": ""}
