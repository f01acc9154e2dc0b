"""A host that lost its row, or whose own work broke: it stops, says why, and burns no time."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stepped_runtime import Site, Stepped, has

from boundloop.actors import host as hosting
from boundloop.actors.execution import Report
from boundloop.adapters.script import call, held, say
from boundloop.adapters.scripted import Gate, ScriptedModel
from boundloop.eventstore.port import HOST_VALID_MS, Append, RunRow
from boundloop.runtime import events as e
from boundloop.runtime.commands import Executed
from boundloop.runtime.errors import DiskFull, Overloaded, StoreError
from boundloop.runtime.limits import Limits
from boundloop.runtime.state import State
from boundloop.runtime.tool_spec import tool


def inner(host: Stepped) -> Any:
    return host.rt._embedded.host_of()


@tool(risk="write", key="call", approval="always")
async def pay(n: int) -> dict[str, int]:
    """Pay."""
    return {"n": n}


ASKS = [call("pay", {"n": 1}), say("done")]


def failing(site: Site, name: str, error: BaseException) -> list[int]:
    """Let one method of the store fail from now on; what is returned counts its calls."""
    asked: list[int] = []

    async def fails(*_: Any, **__: Any) -> Any:
        asked.append(1)
        raise error

    setattr(site.store, name, fails)
    return asked


def test_a_host_without_its_row_looks_for_no_more_runs(site: Site) -> None:
    """A run that is due for ever would come up again at once."""
    host = site.open(ASKS, [pay])
    host.rest(host.start(limits=Limits(cost="1", deadline_s=20)))
    asyncio.run(site.store.drop_host(inner(host).host_id))
    host.advance(2_000)
    assert inner(host).failed is not None
    asked = failing(site, "ready_runs", StoreError("away"))
    host.advance(600_000)
    assert asked == []


def test_a_host_that_cannot_renew_says_that_the_disk_is_full(site: Site) -> None:
    host = site.open([held(say("done"), "slow")])
    run_id = host.start()
    waiting = asyncio.run_coroutine_threadsafe(host.rt._embedded.result(run_id, None, "rest"), host.loop)
    host.settle()
    full = DiskFull("runs.db")
    failing(site, "renew_host", full)
    host.advance(10_000)
    with pytest.raises(StoreError, match=r"host_lost.*disk_full") as caught:
        waiting.result(30)
    assert caught.value.__cause__ is full
    with pytest.raises(StoreError, match="disk_full"):
        host.start()


@pytest.mark.parametrize("name", ["renew_host", "ready_runs"])
def test_a_bug_in_a_hosts_own_work_stops_the_host(site: Site, name: str) -> None:
    host = site.open([held(say("done"), "slow")])
    run_id = host.start()
    waiting = asyncio.run_coroutine_threadsafe(host.rt._embedded.result(run_id, None, "rest"), host.loop)
    host.settle()
    bug = ZeroDivisionError("bug")
    failing(site, name, bug)
    host.advance(120_000)
    with pytest.raises(StoreError, match=r"host_lost.*ZeroDivisionError") as caught:
        waiting.result(30)
    assert caught.value.__cause__ is bug


def test_a_bug_over_one_run_leaves_the_others_alone(site: Site) -> None:
    first = site.open(ASKS, [pay])
    broken, sound = first.start(), first.start()
    approvals = {run_id: first.rest(run_id).approvals[0].approval_id for run_id in (broken, sound)}
    first.close()
    host = site.open(first.model, [pay])
    real = inner(host)._misfit

    async def misfit(row: RunRow) -> str:
        if row.run_id == broken:
            raise ZeroDivisionError("bug")
        return str(await real(row))

    inner(host)._misfit = misfit
    for run_id, approval_id in approvals.items():
        host.rt.approve(run_id, approval_id, by="ann")
    host.settle()
    with pytest.raises(ZeroDivisionError):
        host.rest(broken)
    assert host.rest(sound).completed
    assert inner(host).failed is None


def test_a_host_full_of_runs_refuses_a_new_one_and_goes_on_with_the_old(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel([held(say("done"), "slow")])
    host = site.open(model)
    run_id = host.start()
    monkeypatch.setattr(hosting, "RUNS_MAX", 1)
    with pytest.raises(Overloaded) as caught:
        host.start(run_id="another")
    assert caught.value.retry_after_ms > 0
    assert asyncio.run(site.store.run("another")) is None
    model.gate("slow").open()
    assert host.rest(run_id).completed


def test_ready_runs_wait_while_a_host_is_full(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = site.open(ASKS, [pay])
    run_id = first.start()
    (approval,) = first.rest(run_id).approvals
    first.close()
    monkeypatch.setattr(hosting, "RUNS_MAX", 0)
    host = site.open(first.model, [pay])
    host.rt.approve(run_id, approval.approval_id, by="ann")
    host.advance(10_000)
    assert site.of(run_id, e.CallStarted) == []
    monkeypatch.setattr(hosting, "RUNS_MAX", 10)
    host.advance(60_000)
    assert host.rest(run_id).completed


def test_a_late_report_reaches_a_run_that_another_task_took_up_first(site: Site) -> None:
    """Both want the run at once: whoever comes second finds it driven already, and posts there."""

    @tool(risk="write", key="call", timeout_ms=1_000, far_side="none")
    async def send(n: int) -> dict[str, int]:
        """Send."""
        await asyncio.get_running_loop().create_future()
        return {"n": n}

    host = site.open([call("send", {"n": 1}), say("done")], [send])
    run_id = host.start()
    host.advance(2_000)
    assert host.rest(run_id).reason == "outcome_unknown"
    report = Report(Executed(call="c1.0", attempt=1, outcome="succeeded", result=b'{"n":1}'))

    async def both() -> None:
        inner(host).late(run_id, report)
        await inner(host).take_up(run_id)

    host.on_loop(both())
    host.settle()
    (settled,) = site.of(run_id, e.CallReconciled)
    assert (settled.outcome, settled.by) == ("applied", "executor")


@pytest.mark.parametrize("told_on", [False, True])
def test_a_run_that_failed_here_with_an_effect_out_is_left_alone(site: Site, told_on: bool) -> None:
    """The effect is cancelled, and its report comes when nobody drives the run: another try would fail alike, again and again.
    A run actor tells its owner of the failure, and keeps it no longer."""

    @tool(risk="write", key="call", timeout_ms=60_000)
    async def send(n: int) -> dict[str, int]:
        """Send."""
        await asyncio.get_running_loop().create_future()
        return {"n": n}

    host = site.open([call("send", {"n": 1}), say("done")], [send])

    def tells(run_id: str, _state: State) -> None:
        inner(host).failures.pop(run_id, None)

    if told_on:
        inner(host).parked_watchers.append(tells)
    run_id = host.start()
    host.settle()
    failing(site, "append", StoreError("frame_too_large"))
    acquire, taken = site.store.acquire, list[str]()

    async def acquires(run_id: str, *args: Any, **options: Any) -> Any:
        taken.append(run_id)
        assert len(taken) < 50, "again and again"
        return await acquire(run_id, *args, **options)

    site.store.acquire = acquires  # type: ignore[method-assign]  # the store is the test's own
    with pytest.raises(StoreError, match="frame_too_large"):
        host.rt.send(run_id, "hello")
    host.advance(30_000)
    assert len(taken) < 5


def test_what_an_effect_came_to_is_heard_where_its_run_failed_and_went_on_elsewhere(site: Site) -> None:
    """The other host closed the run's intents and put it down: what it failed of here is over."""

    @tool(risk="write", key="call", timeout_ms=60_000, far_side="none")
    async def send(n: int) -> dict[str, int]:
        """Send."""
        await asyncio.get_running_loop().create_future()
        return {"n": n}

    host = site.open([call("send", {"n": 1}), say("done")], [send])
    run_id = host.start()
    host.settle()
    host.line.__dict__["append"] = _fails
    with pytest.raises(StoreError, match="frame_too_large"):
        host.rt.send(run_id, "hello")
    host.settle()  # it gives the run up after it has told of the failure
    del host.line.__dict__["append"]
    other = site.open(host.model, [send])
    assert other.rest(run_id).reason == "outcome_unknown"
    inner(host).late(run_id, Report(Executed(call="c1.0", attempt=1, outcome="succeeded", result=b'{"n":1}')))
    host.settle()
    (settled,) = site.of(run_id, e.CallReconciled)
    assert (settled.outcome, settled.by) == ("applied", "executor")


