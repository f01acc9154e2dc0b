"""Another client's library, of the same names, does the same."""

from __future__ import annotations

import asyncio
import pickle
import sys

import httpx
import pytest
from tests.model_server import Heard, http, speaking
from tests.provider_streams import body, ended
from tests.test_http_models import asked, model_of

from boundloop.adapters.http import HttpClient, HttpReply
from boundloop.adapters.http_failure import FAILURES, HttpFailed, failures_of
from boundloop.runtime.errors import DeclarationError


@pytest.fixture(params=["stand-in", "installed"])
def httpx2(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library under its other name: itself where it is installed, else the first one in its place."""
    if request.param == "installed":
        pytest.importorskip("httpx2", reason="httpx2 isn't installed")
    else:
        monkeypatch.setitem(sys.modules, "httpx2", httpx)


@pytest.mark.usefixtures("httpx2")
def test_it_sends_and_fails_alike() -> None:
    async def speak(heard: Heard) -> None:
        await heard.say(http(b"{}"))

    async def run() -> tuple[HttpReply | HttpFailed, HttpReply | HttpFailed]:
        client = pickle.loads(pickle.dumps(HttpClient(library="httpx2")))
        async with speaking(speak) as listening:
            said = await client.post(listening.url, {}, b"{}", timeout_ms=5_000)
        refused = await client.post(listening.url, {}, b"{}", timeout_ms=5_000)
        await client.close()
        return said, refused

    said, refused = asyncio.run(run())
    assert isinstance(said, HttpReply)
    assert said.body == b"{}"
    assert isinstance(refused, HttpFailed)
    assert (refused.code, refused.unsent) == ("connect", True)
    rows = failures_of(sys.modules["httpx2"])
    assert [failed for _, failed in rows] == [failed for _, failed in FAILURES]


@pytest.mark.usefixtures("httpx2")
def test_a_model_is_asked_through_it() -> None:
    async def speak(heard: Heard) -> None:
        await heard.say(http(body("anthropic", ended("anthropic", "final", text="Done."))))

    async def run() -> str:
        async with speaking(speak) as listening:
            model = model_of("anthropic", listening.url, library="httpx2")
            turn = await model.request(asked(), timeout_ms=5_000)
            await model.close()
            return turn.text

    assert asyncio.run(run()) == "Done."


def test_no_other_library_is_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeclarationError):
        HttpClient(library="requests")
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(DeclarationError):
        HttpClient(library="httpx2")
