"""The HTTP client against servers that drip, cut, swell, lie and redirect: a value each time, in time, sent once."""

from __future__ import annotations

import asyncio
import gzip
import pickle
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import certifi
import httpx
import pytest
from tests.model_server import Heard, Listening, http, speaking

from boundloop.adapters.http import HttpClient, HttpReply
from boundloop.adapters.http_body import GZIP_MEMBERS_MAX
from boundloop.adapters.http_failure import FAILURES, HttpFailed
from boundloop.runtime.errors import DeclarationError

BODY: Final = b'{"ok":true}'
Answer = HttpReply | HttpFailed


def asked(
    speak: Callable[[Heard], Awaitable[None]],
    *,
    timeout_ms: int = 5_000,
    client: HttpClient | None = None,
    times: int = 1,
) -> tuple[list[Answer], Listening]:
    """What the client makes of such a server."""

    async def run() -> tuple[list[Answer], Listening]:
        used = client or HttpClient()
        async with speaking(speak) as listening:
            answers = [
                await used.post(listening.url, {"x-test": "1"}, b"{}", timeout_ms=timeout_ms)
                for _ in range(times)
            ]
            await used.close()
            return answers, listening

    return asyncio.run(run())


def failed(answer: Answer) -> HttpFailed:
    assert isinstance(answer, HttpFailed)
    return answer


def says(data: bytes) -> Callable[[Heard], Awaitable[None]]:
    async def speak(heard: Heard) -> None:
        await heard.say(data)

    return speak


def test_a_whole_answer() -> None:
    (answer,), listening = asked(says(http(BODY, "Content-Type: application/json", "X-Request-Id: r1")))
    assert isinstance(answer, HttpReply)
    assert (answer.status, answer.body, answer.headers["x-request-id"]) == (200, BODY, "r1")
    assert listening.heard[0].head.startswith("POST /v1 HTTP/1.1")
    assert listening.heard[0].body == b"{}"


def test_an_error_is_an_answer() -> None:
    (answer,), _ = asked(says(http(b"<h1>502</h1>", "Content-Type: text/html", status="502 Bad Gateway")))
    assert isinstance(answer, HttpReply)
    assert answer.status == 502


def test_a_redirect_is_not_followed() -> None:
    (answer,), listening = asked(says(http(b"", "Location: /v2", status="307 Temporary Redirect")))
    assert isinstance(answer, HttpReply)
    assert answer.status == 307
    assert len(listening.heard) == 1


# --- cut, and never sent again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        http(BODY, length=100),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"a" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
        http(BODY, length=-1),
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\nabcde",
        http(gzip.compress(BODY, mtime=0)[:-9], "Content-Encoding: gzip"),
        http(b"not gzip", "Content-Encoding: gzip"),
    ],
    ids=range(11),
)
def test_what_is_cut_or_no_http_is_lost_and_not_sent_again(data: bytes) -> None:
    (answer,), listening = asked(says(data))
    assert failed(answer).code == "connection_lost"
    assert failed(answer).retryable
    assert not failed(answer).unsent
    assert len(listening.heard) == 1


def test_a_reset_in_the_middle() -> None:
    async def speak(heard: Heard) -> None:
        await heard.say(http(BODY, length=100))
        heard.cut()

    (answer,), _ = asked(speak)
    assert failed(answer).code == "connection_lost"


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    (answer,), _ = asked(says(b"HTTP/1.1 200 OK\r\n\r\n" + BODY))
    assert isinstance(answer, HttpReply)
    assert answer.body == BODY


def test_a_kept_connection_that_the_server_closed_is_not_used_again() -> None:
    answers, listening = asked(says(http(BODY)), times=3)
    assert all(isinstance(answer, HttpReply) for answer in answers)
    assert len(listening.heard) == 3


# --- time -------------------------------------------------------------------------------------------------------------