async def _fails(_request: Append) -> None:
    raise StoreError("frame_too_large")


def test_a_run_that_is_taken_up_while_its_host_closes_is_driven_by_nobody(site: Site) -> None:
    """Closing waits for a driver that is slow to stop; what comes to be in that time is not among those that it stops."""
    first = site.open(ASKS, [pay])
    parked = first.start()
    first.rest(parked)
    first.close()
    host = site.open([say("done")], [pay])
    slow = host.line.stall_at(has(e.ModelResponded))
    host.start()
    host.settle()
    acquire, asked = site.store.acquire, Gate("acquire")

    async def acquires(*args: Any, **options: Any) -> Any:
        await asked.passed()
        return await acquire(*args, **options)

    site.store.acquire = acquires  # type: ignore[method-assign]  # the store is the test's own
    inner(host).beside(inner(host).take_up(parked))
    host.settle()
    closing = asyncio.run_coroutine_threadsafe(inner(host).close(), host.loop)
    host.settle()
    assert not closing.done()
    asked.open()
    host.settle()
    assert site.of(parked, e.RunResumed) == []
    slow.open()
    host.settle()
    closing.result(30)
    row = asyncio.run(site.store.run(parked))
    assert row is not None
    assert (row.owner, row.ready) == ("", True)


def test_a_host_counts_from_when_it_asked_not_from_when_it_was_answered(site: Site) -> None:
    """The store renews the row when it is asked; by an answer that took five seconds it is half used up."""
    host = site.open([held(say("done"), "slow")])
    host.start()
    renew, late, asked = site.store.renew_host, Gate("renewal"), list[int]()

    async def renews(host_id: str) -> bool:
        asked.append(site.passed_ms)
        if len(asked) > 1:
            raise StoreError("away")
        kept = await renew(host_id)
        await late.passed()
        return kept

    site.store.renew_host = renews  # type: ignore[method-assign]  # the store is the test's own
    host.advance(2_000)
    host.advance(5_000)
    assert len(asked) == 1
    late.open()
    host.settle()
    row_ends_ms = asked[0] + HOST_VALID_MS
    host.advance(row_ends_ms - 1 - site.passed_ms)
    assert inner(host).failed is not None


