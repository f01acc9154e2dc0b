"""What each family's finish values mean, as tables: the first row that fits counts. ``docs/finish-reasons.md`` is their print.

The calls themselves say that there are calls, never the finish value; whether they may run, and whether a text is an
answer, the finish value must say. A value that no row names is ``unknown_finish``: never final, never executable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from ..runtime.model import FinishKind


class Facts(NamedTuple):
    """What came along with a finish value. ``odd``: something was called that is no function. ``arguments_missing``: a
    call came without any argument text. ``cut_call``: a call that the API itself doesn't call whole."""

    calls: bool = False
    refused: bool = False
    message: bool = True
    odd: bool = False
    arguments_missing: bool = False
    cut_call: bool = False


ANYTHING: Final = "anything"
HAVING: Final[Mapping[str, Callable[[Facts], bool]]] = {
    ANYTHING: lambda facts: True,
    "a refusal": lambda facts: facts.refused,
    "a call of something that is no function": lambda facts: facts.odd,
    "a call that isn't whole": lambda facts: facts.cut_call,
    "calls, all with arguments": lambda facts: facts.calls and not facts.arguments_missing,
    "a call without arguments": lambda facts: facts.calls and facts.arguments_missing,
    "calls": lambda facts: facts.calls,
    "no calls": lambda facts: not facts.calls,
    "no message at all": lambda facts: not facts.calls and not facts.message,
}
"""The second column, by the words that stand in the document."""


class FinishRow(msgspec.Struct, frozen=True):
    """One row: any of these values (none: every value), with this along, means this. ``code`` says what is wrong."""

    values: tuple[str, ...]
    having: str
    finish: FinishKind
    code: str = ""
    retryable: bool = True


ANY: Final[tuple[str, ...]] = ()
NONE: Final = ""
"""Null, missing or empty."""


def _rows(*rows: tuple[str | tuple[str, ...], str, FinishKind, str]) -> tuple[FinishRow, ...]:
    return tuple(
        FinishRow(values if isinstance(values, tuple) else (values,), having, finish, code)
        for values, having, finish, code in rows
    )


UNKNOWN: Final = FinishRow(ANY, ANYTHING, "unknown_finish", "unknown_finish")

OPENAI_CHAT: Final = _rows(
    ("content_filter", ANYTHING, "filtered", ""),
    (ANY, "a refusal", "refused", ""),
    (("length", "max_tokens", "model_length"), ANYTHING, "truncated", ""),
    (("error", "insufficient_system_resource"), ANYTHING, "provider_error", "finish_error"),
    (ANY, "a call of something that is no function", "model_error", "call_type"),
    # Some servers leave it out beside calls. It is never final, and nothing says then that an empty argument text is one
    # and not a cut one.
    (NONE, "calls, all with arguments", "calls", ""),
    (NONE, "a call without arguments", "unknown_finish", "arguments_missing"),
    (NONE, "no calls", "unknown_finish", "unknown_finish"),
    # Servers also say ``stop`` when a tool was forced.
    (("tool_calls", "function_call", "stop"), "calls", "calls", ""),
    (("tool_calls", "function_call"), "no calls", "model_error", "calls_missing"),
    ("stop", "no message at all", "model_error", "no_message"),
    ("stop", "no calls", "final", ""),
)

OPENAI_CHAT_STREAM: Final = tuple(row for row in OPENAI_CHAT if row.values != (NONE,))
"""In a stream the finish value is the only sign that it is whole, so there none is never the end of one."""

OPENAI_RESPONSES: Final = _rows(
    ("incomplete/content_filter", ANYTHING, "filtered", ""),
    ("failed", ANYTHING, "provider_error", "response_failed"),
    ("cancelled", ANYTHING, "provider_error", "response_cancelled"),
    (("in_progress", "queued"), ANYTHING, "provider_error", "not_finished"),
    (ANY, "a refusal", "refused", ""),
    (
        ("incomplete", "incomplete/max_output_tokens", "incomplete/max_messages", "incomplete/steered"),
        ANYTHING,
        "truncated",
        "",
    ),
    ("completed", "a call that isn't whole", "model_error", "call_incomplete"),
    ("completed", "calls", "calls", ""),
    ("completed", "no calls", "final", ""),
)

ANTHROPIC: Final = _rows(
    ("refusal", ANYTHING, "refused", ""),
    (("max_tokens", "model_context_window_exceeded"), ANYTHING, "truncated", ""),
    ("pause_turn", "calls", "model_error", "paused_with_calls"),
    ("pause_turn", "no calls", "paused", ""),
    (("tool_use", "end_turn", "stop_sequence"), "a call that isn't whole", "model_error", "call_incomplete"),
    (("tool_use", "end_turn", "stop_sequence"), "calls", "calls", ""),
    ("tool_use", "no calls", "model_error", "calls_missing"),
    (("end_turn", "stop_sequence"), "no calls", "final", ""),
)

