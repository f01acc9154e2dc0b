"""Model adapters as other people write them: they raise, lie, answer late or not at all. No run hangs or succeeds by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.adapters.port import AttemptReset, CallPreparing, Progress, ProgressSink, TextDelta
from boundloop.adapters.script import attempts, call, held, late, lost, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime import events as e
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import ModelInput, ModelTurn, ProposedCall, Usage
from boundloop.runtime.prices import FREE, Price
from boundloop.runtime.tool_spec import tool


class Adapter:
    """An adapter of the application; ``inline`` as it likes."""

    family = "theirs"
    revision = "1"
    model = "theirs-1"
    price: Price | None = FREE

    def __init__(self, answer: Callable[[ModelInput], Any], *, inline: bool = False) -> None:
        self.answer = answer
        self.inline = inline
        self.requests = 0

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        self.requests += 1
        answer = self.answer(request)
        if asyncio.isfuture(answer):
            return await answer  # type: ignore[no-any-return]  # the test's answer, whatever it is
        return answer  # type: ignore[no-any-return]  # the test's answer, whatever it is

    async def close(self) -> None:
        """Nothing to close."""


@tool(risk="read")
async def look(at: str) -> dict[str, Any]:
    """Look at something."""
    return {"at": at}


def raiser(error: BaseException) -> Callable[[ModelInput], Any]:
    def answer(request: ModelInput) -> Any:
        raise error

    return answer


RAISED = [
    RuntimeError("secret"),
    SystemExit(1),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    TimeoutError(),
]


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("error", RAISED, ids=[type(error).__name__ for error in RAISED])
def test_an_adapter_that_raises_is_a_failed_model_after_bounded_attempts(
    site: Site, error: BaseException, inline: bool
) -> None:
    adapter = Adapter(raiser(error), inline=inline)
    host = site.open(adapter)
    run_id = host.start()
    host.advance(120_000)
    result = host.rest(run_id)
    assert (result.status, result.outcome, result.reason) == ("stopped", "failed", "model_failed")
    assert adapter.requests == 3
    assert "secret" not in repr(site.events(run_id))


def test_an_adapter_that_is_no_coroutine_is_a_failed_model(site: Site) -> None:
    class Plain(Adapter):
        def request(self, request: ModelInput, **options: Any) -> Any:
            if request.attempt == 1:
                raise RuntimeError
            return "an answer"

    host = site.open(Plain(lambda request: None))
    run_id = host.start()
    host.advance(120_000)
    assert host.rest(run_id).reason == "model_failed"


LIES: dict[str, Callable[[ModelInput], Any]] = {
    "nothing": lambda request: None,
    "text": lambda request: "all done",
    "unknown finish": lambda request: ModelTurn(finish="done", text="all done"),  # type: ignore[arg-type]  # a lie
    "calls without any": lambda request: ModelTurn(finish="calls", text="all done"),
    "final with calls": lambda request: ModelTurn(
        finish="final", text="all done", calls=(ProposedCall("look", b'{"at":"a"}'),)
    ),
    "a call without a name": lambda request: ModelTurn(finish="calls", calls=(ProposedCall(None, b"{}"),)),  # type: ignore[arg-type]  # a lie
    "arguments as text": lambda request: ModelTurn(finish="calls", calls=(ProposedCall("look", "{}"),)),  # type: ignore[arg-type]  # a lie
    "text as a number": lambda request: ModelTurn(finish="final", text=7),  # type: ignore[arg-type]  # a lie
    "usage as text": lambda request: ModelTurn(finish="final", text="all done", usage=Usage("many", 1)),  # type: ignore[arg-type]  # a lie
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_an_adapter_that_answers_nonsense_is_a_failed_model_and_never_success(
    site: Site, lie: Callable[[ModelInput], Any]
) -> None:
    host = site.open(Adapter(lie), [look])
    run_id = host.start()
    host.advance(120_000)
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == ("failed", "model_failed")
    assert site.of(run_id, e.CallProposed) == []


@pytest.mark.parametrize(
    ("usage", "spent"),
    [
        (Usage(-5, -5), None),
        (Usage(2**70, 1), None),
        (None, None),
        (Usage(0, 0), 0),
        (Usage(None, None), None),
    ],
)
def test_usage_that_cannot_be_true_never_gives_budget_back(
    site: Site, usage: Usage | None, spent: int | None
) -> None:
    host = site.open(Adapter(lambda request: ModelTurn(finish="final", text="done", usage=usage)))
    result = host.run()
    (asked,) = site.of(result.run_id, e.ModelRequested)
    if spent is None:
        assert result.spent["output_tokens"] >= min(asked.output_tokens_max, 1)
        assert result.spent["input_tokens"] > 0
    else:
        assert result.spent["output_tokens"] == spent


def test_an_answer_after_its_time_out_counts_for_nothing(site: Site) -> None:
    loops: list[asyncio.Future[ModelTurn]] = []

    def answer(request: ModelInput) -> Any:
        if request.attempt > 1:
            return ModelTurn(finish="final", text="the second", usage=Usage(1, 1))
        loops.append(asyncio.get_running_loop().create_future())
        return asyncio.shield(loops[0])

    host = site.open(Adapter(answer))
    run_id = host.start(limits=Limits(cost="1", model_request_ms=1_000))
    host.advance(5_000)
    result = host.rest(run_id)
    host.loop.call_soon_threadsafe(loops[0].set_result, ModelTurn(finish="final", text="the first"))
    host.settle()
    assert host.rest(run_id).text == result.text == "the second"
    assert [failed.code for failed in site.of(run_id, e.ModelFailed)] == ["timeout"]


def test_a_late_answer_within_its_time_is_the_answer(site: Site) -> None:
    host = site.open([late(say("slowly"), 900)])
    run_id = host.start(limits=Limits(cost="1", model_request_ms=1_000))
    host.advance(1_000)
    assert host.rest(run_id).text == "slowly"


def test_streamed_text_is_provisional_and_taken_back_when_its_attempt_fails(site: Site) -> None:
    host = site.open([attempts(lost(say("The answer is 4"), after_chars=10), say("The answer is 5"))])
    seen: list[Progress] = []
    host.rt.watch_progress(lambda run_id, item: seen.append(item))
    run_id = host.start()
    host.advance(5_000)
    assert host.rest(run_id).text == "The answer is 5"
    first = [item for item in seen if item.attempt == 1]
    second = [item for item in seen if item.attempt == 2]
    assert "".join(item.text for item in first if isinstance(item, TextDelta)) == "The answer"
    assert isinstance(first[-1], AttemptReset)
    assert "".join(item.text for item in second if isinstance(item, TextDelta)) == "The answer is 5"
    assert not [item for item in second if isinstance(item, AttemptReset)]


def test_a_call_in_preparation_shows_its_name_and_none_of_its_arguments(site: Site) -> None:
    host = site.open([call("look", {"at": "secret"}), say("done")], [look])
    seen: list[Progress] = []
    host.rt.watch_progress(lambda run_id, item: seen.append(item))
    host.run()
    assert [item.name for item in seen if isinstance(item, CallPreparing)] == ["look"]
    assert "secret" not in repr(seen)


def test_a_run_that_was_cancelled_while_its_model_wrote_takes_no_answer_any_more(site: Site) -> None:
    model = ScriptedModel([held(say("too late"), "gate")])
    host = site.open(model)
    run_id = host.start()
    assert model.gate("gate").wait_reached(10)
    host.rt.cancel(run_id)
    model.gate("gate").open()
    result = host.rest(run_id)
    assert (result.outcome, result.text) == ("cancelled", "")
    assert site.of(run_id, e.ModelResponded) == []
