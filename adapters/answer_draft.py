"""An answer while it is read, whatever its family, and the turn that it becomes.

Nothing here is executable: only ``turn_of`` says what a draft means, and only once the API's own terminal event arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from ..runtime.model import ModelTurn, ProposedCall, Usage
from .finish_table import MESSAGES, NOT_SENT_AGAIN, Facts, FinishRow, row_of
from .provider_errors import MESSAGE_CHARS_MAX, NATIVE_CHARS_MAX, refusal, request_id_in
from .secret import Secret, safe_text, without
from .sse import Frame
from .token_data import TokenPieces

LABEL_CHARS_MAX: Final = 256

SHORT_ID_CHARS: Final = 128
"""A longer id of a call also travels with the opaque state: the runtime's own record of it is bounded, and cuts."""

CALL_ID_CHARS_MAX: Final = 16_384
"""Some servers put signatures into ids. Up to this they go back whole; an answer with a longer one is refused."""

CALLS_MAX: Final = 4_096
"""More calls in one answer than this are no answer. The runtime's own bound, far lower, refuses calls one by one."""

UNKNOWN_NAMES_MAX: Final = 64


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """What is known beside an answer's bytes. ``headers`` have lower-case names; ``now_ms`` is Unix time; ``secrets`` are
    taken out of every label and message of the server's, and not out of what the model wrote."""

    status: int = 200
    headers: Mapping[str, str] = {}
    now_ms: int = 0
    secrets: Sequence[Secret] = ()


class Misread(Exception):
    """The answer can't be one. ``finish`` is ``model_error`` or ``provider_error``."""

    def __init__(self, code: str, message: str, *, model: bool = False) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.model = model


class TextSeen(msgspec.Struct, frozen=True):
    """Visible text that arrived."""

    text: str


class CallSeen(msgspec.Struct, frozen=True):
    """A call that the model began to write."""

    index: int
    name: str


Sign = TextSeen | CallSeen


class CallDraft:
    """A call as far as it arrived. ``whole``: what the family's API has for "its arguments are complete"."""

    __slots__ = ("arguments", "label", "name", "odd", "pieces", "whole")

    def __init__(
        self,
        name: str = "",
        arguments: bytes = b"",
        label: str = "",
        *,
        whole: bool = True,
        odd: bool = False,
    ) -> None:
        self.name = name
        self.label = label
        self.arguments = arguments
        self.pieces: list[str] = []
        self.whole = whole
        self.odd = odd


class Draft:
    """What was read so far. ``native``: the finish value as it came. ``ended``: the terminal event arrived. ``error``: the
    body of an error in a good answer's place. ``hosted``: the provider's own tools that were at work. ``unknown``: what was
    kept and skipped, by kind. ``signs``: what may be shown, until it is taken. ``tokens``: what was said of single tokens."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.calls: list[CallDraft] = []
        self.native: object = None
        self.finish_raw = ""
        self.ended = False
        self.message = True
        self.error: bytes | None = None
        self.usage: Usage | None = None
        self.response_id = ""
        self.served_model = ""
        self.hosted: list[str] = []
        self.unknown: Counter[str] = Counter()
        self.signs: list[Sign] = []
        self.tokens = TokenPieces()

    def skip(self, kind: str) -> None:
        """Count something that isn't known."""
        name = kind[:LABEL_CHARS_MAX]
        if name in self.unknown or len(self.unknown) < UNKNOWN_NAMES_MAX:
            self.unknown[name] += 1

    def facts(self) -> Facts:
        """What stands in the second column of the table of finish values."""
        return Facts(
            calls=bool(self.calls),
            refused=bool(self.refusals),
            message=self.message,
            odd=any(call.odd for call in self.calls),
            arguments_missing=any(not call.arguments for call in self.calls),
            cut_call=any(not call.whole for call in self.calls),
        )


class Assembly(Protocol):
    """One family's reading of one answer. Every method may raise ``Misread``, ``JsonRefused``, ``ValueError`` or
    ``RecursionError``; the answer is none then."""

    draft: Draft
    ends_with_eof: bool
    """The end of the bytes belongs to the terminal event: a later frame may say more."""

    ends_at_once: bool
    """Nothing that anybody needs comes behind the terminal event."""

    def rows(self) -> tuple[FinishRow, ...]:
        """The table of finish values."""
        ...

    def body(self, body: bytes) -> None:
        """A whole answer."""
        ...

    def frame(self, frame: Frame) -> None:
        """One event of a stream."""
        ...

    def settle(self) -> None:
        """The stream is over, and its terminal event arrived: make of the pieces what a whole answer would be."""
        ...

    def continuation(self, calls: Sequence[ProposedCall]) -> bytes | None:
        """The opaque state that goes back with this turn; None for none."""
        ...


