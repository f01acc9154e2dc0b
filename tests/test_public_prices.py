"""Prices from a public list: pinned, at their dearest, and nothing for what it doesn't know."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pytest

from boundloop.actors import Runtime
from boundloop.adapters.public_prices import public_prices
from boundloop.adapters.script import say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime import Limits
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.prices import Price

AS_OF = datetime(2026, 11, 1, tzinfo=UTC)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)
    with pytest.raises(DeclarationError, match="genai-prices"):
        public_prices(["gpt-5-mini"], as_of=AS_OF)


def test_a_time_without_a_zone_and_too_many_names_are_refused() -> None:
    with pytest.raises(DeclarationError):
        public_prices(["gpt-5-mini"], as_of=datetime(2026, 11, 1))
    with pytest.raises(DeclarationError):
        public_prices(["x"] * 1_001, as_of=AS_OF)


def test_prices_are_micro_units_at_their_dearest_and_unknown_ones_are_none() -> None:
    pytest.importorskip("genai_prices", reason="the extra genai-prices isn't installed")
    table = public_prices(["gpt-5-mini", "gemini-2.5-pro", "nobody-knows-this"], as_of=AS_OF)
    assert table.price("gpt-5-mini") == Price(input=250_000, output=2_000_000, cached_input=25_000)
    assert table.price("gemini-2.5-pro") == Price(input=2_500_000, output=15_000_000, cached_input=250_000)
    assert table.price("nobody-knows-this") is None
    assert table.revision.startswith("genai-prices-")
    assert table.revision.endswith("/2026-11-01")
    assert public_prices(["gpt-5-mini"], as_of=AS_OF, provider="openai").revision != table.revision


def test_a_run_pins_the_price_and_a_model_without_one_is_refused() -> None:
    pytest.importorskip("genai_prices", reason="the extra genai-prices isn't installed")
    table = public_prices(["gpt-5-mini"], as_of=AS_OF)
    model = ScriptedModel([say("Done.")], model="gpt-5-mini", price=None)
    with Runtime(store="memory://", model=model, prices=table) as rt:
        result = rt.run_sync("x", limits=Limits(cost="1"))
    assert result.outcome == "completed"
    assert result.spent["cost_micros"] > 0
    other = ScriptedModel([say("Done.")], model="nobody-knows-this", price=None)
    with Runtime(store="memory://", model=other, prices=table) as rt, pytest.raises(DeclarationError):
        rt.run_sync("x", limits=Limits(cost="1"))
