"""What an error of a Chat Completions server means: one table by status, one by the server's own code, text last.

The status says whether another attempt may do better; the native code, where it is known, knows better than the status.
``usage`` is what the server reports. Without that, of a refusal that comes before anything is generated it is zero, and
otherwise unknown: the reservation stays spent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from ..runtime.canonical import JSON
from ..runtime.model import FinishKind, ModelTurn, Usage
from ..runtime.strict_json import JsonRefused, parse_object
from .openai_chat_usage import usage_of
from .secret import Secret, safe_text

MESSAGE_CHARS_MAX: Final = 256
NATIVE_CHARS_MAX: Final = 128
RETRY_AFTER_MS_MAX: Final = 3_600_000
"""A longer wait is cut to this. A run waits without a process, and its own deadline ends it sooner if it must."""

ERROR_BYTES_MAX: Final = 256 * 1024
NOTHING_USED: Final = Usage(0, 0)


class Meaning(msgspec.Struct, frozen=True):
    """What a refusal becomes. ``early``: before anything was generated, so nothing was used."""

    code: str
    retryable: bool
    early: bool = False
    finish: FinishKind = "provider_error"


BY_STATUS: Final[Mapping[int, Meaning]] = {
    400: Meaning("bad_request", False),
    401: Meaning("unauthorized", False, True),
    402: Meaning("payment_required", False, True),
    403: Meaning("forbidden", False, True),
    404: Meaning("not_found", False, True),
    405: Meaning("not_found", False, True),
    408: Meaning("request_timeout", True),
    409: Meaning("conflict", True),
    413: Meaning("request_too_large", False, True),
    422: Meaning("bad_request", False),
    429: Meaning("rate_limited", True, True),
    503: Meaning("overloaded", True),
    529: Meaning("overloaded", True),
}
OTHER_5XX: Final = Meaning("server_error", True)
OTHER_4XX: Final = Meaning("bad_request", False)
REDIRECT: Final = Meaning("redirect", False, True)
UNEXPECTED_STATUS: Final = Meaning("unexpected_status", False)

_CONTEXT: Final = Meaning("context_exceeded", False, True, "context_exceeded")
_QUOTA: Final = Meaning("quota", False, True)
_FILTERED: Final = Meaning("content_filter", False, False, "filtered")
_MODEL: Final = Meaning("tool_use_failed", True, False, "model_error")

BY_NATIVE: Final[Mapping[str, Meaning]] = {
    "context_length_exceeded": _CONTEXT,
    "exceed_context_size_error": _CONTEXT,
    "too_many_prompt_tokens": _CONTEXT,
    "insufficient_quota": _QUOTA,
    "credit_balance_exhausted": _QUOTA,
    "billing_hard_limit_reached": _QUOTA,
    "content_filter": _FILTERED,
    "tool_use_failed": _MODEL,
}
"""By the ``code`` or ``type`` of an error. Billing looks like a rate limit but no wait mends it."""

_context_text = re.compile(
    r"context (?:length|size|window)|(?:prompt|input) (?:is )?too long|too many (?:prompt|input) tokens",
    re.IGNORECASE,
).search


class WireError(msgspec.Struct, frozen=True):
    """An error's words, whatever its shape: ``{"error": {…}}``, ``{"error": "text"}``, ``{"detail": …}``, or bare."""

    message: str = ""
    type: str = ""
    code: str = ""
    status: int = 0
    usage: Usage | None = None

    @property
    def native(self) -> str:
        """``type`` and ``code`` as they came."""
        return "|".join(part for part in (self.type, self.code) if part)


