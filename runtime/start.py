"""Starting a run: what is refused before anything is written, and the first event."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

import msgspec

from . import events as e
from .errors import DeclarationError
from .pins import Pins, encode_pins
from .taint import INPUT, TaintSource

INPUT_BYTES_MAX = 1_048_576
NAME_CHARS_MAX = 200


class NewRunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who starts what, under which names. All names are 1 to 200 characters without control characters. ``dense``: the
    run may share its host with many others. ``input_trust``: whether outsiders wrote the input.
    ``given``: typed inputs (``provenance.given_bytes``)."""

    run_id: str
    input: str
    operation_id: str
    tenant: str = "default"
    principal: str = "local"
    agent: str = "agent"
    application: str = ""
    as_of: str = ""
    trace: str = ""
    on_stop: str = "suspend"
    dense: bool = False
    input_trust: Literal["trusted", "untrusted"] = "trusted"
    given: bytes = b""


def start_run(spec: NewRunSpec, pins: Pins) -> tuple[e.RunStarted, bytes, bytes]:
    """``run_started`` with the pins' hash and bytes. Raises ``DeclarationError``: a name or input out of bounds, a cost
    limit with a model whose price is unknown."""
    for field in ("run_id", "operation_id", "tenant", "principal", "agent"):
        value = getattr(spec, field)
        if not 0 < len(value) <= NAME_CHARS_MAX or not value.isprintable():
            raise DeclarationError("name", f"1 to {NAME_CHARS_MAX} printable characters", path=field)
    try:
        size = len(spec.input.encode())
    except UnicodeEncodeError:
        raise DeclarationError("input_encoding", "the input holds a lone surrogate", path="input") from None
    if size > INPUT_BYTES_MAX:
        raise DeclarationError("input_size", f"{size} bytes, at most {INPUT_BYTES_MAX}", path="input")
    if not pins.priced and pins.limits.cost_micros is not None:
        of = "the side attempts of " if pins.price is not None else ""
        raise DeclarationError(
            "price_unknown",
            f"no price for {of}model {pins.model!r}: give one, or waive the cost limit",
            path="cost",
        )
    encoded = encode_pins(pins)
    digest = sha256(encoded).digest()
    event = e.RunStarted(
        run_id=spec.run_id,
        tenant=spec.tenant,
        principal=spec.principal,
        operation_id=spec.operation_id,
        agent=spec.agent,
        input=spec.input,
        pins_sha256=digest,
        application=spec.application,
        as_of=spec.as_of,
        trace=spec.trace,
        on_stop="end" if spec.on_stop == "end" else "suspend",
        dense=spec.dense,
        tainted_by=() if spec.input_trust == "trusted" else (TaintSource(INPUT, "", True),),
        given=spec.given,
    )
    return event, digest, encoded
