"""Each call of a store, cancelled at each place where it waits, and what is there afterwards.

``early``: cancelled as soon as it waits, before what it waits for is done. ``late``: when that is done and the caller has not yet gone
on. ``again``: early, and at each further place where it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

from tests.contract.log_writer import LogWriter, claim
from tests.contract.one_commit import hold_up
from tests.sqlite_faults.trials import FOLDER

from boundloop.eventstore.location import connect_store
from boundloop.eventstore.owned import OwnedSqliteStore
from boundloop.eventstore.port import Acquired, AlreadyDone, Append, Appended, HostRow, RunFilter, Switch
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import OwnedError

Moment = Literal["early", "late", "again"]
MOMENTS: Final[tuple[Moment, ...]] = ("early", "late", "again")
STEPS_MAX: Final = 200
STUCK_S: Final = 30.0
FORBIDDEN: Final = (
    "lost",
    "duplicated",
    "half-committed",
    "took effect after it was read as absent",
    "not free again",
    "does not verify",
)
KEY: Final = sha256(b"key").digest()
LARGE: Final = "x" * 100_000
"""More than the event loop would write itself."""

_HOST: Final = HostRow(host_id="h1", node="n", pid=1, pid_start=1, boot_id="b")
_SWITCH: Final = Switch(scope="tool", target="refund", by="os:ann@desk", reason="", at_ms=1)

Call = Callable[["Site"], Coroutine[Any, Any, object]]


class At:
    """A call that is cancelled where it waits for the ``step``-th time; ``fired`` if it came to that."""

    def __init__(self, call: Coroutine[Any, Any, object], step: int, moment: Moment) -> None:
        self.fired = False
        self._call = call
        self._step = step
        self._moment = moment

    def __await__(self) -> Generator[Any, Any, object]:
        task = asyncio.current_task()
        assert task is not None

        def cancel(done: object) -> None:
            task.cancel()

        inner = self._call.__await__()
        thrown: BaseException | None = None
        steps = 0
        while True:
            try:
                waited = next(inner) if thrown is None else inner.throw(thrown)
            except StopIteration as end:
                return end.value
            steps += 1
            if steps == self._step or (steps > self._step and self._moment == "again"):
                self.fired = True
                if self._moment == "late" and waited is not None:
                    waited.add_done_callback(cancel)
                else:
                    task.cancel()
            thrown = None
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001  handed on to where it belongs
                thrown = error


class Site:
    """A store in a folder of its own, with a run ``r1`` of one append, and what the calls need."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs.db"
        self.store: OwnedSqliteStore
        self.log: LogWriter
        self.request: Append | None = None
        self.go_on = threading.Event()

    async def open(self) -> OwnedSqliteStore:
        return await OwnedSqliteStore.open_owned(str(self.path), on_submit=_echo)

    async def begin(self) -> None:
        self.store = await self.open()
        await self.store.register_host(_HOST)
        self.log = LogWriter(self.store, "r1")
        await self.log.write("one")
        self.log.host_id = "h1"

    async def append(self, text: str) -> object:
        """Behind a job that keeps the thread, so that it has to wait."""
        self.go_on.clear()
        await hold_up(self.store, self.go_on)
        more: dict[str, Any] = {} if text == LARGE else {"blobs": ((KEY, b"key"),)}
        self.request = self.log.request(text, claim=claim(KEY), **more)
        asyncio.get_running_loop().call_later(0, self.go_on.set)
        return await self.store.append(self.request)

    async def connect(self) -> object:
        """As a command does, with an owner there."""
        store = await connect_store(f"sqlite:///{self.path}")
        try:
            return await store.runs(RunFilter())
        finally:
            await store.close()


async def _echo(run_id: str, command_id: str, command: bytes) -> bytes:
    await asyncio.sleep(0)
    return command


CALLS: Final[dict[str, Call]] = {
    "append": lambda site: site.append("two"),
    "append, large": lambda site: site.append(LARGE),
    "read": lambda site: site.store.read("r1"),
    "runs": lambda site: site.store.runs(RunFilter()),
    "put_blob": lambda site: site.store.put_blob(b"blob" * 10_000),
    "acquire": lambda site: site.store.acquire("r1", "h1"),
    "release": lambda site: site.store.release("r1", "h1", 1, ready=True),
    "renew_host": lambda site: site.store.renew_host("h1"),
    "mark_damaged": lambda site: site.store.mark_damaged("r1", "for the look of it"),
    "set_switch": lambda site: site.store.set_switch(_SWITCH, on=True),
    "submit": lambda site: site.store.submit("r1", "c1", b"{}"),
    "close": lambda site: site.store.close(),
    "a command": lambda site: site.connect(),
}
"""All but opening, which comes before there is anything to lose."""


