"""The shipped cases of a store's contract, under pytest. A store's own test file subclasses ``StoreContract`` and says how it is
opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio

from boundloop.eventstore.testkit import CASES, Contract, World

__all__ = ["StoreContract", "World"]

for _name in {case.method for case in CASES if case.variant}:
    _variants = [case.variant for case in CASES if case.method == _name]
    [_argument] = _variants[0]
    pytest.mark.parametrize(_argument, [one[_argument] for one in _variants])(getattr(Contract, _name))


class StoreContract(Contract):
    """Subclasses give ``opening``: a world whose store is open for the time of the block."""

    def opening(self, folder: str) -> AbstractAsyncContextManager[World]:
        raise NotImplementedError

    @pytest_asyncio.fixture
    async def world(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
        async with self.opening(str(tmp_path_factory.mktemp("store"))) as world:
            yield world
