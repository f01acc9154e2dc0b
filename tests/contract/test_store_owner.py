"""One process owns a file: the lock, who is refused and how, taking over, and the socket for everybody else."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.stopping import stop

from boundloop.eventstore import socket_server, sqlite_file, sqlite_thread
from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.owned import OwnedSqliteStore, lock_path
from boundloop.eventstore.owner import OwnerText, _may_hold, live_owner, take
from boundloop.eventstore.peer import PeerStore
from boundloop.eventstore.port import RunFilter
from boundloop.eventstore.process_identity import ProcessIdentity, is_same_process, start_of, this_process
from boundloop.eventstore.socket_client import SocketStore
from boundloop.eventstore.socket_protocol import FRAME_BYTES_MAX, socket_address, socket_name
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import DiskFull, OwnedError, StoreError, StoreUrlError

from .log_writer import LogWriter
from .one_commit import hold_up

PATIENCE_S = 60
ROOT = Path(__file__).parents[2]

OWNER = """
import asyncio, json, os, sys
from boundloop.eventstore.location import open_store
from boundloop.runtime.errors import OwnedError

async def main():
    print("waiting", flush=True)
    sys.stdin.readline()
    try:
        store = await open_store(sys.argv[1])
    except OwnedError as error:
        print(json.dumps({"owned_by": error.pid, "host": error.host}), flush=True)
        return
    print(json.dumps({"owner": os.getpid()}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await store.close()

asyncio.run(main())
"""


@contextmanager
def program(text: str, *args: str) -> Generator[subprocess.Popen[str], None, None]:
    """A Python program with pipes, ended with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", text, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    return json.loads(line) if line.startswith("{") else line


@contextmanager
def owner_of(url: str) -> Generator[subprocess.Popen[str], None, None]:
    """Another process that owns this store."""
    with program(OWNER, url) as process:
        assert hear(process) == "waiting"
        say(process)
        assert hear(process) == {"owner": process.pid}
        yield process


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'runs.db'}"


# --- the lock --------------------------------------------------------------------------------------------------------


def test_of_eight_processes_that_open_a_new_file_one_owns_it(tmp_path: Path) -> None:
    url = url_in(tmp_path)
    processes = [
        subprocess.Popen([sys.executable, "-c", OWNER, url], stdin=-1, stdout=-1, text=True) for _ in range(8)
    ]
    try:
        assert [hear(process) for process in processes] == ["waiting"] * 8
        for process in processes:
            say(process)
        answers = [hear(process) for process in processes]
        owners = [answer["owner"] for answer in answers if "owner" in answer]
        assert len(owners) == 1
        refusals = [answer for answer in answers if "owner" not in answer]
        assert refusals == [{"owned_by": owners[0], "host": socket.gethostname()}] * 7
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.asyncio
async def test_a_stopped_owner_is_named_and_can_be_taken_over_from(tmp_path: Path) -> None:
    url = url_in(tmp_path)
    with owner_of(url) as process:
        peer = await connect_store(url)
        await LogWriter(peer, "r1").write("acknowledged")
        await peer.close()
        stop(process.pid)
        for attempt in (open_store(url), connect_store(url)):
            with pytest.raises(OwnedError) as caught:
                await attempt
            assert (caught.value.pid, caught.value.host) == (process.pid, socket.gethostname())
        store = await open_store(url, take_over=True)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
        assert len(await store.read("r1")) == 1
        await store.close()


def test_taking_over_never_kills_a_reused_pid(tmp_path: Path) -> None:
    """The lock is held, and its text names a process that lives but is another one than wrote it."""
    path = str(tmp_path / "runs.db.lock")
    with program("input()") as victim:
        began = start_of(victim.pid)
        assert began is not None
        wrong = ProcessIdentity(
            pid=victim.pid, pid_start=began - 1, boot_id=this_process().boot_id, host=socket.gethostname()
        )
        lock = take(path)
        text = OwnerText(process=wrong, token="t")
        Path(path).write_bytes(msgspec.json.encode(text))
        with pytest.raises(OwnedError) as caught:
            take(path, take_over=True)
        assert caught.value.pid == victim.pid
        assert victim.poll() is None
        lock.release()


HOLDER = """
import sys
from boundloop.eventstore.owner import take
lock = take(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
{give_up}
print("given up", flush=True)
sys.stdin.readline()
"""

FLOCK_ONLY = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


def given_up(path: str, how: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return program(HOLDER.format(give_up=how), path)


@pytest.mark.parametrize(
    ("how", "probes"),
    [("lock.release()", 0), ("lock.release()", 1), ("lock.forget_in_child()", 1)],
    ids=["released", "released and probed", "text left and probed"],
)
def test_who_gave_the_lock_up_is_neither_named_nor_killed(tmp_path: Path, how: str, probes: int) -> None:
    """Its process lives, and another that has written no text holds the lock, as a probe or a new owner does for a
    moment. A text that is left must have been cleared by whoever looked in between."""
    path = str(tmp_path / "runs.db.lock")
    with given_up(path, how) as innocent:
        assert hear(innocent) == "held"
        say(innocent)
        assert hear(innocent) == "given up"
        for _ in range(probes):
            assert live_owner(path) is None
        with program(FLOCK_ONLY, path) as holder:
            assert hear(holder) == "held"
            for take_over in (False, True):
                with pytest.raises(OwnedError) as caught:
                    take(path, take_over=take_over)
                assert caught.value.pid != innocent.pid
            assert (innocent.poll(), holder.poll()) == (None, None)


def test_a_new_owners_text_is_the_only_one(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db.lock")
    Path(path).write_text("x" * 4_000)
    lock = take(path)
    assert json.loads(Path(path).read_text())["process"]["pid"] == os.getpid()
    lock.release()


def test_where_the_kernel_names_the_holder_no_other_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db.lock"
    path.write_text("")
    locks = tmp_path / "locks"
    with path.open() as file:
        row = f"1: FLOCK  ADVISORY  WRITE 4711 08:01:{path.stat().st_ino} 0 EOF\n"
        for text, pid, may in ((row, 4711, True), (row, 4712, False), ("", 4712, True)):
            locks.write_text(text)
            assert _may_hold(file.fileno(), pid, str(locks)) is may
        assert _may_hold(file.fileno(), 1, str(tmp_path / "none"))


def test_a_process_with_pid_1_can_be_named_but_is_never_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the application is pid 1."""
    first = ProcessIdentity(
        pid=1, pid_start=start_of(1) or 1, boot_id=this_process().boot_id, host=socket.gethostname()
    )
    path = str(tmp_path / "runs.db.lock")
    lock = take(path)
    Path(path).write_bytes(msgspec.json.encode(OwnerText(process=first, token="t")))
    killed: list[int] = []

    def kill(handle: int, number: int) -> None:
        killed.append(handle)

    monkeypatch.setattr(signal, "pidfd_send_signal", kill)
    with pytest.raises(OwnedError) as caught:
        take(path, take_over=True)
    assert (caught.value.pid, killed) == (1, [])
    lock.release()


def test_on_a_full_disk_only_an_owner_for_one_command_goes_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "runs.db.lock")

    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFull):
        take(path)
    lock = take(path, brief=True)
    monkeypatch.undo()
    with pytest.raises(OwnedError):
        take(path, brief=True)
    lock.release()
    assert live_owner(path) is None


def test_an_owner_for_one_command_is_waited_for_by_who_comes_to_stay(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db.lock")
    with program(
        HOLDER.format(give_up="lock.release()").replace("argv[1])", "argv[1], brief=True)"), path
    ) as brief:
        assert hear(brief) == "held"
        with pytest.raises(OwnedError) as caught:
            take(path, brief=True)
        assert caught.value.pid == brief.pid
        with ThreadPoolExecutor(1) as pool:
            staying = pool.submit(take, path)
            say(brief)
            assert hear(brief) == "given up"
            staying.result(PATIENCE_S).release()


@pytest.mark.asyncio
async def test_a_removed_lock_file_gives_no_second_owner(tmp_path: Path) -> None:
    with owner_of(url_in(tmp_path)) as process:
        (tmp_path / "runs.db.lock").unlink()
        with pytest.raises(StoreError) as caught:
            await open_store(url_in(tmp_path))
        assert caught.value.code == "file_locked"
        assert process.poll() is None


@pytest.mark.parametrize("change", [{"boot_id": "other"}, {"host": "other"}, {"pid_start": 0}, {"pid": 1}])
def test_a_process_is_only_the_same_with_full_proof(change: dict[str, Any]) -> None:
    me = this_process()
    assert is_same_process(me)
    known = {name: getattr(me, name) for name in me.__struct_fields__} | change
    assert not is_same_process(ProcessIdentity(**known))


@pytest.mark.asyncio
async def test_the_same_process_is_refused_and_never_kills_itself(tmp_path: Path) -> None:
    store = await open_store(url_in(tmp_path))
    for take_over in (False, True):
        with pytest.raises(OwnedError) as caught:
            await open_store(url_in(tmp_path), take_over=take_over)
        assert caught.value.pid == os.getpid()
    await store.close()


@pytest.mark.asyncio
async def test_two_names_of_one_file_have_one_lock(tmp_path: Path) -> None:
    store = await open_store(url_in(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.db").symlink_to(tmp_path / "runs.db")
    with pytest.raises(OwnedError):
        await open_store(url_in(tmp_path / "other").replace("runs.db", "link.db"))
    await store.close()


@pytest.mark.asyncio
async def test_the_lock_file_outlives_its_owner_and_its_text_binds_nobody(tmp_path: Path) -> None:
    path = lock_path(str(tmp_path / "runs.db"))
    store = await open_store(url_in(tmp_path))
    owner = live_owner(path)
    assert owner is not None
    assert owner.process == this_process()
    await store.close()
    assert (tmp_path / "runs.db.lock").stat().st_size == 0
    assert live_owner(path) is None
    await (await open_store(url_in(tmp_path))).close()


FORK = """
import os, sys
from boundloop.eventstore.owner import take
lock = take(sys.argv[1])
child = os.fork()
if child == 0:
    os.read(0, 1)
    os._exit(0)
print("forked", flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db.lock")
    with program(FORK, path) as process:
        assert hear(process) == "forked"
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
        take(path).release()
        say(process)


FORK_WITH_A_STORE = """
import asyncio, gc, os, signal, sys
from boundloop.eventstore.location import connect_store, open_store
from boundloop.runtime.errors import StoreError
from tests.contract.log_writer import LogWriter

async def in_child(store, log):
    for call in (log.append("by the child"), store.read("r1"), store.close()):
        try:
            await call
            print("done", flush=True)
        except StoreError as error:
            print(error.code, flush=True)

async def begin():
    store = await open_store(sys.argv[1])
    log = LogWriter(store, "r1")
    await log.write("one")
    return store, log

async def go_on(store, log):
    await log.write("two")
    await (await connect_store(sys.argv[1])).close()
    print("written", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

loop = asyncio.new_event_loop()
store, log = loop.run_until_complete(begin())
child = os.fork()
if child:
    os.waitpid(child, 0)
    loop.run_until_complete(go_on(store, log))
asyncio.new_event_loop().run_until_complete(in_child(store, log))
del store, log, loop
gc.collect()
"""


@pytest.mark.asyncio
async def test_a_forked_child_cannot_touch_its_parents_store(tmp_path: Path) -> None:
    """It is told so, ends as programs do, with everything collected, and WAL and socket are still the parent's."""
    with program(FORK_WITH_A_STORE, url_in(tmp_path)) as process:
        heard = [hear(process) for _ in range(4)]
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert heard == ["store_closed", "store_closed", "store_closed", "written"]
    store = await open_store(url_in(tmp_path))
    assert [row.first_seq for row in await store.read("r1")] == [1, 2]
    assert (await verify_store(store)).ok
    await store.close()


def test_a_lock_path_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "runs.db.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError) as caught:
        take(str(tmp_path / "runs.db.lock"))
    assert caught.value.code == "lock_unusable"
    assert (tmp_path / "precious").read_text() == "kept"


FORGETFUL = """
import asyncio, sys
from boundloop.eventstore.location import open_store
from tests.contract.log_writer import LogWriter

async def main():
    store = await open_store(sys.argv[1])
    await LogWriter(store, "r1").write("acknowledged")

asyncio.run(main())
"""


@pytest.mark.asyncio
async def test_a_program_that_forgets_to_close_ends_and_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(  # noqa: ASYNC221  nothing else runs here
        [sys.executable, "-c", FORGETFUL, url_in(tmp_path)],
        timeout=PATIENCE_S,
        check=False,
        capture_output=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    store = await open_store(url_in(tmp_path))
    assert len(await store.read("r1")) == 1
    await store.close()


@pytest.mark.asyncio
async def test_a_failed_opening_gives_the_lock_back(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_bytes(b"no database at all")
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            await open_store(url_in(tmp_path))
        assert caught.value.code == "damaged_file"
    assert live_owner(lock_path(str(tmp_path / "runs.db"))) is None


@pytest.mark.asyncio
async def test_an_opening_that_is_cancelled_gives_the_lock_back(tmp_path: Path) -> None:
    opening = asyncio.ensure_future(open_store(url_in(tmp_path)))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    while True:  # the thread that was taking the lock gives it back when it has it
        try:
            store = await open_store(url_in(tmp_path))
            break
        except OwnedError:
            continue
    await store.close()


def unlocked(folder: Path) -> bool:
    return live_owner(lock_path(str(folder / "runs.db"))) is None


@pytest.mark.asyncio
async def test_a_cancelled_close_keeps_the_lock_until_the_thread_is_done(tmp_path: Path) -> None:
    store = await OwnedSqliteStore.open_owned(str(tmp_path / "runs.db"))
    go_on = threading.Event()
    await hold_up(store, go_on, writes=True)
    closing = asyncio.ensure_future(store.close())
    while (tmp_path / "runs.db.sock").exists():  # noqa: ASYNC110  the first thing that closing does
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not unlocked(tmp_path)
    go_on.set()
    await store.close()
    assert unlocked(tmp_path)


@pytest.mark.asyncio
async def test_a_store_with_all_the_jobs_that_may_wait_closes_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_thread, "WAITING_JOBS_MAX", 3)
    store = await OwnedSqliteStore.open_owned(str(tmp_path / "runs.db"))
    go_on = threading.Event()
    await hold_up(store, go_on, writes=True)
    waiting = [asyncio.ensure_future(store.runs(RunFilter())) for _ in range(4)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    go_on.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(answer, "code", "") for answer in answers] == ["", "", "", "store_overloaded"]
    await closing
    assert unlocked(tmp_path)
    store._thread._thread.join(PATIENCE_S)
    assert not store._thread._thread.is_alive()


@pytest.mark.asyncio
async def test_an_opening_that_is_cancelled_keeps_the_lock_until_the_thread_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    connect = sqlite_file.connect

    def slow_connect(path: str) -> sqlite3.Connection:
        begun.set()
        go_on.wait(PATIENCE_S)
        return connect(path)

    monkeypatch.setattr(sqlite_file, "connect", slow_connect)
    opening = asyncio.ensure_future(open_store(url_in(tmp_path)))
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    opening.cancel()
    await asyncio.sleep(0)
    assert not unlocked(tmp_path)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert unlocked(tmp_path)


# --- the socket ------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_socket_is_the_owners_alone_and_goes_with_it(tmp_path: Path) -> None:
    store = await open_store(url_in(tmp_path))
    path = tmp_path / "runs.db.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await store.close()
    assert not path.exists()


@pytest.mark.asyncio
async def test_a_dead_owners_socket_is_replaced_and_a_file_in_its_place_is_not(tmp_path: Path) -> None:
    with owner_of(url_in(tmp_path)) as process:
        process.kill()
        process.wait(PATIENCE_S)
    assert (tmp_path / "runs.db.sock").is_socket()
    await (await open_store(url_in(tmp_path))).close()
    (tmp_path / "runs.db.sock").write_text("mine")
    with pytest.raises(StoreError) as caught:
        await open_store(url_in(tmp_path))
    assert caught.value.code == "socket_unusable"
    assert (tmp_path / "runs.db.sock").read_text() == "mine"
    assert live_owner(lock_path(str(tmp_path / "runs.db"))) is None


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["runs.db", "n" * 200 + ".db"])
async def test_a_path_too_long_for_a_socket_address_is_served(tmp_path: Path, name: str) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    url = f"sqlite:///{folder / name}"
    owner = await open_store(url)
    peer = await connect_store(url)
    assert isinstance(peer, PeerStore)
    assert not peer.owns
    await LogWriter(peer, "r1").write("one")
    assert len(await owner.read("r1")) == 1
    await peer.close()
    await owner.close()


@pytest.mark.asyncio
async def test_without_an_owner_a_command_owns_the_file_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(StoreUrlError) as caught:
        await connect_store(url_in(tmp_path), must_exist=True)
    assert caught.value.message == "there is no such file"
    store = await connect_store(url_in(tmp_path))
    assert isinstance(store, PeerStore)
    assert store.owns
    await store.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        (3).to_bytes(4, "big") + b"\xc1\xc1\xc1",
        (5).to_bytes(4, "big") + b"\x93\x01",
        (200_009).to_bytes(4, "big") + b"\x93\x01\xa3run\x91" + b"\x91" * 200_000 + b"\xc0\xc0",
    ],
    ids=["text", "oversized", "no msgpack", "cut short", "deep"],
)
async def test_a_broken_frame_ends_its_connection_only(tmp_path: Path, sent: bytes) -> None:
    owner = await open_store(url_in(tmp_path))
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "runs.db.sock"))
    writer.write(sent)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()
    peer = await connect_store(url_in(tmp_path))
    await LogWriter(peer, "r1").write("one")
    await peer.close()
    await owner.close()


@pytest.mark.asyncio
async def test_connections_are_bounded_and_the_surplus_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "CONNECTIONS_MAX", 2)
    owner = await open_store(url_in(tmp_path))
    peers = [await connect_store(url_in(tmp_path)) for _ in range(2)]
    with pytest.raises(StoreError) as caught:
        await connect_store(url_in(tmp_path))
    assert caught.value.code == "too_many_connections"
    for peer in peers:
        assert await peer.hosts() == []
        await peer.close()
    await owner.close()


