"""Executors as actors of a real cluster: what becomes of calls whose tools, processes and answers go wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from tests.ray import pool_tools
from tests.ray.pool_tools import CANARY, NASTY, TOOLS, lines
from tests.ray.process_table import eventually
from tests.stopping import stop

from boundloop.actors.context import ToolContext
from boundloop.actors.dispatch_wire import (
    Stop,
    WireCall,
    decode_identity,
    decode_reply,
    decode_status,
    encode_calls,
    encode_stop,
    wire_call,
)
from boundloop.actors.execution import Report
from boundloop.actors.executors import Dispatch
from boundloop.actors.places import Kind, Refused, Want
from boundloop.actors.pool_spec import Pool, shapes
from boundloop.actors.pools import Pools
from boundloop.actors.ray_calls import untyped_ray
from boundloop.actors.ray_dispatch import RayExecutors
from boundloop.actors.ray_executor import CONTROL, SyncExecutor
from boundloop.actors.ray_pool_actors import RayExecutorFactory, check_options, refuse_retries
from boundloop.actors.shipping import Shipment, pack
from boundloop.runtime.commands import Executed
from boundloop.runtime.errors import BugError, DeclarationError
from boundloop.runtime.limits import MARGIN_MS
from boundloop.runtime.policy import Policy

T = TypeVar("T")

ray: Any = untyped_ray()

NAMESPACE: Final = "executors-under-test"
LIMIT: Final = 2
GROUPS: Final = {"bank": LIMIT}
DECLARED: Final = {"default": Pool(executors=3, async_places=8)}
WAIT_S: Final = 30.0
SESSIONS: Final = Path(tempfile.gettempdir()) / f"r{os.getpid()}"
"""Short: the names of sockets are made of it."""


def shipment() -> bytes:
    return pack(
        Shipment(
            toolbox=TOOLS,
            policy=Policy(),
            adapter=None,
            permissions_of=_none,
            dependencies={"rate": 7},
            groups=GROUPS,
            application="",
        ),
        ray.cloudpickle.dumps,
    )


def _none(tenant: str, principal: str) -> frozenset[str]:
    return frozenset()


class Cluster:
    """The broker and one host, on one loop that all tests share: an executor costs a third of a second."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._number = 0
        self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 2 * WAIT_S))

    def factory(self, prefix: str, data: bytes | None = None) -> RayExecutorFactory:
        return RayExecutorFactory(
            namespace=NAMESPACE,
            prefix=prefix,
            store="s",
            revision="1",
            shipment=shipment() if data is None else data,
            pools=DECLARED,
        )

    async def _open(self) -> None:
        self.pools = Pools(shapes(DECLARED, GROUPS, TOOLS, Policy()), GROUPS, self.factory("first"))
        assert await self.pools.open(), self.pools.failures
        self.host = RayExecutors(
            self.pools,
            holder="host",
            namespace=NAMESPACE,
            store="s",
            revision="1",
            groups=GROUPS,
            dependencies={},
        )

    def close(self) -> None:
        self.run(self.host.close())
        self.run(self.pools.close())
        self.loop.close()

    def dispatch(self, tool: str, *, valid_ms: int | None = None, **arguments: Any) -> Flight:
        self._number += 1
        spec = TOOLS[tool]
        valid_ms = spec.definition.timeout_ms if valid_ms is None else valid_ms
        flight = Flight(self)
        flight.dispatch = Dispatch(
            spec=spec,
            context=ToolContext(
                run_id="r",
                call_id=f"c{self._number}",
                attempt=1,
                operation_id="o",
                tenant="t",
                principal="somebody",
                key="ab",
                valid_ms=valid_ms,
                dependencies={},
            ),
            arguments=arguments,
            epoch=1,
            valid_ms=valid_ms,
            view_bytes_max=4_096,
            deliver=flight.came,
        )
        return flight

    def start(self, tool: str, *, valid_ms: int | None = None, **arguments: Any) -> Flight:
        flight = self.dispatch(tool, valid_ms=valid_ms, **arguments)

        async def start() -> None:
            flight.cancel = self.host.start(flight.dispatch)

        self.run(start())
        return flight

    def until(self, happened: Any) -> bool:
        """Whether it came true in time; the loop runs meanwhile."""
        deadline = time.monotonic() + WAIT_S
        while not happened():
            if time.monotonic() > deadline:
                return False
            self.run(self.moment())
        return True

    async def moment(self) -> None:
        await asyncio.wait([self.loop.create_future()], timeout=0.02)

    def actor(self, kind: Kind) -> tuple[str, Any]:
        """An executor of this kind, leased for good under another host's name."""
        want = Want(
            want_id=f"test-{kind}-{self._number}-{time.monotonic_ns()}",
            host_id="test",
            tool="t",
            pool="default",
            kind=kind,
            valid_ms=60_000,
        )
        answer = self.run(self.pools.lease(want))
        assert not isinstance(answer, Refused)
        return want.want_id, ray.get_actor(answer.actor, namespace=NAMESPACE)

    def warm(self, count: int) -> None:
        """So many sync executors are up and free, so that a call's validity isn't spent on their start."""
        grants = [self.actor("sync")[0] for _ in range(count)]
        for grant in grants:
            self.back(grant)

    def back(self, grant_id: str) -> None:
        self.run(self.pools.give_back(grant_id))


