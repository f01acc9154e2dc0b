"""What the places of pools and groups are made of, and what is said of them: shapes, what is to be done, counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .places import Grant, Kind, RefusalCode

PoolKey = tuple[str, Kind]


@dataclass(frozen=True, slots=True)
class PoolShape:
    """``least`` executors are kept up, ``most`` exist at once; more than ``least`` end after ``idle_ms`` without a call."""

    least: int
    most: int
    places: int
    idle_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Doubt:
    """Ask an executor whether nothing of these leases goes on in it. No answer ``within_ms`` is a no."""

    executor: str
    grant_ids: tuple[str, ...]
    within_ms: int


@dataclass(frozen=True, slots=True)
class Assigned:
    """What is to be done: tell who got a place and who won't, start executors by name, end others, ask doubted ones."""

    grants: tuple[Grant, ...] = ()
    refused: tuple[tuple[str, RefusalCode], ...] = ()
    start: tuple[tuple[str, PoolKey], ...] = ()
    end: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    up: int
    starting: int
    leased: int
    waiting: int
    failures: int


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    limit: int
    held: int
    lost: int
    closed: bool


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    pools: Mapping[PoolKey, PoolStatistics]
    groups: Mapping[str, GroupStatistics]
    waiting: int
    granted: int
    refused: int
    lost: int