async def socket_of(folder: Path) -> SocketStore:
    """A connection that ends with its owner."""
    path = str(folder / "runs.db")
    owner = live_owner(lock_path(path))
    assert owner is not None
    return await SocketStore.connect(path, owner)


@pytest.mark.asyncio
async def test_when_the_owner_dies_open_calls_are_told_so(tmp_path: Path) -> None:
    with owner_of(url_in(tmp_path)) as process:
        peer = await socket_of(tmp_path)
        stop(process.pid)
        pending = asyncio.ensure_future(peer.hosts())
        await asyncio.sleep(0)
        process.kill()
        for call in (pending, peer.hosts()):
            with pytest.raises(StoreError) as caught:
                await call
            assert caught.value.code == "owner_gone"
        await peer.close()


@pytest.mark.asyncio
async def test_closing_the_owner_does_not_wait_for_a_handler_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "DRAIN_WAIT_MS", 20)
    begun = asyncio.Event()

    async def never(run_id: str, command_id: str, command: bytes) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        return b""

    owner = await open_store(url_in(tmp_path), on_submit=never)
    peer = await socket_of(tmp_path)
    pending = asyncio.ensure_future(peer.submit("r1", "k1", b"x"))
    await begun.wait()
    await asyncio.wait_for(owner.close(), PATIENCE_S)
    with pytest.raises(StoreError) as caught:
        await pending
    assert caught.value.code == "owner_gone"
    await peer.close()