class Flight:
    """One call and its reports."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.dispatch: Dispatch
        self.cancel: Any = None
        self.reports: list[Report] = []

    def came(self, report: Report) -> None:
        self.reports.append(report)

    def wire(self, grant: str = "") -> WireCall:
        return wire_call(self.dispatch, self.dispatch.valid_ms, grant)

    def end(self) -> Executed:
        assert self._cluster.until(lambda: self.reports), "no report"
        return self.reports[0].executed

    def said(self) -> tuple[str, str]:
        return self.end().outcome, self.end().code


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        namespace=NAMESPACE,
        num_cpus=4,
        logging_level=logging.ERROR,
        _temp_dir=str(SESSIONS),
    )
    made = Cluster()
    try:
        yield made
    finally:
        made.close()
        ray.shutdown()
        shutil.rmtree(SESSIONS, ignore_errors=True)


def pid_in(cluster: Cluster, path: Path, count: int = 1) -> list[int]:
    """The process ids that a tool has left there."""
    assert cluster.until(lambda: len(lines(path)) >= count), "the tool did not begin"
    return [int(line) for line in lines(path)]


def gone(pids: list[int]) -> bool:
    return not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def works(cluster: Cluster, path: Path) -> bool:
    """Whether the pool still does its job."""
    return cluster.start("pay", path=str(path)).said() == ("succeeded", "")


# --- what goes right -----------------------------------------------------------------------------------------------------


def test_a_call_runs_in_another_process_with_its_context_and_the_shipped_dependencies(
    cluster: Cluster, tmp_path: Path
) -> None:
    done = cluster.start("pay", path=str(tmp_path / "far")).end()
    assert done.outcome == "succeeded"
    assert done.result is not None
    assert f'"pid":{os.getpid()}' not in done.result.decode()
    assert b'"key":"ab"' in done.result
    assert b'"principal":"somebody"' in done.result
    assert b'"rate":7' in done.result


def test_a_large_result_comes_whole_beside_its_view_and_too_large_a_one_does_not(cluster: Cluster) -> None:
    """R20: bytes in the answer, never a reference into the object store."""
    flight = cluster.start("big", bytes_count=3_000_000)
    done = flight.end()
    assert done.outcome == "succeeded"
    assert done.size == len(flight.reports[0].artifact or b"") == 3_000_002
    assert len(done.result or b"") <= 4_096
    assert cluster.start("big", bytes_count=70_000_000).said() == ("failed", "output_invalid")


def test_short_reads_travel_together(cluster: Cluster) -> None:
    flights = [cluster.dispatch("rate", value=value, valid_ms=5_000) for value in range(64)]

    async def start() -> None:
        for flight in flights:
            cluster.host.start(flight.dispatch)

    cluster.run(start())
    assert [flight.end().result for flight in flights] == [str(value).encode() for value in range(64)]


def test_hundreds_of_short_reads_at_once_are_none_to_be_tried_again(cluster: Cluster) -> None:
    """Their time is what their own code may take: not what they waited for each other."""
    cluster.start("rate", value=1).end()
    flights = [cluster.dispatch("rate", value=value) for value in range(10_000, 10_512)]

    async def start() -> None:
        for flight in flights:
            cluster.host.start(flight.dispatch)

    cluster.run(start())
    assert [flight.end().result for flight in flights] == [
        str(value).encode() for value in range(10_000, 10_512)
    ]


# --- what goes wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "said"), [("pay_and_hang", "unknown"), ("read_and_hang", "failed")])
def test_kill_9_in_a_call_leaves_an_effect_unknown_and_a_read_to_be_tried_again(
    cluster: Cluster, tmp_path: Path, tool: str, said: str
) -> None:
    """R2, R3, R7: nothing is restarted or repeated by Ray, and the pool has a new process."""
    flight = cluster.start(tool, path=str(tmp_path / "pid"))
    (pid,) = pid_in(cluster, tmp_path / "pid")
    os.kill(pid, signal.SIGKILL)
    assert flight.said() == (said, "lost")
    assert flight.end().retryable
    assert works(cluster, tmp_path / "far")
    assert lines(tmp_path / "pid") == [str(pid)]


@pytest.mark.parametrize(("tool", "said"), [("leave", "failed"), ("leave_after_effect", "unknown")])
def test_a_process_that_ends_in_a_call_is_a_lost_executor(
    cluster: Cluster, tmp_path: Path, tool: str, said: str
) -> None:
    """R19: as the system's memory killer would end it."""
    arguments: dict[str, Any] = {"effect": True} if tool == "leave" else {"path": str(tmp_path / "far")}
    assert cluster.start(tool, **arguments).said() == (said, "lost")
    assert works(cluster, tmp_path / "other")


