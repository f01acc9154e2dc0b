"""What every model behind HTTP has in common: its key, its one request, streamed or not, and the turn that comes of it.

A family's adapter says where to post, how the key goes along and what the body is; its decoder reads what comes. Nothing is
retried here: each attempt is the runtime's, counted and on record, and none begins in the middle of an answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ..runtime.errors import CallerError, DeclarationError
from ..runtime.foreign_text import bounded_text
from ..runtime.model import ModelInput, ModelTurn, Usage
from ..runtime.prices import Price
from .answer_draft import Exchange
from .correlation import REQUEST_ID_HEADER, request_id
from .decoding import TurnDecoder
from .endpoint import query_secrets, secret_headers, without_query
from .families import decoder_of
from .http import CONNECTIONS_MAX, RESPONSE_BYTES_MAX, HttpClient, HttpReply
from .http_body import Take
from .http_failure import Cut, HttpFailed
from .port import ProgressSink
from .provider_errors import NOTHING_USED
from .recorded import RecordedExchange, append_exchange, exchange_of
from .secret import Secret, safe_text
from .shown import Shown, on_loop

MESSAGE_CHARS_MAX: Final = 512
REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024

LOOP_BYTES_MAX: Final = 256 * 1024
"""A larger body is read on a thread: 8 MiB of the slowest kind take most of a second, and a loop has many runs."""


BEARER: Final = "authorization"
"""The header of a key that is a bearer token, which most families have."""

NO_ANSWER: Final = HttpFailed("no_answer", "the answer is none")
"""Stands for what the decoder itself says better."""

IDLE_MS: Final = 300_000
"""How long a stream may be silent. Servers send comments or pings while a model thinks, most of them."""


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of an adapter's settings is the same for each family, and changes no byte of a request's body. ``record_to``: a file to
    append each answer to (``recorded.py``); the recording of one run is what ``RecordedModel`` plays."""

    api_key: str | None = None
    api_key_env: str | None = None
    headers: Mapping[str, str] | None = None
    price: Price | None = None
    send_request_id: bool = True
    insecure_http: bool = False
    trust_env: bool = False
    ca_file: str | None = None
    connections_max: int = CONNECTIONS_MAX
    response_bytes_max: int = RESPONSE_BYTES_MAX
    idle_ms: int = IDLE_MS
    record_to: str | None = None
    library: str = "httpx"

    @property
    def guarded(self) -> bool:
        """Whether something secret goes with each request, and nothing allows it to go in the clear."""
        has_key = self.api_key is not None or self.api_key_env is not None or bool(self.headers)
        return has_key and not self.insecure_http


class HttpModel:
    """One model behind one family's API; a family's adapter is this, made from its settings. Pickles without its connections; a key in
    ``api_key`` pickles too.

    ``url``: where requests go. ``encode``: the body; raises ``CallerError`` for what can't be said in it. ``revision``: of encoding and
    options; equal revisions send equal bytes for equal input. ``key_header``: the header that the key goes along in. ``headers``: the
    family's own.
    """

    family = ""

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        options: HttpOptions,
        stream: bool,
        url: Secret,
        encode: Callable[[ModelInput], bytes],
        revision: str,
        key_header: str = BEARER,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Raises ``DeclarationError`` for settings that can't be meant."""
        if not model or len(model) > 256 or not model.isprintable():
            raise DeclarationError("model", "a name of at most 256 printable characters", path="model")
        if options.api_key is not None and options.api_key_env is not None:
            raise DeclarationError("api_key", "either api_key or api_key_env", path="api_key")
        self._model = model
        self._price = options.price
        self._key = None if options.api_key is None else Secret(options.api_key)
        self._key_env = options.api_key_env
        self._headers = secret_headers(options.headers or {})
        self._send_request_id = options.send_request_id
        self._response_bytes_max = options.response_bytes_max
        self._streams = stream
        if options.idle_ms < 1:
            raise DeclarationError("idle_ms", "at least 1", path="idle_ms")
        self._idle_ms = options.idle_ms if stream else None
        self._record_to = options.record_to
        self._shown_url = without_query(base_url)
        self._query = query_secrets(base_url)
        self._client = HttpClient(
            connections_max=options.connections_max,
            response_bytes_max=options.response_bytes_max,
            trust_env=options.trust_env,
            ca_file=options.ca_file,
            library=options.library,
        )
        self._url = url
        self._encode = encode
        self._revision = revision
        self._key_header = key_header
        self._own_headers = dict(headers or {})

    # --- the port -----------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> str:
        """Of encoding and options: equal revisions send equal bytes for equal input."""
        return self._revision

    @property
    def model(self) -> str:
        """The name that is asked for."""
        return self._model

    @property
    def price(self) -> Price | None:
        """The declared price."""
        return self._price

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self._model!r}, base_url={self._shown_url!r})"

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        """Send once; whatever comes of it is a ``ModelTurn``. What is shown on the way is provisional."""
        try:
            key = self._key_now()
            body = self._encode(request)
        except CallerError as error:
            return _unsent(error.code, str(error))
        if len(body) > REQUEST_BYTES_MAX:
            return _unsent("request_too_large", f"the request is over {REQUEST_BYTES_MAX} bytes")
        shown = Shown(request, progress, later=on_loop(asyncio.get_running_loop()))
        reading = _Reading(
            self.family,
            [*self._headers.values(), *self._query, *([] if key is None else [key])],
            self._response_bytes_max,
            shown,
            records=self._record_to is not None,
        )
        try:
            reply = await self._client.stream(
                self._url.reveal(),
                self._headers_for(request, key),
                body,
                timeout_ms=timeout_ms,
                receive=reading.receive,
                idle_ms=self._idle_ms,
            )
            turn = await reading.turn(reply)
        finally:
            shown.close()
        if self._record_to is not None and (kept := reading.exchange(request, body, reply)) is not None:
            try:
                await asyncio.to_thread(append_exchange, self._record_to, kept)
            except OSError as error:
                # The answer is there and may have been paid for: a full disk loses the recording and nothing else.
                logging.getLogger(__name__).warning("an exchange wasn't recorded: %s", error.strerror)
        message = self._message(turn, key, request)
        # The two are measured by different hands, and nothing comes after the whole.
        first_ms = min(reading.first_token_ms, reply.total_ms)
        return msgspec.structs.replace(
            turn, total_ms=reply.total_ms, first_token_ms=first_ms, safe_message=message
        )

    async def close(self) -> None:
        """Give back the running loop's connections."""
        await self._client.close()

    # --- the key ------------------------------------------------------------------------------------------------------

    def _key_now(self) -> Secret | None:
        if self._key_env is None:
            return self._key
        text = os.environ.get(self._key_env, "").strip()
        if not text:
            raise DeclarationError(
                "api_key_missing", "this environment variable is empty", path=self._key_env
            )
        return Secret(text, name=self._key_env)

    def _headers_for(self, request: ModelInput, key: Secret | None) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json" if self._streams else "application/json",
            "accept-encoding": "identity",
            "user-agent": "boundloop",
            **self._own_headers,
        }
        headers.update((name, secret.reveal()) for name, secret in self._headers.items())
        if key is not None:
            bearer = "Bearer " if self._key_header == BEARER else ""
            headers[self._key_header] = bearer + key.reveal()
        if self._send_request_id and (one := request_id(request.run_id, request.turn, request.attempt)):
            headers[REQUEST_ID_HEADER] = one
        return headers

    def _message(self, turn: ModelTurn, key: Secret | None, request: ModelInput) -> str:
        """For people: who must act, and the provider's words, which hold no secret of ours any more."""
        text = turn.safe_message
        if not text:
            return ""
        if turn.error_code in ("unauthorized", "forbidden"):
            source = f"${self._key_env}" if self._key_env else "api_key" if key else "no key was given"
            text = f"the server doesn't accept the key ({source}); {text}"
        elif turn.error_code == "not_found":
            text = f"is the base URL right, and the model {request.model!r} there? {text}"
        elif turn.error_code == "redirect":
            text = f"redirects aren't followed; name the final base URL. {text}"
        return bounded_text(text, MESSAGE_CHARS_MAX)


