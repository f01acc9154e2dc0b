"""A script as data: what a scripted model says, turn by turn, good answers and faults alike.

A script is a JSON object ``{"turns": [...]}``. Each entry is one turn, or a list of turns: what the first, the second, …
attempt at that turn gets; the last one answers every later attempt. The functions here write the same data in Python::

    [call("get_order", {"order_id": "A1042"}), attempts(lost("The ord"), say("The order was shipped."))]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from ..runtime.errors import CallerError, DeclarationError
from ..runtime.model import FinishKind, ModelTurn, ProposedCall, SideAttempt, Usage
from ..runtime.side_bounds import SideBounds
from ..runtime.strict_json import parse_object

SCRIPT_BYTES_MAX: Final = 4 * 1024 * 1024
SCRIPT_NODES_MAX: Final = 500_000
TURNS_MAX: Final = 10_000
LATE_MS_MAX: Final = 3_600_000


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One proposed call. Of ``arguments`` (written as JSON), ``raw`` (any text, well formed or not) and ``raw_base64``
    (any bytes) at most one is given. ``id`` None makes one up from turn and index; empty and repeated ids are kept."""

    tool: str
    arguments: dict[str, Any] | None = None
    raw: str | None = None
    raw_base64: bytes | None = None
    id: str | None = None

    def argument_bytes(self) -> bytes:
        """The bytes that the model is said to have written."""
        if self.raw_base64 is not None:
            return self.raw_base64
        if self.raw is not None:
            return self.raw.encode("utf-8", "surrogatepass")
        return msgspec.json.encode(self.arguments or {})


class ScriptedTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer. Without ``finish`` it is ``calls`` if there are any, else ``final``.

    ``usage`` left out is the model's own figure, null is "not reported". ``late_ms`` holds the answer back by that much
    of the model's clock; ``gate`` until that gate of the model is opened. ``lost_after_chars`` breaks the connection
    after so many characters of text: no terminal event arrives, and what came before counts for nothing.
    ``side_attempts``: what else was asked for this answer, null for "nobody knows how much".
    """

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    finish: FinishKind | None = None
    finish_raw: str = ""
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    error_code: str = ""
    safe_message: str = ""
    retryable: bool = True
    retry_after_ms: int = 0
    hosted: tuple[str, ...] = ()
    continuation_base64: bytes | None = None
    response_id: str | None = None
    served_model: str | None = None
    late_ms: int = 0
    gate: str = ""
    lost_after_chars: int | None = None
    side_attempts: tuple[SideAttempt, ...] | None = ()

    def as_turn(self, number: int, *, model: str, usage: Usage | None) -> ModelTurn:
        """The answer to turn ``number`` (from 1), ids filled in: a pure function, the same at every attempt."""
        if self.lost_after_chars is not None:
            return ModelTurn(
                finish="transport_broken",
                text=self.text[: self.lost_after_chars],
                usage=None if self.usage is msgspec.UNSET else self.usage,
                error_code=self.error_code or "connection_lost",
                retryable=self.retryable,
                retry_after_ms=self.retry_after_ms,
                side_attempts=self.side_attempts,
            )
        finish: FinishKind = self.finish or ("calls" if self.calls else "final")
        return ModelTurn(
            finish=finish,
            finish_raw=self.finish_raw or finish,
            text=self.text,
            calls=tuple(
                ProposedCall(
                    made.tool,
                    made.argument_bytes(),
                    f"call_{number}_{index}" if made.id is None else made.id,
                )
                for index, made in enumerate(self.calls)
            ),
            usage=usage if self.usage is msgspec.UNSET else self.usage,
            response_id=f"resp_{number}" if self.response_id is None else self.response_id,
            served_model=model if self.served_model is None else self.served_model,
            continuation=self.continuation_base64,
            error_code=self.error_code,
            safe_message=self.safe_message,
            retryable=self.retryable,
            retry_after_ms=self.retry_after_ms,
            hosted=self.hosted,
            side_attempts=self.side_attempts,
        )


Attempts: TypeAlias = "tuple[ScriptedTurn, ...]"


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole file: the name that the model answers to, its usage where a turn says none, what it declares of side attempts, and
    its turns."""

    turns: tuple[ScriptedTurn | tuple[ScriptedTurn, ...], ...]
    model: str = "scripted-1"
    usage: Usage | None = Usage(100, 20)
    side: SideBounds | None = None


def read_script(data: bytes, *, name: str = "") -> Script:
    """Strict: the one JSON parser, no unknown field, no coercion, bounded. Raises ``DeclarationError`` naming the
    place; ``name`` says whose script it is."""
    try:
        document = parse_object(data, bytes_max=SCRIPT_BYTES_MAX, nodes_max=SCRIPT_NODES_MAX)
    except CallerError as error:
        raise DeclarationError(f"script_{error.code}", error.message, path=f"{name}{error.path}") from error
    try:
        script = msgspec.convert(document, Script)
    except msgspec.ValidationError as error:
        raise DeclarationError("script_shape", str(error)[:256], path=name) from error
    for number, entry in enumerate(script.turns, 1):
        check_entry(entry, path=f"{name} turn {number}".strip())
    if len(script.turns) > TURNS_MAX:
        raise DeclarationError("script_turns", f"at most {TURNS_MAX} turns", path=name)
    return script


