"""Clusters for a module of tests. One at a time: a node costs a second and its processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.ray.cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three nodes on this machine, nobody connected."""
    with LocalCluster() as made:
        yield made
