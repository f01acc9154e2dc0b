"""``why``: one answer to "what is the matter with this run?"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

from .cli_output import Output
from .cli_session import Session, on_store
from .cli_text import plain, safe_text, span, when

if TYPE_CHECKING:
    from ..eventstore.forensics import Wait, Why


@click.command()
@click.argument("run_id", metavar="RUN")
@on_store
async def why(session: Session, run_id: str) -> int:
    """How a run stopped or on whom it waits, where it first left the straight path, and what to type next."""
    from ..eventstore.forensics import why as find_out
    from ..eventstore.reading import read_run
    from ..eventstore.unknown_below import still_unknown
    from .cli_reading import code_of, damage_view, say_damage
    from .cli_standing import standing_of

    read = await read_run(session.store, run_id)
    say_damage(session.out, read)
    state = read.whole()
    now_ms = session.store.now_ms()
    found = find_out(state, read.records, now_ms)
    if found.unknown_below:
        found = replace(found, unknown_below=await still_unknown(session.store, state))
    stands = await standing_of(session.store, read.row, state)
    if read.damage:
        # Nothing can be done with it but reading, so nothing is proposed.
        found = replace(found, waits=(), next_commands=())
    elif stands.ready:
        found = replace(found, waits=tuple(_waits_now(found, stands.gone)))
    if session.out.form != "table":
        more = {"host": stands.host_text(), "ready": stands.ready and not read.damage, **damage_view(read)}
        session.out.thing({**plain(found), **more})
        return code_of(read)
    print_why(session.out, found, now_ms, store=session.store_option)
    if not read.damage:
        for line in stands.who_goes_on(session.store_option) if state.phase != "terminated" else ():
            session.out.line(line)
    return code_of(read)


def _waits_now(found: Why, gone: str) -> Iterator[Wait]:
    """Without a host nothing is under way: what was, was left by a host that is gone."""
    for wait in found.waits:
        if wait.on not in ("executor", "model"):
            if wait.on != "host":
                yield wait
        else:
            left = f" (it was out when host {gone} died)" if gone else ""
            yield replace(wait, on="host", what=f"the next host to go on with {wait.what}{left}", until_ms=0)


_ON: Final = {
    "person": "a person",
    "key": "a key",
    "child": "a child run",
    "timer": "a timer",
    "executor": "a tool",
    "model": "the model",
    "host": "a host",
}


def print_why(out: Output, found: Why, now_ms: int, *, store: str = "") -> None:
    """For people: a few lines, the most important first. ``store`` is added to each command."""
    out.line(f"Run {safe_text(found.run_id)}: {_headline(found)}")
    if found.detail:
        out.line(f"  {safe_text(found.detail)}")
    for wait in found.waits:
        call = f" (call {safe_text(wait.call)})" if wait.call else ""
        until = f", until {when(wait.until_ms)}" if wait.until_ms else ""
        since = f", for {span(now_ms - wait.since_ms)}" if wait.since_ms else ""
        out.line(f"Waits for {_ON[wait.on]}: {safe_text(wait.what)}{call}{since}{until}")
    for name in found.unfinished:
        out.line(f"Unfinished: {safe_text(name)}")
    for number, deviation in enumerate(found.deviations):
        title = "First deviation" if number == 0 else "Then"
        call = f" {safe_text(deviation.call)}" if deviation.call else ""
        says = f": {safe_text(deviation.text)}" if deviation.text else ""
        out.line(f"{title}: {deviation.kind}, seq {deviation.seq}{call}, {safe_text(deviation.code)}{says}")
    for effect in found.unknown_effects:
        who = "a person must settle it" if effect.for_person else "being found out"
        out.line(f"Unknown effect: {safe_text(effect.call)} {safe_text(effect.tool)}, {who}")
    for one in found.unknown_below:
        what = f"{safe_text(one.call)} {safe_text(one.tool)}" if one.call else "nobody knows what it did"
        out.line(f"Unknown below: {what}, in run {safe_text(one.run)}")
    used = [row for row in found.spend if row.spent or row.reserved]
    if used:
        out.line(
            "Spent: " + ", ".join(f"{row.name} {_of(row.spent + row.reserved, row.limit)}" for row in used)
        )
    for row in found.spend:
        if row.overrun:
            out.line(f"Overrun: {row.name} by {row.overrun}")
    for command in found.next_commands:
        out.line(f"Next: {safe_text(command)}{store}")


def _headline(found: Why) -> str:
    if not found.outcome:
        return safe_text(found.status)
    how = "stopped, can be lifted" if found.resumable else "ended"
    return f"{how}: {safe_text(found.outcome)}, {safe_text(found.reason)}"


def _of(used: int, limit: int | None) -> str:
    return f"{used} (no limit)" if limit is None else f"{used}/{limit}"
