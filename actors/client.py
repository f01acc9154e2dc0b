"""What an application holds: ``Runtime``. Sync methods for scripts, tasks and notebooks; ``rt.aio`` for coroutines.

A Runtime has one event loop on a thread of its own, where the store and the host live, and without Ray all async tools
too. So it works the same in a script and inside a running loop. It owns the SQLite file for as long as it lives, takes up
whatever is ready in it, and serves other shells on the socket beside the file; on Ray it may go through another that does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from decimal import Decimal
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from ..adapters.port import ModelAdapter
from ..eventstore.inbox import Inbox, Kind
from ..eventstore.port import EventStore
from ..runtime.commands import CommandAnswer, OutsideCommand
from ..runtime.errors import DeclarationError, StoreError, StoreUrlError
from ..runtime.policy import Policy
from ..runtime.prices import PriceTable
from ..runtime.question_tool import ask_user
from ..runtime.redaction import Redaction
from ..runtime.state import State
from ..runtime.toolbox import Toolbox
from . import wishes
from .async_client import AsyncRuntime
from .embedded import Embedded, cluster_use
from .fit import Fit
from .loop_thread import LoopThread, closed, own_loop
from .mapping import PARALLEL_DEFAULT, Batch, Mapped, Row
from .model_spec import adapter_from
from .owning import Parts
from .pool_spec import Pool, refuse_bad_pools
from .result import Result
from .run_handle import AnyRun, RunHandle, id_of
from .run_options import Permissions, StartOptions, Tools, checked_text, permissions_from
from .secret_source import Secrets, SecretSource, settings_of
from .serving import Word, given_by_signals
from .stepping import end_of, next_of
from .streaming import Committed, FollowItem
from .waiting import StillRunning, Until
from .watching import ProgressWatcher, Watcher
from .wishes import CommandRefused

__all__ = ["AsyncRuntime", "CommandRefused", "RunHandle", "Runtime", "StillRunning"]

T = TypeVar("T")
CLOSE_TIMEOUT_S: Final = 30.0


class Runtime:
    """Runs bounded agents on one store. ``rt.aio`` (an ``AsyncRuntime``) has the same methods as coroutines.

    ``store``: a URL (``sqlite:///file``, ``memory://``) or an open ``EventStore``. ``model``: a ``ModelAdapter`` or a
    spec string. ``tools``: the application's whole toolbox; a run is offered the subset that it asks for and its
    principal is permitted. ``permissions``: of ``principal``, or a callable ``(tenant, principal) -> permissions`` that
    is asked again before every dispatch of an effect. ``groups``: concurrency limits by group name; a tool of a group or a
    pool that isn't declared is refused. ``questions``: the built-in tool ``ask_user`` is among the tools. ``dependencies``:
    what tools find in ``ctx.dependencies``. ``redact``: what is never stored or shown. ``secrets``: what the references
    ``secret://NAME`` stand for, a mapping or a callable that is asked where the tool runs. ``take_over``: end another owner of the file, after proof that it is the one
    named in the lock. ``clock``: store milliseconds, ``loop``: the event loop that this
    Runtime's thread runs; both for simulation and tests.

    ``ray``: None uses the cluster that this process is attached to, else no Ray; ``"local"`` starts one on this machine and
    ends it with this Runtime; ``"require"`` joins what the process, ``RAY_ADDRESS`` or the machine has; anything else is a
    GCS address, ``HOST:PORT``, where a cluster has to answer within 15 s. On Ray the first Runtime on a file owns it, wherever
    it is (driver, task, actor, notebook), and hosts: a run of ``start`` has one of ``run_actors`` processes to itself while
    it works, ``warm_actors`` of which stand ready (each takes about 90 MB and a third of a second to make); runs of ``map``
    and children share the owner's process, or ``dense_actors`` of their own. A further Runtime on the file goes through
    the owner and takes its place when it is gone. Tools run in executor actors of their ``pools`` and can be killed; without Ray they run in this process and
    can't. ``name`` tells several Runtimes of one cluster apart.

    Raises ``RayUnavailable``, ``StoreUrlError``, ``OwnedError`` (another process owns the file: end it, ask it over its socket, or pass
    ``take_over=True``), ``NewerSchema``, ``DamagedFile``, ``DeclarationError``. On a crash of
    the process nothing acknowledged is lost: the next Runtime on the file goes on with its runs.
    """

    def __init__(
        self,
        *,
        store: str | EventStore,
        model: ModelAdapter | str | None = None,
        tools: Tools = (),
        policy: Policy | None = None,
        prices: PriceTable | None = None,
        tenant: str = "default",
        principal: str = "local",
        permissions: Permissions = frozenset(),
        groups: Mapping[str, int] | None = None,
        dependencies: Mapping[str, Any] | None = None,
        redact: Redaction | None = None,
        secrets: SecretSource | None = None,
        application: str = "",
        take_over: bool = False,
        clock: Callable[[], int] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        ray: str | None = None,
        name: str = "boundloop",
        run_actors: int = 8,
        warm_actors: int = 1,
        dense_actors: int = 0,
        pools: Mapping[str, Pool] | None = None,
        questions: bool = False,
    ) -> None:
        if not isinstance(store, str) and not hasattr(store, "append"):
            raise StoreUrlError(repr(store)[:200], "give a store's URL, or an open EventStore")
        adapter = adapter_from(model) if isinstance(model, str) else model
        if adapter is not None and not hasattr(adapter, "request"):
            raise DeclarationError("model_type", "give a model's spec, or a ModelAdapter", path="model")
        if questions:
            toolbox = Toolbox.with_also(tools, ask_user)
        else:
            toolbox = tools if isinstance(tools, Toolbox) else Toolbox(tools)
        declared: Mapping[str, Pool] = {} if pools is None else pools
        refuse_bad_pools(declared, {} if groups is None else groups, toolbox)
        parts = Parts(
            toolbox=toolbox,
            policy=policy or Policy(),
            adapter=adapter,
            tenant=checked_text(tenant, "tenant"),
            application=checked_text(application, "application"),
            permissions_of=permissions_from(permissions),
            groups=groups or {},
            dependencies=dependencies or {},
            secrets=Secrets.of(settings_of(redact, secrets, toolbox)),
        )
        cluster = cluster_use(
            ray,
            name=checked_text(name, "name"),
            run_actors=run_actors,
            warm=warm_actors,
            dense_actors=dense_actors,
            pools=declared,
        )
        if cluster is not None and isinstance(store, str):
            from .ray_cluster_use import refuse_unfit

            refuse_unfit(parts, declared, store, insisted=ray is not None)
        self._embedded = Embedded(
            parts,
            prices=prices or PriceTable(revision="none"),
            principal=checked_text(principal, "principal"),
            cluster=cluster,
        )
        self._thread = LoopThread(asyncio.new_event_loop() if loop is None else loop)
        self._closed_words: set[Word] = set()
        self.aio = AsyncRuntime(self, self._embedded, self._thread)
        try:
            self._call(self._embedded.open(store, take_over=take_over, clock=clock))
        except BaseException:
            self._thread.stop()
            raise

    @property
    def toolbox(self) -> Toolbox:
        """All tools of the application."""
        return self._embedded.toolbox

    @property
    def adapter(self) -> ModelAdapter | None:
        """The model's adapter; None for a Runtime that only looks and commands."""
        return self._embedded.adapter

    @property
    def application(self) -> str:
        """The application's reference, empty if it has none."""
        return self._embedded.parts.application

    @property
    def fit(self) -> Fit:
        """How runs are held against this application when its host takes them up."""
        parts = self._embedded.parts
        return Fit(parts.application, parts.toolbox, parts.adapter, parts.secrets)

    @property
    def principal(self) -> str:
        """Who acts where a call names nobody."""
        return self._embedded.principal

    @property
    def ray_address(self) -> str:
        """``HOST:PORT`` of the cluster's GCS, by which other processes attach (``ray=``); empty without Ray."""
        return self._embedded.ray_address

    # --- runs --------------------------------------------------------------------------------------------------

    def start(self, input: str, **options: Unpack[StartOptions]) -> RunHandle:
        """Begin a run; returns when ``run_started`` is durable.

        Options, of which ``limits`` is required: ``limits``, ``goal``, ``stages``, ``tools`` (names: the subset this run
        is offered), ``operation_id`` (the business task: two runs with one operation id share their effects), ``run_id``,
        ``agent``, ``system`` (the system text), ``on_stop`` ("suspend" or "end"), ``hosted``, ``input_trust``, ``given``,
        ``principal``, ``tenant``, ``as_of``, ``trace``. ``StartOptions`` has their types and bounds.

        Raises ``MissingLimits``, ``DeclarationError`` (an option of another type or out of bounds, an unknown price
        under a cost limit), ``UnknownTool``, ``ConflictError`` for a run id in use, ``Overloaded``; nothing was written
        then. ``DiskFull`` wrote nothing either; after any other ``StoreError`` the run may exist: look by its
        ``run_id``, if you gave one.
        """
        return RunHandle(self, self._call(self._embedded.start(input, options)))

    def run_sync(self, input: str, **options: Unpack[StartOptions]) -> Result:
        """``start``, then ``result``: blocks until the run rests, as ``result`` says."""
        return self._call(self._embedded.run(input, options))

    def result(self, run_id: AnyRun, timeout_s: float | None = None) -> Result:
        """Block until the run rests: it ended, stopped, or waits for a person, another run (a child, or one that holds the same
        key) or a far timer; ``wait`` waits through these.

        Raises ``StillRunning`` (a ``TimeoutError`` that says where the run is; it goes on), ``RunNotFound``,
        ``ConflictError`` (``other_application``: the run can't go on here, and what it needs), ``StoreError`` if this
        Runtime is closed or lost its store, or the error that made this host give the run up.
        """
        return self._call(self._embedded.result(id_of(run_id), timeout_s, "rest"))

    def wait(self, run_id: AnyRun, timeout_s: float | None = None) -> Result:
        """Block until the run ends or stops; a wait for a person is waited through. Raises as ``result``."""
        return self._call(self._embedded.result(id_of(run_id), timeout_s, "stop"))

    def stream(self, run_id: AnyRun, *, after_seq: int = 0, until: Until = "stop") -> Generator[Committed]:
        """The run's committed events from ``after_seq`` on (0: from its start), each once and in order, as they come.

        Ends when the run ends or stops; with ``until="rest"`` also when it waits for a person or another run. To go on
        later, in this or another process, give the last ``seq`` as ``after_seq``. A slow reader misses nothing. A server that is away
        is waited for as ``wait`` does it. Raises ``RunNotFound``, ``StoreError``.
        """
        reading = self._embedded.stream(id_of(run_id), after_seq, until)
        try:
            while (item := self._call(next_of(reading))) is not None:
                yield item
        finally:
            with contextlib.suppress(StoreError):  # closed: nothing of it is left
                self._call(end_of(reading))

    def follow(self, run_id: AnyRun, *, after_seq: int = 0, until: Until = "stop") -> Generator[FollowItem]:
        """As ``stream``, and between the events what the model writes meanwhile: ``TextDelta``, ``CallPreparing`` (a call by its
        name alone), and ``AttemptReset`` where what was shown of an attempt is void, right before the event that says why. Where a host
        of another process has the run in a shared store, ``HostedElsewhere`` says so once: its events come, and nothing else.

        All of it is provisional, stored nowhere, and given at most twenty times a second. Whoever begins while an attempt is
        out gets its text so far as the first piece; the offsets of an attempt's pieces have no gap and no overlap. A reader that is slow gets
        fewer and larger pieces, or none; the text that counts is in ``model_responded``. Text that nobody has judged yet is held
        back (``Guardrails``), as is all text where something is declared to be redacted. Raises as ``stream``.
        """
        reading = self._embedded.follow(id_of(run_id), after_seq, until)
        try:
            while (item := self._call(next_of(reading))) is not None:
                yield item
        finally:
            with contextlib.suppress(StoreError):  # closed: nothing of it is left
                self._call(end_of(reading))

    def map(
        self,
        inputs: Iterable[str | Row],
        *,
        parallel: int = PARALLEL_DEFAULT,
        **options: Unpack[StartOptions],
    ) -> Generator[Mapped]:
        """One run for each input, at most ``parallel`` (1 to 10,000) at a time, many in one process; the outcomes in
        the order of the inputs.

        An input is a text, or a ``Row`` with options of its own. Nothing that becomes of one row fails the others: what a
        start or a wait raises is the row's ``error``. A run that stops ends (``on_stop="end"`` unless given); one that
        waits for a person is given back as it is, ``waiting``. Raises for options that no row could be started with.
        """
        batch = Batch(self._embedded, parallel, options)
        try:
            for given in inputs:
                self._call(batch.add(given))
                while batch.full or batch.ready:
                    yield self._call(batch.take())
            while batch.left:
                yield self._call(batch.take())
        finally:
            with contextlib.suppress(StoreError):  # closed: nothing of it is left
                self._call(batch.close())

    def state(self, run_id: AnyRun) -> State:
        """The folded state from the log, as committed now. Raises ``RunNotFound``."""
        return self._call(self._embedded.load(id_of(run_id)))

    def token_data(self, run_id: AnyRun, turn: int) -> bytes | None:
        """What the backend said of a turn token by token (ids, log-probabilities, masks), byte for byte as it came; None if it said
        nothing, or it wasn't kept (``model_responded.tokens`` says which). Of an adapter over HTTP it is a JSON object
        (``adapters/token_data.py``). Raises ``RunNotFound``, ``LogDamaged`` for bytes that were altered, ``StoreError``."""
        return self._call(self._embedded.token_data(id_of(run_id), turn))

    # --- commands ----------------------------------------------------------------------------------------------

    def submit(self, run_id: AnyRun, command: OutsideCommand) -> CommandAnswer:
        """Hand in any outside command, idempotent by its command id; a refusal is an answer, not an exception."""
        return self._call(self._embedded.submit(id_of(run_id), command))

    def cancel(self, run_id: AnyRun, *, by: str | None = None) -> int:
        """No new intent from the moment this returns; what is open is closed, then the run ends ``cancelled``. Returns
        the seq of the event. Raises ``CommandRefused`` (``run_ended``, ``already_cancelled``), ``RunNotFound``."""
        return self._call(self._embedded.command(id_of(run_id), wishes.cancel(by or self.principal)))

    def resume(self, run_id: AnyRun, *, by: str | None = None) -> int:
        """Lift a stop. Raises ``CommandRefused`` with what has to change first."""
        return self._call(self._embedded.command(id_of(run_id), wishes.resume(by or self.principal)))

    def record_fact(
        self, run_id: AnyRun, name: str, value: str | float | bool | None, *, by: str | None = None
    ) -> int:
        """Tell a run a typed business fact: the latest value of that name counts and stays in its context, as data. Raises
        ``CommandRefused``: no such name or value, too many facts, or the run has ended."""
        return self._call(
            self._embedded.command(id_of(run_id), wishes.record_fact(name, value, by or self.principal))
        )

    def close_run(self, run_id: AnyRun, *, by: str | None = None) -> int:
        """End a stopped run with the outcome that it stopped with."""
        return self._call(self._embedded.command(id_of(run_id), wishes.close(by or self.principal)))

    def send(self, run_id: AnyRun, text: str, *, by: str | None = None) -> int:
        """A person's message into a run that hasn't ended, at most 64 KiB and ``limits.messages`` of them. It is on record
        when this returns and in the model's next request; a final answer that was on its way is followed by one more turn.
        A stopped run keeps it until it is resumed. Returns the seq of the event. Raises ``CommandRefused`` (``run_ended``,
        ``run_ending``, ``max_messages``, ``message_empty``), ``RunNotFound``."""
        return self._call(self._embedded.command(id_of(run_id), wishes.send(text, by or self.principal)))

    def answer(
        self,
        run_id: AnyRun,
        question_id: str,
        text: str = "",
        *,
        by: str,
        cannot: bool = False,
        stop: bool = False,
        reason: str = "",
    ) -> int:
        """A person's answer to a question of ``ask_user``: a text of at most 16 KiB, one of the choices if there are any; or
        ``cannot``: nobody can answer, and with ``stop`` the run stops ``blocked`` (as it does where its goal needs an answer).
        Raises ``CommandRefused`` (used, expired, not found, not a choice)."""
        command = wishes.answer(question_id, text, by, reason, cannot=cannot, stop=stop)
        return self._call(self._embedded.command(id_of(run_id), command))

    def raise_limits(
        self,
        run_id: AnyRun,
        *,
        by: str | None = None,
        cost: str | int | Decimal | None = None,
        deadline_s: int | None = None,
        **raised: int,
    ) -> int:
        """New, higher values by limit name (``turns=80``); ``cost`` and ``deadline_s`` are written as in ``Limits``.
        Raises ``CommandRefused``, or ``DeclarationError`` for an amount of money that is none."""
        command = wishes.raise_limits(by or self.principal, cost, deadline_s, raised)
        return self._call(self._embedded.command(id_of(run_id), command))

    def approve(self, run_id: AnyRun, approval_id: str, *, by: str, reason: str = "") -> int:
        """A person's yes to one preview. ``by`` is at most 200 characters, ``reason`` 1,000. Raises ``CommandRefused``
        (used, expired, not found, same person)."""
        return self._call(self._embedded.command(id_of(run_id), wishes.approve(approval_id, by, reason)))

    def reject(
        self, run_id: AnyRun, approval_id: str, *, by: str, reason: str = "", stop: bool = False
    ) -> int:
        """A person's no; ``stop`` also ends the run. Raises as ``approve``."""
        return self._call(
            self._embedded.command(id_of(run_id), wishes.reject(approval_id, by, reason, stop=stop))
        )

    def resolve_call(
        self, run_id: AnyRun, call: str, *, by: str, applied: bool, result: str = "", reason: str = ""
    ) -> int:
        """A person's word on an unknown effect; ``result`` is JSON when it was applied."""
        command = wishes.resolve_call(call, by, result, reason, applied=applied)
        return self._call(self._embedded.command(id_of(run_id), command))

    def inbox(
        self,
        *,
        root: AnyRun | None = None,
        kind: Kind | None = None,
        tenant: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> Inbox:
        """What waits for a person in this store, or in the tree of one run: ``approval``, ``question``, ``unknown`` and
        ``stop`` rows (``eventstore.inbox.InboxRow``), at most ``limit`` (1 to 1,000), the oldest of them first. ``after``: the ``after`` of the page
        before."""
        root_id = None if root is None else id_of(root)
        return self._call(self._embedded.inbox(root_id, kind, tenant, limit, after))

    def switch(self, scope: str, target: str = "", *, on: bool, by: str, reason: str = "") -> None:
        """Turn a kill switch: ``global``, ``tenant`` or ``tool`` (its name in ``target``). Effects see it at once."""
        self._call(self._embedded.switch(scope, target, by, reason, on=on))

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher(run_id, state, events, first_seq)`` after every commit of this host, on its loop; it must be
        quick and must not change anything. One that raises is dropped: see ``watch_errors``."""
        self._embedded.watchers.add(watcher)

    def watch_progress(self, watcher: ProgressWatcher) -> None:
        """Call ``watcher(run_id, item)`` for provisional text of running attempts, on the host's loop. As ``watch``."""
        self._embedded.watchers.add_of_progress(watcher)

    @property
    def watch_errors(self) -> tuple[BaseException, ...]:
        """What dropped watchers raised; their runs went on."""
        return tuple(self._embedded.watchers.errors)

    # --- life --------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Host runs until SIGTERM or SIGINT (where this is the main thread) or another thread's ``close``; then close: runs
        are put down where they are within 8 s, and run actors that take longer are killed. The signals mean something
        else only for that time. Raises ``StoreError``: ``closed`` if it is closed already, ``host_lost`` if a file stayed
        away for so long that this host had to stop, or of a bug (on Ray, and where a server keeps the store, this Runtime goes on by
        itself once the store is back)."""
        embedded = self._embedded
        if embedded.closed:
            raise closed()
        word = Word()
        self._closed_words.add(word)
        embedded.told_of_loss.append(word.give)
        try:
            failure = embedded.failure()
            with given_by_signals(word):
                if failure is None:
                    word.wait()
                failure = embedded.failure()
                self.close()
            if failure is not None:
                raise failure
        finally:
            embedded.told_of_loss.remove(word.give)
            self._closed_words.discard(word)

    def close(self) -> None:
        """Stop hosting: runs stay where they are in the log and are ready for the next Runtime. Idempotent."""
        if self._thread.is_here():
            raise own_loop()
        if self._embedded.closed:
            return
        self._embedded.closed = True
        for word in tuple(self._closed_words):
            word.give()
        try:
            self._call(self._embedded.shut_down(), timeout_s=CLOSE_TIMEOUT_S)
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return self._thread.call(work, timeout_s)
