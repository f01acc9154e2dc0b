"""Wishes and observations: everything that may be put to ``decide``.

*Observations* come from the driver's own work (a model's turn, check verdicts, an execution's report). *Outside commands*
come from people and other processes through the store's ``submit``; they carry a command id, which makes them
idempotent, and are the only ones with a wire form. ``Advance`` asks for whatever the state and the time make due.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec

from .definitions import DefinitionChange
from .errors import CallerError
from .events import Rung, RungVerdict, Source, TokenData, UnknownBelow
from .ledger import LedgerRow
from .model import ModelTurn
from .taint import TaintSource


class Advance(msgspec.Struct, frozen=True, gc=False):
    """Do what is due now: the next event that state and time call for, or nothing."""


class TakeOver(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A host acquired the run under ``epoch``; intents of older epochs are closed in the same append. ``definitions``: what
    its application has otherwise of the run's tools."""

    epoch: int
    host: str
    cause: Literal["host_died", "woken", "command"]
    definitions: tuple[DefinitionChange, ...] = ()


class ModelReplied(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The adapter's answer to one request, errors included. ``tokens``: what of its token-level data is kept; the bytes are in the
    store's hands, and no longer in ``reply``."""

    turn: int
    attempt: int
    reply: ModelTurn
    tokens: TokenData | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pure rung (known, json, schema) that said no, with the text that the model may see."""

    rung: Rung
    code: str
    safe_message: str
    path: str = ""


class Admitted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that passed the pure rungs: its canonical arguments and what is derived from them."""

    arguments: bytes
    args_sha256: bytes
    key: bytes | None
    intent_sha256: bytes | None


class ChecksDone(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Verdicts of one pass over the rungs that need application code, with the key's row as looked up.

    ``recheck``: the pass right before a dispatch. ``definition_sha256``, ``handler_revision`` and ``policy_revision`` are
    those of this process now.
    ``holder_ended``: the run that holds ``row`` has ended, or can't be read any more; it will do nothing about it.
    ``preview`` is canonical JSON when a person has to be asked or was asked; ``ask`` says that one has to be. A preview
    made again must be equal to the one that was approved, so it is a function of the arguments and the resource alone.
    ``replay``: what a guardrail says of the recorded result in ``row``, and ``replay_sha256`` what it was asked about.
    """

    call: str
    recheck: bool
    admitted: Admitted | None = None
    refused: Refused | None = None
    verdicts: tuple[RungVerdict, ...] = ()
    terminal: bool = False
    ask: bool = False
    row: LedgerRow | None = None
    holder_ended: bool = False
    definition_sha256: bytes = b""
    handler_revision: str = ""
    contract_kept: bool = True
    policy_revision: str = ""
    preview: bytes | None = None
    resource_version: str = ""
    replay: RungVerdict | None = None
    replay_sha256: bytes = b""
    price_micros: int | None = None


class Guarded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A guardrail's verdict on the result of ``call``, or on the final answer where it is empty. ``input_sha256``: what was
    judged; a verdict on anything else changes nothing."""

    call: str
    verdict: RungVerdict
    input_sha256: bytes


class ClaimLost(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``append`` answered that the key is held; nothing of that append happened."""

    call: str
    row: LedgerRow


class Executed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An executor's report. ``no_effect`` is proof that nothing took effect; without it a failed effect is unknown.

    ``result`` is canonical JSON, the bounded view if ``artifact`` names the whole one. ``met`` then has the goal's
    predicates that the whole one meets, ``facts`` the declared facts that it holds, and ``values`` the
    digests of what the run watches in it. ``spent_micros``: what the tool says that the attempt cost; None if it said nothing.
    """

    call: str
    attempt: int
    outcome: Literal["succeeded", "failed", "unknown"]
    result: bytes | None = None
    code: str = ""
    safe_message: str = ""
    retryable: bool = False
    no_effect: bool = False
    duration_ms: int = 0
    artifact: bytes | None = None
    size: int = 0
    progress_sha256: bytes | None = None
    met: tuple[int, ...] | None = None
    source: Source | None = None
    facts: dict[str, bytes] = {}
    values: bytes | None = None
    spent_micros: int | None = None


class Queried(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the far side says of a key. ``unknown`` includes a query that failed.

    ``number`` is that of the order: an answer to an older query changes nothing. ``asked_at_ms`` is the store time at
    which the query was sent: what was absent then may have arrived since. ``code`` is ``output_invalid`` if the effect
    happened and its result breaks the declared type. ``met`` has the goal's predicates that the whole result meets, if
    ``result`` is a bounded view of it.
    """

    call: str
    number: int
    asked_at_ms: int
    outcome: Literal["applied", "absent", "unknown"]
    result: bytes | None = None
    reason: str = ""
    code: str = ""
    met: tuple[int, ...] | None = None
    source: Source | None = None
    values: bytes | None = None


class ChildOpened(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The child run of this call exists."""

    call: str


class ChildEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the child's own log says of its end: what it spent, how it ended, what it answered.

    ``spent`` is by the names of the lease. ``succeeded`` counts its bound successes by tool, and the effects of runs below it;
    ``effects``, ``unknown``, ``unknown_more`` and ``tainted_by`` as in ``child_settled``.
    """

    call: str
    outcome: str
    reason: str
    spent: dict[str, int]
    text: str = ""
    succeeded: dict[str, int] = {}
    effects: dict[str, int] = {}
    unknown: tuple[UnknownBelow, ...] = ()
    unknown_more: int = 0
    tainted_by: tuple[TaintSource, ...] = ()


class NothingLeft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """No run above this one has more of these limits for it."""

    limits: tuple[str, ...]


Name = Annotated[str, msgspec.Meta(max_length=200)]
Reason = Annotated[str, msgspec.Meta(max_length=1_000)]
FactJson = Annotated[str, msgspec.Meta(max_length=8_192)]
"""Room for a fact of 1,024 bytes (``facts.FACT_BYTES_MAX``) with each of its characters escaped."""
Raised = Annotated[dict[str, int], msgspec.Meta(max_length=64)]
MESSAGE_BYTES_MAX: Final = 65_536
Message = Annotated[str, msgspec.Meta(max_length=MESSAGE_BYTES_MAX)]
"""A person's text; in UTF-8 it has at most as many bytes too (``messages.send``)."""


class Outside(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", forbid_unknown_fields=True):
    """Base of commands with a wire form. ``by`` is the authenticated principal that submits, never a model's word."""

    command_id: str
    by: Name


class Approve(Outside, frozen=True, kw_only=True, tag="approve"):
    """Approve one preview, by the id of its approval."""

    approval_id: Name
    reason: Reason = ""


class Reject(Outside, frozen=True, kw_only=True, tag="reject"):
    """Say no to one preview; ``on_reject="stop"`` also ends the run."""

    approval_id: Name
    reason: Reason = ""
    on_reject: Literal["continue", "stop"] = "continue"


class Cancel(Outside, frozen=True, kw_only=True, tag="cancel"):
    """End the run: no new intent from the moment this is in the log."""

    reason: Literal["by_user", "by_parent", "kill_switch"] = "by_user"


class Resume(Outside, frozen=True, kw_only=True, tag="resume"):
    """Lift a stop."""


class Close(Outside, frozen=True, kw_only=True, tag="close"):
    """End a stopped run with the outcome and reason that it stopped with."""


class RaiseLimits(Outside, frozen=True, kw_only=True, tag="raise_limits"):
    """Higher values for named limits."""

    raised: Raised


class ResolveCall(Outside, frozen=True, kw_only=True, tag="resolve_call"):
    """A person's word on an unknown effect. ``result`` is JSON when it was applied."""

    call: Name
    outcome: Literal["applied", "absent"]
    result: str = ""
    reason: Reason = ""


class Send(Outside, frozen=True, kw_only=True, tag="send"):
    """A person's message into a run that hasn't ended."""

    text: Message


class Answer(Outside, frozen=True, kw_only=True, tag="answer"):
    """Answer one question, by its id. ``cannot``: nobody can, and there is no text; ``stop`` then also stops the run."""

    question_id: Name
    text: Message = ""
    cannot: bool = False
    stop: bool = False
    reason: Reason = ""


class TopUpChild(Outside, frozen=True, kw_only=True, tag="top_up_child"):
    """A child run that is short of ``asked`` asks its parent for more. ``by`` is ``run:`` and the child's id."""

    call: Name
    child_run: Name
    asked: Raised


class RaiseLease(Outside, frozen=True, kw_only=True, tag="raise_lease"):
    """The parent set more aside: the child's new limits, as the parent's log has them. ``by`` is ``run:`` and the parent's
    id."""

    raised: Raised


class RecordFact(Outside, frozen=True, kw_only=True, tag="record_fact"):
    """The host's word on a typed fact: its latest value. ``value`` is JSON of a text, a number, true, false or null."""

    name: Name
    value: FactJson


OutsideCommand = (
    Approve
    | Reject
    | Cancel
    | Resume
    | Close
    | RaiseLimits
    | ResolveCall
    | TopUpChild
    | RaiseLease
    | Send
    | Answer
    | RecordFact
)
Command = (
    Advance
    | TakeOver
    | ModelReplied
    | ChecksDone
    | ClaimLost
    | Executed
    | Guarded
    | Queried
    | ChildOpened
    | ChildEnded
    | NothingLeft
    | OutsideCommand
)

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder: msgspec.json.Decoder[OutsideCommand] = msgspec.json.Decoder(OutsideCommand)


class CommandAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What came of an outside command: accepted with the seq of its event, or the typed refusal."""

    accepted: bool
    seq: int = 0
    code: str = ""
    message: str = ""
    actor: str = ""


def encode_command(command: OutsideCommand) -> bytes:
    """Wire form."""
    return _encoder.encode(command)


def command_sha256(command: OutsideCommand) -> bytes:
    """What a command id stands for: the hash of the command's wire form, who submits it included."""
    return sha256(_encoder.encode(command)).digest()


def decode_command(data: bytes) -> OutsideCommand:
    """Strict decode; raises ``msgspec.ValidationError``."""
    return _decoder.decode(data)


def strict_command(command: OutsideCommand) -> OutsideCommand:
    """The command as another process would hear it. Raises ``CallerError`` if it isn't what its type says: another type
    in a field, a text beyond its bound or with a lone surrogate, a number beyond 64 bits."""
    try:
        return decode_command(encode_command(command))
    except (msgspec.MsgspecError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise CallerError("command_invalid", str(error)[:300]) from error