@pytest.mark.asyncio
async def test_a_closing_owner_answers_what_it_has_received(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(run_id: str, command_id: str, command: bytes) -> bytes:
        begun.set()
        await go_on.wait()
        return b"done"

    owner = await open_store(url_in(tmp_path), on_submit=slow)
    peer = await socket_of(tmp_path)
    pending = asyncio.ensure_future(peer.submit("r1", "k1", b"x"))
    await begun.wait()
    closing = asyncio.ensure_future(owner.close())
    while (tmp_path / "runs.db.sock").exists():  # noqa: ASYNC110  the first thing that closing does
        await asyncio.sleep(0)
    go_on.set()
    assert await pending == b"done"
    await closing
    await peer.close()


@pytest.mark.asyncio
async def test_a_peer_whose_owner_closed_owns_the_file_itself_and_repeats_the_call(tmp_path: Path) -> None:
    async def decide(run_id: str, command_id: str, command: bytes) -> bytes:
        return b"decided here"

    owner = await open_store(url_in(tmp_path))
    peers = [await connect_store(url_in(tmp_path), on_submit=decide) for _ in range(2)]
    await LogWriter(peers[0], "r1").write("one")
    await owner.close()
    for peer in peers:
        assert len(await peer.read("r1")) == 1
        assert await peer.submit("r1", "k1", b"x") == b"decided here"
    assert [isinstance(peer, PeerStore) and peer.owns for peer in peers] == [True, False]
    for peer in reversed(peers):
        await peer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sent", [b"", b"\x00\x00", (9).to_bytes(4, "big") + b"\x93"], ids=["nothing", "half a size", "half"]
)
async def test_a_connection_that_says_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(socket_server, "FIRST_FRAME_WAIT_MS", 20)
    monkeypatch.setattr(socket_server, "FRAME_WAIT_MS", 20)
    owner = await open_store(url_in(tmp_path))
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "runs.db.sock"))
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()
    await owner.close()


