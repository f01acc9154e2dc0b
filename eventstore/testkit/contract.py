"""All that a store has to answer, as cases that any store can be put through."""

from __future__ import annotations

import asyncio
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from .append_cases import AppendCases
from .earlier_cases import EarlierCases
from .ledger_cases import LedgerCases
from .list_cases import ListCases
from .ownership_cases import OwnershipCases
from .port_cases import PortCases
from .prune_cases import PruneCases
from .upkeep_cases import UpkeepCases
from .waking_cases import WakingCases
from .world import VARIANTS, World

Opening = Callable[[str], AbstractAsyncContextManager[World]]
"""Given a new empty folder: a world whose store is open, and empty, for the time of the block."""


class Contract(
    AppendCases,
    LedgerCases,
    EarlierCases,
    WakingCases,
    OwnershipCases,
    PortCases,
    ListCases,
    UpkeepCases,
    PruneCases,
):
    """Each method ``test_…`` is a case: it takes a world of its own, and raises if the store does otherwise."""


class Case(msgspec.Struct, frozen=True):
    """``variant`` is what it takes besides the world, if anything."""

    name: str
    method: str
    variant: dict[str, str]

    def __str__(self) -> str:
        return self.name

    async def run(self, opening: Opening, folder: str) -> None:
        """Raises ``AssertionError``, or what the store raised."""
        method: Callable[..., Awaitable[None]] = getattr(Contract(), self.method)
        async with opening(folder) as world:
            await method(world, **self.variant)


class Outcome(msgspec.Struct, frozen=True):
    """``failure`` is empty if the store did as it should, else what was raised and where."""

    case: str
    failure: str


def _cases() -> tuple[Case, ...]:
    found: list[Case] = []
    for kind in reversed(Contract.__mro__):
        for name in vars(kind):
            if not name.startswith("test_"):
                continue
            variants: Any = getattr(vars(kind)[name], VARIANTS, None)
            if variants is None:
                found.append(Case(name, name, {}))
            else:
                argument, values = variants
                found += [Case(f"{name}[{value}]", name, {argument: value}) for value in values]
    return tuple(found)


CASES = _cases()
"""Every case, variants apart."""


def run_contract(opening: Opening, cases: tuple[Case, ...] = CASES) -> list[Outcome]:
    """Put a store through the cases, each in a folder and on an event loop of its own. Needs ``assert``, so not under ``-O``."""
    if not __debug__:
        raise RuntimeError("the cases are assertions, and this interpreter runs without them (-O)")
    outcomes: list[Outcome] = []
    for case in cases:
        failure = ""
        with tempfile.TemporaryDirectory(prefix="store-") as folder:
            try:
                asyncio.run(case.run(opening, folder))
            except Exception:  # noqa: BLE001  whatever the store raised is what is reported
                failure = traceback.format_exc(limit=-3)
        outcomes.append(Outcome(case.name, failure))
    return outcomes
