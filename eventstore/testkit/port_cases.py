"""Lists, blobs, switches and outside commands."""

from __future__ import annotations

import random
from hashlib import sha256
from unittest.mock import patch

import msgspec

from ...runtime.errors import CallerError, ConflictError, RunNotFound
from ...runtime.ledger import RunIndex
from .. import chain
from ..port import RunFilter, Switch
from .log_writer import OPEN
from .world import World, refused

PARKED = RunIndex(status="suspended", waiting_for="approval:a1")


class PortCases:
    """See ``contract.Contract``."""

    async def test_runs_are_listed_newest_first_and_paged(self, world: World) -> None:
        for number in range(5):
            await world.writer(f"r{number}").write("one", index=PARKED if number % 2 else OPEN)
        await world.writer("r5", tenant="other").write("one")

        async def listed(where: RunFilter) -> list[str]:
            return [row.run_id for row in await world.store.runs(where)]

        assert await listed(RunFilter()) == ["r5", "r4", "r3", "r2", "r1", "r0"]
        assert await listed(RunFilter(limit=2)) == ["r5", "r4"]
        assert await listed(RunFilter(limit=2, after="r4")) == ["r3", "r2"]
        assert await listed(RunFilter(tenant="acme", status="suspended")) == ["r3", "r1"]
        assert await listed(RunFilter(waiting_for_prefix="approval:")) == ["r3", "r1"]
        assert await listed(RunFilter(waiting_for_prefix="appr%")) == []
        assert len(await listed(RunFilter(waiting_for_prefix=""))) == 6
        assert await listed(RunFilter(agent="agent", operation_id="op", tenant="other")) == ["r5"]
        assert await listed(RunFilter(root_id="")) == ["r5", "r4", "r3", "r2", "r1", "r0"]
        assert await listed(RunFilter(agent="nobody")) == []
        with refused(RunNotFound):
            await listed(RunFilter(after="nobody"))

    async def test_blobs_are_kept_by_content(self, world: World) -> None:
        data = random.Random(1).randbytes(700_000)
        for blob in (b"", b"small", data):
            digest = await world.store.put_blob(blob)
            assert digest == sha256(blob).digest()
            assert await world.store.put_blob(blob) == digest
            assert await world.store.get_blob(digest) == blob
        assert await world.store.get_blob(b"z" * 32) is None

    async def test_switches_are_on_until_turned_off(self, world: World) -> None:
        one = Switch(scope="global", target="", by="os:me@here", reason="drill", at_ms=1)
        two = Switch(scope="tool", target="refund", by="os:me@here", reason="drill", at_ms=2)
        await world.store.set_switch(two, on=True)
        await world.store.set_switch(one, on=True)
        await world.store.set_switch(msgspec.structs.replace(one, reason="again"), on=True)
        assert [switch.reason for switch in await world.store.switches()] == ["again", "drill"]
        await world.store.set_switch(one, on=False)
        await world.store.set_switch(one, on=False)
        assert await world.store.switches() == [two]

    async def test_switches_are_known_without_a_call(self, world: World) -> None:
        one = Switch(scope="global", target="", by="os:me@here", reason="drill", at_ms=1)
        assert world.store.switches_known() == ()
        await world.store.set_switch(one, on=True)
        assert world.store.switches_known() == (one,)
        await world.store.set_switch(one, on=False)
        assert world.store.switches_known() == ()

    async def test_an_outside_command_reaches_the_handler(self, world: World) -> None:
        assert await world.store.submit("r1", "k1", b"cancel") == b"answer to cancel"
        assert world.submitted == [("r1", "k1", b"cancel")]

    async def test_a_handlers_refusal_comes_back_as_it_is(self, world: World) -> None:
        world.refuse = ConflictError("too_late", "it was decided before", path="a1")
        with refused(ConflictError) as caught:
            await world.store.submit("r1", "k1", b"approve")
        assert (caught.error.code, caught.error.path) == ("too_late", "a1")

    async def test_time_does_not_fall(self, world: World) -> None:
        before = world.store.now_ms()
        world.clock.advance(-5_000)
        assert world.store.now_ms() >= before

    async def test_a_blob_over_the_bound_is_the_callers_mistake(self, world: World) -> None:
        with patch.object(chain, "BLOB_BYTES_MAX", 10):
            with refused(CallerError) as caught:
                await world.store.put_blob(b"x" * 11)
            assert caught.error.code == "blob_too_large"
            assert await world.store.get_blob(await world.store.put_blob(b"x" * 10)) == b"x" * 10
