"""OpenAI Chat Completions and servers that speak it, without streaming: one request, one whole answer.

The wire is in ``openai_chat_encode`` and ``openai_chat_decode``, both pure; sending is ``http``. Nothing is retried here:
each attempt is the runtime's, counted and on record.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, Literal, cast
from urllib.parse import unquote_plus, urlsplit

import msgspec

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.errors import CallerError, DeclarationError
from ..runtime.foreign_text import bounded_text
from ..runtime.model import ModelInput, ModelTurn, Usage
from ..runtime.prices import Price
from .correlation import REQUEST_ID_HEADER, request_id
from .http import CONNECTIONS_MAX, RESPONSE_BYTES_MAX, HttpClient
from .http_failure import HttpFailed
from .openai_chat_decode import decode_answer
from .openai_chat_encode import OWNED_FIELDS, ChatOptions, encode_request
from .port import ProgressSink
from .provider_errors import NOTHING_USED
from .secret import Secret, is_secret, safe_text

OPENAI_URL: Final = "https://api.openai.com/v1"
OPENAI_HOST: Final = "api.openai.com"
MESSAGE_CHARS_MAX: Final = 512
HEADERS_MAX: Final = 16
REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024

LOOP_BYTES_MAX: Final = 256 * 1024
"""A larger answer is read on a thread: 8 MiB of the slowest kind take most of a second, and a loop has many runs."""

AUTO: Final = "auto"
"""OpenAI's own way at its address, the older and wider one elsewhere."""


class OpenAIChat:
    """One model behind ``base_url`` (``POST {base_url}/chat/completions``).

    The key is ``api_key``, or is read from the environment variable ``api_key_env`` at each request by whichever process
    sends it, or there is none. It is never shown, logged or sent elsewhere, and travels with the object when that is
    pickled; a variable's name is the better choice then. A key goes over plain HTTP only to this machine, unless
    ``insecure_http``.

    ``price``: None leaves it to the price table. ``output_limit_field`` and ``strict`` are ``"auto"``: by address.
    ``extra``: further request fields (``{"temperature": 0}``), none that the runtime depends on. ``headers``: further
    headers, kept as secrets. ``send_request_id``: send ``X-Client-Request-Id`` with run, turn and attempt.
    Raises ``DeclarationError`` for settings that can't be meant.
    """

    family = "openai_chat"

    def __init__(
        self,
        *,
        model: str,
        base_url: str = OPENAI_URL,
        api_key: str | None = None,
        api_key_env: str | None = None,
        price: Price | None = None,
        output_limit_field: Literal["auto", "max_completion_tokens", "max_tokens"] = "auto",
        strict: bool | Literal["auto"] = "auto",
        parallel_tool_calls: bool | None = None,
        system_role: Literal["system", "developer", "user"] = "system",
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        send_request_id: bool = True,
        insecure_http: bool = False,
        trust_env: bool = False,
        ca_file: str | None = None,
        connections_max: int = CONNECTIONS_MAX,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
    ) -> None:
        if not model or len(model) > 256 or not model.isprintable():
            raise DeclarationError("model", "a name of at most 256 printable characters", path="model")
        if api_key is not None and api_key_env is not None:
            raise DeclarationError("api_key", "either api_key or api_key_env", path="api_key")
        has_key = api_key is not None or api_key_env is not None or bool(headers)
        self._url, address = _chat_url(base_url, has_key=has_key and not insecure_http)
        self._shown_url = urlsplit(base_url)._replace(query="").geturl()
        self._query = _query_secrets(base_url)
        own = address == OPENAI_HOST
        self._options = ChatOptions(
            output_limit_field=output_limit_field
            if output_limit_field != AUTO
            else ("max_completion_tokens" if own else "max_tokens"),
            strict=own if strict == AUTO else bool(strict),
            parallel_tool_calls=parallel_tool_calls,
            system_role=system_role,
            extra=_extra(extra or {}),
        )
        self._key = None if api_key is None else Secret(api_key)
        self._key_env = api_key_env
        self._headers = _secret_headers(headers or {})
        self._send_request_id = send_request_id
        self._client = HttpClient(
            connections_max=connections_max,
            response_bytes_max=response_bytes_max,
            trust_env=trust_env,
            ca_file=ca_file,
        )
        self._model = model
        self._price = price

    @property
    def model(self) -> str:
        """The name that is asked for."""
        return self._model

    @property
    def price(self) -> Price | None:
        """The declared price."""
        return self._price

    @property
    def revision(self) -> str:
        """Of encoding and options: equal revisions send equal bytes for equal input."""
        return self._options.revision()

    def __repr__(self) -> str:
        return f"OpenAIChat(model={self._model!r}, base_url={self._shown_url!r})"

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        """Send once; whatever comes of it is a ``ModelTurn``. No progress: there are no deltas without streaming."""
        try:
            key = self._key_now()
            body = encode_request(self._options, request)
        except CallerError as error:
            return _unsent(error.code, str(error))
        if len(body) > REQUEST_BYTES_MAX:
            return _unsent("request_too_large", f"the request is over {REQUEST_BYTES_MAX} bytes")
        headers = self._headers_for(request, key)
        reply = await self._client.post(self._url.reveal(), headers, body, timeout_ms=timeout_ms)
        if isinstance(reply, HttpFailed):
            return _broken(reply)
        secrets = [*self._headers.values(), *self._query, *([] if key is None else [key])]
        now_ms = time.time_ns() // 1_000_000
        read = partial(decode_answer, reply.status, reply.headers, reply.body, now_ms=now_ms, secrets=secrets)
        turn = read() if len(reply.body) <= LOOP_BYTES_MAX else await asyncio.to_thread(read)
        message = self._message(turn, key, request)
        return msgspec.structs.replace(turn, total_ms=reply.total_ms, safe_message=message)

    async def close(self) -> None:
        """Give back the running loop's connections."""
        await self._client.close()

    # --- the key ------------------------------------------------------------------------------------------------------

    def _key_now(self) -> Secret | None:
        if self._key_env is None:
            return self._key
        text = os.environ.get(self._key_env, "").strip()
        if not text:
            raise DeclarationError(
                "api_key_missing", "this environment variable is empty", path=self._key_env
            )
        return Secret(text, name=self._key_env)

    def _headers_for(self, request: ModelInput, key: Secret | None) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": "boundloop",
        }
        headers.update((name, secret.reveal()) for name, secret in self._headers.items())
        if key is not None:
            headers["authorization"] = f"Bearer {key.reveal()}"
        if self._send_request_id and (one := request_id(request.run_id, request.turn, request.attempt)):
            headers[REQUEST_ID_HEADER] = one
        return headers

    def _message(self, turn: ModelTurn, key: Secret | None, request: ModelInput) -> str:
        """For people: who must act, and the provider's words, which hold no secret of ours any more."""
        text = turn.safe_message
        if not text:
            return ""
        if turn.error_code in ("unauthorized", "forbidden"):
            source = f"${self._key_env}" if self._key_env else "api_key" if key else "no key was given"
            text = f"the server doesn't accept the key ({source}); {text}"
        elif turn.error_code == "not_found":
            text = f"is the base URL right, and the model {request.model!r} there? {text}"
        elif turn.error_code == "redirect":
            text = f"redirects aren't followed; name the final base URL. {text}"
        return bounded_text(text, MESSAGE_CHARS_MAX)