def drips(data: bytes) -> Callable[[Heard], Awaitable[None]]:
    """One byte after the other, each as soon as the loop comes round, for ever."""

    async def speak(heard: Heard) -> None:
        await heard.say(data)
        while True:
            await heard.say(b" ")
            await asyncio.sleep(0)

    return speak


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\nx-slow: ", http(b"{", length=4_000_000)])
def test_a_server_that_drips_or_hangs_is_cut_at_the_deadline(data: bytes) -> None:
    async def speak(heard: Heard) -> None:
        await heard.say(data)
        await heard.until_closed()

    began = time.monotonic()
    (answer,), _ = asked(speak, timeout_ms=200)
    assert failed(answer).code == "timeout"
    assert 150 <= failed(answer).total_ms < 2_000
    assert time.monotonic() - began < 5


def test_bytes_that_keep_coming_do_not_stretch_the_deadline() -> None:
    (answer,), _ = asked(drips(http(b"{", length=2**40)[:-1]), timeout_ms=200, client=HttpClient())
    assert failed(answer).code in ("timeout", "response_too_large")

    async def chunks(heard: Heard) -> None:
        await heard.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await heard.say(b"1\r\n \r\n")
            await asyncio.sleep(0)

    (answer,), _ = asked(chunks, timeout_ms=200)
    assert failed(answer).code == "timeout"


def test_cancelling_closes_the_connection() -> None:
    async def run() -> None:
        closed, reached = asyncio.Event(), asyncio.Event()

        async def speak(heard: Heard) -> None:
            reached.set()
            await heard.until_closed()
            closed.set()

        client = HttpClient()
        async with speaking(speak) as listening, asyncio.timeout(10):
            work = asyncio.ensure_future(client.post(listening.url, {}, b"{}", timeout_ms=60_000))
            await reached.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await closed.wait()
        await client.close()

    asyncio.run(run())


def test_a_lane_whose_answer_broke_is_as_good_as_new() -> None:
    async def run() -> list[Answer]:
        async def speak(heard: Heard) -> None:
            number = len(listening.heard)
            if number == 1:
                await heard.say(http(b"x", length=50))
                await heard.until_closed()
            elif number == 2:
                heard.cut()
            else:
                await heard.say(http(BODY))

        client = HttpClient(connections_max=1)
        async with speaking(speak) as listening:
            answers = [await client.post(listening.url, {}, b"{}", timeout_ms=300) for _ in range(4)]
        await client.close()
        return answers

    broken, lost, *well = asyncio.run(run())
    assert (failed(broken).code, failed(lost).code) == ("timeout", "connection_lost")
    assert all(isinstance(answer, HttpReply) for answer in well)


# --- size -------------------------------------------------------------------------------------------------------------


def bomb(size: int) -> bytes:
    return gzip.compress(b"\0" * size, mtime=0)


@pytest.mark.parametrize(
    "data",
    [
        http(b"x" * 2_000),
        http(b"", length=2**62),
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000,
        http(bomb(50_000_000), "Content-Encoding: gzip"),
        http(zlib.compress(b"\0" * 5_000), "Content-Encoding: deflate"),
        http(bomb(2_000), "Content-Encoding: gzip"),
    ],
    ids=range(6),
)
def test_a_body_over_the_cap_is_cut_also_when_packed(data: bytes) -> None:
    (answer,), _ = asked(says(data), client=HttpClient(response_bytes_max=1_000))
    assert failed(answer).code == "response_too_large"


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (gzip.compress(BODY, mtime=0), "gzip"),
        (gzip.compress(BODY, mtime=0), "X-GZip"),
        (zlib.compress(BODY), "deflate"),
        (zlib.compress(BODY)[2:-4], "deflate"),
        (gzip.compress(BODY, mtime=0), "deflate"),
        (BODY, "identity"),
    ],
)
def test_packed_bodies_are_unpacked(packed: bytes, encoding: str) -> None:
    (answer,), listening = asked(says(http(packed, f"Content-Encoding: {encoding}")))
    assert isinstance(answer, HttpReply)
    assert answer.body == BODY
    assert len(listening.heard) == 1


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "zstd"])
def test_other_packings_are_refused(encoding: str) -> None:
    (answer,), _ = asked(says(http(BODY, f"Content-Encoding: {encoding}")))
    assert failed(answer).code == "content_encoding"


# --- packed in several pieces -----------------------------------------------------------------------------------------

HALVES: Final = (gzip.compress(BODY[:5], mtime=0), gzip.compress(BODY[5:], mtime=0))