def write_script(script: Script) -> bytes:
    """The file that ``read_script`` reads back as the same script."""
    return msgspec.json.format(msgspec.json.encode(script), indent=2) + b"\n"


def check_entry(entry: ScriptedTurn | Sequence[ScriptedTurn], *, path: str) -> None:
    """Refuse what no play could mean; raises ``DeclarationError``."""
    turns = (entry,) if isinstance(entry, ScriptedTurn) else tuple(entry)
    if not turns:
        raise DeclarationError("script_attempts", "a list of attempts needs at least one turn", path=path)
    for turn in turns:
        if not 0 <= turn.late_ms <= LATE_MS_MAX:
            raise DeclarationError("script_late", f"late_ms is 0 to {LATE_MS_MAX}", path=path)
        if turn.retry_after_ms < 0 or (turn.lost_after_chars or 0) < 0:
            raise DeclarationError("script_negative", "no negative times or lengths", path=path)
        for made in turn.calls:
            if sum(part is not None for part in (made.arguments, made.raw, made.raw_base64)) > 1:
                raise DeclarationError(
                    "script_arguments", "one of arguments, raw and raw_base64", path=f"{path} {made.tool}"
                )


# --- a script written in Python -----------------------------------------------------------------------------------


def say(text: str, *, usage: Usage | msgspec.UnsetType | None = msgspec.UNSET) -> ScriptedTurn:
    """A final text."""
    return ScriptedTurn(text=text, usage=usage)


def call(
    tool: str,
    arguments: dict[str, Any] | None = None,
    *,
    id: str | None = None,
    raw: bytes | str | None = None,
    text: str = "",
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET,
) -> ScriptedTurn:
    """A turn that proposes one call. ``raw`` instead of ``arguments`` is sent as it stands, well formed or not."""
    made = ScriptedCall(
        tool=tool,
        arguments=arguments,
        raw=raw if isinstance(raw, str) else None,
        raw_base64=raw if isinstance(raw, bytes) else None,
        id=id,
    )
    return ScriptedTurn(text=text, calls=(made,), usage=usage)


def calls(*turns: ScriptedTurn, text: str = "") -> ScriptedTurn:
    """One turn that proposes the calls of all these turns, in order."""
    return ScriptedTurn(text=text, calls=tuple(made for turn in turns for made in turn.calls))


def attempts(*turns: ScriptedTurn) -> Attempts:
    """What the first, second, … attempt at one turn gets; the last one answers every later attempt."""
    return turns


def routed(turn: ScriptedTurn | str, *made: SideAttempt) -> ScriptedTurn:
    """The same, after the adapter made these side attempts for it."""
    whole = say(turn) if isinstance(turn, str) else turn
    return msgspec.structs.replace(whole, side_attempts=made)


def cut(turn: ScriptedTurn | str) -> ScriptedTurn:
    """The same, but the output limit was reached: nothing in it may run or count as an answer."""
    whole = say(turn) if isinstance(turn, str) else turn
    return msgspec.structs.replace(whole, finish="truncated", finish_raw="max_output_tokens")


def refused(text: str = "") -> ScriptedTurn:
    """The model declines."""
    return ScriptedTurn(text=text, finish="refused", finish_raw="refusal")


def filtered(text: str = "") -> ScriptedTurn:
    """The provider's content filter took the answer away."""
    return ScriptedTurn(text=text, finish="filtered", finish_raw="content_filter")


def empty() -> ScriptedTurn:
    """A proper finish with nothing in it."""
    return ScriptedTurn(finish="final")


def paused(text: str = "") -> ScriptedTurn:
    """The provider wants to be asked again to go on."""
    return ScriptedTurn(text=text, finish="paused", finish_raw="pause_turn")


def unknown_finish(raw: str, turn: ScriptedTurn | str = "") -> ScriptedTurn:
    """A finish value that no table knows, whatever came with it."""
    whole = say(turn) if isinstance(turn, str) else turn
    return msgspec.structs.replace(whole, finish="unknown_finish", finish_raw=raw)


def lost(turn: ScriptedTurn | str = "", *, after_chars: int | None = None) -> ScriptedTurn:
    """The connection breaks after so many characters of the text (all of it unless said)."""
    whole = say(turn) if isinstance(turn, str) else turn
    count = len(whole.text) if after_chars is None else after_chars
    return msgspec.structs.replace(whole, lost_after_chars=count)


def failed(code: str = "overloaded", *, retryable: bool = True, retry_after_ms: int = 0) -> ScriptedTurn:
    """The provider answers with an error, perhaps with a time to wait."""
    return ScriptedTurn(
        finish="provider_error",
        finish_raw="error",
        error_code=code,
        retryable=retryable,
        retry_after_ms=retry_after_ms,
        usage=None,
    )


def late(turn: ScriptedTurn, ms: int) -> ScriptedTurn:
    """The same, that much later by the model's clock."""
    return msgspec.structs.replace(turn, late_ms=ms)


def held(turn: ScriptedTurn, gate: str) -> ScriptedTurn:
    """The same, once the model's gate of that name is opened."""
    return msgspec.structs.replace(turn, gate=gate)
