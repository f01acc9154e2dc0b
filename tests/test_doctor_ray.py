"""What ``doctor`` says about Ray from a ``/proc`` that is written down, and that it reads the real one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.fake_proc import FakeProc

from boundloop.actors.doctor_findings import Finding
from boundloop.actors.doctor_machine import LISTEN, Machine, address_of
from boundloop.actors.doctor_ray import OURS, check_ray
from boundloop.actors.ray_executor import AsyncExecutor, QuickExecutor, SyncExecutor
from boundloop.actors.ray_run_actor import RunActor, StoreMessenger

HEAD = "/lib/ray/gcs/gcs_server --node-ip-address=10.0.0.5"
RAYLET = "/lib/ray/raylet/raylet --node_ip_address=10.0.0.5 --gcs-address=10.0.0.5:6379"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def findings(machine: Machine) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_ray(machine)}


def head(proc: FakeProc, address: str, **environment: str) -> None:
    proc.process(10, HEAD, environment={"PATH": "/bin", **environment})
    proc.listen(10, address, 6379)


def test_nothing_of_ray_is_nothing_to_say(proc: FakeProc) -> None:
    proc.process(7, "/usr/sbin/sshd")
    proc.listen(7, "0.0.0.0", 22)
    found = findings(proc.machine())
    assert {finding.level for finding in found.values()} == {"ok"}
    assert "no Ray process" in found["ray.exposure"].found


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.5"])
def test_a_port_beyond_loopback_without_a_token_is_warned_of(proc: FakeProc, address: str) -> None:
    head(proc, address)
    found = findings(proc.machine())["ray.exposure"]
    assert found.level == "warn"
    assert f"gcs_server on {address}:6379" in found.found
    assert "RAY_AUTH_MODE=token" in found.do


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_port_on_loopback_is_nobody_elses(proc: FakeProc, address: str) -> None:
    head(proc, address)
    assert findings(proc.machine())["ray.exposure"].level == "ok"


def test_a_token_closes_the_ports(proc: FakeProc) -> None:
    head(proc, "0.0.0.0", RAY_AUTH_MODE="token")
    found = findings(proc.machine())
    assert found["ray.exposure"].level == "ok"
    assert "the Ray that runs here: token" in found["ray.authentication"].found


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({}, "fail"),
        ({"RAY_AUTH_MODE": "token"}, "warn"),
        ({"RAY_AUTH_MODE": "token", "RAY_USE_TLS": "1"}, "ok"),
    ],
)
def test_a_second_machine_at_the_gcs_needs_a_token(
    proc: FakeProc, environment: dict[str, str], level: str
) -> None:
    head(proc, "0.0.0.0", **environment)
    proc.connected("10.0.0.5", 6379, "10.0.0.6")
    found = findings(proc.machine())["ray.exposure"]
    assert (found.level, "10.0.0.6" in found.found) == (level, level != "ok")


def test_a_raylet_of_a_head_elsewhere_is_one_of_several_machines(proc: FakeProc) -> None:
    proc.process(11, RAYLET.replace("gcs-address=10.0.0.5", "gcs-address=10.0.0.9"), environment={"A": "b"})
    proc.listen(11, "0.0.0.0", 7000)
    found = findings(proc.machine())["ray.exposure"]
    assert found.level == "fail"
    assert "10.0.0.9" in found.found


def test_a_node_of_this_machine_at_its_own_gcs_is_no_second_machine(proc: FakeProc) -> None:
    head(proc, "0.0.0.0")
    proc.process(11, RAYLET, environment={})
    proc.connected("10.0.0.5", 6379, "10.0.0.5")
    assert findings(proc.machine())["ray.exposure"].level == "warn"


def test_ray_client_is_refused_with_the_reason(proc: FakeProc) -> None:
    found = findings(proc.machine(RAY_ADDRESS="ray://head:10001"))["ray.address"]
    assert found.level == "fail"
    assert "proxy" in found.means
    assert findings(proc.machine(RAY_ADDRESS="head:6379"))["ray.address"].level == "ok"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RAY_testing_rpc_failure", "x"),
        ("RAY_testing_asio_delay_us", "x"),
        ("RAY_process_group_cleanup_enabled", "0"),
        ("RAY_health_check_period_ms", "1"),
    ],
)
def test_variables_that_change_what_ray_does_are_named(proc: FakeProc, name: str, value: str) -> None:
    found = findings(proc.machine(**{name: value, "RAYLIKE": "1"}))["ray.environment"]
    assert found.level == "warn"
    assert found.found.startswith(f"{name} is set")


def test_secrets_could_reach_the_terminal_when_logs_go_to_the_driver(proc: FakeProc) -> None:
    assert findings(proc.machine(RAY_LOG_TO_DRIVER="1"))["ray.log_to_driver"].level == "warn"
    assert findings(proc.machine(RAY_LOG_TO_DRIVER="0"))["ray.log_to_driver"].level == "ok"


def test_disabled_authentication_is_warned_of_before_ray_runs(proc: FakeProc) -> None:
    assert findings(proc.machine(RAY_AUTH_MODE="disabled"))["ray.authentication"].level == "warn"
    assert findings(proc.machine(RAY_AUTH_MODE="TOKEN"))["ray.authentication"].level == "ok"


def test_a_dashboard_and_a_client_server_are_seen_and_a_bare_api_server_is_not(proc: FakeProc) -> None:
    proc.process(12, "/bin/python /lib/ray/dashboard/dashboard.py --port=8265 --disable-frontend")
    assert findings(proc.machine())["ray.dashboard"].level == "ok"
    proc.process(13, "/bin/python /lib/ray/dashboard/dashboard.py --port=8265")
    assert "a dashboard runs" in findings(proc.machine())["ray.dashboard"].found
    proc.process(14, "/bin/python -m /lib/ray/util/client/server --port=10001")
    assert "client server" in findings(proc.machine())["ray.dashboard"].found


def test_stopped_and_orphaned_workers_are_named_by_pid(proc: FakeProc) -> None:
    proc.process(11, RAYLET)
    proc.process(20, "ray::RunActor", parent=11, state="T")
    proc.process(21, "ray::SyncExecutor.run", parent=1)
    found = findings(proc.machine())
    assert (found["ray.stopped"].level, found["ray.stopped"].found) == ("warn", "worker 20")
    assert (found["ray.leaked"].level, found["ray.leaked"].found) == ("warn", "ray::SyncExecutor.run 21")


def test_actors_of_ours_are_counted_and_missed_their_owner_when_nobody_owns_the_store(proc: FakeProc) -> None:
    proc.process(11, RAYLET)
    proc.process(20, "ray::RunActor", parent=11)
    proc.process(21, "ray::SyncExecutor.run", parent=11)
    proc.process(22, "ray::Counter", parent=11)
    machine = proc.machine()
    assert findings(machine)["ray.actors"].found == "1 RunActor, 1 SyncExecutor"
    orphaned = {one.name: one for one in check_ray(machine, nobody_owns=True)}["ray.actors"]
    assert (orphaned.level, "nobody owns" in orphaned.found) == ("warn", True)


def test_titles_of_our_actors_are_the_names_of_their_classes() -> None:
    classes = (RunActor, StoreMessenger, SyncExecutor, AsyncExecutor, QuickExecutor)
    assert frozenset(one.__name__ for one in classes) == OURS


def test_rows_that_no_kernel_writes_are_passed_over(proc: FakeProc) -> None:
    machine = proc.machine()
    proc.file("net/tcp", "header\nnonsense\n 1: XYZ:1 0:0 0A\n")
    proc.file("99/stat", "broken")
    assert machine.sockets() == []
    assert machine.processes() == []


def test_addresses_read_as_the_kernel_writes_them() -> None:
    assert str(address_of("0100007F")) == "127.0.0.1"
    assert str(address_of("00000000000000000000000001000000")) == "::1"
    assert str(address_of("0000000000000000FFFF00000100007F")) == "127.0.0.1"
    with pytest.raises(ValueError, match="does not appear"):
        address_of("01")


def test_the_real_proc_shows_this_process_and_its_socket() -> None:
    machine = Machine()
    mine = {process.pid: process for process in machine.processes()}[os.getpid()]
    assert mine.parent == os.getppid()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        held = machine.inodes_of(os.getpid())
        found = [one for one in machine.sockets() if one.inode in held and one.local_port == port]
        assert [(str(one.local), one.state) for one in found] == [("127.0.0.1", LISTEN)]
    assert machine.environment_of(os.getpid()) is not None
    assert machine.number("meminfo", "MemTotal") > 2**20
    assert Machine(proc="/nowhere").processes() == []