@pytest.mark.asyncio
async def test_an_idle_peer_is_hung_up_on_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "IDLE_WAIT_MS", 20)
    go_on = asyncio.Event()

    async def slow(run_id: str, command_id: str, command: bytes) -> bytes:
        await go_on.wait()
        return b"done"

    owner = await open_store(url_in(tmp_path), on_submit=slow)
    peer = await connect_store(url_in(tmp_path))
    assert isinstance(peer, PeerStore)
    waits = asyncio.ensure_future(peer.submit("r1", "k1", b"x"))
    first = peer.inner
    assert isinstance(first, SocketStore)
    while not first._waiting:  # noqa: ASYNC110  until it was sent
        await asyncio.sleep(0)
    bystander = await socket_of(tmp_path)
    await bystander._listening  # hung up on, while the other waits for its answer
    assert first._gone is None
    go_on.set()
    assert await waits == b"done"
    await first._listening
    assert await peer.hosts() == []
    await bystander.close()
    await peer.close()
    await owner.close()


@pytest.mark.asyncio
async def test_large_frames_in_the_making_are_bounded_over_all_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "HEAVY_FRAMES_MAX", 1)
    owner = await OwnedSqliteStore.open_owned(str(tmp_path / "runs.db"))
    assert owner._server is not None
    _, writer = await asyncio.open_unix_connection(str(tmp_path / "runs.db.sock"))
    writer.write((1_000_000).to_bytes(4, "big") + bytes(1_000))
    while not owner._server._heavy.locked():  # noqa: ASYNC110  until the server has begun to receive it
        await asyncio.sleep(0)
    peer = await socket_of(tmp_path)
    large = asyncio.ensure_future(peer.put_blob(bytes(1_000_000)))
    while not owner._server._heavy._waiters:  # noqa: ASYNC110  until the second one waits
        await asyncio.sleep(0)
    other = await socket_of(tmp_path)
    assert await other.hosts() == []  # who asks for little isn't held up
    assert not large.done()
    writer.close()
    await large
    await peer.close()
    await other.close()
    await owner.close()


