"""What reading commands say of a damaged run, whatever else they print of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cli_output import DAMAGED, OK, Output
from .cli_text import safe_text

if TYPE_CHECKING:
    from ..eventstore.reading import Reading


def code_of(found: Reading) -> int:
    """The exit code of a command that showed this run."""
    return DAMAGED if found.damage else OK


def damage_view(found: Reading) -> dict[str, Any]:
    """The damage as fields for programs; none if all is well."""
    if not found.damage:
        return {}
    bad = {"first_bad_seq": found.first_bad_seq, "last_bad_seq": found.last_bad_seq}
    return {"status": "damaged", "damaged": found.damage, **bad}


def say_damage(out: Output, found: Reading) -> None:
    """The first line of whatever is printed of a damaged run: on stdout for people, on stderr for programs, whose
    output stays what they parse."""
    if not found.damage:
        return
    where = ""
    if found.first_bad_seq:
        where = f"first bad append seq {found.first_bad_seq} to {found.last_bad_seq}: "
    good = f" Shown is what stands before it, up to seq {len(found.records)}." if where else ""
    out.alarm(f"DAMAGED: {where}{safe_text(found.damage)}.{good}")
