"""OpenAI Responses and servers that speak it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

from .endpoint import definitions, endpoint, further_fields
from .http_model import HttpModel, HttpOptions
from .openai_chat import AUTO, OPENAI_HOST, OPENAI_URL
from .openai_responses_encode import OWNED_FIELDS, ResponsesOptions, encode_request

PATH: Final = "/responses"


class OpenAIResponses(HttpModel):
    """One model behind ``base_url`` (``POST {base_url}/responses``).

    ``http``: the key and the settings of sending. ``strict`` and ``encrypted_reasoning`` are ``"auto"``: OpenAI's own way at its
    address, off elsewhere. ``store``: let the provider keep answers; no request refers to one. ``hosted``: the provider's own tools
    by the names that runs declare, each with its definition (``{"web_search": {"type": "web_search"}}``). ``extra``: further request
    fields, none that the runtime depends on. Raises ``DeclarationError`` for settings that can't be meant.
    """

    family = "openai_responses"

    def __init__(
        self,
        *,
        model: str,
        base_url: str = OPENAI_URL,
        http: HttpOptions | None = None,
        stream: bool = True,
        strict: bool | Literal["auto"] = "auto",
        encrypted_reasoning: bool | Literal["auto"] = "auto",
        parallel_tool_calls: bool | None = None,
        store: bool = False,
        hosted: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        options = http or HttpOptions()
        url, host = endpoint(base_url, PATH, guarded=options.guarded)
        own = host == OPENAI_HOST
        settings = ResponsesOptions(
            strict=own if strict == AUTO else bool(strict),
            encrypted_reasoning=own if encrypted_reasoning == AUTO else bool(encrypted_reasoning),
            parallel_tool_calls=parallel_tool_calls,
            store=store,
            hosted=definitions(hosted or {}),
            extra=further_fields(extra or {}, OWNED_FIELDS),
            stream=stream,
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
