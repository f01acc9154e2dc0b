"""A PostgreSQL server that is away while somebody reads a run as it goes: a stream, a follower, ``boundloop run``.

They go on where they were once the server is back, with the next host if theirs had to stop meanwhile, and say nothing twice.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from tests.attach_play import half_of, on_loop
from tests.command_line import CommandLine
from tests.postgres_server import Server, running
from tests.ray.process_table import eventually

from boundloop.actors import following, owner_row, owners
from boundloop.actors.application import Application
from boundloop.actors.client import Runtime
from boundloop.actors.streaming import Committed, FollowItem
from boundloop.adapters.port import AttemptReset, ProgressSink, TextDelta
from boundloop.adapters.script import say
from boundloop.adapters.scripted import Gate, ScriptedModel
from boundloop.eventstore import postgres_writer
from boundloop.runtime import events as e
from boundloop.runtime.errors import BoundloopError, HistoryRefused, StoreError
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.model import ModelInput, ModelTurn

WITHIN_S: Final = 30.0
FREE: Final = Limits(cost=WAIVED)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that stops after half a second without its row, and calls that look for the server for a tenth of one."""
    monkeypatch.setattr(owner_row, "RENEW_S", 0.1)
    monkeypatch.setattr(owner_row, "SELF_STOP_S", 0.5)
    monkeypatch.setattr(owner_row, "RENEW_TRY_LEAST_S", 0.1)
    monkeypatch.setattr(postgres_writer, "REACH_S", 0.1)
    monkeypatch.setattr(owners, "MOVE_S", WITHIN_S)
    monkeypatch.setattr(owners, "MOVE_PAUSE_S", 0.05)
    monkeypatch.setattr(following, "LOOK_S", 0.05)


class Writer(ScriptedModel):
    """Shows half of its answer, and stands at a gate before the rest."""

    def __init__(self) -> None:
        super().__init__([say("Half of an answer.")])
        self.go_on = Gate("go on")

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        assert progress is not None
        progress(TextDelta(request.turn, request.attempt, 0, "Half of "))
        await self.go_on.passed()
        progress(TextDelta(request.turn, request.attempt, 8, "an answer."))
        return await super().request(request, timeout_ms=timeout_ms)


@pytest.fixture
def runtime(server: Server) -> Iterator[Runtime]:
    with Runtime(store=server.url(), model=Writer()) as made:
        yield made


WRITERS: list[Writer] = []


def writes() -> Application:
    """For ``boundloop run``."""
    WRITERS.append(Writer())
    return Application(model=WRITERS[-1], limits=FREE, input="go")


def open_gate(runtime: Runtime) -> None:
    model: Any = runtime.adapter
    model.go_on.open()


class Reader:
    """Reads on a thread of its own."""

    def __init__(self, items: Iterator[FollowItem]) -> None:
        self.items: list[FollowItem] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(items,))
        self._thread.start()

    def _read(self, items: Iterator[FollowItem]) -> None:
        try:
            for item in items:
                self.items.append(item)
        except BoundloopError as error:
            self.error = error

    def until(self, kind: type[Any]) -> None:
        def is_there() -> bool:
            return any(
                isinstance(item, kind) or isinstance(getattr(item, "event", None), kind)
                for item in tuple(self.items)
            )

        assert eventually(is_there, WITHIN_S)

    def all(self) -> list[FollowItem]:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.items


def meets_the_outage(runtime: Runtime, times: int = 3) -> Callable[[], None]:
    """What waits until reads of a run's row or log have been told so often that the server is away."""
    store: Any = half_of(runtime)._owners._use._store
    met = threading.Semaphore(0)

    def heard(read: Callable[..., Any]) -> Callable[..., Any]:
        async def reading(*asked: Any, **options: Any) -> Any:
            try:
                return await read(*asked, **options)
            except StoreError as error:
                if error.code == "store_unreachable":
                    met.release()
                raise

        return reading

    store.run, store.read = heard(store.run), heard(store.read)

    def wait() -> None:
        for _ in range(times):
            assert met.acquire(timeout=WITHIN_S)

    return wait


def until_lost(runtime: Runtime) -> None:
    serving: Any = half_of(runtime).serving
    assert eventually(lambda: serving.failed is not None, WITHIN_S)


def in_the_log(runtime: Runtime) -> list[int]:
    return list(range(1, runtime.state("r1").seq + 1))


def seqs(items: list[FollowItem]) -> list[int]:
    return [item.seq for item in items if isinstance(item, Committed)]


