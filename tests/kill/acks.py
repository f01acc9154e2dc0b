"""What the driver notes on disk before it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """A yes that the driver got: a run that was started, or an approval that was accepted (its seq)."""

    what: Literal["started", "approved"]
    run_id: str
    seq: int = 1


def read_acks(path: Path) -> list[Ack]:
    """All of them; a line that a killed driver was still writing was no yes yet."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Ack) for line in lines]
