"""The store's port: what a run's host asks of durable history, and every answer it may get.

A store keeps, per run, an append-only list of rows (one row an append, a hash chain over them), the run's index row,
the effect ledger, owner rows of hosts, content-addressed blobs and kill switches. Everything that one append carries
commits in one transaction or not at all. Answers that a caller must tell apart are types, not exceptions; exceptions
are ``StoreError`` (the store can't say) and mean: nothing is known to be committed, read before you act again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from ..runtime.ledger import Claim, LedgerRow, RunIndex, Settlement

APPEND_SCHEMA_VERSION = 1
"""Version of the envelope and of the event shapes; a log of a newer version is refused."""

BODY_INLINE_BYTES_MAX = 16 * 1024
"""A longer body becomes a content-addressed blob, committed before the row that refers to it."""

BLOB_BYTES_MAX = 64 * 1024 * 1024
"""The largest blob, so the largest spilled body and the largest artifact. It fits a frame of the owner's socket."""

HOST_VALID_MS = 10_000
"""How long an owner row holds after its last renewal. Hosts renew every 2 s and stop themselves after 8 s without."""


class NewRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Carried by the first append of a run only (expected_seq 0)."""

    tenant: str
    agent: str
    operation_id: str
    parent_id: str = ""
    root_id: str = ""


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One atomic change of one run.

    ``append_id`` makes it idempotent with (run, expected_seq). ``hash`` is the new chain head, computed by
    ``chain.append_hash`` over ``prev_hash``, the envelope and ``body`` (the bytes stored are the bytes hashed).
    ``settled_first``: so many of ``settlements`` come before ``claim``, the others after it, as their events do: an
    effect that was found absent and is sent again frees its key and takes it.
    ``release``: the host gives the run up in this append. ``ready``: the run has something to do and no host.
    ``wake_runs``: other runs to mark ready (a parent). ``blobs``: committed first, each at most 256 KiB a chunk.
    """

    run_id: str
    expected_seq: int
    epoch: int
    append_id: bytes
    at_ms: int
    causation: str
    body: bytes
    event_count: int
    prev_hash: bytes
    hash: bytes
    index: RunIndex
    host_id: str = ""
    create: NewRun | None = None
    claim: Claim | None = None
    settlements: tuple[Settlement, ...] = ()
    settled_first: int = 0
    release: bool = False
    ready: bool = False
    wake_runs: tuple[str, ...] = ()
    blobs: tuple[tuple[bytes, bytes], ...] = ()


class Appended(msgspec.Struct, frozen=True, tag="appended"):
    """Committed now. ``seq`` is the run's new last seq. ``woken``: the run was marked ready until now; this append took the
    mark away, so its writer looks again at whatever it waits for."""

    seq: int
    now_ms: int
    woken: bool = False


class AlreadyDone(msgspec.Struct, frozen=True, tag="already_done"):
    """The same append (run, expected_seq, append_id) was committed before; nothing was written now."""

    seq: int
    now_ms: int


class Conflict(msgspec.Struct, frozen=True, tag="conflict"):
    """Another append took this place: the caller isn't the run's writer (any more) and must forget the run."""

    seq: int


class Fenced(msgspec.Struct, frozen=True, tag="fenced"):
    """The run has a newer epoch: the caller is a ghost and must forget the run."""

    epoch: int


class ClaimTaken(msgspec.Struct, frozen=True, tag="claim_taken"):
    """The claimed key is held; nothing was appended."""

    row: LedgerRow


AppendAnswer = Appended | AlreadyDone | Conflict | Fenced | ClaimTaken


class StoredAppend(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of the log as stored. Events are ``first_seq … first_seq + event_count - 1``."""

    run_id: str
    first_seq: int
    event_count: int
    epoch: int
    append_id: bytes
    at_ms: int
    causation: str
    schema_version: int
    body: bytes
    hash: bytes


class RunRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run's index row. ``owner`` is the host id, empty when no host has the run. ``pruned_at_ms``: when its log was removed,
    else 0; the row stays."""

    run_id: str
    tenant: str
    agent: str
    operation_id: str
    parent_id: str
    root_id: str
    created_at_ms: int
    updated_at_ms: int
    seq: int
    epoch: int
    head: bytes
    index: RunIndex
    owner: str
    ready: bool
    damaged: str = ""
    pruned_at_ms: int = 0


class HostRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One process that hosts runs. ``boot_id`` and ``pid_start`` tell a reused pid from the same process."""

    host_id: str
    node: str
    pid: int
    pid_start: int
    boot_id: str
    expires_at_ms: int = 0


class Acquired(msgspec.Struct, frozen=True, tag="acquired"):
    """The run is the caller's under a new epoch. ``died`` is True if its previous host still held it (expired or
    proven dead): the caller appends ``run_resumed`` before anything else. ``woken``: the run was marked ready until now."""

    epoch: int
    seq: int
    head: bytes
    died: bool
    woken: bool = False


class Owned(msgspec.Struct, frozen=True, tag="owned"):
    """Another live host has the run."""

    by: HostRow


class NotFound(msgspec.Struct, frozen=True, tag="not_found"):
    """No such run."""


AcquireAnswer = Acquired | Owned | NotFound


class RunFilter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All given fields must match. ``after`` is the run_id that the last page ended with. Newest first: a run that changes
    between two pages keeps its place. Times are store time, *since* inclusive, *until* exclusive."""

    tenant: str | None = None
    status: str | None = None
    outcome: str | None = None
    agent: str | None = None
    operation_id: str | None = None
    waiting_for_prefix: str | None = None
    root_id: str | None = None
    created_since_ms: int | None = None
    created_until_ms: int | None = None
    updated_since_ms: int | None = None
    updated_until_ms: int | None = None
    after: str = ""
    limit: int = 100