@pytest.mark.parametrize("reads", ["stream", "follow"])
def test_a_reader_goes_on_with_the_next_host_and_reads_each_event_once(
    server: Server, runtime: Runtime, reads: str
) -> None:
    runtime.start("go", limits=FREE, run_id="r1")
    reader = Reader(getattr(runtime, reads)("r1"))
    reader.until(e.ModelRequested)
    told = meets_the_outage(runtime, 1)
    old: Any = half_of(runtime).serving
    server.kill()
    told()
    until_lost(runtime)
    server.start()
    assert eventually(lambda: half_of(runtime).serving is not old, WITHIN_S)
    open_gate(runtime)
    items = reader.all()
    assert seqs(items) == in_the_log(runtime)
    last = items[-1]
    assert isinstance(last, Committed)
    assert isinstance(last.event, e.RunTerminated)


@pytest.mark.parametrize("reads", ["stream", "follow"])
def test_a_reader_waits_for_a_server_that_is_back_before_its_host_has_to_stop(
    server: Server, runtime: Runtime, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_row, "SELF_STOP_S", WITHIN_S)
    runtime.start("go", limits=FREE, run_id="r1")
    reader = Reader(getattr(runtime, reads)("r1"))
    reader.until(e.ModelRequested)
    told = meets_the_outage(runtime)
    old: Any = half_of(runtime).serving
    server.kill()
    told()
    server.start()
    open_gate(runtime)
    assert seqs(reader.all()) == in_the_log(runtime)
    assert half_of(runtime).serving is old


def test_a_follower_is_told_what_is_void_and_gets_the_next_attempts_text_without_a_gap(
    server: Server, runtime: Runtime
) -> None:
    runtime.start("go", limits=FREE, run_id="r1")
    reader = Reader(runtime.follow("r1"))
    reader.until(TextDelta)
    told = meets_the_outage(runtime, 1)
    server.kill()
    told()
    until_lost(runtime)
    server.start()
    reader.until(AttemptReset)
    open_gate(runtime)
    items = reader.all()
    kinds = {type(item) for item in items}
    assert kinds == {Committed, TextDelta, AttemptReset}, "no other process has the run"
    resets = [place for place, item in enumerate(items) if isinstance(item, AttemptReset)]
    assert len(resets) == 1
    void = items[resets[0] + 1]
    assert isinstance(void, Committed)
    assert isinstance(void.event, e.ModelFailed)
    texts: dict[int, str] = {}
    for item in items:
        if isinstance(item, TextDelta):
            assert item.offset == len(texts.setdefault(item.attempt, ""))
            texts[item.attempt] += item.text
    assert texts[1] == "Half of "
    assert "Half of an answer.".startswith(texts[2])
    assert seqs(items) == in_the_log(runtime)


def moved_on(server: Server, runtime: Runtime) -> tuple[Any, Any]:
    """The host that had to stop, and the next one, which has the run."""
    old: Any = half_of(runtime).serving
    server.kill()
    until_lost(runtime)
    server.start()
    assert eventually(lambda: half_of(runtime).serving is not old, WITHIN_S)
    assert eventually(lambda: half_of(runtime).serving.hosted("r1") is not None, WITHIN_S)
    return old, half_of(runtime).serving


def test_a_host_that_stopped_while_it_looked_takes_the_next_one_for_no_other_process(
    server: Server, runtime: Runtime
) -> None:
    runtime.start("go", limits=FREE, run_id="r1")
    old, new = moved_on(server, runtime)
    assert on_loop(runtime, new._hosted_elsewhere("r1")) == ""
    with pytest.raises(StoreError, match="host_lost"):
        on_loop(runtime, old._hosted_elsewhere("r1"))


def test_a_call_that_hears_late_of_a_lost_host_ends_not_the_next_one(
    server: Server, runtime: Runtime
) -> None:
    runtime.start("go", limits=FREE, run_id="r1")
    old, new = moved_on(server, runtime)
    mine, asked = half_of(runtime)._owners, list[Any]()

    async def late(serving: Any) -> None:
        asked.append(serving)
        if serving is old:
            mine._serving = new
            raise old.failed

    async def ask() -> None:
        mine._serving = old
        before = mine._mover
        await mine.ask(late)
        assert mine._mover is before, "nobody looks for another one"

    on_loop(runtime, ask())
    assert asked == [old, new]
    assert half_of(runtime).serving is new