@pytest.mark.asyncio
async def test_a_peer_gets_no_more_rows_than_one_answer_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "ROWS_MAX", 2)
    owner = await open_store(url_in(tmp_path))
    for number in range(3):
        await LogWriter(owner, f"r{number}").write("one", release=True, ready=True)
    peer = await socket_of(tmp_path)
    assert len(await peer.ready_runs(2**40)) == 2
    assert len(await peer.runs(RunFilter(limit=100))) == 2
    assert await peer.ready_runs(-1) == []
    await peer.close()
    await owner.close()


@pytest.mark.asyncio
async def test_reading_works_while_the_applications_loop_is_blocked(tmp_path: Path) -> None:
    """The owner's loop stands still until another process has read through the socket."""
    url = url_in(tmp_path)
    owner = await open_store(url)
    await LogWriter(owner, "r1").write("one")
    script = (
        "import asyncio, sys\n"
        "from boundloop.eventstore.location import connect_store\n"
        "async def main():\n"
        "    store = await connect_store(sys.argv[1])\n"
        "    print(len(await store.read('r1')))\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(  # noqa: ASYNC221  blocking the loop is the point
        [sys.executable, "-c", script, url], timeout=PATIENCE_S, check=True, capture_output=True, text=True
    )
    assert done.stdout == "1\n"
    await owner.close()


def test_socket_names_and_addresses_fit(tmp_path: Path) -> None:
    assert socket_name("/a/runs.db") == "runs.db.sock"
    assert len(socket_name("/a/" + "x" * 255)) < 64
    assert socket_name("/a/" + "x" * 255) != socket_name("/a/" + "x" * 254)
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    with socket_address(str(folder), "s") as address:
        assert len(address) < 108
        assert os.path.dirname(os.path.realpath(address)) == str(folder)
