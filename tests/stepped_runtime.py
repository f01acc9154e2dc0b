"""The real Runtime over a memory store, on a loop whose time is set, by a connection to the store that can be cut.

A ``Site`` is one store with its time; ``open`` puts a Runtime on it, one after the other or side by side. ``crash`` ends
one as a killed process ends: nothing more reaches the store and nothing is given back. When the site closes it checks
the law of pairing over all its runs: each proposed call has exactly one bound result, and nothing is asked of a model
before it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from tests.stepped_loop import SteppedLoop

from boundloop.actors.client import Runtime
from boundloop.actors.result import Result
from boundloop.adapters.scripted import Gate, ScriptedModel
from boundloop.eventstore.codec import decode_events
from boundloop.eventstore.history import fold_records, read_records
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import Append, RunFilter
from boundloop.runtime import events as e
from boundloop.runtime.errors import StoreError
from boundloop.runtime.invariants import check_state
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import ModelInput, ResultItem
from boundloop.runtime.prices import FREE
from boundloop.runtime.state import State

START_MS: Final = 1_700_000_000_000
HOST_LAPSES_MS: Final = 11_000
STUCK_S: Final = 30.0
T = TypeVar("T")
AtAppend = Callable[[tuple[e.AnyEvent, ...]], bool]


class CutLine:
    """A host's connection to its store. ``cut_at`` names the append at which it breaks; ``before`` or after that append
    was made. A broken line answers nothing, for ever."""

    def __init__(self, store: Any) -> None:
        self.__dict__["_store"] = store
        self.__dict__["_cut_at"] = None
        self.__dict__["_before"] = True
        self.__dict__["_stalls"] = None
        self.__dict__["_buried"] = False
        self.__dict__["broken"] = threading.Event()

    def cut_at(self, wanted: AtAppend, *, before: bool) -> None:
        self.__dict__["_cut_at"] = wanted
        self.__dict__["_before"] = before

    def stall_at(self, wanted: AtAppend) -> Gate:
        """Hold the first such append back until the gate is opened."""
        gate = Gate("append")
        self.__dict__["_stalls"] = (wanted, gate)
        return gate

    def cut(self) -> None:
        self.__dict__["broken"].set()

    def bury(self) -> None:
        """Refuse what is still asked, so that what is left of a dead host can be tidied away."""
        self.__dict__["_buried"] = True

    async def append(self, request: Append) -> Any:
        cut_at = self.__dict__["_cut_at"]
        if not self.__dict__["broken"].is_set() and cut_at is not None:
            breaks = cut_at(decode_events(request.body))
            if breaks and not self.__dict__["_before"]:
                await self.__dict__["_store"].append(request)
            if breaks:
                self.cut()
        stalls = self.__dict__["_stalls"]
        if stalls is not None and stalls[0](decode_events(request.body)):
            await stalls[1].passed()
        return await self._through("append", request)

    async def _through(self, name: str, *args: Any, **options: Any) -> Any:
        if self.__dict__["_buried"]:
            raise StoreError("gone", "this host is dead")
        if self.__dict__["broken"].is_set():
            await asyncio.get_running_loop().create_future()
        return await getattr(self.__dict__["_store"], name)(*args, **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(
            self.__dict__["_store"], name
        )  # a line has what its store has, and is no store of another kind
        if name in ("now_ms", "switches_known"):
            return found

        async def through(*args: Any, **options: Any) -> Any:
            return await self._through(name, *args, **options)

        return through

    def __setattr__(self, name: str, value: Any) -> None:
        """The listeners that a Runtime leaves on its store. A store has one listener; the newest Runtime is it."""
        setattr(self.__dict__["_store"], name, value)


class Stepped:
    """One Runtime of a site; see ``Runtime`` for the options."""

    def __init__(self, site: Site, model: Any, tools: Iterable[Any], **options: Any) -> None:
        self.site = site
        self.loop = SteppedLoop()
        self.loop.now_ms = site.passed_ms
        self.line = CutLine(site.store)
        self.model: Any = model  # its recorded requests are looked at where it is a scripted one
        self.alive = True
        before, site.loop = site.loop, self.loop
        try:
            store: Any = self.line  # a store in all but its type
            self.rt = Runtime(store=store, model=model, tools=tools, loop=self.loop, **options)
        except BaseException:
            site.loop = before
            self.loop.close()
            raise

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(STUCK_S)

    def start(self, text: str = "go", **options: Any) -> str:
        """Begin a run under generous limits unless they are given."""
        options.setdefault("limits", Limits(cost="1"))
        return self.rt.start(text, **options).run_id

    def settle(self) -> None:
        self.on_loop(self.loop.settle())

    def advance(self, ms: int) -> None:
        self.on_loop(self.loop.advance(ms))

    def rest(self, run_id: str) -> Result:
        """Where the run rests once nothing here can go on without time passing."""
        self.settle()
        return asyncio.run(asyncio.wait_for(self.rt.aio.result(run_id), STUCK_S))

    def run(self, text: str = "go", **options: Any) -> Result:
        return self.rest(self.start(text, **options))

    def state(self, run_id: str) -> State:
        return self.rt.state(run_id)

    def close(self) -> None:
        if self.alive:
            self.alive = False
            self.rt.close()

    def crash(self) -> None:
        """Die as by SIGKILL: the line to the store is cut, then everything in memory goes."""
        self.alive = False
        self.line.cut()
        self.on_loop(_vanish(self.loop))
        self.line.bury()
        with contextlib.suppress(StoreError):
            self.rt.close()


async def _vanish(loop: asyncio.AbstractEventLoop) -> None:
    tasks = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Site:
    """One memory store, its time, and the Runtimes on it."""

    def __init__(self) -> None:
        self.loop: SteppedLoop | None = None
        self.store = MemoryStore(clock=self.now_ms)
        self.hosts: list[Stepped] = []

    @property
    def passed_ms(self) -> int:
        return 0 if self.loop is None else self.loop.now_ms

    def now_ms(self) -> int:
        return START_MS + self.passed_ms

    def open(self, model: Any, tools: Iterable[Any] = (), **options: Any) -> Stepped:
        """A Runtime over a script (an iterable of its entries; free of charge, requests kept), or over a model adapter."""
        adapter = model
        if not hasattr(model, "request"):
            adapter = ScriptedModel(model, price=FREE, record_max=1_000)
        host = Stepped(self, adapter, tools, **options)
        self.hosts.append(host)
        return host

    def after_crash(self, dead: Stepped, tools: Iterable[Any], **options: Any) -> Stepped:
        """The next Runtime, with the same model, once the dead one's hold on its runs has lapsed."""
        assert not dead.alive
        assert self.loop is not None
        self.loop.now_ms += HOST_LAPSES_MS
        return self.open(dead.model, tools, **options)

    def events(self, run_id: str) -> list[e.AnyEvent]:
        return [record.event for record in asyncio.run(read_records(self.store, run_id))]

    def stored(self) -> str:
        """All that the store holds, as one text to search: rows, logs, ledger and blobs."""
        held = vars(self.store)
        runs = [(run.row, run.log) for run in held["_runs"].values()]
        return repr((runs, held["_ledger"], held["_blobs"], held["_hosts"], held["_switches"]))

    def of(self, run_id: str, kind: type[T]) -> list[T]:
        return [event for event in self.events(run_id) if isinstance(event, kind)]

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        asyncio.run(self._check_laws())

    async def _check_laws(self) -> None:
        for row in await self.store.runs(RunFilter(limit=1_000)):
            records = await read_records(self.store, row.run_id)
            check_state(await fold_records(self.store, records))
            check_pairing([record.event for record in records])