class Switch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A kill switch that is on. ``target`` is empty for global, else the tenant's or tool's name."""

    scope: Literal["global", "tenant", "tool"]
    target: str
    by: str
    reason: str
    at_ms: int


SubmitHandler = Callable[[str, str, bytes], Awaitable[bytes]]
"""(run_id, command_id, encoded command) -> encoded answer; called in the owner process for outside commands."""

SwitchHandler = Callable[[Switch], Switch]
"""Called in the owner process with a kill switch that is about to be stored, whoever turns it; gives what may be stored."""

AskHandler = Callable[[str, bytes], Awaitable[bytes]]
"""(kind, question) -> answer; called in the owner process for what its own hosts elsewhere ask of it besides the store."""

CommitListener = Callable[[str], None]
"""Called (on the store's event loop) with a run's id after another process appended to it."""

ReadyListener = Callable[[Sequence[str]], None]
"""Called (on the store's event loop) after a commit made these runs ready, or changed a ledger row they wait for."""


class EventStore(Protocol):
    """Durable history. All methods but ``now_ms`` may raise ``StoreError``; none holds a lock across calls."""

    async def identity(self) -> str:
        """Which store this is, as hex: the same for as long as it exists, and no other's, whatever its address."""
        ...

    def now_ms(self) -> int:
        """The store's time in Unix milliseconds; never falls within a process."""
        ...

    async def append(self, request: Append) -> AppendAnswer: ...

    async def read(self, run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> list[StoredAppend]:
        """Rows whose first_seq is above ``after_seq``, in order, at most ``rows_max``; bodies that were spilled to a
        blob are returned as stored (``codec`` resolves them through ``get_blob``)."""
        ...

    async def run(self, run_id: str) -> RunRow | None: ...

    async def runs(self, where: RunFilter) -> list[RunRow]: ...

    async def put_blob(self, data: bytes) -> bytes:
        """Store by content, return the sha256. Idempotent. Raises ``CallerError`` (``blob_too_large``)."""
        ...

    async def get_blob(self, sha256: bytes) -> bytes | None: ...

    async def ledger_row(self, tenant: str, key: bytes) -> LedgerRow | None:
        """Raises ``DamagedFile`` for a row whose result isn't the one that its digest names; so does ``append``."""
        ...

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        """Rows as stored, unchecked, by (tenant, key) above ``after``: for ``verify``."""
        ...

    async def unknown_effects(self, tenant: str | None = None, limit: int = 100) -> list[LedgerRow]: ...

    async def register_host(self, host: HostRow) -> None: ...

    async def renew_host(self, host_id: str) -> bool:
        """False if the row is gone: the caller must stop dispatching and exit."""
        ...

    async def drop_host(self, host_id: str, *, died: bool = False) -> None:
        """Remove the owner row; its runs become ready. ``died``: the caller proved the death of a host that is not
        its own, and whoever acquires one of these runs is told so."""
        ...

    async def hosts(self) -> list[HostRow]: ...

    async def acquire(self, run_id: str, host_id: str, *, dead_hosts: Sequence[str] = ()) -> AcquireAnswer:
        """Take a run: allowed if it has no owner, the owner row is gone or expired, the owner is the caller itself (its
        first answer was lost), or is in ``dead_hosts`` (the caller proved the death). Raises the epoch and clears
        ``ready``. A caller whose own row has expired has it renewed by this: who takes a run is alive. Else, after a jump of the
        store's clock, hosts that are all expired would take one run from each other for as long as none renews."""
        ...

    async def release(self, run_id: str, host_id: str, epoch: int, *, ready: bool) -> None:
        """Give a run up without an append; a no-op if the caller isn't the owner under that epoch."""
        ...

    async def ready_runs(self, limit: int = 100) -> list[str]:
        """Runs without a live host that have something to do: marked ready, due by ``wake_at_ms``, or left by a host
        whose owner row expired. Oldest first."""
        ...

    async def next_wake_ms(self) -> int | None:
        """The earliest ``wake_at_ms`` of a run without a host."""
        ...

    async def mark_damaged(self, run_id: str, reason: str) -> None:
        """Written to the run's row, never to a damaged log. Wakes the run's parent in the same transaction: no last append
        of this run will. Raises ``RunNotFound``."""
        ...

    async def switches(self) -> list[Switch]: ...

    def switches_known(self) -> tuple[Switch, ...]:
        """The switches that are on, without a call to the store. In the owner's process never behind what is
        committed, whoever set it; elsewhere as of the last answer of ``switches`` or ``set_switch``."""
        ...

    async def set_switch(self, switch: Switch, *, on: bool) -> None: ...

    async def submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        """Hand an outside command to the owner process's handler; the answer is its encoded answer."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class SharedStore(Protocol):
    """A store that processes use beside each other, without an owner. So nobody can prove that another's host is dead, but
    by its owner row's expiry; and a command for a run that a live host elsewhere has travels through the store."""

    async def submit_elsewhere(self, run_id: str, command_id: str, command: bytes) -> bytes | None:
        """The encoded answer of the live host in another process that has the run; None if none has it. Raises what that
        host raised, and ``StoreError`` (``host_silent``) for one that lives and doesn't answer."""
        ...
