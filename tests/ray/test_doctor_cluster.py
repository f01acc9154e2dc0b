"""``doctor --ray``: what only a cluster can tell."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from tests.ray.cluster import LocalCluster

from boundloop.actors.doctor import examine_cluster


def test_a_cluster_is_joined_looked_at_and_left() -> None:
    with LocalCluster(nodes=2) as cluster:
        # As the cluster was started: Ray turns tokens on for a process that finds one, and leaves them on.
        environment = {"RAY_AUTH_MODE": "disabled", **os.environ}
        done = subprocess.run(
            [sys.executable, "-m", "boundloop", "doctor", "--ray", cluster.address, "-o", "json"],
            capture_output=True,
            check=False,
            timeout=90,
            env=environment,
        )
        found = {one["name"]: one for one in json.loads(done.stdout)}
        assert found["cluster"]["level"] == "ok", done.stderr
        assert found["cluster.nodes"]["found"].startswith("2 alive on 1 machines")
        assert found["cluster.actor"]["level"] in ("ok", "warn")
        assert "gcs_server on" in found["ray.exposure"]["found"]
        assert done.returncode == 0


def test_ray_client_is_refused_with_the_reason() -> None:
    found = list(examine_cluster("ray://head:10001"))
    assert [one.level for one in found] == ["fail"]
    assert "proxy" in found[0].found


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found = list(examine_cluster(f"127.0.0.1:{port}"))
    assert [(one.level, one.name) for one in found] == [("fail", "cluster")]
    assert "no GCS answers" in found[0].found