def read_error(body: bytes) -> WireError:
    """The words of an error body; none for what isn't a JSON object (a gateway's page is never shown)."""
    try:
        members = parse_object(body, bytes_max=ERROR_BYTES_MAX)
    except JsonRefused:
        return WireError()
    usage = usage_of(members.get("usage"))
    error = members.get("error")
    if isinstance(error, str) and error:
        return WireError(message=error, usage=usage)
    found = error if isinstance(error, dict) else members
    message = found.get("message")
    if not isinstance(message, str):
        detail = members.get("detail")
        message = detail if isinstance(detail, str) else ""
    return WireError(
        message=message,
        type=_word(found.get("type")),
        code=_word(found.get("code")),
        status=_status(found.get("code"))
        or _status(found.get("status"))
        or _status(found.get("raw_status_code")),
        usage=usage,
    )


def _word(value: JSON) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _status(value: JSON) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599 else 0


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, *, now_ms: int, secrets: Sequence[Secret] = ()
) -> ModelTurn:
    """The turn of an answer that is an error. ``status`` 200 is an error in a good answer's place: the status that its
    body names counts then, but not what that says of the usage, since such an answer may come late. Reported usage
    counts always. ``secrets`` are taken out of whatever the server wrote. ``now_ms``: Unix time, for a Retry-After that is a date without the server's own."""
    error = read_error(body)
    refused_at_once = status != 200
    if status < 400 and not 300 <= status <= 399 and error.status:
        status = error.status
    meaning = _meaning(status, error)
    retryable = meaning.retryable
    said = headers.get("x-should-retry", "").lower()
    if meaning.finish == "provider_error" and said in ("true", "false"):
        retryable = said == "true"
    message = safe_text(error.message, MESSAGE_CHARS_MAX, secrets)
    return ModelTurn(
        finish=meaning.finish,
        finish_raw=safe_text(error.native, NATIVE_CHARS_MAX, secrets) or str(status),
        error_code=meaning.code,
        safe_message=f"HTTP {status}" + (f": {message}" if message else ""),
        retryable=retryable,
        retry_after_ms=retry_after_ms(headers, now_ms=now_ms) if retryable else 0,
        usage=error.usage or (NOTHING_USED if meaning.early and refused_at_once else None),
        response_id=safe_text(headers.get("x-request-id", ""), NATIVE_CHARS_MAX, secrets),
    )


def _meaning(status: int, error: WireError) -> Meaning:
    if 300 <= status <= 399:
        return REDIRECT
    for native in (error.code, error.type):
        if native in BY_NATIVE:
            return BY_NATIVE[native]
    if status in (400, 413, 422) and _context_text(error.message[:4_096]):
        return _CONTEXT
    if status in BY_STATUS:
        return BY_STATUS[status]
    if 500 <= status <= 599:
        return OTHER_5XX
    if 400 <= status <= 499:
        return OTHER_4XX
    # An error under a good status, without a known code: nothing says that it will be the same again.
    return Meaning("error_in_answer", True) if status == 200 else UNEXPECTED_STATUS


# --- how long to wait -----------------------------------------------------------------------------------------------


def retry_after_ms(headers: Mapping[str, str], *, now_ms: int) -> int:
    """The wait that a failure asks for, 0 to ``RETRY_AFTER_MS_MAX``: ``retry-after-ms``, else ``retry-after`` in seconds
    or as a date, which counts from the server's own ``date`` where it sends one. What can't be read is no wait."""
    for name, scale in (("retry-after-ms", 1), ("retry-after", 1_000)):
        number = _number(headers.get(name, ""))
        if number is not None:
            return _bounded(number * scale)
    until = _date_ms(headers.get("retry-after", ""))
    if until is None:
        return 0
    since = _date_ms(headers.get("date", ""))
    return _bounded(until - (now_ms if since is None else since))


_decimal = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?").fullmatch


def _number(text: str) -> float | None:
    return float(text) if _decimal(text.strip()) else None


def _date_ms(text: str) -> int | None:
    if not text or len(text) > 64:
        return None
    try:
        return round(parsedate_to_datetime(text).timestamp() * 1_000)
    except (ValueError, OverflowError, TypeError):
        return None


def _bounded(wait_ms: float) -> int:
    return max(0, min(RETRY_AFTER_MS_MAX, round(wait_ms)))
