"""``doctor``: what about this machine, this process, Ray and a store breaks a promise, or will surprise.

Reads environment variables, ``/proc``, package metadata and the names beside the store's file. Opens no store, imports
no Ray and changes nothing, but for the moment in which a free lock is tried.
"""

from __future__ import annotations

from collections.abc import Iterator

from .doctor_findings import Finding
from .doctor_machine import Machine
from .doctor_process import check_process
from .doctor_ray import check_ray
from .doctor_store import NOBODY, check_store

ORDER = {"fail": 0, "warn": 1, "ok": 2}


def examine(machine: Machine, store_url: str = "") -> list[Finding]:
    """Every finding, the worst first, within that by subject in the order of the checks."""
    of_store = list(check_store(machine, store_url))
    nobody_owns = any(finding.found == NOBODY for finding in of_store)
    return in_order([*check_process(machine), *of_store, *check_ray(machine, nobody_owns=nobody_owns)])


def examine_cluster(address: str) -> Iterator[Finding]:
    """Findings that need Ray: imports it, and joins the cluster or starts one."""
    from .ray_doctor import check_cluster

    yield from check_cluster(address)


def in_order(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: ORDER[finding.level])


def healthy(findings: list[Finding]) -> bool:
    """Whether nothing failed; warnings don't count."""
    return all(finding.level != "fail" for finding in findings)
