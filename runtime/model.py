"""What passes between the interpreter and a model, in neutral words.

An adapter turns a ``ModelInput`` into its provider's request and the provider's answer into a ``ModelTurn``. It hands
over raw argument bytes; it never parses, repairs or authorises. Which finish may run calls, and which may end a run,
is the table ``FINISH``: everything that isn't listed as executable or final is neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from .tool_definition import ToolDefinition

FinishKind = Literal[
    "calls",
    "final",
    "truncated",
    "refused",
    "filtered",
    "paused",
    "context_exceeded",
    "model_error",
    "provider_error",
    "transport_broken",
    "unknown_finish",
]


class FinishRule(msgspec.Struct, frozen=True):
    """What a finish permits. ``executable``: its calls may be proposed. ``final``: its text may be judged as an answer.
    ``retry``: the request may be sent again, within the limits."""

    executable: bool = False
    final: bool = False
    retry: bool = False


FINISH: dict[FinishKind, FinishRule] = {
    "calls": FinishRule(executable=True),
    "final": FinishRule(final=True),
    "truncated": FinishRule(),
    "refused": FinishRule(),
    "filtered": FinishRule(),
    "paused": FinishRule(),
    "context_exceeded": FinishRule(),
    "model_error": FinishRule(retry=True),
    "provider_error": FinishRule(retry=True),
    "transport_broken": FinishRule(retry=True),
    "unknown_finish": FinishRule(retry=True),
}


class Usage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Tokens as the provider reported them. ``input_tokens`` includes the cached ones, ``output_tokens`` the
    reasoning ones. None means not reported, which is never taken for zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0


class SideAttempt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A further model request that an adapter made within one request, such as a router's question to a chooser.
    ``usage`` None: not reported. ``cost_micros``: what it cost, where the adapter knows; None for the declared price."""

    model: str
    usage: Usage | None = None
    cost_micros: int | None = None
    purpose: str = "router"


class ProposedCall(msgspec.Struct, frozen=True, gc=False):
    """A call as the model wrote it. ``arguments`` are the raw bytes; ``provider_call_id`` may be empty or repeated.
    ``withheld``: the path of a secret that was taken out of them on entry; no adapter sets it."""

    name: str
    arguments: bytes
    provider_call_id: str = ""
    withheld: str = ""


class ModelTurn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One normalised answer of a model. Times are milliseconds from sending; 0 means not measured.

    ``finish`` other than ``calls`` and ``final`` never executes and never completes anything. ``retryable`` and
    ``retry_after_ms`` only count for finishes that may be retried. ``hosted`` names provider-side tool blocks.
    ``side_attempts``: what else the adapter asked models for it, failed ones too; None: nobody knows how many there were.
    ``token_data``: token ids, log-probabilities, masks, as the backend wrote them, of at most ``token_data.TOKEN_DATA_BYTES_MAX``
    bytes; kept as a blob beside the log and read by nobody here. None: none came.
    """

    finish: FinishKind
    finish_raw: str = ""
    text: str = ""
    calls: tuple[ProposedCall, ...] = ()
    usage: Usage | None = None
    response_id: str = ""
    served_model: str = ""
    continuation: bytes | None = None
    error_code: str = ""
    safe_message: str = ""
    retryable: bool = True
    retry_after_ms: int = 0
    hosted: tuple[str, ...] = ()
    first_token_ms: int = 0
    total_ms: int = 0
    side_attempts: tuple[SideAttempt, ...] | None = ()
    token_data: bytes | None = None


class UserItem(msgspec.Struct, frozen=True, array_like=True, tag="user", gc=False):
    """What a person or the caller said."""

    text: str


class NoteItem(msgspec.Struct, frozen=True, array_like=True, tag="note", gc=False):
    """What the runtime says to the model: a missing piece of evidence, a corrective request."""

    text: str


class DigestItem(msgspec.Struct, frozen=True, array_like=True, tag="digest", gc=False):
    """Records in place of earlier turns, and facts that the host recorded. Much of it is what far sides wrote, so an adapter
    gives it the authority of a tool's result: never that of the runtime or a user."""

    text: str


class AssistantCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call inside an assistant item: the runtime's id, the provider's label, the name and the raw arguments."""

    call_id: str
    provider_call_id: str
    name: str
    arguments: bytes


class AssistantItem(msgspec.Struct, frozen=True, array_like=True, tag="assistant", gc=False):
    """A model turn as it must be sent back: text, all its calls, and the provider's opaque continuation."""

    text: str
    calls: tuple[AssistantCall, ...] = ()
    continuation: bytes | None = None


class ResultItem(msgspec.Struct, frozen=True, array_like=True, tag="result", gc=False):
    """One bound result. ``content`` is the canonical JSON of the ``model_result`` projection, all a model ever sees."""

    call_id: str
    provider_call_id: str
    name: str
    is_error: bool
    content: bytes


Item = UserItem | NoteItem | DigestItem | AssistantItem | ResultItem


class ModelInput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. ``items`` is the whole history in order; adapters must not keep or change it. ``hosted``: the provider's own tools
    that may be at work for it; an adapter asks for no other. ``side_attempts_max``: how many side attempts are set aside for it; an
    adapter makes no more."""

    run_id: str
    turn: int
    attempt: int
    model: str
    system: str
    items: Sequence[Item]
    tools: tuple[ToolDefinition, ...]
    output_tokens_max: int
    request_sha256: bytes
    hosted: tuple[str, ...] = ()
    side_attempts_max: int = 0
