"""Kill switches: ``switch on``, ``switch off`` and ``switch list``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from .cli_output import OK, Output, Refused
from .cli_session import Session, approver, on_store
from .cli_text import safe_text, when

if TYPE_CHECKING:
    from ..eventstore.port import EventStore, Switch

Scope = Literal["global", "tenant", "tool"]
_SCOPES: tuple[Scope, ...] = ("global", "tenant", "tool")
RUNS_SEARCHED_MAX = 200
SWITCH_COLUMNS = ("scope", "target", "by", "since", "reason")


@click.group()
def switch() -> None:
    """Stop or permit new effects. What a switch stops is refused, never queued."""


@switch.command("on")
@click.argument("scope", type=click.Choice(_SCOPES))
@click.argument("target", required=False, default="", metavar="[NAME]")
@click.option("--reason", default="")
@on_store
async def turn_on(session: Session, scope: str, target: str, reason: str) -> int:
    """Stop new effects: of everything, of one tenant, or of one tool."""
    made = _made(session, scope, target, reason)
    await session.store.set_switch(made, on=True)
    _say(session.out, made, "on")
    if made.scope == "tool" and not await _is_pinned(session.store, made.target):
        session.out.note(
            f"None of the latest {RUNS_SEARCHED_MAX} runs has a tool of that name: is it written right?"
        )
    return OK


@switch.command("off")
@click.argument("scope", type=click.Choice(_SCOPES))
@click.argument("target", required=False, default="", metavar="[NAME]")
@on_store
async def turn_off(session: Session, scope: str, target: str) -> int:
    """Permit effects again."""
    made = _made(session, scope, target, "")
    if not any(
        (one.scope, one.target) == (made.scope, made.target) for one in await session.store.switches()
    ):
        raise Refused("switch_not_on", "that switch isn't on", path=f"{scope} {target}".strip())
    await session.store.set_switch(made, on=False)
    _say(session.out, made, "off")
    return OK


@switch.command("list")
@on_store
async def list_switches(session: Session) -> int:
    """Switches that are on."""
    rows = [
        {
            "scope": one.scope,
            "target": one.target,
            "by": one.by,
            "since": when(one.at_ms),
            "reason": one.reason,
        }
        for one in await session.store.switches()
    ]
    session.out.rows(SWITCH_COLUMNS, rows)
    return OK


def _made(session: Session, scope: str, target: str, reason: str) -> Switch:
    from ..eventstore.port import Switch

    if (scope == "global") == bool(target):
        raise click.UsageError("global takes no name" if target else f"name the {scope}")
    known: dict[str, Scope] = {one: one for one in _SCOPES}
    return Switch(
        scope=known[scope], target=target, by=approver(), reason=reason, at_ms=max(0, session.store.now_ms())
    )


def _say(out: Output, made: Switch, state: str) -> None:
    if out.form == "table":
        target = f" {safe_text(made.target)}" if made.target else ""
        out.line(f"Switch {made.scope}{target} is {state}, by {safe_text(made.by)}.")
    else:
        out.thing({"scope": made.scope, "target": made.target, "state": state, "by": made.by})


async def _is_pinned(store: EventStore, tool: str) -> bool:
    """Whether a recent run has this tool; a store without runs has none to tell by."""
    from ..eventstore.history import PinsCache, pins_of, read_records
    from ..eventstore.port import RunFilter
    from ..runtime.errors import StoreError
    from ..runtime.events import RunStarted

    pins = PinsCache()
    runs = await store.runs(RunFilter(limit=RUNS_SEARCHED_MAX))
    for run in runs:
        try:
            started = (await read_records(store, run.run_id, to_seq=1))[0].event
            if not isinstance(started, RunStarted):
                continue
            pinned = await pins_of(store, started.pins_sha256, pins)
        except StoreError:
            return True  # a run that can't be read may have it
        if any(one.name == tool for one in pinned.tools):
            return True
    return not runs