class _Reading:
    """One answer on its way from the client to a turn."""

    def __init__(
        self, family: str, secrets: list[Secret], bytes_max: int, shown: Shown, *, records: bool
    ) -> None:
        self._family = family
        self._secrets = secrets
        self._bytes_max = bytes_max
        self._shown = shown
        self._decoder: TurnDecoder | None = None
        self._status, self._answer_headers = 0, dict[str, str]()
        self._kept: list[bytes] | None = [] if records else None
        self._began = time.monotonic()
        self.first_token_ms = 0

    def receive(self, status: int, headers: Mapping[str, str]) -> Take:
        now_ms = time.time_ns() // 1_000_000
        exchange = Exchange(status, headers, now_ms, self._secrets)
        self._status, self._answer_headers = status, dict(headers)
        decoder = self._decoder = decoder_of(self._family, exchange, answer_bytes_max=self._bytes_max)

        def take(chunk: bytes) -> bool:
            if self._kept is not None:
                self._kept.append(chunk)
            signs = decoder.feed(chunk)
            if signs:
                self.first_token_ms = self.first_token_ms or max(
                    1, round((time.monotonic() - self._began) * 1_000)
                )
                self._shown.show(signs)
            if decoder.failed:
                raise Cut(NO_ANSWER)  # nothing more of it is read, and its connection serves no more
            return not decoder.done

        return take

    def exchange(
        self, request: ModelInput, body: bytes, reply: HttpReply | HttpFailed
    ) -> RecordedExchange | None:
        """The answer as it is recorded; None where none began."""
        if self._decoder is None or self._kept is None:
            return None
        return exchange_of(
            family=self._family,
            request=request,
            body=body,
            status=self._status,
            headers=self._answer_headers,
            answer=b"".join(self._kept),
            broke=reply.code if isinstance(reply, HttpFailed) else "",
            secrets=self._secrets,
        )

    async def turn(self, reply: HttpReply | HttpFailed) -> ModelTurn:
        decoder = self._decoder
        self._shown.flush()
        if decoder is None:
            return _broken(reply) if isinstance(reply, HttpFailed) else _unsent("http", "no answer")
        if isinstance(reply, HttpFailed):
            return decoder.broke(reply)
        if decoder.body_bytes <= LOOP_BYTES_MAX:
            return decoder.end()
        return await asyncio.to_thread(decoder.end)


def _broken(failed: HttpFailed) -> ModelTurn:
    # Before it was sent nothing was used; after that nobody knows, and the reservation stays spent.
    used: Usage | None = NOTHING_USED if failed.unsent else None
    return ModelTurn(
        finish="transport_broken",
        finish_raw=failed.code,
        error_code=failed.code,
        safe_message=failed.message,
        retryable=failed.retryable,
        usage=used,
        total_ms=failed.total_ms,
    )


def _unsent(code: str, message: str) -> ModelTurn:
    return ModelTurn(
        finish="provider_error",
        finish_raw=code,
        error_code=code,
        safe_message=safe_text(message, MESSAGE_CHARS_MAX),
        retryable=False,
        usage=NOTHING_USED,
    )
