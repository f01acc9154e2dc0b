"""What the command line prints and exits with, in each of its four formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from ..runtime.errors import (
    BoundloopError,
    BugError,
    CallerError,
    ConflictError,
    DamagedFile,
    HistoryRefused,
    LogDamaged,
    OwnedError,
    RunNotFound,
    StoreError,
)
from .cli_scrub import scrubbed
from .cli_text import machine_json, plain, safe_json, safe_text, table

Format = Literal["table", "json", "jsonl", "plain"]
FORMATS: Final = ("table", "json", "jsonl", "plain")

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
STORE: Final = 5
DAMAGED: Final = 6
WAITING: Final = 7
LIMIT: Final = 8
INTERRUPTED: Final = 130

EXIT_CODES: Final = {
    OK: "ok",
    FAILED: "a difference, a failed run, or a bug",
    USAGE: "wrong usage",
    NOT_FOUND: "no such run, call or approval, or its log was pruned",
    CONFLICT: "refused as things stand, or owned by another process",
    STORE: "the store can't be used",
    DAMAGED: "a log is damaged or can't be read",
    WAITING: "a run waits for a person",
    LIMIT: "a run stopped at a limit",
    INTERRUPTED: "interrupted (Ctrl-C); a run stays where it is",
}

_WHO: Final = {
    "caller": "whoever typed this",
    "provider": "the model's provider",
    "tool": "the tool's owner",
    "store": "whoever runs the store",
    "bug": "boundloop (a bug)",
}

_REFUSED: Final = {
    "run_not_found": NOT_FOUND,
    "run_pruned": NOT_FOUND,
    "approval_not_found": NOT_FOUND,
    "question_not_found": NOT_FOUND,
    "call_not_found": NOT_FOUND,
    "seq_range": NOT_FOUND,
    "no_request": NOT_FOUND,
    "max_turns": LIMIT,
    "max_tool_calls": LIMIT,
    "budget_tokens": LIMIT,
    "budget_cost": LIMIT,
    "deadline": LIMIT,
    "command_id": USAGE,
    "unknown_limit": USAGE,
    "nothing_raised": USAGE,
    "not_higher": USAGE,
    "limit_waived": USAGE,
    "result_json": USAGE,
}


class Refused(CallerError):
    """The interpreter or the command line said no; nothing changed."""


def exit_code_of(error: BoundloopError) -> int:
    """The exit code of an error."""
    match error:
        case LogDamaged() | HistoryRefused():
            return DAMAGED
        case RunNotFound():
            return NOT_FOUND
        case OwnedError() | ConflictError():
            return CONFLICT
        case DamagedFile() | StoreError():
            return STORE
        case Refused():
            return _REFUSED.get(error.code, CONFLICT)
        case CallerError():
            return _REFUSED.get(error.code, USAGE)
        case BugError():
            return FAILED
        case _:
            return FAILED


def hung_up() -> None:
    """Whoever read has enough. What is still buffered goes nowhere instead of failing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class Output:
    """Prints in one format. Whatever is printed for people is escaped.

    ``at_once``: each line is handed over as it comes. A reader that hangs up ends the printing (``heard``), never what
    the command does.
    """

    def __init__(self, form: Format = "table", *, at_once: bool = False) -> None:
        self.form: Format = form
        self.at_once = at_once
        self.heard = True

    @property
    def for_programs(self) -> bool:
        return self.form in ("json", "jsonl")

    def line(self, text: str = "") -> None:
        """One line whose parts are safe already."""
        if not self.heard:
            return
        try:
            sys.stdout.write(text + "\n")
            if self.at_once:
                sys.stdout.flush()
        except BrokenPipeError:
            self.heard = False
            hung_up()

    def note(self, text: str) -> None:
        """A hint for people, in the table format only. Its parts are safe already."""
        if self.form == "table":
            self.line(text)

    def alarm(self, text: str) -> None:
        """What nobody may miss: on stdout for people, on stderr beside what programs parse. Its parts are safe already."""
        if self.form == "table":
            self.line(text)
        else:
            self.to_stderr(text)

    def to_stderr(self, text: str) -> None:
        """One line on stderr, after what was printed before. Its parts are safe already."""
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            self.heard = False
            hung_up()
        sys.stderr.write(f"boundloop: {text}\n")

    def rows(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """A list: aligned, tab-separated, one JSON array, or one JSON object a line."""
        match self.form:
            case "json":
                self.line(machine_json(list(rows), indent=2))
            case "jsonl":
                for row in rows:
                    self.line(machine_json(row))
            case "plain":
                for row in rows:
                    self.line("\t".join(safe_text(as_cell(row.get(column))) for column in columns))
            case "table":
                cells = [[as_cell(row.get(column)) for column in columns] for row in rows]
                for line in table(columns, cells):
                    self.line(line)

    def thing(self, value: Mapping[str, Any]) -> None:
        """One thing in all its fields; what is empty is left out for people."""
        match self.form:
            case "json":
                self.line(machine_json(value, indent=2))
            case "jsonl":
                self.line(machine_json(value))
            case "plain":
                for name, item in value.items():
                    self.line(f"{name}\t{safe_text(as_cell(item))}")
            case "table":
                shown = {
                    name: item for name, item in value.items() if item not in (None, "", b"", (), [], {})
                }
                width = max((len(name) for name in shown), default=0) + 1
                for name, item in shown.items():
                    self.line(f"{name + ':':<{width}} {safe_text(as_cell(item))}")

    def error(self, error: BoundloopError) -> int:
        """One line on stderr that names who must act, a JSON object too for programs; answers the exit code."""
        code = exit_code_of(error)
        where = f" at {safe_text(scrubbed(error.path))}" if error.path else ""
        says = f": {safe_text(scrubbed(error.message))}" if error.message else ""
        self.to_stderr(f"{safe_text(error.code)}{where}{says} (to act: {_WHO[error.actor]})")
        if self.for_programs:
            fields = {
                name: scrubbed(item) if isinstance(item, str) else item
                for name, item in vars(error).items()
                if isinstance(item, str | int | bool)
            }
            self.line(machine_json({"error": {**fields, "actor": error.actor, "exit_code": code}}))
        return code

    def usage_error(self, message: str) -> None:
        """The object for programs about a command line that couldn't be read; ``message`` is safe to print."""
        if self.for_programs:
            fields = {"code": "usage", "message": message, "path": "", "actor": "caller", "exit_code": USAGE}
            self.line(machine_json({"error": fields}))


def as_cell(value: Any) -> str:
    """A value as unescaped text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    return safe_json(plain(value))
