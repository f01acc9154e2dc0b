"""Whether a cluster as it is now has a node for each pool. A machine may be added later, so this only warns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from .pool_spec import Pool
from .ray_calls import ask_ray, untyped_ray

LOGGER: Final = logging.getLogger("boundloop.ray")

_NAMES: Final = {
    "num_cpus": "CPU",
    "num_gpus": "GPU",
    "memory": "memory",
    "object_store_memory": "object_store_memory",
}
SHOWN_MAX: Final = 8


def asked_of_a_node(ray_options: Mapping[str, Any]) -> dict[str, float]:
    """What one executor needs of its node, in Ray's own names of resources."""
    wanted: dict[str, float] = {}
    for option, resource in _NAMES.items():
        if ray_options.get(option):
            wanted[resource] = float(ray_options[option])
    for resource, amount in dict(ray_options.get("resources") or {}).items():
        wanted[str(resource)] = float(amount)
    if ray_options.get("accelerator_type"):
        wanted[f"accelerator_type:{ray_options['accelerator_type']}"] = 0.001
    return wanted


def without_a_node(pools: Mapping[str, Pool], nodes: Iterable[Mapping[str, float]]) -> dict[str, str]:
    """What each pool asks for that no node has in whole, by the pool's name."""
    there = list(nodes)
    missing: dict[str, str] = {}
    for name, pool in pools.items():
        wanted = asked_of_a_node(pool.ray_options)
        if wanted and not any(all(node.get(it, 0) >= much for it, much in wanted.items()) for node in there):
            missing[name] = ", ".join(f"{much:g} {it}" for it, much in sorted(wanted.items())[:SHOWN_MAX])
    return missing


async def warn_of_pools_without_a_node(pools: Mapping[str, Pool]) -> None:
    """One line in the log for each pool whose executors could come up on no node that there is."""
    if not any(asked_of_a_node(pool.ray_options) for pool in pools.values()):
        return
    nodes = await ask_ray(_nodes)
    for name, missing in without_a_node(pools, nodes).items():
        LOGGER.warning(
            "pool %s: no node of the cluster has what its executors ask for (%s); until one is added, calls of its tools "
            "wait for as long as they are valid, and then fail as expired or executors_failing",
            name,
            missing,
        )


def _nodes() -> list[dict[str, float]]:
    rows: list[dict[str, Any]] = untyped_ray().nodes()
    return [dict(row.get("Resources") or {}) for row in rows if row.get("Alive")]
