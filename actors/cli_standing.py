"""Where a run stands between its log and the processes: who has it, whether it is ready, and what will pick it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .cli_text import quoted, safe_text

if TYPE_CHECKING:
    from ..eventstore.port import EventStore, HostRow, RunRow
    from ..runtime.state import State


@dataclass(frozen=True, kw_only=True)
class Standing:
    """``host`` has the run now and lives; ``gone`` had it and is dead. ``ready``: nobody has it and there is something
    to do. ``others``: live hosts of the store that don't have it."""

    run_id: str
    application: str
    model: str
    tools: tuple[str, ...]
    host: HostRow | None
    gone: str
    ready: bool
    others: tuple[HostRow, ...]

    def host_text(self) -> str:
        """The host for a field; unescaped."""
        if self.host is not None:
            return _named(self.host)
        return f"{self.gone} (gone)" if self.gone else ""

    def who_goes_on(self, store: str) -> list[str]:
        """Lines for people, safe to print: what goes on with the run, or nothing if nothing has to. ``store`` is the
        option that names the store, quoted."""
        if self.host is not None:
            return [f"Host {safe_text(_named(self.host))} goes on with it."]
        if not self.ready:
            return []
        resume = f"  boundloop run {quoted(self.application or 'MODULE:SPEC')} --resume {quoted(self.run_id)}{store}"
        if not self.others:
            return [
                "Nothing runs it now. It is ready: the next Runtime on this store picks it up, or",
                resume,
            ]
        hosts = ", ".join(safe_text(_named(host)) for host in self.others)
        tools = f" and the tools {', '.join(map(safe_text, self.tools))}" if self.tools else ""
        return [
            f"It is ready. {hosts} takes it up at once if it runs the same application, or one with",
            f"the model {safe_text(self.model)}{tools} as they were. Else it leaves the run alone, and when that",
            "process has ended:",
            resume,
        ]


async def standing_of(store: EventStore, row: RunRow, state: State) -> Standing:
    """As of now; what it says of other processes may change at any time."""
    from ..eventstore.submit import proved_dead

    dead = await proved_dead(store)
    now_ms = store.now_ms()
    alive = {
        host.host_id: host
        for host in await store.hosts()
        if host.host_id not in dead and host.expires_at_ms > now_ms
    }
    host = alive.get(row.owner)
    gone = row.owner if row.owner and host is None else ""
    pins = state.pins
    return Standing(
        run_id=row.run_id,
        application=state.application,
        model=f"{pins.api_family}:{pins.model}",
        tools=tuple(tool.name for tool in pins.tools),
        host=host,
        gone=gone,
        ready=host is None
        and state.phase != "terminated"
        and not row.damaged
        and (row.ready or bool(gone) or _has_work(state, now_ms)),
        others=tuple(one for name, one in alive.items() if name != row.owner),
    )


def _has_work(state: State, now_ms: int) -> bool:
    from ..eventstore.next_commands import goes_on_by_itself
    from ..runtime.orders import pending_orders

    return goes_on_by_itself(state, now_ms) or bool(pending_orders(state, now_ms))


def _named(host: HostRow) -> str:
    return f"{host.host_id} (process {host.pid} on {host.node})"
