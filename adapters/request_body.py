"""What the encoders have in common: their options and the revision of those, and the parts of a body that every family has."""

from __future__ import annotations

from hashlib import sha256
from typing import ClassVar, cast

import msgspec

from ..runtime.canonical import JSON, decode_canonical
from ..runtime.model import ModelInput


class EncodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of an adapter's settings changes the bytes of a request. ``encoding`` is a family's own, and raised whenever the same
    input would become other bytes."""

    encoding: ClassVar[str] = "1"

    def revision(self) -> str:
        """Changes whenever the bytes for the same input would."""
        return f"{self.encoding}-{sha256(msgspec.json.encode(self)).hexdigest()[:12]}"


def begun(extra: bytes) -> dict[str, JSON]:
    """A body with the further fields that the application asked for, canonical as ``endpoint.further_fields`` made them."""
    return dict(cast("dict[str, JSON]", decode_canonical(extra)))


def hosted_tools(hosted: bytes, request: ModelInput) -> list[JSON]:
    """The definitions of the provider's own tools that the run declares, in its order; ``hosted`` as ``endpoint.definitions`` made it."""
    known = cast("dict[str, JSON]", decode_canonical(hosted))
    return [known[name] for name in request.hosted if name in known]


def with_field(group: JSON, name: str, value: JSON) -> JSON:
    """A group of further fields with one of the runtime's own."""
    return {**(group if isinstance(group, dict) else {}), name: value}
