"""The term after an outage: hosts whose rows have expired may be coming back as this one has, and aren't taken for dead.

The other host's row is one that nobody renews, and time moves only when told to: whether it has expired is no race.
"""

from __future__ import annotations

import pytest
from tests.stepped_loop import SteppedLoop
from tests.written_runs import TOOLS, approval_of, asking

from boundloop.actors.host import Host
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.history import load_run
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import HOST_VALID_MS, HostRow
from boundloop.runtime.commands import Approve
from boundloop.runtime.events import RunResumed
from boundloop.runtime.policy import Policy
from boundloop.runtime.toolbox import Toolbox


def host_on(store: MemoryStore) -> Host:
    """One that takes up nothing by itself."""
    return Host(
        store,
        toolbox=Toolbox(list(TOOLS)),
        policy=Policy(),
        adapter=ScriptedModel([]),
        permissions_of=lambda tenant, principal: frozenset(),
        looks=False,
    )


@pytest.mark.parametrize(
    ("after_ms", "cause", "deaths"),
    [(0, "command", 0), (HOST_VALID_MS - 1, "command", 0), (HOST_VALID_MS, "host_died", 1)],
)
def test_a_command_within_the_term_counts_no_death_of_the_runs_host(
    after_ms: int, cause: str, deaths: int
) -> None:
    loop = SteppedLoop()

    async def body() -> None:
        store = MemoryStore(clock=lambda: 1_700_000_000_000 + loop.now_ms)
        run = await asking(store, "r1")
        await store.register_host(HostRow(host_id="other", node="far", pid=1, pid_start=1, boot_id="b"))
        await store.acquire("r1", "other")
        await loop.advance(HOST_VALID_MS)  # as long as the store is away from both
        host = host_on(store)
        await host.open(after=host_on(store))
        await loop.advance(after_ms)
        command = Approve(command_id="k1", by="x", approval_id=approval_of(run))
        assert (await host.submit("r1", command)).accepted
        await host.close()
        state, records = await load_run(store, "r1")
        (resumed,) = [record.event for record in records if isinstance(record.event, RunResumed)]
        assert (resumed.cause, state.counters.host_deaths) == (cause, deaths)

    try:
        loop.run_until_complete(body())
    finally:
        loop.close()
