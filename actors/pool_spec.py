"""Tool pools as users declare them, and what an application's tools need of them.

A tool names its pool; ``default`` exists without being declared. Each pool has executors of the kinds that its tools need:
``sync`` for functions, ``quick`` for short reads, ``async`` for coroutines. Nothing here imports Ray; what Ray says of the
options is asked by ``ray_pool_actors.check_options``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ..runtime.errors import DeclarationError
from ..runtime.policy import Policy
from ..runtime.read_result import READ_RESULT
from ..runtime.tool_rules import LABEL_CHARS_MAX
from ..runtime.tool_spec import ToolSpec
from ..runtime.toolbox import Toolbox
from . import query
from .guarding import ANSWERS_POOL
from .places import Kind
from .slot_reports import PoolKey, PoolShape
from .slots import LOST_EXTRA_MS

DEFAULT_POOL: Final = "default"
EXECUTORS_MAX: Final = 1_000
PLACES_MAX: Final = 1_000
GROUP_LIMIT_MAX: Final = 100_000
IDLE_S_MAX: Final = 86_400
QUICK_HOSTS_MAX: Final = 64
"""Hosts that share one quick executor, each with one batch at a time."""

OWNED_OPTIONS: Final = frozenset(
    (
        "allow_out_of_order_execution",
        "concurrency_groups",
        "enable_task_events",
        "enable_tensor_transport",
        "get_if_exists",
        "lifetime",
        "max_concurrency",
        "max_pending_calls",
        "max_restarts",
        "max_retries",
        "max_task_retries",
        "name",
        "namespace",
        "num_returns",
        "retry_exceptions",
    )
)
"""What makes an executor killable, addressable and never repeated; not for users to change."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """One pool. ``executors``: the most sync executors, each a process with one call at a time; ``quick_executors`` and
    ``async_executors`` likewise, an async one with ``async_places`` calls at a time. ``warm``: so many of each kind are
    kept up, of quick ones at least two; others start when somebody waits and end after ``idle_s`` without a call.
    ``ray_options`` go to Ray for each of the actors; without ``num_cpus`` in it they reserve none.
    """

    executors: int = 2
    quick_executors: int = 2
    async_executors: int = 1
    async_places: int = 100
    warm: int = 0
    idle_s: int = 60
    ray_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def refuse_bad_pools(pools: Mapping[str, Pool], groups: Mapping[str, int], toolbox: Toolbox) -> None:
    """Raise ``DeclarationError`` for the first fault; ``path`` names the pool and the field, or the tool. A tool of a group
    that isn't declared is one: a misspelt name must not leave a far side without its limit."""
    for name, pool in _named(pools, "pools").items():
        _refuse_bad_pool(name, pool)
    for name, limit in _named(groups, "groups").items():
        _whole(f"groups.{name}", limit, 1, GROUP_LIMIT_MAX)
    for spec in toolbox.values():
        pool, group = spec.definition.pool, spec.definition.group
        if pool not in pools and pool != DEFAULT_POOL:
            raise DeclarationError(
                "pool_unknown", f'declare pools={{"{pool}": Pool(…)}}', path=f"{spec.name}.pool"
            )
        if group is not None and group not in groups:
            raise DeclarationError(
                "group_unknown",
                f'declare groups={{"{group}": LIMIT}}, or it would have no limit',
                path=f"{spec.name}.group",
            )


def _named(given: object, path: str) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise DeclarationError("option_type", "must be a mapping by name", path=path)
    found = cast("Mapping[object, object]", given)
    for name in found:
        if not isinstance(name, str):
            raise DeclarationError("option_type", "names must be texts", path=path)
        if not 0 < len(name) <= LABEL_CHARS_MAX:
            raise DeclarationError("option_value", f"names have 1 to {LABEL_CHARS_MAX} characters", path=path)
    return cast("Mapping[str, object]", found)