@pytest.mark.parametrize(
    "packed",
    [
        zlib.compress(BODY)[2:-4],
        zlib.compress(BODY),
        b"".join(HALVES),
        gzip.compress(b"", mtime=0) + b"".join(HALVES) + gzip.compress(b"", mtime=0),
        b"".join(HALVES) + b"\0" * 512,
        b"".join(gzip.compress(BODY[n : n + 1], mtime=0) for n in range(len(BODY))),
    ],
    ids=["bare", "zlib", "two members", "empty members", "padded", "a member each byte"],
)
def test_a_packed_body_is_read_to_its_end_however_it_arrives(packed: bytes) -> None:
    encoding = "Content-Encoding: " + ("gzip" if packed.startswith(b"\x1f\x8b") else "deflate")
    (answer,), _ = asked(says(http(packed, encoding)))
    assert isinstance(answer, HttpReply)
    assert answer.body == BODY

    async def a_byte_each(heard: Heard) -> None:
        await heard.say(http(b"", encoding, length=len(packed)))
        for n in range(len(packed)):
            await heard.say(packed[n : n + 1])
            await asyncio.sleep(0)

    (answer,), _ = asked(a_byte_each)
    assert isinstance(answer, HttpReply)
    assert answer.body == BODY


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (HALVES[0] + b"tail", "gzip"),
        (HALVES[0] + HALVES[1][:-3], "gzip"),
        (HALVES[0] + HALVES[1][:4], "gzip"),
        (HALVES[0] + b"\0" * 8 + b"x", "gzip"),
        (HALVES[0] + b"\0" * 8 + HALVES[1], "gzip"),
        (gzip.compress(b"", mtime=0) * (GZIP_MEMBERS_MAX + 1), "gzip"),
        (zlib.compress(BODY) + b"tail", "deflate"),
        (zlib.compress(BODY) + zlib.compress(BODY), "deflate"),
    ],
    ids=range(8),
)
def test_what_follows_a_packed_body_and_is_none_is_no_whole_answer(packed: bytes, encoding: str) -> None:
    (answer,), _ = asked(says(http(packed, f"Content-Encoding: {encoding}")))
    assert failed(answer).code == "connection_lost"


def test_members_share_one_cap() -> None:
    packed = gzip.compress(b"x" * 600, mtime=0) * 2
    (answer,), _ = asked(
        says(http(packed, "Content-Encoding: gzip")), client=HttpClient(response_bytes_max=1_000)
    )
    assert failed(answer).code == "response_too_large"


# --- connections ------------------------------------------------------------------------------------------------------


def test_nobody_listens() -> None:
    async def run() -> Answer:
        async with speaking(says(b"")) as listening:
            url = listening.url
        client = HttpClient()
        try:
            return await client.post(url, {}, b"{}", timeout_ms=5_000)
        finally:
            await client.close()

    answer = failed(asyncio.run(run()))
    assert (answer.code, answer.unsent, answer.retryable) == ("connect", True, True)


def test_a_server_without_tls_behind_https() -> None:
    async def plain(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http(b"", status="400 Bad Request"))
        await writer.drain()
        writer.close()

    async def run() -> Answer:
        client = HttpClient()
        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            answer = await client.post(url, {}, b"{}", timeout_ms=5_000)
        await client.close()
        return answer

    answer = failed(asyncio.run(run()))
    assert (answer.code, answer.unsent, answer.retryable) == ("tls", True, False)


def test_connections_are_bounded_and_waiting_for_one_counts() -> None:
    async def run() -> tuple[list[Answer], int]:
        opened: list[int] = [0, 0]

        async def speak(heard: Heard) -> None:
            opened[0] += 1
            opened[1] = max(opened)
            await heard.until_closed()
            opened[0] -= 1

        client = HttpClient(connections_max=2)
        async with speaking(speak) as listening:
            answers = await asyncio.gather(
                *[client.post(listening.url, {}, b"{}", timeout_ms=300) for _ in range(5)]
            )
        await client.close()
        return list(answers), opened[1]

    answers, most = asyncio.run(run())
    codes = [failed(answer).code for answer in answers]
    assert set(codes) == {"timeout", "pool_timeout"}
    assert [failed(answer).unsent for answer in answers] == [code == "pool_timeout" for code in codes]
    assert most == 2


