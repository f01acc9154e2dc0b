"""Adapters that ask other models on the way, through the Runtime: declared, settled, shown, and what a crash makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stepped_runtime import Site, has

from boundloop.adapters.script import attempts, call, failed, held, read_script, routed, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.event_line import event_line
from boundloop.runtime import events as e
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.model import ModelInput, ModelTurn, SideAttempt, Usage
from boundloop.runtime.prices import FREE, Price, PriceTable
from boundloop.runtime.redaction import Redaction
from boundloop.runtime.side_bounds import SIDE_ATTEMPTS_MAX, SideBounds
from boundloop.runtime.tool_spec import tool

MICRO = Price(input=1_000_000, output=1_000_000)
SIDE = SideBounds(attempts_max=2, input_tokens_max=50, output_tokens_max=10)
ONE = SideAttempt("chooser", Usage(7, 3))


@tool(risk="read")
async def look(at: str) -> dict[str, Any]:
    """Look at something."""
    return {"at": at}


def model(*turns: Any, side: SideBounds | None = SIDE, **options: Any) -> ScriptedModel:
    return ScriptedModel(turns, price=MICRO, side=side, **options)


class Theirs:
    """An adapter of the application, with whatever it declares."""

    family, revision, model = "theirs", "1", "theirs-1"
    price: Price | None = FREE

    def __init__(self, reply: Any = None, **declared: Any) -> None:
        self.reply = reply
        self.asked: list[int] = []
        for name, value in declared.items():
            setattr(self, name, value)

    async def request(self, request: ModelInput, **options: Any) -> Any:
        self.asked.append(request.side_attempts_max)
        return self.reply

    async def close(self) -> None:
        """Nothing to close."""


DECLARED = {"side_attempts_max": 2, "side_input_tokens_max": 50, "side_output_tokens_max": 10}


def test_a_routers_attempts_are_spent_by_the_run_and_shown(site: Site) -> None:
    host = site.open(model(routed(call("look", {"at": "x"}), ONE, ONE), routed("done", ONE)), [look])
    result = host.run()
    assert result.completed
    assert result.spent["model_attempts"] == 2 + 3
    assert result.spent["total_tokens"] == 2 * 120 + 3 * 10
    assert result.spent["cost_micros"] == 2 * 120 + 3 * 10
    asked, _ = site.of(result.run_id, e.ModelRequested)
    assert event_line(asked, 200)[1].endswith(", and 2 side attempts of 100 + 20 tokens")
    answered, _ = site.of(result.run_id, e.ModelResponded)
    said = "14 + 6 tokens of it in 2 side attempts (router chooser, router chooser)"
    assert said in event_line(answered, 200)[1]


def test_those_of_a_failed_attempt_are_spent_too(site: Site) -> None:
    host = site.open(model(attempts(routed(failed(), ONE), routed("done", ONE, ONE))))
    run_id = host.start()
    host.advance(60_000)
    assert host.rest(run_id).spent["model_attempts"] == 2 + 3


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_at_the_request_spends_all_of_its_side_attempts(site: Site, before: bool) -> None:
    host = site.open(model(held(routed("done", ONE), "answer")))
    host.line.cut_at(has(e.ModelResponded), before=before)
    run_id = host.start()
    host.settle()
    host.model.gate("answer").open()
    host.settle()
    host.crash()
    after = site.after_crash(host, [])
    result = after.rest(run_id)
    assert result.completed
    lost = site.of(run_id, e.ModelFailed)
    if before:
        assert [event.side for event in lost] == [e.SideSpent(2, 100, 20, 120)]
        assert "2 as they were set aside" in event_line(lost[0], 200)[1]
        assert result.spent["model_attempts"] == 3 + 2
    else:
        assert lost == []
        assert result.spent["model_attempts"] == 2


HOSTILE: list[Any] = [
    "two",
    (1, 2),
    (SideAttempt(3),),  # type: ignore[arg-type]  # the lie under test
    (SideAttempt("m", "lots"),),  # type: ignore[arg-type]  # the lie under test
    (SideAttempt("m", None, True),),
    (SideAttempt("m", Usage(1.5)),),  # type: ignore[arg-type]  # the lie under test
]


@pytest.mark.parametrize("made", HOSTILE, ids=repr)
def test_what_is_no_side_attempt_fails_the_request_and_all_that_was_set_aside_is_spent(
    site: Site, made: Any
) -> None:
    adapter = Theirs(ModelTurn(finish="final", text="done", side_attempts=made), **DECLARED, side_price=FREE)
    host = site.open(adapter)
    run_id = host.start()
    host.advance(120_000)
    result = host.rest(run_id)
    assert result.reason == "model_failed"
    assert result.spent["model_attempts"] == 3 * 3
    assert adapter.asked == [2, 2, 2]


def test_an_adapter_that_declares_none_and_makes_some_gets_nothing_further_to_send(site: Site) -> None:
    host = site.open(model(routed(call("look", {"at": "x"}), ONE), say("unused"), side=None), [look])
    result = host.run()
    assert (result.status, result.reason) == ("stopped", "max_turns")
    assert result.detail == "side_attempts: 1 made, 0 declared"
    assert host.model.requests == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"side_attempts_max": -1},
        {"side_attempts_max": True},
        {"side_attempts_max": "2"},
        {**DECLARED, "side_attempts_max": SIDE_ATTEMPTS_MAX + 1},
        {"side_attempts_max": 1},
        {**DECLARED, "side_output_tokens_max": 0},
        {**DECLARED, "side_input_tokens_max": 2**53},
        {**DECLARED, "side_price": 3},
    ],
    ids=repr,
)
def test_a_declaration_that_says_nothing_sensible_is_refused_at_the_start(
    site: Site, wrong: dict[str, Any]
) -> None:
    host = site.open(Theirs(**wrong))
    with pytest.raises(DeclarationError) as refused:
        host.start()
    assert refused.value.code == "side_attempts"


def test_the_price_of_side_attempts_is_the_adapters_own_or_the_tables(site: Site) -> None:
    table = PriceTable(revision="1", entries={"chooser": MICRO})
    reply = ModelTurn(finish="final", text="done", usage=Usage(1, 1), side_attempts=(ONE,))
    host = site.open(Theirs(reply, **DECLARED, side_model="chooser"), prices=table)
    assert host.run().spent["cost_micros"] == 10
    unknown = site.open(Theirs(reply, **DECLARED, side_model="another"), prices=table)
    with pytest.raises(DeclarationError) as refused:
        unknown.start()
    assert refused.value.code == "price_unknown"
    assert unknown.run(limits=Limits(cost=WAIVED)).spent["model_attempts"] == 2


def test_a_script_file_says_what_it_declares_and_makes() -> None:
    played = model(routed("done", ONE), say("x"))
    again = ScriptedModel.from_script(read_script(played.dump()))
    assert again.dump() == played.dump()
    assert (again.side_attempts_max, again.side_input_tokens_max) == (2, 50)


def test_a_secret_in_what_is_said_of_a_side_attempt_is_taken_out(site: Site) -> None:
    told = SideAttempt("m canary-4711", None, None, "canary-4711")
    host = site.open(model(routed("done", told)), redact=Redaction(values={"key": "canary-4711"}))
    result = host.run()
    (answered,) = site.of(result.run_id, e.ModelResponded)
    assert answered.side is not None
    assert [made.model for made in answered.side.made] == ["m [redacted:key]"]
    assert "canary-4711" not in site.stored()
