"""What an error of a model's provider means: one table by status, one by the server's own code, text last.

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
from ..runtime.strict_json import JsonRefused, parse_value
from .openai_chat_usage import usage_of
from .secret import Secret, safe_text

MESSAGE_CHARS_MAX: Final = 256
NATIVE_CHARS_MAX: Final = 128
RETRY_AFTER_MS_MAX: Final = 3_600_000
"""A longer wait is cut to this. A run waits without a process, and its own deadline ends it sooner if it must."""

ERROR_BYTES_MAX: Final = 256 * 1024
DETAILS_MAX: Final = 32
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

_UNAUTHORIZED: Final = BY_STATUS[401]
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
    "enforced_spend_limit_reached": _QUOTA,
    "billing_error": _QUOTA,
    "content_filter": _FILTERED,
    "tool_use_failed": _MODEL,
    "API_KEY_INVALID": _UNAUTHORIZED,
}
"""By the ``code`` or ``type`` of an error, or a reason in its details. Billing looks like a rate limit but no wait mends it."""

IN_ANSWER: Final[Mapping[str, Meaning]] = {
    "invalid_request_error": Meaning("bad_request", False),
    "invalid_prompt": Meaning("bad_request", False),
    "INVALID_ARGUMENT": Meaning("bad_request", False),
    "FAILED_PRECONDITION": Meaning("bad_request", False),
    "previous_response_not_found": Meaning("bad_request", False),
    "data_residency_mismatch": Meaning("bad_request", False),
    "bio_policy": Meaning("content_filter", False, False, "filtered"),
    "misalignment_policy_violation": Meaning("content_filter", False, False, "filtered"),
    "authentication_error": Meaning("unauthorized", False),
    "invalid_api_key": Meaning("unauthorized", False),
    "UNAUTHENTICATED": Meaning("unauthorized", False),
    "permission_error": Meaning("forbidden", False),
    "PERMISSION_DENIED": Meaning("forbidden", False),
    "not_found_error": Meaning("not_found", False),
    "model_not_found": Meaning("not_found", False),
    "NOT_FOUND": Meaning("not_found", False),
    "request_too_large": Meaning("request_too_large", False),
    "rate_limit_error": Meaning("rate_limited", True),
    "rate_limit_exceeded": Meaning("rate_limited", True),
    "RESOURCE_EXHAUSTED": Meaning("rate_limited", True),
    "slow_down": Meaning("rate_limited", True),
    "overloaded_error": Meaning("overloaded", True),
    "server_is_overloaded": Meaning("overloaded", True),
    "UNAVAILABLE": Meaning("overloaded", True),
    "timeout_error": Meaning("request_timeout", True),
    "vector_store_timeout": Meaning("request_timeout", True),
    "DEADLINE_EXCEEDED": Meaning("request_timeout", True),
    "api_error": Meaning("server_error", True),
    "server_error": Meaning("server_error", True),
    "INTERNAL": Meaning("server_error", True),
}
"""The same for an error in a good answer's place, which has no status: after 200 in a body, or in the middle of a stream."""

_context_text = re.compile(
    r"context (?:length|size|window)|(?:prompt|input) (?:is )?too long|too many (?:prompt|input) tokens"
    r"|input token count.{0,80}exceeds",
    re.IGNORECASE,
).search


class WireError(msgspec.Struct, frozen=True):
    """An error's words, whatever its shape: ``{"error": {…}}``, ``{"error": "text"}``, ``{"detail": …}``, or bare."""

    message: str = ""
    type: str = ""
    code: str = ""
    status: int = 0
    usage: Usage | None = None
    reasons: tuple[str, ...] = ()
    retry_ms: int = 0
    request_id: str = ""

    @property
    def native(self) -> str:
        """``type`` and ``code`` as they came."""
        return "|".join(part for part in (self.type, self.code) if part)


def read_error(body: bytes) -> WireError:
    """The words of an error body; none for what isn't a JSON object, or a list of one (a gateway's page is never shown)."""
    try:
        whole = parse_value(body, bytes_max=ERROR_BYTES_MAX)
    except JsonRefused:
        return WireError()
    members = whole[0] if isinstance(whole, list) and len(whole) == 1 else whole
    if not isinstance(members, dict):
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
        type=_word(found.get("type")) or _word_only(found.get("status")),
        code=_word(found.get("code")),
        status=_status(found.get("code"))
        or _status(found.get("status"))
        or _status(found.get("status_code"))
        or _status(found.get("raw_status_code"))
        or _status(members.get("status_code")),
        usage=usage,
        reasons=_reasons(found.get("details")),
        retry_ms=_retry_ms(found.get("details")) or _retry_ms_in(message),
        request_id=_word_only(members.get("request_id")),
    )


def _reasons(details: JSON) -> tuple[str, ...]:
    """Codes in an error's details: one provider names a bad key and an exhausted day there only."""
    found: list[str] = []
    if isinstance(details, dict):
        found.append(_word_only(details.get("error_code")))
    for detail in details[:DETAILS_MAX] if isinstance(details, list) else ():
        if isinstance(detail, dict):
            found.append(_word_only(detail.get("reason")))
            violations = detail.get("violations")
            found += [
                _word_only(violation.get("quotaId"))
                for violation in (violations[:DETAILS_MAX] if isinstance(violations, list) else ())
                if isinstance(violation, dict)
            ]
    return tuple(word for word in found if word)


def _retry_ms(details: JSON) -> int:
    """A wait like ``"34.4s"`` in an error's details; 0 for none."""
    for detail in details[:DETAILS_MAX] if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (found := _seconds(delay)):
            return _bounded(float(found[1]) * 1_000)
    return 0


_seconds = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s").fullmatch
_retry_text = re.compile(r"[Rr]etry in ([0-9]{1,9}(?:\.[0-9]{1,9})?)s").search


def _retry_ms_in(message: str) -> int:
    found = _retry_text(message[:4_096])
    return _bounded(float(found[1]) * 1_000) if found else 0


def _word_only(value: JSON) -> str:
    return value if isinstance(value, str) else ""


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
        retry_after_ms=(retry_after_ms(headers, now_ms=now_ms) or error.retry_ms) if retryable else 0,
        usage=error.usage or (NOTHING_USED if meaning.early and refused_at_once else None),
        response_id=safe_text(request_id_in(headers) or error.request_id, NATIVE_CHARS_MAX, secrets),
    )


REQUEST_ID_HEADERS: Final = ("x-request-id", "request-id", "x-goog-request-id", "apim-request-id")


def request_id_in(headers: Mapping[str, str]) -> str:
    """The provider's own id of a request, whatever it calls the header; "" for none."""
    return next((headers[name] for name in REQUEST_ID_HEADERS if headers.get(name)), "")


def _says_context(error: WireError) -> bool:
    return _context_text(error.message[:4_096]) is not None


def _meaning(status: int, error: WireError) -> Meaning:
    if 300 <= status <= 399:
        return REDIRECT
    for native in (*error.reasons, error.code, error.type):
        if native in BY_NATIVE:
            return BY_NATIVE[native]
    if status == 429 and any("PerDay" in reason for reason in error.reasons):
        return _QUOTA
    if status == 200:
        for native in (error.code, error.type):
            if native in IN_ANSWER:
                found = IN_ANSWER[native]
                return _CONTEXT if found.code == "bad_request" and _says_context(error) else found
    if status in (400, 413, 422) and _says_context(error):
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
