"""Recorded exchanges: what a real provider answered, kept in a file as it came, and a model that plays such a file.

``HttpOptions(record_to=FILE)`` makes any adapter over HTTP append a line for each answer: family, model, turn, attempt, status, the
headers that an answer's meaning depends on, and the bytes. Keys, values of further headers and of the URL's query are taken out of it
first; the request isn't kept, only its hash. The file is readable by its owner alone. What stands in it the model and the provider
wrote: it is as confidential as the run.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from ..runtime.errors import DeclarationError
from ..runtime.model import ModelInput, ModelTurn, Usage
from ..runtime.prices import FREE, Price
from .answer_draft import Exchange
from .families import FAMILIES, decoder_of
from .port import ProgressSink
from .secret import Secret, without
from .shown import Shown

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
KEPT_HEADERS: Final = frozenset(
    {
        "content-type",
        "date",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-goog-request-id",
        "x-request-id",
        "x-should-retry",
        "apim-request-id",
    }
)


class RecordedExchange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a file. ``answer`` is base64; ``broke``: the transport gave up with this code, behind the bytes that came."""

    family: str
    model: str
    turn: int
    attempt: int
    request_sha256: str
    status: int
    headers: dict[str, str]
    answer: str
    broke: str = ""


def exchange_of(
    *,
    family: str,
    request: ModelInput,
    body: bytes,
    status: int,
    headers: Mapping[str, str],
    answer: bytes,
    broke: str,
    secrets: Iterable[Secret],
) -> RecordedExchange:
    """A line, with every secret taken out of what is kept."""
    known = tuple(secrets)
    text = answer.decode("latin-1")  # each byte a character, so that what isn't UTF-8 is searched too
    return RecordedExchange(
        family=family,
        model=request.model,
        turn=request.turn,
        attempt=request.attempt,
        request_sha256=sha256(body).hexdigest(),
        status=status,
        headers={name: without(value, known) for name, value in headers.items() if name in KEPT_HEADERS},
        answer=b64encode(without(text, known).encode("latin-1")).decode(),
        broke=broke,
    )


def append_exchange(path: str, exchange: RecordedExchange) -> None:
    """Add a line; a file that isn't there is made for its owner alone. Raises ``OSError``."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, msgspec.json.encode(exchange) + b"\n")
    finally:
        os.close(handle)


class RecordedModel:
    """Plays a file of recorded exchanges: each request gets the answer that the same turn and attempt got then, read again from its
    bytes. One that wasn't recorded gets ``model_error`` with code ``recording_exhausted``. ``price`` is declared, free unless given.

    Raises ``DeclarationError`` for a file that can't be read, that is over 64 MiB, or that holds no exchange.
    """

    inline = True
    """Answers in its first step, so a host needs no task for it."""

    def __init__(self, path: str | Path, *, price: Price | None = FREE) -> None:
        name = str(path)
        try:
            with open(path, "rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise DeclarationError("recording", error.strerror or "can't be read", path=name) from error
        if len(data) > FILE_BYTES_MAX:
            raise DeclarationError("recording", f"over {FILE_BYTES_MAX} bytes", path=name)
        self._exchanges: dict[tuple[int, int], RecordedExchange] = {}
        for number, line in enumerate(data.splitlines(), 1):
            try:
                one = msgspec.json.decode(line, type=RecordedExchange)
                b64decode(one.answer, validate=True)
            except (msgspec.MsgspecError, ValueError) as error:
                raise DeclarationError("recording", "not an exchange", path=f"{name}:{number}") from error
            if one.family not in FAMILIES:
                raise DeclarationError("recording", "of an unknown family", path=f"{name}:{number}")
            self._exchanges[one.turn, one.attempt] = one
        if not self._exchanges:
            raise DeclarationError("recording", "holds no exchange", path=name)
        first = next(iter(self._exchanges.values()))
        self.family = "recorded"
        self.model = first.model
        self.price = price
        self.revision = sha256(data).hexdigest()[:12]

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        """What came then. Nothing is awaited."""
        one = self._exchanges.get((request.turn, request.attempt))
        if one is None:
            return ModelTurn(
                finish="model_error",
                error_code="recording_exhausted",
                safe_message=f"turn {request.turn}, attempt {request.attempt} wasn't recorded",
                retryable=False,
                usage=Usage(0, 0),
            )
        decoder = decoder_of(one.family, Exchange(one.status, one.headers), answer_bytes_max=FILE_BYTES_MAX)
        shown = Shown(request, progress)
        shown.show(decoder.feed(b64decode(one.answer)))
        shown.flush()
        if not one.broke:
            return decoder.end()
        from .http_failure import HttpFailed

        return decoder.broke(HttpFailed(one.broke, "the answer broke off"))

    async def close(self) -> None:
        """Nothing to give back."""
