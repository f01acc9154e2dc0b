"""One answer of a model, fed as bytes: whole or as a stream, in any chunks, and then one turn.

Whether it is a stream the bytes themselves say: servers answer with a body where a stream was asked for, and under the
wrong content type. Nothing is a turn before ``end``; before the API's own terminal event it is a broken transport.
Pure and total: whatever comes becomes a turn, and no exception leaves here.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ..runtime.model import ModelTurn
from ..runtime.strict_json import JsonRefused
from .answer_draft import Assembly, Exchange, Misread, Sign, broken_off, misread, turn_of
from .http_failure import HttpFailed
from .provider_errors import read_error, refusal
from .sse import FRAME_BYTES_MAX, Frame, FrameTooLarge, SseParser

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
HEAD_BYTES_MAX: Final = 4_096
"""How far blanks are followed before what comes is taken for a body."""

_blank = b"\xef\xbb\xbf \t\r\n"
_field = re.compile(rb"(?:data|event|id|retry|error)?:")
_field_begun = re.compile(
    rb"(?:d|da|dat|data|e|ev|eve|even|event|er|err|erro|error|i|id|r|re|ret|retr|retry)?\Z"
)
_BAD: Final = (JsonRefused, msgspec.MsgspecError, ValueError, RecursionError)


class TurnDecoder:
    """Feed it, then ask once: ``end`` where the bytes ended by themselves, ``broke`` where they were cut off.

    ``work`` counts bytes that were read or copied, for tests of its cost: it stays linear in what was fed.
    """

    def __init__(
        self, assembly: Assembly, exchange: Exchange, *, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self._assembly = assembly
        self._exchange = exchange
        self._bytes_left = answer_bytes_max
        self._frame_bytes_max = min(FRAME_BYTES_MAX, answer_bytes_max)
        self._head = bytearray()
        self._body: list[bytes] | None = None if exchange.status == 200 else []
        self._parser: SseParser | None = None
        self._failed: ModelTurn | None = None
        self._last_said = False
        self.frames = 0
        self.judged = False
        """Whether the turn came out of the family's table: an answer, and no error in its place."""

    @property
    def ended(self) -> bool:
        """The API's own terminal event arrived: nothing that may follow is needed."""
        return self._assembly.draft.ended

    @property
    def failed(self) -> bool:
        """What came can't become an answer any more."""
        return self._failed is not None

    @property
    def done(self) -> bool:
        """Nothing of the bytes that may follow is needed: the stream said its last."""
        streamed = self._parser is not None
        return self._last_said or (self.ended and streamed and self._assembly.ends_at_once)

    @property
    def body_bytes(self) -> int:
        """How much of a whole body waits to be read at the end."""
        return sum(map(len, self._body)) if self._body is not None else 0

    @property
    def unknown(self) -> dict[str, int]:
        """What was kept and skipped because nobody here knows it, by kind."""
        return dict(self._assembly.draft.unknown)

    @property
    def refusal(self) -> str:
        """What was refused, in the model's or the provider's words, bounded; "" for nothing."""
        draft = self._assembly.draft
        return ("".join(draft.refusals) if draft.refusals else "")[:512]

    @property
    def work(self) -> int:
        """Bytes looked at so far."""
        if self._parser is not None:
            return self._parser.work
        return sum(map(len, self._body or ())) + len(self._head)

    def feed(self, chunk: bytes) -> list[Sign]:
        """Take in some bytes; what may be shown of them. After a failure nothing is read any more."""
        if self._failed is not None or not chunk:
            return []
        self._bytes_left -= len(chunk)
        if self._bytes_left < 0:
            self._break("response_too_large", "the answer is too large")
            return []
        if self._body is not None:
            self._body.append(chunk)
            return []
        if self._parser is None:
            self._head += chunk
            chunk = self._begin(at_end=False)
            if self._parser is None:
                return []
        return self._stream(self._parser, chunk)

    def end(self) -> ModelTurn:
        """The turn. The bytes ended as their transport says that they end."""
        parser = self._parser
        if self._failed is None and self._body is None and parser is None:
            parser = self._decide()
        if self._failed is not None:
            return self._failed
        return self._whole(b"".join(self._body or ())) if parser is None else self._end_of_stream(parser)

    def broke(self, failed: HttpFailed) -> ModelTurn:
        """The turn where the transport gave up. Only a stream whose terminal event is there, and needs no end of the bytes
        behind it, is whole all the same."""
        if self._failed is not None:
            return self._failed
        if self._parser is not None and self.ended and not self._assembly.ends_with_eof:
            return self._end_of_stream(self._parser)
        return broken_off(
            self._assembly.draft, failed.code, failed.message, self._exchange, retryable=failed.retryable
        )

    def _decide(self) -> SseParser | None:
        """All that will come is there: read it as what it is."""
        rest = self._begin(at_end=True)
        parser = self._parser
        if parser is not None:
            self._stream(parser, rest)
        return parser

    # --- which it is --------------------------------------------------------------------------------------------------

    def _begin(self, *, at_end: bool) -> bytes:
        """Decide between body and stream; what of a stream is to be read now."""
        start = bytes(self._head).lstrip(_blank)
        if not start and not at_end and len(self._head) <= HEAD_BYTES_MAX:
            return b""
        begun = bool(start) and _field_begun.match(start) is not None
        if _field.match(start) or (at_end and begun):
            self._parser = SseParser(frame_bytes_max=self._frame_bytes_max)
        elif at_end or len(self._head) > HEAD_BYTES_MAX or not begun:
            self._body = [bytes(self._head)]
        else:
            return b""
        head = bytes(self._head)
        self._head.clear()
        return head if self._body is None else b""

    # --- a whole body -------------------------------------------------------------------------------------------------

    def _whole(self, body: bytes) -> ModelTurn:
        exchange = self._exchange
        if exchange.status != 200:
            return refusal(
                exchange.status, exchange.headers, body, now_ms=exchange.now_ms, secrets=exchange.secrets
            )
        try:
            self._assembly.draft.ended = True  # the end of a body is the end of its answer
            self._assembly.body(body)
            turn = turn_of(self._assembly, exchange)
            self.judged = self._assembly.draft.error is None
            return turn
        except Misread as error:
            return misread(self._assembly.draft, error, exchange)
        except JsonRefused as error:
            return self._unreadable(error, body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return misread(self._assembly.draft, WRONG_SHAPE, exchange)

    def _unreadable(self, error: JsonRefused, body: bytes) -> ModelTurn:
        if error.code == "syntax" and body.lstrip()[:1] in (b"", b"{", b"["):
            return broken_off(
                self._assembly.draft, "broken_json", "the answer breaks off, or isn't whole", self._exchange
            )
        known = error.code in ("syntax", "encoding", "bom", "not_object")
        code = "not_json" if known else f"json_{error.code}"
        return misread(
            self._assembly.draft, Misread(code, "the answer isn't the JSON object of one"), self._exchange
        )

    # --- a stream -----------------------------------------------------------------------------------------------------

    def _stream(self, parser: SseParser, chunk: bytes) -> list[Sign]:
        try:
            frames = parser.feed(chunk)
        except FrameTooLarge:
            self._break("response_too_large", "a part of the stream is too large")
            return []
        for frame in frames:
            if not self._frame(frame):
                break
        draft = self._assembly.draft
        signs, draft.signs = draft.signs, []
        return signs if self._failed is None else []

    def _frame(self, frame: Frame) -> bool:
        """Read one frame; False if the answer is none."""
        self.frames += 1
        if frame.data.strip() in (b"[DONE]", b""):
            self._last_said = self._last_said or bool(frame.data.strip())
            return True
        try:
            self._assembly.frame(frame)
        except Misread as error:
            self._failed = misread(self._assembly.draft, error, self._exchange)
        except _BAD:
            self._break("bad_chunk", "a part of the stream can't be read")
        return self._failed is None

    def _end_of_stream(self, parser: SseParser) -> ModelTurn:
        draft = self._assembly.draft
        for frame in parser.finish():
            # A frame that broke off is no frame: whatever it was to be, what came before it counts.
            if _is_whole(frame) and not self._frame(frame):
                break
        if self._failed is not None:
            return self._failed
        try:
            if draft.error is None and parser.stray and not draft.ended:
                stray = bytes(parser.stray)
                if read_error(stray).message:
                    draft.error = stray
            if draft.error is None and not draft.ended:
                return broken_off(
                    draft, "stream_broken", "the stream ended before its own last event", self._exchange
                )
            if draft.error is None:
                self._assembly.settle()
            turn = turn_of(self._assembly, self._exchange)
            self.judged = draft.error is None
            return turn
        except Misread as error:
            return misread(draft, error, self._exchange)
        except _BAD:
            return misread(draft, WRONG_SHAPE, self._exchange)

    def _break(self, code: str, message: str) -> None:
        self._failed = broken_off(self._assembly.draft, code, message, self._exchange)


WRONG_SHAPE: Final = Misread("response_shape", "the answer's fields are of another shape")


def _is_whole(frame: Frame) -> bool:
    try:
        msgspec.json.decode(frame.data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def decode_whole(assembly: Assembly, exchange: Exchange, body: bytes) -> ModelTurn:
    """The turn of an answer whose bytes are all there."""
    decoder = TurnDecoder(assembly, exchange, answer_bytes_max=max(len(body), 1))
    decoder.feed(body)
    return decoder.end()
