"""Gemini Interactions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from .endpoint import definitions, endpoint, further_fields, refuse_owned_in
from .gemini import GEMINI_URL
from .gemini_interactions_encode import OWNED_CONFIG, OWNED_FIELDS, InteractionsOptions, encode_request
from .http_model import HttpModel, HttpOptions

PATH: Final = "/interactions"


class GeminiInteractions(HttpModel):
    """One model behind ``base_url`` (``POST {base_url}/interactions``).

    ``http``: the key and the settings of sending. ``store``: let the provider keep the steps, and refer to the last interaction instead of
    sending them again. ``hosted``: the provider's own tools by the names that runs declare, each with its definition. ``extra``: further
    request fields, such as ``generation_config``. Raises ``DeclarationError`` for settings that can't be meant.
    """

    family = "gemini_interactions"

    def __init__(
        self,
        *,
        model: str,
        base_url: str = GEMINI_URL,
        http: HttpOptions | None = None,
        stream: bool = True,
        store: bool = False,
        hosted: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        options = http or HttpOptions()
        url, _ = endpoint(base_url, PATH, guarded=options.guarded, query="alt=sse" if stream else "")
        refuse_owned_in(extra or {}, "generation_config", OWNED_CONFIG)
        settings = InteractionsOptions(
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
            key_header="x-goog-api-key",
        )
