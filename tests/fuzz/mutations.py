"""Garbled answers of every family, each of which must become a turn.

Each mutation begins with an answer as a family writes it (or a recorded one, where ``BOUNDLOOP_RECORDED`` names them),
garbles it once or a few times, and feeds it in chunks to the decoder of its family or of another. Whatever comes out must
be a turn that can be put on record; no exception may leave, and nothing may be executable that never ended. A seed gives
the same mutation each time.
"""

from __future__ import annotations

import json
import os
import random
import resource
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from tests.provider_streams import FAMILIES, Call, body, ended, stream

from boundloop.adapters.answer_draft import Exchange
from boundloop.adapters.families import decoder_of
from boundloop.adapters.http_failure import HttpFailed
from boundloop.runtime.model import FINISH, ModelTurn

RECORDED_BYTES_MAX: Final = 20_000
ANSWER_BYTES_MAX: Final = 256 * 1024
MEMORY_BYTES_MAX: Final = 256 * 1024 * 1024
"""How much more than before the first mutation the process may take at any time."""

CUT: Final = HttpFailed("connection_lost", "the answer broke off")
JUNK: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, 2**63, 2**64, 1e400, "", "x", "\ud800", [], {}, [[]], [None], {"a": 1}, "null", "{}",
    {"type": "error"}, {"type": "function_call"}, {"functionCall": {}}, {"index": 0}, "tool_use", "STOP", "stop",
)  # fmt: skip
BYTES: Final = (b"\x00", b"\xff", b"\xed\xa0\x80", b'"', b"{", b"}", b"[", b"]", b":", b",", b"\\", b"\r", b"\n",
                b"\n\n", b"data: ", b"event: error\n", b"[DONE]", b"error: {}\n\n", b"\xef\xbb\xbf", b"1e999",
                b"[" * 200, b"null")  # fmt: skip