GEMINI: Final = _rows(
    ("promptFeedback", ANYTHING, "filtered", ""),
    (
        (
            "SAFETY",
            "RECITATION",
            "LANGUAGE",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
            "IMAGE_OTHER",
            "MODEL_ARMOR",
            "ESCALATION",
            "PUP_LIMITED_DISABLED",
        ),
        ANYTHING,
        "filtered",
        "",
    ),
    ("MAX_TOKENS", ANYTHING, "truncated", ""),
    ("MALFORMED_FUNCTION_CALL", ANYTHING, "model_error", "malformed_call"),
    ("UNEXPECTED_TOOL_CALL", ANYTHING, "model_error", "unexpected_call"),
    ("TOO_MANY_TOOL_CALLS", ANYTHING, "model_error", "too_many_tool_calls"),
    ("MISSING_THOUGHT_SIGNATURE", ANYTHING, "provider_error", "signature_missing"),
    ("MALFORMED_RESPONSE", ANYTHING, "model_error", "malformed_response"),
    (("OTHER", "NO_IMAGE", "FINISH_REASON_UNSPECIFIED"), ANYTHING, "provider_error", "finish_error"),
    ("CONTINUATION", "calls", "model_error", "paused_with_calls"),
    ("CONTINUATION", "no calls", "paused", ""),
    ("STOP", "a call that isn't whole", "model_error", "call_incomplete"),
    ("STOP", "calls", "calls", ""),
    ("STOP", "no calls", "final", ""),
)

GEMINI_INTERACTIONS: Final = _rows(
    ("failed", ANYTHING, "provider_error", "interaction_failed"),
    ("cancelled", ANYTHING, "provider_error", "interaction_cancelled"),
    (("in_progress", "queued", "idle"), ANYTHING, "provider_error", "not_finished"),
    (("incomplete", "budget_exceeded"), ANYTHING, "truncated", ""),
    ("requires_continuation", "calls", "model_error", "paused_with_calls"),
    ("requires_continuation", "no calls", "paused", ""),
    (("requires_action", "completed"), "a call that isn't whole", "model_error", "call_incomplete"),
    (("requires_action", "completed"), "calls", "calls", ""),
    ("requires_action", "no calls", "model_error", "calls_missing"),
    ("completed", "no calls", "final", ""),
)

TABLES: Final[Mapping[str, tuple[FinishRow, ...]]] = {
    "openai_responses": OPENAI_RESPONSES,
    "openai_chat": OPENAI_CHAT,
    "anthropic": ANTHROPIC,
    "gemini": GEMINI,
    "gemini_interactions": GEMINI_INTERACTIONS,
}

NOT_SENT_AGAIN: Final = frozenset({"signature_missing", "response_cancelled", "interaction_cancelled"})
"""Codes of rows whose request would meet the same again."""

MESSAGES: Final[Mapping[str, str]] = {
    "calls_missing": "the model said that it calls a tool, and calls none",
    "call_type": "the model called something else than a function",
    "call_incomplete": "a call of the model isn't whole",
    "no_message": "the answer holds no message",
    "finish_error": "the server says that generating failed",
    "unknown_finish": "the answer ends in a way that isn't known",
    "arguments_missing": "nothing says that the calls are whole",
    "response_failed": "the server says that generating failed",
    "response_cancelled": "the answer was cancelled",
    "interaction_failed": "the server says that generating failed",
    "interaction_cancelled": "the answer was cancelled",
    "not_finished": "the answer isn't finished, and nobody waits for it in the background",
    "paused_with_calls": "the model was paused and calls tools at once",
    "malformed_call": "the server couldn't read the model's call",
    "unexpected_call": "the server says that the model's call isn't allowed",
    "too_many_tool_calls": "the server stopped its own tools",
    "signature_missing": "the request lacked a signature that the server asks for",
    "malformed_response": "the server couldn't read the model's answer",
}
"""For people: what each code of a row says."""


def row_of(rows: tuple[FinishRow, ...], native: object, facts: Facts) -> FinishRow:
    """The first row that fits, or ``UNKNOWN``. ``native`` may be anything that stood in the value's place."""
    value = native if isinstance(native, str) else NONE if native is None else None
    for row in rows:
        if (not row.values or value in row.values) and HAVING[row.having](facts):
            return row
    return UNKNOWN