def turn_of(assembly: Assembly, exchange: Exchange) -> ModelTurn:
    """The turn of a draft that ended, or that holds an error."""
    draft = assembly.draft
    if draft.error is not None:
        turn = refused_in_answer(draft.error, exchange)
        if draft.ended and draft.finish_raw:
            native = safe_text(draft.finish_raw, NATIVE_CHARS_MAX, exchange.secrets)
            turn = msgspec.structs.replace(turn, finish_raw=native)
        return identified(draft, turn, exchange)
    if len(draft.calls) > CALLS_MAX:
        raise Misread("too_many_calls", f"the answer holds over {CALLS_MAX} calls", model=True)
    calls = tuple(_call(call, exchange.secrets) for call in draft.calls)
    if any(len(call.provider_call_id) > CALL_ID_CHARS_MAX for call in calls):
        raise Misread("call_id_too_long", f"the id of a call is over {CALL_ID_CHARS_MAX} characters")
    row = row_of(assembly.rows(), draft.native, draft.facts())
    failed = row.finish in ("model_error", "provider_error", "unknown_finish")
    text = "".join(draft.texts)
    turn = ModelTurn(
        finish=row.finish,
        finish_raw=safe_text(draft.finish_raw, NATIVE_CHARS_MAX, exchange.secrets),
        text=text or ("".join(draft.refusals) if row.finish == "refused" else ""),
        calls=calls,
        continuation=None if failed else assembly.continuation(calls),
        error_code=row.code,
        safe_message=MESSAGES.get(row.code, ""),
        retryable=row.code not in NOT_SENT_AGAIN,
        hosted=tuple(safe_text(name, LABEL_CHARS_MAX, exchange.secrets) for name in draft.hosted),
        token_data=None if failed else draft.tokens.blob(),
    )
    return identified(draft, turn, exchange)


def identified(draft: Draft, turn: ModelTurn, exchange: Exchange) -> ModelTurn:
    """The turn with what the draft knows about its answer. Usage of an answer that didn't end is a part of it, so unknown."""
    return msgspec.structs.replace(
        turn,
        usage=(draft.usage if draft.ended else None) or turn.usage,
        response_id=safe_text(draft.response_id, LABEL_CHARS_MAX, exchange.secrets) or turn.response_id,
        served_model=safe_text(draft.served_model, LABEL_CHARS_MAX, exchange.secrets),
    )


def refused_in_answer(error: bytes, exchange: Exchange) -> ModelTurn:
    """The turn of an error object in a good answer's place."""
    return refusal(200, exchange.headers, error, now_ms=exchange.now_ms, secrets=exchange.secrets)


def misread(draft: Draft, error: Misread, exchange: Exchange) -> ModelTurn:
    """The turn of an answer that can't be one."""
    turn = ModelTurn(
        finish="model_error" if error.model else "provider_error",
        finish_raw=error.code,
        error_code=error.code,
        safe_message=error.message[:MESSAGE_CHARS_MAX],
        response_id=_request_id(exchange),
    )
    return identified(draft, turn, exchange)


def broken_off(
    draft: Draft, code: str, message: str, exchange: Exchange, *, retryable: bool = True
) -> ModelTurn:
    """The turn of an answer whose end didn't arrive. What of it was read is text at most, never a call."""
    turn = ModelTurn(
        finish="transport_broken",
        finish_raw=code,
        error_code=code,
        safe_message=message[:MESSAGE_CHARS_MAX],
        text="".join(draft.texts),
        retryable=retryable,
        response_id=_request_id(exchange),
    )
    return msgspec.structs.replace(identified(draft, turn, exchange), usage=None)


def _request_id(exchange: Exchange) -> str:
    return safe_text(request_id_in(exchange.headers), NATIVE_CHARS_MAX, exchange.secrets)


def _call(call: CallDraft, secrets: Sequence[Secret]) -> ProposedCall:
    """An id that holds a secret is none: altered it would be of no use to the server."""
    label = call.label if without(call.label, secrets) == call.label else ""
    return ProposedCall(without(call.name, secrets), call.arguments, label)
