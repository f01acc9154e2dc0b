"""OpenAI Chat Completions and servers that speak it, streamed or not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

from ..runtime.prices import Price
from .endpoint import endpoint, further_fields
from .http import CONNECTIONS_MAX, RESPONSE_BYTES_MAX
from .http_model import IDLE_MS, HttpModel, HttpOptions
from .openai_chat_encode import OWNED_FIELDS, ChatOptions, encode_request

OPENAI_URL: Final = "https://api.openai.com/v1"
OPENAI_HOST: Final = "api.openai.com"
PATH: Final = "/chat/completions"

AUTO: Final = "auto"
"""OpenAI's own way at its address, the older and wider one elsewhere."""

WITHOUT_STREAM_OPTIONS: Final = ("mistral.ai",)
"""Whose servers refuse the field, and report usage in a stream without it."""


class OpenAIChat(HttpModel):
    """One model behind ``base_url`` (``POST {base_url}/chat/completions``).

    The key is ``api_key``, or is read from the environment variable ``api_key_env`` at each request by whichever process
    sends it, or there is none. It is never shown, logged or sent elsewhere, and travels with the object when that is
    pickled; a variable's name is the better choice then. A key goes over plain HTTP only to this machine, unless
    ``insecure_http``.

    ``price``: None leaves it to the price table. ``output_limit_field`` and ``strict`` are ``"auto"``: by address.
    ``stream``: ask for a stream, so that text shows as it comes. ``stream_usage``: ask for its usage too.
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
        stream: bool = False,
        stream_usage: bool | Literal["auto"] = "auto",
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
        idle_ms: int = IDLE_MS,
        record_to: str | None = None,
    ) -> None:
        options = HttpOptions(
            api_key=api_key,
            api_key_env=api_key_env,
            headers=headers,
            price=price,
            send_request_id=send_request_id,
            insecure_http=insecure_http,
            trust_env=trust_env,
            ca_file=ca_file,
            connections_max=connections_max,
            response_bytes_max=response_bytes_max,
            idle_ms=idle_ms,
            record_to=record_to,
        )
        url, host = endpoint(base_url, PATH, guarded=options.guarded)
        own = host == OPENAI_HOST
        if stream_usage == AUTO:
            stream_usage = not host.endswith(WITHOUT_STREAM_OPTIONS)
        settings = ChatOptions(
            output_limit_field=output_limit_field
            if output_limit_field != AUTO
            else ("max_completion_tokens" if own else "max_tokens"),
            strict=own if strict == AUTO else bool(strict),
            parallel_tool_calls=parallel_tool_calls,
            system_role=system_role,
            extra=further_fields(extra or {}, OWNED_FIELDS),
            stream=stream,
            stream_usage=stream and bool(stream_usage),
        )
        super().__init__(
            model=model,
            base_url=base_url,
            options=options,
            stream=stream,
            url=url,
            encode=partial(encode_request, settings),
            revision=settings.revision(),
        )
