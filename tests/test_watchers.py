"""A watcher that raises is dropped and remembered; the run that it watched goes on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.adapters.script import call, say
from boundloop.runtime.commands import Cancel
from boundloop.runtime.tool_spec import tool


def breaks(error: BaseException) -> Any:
    def watch(*_: Any) -> None:
        raise error

    return watch


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_a_watcher_of_commits_that_raises_is_dropped(site: Site, error: BaseException) -> None:
    host = site.open([say("done")])
    seen: list[int] = []
    host.rt.watch(breaks(error))
    host.rt.watch(lambda run, state, events, first: seen.append(first))
    result = host.run()
    assert result.completed
    assert host.rt.watch_errors == (error,)
    assert seen[0] == 1
    assert len(seen) > 1


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1)], ids=repr)
def test_a_watcher_of_progress_that_raises_is_dropped(site: Site, error: BaseException) -> None:
    host = site.open([say("a text that is shown in several pieces, one after the other")])
    host.rt.watch_progress(breaks(error))
    assert host.run().completed
    assert host.rt.watch_errors == (error,)


def test_a_watcher_that_raises_over_a_parked_run_leaves_its_command_accepted(site: Site) -> None:
    @tool(risk="write", key="call", approval="always")
    async def pay() -> dict[str, Any]:
        """Pay."""
        return {}

    host = site.open([call("pay", {}), say("done")], [pay])
    run_id = host.start()
    host.rest(run_id)
    host.rt.watch(breaks(ValueError("x")))
    answer = host.rt.submit(run_id, Cancel(command_id="k1", by="ann"))
    assert answer.accepted
    assert host.rest(run_id).reason == "by_user"
    assert len(host.rt.watch_errors) == 1