def test_a_host_that_reads_its_run_again_does_not_go_on_with_another_hosts_attempt(site: Site) -> None:
    """Its store failed it just as it had a model's reply to write, and by then the run is another's, with an attempt out."""
    sent: list[asyncio.Future[None]] = []

    @tool(risk="write", key="call", timeout_ms=60_000, far_side="none")
    async def send(n: int) -> dict[str, int]:
        """Send."""
        sent.append(asyncio.get_running_loop().create_future())
        await sent[-1]
        return {"n": n}

    old = site.open([held(call("send", {"n": 1}), "slow"), say("never")], [send])
    run_id = old.start()
    old.settle()
    asyncio.run(site.store.drop_host(inner(old).host_id, died=True))
    new = site.open([call("send", {"n": 1}), say("done")], [send])
    new.advance(1)
    assert len(site.of(run_id, e.CallStarted)) == len(sent) == 1

    append = site.store.append

    async def fails_once(request: Append) -> Any:
        site.store.append = append  # type: ignore[method-assign]  # as it was
        raise StoreError(f"away from {request.run_id}")

    site.store.append = fails_once  # type: ignore[method-assign]  # the store is the test's own
    old.model.gate("slow").open()
    old.settle()
    old.advance(1_000)
    assert len(sent) == 1
    new.loop.call_soon_threadsafe(sent[0].set_result, None)
    assert new.rest(run_id).completed
    assert len(sent) == 1