def test_a_spinning_tool_and_all_that_it_started_are_gone_and_its_siblings_are_not(
    cluster: Cluster, tmp_path: Path
) -> None:
    """R11, R24: programs in sessions of their own, one without an environment, and a forked child."""
    cluster.warm(2)
    sibling = cluster.start("listen", path=str(tmp_path / "sibling"))
    (beside,) = pid_in(cluster, tmp_path / "sibling")
    flight = cluster.start("spin", path=str(tmp_path / "pids"), valid_ms=5_000)
    pids = pid_in(cluster, tmp_path / "pids", 4)
    assert flight.said() == ("unknown", "timeout")
    assert cluster.until(lambda: gone(pids)), "something outlived the grace bound"
    assert _alive(beside)
    sibling.cancel()
    assert sibling.end().result == b'"stopped"'


def test_what_a_killed_executors_tool_started_is_gone_too(cluster: Cluster, tmp_path: Path) -> None:
    """R10, R24: no code of the executor runs any more when it is killed from outside."""
    flight = cluster.start("spin", path=str(tmp_path / "pids"))
    pids = pid_in(cluster, tmp_path / "pids", 4)
    # The program without an environment is found as the executor's child, which its guard looks for every second.
    moment = time.monotonic() + 2.5
    assert cluster.until(lambda: time.monotonic() > moment)
    os.kill(pids[-1], signal.SIGKILL)
    assert flight.said() == ("unknown", "lost")
    assert eventually(lambda: gone(pids), 10.0)


def test_a_stopped_process_is_given_up_at_its_validity(cluster: Cluster, tmp_path: Path) -> None:
    """R16: nobody at Ray notices that it hangs."""
    cluster.warm(1)
    flight = cluster.start("listen", path=str(tmp_path / "pid"), valid_ms=5_000)
    (pid,) = pid_in(cluster, tmp_path / "pid")
    stop(pid)
    assert flight.said() == ("unknown", "timeout")
    assert cluster.until(lambda: gone([pid]))
    assert works(cluster, tmp_path / "far")


