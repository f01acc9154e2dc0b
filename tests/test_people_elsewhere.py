"""Messages and answers from other processes: through the socket of a Runtime that lives, after it was killed, and through a
Runtime that is attached to another one's store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.far_side import FarSide
from tests.attach_play import use_sockets
from tests.shell import Shell
from tests.test_other_shell import asks_for_approval, boundloop

from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.history import read_records
from boundloop.eventstore.location import open_store
from boundloop.runtime import events as e
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.question_tool import ask_user

WITHIN_S = 30.0


@pytest.fixture
def far() -> Iterator[FarSide]:
    with FarSide.start() as started:
        yield started


def said(path: Path) -> list[str]:
    async def read() -> list[str]:
        store = await open_store(f"sqlite:///{path}")
        try:
            records = await read_records(store, "r1")
        finally:
            await store.close()
        return [record.event.text for record in records if isinstance(record.event, e.MessageReceived)]

    return asyncio.run(read())


def test_sent_through_the_socket_of_a_living_runtime(tmp_path: Path, far: FarSide) -> None:
    path = tmp_path / "runs.db"
    with Shell(path, far) as host:
        approval = asks_for_approval(host, "r1")
        for _ in range(2):
            done = boundloop(path, "send", "r1", "quickly, please", "--command-id", "k")
            assert (done.returncode, done.stderr) == (0, "")
        assert boundloop(path, "approve", approval).returncode == 0
        assert host.ask("wait", run="r1")["outcome"] == "completed"
    assert said(path) == ["quickly, please"]


def test_sent_after_the_host_was_killed_and_heard_by_the_next(tmp_path: Path, far: FarSide) -> None:
    path = tmp_path / "runs.db"
    with Shell(path, far) as host:
        approval = asks_for_approval(host, "r1")
        host.process.kill()
        host.process.wait(WITHIN_S)
    assert boundloop(path, "send", "r1", "quickly, please").returncode == 0
    assert boundloop(path, "approve", approval).returncode == 0
    with Shell(path, far) as successor:
        assert successor.ask("wait", run="r1")["outcome"] == "completed"
    assert said(path) == ["quickly, please"]


def test_an_attached_runtime_sends_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_sockets(monkeypatch.setattr)

    def member() -> Runtime:
        model = ScriptedModel([call("ask_user", {"question": "which?"}), say("done")])
        return Runtime(store=f"sqlite:///{tmp_path / 'runs.db'}", model=model, tools=[ask_user])

    with member() as owner, member() as second:
        waiting = second.run_sync("go", limits=Limits(cost=WAIVED))
        [asked] = waiting.questions
        assert [row.question_id for row in second.inbox(kind="question").rows] == [asked.question_id]
        second.send(waiting.run_id, "the newest", by="ann")
        second.answer(waiting.run_id, asked.question_id, "A1", by="ann")
        assert second.wait(waiting.run_id, WITHIN_S).completed
        assert owner.state(waiting.run_id).counters.messages == 1
        assert second.inbox().rows == ()
