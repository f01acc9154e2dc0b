"""The stores do the same on random programs: a few here, as many as one likes with ``run.py``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.differential.play import Player
from tests.differential.programs import STEPS, program
from tests.differential.stores import compared, in_folder, in_memory, on_server
from tests.postgres_server import Server
from tests.random_examples import examples

from boundloop.eventstore.clock import FixedClock
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import AlreadyDone, Append, AppendAnswer, Conflict


@pytest.mark.asyncio
async def test_memory_sqlite_and_postgresql_answer_alike(tmp_path: Path, postgres: Server) -> None:
    stores = {"memory": in_memory, "sqlite": in_folder(str(tmp_path)), "postgres": on_server(postgres)}
    for seed in range(1, examples(40) + 1):
        found = await compared(seed, stores)
        assert found is None, str(found)


def test_a_program_is_the_same_for_the_same_seed() -> None:
    assert program(7) == program(7)
    assert program(7) != program(8)


@pytest.mark.asyncio
async def test_programs_reach_every_answer() -> None:
    """Else they would compare little."""
    said: set[str] = set()
    for seed in range(1, 41):
        player = Player(FixedClock())
        async with in_memory(player):
            for line in (await player.play(program(seed)))[:STEPS]:
                said.update(kind for kind in _KINDS if kind in line)
    assert said == set(_KINDS)


_KINDS = (
    *("appended", "already_done", "conflict", "fenced", "claim_taken", "acquired", "owned", "not_found"),
    *('"woken":true', '\\"woken\\":true', '"died":true', "RunNotFound", "BugError", "ConflictError"),
)


class _Forgetful(MemoryStore):
    """Takes the same append a second time for a conflict."""

    async def append(self, request: Append) -> AppendAnswer:
        answer = await super().append(request)
        return Conflict(answer.seq) if isinstance(answer, AlreadyDone) else answer


@pytest.mark.asyncio
async def test_a_store_that_answers_otherwise_is_found_with_the_step() -> None:
    @asynccontextmanager
    async def forgetful(player: Player) -> AsyncGenerator[None]:
        player.store = _Forgetful(clock=player.clock, on_submit=player.on_submit)
        yield

    found = [await compared(seed, {"memory": in_memory, "forgetful": forgetful}) for seed in range(1, 11)]
    first = next(difference for difference in found if difference is not None)
    assert first.step is not None
    assert "already_done" in first.said["memory"]
    assert "conflict" in first.said["forgetful"]
