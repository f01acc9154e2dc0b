"""What an owner tells the next one of its limited groups: calls of them may be at their far side when it has ended.

Written when a close begins, and again when whoever could end in order has; read before the first place is given. After a death without
a close nobody knows who was out, and each group is closed for as long as a call of it may take, now or as was written before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from ..eventstore.port import EventStore, SharedStore
from .pools import Pools


@runtime_checkable
class KeepsHolds(Protocol):
    """What a store that outlives its owners has beside the port."""

    def now_ms(self) -> int: ...

    async def group_holds(self) -> dict[str, tuple[int, int]]:
        """Limited groups with places that may still be in use at a far side: (places, until when in store time)."""
        ...

    async def hold_groups(self, holds: Mapping[str, tuple[int, int]]) -> None:
        """Write down what the next owner has to know; replaces what was written before."""
        ...


class GroupHolds:
    """Of one owner. ``groups`` are its limited ones with their limits. ``unclean``: the last owner died, or may have. A store that no
    other process can open has none. In one that several owners share, each begins with what any of them left."""

    def __init__(self, pools: Pools, groups: Mapping[str, int], *, unclean: bool) -> None:
        self._pools = pools
        self._groups = groups
        self._unclean = unclean
        self._before: dict[str, tuple[int, int]] = {}
        self._others: dict[str, tuple[int, int]] | None = None
        self._store: KeepsHolds | None = None

    async def take_over(self, store: EventStore) -> None:
        """Begin with the places taken that the last owner left. Raises ``StoreError``."""
        if not isinstance(store, KeepsHolds):
            return
        self._store = store
        self._before = await store.group_holds()
        now_ms = store.now_ms()
        for name, (places, until_ms) in self._before.items():
            if name in self._groups:
                taken = self._groups[name] if self._unclean else places
                self._pools.hold(name, taken, until_ms - now_ms)

    async def hand_over(self) -> None:
        """Write down what is out now, in place of what was written before. Raises ``StoreError``."""
        store = self._store
        if store is None:
            return
        now_ms = store.now_ms()
        out = {name: (places, now_ms + for_ms) for name, (places, for_ms) in self._pools.holds().items()}
        if isinstance(store, SharedStore):
            if self._others is None:
                self._others = await store.group_holds()
            for name, (places, until_ms) in self._others.items():
                own, own_until_ms = out.get(name, (0, 0))
                out[name] = (places + own, max(until_ms, own_until_ms))
            await store.hold_groups(out)
            return
        # What isn't limited here may be in the next application.
        kept = {
            name: hold for name, hold in self._before.items() if name not in self._groups and hold[1] > now_ms
        }
        await store.hold_groups({**kept, **out})
