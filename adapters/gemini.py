"""Gemini generateContent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import quote

from .endpoint import definitions, endpoint, further_fields, refuse_owned_in
from .gemini_encode import OWNED_CONFIG, OWNED_FIELDS, GeminiOptions, encode_request
from .http_model import HttpModel, HttpOptions
from .openai_chat import AUTO

GEMINI_URL: Final = "https://generativelanguage.googleapis.com/v1beta"

_third = re.compile(r"(?:^|/)gemini-(?:[3-9]|[1-9][0-9])").search


class GeminiModel(HttpModel):
    """One model behind ``base_url`` (``POST {base_url}/models/{model}:generateContent``, or ``:streamGenerateContent?alt=sse``).

    ``http``: the key and the settings of sending. ``call_ids``: ``given`` echoes the ids that came; ``always`` and ``never`` are for models
    that ask for them or refuse them. ``signatures`` is ``"auto"``: on for models of the third generation and later, which ask for a
    signature on each step's first call. ``hosted``: the provider's own tools by the names that runs declare, each with its entry of
    ``tools`` (``{"google_search": {"googleSearch": {}}}``). ``extra``: further request fields, such as ``generationConfig``. Raises
    ``DeclarationError`` for settings that can't be meant.
    """

    family = "gemini"

    def __init__(
        self,
        *,
        model: str,
        base_url: str = GEMINI_URL,
        http: HttpOptions | None = None,
        stream: bool = True,
        call_ids: Literal["given", "always", "never"] = "given",
        signatures: bool | Literal["auto"] = "auto",
        hosted: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        options = http or HttpOptions()
        name = model.removeprefix("models/")
        what = "streamGenerateContent" if stream else "generateContent"
        url, _ = endpoint(
            base_url,
            f"/models/{quote(name, safe='')}:{what}",
            guarded=options.guarded,
            query="alt=sse" if stream else "",
        )
        refuse_owned_in(extra or {}, "generationConfig", OWNED_CONFIG)
        settings = GeminiOptions(
            call_ids=call_ids,
            signatures=_third(name) is not None if signatures == AUTO else bool(signatures),
            hosted=definitions(hosted or {}),
            extra=further_fields(extra or {}, OWNED_FIELDS),
        )
        super().__init__(
            model=model,
            base_url=base_url,
            options=options,
            stream=stream,
            url=url,
            encode=partial(encode_request, settings),
            revision=f"{settings.revision()}-{'stream' if stream else 'whole'}",
            key_header="x-goog-api-key",
        )
