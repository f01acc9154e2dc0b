"""Types that pydantic reads. Imported only when a tool is declared with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pydantic

from .canonical import JSON
from .errors import DeclarationError
from .schema import Schema


def adapt(annotation: Any, path: str) -> tuple[Schema, Schema, Callable[[JSON], object]]:
    """A type's schema, the `$defs` it needs, and its strict decoder (from JSON, so that dates and enums are text)."""
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
        schema = cast(Schema, adapter.json_schema(ref_template="#/$defs/{model}"))
    except (pydantic.PydanticUserError, pydantic.PydanticSchemaGenerationError) as error:
        raise DeclarationError(
            "annotation_unsupported", "pydantic has no JSON Schema for it", path=path
        ) from error
    defs = cast(Schema, schema.pop("$defs", {}))

    def decode(value: JSON) -> object:
        return adapter.validate_json(msgspec.json.encode(value), strict=True)

    return schema, defs, decode
