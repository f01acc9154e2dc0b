"""Models named by text: which API, which address, and where the key is, which the text never holds."""

from __future__ import annotations

import pytest

from boundloop.actors.model_spec import COMPATIBLE_KEY_ENV, FAMILIES, adapter_from
from boundloop.adapters.http_model import HttpModel
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.model import ModelInput, ModelTurn, UserItem

KEY = "sk-spec-1234567890abcdef"


def asked() -> ModelInput:
    return ModelInput(
        run_id="r",
        turn=1,
        attempt=1,
        model="m",
        system="",
        items=(UserItem("x"),),
        tools=(),
        output_tokens_max=1,
        request_sha256=b"",
    )


async def sent_without_a_key(spec: str) -> ModelTurn:
    adapter = adapter_from(spec)
    return await adapter.request(asked(), timeout_ms=1_000)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_at_its_own_address_and_at_another(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPATIBLE_KEY_ENV, raising=False)
    own = adapter_from(f"{family}:some-model")
    assert (own.family, own.model) == (family.replace("-", "_"), "some-model")
    assert FAMILIES[family].base_url in repr(own)
    other = adapter_from(f"{family}:org/model@rev@http://127.0.0.1:1/v1")
    assert other.model == "org/model@rev"
    assert "http://127.0.0.1:1/v1" in repr(other)
    assert isinstance(other, HttpModel)


@pytest.mark.asyncio
@pytest.mark.parametrize("family", FAMILIES)
async def test_the_key_is_in_the_providers_own_variable_or_the_one_that_is_named(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (COMPATIBLE_KEY_ENV, FAMILIES[family].key_env, "MY_KEY"):
        monkeypatch.delenv(name, raising=False)
    missing = await sent_without_a_key(f"{family}:m")
    assert (missing.error_code, FAMILIES[family].key_env in missing.safe_message) == ("api_key_missing", True)
    named = await sent_without_a_key(f"{family}:m@http://127.0.0.1:1/v1#key=MY_KEY")
    assert (named.error_code, "MY_KEY" in named.safe_message) == ("api_key_missing", True)
    # The provider's own key isn't sent to another address.
    monkeypatch.setenv(FAMILIES[family].key_env, KEY)
    assert (await sent_without_a_key(f"{family}:m@http://127.0.0.1:1/v1")).error_code == "connect"
    assert KEY not in repr(adapter_from(f"{family}:m"))


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "gemini",
        "gemini:",
        "vertex:m",
        "scripted:",
        "anthropic:m@http://u:p@h/v1",
        "anthropic:m@http://h/v1?x=1#fragment",
        "anthropic:m#key=",
        # Without its scheme an address would be a part of the name, and the request the provider's.
        "openai-chat:m@127.0.0.1:18181/v1",
        "openai-chat:m@127.0.0.1",
        "openai-chat:m@localhost",
        "openai-chat:m@localhost:11434/v1",
        "openai-chat:m@llm.example",
        "openai-chat:m@http:/127.0.0.1/v1",
        "openai-chat:@http://127.0.0.1/v1",
        "anthropic:m#key=sk-1234",
    ],
)
def test_what_names_no_model(spec: str) -> None:
    with pytest.raises(DeclarationError):
        adapter_from(spec)
