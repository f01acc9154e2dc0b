"""Typed errors: fields, not sentences, and each names who must act.

`BoundloopError` is the abstract base. Its children say whose move it is: the caller (wrong use or wrong input),
the provider (a model service), the tool (its code or its far side), the store (the file or the server), or us (a bug).
Every error pickles by its fields, so it crosses a process border unchanged.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Actor = Literal["caller", "provider", "tool", "store", "bug"]


def _restore(cls: type[BoundloopError], fields: dict[str, Any]) -> BoundloopError:
    """Rebuild an error from its fields without running its constructor (constructors differ between leaves)."""
    error = cls.__new__(cls)
    error.__dict__.update(fields)
    error.args = (error.code, error.message, error.path)
    return error


class BoundloopError(Exception):
    """Base of every error that boundloop raises; not raised itself.

    `code` is stable and for programs, `message` is one bounded sentence for people, `path` is the JSON path or the
    name that the error is about ("" if none), `actor` is who must act.
    """

    actor: ClassVar[Actor]

    code: str
    message: str
    path: str

    def __init__(self, code: str, message: str = "", *, path: str = "") -> None:
        if type(self) is BoundloopError:
            raise TypeError("BoundloopError is abstract: raise one of its children")
        super().__init__(code, message, path)
        self.code = code
        self.message = message
        self.path = path

    def __str__(self) -> str:
        text = f"{self.code} [{self.actor}]"
        if self.path:
            text += f" at {self.path}"
        return f"{text}: {self.message}" if self.message else text

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), dict(self.__dict__))


class CallerError(BoundloopError):
    """Whoever called us must change the call; repeating it unchanged fails again unless a leaf says otherwise."""

    actor: ClassVar[Actor] = "caller"


class ProviderError(BoundloopError):
    """A model service answered wrongly or not at all."""

    actor: ClassVar[Actor] = "provider"


class ToolError(BoundloopError):
    """What a tool raises to say that it failed.

    `retryable`: the same call may succeed later. `safe_message`: the only text that the model is shown.
    `no_effect`: proof that nothing took effect at the far side (refused before sending, or refused by it); without
    that proof a failed effect is unknown, never failed.
    """

    actor: ClassVar[Actor] = "tool"

    retryable: bool
    safe_message: str
    no_effect: bool

    def __init__(
        self,
        code: str,
        *,
        retryable: bool = False,
        safe_message: str = "",
        no_effect: bool = False,
        path: str = "",
    ) -> None:
        super().__init__(code, safe_message, path=path)
        self.retryable = retryable
        self.safe_message = safe_message
        self.no_effect = no_effect


class StoreError(BoundloopError):
    """The store can't do what it was asked; who runs the store must act."""

    actor: ClassVar[Actor] = "store"


class BugError(BoundloopError):
    """A law of boundloop is broken. The run stops; nothing catches this for tidiness."""

    actor: ClassVar[Actor] = "bug"


class DeclarationError(CallerError):
    """A tool, schema, limit, goal or policy is declared wrongly. Raised at declaration, before any run exists."""


class UnknownTool(CallerError):
    """A name that the toolbox doesn't hold."""

    def __init__(self, name: str) -> None:
        super().__init__("unknown_tool", "no tool of that name is in the toolbox", path=name)


class DuplicateTool(DeclarationError):
    """Two tools of one name in a toolbox."""

    def __init__(self, name: str) -> None:
        super().__init__("duplicate_tool", "two tools have this name", path=name)


class IrreversibleNeedsKey(DeclarationError):
    """A tool with an irreversible effect declares no explicit key fields."""

    def __init__(self, name: str) -> None:
        super().__init__(
            "irreversible_needs_key",
            'an irreversible tool needs its key as a list of argument fields, such as key=("order_id",)',
            path=name,
        )


class MissingLimits(DeclarationError):
    """A limit that has no safe default was neither set nor waived."""


class ConflictError(CallerError):
    """Another writer, or an earlier decision, got there first; nothing was changed."""


class RunNotFound(CallerError):
    """No such run for this caller. The same for a missing and for a forbidden run."""

    def __init__(self, run_id: str) -> None:
        super().__init__("run_not_found", "no such run", path=run_id)


class RunPruned(CallerError):
    """The run's log made room: what is left is how it ended, and its ledger keys."""

    outcome: str

    def __init__(self, run_id: str, outcome: str, reason: str) -> None:
        super().__init__("run_pruned", f"its log was pruned; it had ended {outcome}: {reason}", path=run_id)
        self.outcome = outcome


class Overloaded(CallerError):
    """Admission is full and nothing was written; the same call may be made again after `retry_after_ms`."""

    retry_after_ms: int

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__("overloaded", f"full; try again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class StoreUrlError(CallerError):
    """A store URL that names no store we know."""

    def __init__(self, url: str, message: str) -> None:
        super().__init__("store_url", message, path=url)


class OwnedError(StoreError):
    """Another live process owns the file or the run: end it, ask it, or take over."""

    pid: int
    host: str

    def __init__(self, pid: int, host: str, *, path: str = "") -> None:
        super().__init__("owned", f"owned by process {pid} on {host}", path=path)
        self.pid = pid
        self.host = host


class NewerSchema(StoreError):
    """The store was written by a newer boundloop; this one doesn't touch it."""

    found: int
    known: int

    def __init__(self, found: int, known: int, *, path: str = "") -> None:
        super().__init__(
            "newer_schema", f"schema {found} is newer than {known}, the newest known here", path=path
        )
        self.found = found
        self.known = known


class DamagedFile(StoreError):
    """The store's file can't be opened or read as a store."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__("damaged_file", message, path=path)


class DiskFull(StoreError):
    """No space: the append didn't happen and may be made again when there is space."""

    def __init__(self, path: str = "", message: str = "no space left for the store's file") -> None:
        super().__init__("disk_full", message, path=path)


class HistoryRefused(StoreError):
    """A run's history can't be folded: pins missing or altered, results not bound to their calls, no start."""


class LogDamaged(StoreError):
    """A run's log doesn't verify; the run is quarantined and `path` names it."""

    first_bad_seq: int
    last_bad_seq: int

    def __init__(self, run_id: str, first_bad_seq: int, last_bad_seq: int, message: str = "") -> None:
        super().__init__(
            "log_damaged",
            message or f"first bad append holds seq {first_bad_seq} to {last_bad_seq}",
            path=run_id,
        )
        self.first_bad_seq = first_bad_seq
        self.last_bad_seq = last_bad_seq