def test_no_cookie_is_kept_or_sent() -> None:
    """A lane serves one run after another; what a gateway sets for one is none of the next one's business."""

    async def run() -> list[str]:
        async def speak(heard: Heard) -> None:
            for number in range(3):
                await heard.say(http(BODY, f"set-cookie: s{number}={'v' * 2_000}; Path=/"))
                await heard.read()

        client = HttpClient(connections_max=1)
        async with speaking(speak) as listening:
            heads: list[str] = []
            for _ in range(3):
                assert isinstance(await client.post(listening.url, {}, b"{}", timeout_ms=5_000), HttpReply)
                heads.append(listening.heard[0].head)
        await client.close()
        assert len(listening.heard) == 1  # one connection, all three on it
        return heads

    assert not any("cookie" in head.lower() for head in asyncio.run(run()))


def test_a_lane_that_cannot_be_made_takes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    client = HttpClient(connections_max=1, trust_env=True)

    async def run() -> list[Answer]:
        async with speaking(says(http(BODY))) as listening:
            monkeypatch.setenv("HTTP_PROXY", "foo://bar")
            answers = [await client.post(listening.url, {}, b"", timeout_ms=2_000) for _ in range(3)]
            monkeypatch.delenv("HTTP_PROXY")
            answers.append(await client.post(listening.url, {}, b"", timeout_ms=2_000))
        await client.close()
        return answers

    *broken, well = asyncio.run(run())
    assert {(failed(answer).code, failed(answer).unsent) for answer in broken} == {("proxy_setting", True)}
    assert not any(failed(answer).retryable for answer in broken)
    assert isinstance(well, HttpReply)


def test_certificates_that_cannot_be_read_are_the_callers(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("no certificate")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(DeclarationError) as error:
            HttpClient(ca_file=str(tmp_path / name))
        assert error.value.path == "ca_file"


def test_a_copy_whose_certificates_are_missing_where_it_arrives_fails_before_it_sends(tmp_path: Path) -> None:
    kept = tmp_path / "ca.pem"
    kept.write_bytes(Path(certifi.where()).read_bytes())
    packed = pickle.dumps(HttpClient(ca_file=str(kept)))
    kept.unlink()
    copy: HttpClient = pickle.loads(packed)
    (answer,), listening = asked(says(http(BODY)), client=copy)
    assert (failed(answer).code, failed(answer).unsent, failed(answer).retryable) == ("ca_file", True, False)
    assert listening.heard == []


def test_proxies_of_the_environment_are_not_used_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    (answer,), _ = asked(says(http(BODY)))
    assert isinstance(answer, HttpReply)
    (answer,), _ = asked(says(http(BODY)), client=HttpClient(trust_env=True))
    assert isinstance(answer, HttpFailed)


def test_one_client_serves_one_loop_after_another_and_pickles_without_connections() -> None:
    client = HttpClient(response_bytes_max=1_000)
    for _ in range(2):
        (answer,), _ = asked(says(http(BODY)), client=client)
        assert isinstance(answer, HttpReply)
    copy = pickle.loads(pickle.dumps(client))
    (answer,), _ = asked(says(http(b"x" * 1_001)), client=copy)
    assert failed(answer).code == "response_too_large"


@pytest.mark.parametrize(
    ("connections_max", "response_bytes_max"), [(0, 1), (-1, 1), (10**6, 1), (1, 0), (1, -1)]
)
def test_settings_that_mean_nothing(connections_max: int, response_bytes_max: int) -> None:
    with pytest.raises(DeclarationError):
        HttpClient(connections_max=connections_max, response_bytes_max=response_bytes_max)


def test_every_exception_of_the_client_has_its_row() -> None:
    kinds = [
        kind
        for kind in vars(httpx).values()
        if isinstance(kind, type) and issubclass(kind, httpx.TransportError | httpx.InvalidURL)
    ]
    for kind in kinds:
        assert any(issubclass(kind, row) for row, _ in FAILURES)
    codes = {
        httpx.ReadError: "connection_lost",
        httpx.WriteError: "connection_lost",
        httpx.ReadTimeout: "timeout",
    }
    for kind, code in codes.items():
        assert next(row for known, row in FAILURES if issubclass(kind, known)).code == code