@pytest.mark.parametrize("reads", ["stream", "follow"])
def test_a_reader_is_told_of_a_server_that_stays_away(
    server: Server, runtime: Runtime, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "MOVE_S", 0.5)
    runtime.start("go", limits=FREE, run_id="r1")
    reader = Reader(getattr(runtime, reads)("r1"))
    reader.until(e.ModelRequested)
    server.kill()
    with pytest.raises(StoreError, match="store_unreachable"):
        reader.all()
    server.start()


@pytest.mark.parametrize("reads", ["stream", "follow"])
def test_a_reader_is_told_of_a_server_that_comes_back_without_what_it_acknowledged(
    server: Server, runtime: Runtime, reads: str
) -> None:
    runtime.start("go", limits=FREE, run_id="r1")
    reader = Reader(getattr(runtime, reads)("r1"))
    reader.until(e.ModelRequested)
    server.stop()
    before = server.copied()
    server.start()
    runtime.send("r1", "and more", by="ann")
    reader.until(e.MessageReceived)
    server.kill()
    until_lost(runtime)
    server.put_back(before)
    server.start()
    with pytest.raises(HistoryRefused, match="log_regressed"):
        reader.all()


@pytest.mark.parametrize("reads", ["stream", "follow"])
@pytest.mark.parametrize("when", ["its host is there", "its host has stopped"])
def test_closing_ends_a_reader_that_waits_for_the_server(
    server: Server, runtime: Runtime, reads: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if when == "its host is there":
        monkeypatch.setattr(owner_row, "SELF_STOP_S", WITHIN_S)
    runtime.start("go", limits=FREE, run_id="r1")
    reader = Reader(getattr(runtime, reads)("r1"))
    reader.until(e.ModelRequested)
    told = meets_the_outage(runtime, 1)
    server.kill()
    told()
    if when == "its host has stopped":
        until_lost(runtime)
    with contextlib.suppress(StoreError):  # its row stays to expire
        runtime.close()
    with pytest.raises(StoreError, match=r"closed|host_lost"):
        reader.all()
    server.start()


def test_the_command_that_follows_a_run_goes_on(
    server: Server, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed, stream, under_way = list[Runtime](), Runtime.stream, threading.Event()

    def reading(runtime: Runtime, *asked: Any, **options: Any) -> Generator[Committed]:
        streamed.append(runtime)
        for item in stream(runtime, *asked, **options):
            if isinstance(item.event, e.ModelRequested):
                under_way.set()
            yield item

    monkeypatch.setattr(Runtime, "stream", reading)
    with ThreadPoolExecutor(1) as threads:
        command = threads.submit(cli, "run", f"{__name__}:writes", "--store", server.url())
        assert under_way.wait(WITHIN_S)
        told = meets_the_outage(streamed[0], 1)
        server.kill()
        told()
        until_lost(streamed[0])
        server.start()
        WRITERS.pop().go_on.open()
        done = command.result(WITHIN_S)
    assert (done.code, done.err) == (0, "")
    shown = [line.split()[0] for line in done.out.splitlines() if "  +" in line]
    assert shown == [str(seq) for seq in range(1, len(shown) + 1)]
    assert "run_terminated" in done.out
    assert "Half of an answer." in done.out


def test_an_outage_is_logged_once_as_it_begins_and_once_as_it_is_over(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "MOVE_S", 0.1)
    caplog.set_level(logging.INFO, "boundloop")
    url = server.url().replace("postgres@", "postgres:s3cret@")
    with Runtime(store=url, model=Writer()) as runtime:
        first: Any = half_of(runtime).serving
        server.kill()
        until_lost(runtime)
        for _ in range(2):  # a search that ended, and one more
            with pytest.raises(StoreError, match="store_unreachable"):
                runtime.start("go", limits=FREE)
        lost = [record for record in caplog.records if record.name == "boundloop.store"]
        server.start()
        assert eventually(lambda: half_of(runtime).serving is not first, WITHIN_S)
        assert eventually(lambda: len(logged(caplog)) > 1, WITHIN_S)
    assert [record.levelname for record in lost] == ["WARNING"]
    begins, over = logged(caplog)
    shown = url.replace("s3cret", "***")
    assert begins.startswith(f"the store {shown} is lost to this Runtime: ")
    assert "store_unreachable" in begins
    assert over == f"the store {shown} is back: this Runtime's next host serves"
    assert "s3cret" not in caplog.text


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "boundloop.store"]


def test_a_runtime_that_closes_logs_no_loss(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "boundloop")
    with Runtime(store=server.url(), model=Writer()) as runtime:
        runtime.start("go", limits=FREE)
    assert logged(caplog) == []