SAID: Final = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]
CHOICE: Final = {"index": 0, "logprobs": {"content": SAID}, "token_ids": [7, 0], "finish_reason": "stop"}
PART: Final = {"type": "output_text", "text": "Hi", "logprobs": SAID}
ITEM: Final = {"type": "message", "id": "m1", "role": "assistant", "content": [PART]}
CHOSEN: Final = {"chosenCandidates": [{"token": "Hi", "tokenId": 7, "logProbability": -0.5}]}
CANDIDATE: Final = {"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP", "logprobsResult": CHOSEN}
TOKENS: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("openai_chat", ({"prompt_token_ids": [1, 2], "choices": [{**CHOICE, "message": {"content": "Hi"}}]},)),
    (
        "openai_chat",
        (
            {
                "prompt_token_ids": [1, 2],
                "choices": [{**CHOICE, "delta": {"content": "Hi"}, "finish_reason": None}],
            },
            {"prompt_logprobs": [None, {"7": -0.5}], "choices": [{**CHOICE, "delta": {}}]},
        ),
    ),
    ("openai_responses", ({"id": "r1", "status": "completed", "output": [ITEM]},)),
    (
        "openai_responses",
        (
            {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi", "logprobs": SAID},
            {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
            {"type": "response.completed", "response": {"id": "r1", "status": "completed", "output": []}},
        ),
    ),
    ("gemini", ({"candidates": [{**CANDIDATE, "avgLogprobs": -0.5}]},)),
    ("gemini", ({"candidates": [CANDIDATE]}, {"candidates": [CANDIDATE]})),
)
"""Answers that say something of their tokens: one object is a body, and a stream's only event too."""


def seeds() -> list[tuple[str, bytes]]:
    """(family, answer) of everything that is garbled."""
    rng = random.Random("seeds")
    found: list[tuple[str, bytes]] = []
    arguments = json.dumps({"text": 'a "b" \\ {', "n": 1, "list": [1, {"x": None}]})
    calls = [Call("id_1", "look", arguments), Call("id_2", "pay", "{}")]
    for family in FAMILIES:
        for kind, some in (("calls", calls), ("final", []), ("truncated", calls[:1])):
            answer = ended(family, kind, text="Hello", calls=some)
            found += [(family, body(family, answer)), (family, stream(family, answer))]
            found.append((family, stream(family, answer, rng=rng)))
    for family, objects in TOKENS:
        written = [json.dumps(one).encode() for one in objects]
        found.append((family, b"".join(b"data: " + one + b"\n\n" for one in written)))
        if len(written) == 1:
            found.append((family, written[0]))
    folder = os.environ.get("BOUNDLOOP_RECORDED", "")
    for family in FAMILIES if folder else ():
        for path in sorted(Path(folder, family).iterdir()):
            data = path.read_bytes()
            if len(data) <= RECORDED_BYTES_MAX and "request" not in path.name:
                found.append((family, data))
    return found


def garbled(data: bytes, rng: random.Random) -> bytes:
    """The answer, changed once or a few times."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        data = rng.choice(CHANGES)(data, rng)[:ANSWER_BYTES_MAX]
    return data


def _put(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(BYTES) + data[place:]


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def _drop(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.randrange(1, 60) :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _twice(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.randrange(1, 2_000)]
    return data[:start] + part * rng.choice((2, 2, 3, 40)) + data[start + len(part) :]


def _frames(data: bytes, rng: random.Random) -> bytes:
    parts = data.split(b"\n\n")
    change = rng.randrange(3)
    one, two = rng.randrange(len(parts)), rng.randrange(len(parts))
    if change == 0:
        parts[one], parts[two] = parts[two], parts[one]
    elif change == 1:
        del parts[one]
    else:
        parts.insert(one, parts[two])
    return b"\n\n".join(parts)


def _value(data: bytes, rng: random.Random) -> bytes:
    """Another value somewhere within one JSON text."""
    lines = data.split(b"\n")
    texts = [number for number, line in enumerate(lines) if b"{" in line]
    if not texts:
        return data
    number = rng.choice(texts)
    head, _, text = lines[number].partition(b"{")
    try:
        tree = json.loads(b"{" + text)
    except (ValueError, RecursionError):
        return data
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        pairs: list[tuple[Any, Any]]
        if isinstance(node, dict):
            pairs = list(cast("dict[object, object]", node).items())
        else:
            pairs = list(enumerate(cast("list[Any]", node)))
        places += [(node, key) for key, _ in pairs]
        stack += [child for _, child in pairs if isinstance(child, dict | list)]
    if places:
        node, key = rng.choice(places)
        if isinstance(node, dict) and rng.random() < 0.2:
            del node[key]
        else:
            node[key] = rng.choice(JUNK)
    lines[number] = head + json.dumps(tree).encode()
    return b"\n".join(lines)


CHANGES: Final = (_put, _flip, _drop, _cut, _twice, _frames, _value, _value, _value)


def try_one(seed: str, known: list[tuple[str, bytes]]) -> str:
    """Garble and decode once; what came out. Raises ``AssertionError`` or whatever the decoder let out."""
    rng = random.Random(seed)
    family, data = rng.choice(known)
    data = garbled(data, rng)
    if rng.random() < 0.1:
        family = rng.choice(FAMILIES)
    status = 200 if rng.random() < 0.9 else rng.choice((400, 401, 429, 500, 529, 302, 204))
    one = decoder_of(family, Exchange(status), answer_bytes_max=ANSWER_BYTES_MAX)
    place = 0
    while place < len(data):
        size = rng.choice((1, 7, 100, 5_000))
        one.feed(data[place : place + size])
        place += size
    turn = one.broke(CUT) if rng.random() < 0.2 else one.end()
    assert type(turn) is ModelTurn
    rule = FINISH[turn.finish]
    if rule.executable or rule.final:
        assert one.ended
        assert status == 200
        assert one.judged
    if turn.finish == "transport_broken":
        assert turn.calls == ()
    # What goes on record must be what it says it is, and encode.
    stored = msgspec.convert(msgspec.to_builtins(turn, builtin_types=(bytes,)), ModelTurn)
    msgspec.json.encode(msgspec.to_builtins(stored))
    assert len(turn.safe_message) <= 600
    if turn.token_data is not None:
        assert not rule.retry
        assert json.loads(turn.token_data)
    if turn.usage is not None:
        counts = (turn.usage.input_tokens, turn.usage.output_tokens)
        assert all(count is None or count >= 0 for count in counts)
    return turn.finish


def memory() -> int:
    """The most that this process took so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def garble_many(mutations: int, seed: str) -> tuple[dict[str, int], list[str], int]:
    """(how often each finish came, the seeds that failed, by how many bytes the process grew). The first failures are
    shown on stderr."""
    known = seeds()
    before = memory()
    came: Counter[str] = Counter()
    failed: list[str] = []
    for number in range(mutations):
        one = f"{seed}.{number}"
        try:
            came[try_one(one, known)] += 1
        except Exception:  # noqa: BLE001  whatever is let out is what is looked for
            failed.append(one)
            if len(failed) <= 3:
                traceback.print_exc()
    return dict(came), failed, memory() - before