class Cancellations:
    """``trials`` counts cancelled calls by their kind, ``counts`` what became of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.trials: Counter[str] = Counter()

    @property
    def broken(self) -> list[str]:
        return [law for law in FORBIDDEN if self.counts[law]]

    def all_steps(self, name: str, moment: Moment) -> None:
        """One call, cancelled at its first waiting, then at its second, until it is through before that."""
        for step in range(1, STEPS_MAX):
            with tempfile.TemporaryDirectory(prefix="cancelled-", dir=FOLDER) as folder:
                trial = self._opening if name == "open" else self._calling
                if not asyncio.run(trial(Site(Path(folder)), name, step, moment)):
                    return
                self.trials[f"{name}, {moment}"] += 1
        raise AssertionError("it waits without end")

    async def _opening(self, site: Site, name: str, step: int, moment: Moment) -> bool:
        at = At(site.open(), step, moment)
        store = await self._cancelled(at)
        if isinstance(store, OwnedSqliteStore):
            await store.close()
        await self._free_again(site)
        return at.fired

    async def _calling(self, site: Site, name: str, step: int, moment: Moment) -> bool:
        await site.begin()
        at = At(CALLS[name](site), step, moment)
        answer = await self._cancelled(at)
        site.go_on.set()
        if name != "close":
            if site.request is not None:
                await self._settle(site, site.request, answer)
            await self._goes_on(site)
        await site.store.close()
        await self._free_again(site)
        return at.fired

    async def _cancelled(self, at: At) -> object:
        async def call() -> object:
            return await at

        task = asyncio.ensure_future(call())
        done, _ = await asyncio.wait((task,), timeout=STUCK_S)
        assert done, "it doesn't come to an end"
        if task.cancelled():
            self.counts["was cancelled"] += 1
            return None
        self.counts["was through"] += 1
        return task.result()

    async def _settle(self, site: Site, request: Append, answer: object) -> None:
        """Read, then hand in the same append again."""
        store = site.store
        rows = await store.read("r1", after_seq=request.expected_seq)
        run = await store.run("r1")
        held = await store.ledger_row("acme", KEY)
        there = [row.hash for row in rows] == [request.hash]
        blobs = [await store.get_blob(digest) is not None for digest, _ in request.blobs]
        whole = {held is not None, run is not None and run.head == request.hash, *blobs} == {there}
        self.counts["half-committed"] += not whole
        self.counts["duplicated"] += len(rows) > 1
        self.counts["lost"] += isinstance(answer, Appended) and not there
        again = await store.append(request)
        self.counts["took effect after it was read as absent"] += isinstance(again, AlreadyDone) and not there
        self.counts["lost"] += isinstance(again, Appended) and there
        assert isinstance(again, Appended | AlreadyDone)
        site.log.follow(request)
        self.counts["found done" if there else "appended after all"] += 1

    async def _goes_on(self, site: Site) -> None:
        """The store is as good as before."""
        acquired = await site.store.acquire("r1", "h1")
        assert isinstance(acquired, Acquired)
        site.log.epoch = acquired.epoch
        await site.log.write("on")
        self.counts["does not verify"] += not (await verify_store(site.store)).ok

    async def _free_again(self, site: Site) -> None:
        """Neither lock nor connection nor thread is left: somebody else can be the owner, and reads all that there is."""
        until = time.monotonic() + STUCK_S
        while True:
            with contextlib.suppress(OwnedError):
                store = await site.open()
                break
            if time.monotonic() > until:
                self.counts["not free again"] += 1
                return
            await asyncio.sleep(0)
        self.counts["does not verify"] += not (await verify_store(store)).ok
        await store.close()
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("boundloop")]
        for thread in threading.enumerate():
            if thread.name.startswith("boundloop"):
                thread.join(STUCK_S)
                self.counts["not free again"] += thread.is_alive()
        self.counts["threads seen"] += len(left)