def _refuse_bad_pool(name: str, pool: object) -> None:
    path = f"pools.{name}"
    if not isinstance(pool, Pool):
        raise DeclarationError("pool_type", "a pool is declared by Pool(…)", path=path)
    for number in ("executors", "quick_executors", "async_executors"):
        _whole(f"{path}.{number}", getattr(pool, number), 1, EXECUTORS_MAX)
    _whole(f"{path}.async_places", pool.async_places, 1, PLACES_MAX)
    _whole(f"{path}.warm", pool.warm, 0, EXECUTORS_MAX)
    _whole(f"{path}.idle_s", pool.idle_s, 1, IDLE_S_MAX)
    if not isinstance(cast(object, pool.ray_options), Mapping):
        raise DeclarationError("ray_options_type", "a mapping of Ray's actor options", path=path)
    for key in cast("Mapping[object, object]", pool.ray_options):
        where = f"{path}.ray_options.{key}"
        if not isinstance(key, str) or key.startswith("_"):
            raise DeclarationError("ray_option_unknown", "an option of Ray's actors", path=where)
        if key == "runtime_env":
            raise DeclarationError(
                "ray_option_runtime_env",
                "an environment is made for the cluster or the job, not for an executor: setting one up at run time"
                " takes minutes and can fail in the middle of a run",
                path=where,
            )
        if key in OWNED_OPTIONS:
            raise DeclarationError("ray_option_owned", "boundloop sets this option itself", path=where)


def _whole(path: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise DeclarationError("out_of_bounds", f"an integer from {low} to {high}", path=path)


def kind_of(spec: ToolSpec, groups: Mapping[str, int]) -> Kind | None:
    """Which kind of executor runs a tool; None for one that runs in the host itself. A call of a limited group is never
    part of a batch, and never in the host: its place is the group's, wherever the group's other calls are."""
    definition = spec.definition
    limited = definition.group is not None and definition.group in groups
    if spec.is_async:
        return None if definition.inline and not limited else "async"
    return "quick" if definition.quick and not limited else "sync"


def query_kind(spec: ToolSpec) -> Kind:
    """Which kind of executor asks a tool's far side."""
    return "async" if query.is_async(spec) else "sync"


CHECKS_KIND: Final[Kind] = "sync"
"""Which kind of executor answers the checks of a tool that may block."""


def shapes(
    pools: Mapping[str, Pool], groups: Mapping[str, int], toolbox: Toolbox, policy: Policy
) -> dict[PoolKey, PoolShape]:
    """The pools that these tools need for calls, checks and queries, by name and kind."""
    found: dict[PoolKey, PoolShape] = {}
    for spec in toolbox.values():
        name = spec.definition.pool
        for kind in _kinds(spec, groups, policy):
            found[name, kind] = _shape(pools.get(name, Pool()), kind)
    if toolbox and not policy.inline:
        # Its checks and guardrail; the host itself reads. There is something to read once there are tools.
        found[READ_RESULT.pool, CHECKS_KIND] = _shape(pools.get(READ_RESULT.pool, Pool()), CHECKS_KIND)
    if policy.guardrails is not None and policy.guardrails.answer is not None and not policy.inline:
        found[ANSWERS_POOL, CHECKS_KIND] = _shape(pools.get(ANSWERS_POOL, Pool()), CHECKS_KIND)
    return found


def _kinds(spec: ToolSpec, groups: Mapping[str, int], policy: Policy) -> set[Kind]:
    kinds: set[Kind] = set()
    call = kind_of(spec, groups)
    if call is not None:
        kinds.add(call)
    if not (policy.inline and spec.definition.check_inline):
        kinds.add(CHECKS_KIND)
    if spec.query is not None:
        kinds.add(query_kind(spec))
    return kinds


def _shape(pool: Pool, kind: Kind) -> PoolShape:
    idle_ms = pool.idle_s * 1_000
    if kind == "sync":
        return PoolShape(min(pool.warm, pool.executors), pool.executors, 1, idle_ms)
    if kind == "quick":
        most = pool.quick_executors
        # A quick read has no time to wait for a process to be made, not even when another hung and had to be ended.
        return PoolShape(min(max(2, pool.warm), most), most, QUICK_HOSTS_MAX, idle_ms)
    most = pool.async_executors
    return PoolShape(min(pool.warm, most), most, pool.async_places, idle_ms)


def closed_after_crash_ms(groups: Mapping[str, int], toolbox: Toolbox) -> dict[str, int]:
    """How long each limited group stays closed when the last owner of its store didn't end in order: calls of it may be
    at their far side for as long as its slowest tool may take, and then as long as lost ones."""
    closed: dict[str, int] = {}
    for spec in toolbox.values():
        group = spec.definition.group
        if group is not None and group in groups:
            closed[group] = max(closed.get(group, 0), spec.definition.timeout_ms + LOST_EXTRA_MS)
    return closed
