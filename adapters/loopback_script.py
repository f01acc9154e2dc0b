"""What the loopback model server plays: scripts by model or by conversation, its pace, and the faults it injects.

A file is either a plain script as ``scripted:FILE`` reads it, then served to whoever asks, or ``{"scripts": [...]}`` with
the fields of ``ServerScript``. It is read as strictly as a script: an unknown field is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from ..runtime.errors import CallerError, DeclarationError
from ..runtime.model import Usage
from ..runtime.strict_json import parse_object
from .script import (
    SCRIPT_BYTES_MAX,
    SCRIPT_NODES_MAX,
    TURNS_MAX,
    Script,
    ScriptedTurn,
    check_entry,
    read_script,
)

SCRIPTS_MAX: Final = 1_000
FAULTS_MAX: Final = 100
LATENCY_MS_MAX: Final = 3_600_000
DRIP_MS_MAX: Final = 60_000

FaultKind = Literal["status", "html", "drop", "truncate", "drip", "slow_headers", "hang"]


class ServedScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One script and whom it answers: requests for ``model`` ("": any) whose first user message contains ``user`` and
    whose last message, of whichever role, contains ``last`` ("": any). ``substitute``: ``{{user}}`` in its texts and
    arguments stands for the first user message, ``{{user.1}}`` for its first word."""

    turns: tuple[ScriptedTurn | tuple[ScriptedTurn, ...], ...]
    model: str = ""
    user: str = ""
    last: str = ""
    usage: Usage | None = Usage(100, 20)
    substitute: bool = False


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What goes wrong with a ``share`` (0 to 1) of the requests that the filters let through (empty: all).

    ``status`` answers with ``status`` and, if given, ``retry_after_s``; ``html`` with a gateway's page; ``drop`` closes
    without a byte; ``truncate`` breaks off in the middle of the body; ``drip`` sends the body byte by byte, each
    ``drip_ms`` after the last, ``slow_headers`` the headers; ``hang`` never answers.
    """

    kind: FaultKind
    share: float = 1.0
    model: str = ""
    turns: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    status: int = 503
    retry_after_s: int | None = None
    drip_ms: int = 100


class ServerScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that one server does. The first script that fits a request answers it.

    Each answer is ``latency_ms`` late, give or take the share ``jitter`` of it, drawn by ``seed`` from what was asked: the
    same request is late by the same. With ``api_key`` a request must carry it.
    """

    scripts: tuple[ServedScript, ...]
    faults: tuple[Fault, ...] = ()
    latency_ms: int = 0
    jitter: float = 0.0
    seed: int = 0
    api_key: str = ""


def served(script: Script) -> ServerScript:
    """One plain script for every model and conversation."""
    return ServerScript(scripts=(ServedScript(turns=script.turns, usage=script.usage),))


def read_server_script(data: bytes, *, name: str = "") -> ServerScript:
    """Either form. Raises ``DeclarationError`` that names the place; ``name`` says whose file it is."""
    try:
        document = parse_object(data, bytes_max=SCRIPT_BYTES_MAX, nodes_max=SCRIPT_NODES_MAX)
    except CallerError as error:
        raise DeclarationError(f"script_{error.code}", error.message, path=f"{name}{error.path}") from error
    if "scripts" not in document:
        script = served(read_script(data, name=name))
    else:
        try:
            script = msgspec.convert(document, ServerScript)
        except msgspec.ValidationError as error:
            raise DeclarationError("script_shape", str(error)[:256], path=name) from error
    check_server_script(script, name=name)
    return script


def server_script_from_file(path: str | Path) -> ServerScript:
    """Read a file. Raises ``DeclarationError`` that names it and the place."""
    name = str(path)
    try:
        with open(path, "rb") as file:
            data = file.read(SCRIPT_BYTES_MAX + 1)
    except OSError as error:
        raise DeclarationError("script_file", error.strerror or "can't be read", path=name) from error
    return read_server_script(data, name=name)


def write_server_script(script: ServerScript) -> bytes:
    """The file that ``read_server_script`` reads back as the same."""
    return msgspec.json.format(msgspec.json.encode(script), indent=2) + b"\n"


def check_server_script(script: ServerScript, *, name: str = "") -> None:
    """Refuse what can't be served; raises ``DeclarationError``."""
    if len(script.scripts) > SCRIPTS_MAX or len(script.faults) > FAULTS_MAX:
        raise DeclarationError(
            "script_size", f"at most {SCRIPTS_MAX} scripts and {FAULTS_MAX} faults", path=name
        )
    if not 0 <= script.latency_ms <= LATENCY_MS_MAX or not 0 <= script.jitter <= 1:
        raise DeclarationError(
            "script_latency", f"latency_ms 0 to {LATENCY_MS_MAX}, jitter 0 to 1", path=name
        )
    for number, fault in enumerate(script.faults, 1):
        if not 0 <= fault.share <= 1 or not 0 < fault.drip_ms <= DRIP_MS_MAX:
            raise DeclarationError(
                "script_fault", f"share 0 to 1, drip_ms 1 to {DRIP_MS_MAX}", path=f"fault {number}"
            )
        if not 400 <= fault.status <= 599 or (fault.retry_after_s or 0) < 0:
            raise DeclarationError(
                "script_fault", "status 400 to 599, no negative wait", path=f"fault {number}"
            )
    for number, one in enumerate(script.scripts, 1):
        if len(one.turns) > TURNS_MAX:
            raise DeclarationError("script_turns", f"at most {TURNS_MAX} turns", path=f"script {number}")
        for turn, entry in enumerate(one.turns, 1):
            path = f"{name} script {number} turn {turn}".strip()
            check_entry(entry, path=path)
            _check_sayable((entry,) if isinstance(entry, ScriptedTurn) else entry, path)


def _check_sayable(turns: tuple[ScriptedTurn, ...], path: str) -> None:
    for turn in turns:
        if turn.finish == "paused" or turn.hosted or turn.continuation_base64 is not None:
            raise DeclarationError(
                "script_unsayable", "Chat Completions has no pause, hosted tool or continuation", path=path
            )