def test_a_cancelled_sync_tool_that_listens_ends_by_itself(cluster: Cluster, tmp_path: Path) -> None:
    """R11: its executor is none the worse."""
    flight = cluster.start("listen", path=str(tmp_path / "pid"))
    (pid,) = pid_in(cluster, tmp_path / "pid")
    flight.cancel()
    assert flight.end().result == b'"stopped"'
    assert _alive(pid)


def test_a_cancelled_async_tool_is_cancelled_and_its_siblings_go_on(cluster: Cluster, tmp_path: Path) -> None:
    """R12: what an effect did by then nobody knows."""
    first, second = (cluster.start("wait_async", path=str(tmp_path / name)) for name in ("a", "b"))
    (pid,), (other,) = pid_in(cluster, tmp_path / "a"), pid_in(cluster, tmp_path / "b")
    assert pid == other
    first.cancel()
    assert first.said() == ("unknown", "cancelled")
    assert cluster.start("look_async", value=4).end().result == b"4"
    assert not second.reports
    second.cancel()
    second.end()


def test_a_deaf_read_on_a_loop_costs_its_place_and_its_siblings_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    """R12: one that swallows its cancellation is reported without its answer."""
    cluster.start("look_async", value=1).end()
    flight = cluster.start("read_deaf_async", path=str(tmp_path / "pid"), valid_ms=2_000)
    (pid,) = pid_in(cluster, tmp_path / "pid")
    assert flight.said() == ("failed", "timeout")
    assert cluster.start("look_async", value=4).end().result == b"4"
    pool_tools.note(str(tmp_path / "pid.end"), "end")
    assert cluster.until(lambda: not cluster.pools.statistics().pools["default", "async"].leased)
    assert _alive(pid)


@pytest.mark.parametrize("tool", ["deaf_async", "thread_async"])
def test_what_may_still_have_an_effect_after_its_time_ends_with_its_process(
    cluster: Cluster, tmp_path: Path, tool: str
) -> None:
    """R12: past the margin it may have been proved absent. Its siblings' effects are unknown, their reads are tried again."""
    cluster.start("look_async", value=1).end()
    sibling = cluster.start("wait_async", path=str(tmp_path / "sibling"))
    pid_in(cluster, tmp_path / "sibling")
    flight = cluster.start(tool, path=str(tmp_path / "pid"), valid_ms=2_000)
    (pid,) = pid_in(cluster, tmp_path / "pid")
    assert flight.said() == ("unknown", "timeout")
    reported = time.monotonic()
    assert cluster.until(lambda: gone([pid]))
    assert time.monotonic() - reported < MARGIN_MS / 1_000
    assert sibling.said() == ("unknown", "lost")
    assert cluster.start("look_async", value=4).end().result == b"4"


def test_an_executor_whose_holder_is_gone_is_spared_if_it_knows_that_nothing_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    """R1: and what is still on its way from there doesn't begin."""
    grant, actor = cluster.actor("async")
    call = cluster.dispatch("wait_async", path=str(tmp_path / "pid")).wire(grant)
    running = actor.run.remote(encode_calls([call]))
    (pid,) = pid_in(cluster, tmp_path / "pid")
    cluster.pools.host_gone("test")
    assert cluster.until(lambda: not cluster.pools.statistics().pools["default", "async"].leased)
    ended = decode_reply(ray.get(running, timeout=WAIT_S), (call,))
    assert ended is not None
    assert ended.reports[0].executed.code == "cancelled"
    assert _alive(pid)
    late = cluster.dispatch("wait_async", path=str(tmp_path / "late")).wire(grant)
    reply = decode_reply(ray.get(actor.run.remote(encode_calls([late])), timeout=WAIT_S), (late,))
    assert reply is not None
    assert (reply.reports[0].executed.code, reply.reports[0].executed.no_effect) == ("place_given_up", True)