def check_pairing(events: Iterable[e.AnyEvent]) -> None:
    """Before each model request and at the end of a run each proposed call has exactly one result."""
    proposed: Counter[str] = Counter()
    bound: Counter[str] = Counter()
    for event in events:
        if isinstance(event, e.CallProposed):
            proposed[event.call] += 1
        elif isinstance(event, e.ResultBound):
            bound[event.call] += 1
        elif isinstance(event, e.ModelRequested | e.RunTerminated):
            assert proposed == bound
            assert set(proposed.values()) <= {1}
    assert set(bound.values()) <= {1}


def by_run(root: Sequence[Any], below: Sequence[Any]) -> list[Any]:
    """A script of two parts, turn by turn: for runs without a system text, and for those of agents that have one."""

    def entry(number: int) -> Any:
        def turn(request: ModelInput) -> Any:
            return (below if request.system else root)[number]

        return turn

    return [entry(number) for number in range(max(len(root), len(below)))]


def results_in(request: ModelInput) -> list[ResultItem]:
    """The results that a request carries, in its order."""
    return [item for item in request.items if isinstance(item, ResultItem)]


def has(kind: type[e.Event], **fields: Any) -> AtAppend:
    """For ``cut_at``: the first append with such an event."""

    def wanted(events: tuple[e.AnyEvent, ...]) -> bool:
        return any(
            isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
            for event in events
        )

    return wanted
