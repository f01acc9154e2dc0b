"""Anthropic Messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ..runtime.errors import DeclarationError
from .anthropic_encode import OWNED_FIELDS, AnthropicOptions, encode_request
from .endpoint import definitions, endpoint, further_fields
from .http_model import HttpModel, HttpOptions
from .secret import is_secret

ANTHROPIC_URL: Final = "https://api.anthropic.com/v1"
VERSION: Final = "2023-06-01"
PATH: Final = "/messages"


class AnthropicMessages(HttpModel):
    """One model behind ``base_url`` (``POST {base_url}/messages``).

    ``http``: the key and the settings of sending. ``version`` is the API's own, ``beta`` its further ones. ``strict``: mark each tool
    whose schema allows it. No sampling parameter is sent unless ``extra`` holds it; ``extra`` has ``thinking`` too. ``hosted``: the
    provider's own tools by the names that runs declare, each with its definition. Raises ``DeclarationError`` for settings that
    can't be meant.
    """

    family = "anthropic"

    def __init__(
        self,
        *,
        model: str,
        base_url: str = ANTHROPIC_URL,
        http: HttpOptions | None = None,
        version: str = VERSION,
        beta: tuple[str, ...] = (),
        stream: bool = True,
        strict: bool = False,
        parallel_tool_calls: bool | None = None,
        hosted: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        options = http or HttpOptions()
        if not is_secret(version) or (beta and not is_secret(",".join(beta))):
            raise DeclarationError("version", "printable ASCII", path="version")
        url, _ = endpoint(base_url, PATH, guarded=options.guarded)
        versions = {"anthropic-version": version}
        if beta:
            versions["anthropic-beta"] = ",".join(beta)
        settings = AnthropicOptions(
            strict=strict,
            parallel_tool_calls=parallel_tool_calls,
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
            revision=f"{settings.revision()}-{','.join(versions.values())}",
            key_header="x-api-key",
            headers=versions,
        )