def test_control_calls_are_answered_while_every_place_is_taken(cluster: Cluster, tmp_path: Path) -> None:
    """R15: on a loop with all its places taken, and in a process whose tool spins."""
    flights = [cluster.start("wait_async", path=str(tmp_path / f"{place}")) for place in range(7)]
    for place in range(7):
        pid_in(cluster, tmp_path / f"{place}")
    grant, actor = cluster.actor("async")
    status = decode_status(ray.get(actor.status.options(concurrency_group=CONTROL).remote(), timeout=5))
    assert {call for _, call, _ in status.running} == {it.dispatch.call for it in flights}
    for flight in flights:
        flight.cancel()
    assert {flight.said() for flight in flights} == {("unknown", "cancelled")}
    cluster.back(grant)

    grant, actor = cluster.actor("sync")
    call = cluster.dispatch("spin", path=str(tmp_path / "spin")).wire()
    running = actor.run.remote(encode_calls([call]))
    pids = pid_in(cluster, tmp_path / "spin", 4)
    status = decode_status(ray.get(actor.status.options(concurrency_group=CONTROL).remote(), timeout=5))
    assert status.running == (("r", call.call, 1),)
    cluster.run(cluster.pools.lost(grant, "overdue"))
    assert cluster.until(lambda: gone(pids))
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(running, timeout=WAIT_S)


def test_a_tool_that_blocks_its_loop_is_seen_from_outside(cluster: Cluster, tmp_path: Path) -> None:
    """R13: control calls have a loop of their own, and tell how late the tools' loop is."""
    flight = cluster.start("block_loop", path=str(tmp_path / "pid"), seconds=2)
    pid_in(cluster, tmp_path / "pid")
    grant, actor = cluster.actor("async")

    def lag_ms() -> int:
        return decode_status(
            ray.get(actor.status.options(concurrency_group=CONTROL).remote(), timeout=5)
        ).lag_ms

    assert cluster.until(lambda: lag_ms() > 200)
    assert flight.said() == ("succeeded", "")
    cluster.back(grant)


@pytest.mark.parametrize("tool", ["raise_it", "raise_it_async"])
def test_no_exception_of_a_tools_crosses_to_the_host(cluster: Cluster, tool: str) -> None:
    """R21: exceptions that hold locks, can't be pickled, printed or built again, are huge, or carry secrets."""
    flights = {name: cluster.start(tool, name=name) for name in NASTY}
    for name, flight in flights.items():
        done = flight.end()
        assert done.outcome == ("unknown" if tool == "raise_it" else "failed"), name
        assert done.code in ("tool_error", "cancelled"), name
        assert CANARY not in repr(done)


def test_what_tools_print_is_nowhere_in_rays_logs(cluster: Cluster) -> None:
    """R26: neither theirs nor their programs'."""
    assert cluster.start("talk", times=3).said() == ("succeeded", "")
    cluster.start("raise_it", name="secret").end()
    cluster.start("rate", value=-1).end()
    logs = SESSIONS / "session_latest"
    assert list(logs.rglob("*.log")), "there are logs to look into"
    found = subprocess.run(
        ["grep", "-rl", CANARY, f"{logs}/logs"], capture_output=True, text=True, check=False, timeout=60
    )
    assert found.stdout == ""


def test_a_batch_of_short_reads_gets_past_one_that_raises_and_one_that_hangs(cluster: Cluster) -> None:
    """R3: the one that hangs costs its process and nobody else anything."""
    cluster.start("rate", value=1, valid_ms=5_000).end()
    flights = [cluster.dispatch("rate", value=value, valid_ms=1_000) for value in (1, -1, 2, -2, 3, 4)]

    async def start() -> None:
        for flight in flights:
            cluster.host.start(flight.dispatch)

    cluster.run(start())
    outcomes = [flight.said() for flight in flights]
    fine = ("succeeded", "")
    assert outcomes == [fine, ("failed", "tool_error"), fine, ("failed", "timeout"), fine, fine]
    assert cluster.start("rate", value=5, valid_ms=5_000).said() == fine
    assert cluster.until(lambda: cluster.pools.statistics().pools["default", "quick"].up == 2)


# --- what is refused -----------------------------------------------------------------------------------------------------