def _broken(failed: HttpFailed) -> ModelTurn:
    # Before it was sent nothing was used; after that nobody knows, and the reservation stays spent.
    used: Usage | None = NOTHING_USED if failed.unsent else None
    return ModelTurn(
        finish="transport_broken",
        finish_raw=failed.code,
        error_code=failed.code,
        safe_message=failed.message,
        retryable=failed.retryable,
        usage=used,
        total_ms=failed.total_ms,
    )


def _unsent(code: str, message: str) -> ModelTurn:
    return ModelTurn(
        finish="provider_error",
        finish_raw=code,
        error_code=code,
        safe_message=safe_text(message, MESSAGE_CHARS_MAX),
        retryable=False,
        usage=NOTHING_USED,
    )


# --- settings -------------------------------------------------------------------------------------------------------


def _chat_url(base_url: str, *, has_key: bool) -> tuple[Secret, str]:
    """The URL to post to, whose query may hold a key, and its host name. The query of a base URL stays behind the path."""
    if len(base_url) > 2_048 or not base_url.isascii() or not base_url.isprintable() or " " in base_url:
        raise DeclarationError("base_url", "an http or https URL", path="base_url")
    try:
        parts = urlsplit(base_url)
        host, _port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise DeclarationError("base_url", "an http or https URL", path="base_url") from None
    if parts.scheme not in ("http", "https") or not host or parts.fragment:
        raise DeclarationError("base_url", "an http or https URL", path="base_url")
    if parts.username is not None or parts.password is not None:
        raise DeclarationError("base_url", "no user or password in a URL", path="base_url")
    if parts.scheme == "http" and has_key and not _is_loopback(host):
        raise DeclarationError(
            "insecure_http",
            "a key over plain HTTP to another machine; insecure_http=True allows it",
            path="base_url",
        )
    path = parts.path.rstrip("/")
    if not path.endswith("/chat/completions"):
        path += "/chat/completions"
    return Secret(parts._replace(path=path).geturl(), name="base_url"), host


def _query_secrets(base_url: str) -> tuple[Secret, ...]:
    """What a query says may be a key, except for the one parameter that is known to be none."""
    pairs = [part.partition("=") for part in urlsplit(base_url).query.split("&")]
    written = [value for name, _, value in pairs if value and name != "api-version"]
    plain = [unquote_plus(value) for value in written]
    return tuple(Secret(value) for value in {*written, *plain} if is_secret(value))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _extra(extra: Mapping[str, Any]) -> bytes:
    owned = sorted(OWNED_FIELDS & set(extra))
    if owned:
        raise DeclarationError("extra", "the runtime sets this field", path=owned[0])
    try:
        return canonical_bytes(cast(JSON, dict(extra)))
    except CallerError as error:
        raise DeclarationError("extra", error.message, path=f"extra{error.path[1:]}") from error


def _secret_headers(headers: Mapping[str, str]) -> dict[str, Secret]:
    if len(headers) > HEADERS_MAX:
        raise DeclarationError("headers", f"at most {HEADERS_MAX}", path="headers")
    kept: dict[str, Secret] = {}
    for name, value in headers.items():
        lower = name.lower()
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise DeclarationError("headers", "not a header's name", path="headers")
        if lower in (
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "accept-encoding",
            "content-type",
        ):
            raise DeclarationError("headers", "the client sets this header", path=lower)
        kept[lower] = Secret(value, name=lower)
    return kept
