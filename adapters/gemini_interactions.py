"""Gemini Interactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..runtime.errors import DeclarationError
from ..runtime.model import ModelInput
from .endpoint import definitions, endpoint, further_fields
from .gemini import GEMINI_URL
from .gemini_interactions_encode import OWNED_CONFIG, OWNED_FIELDS, InteractionsOptions, encode_request
from .http_model import HttpModel, HttpOptions
from .secret import Secret

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
        self._url, _ = endpoint(base_url, PATH, guarded=options.guarded, query="alt=sse" if stream else "")
        config: Any = (extra or {}).get("generation_config", {})
        if not isinstance(config, Mapping) or any(name in config for name in OWNED_CONFIG):
            raise DeclarationError("extra", "the runtime sets a field of this", path="generation_config")
        self._options = InteractionsOptions(
            store=store,
            hosted=definitions(hosted or {}),
            extra=further_fields(extra or {}, OWNED_FIELDS),
            stream=stream,
        )
        super().__init__(model=model, base_url=base_url, options=options, stream=stream)

    @property
    def revision(self) -> str:
        """Of encoding and options: equal revisions send equal bytes for equal input."""
        return self._options.revision()

    def _url_for(self, request: ModelInput) -> Secret:
        return self._url

    def _key_header(self, key: Secret) -> tuple[str, str]:
        return "x-goog-api-key", key.reveal()

    def _encoded(self, request: ModelInput) -> bytes:
        return encode_request(self._options, request)