def answer(actor: Any, call: WireCall) -> tuple[str, str, bool]:
    reply = decode_reply(ray.get(actor.run.remote(encode_calls([call])), timeout=WAIT_S), [call])
    assert reply is not None
    done = reply.reports[0].executed
    return done.outcome, done.code, done.no_effect


@pytest.mark.parametrize("kind", ["sync", "quick", "async"])
def test_calls_that_must_not_run_are_refused_with_proof(cluster: Cluster, tmp_path: Path, kind: Kind) -> None:
    """R1, R29: delayed, of a host that lost the run, or of another version of the tool."""
    tools: dict[Kind, tuple[str, dict[str, Any]]] = {
        "sync": ("pay", {"path": str(tmp_path / "far")}),
        "quick": ("rate", {"value": 1}),
        "async": ("look_async", {"value": 1}),
    }
    tool, arguments = tools[kind]
    grant, actor = cluster.actor(kind)
    call = cluster.dispatch(tool, valid_ms=30_000, **arguments).wire()

    def but(**fields: Any) -> WireCall:
        fields = {"attempt": next(attempts), **fields}  # the same one again would be a repetition
        return WireCall(
            **{name: fields.get(name, getattr(call, name)) for name in WireCall.__struct_fields__}
        )

    attempts = count(1)
    call = but(run_id="another", epoch=5)
    delayed = but(deadline_ns=time.monotonic_ns() - 1)
    assert answer(actor, delayed) == ("failed", "expired", True)
    assert answer(actor, but(valid_ms=0)) == ("failed", "expired", True)
    assert answer(actor, but(boot="another", deadline_ns=0))[0] == "succeeded", (
        "another machine's clock says nothing"
    )
    assert answer(actor, but(epoch=4)) == ("failed", "old_epoch", True)
    assert answer(actor, but(definition_sha256=bytes(32))) == ("failed", "definition_differs", True)
    assert answer(actor, but(tool="nowhere")) == ("failed", "tool_not_here", True)
    assert answer(actor, but(arguments=b"[]"))[1] == "arguments_unbound"
    assert ray.get(actor.run.remote(b"\xc1"), timeout=WAIT_S) == b""
    assert len(lines(tmp_path / "far")) == (1 if kind == "sync" else 0)
    cluster.back(grant)


def test_a_call_that_was_stopped_before_it_came_never_runs(cluster: Cluster, tmp_path: Path) -> None:
    """R29: the request to stop may overtake it."""
    grant, actor = cluster.actor("sync")
    call = cluster.dispatch("pay", path=str(tmp_path / "far")).wire()
    stop = encode_stop(Stop(call.run_id, call.call, call.attempt))
    ray.get(actor.stop.options(concurrency_group=CONTROL).remote(stop), timeout=WAIT_S)
    assert answer(actor, call) == ("failed", "cancelled", True)
    assert lines(tmp_path / "far") == []
    cluster.back(grant)


def test_an_actor_of_another_kind_under_an_executors_name_is_not_used(
    cluster: Cluster, tmp_path: Path
) -> None:
    """R5, R6: a name says nothing about who has it."""
    grant, actor = cluster.actor("sync")
    identity = decode_identity(ray.get(actor.identify.options(concurrency_group=CONTROL).remote(), timeout=5))
    assert (identity.class_name, identity.store, identity.revision) == ("SyncExecutor", "s", "1")
    flight = cluster.dispatch("pay", path=str(tmp_path / "far"))

    async def through_another_host() -> None:
        host = RayExecutors(
            cluster.pools,
            holder="stranger",
            namespace=NAMESPACE,
            store="s",
            revision="2",
            groups=GROUPS,
            dependencies={},
        )
        host.start(flight.dispatch)
        while not flight.reports:
            await cluster.moment()
        await host.close()

    cluster.run(through_another_host())
    assert flight.said() == ("failed", "no_executor")
    assert flight.end().no_effect
    assert lines(tmp_path / "far") == []
    cluster.back(grant)


def test_ray_repeats_nothing_by_itself(cluster: Cluster) -> None:
    """R4: every method of every executor, and an actor that would is refused."""
    for kind in ("sync", "quick", "async"):
        grant, actor = cluster.actor(kind)
        refuse_retries(actor)
        cluster.back(grant)
    handle = (
        ray.remote(SyncExecutor).options(num_cpus=0, max_task_retries=2, max_restarts=1).remote(b"", "s", "1")
    )
    with pytest.raises(BugError):
        refuse_retries(handle)
    ray.kill(handle)


def test_options_that_ray_refuses_are_refused_by_name(cluster: Cluster) -> None:
    with pytest.raises(DeclarationError) as refused:
        check_options({"big": Pool(ray_options={"num_gpus": -1})})
    assert refused.value.path == "pools.big.ray_options.num_gpus"
    with pytest.raises(DeclarationError) as refused:
        check_options({"big": Pool(ray_options={"cpus": 1})})
    assert refused.value.path == "pools.big.ray_options.cpus"
    check_options({"big": Pool(ray_options={"num_cpus": 1, "resources": {"node0": 0.1}})})


def test_why_an_application_cannot_be_loaded_is_known_to_the_owner(cluster: Cluster) -> None:
    async def play() -> None:
        pools = Pools(
            {("default", "sync"): shapes(DECLARED, GROUPS, TOOLS, Policy())["default", "sync"]},
            {},
            cluster.factory("broken", b"no shipment"),
        )
        want = Want(want_id="w", host_id="h", tool="t", pool="default", kind="sync", valid_ms=60_000)
        waiting = cluster.loop.create_task(pools.lease(want))
        while not pools.failures:
            await cluster.moment()
        assert "UnpicklingError" in str(pools.failures["default", "sync"])
        assert not waiting.done()
        await pools.close()
        assert await waiting == Refused(code="closed")

    cluster.run(play())


# --- a limited group -----------------------------------------------------------------------------------------------------


def test_a_group_is_never_above_its_limit_at_the_far_side_whatever_dies(
    cluster: Cluster, tmp_path: Path
) -> None:
    """R3, R19: a killed call may be at its far side until its validity is over; then its place is back."""
    far = tmp_path / "far"
    flights = [cluster.start("pay_limited", path=str(far), dies=False) for _ in range(20)]
    assert cluster.until(lambda: all(flight.reports for flight in flights))
    assert {flight.said()[0] for flight in flights} == {"succeeded"}
    dying = [cluster.start("pay_limited", path=str(far), dies=True) for _ in range(LIMIT)]
    assert {flight.said() for flight in dying} == {("unknown", "lost")}
    lost_at = time.monotonic()
    after = [cluster.start("pay_limited", path=str(far), dies=False, valid_ms=30_000) for _ in range(6)]
    assert cluster.until(lambda: not cluster.pools.statistics().groups["bank"].lost)
    assert time.monotonic() - lost_at < 4.0 + 5.0, "capacity is back within the validity and 5 s"
    assert cluster.until(lambda: all(flight.reports for flight in after))
    assert {flight.said()[0] for flight in after} == {"succeeded"}
    assert most_at_once(far, open_for_s=4.0) == LIMIT


def most_at_once(far: Path, *, open_for_s: float) -> int:
    """A stay without an end is taken to last as long as its call was valid."""
    came: dict[str, int] = {}
    left: dict[str, int] = {}
    for line in lines(far):
        what, who, at = line.split()
        (came if what == "in" else left)[who] = int(at)
    moments = [(at, 1) for at in came.values()]
    moments += [(left.get(who, at + int(open_for_s * 1e9)), -1) for who, at in came.items()]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def test_the_counting_of_the_far_side_sees_too_many(tmp_path: Path) -> None:
    far = tmp_path / "far"
    pool_tools.note(str(far), "in a 0")
    pool_tools.note(str(far), "in b 10")
    pool_tools.note(str(far), "out b 20")
    pool_tools.note(str(far), "in c 30")
    assert most_at_once(far, open_for_s=1.0) == 2
    assert most_at_once(far, open_for_s=1e-9) == 1
