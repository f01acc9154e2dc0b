"""The pieces of a streamed Chat Completions answer, put together into the choice that a whole answer would hold.

Servers disagree on how pieces belong to calls. By ``index`` where there is one; a new id at the index of another call opens
a call of its own, unless the piece has no name and goes on with arguments (some give each piece a new id); without an index
a piece with a name opens a call and any other goes on with the last. Ids and names are said once or repeated, never added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from .answer_draft import CALLS_MAX, CallSeen, Draft, Misread, TextSeen
from .finish_table import OPENAI_CHAT_STREAM, Facts, row_of
from .openai_chat_wire import WireCall, WireChoice, WireFunction, WireMessage, decode_parts
from .wire_json import MISSING, present, text_of, written_bytes

DETAILS_MAX: Final = 4_096


class _Call:
    """One call as far as it came."""

    __slots__ = ("arguments", "extra", "id", "kind", "name", "number")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.id = ""
        self.name = ""
        self.kind: object = None
        self.arguments: list[str] = []
        self.extra: Raw = MISSING


class ChatStream:
    """Takes the choices of each piece; ``choice`` is what they come to."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._legacy: _Call | None = None
        self._refusal: list[str] = []
        self._parts: list[object] = []
        self._reasoning: list[str] = []
        self._details: list[dict[str, Any]] = []
        self._extra: Raw = MISSING
        self._natives: list[object] = []
        self._message = False

    def add(self, choices: Sequence[WireChoice]) -> None:
        """One piece. Raises ``Misread`` where there are several answers."""
        for choice in choices:
            if choice.index not in (None, 0):
                raise Misread("several_choices", "the answer holds several choices", model=True)
            # One server sends whole messages in a stream's place.
            delta = choice.delta or choice.message
            if delta is not None:
                self._delta(delta)
            native = choice.finish_reason
            if native is not None and native != "":
                self._natives.append(native)
                self._draft.ended = True

    def choice(self) -> WireChoice:
        """The whole of it. Where several finish values came, the one that permits least."""
        content: Raw = MISSING
        texts = "".join(self._draft.texts)
        if self._parts:
            parts = [*self._parts, *([{"type": "text", "text": texts}] if texts else [])]
            content = Raw(msgspec.json.encode(parts))
        elif texts:
            content = Raw(msgspec.json.encode(texts))
        legacy = self._legacy
        message = WireMessage(
            content=content,
            refusal="".join(self._refusal) or None,
            tool_calls=[_wire(call) for call in self._calls] or None,
            function_call=None if legacy is None else _wire(legacy).function,
            reasoning_content=Raw(msgspec.json.encode("".join(self._reasoning)))
            if self._reasoning
            else MISSING,
            reasoning_details=Raw(msgspec.json.encode([_joined(detail) for detail in self._details]))
            if self._details
            else MISSING,
            extra_content=self._extra,
        )
        return WireChoice(
            finish_reason=self._native(bool(message.tool_calls or legacy)),
            message=message if self._message else None,
        )

    def _native(self, calls: bool) -> object:
        facts = Facts(calls=calls)
        allowed = ("calls", "final")
        for native in self._natives:
            if row_of(OPENAI_CHAT_STREAM, native, facts).finish not in allowed:
                return native
        return self._natives[-1] if self._natives else None

    def _delta(self, delta: WireMessage) -> None:
        self._message = True
        draft = self._draft
        text = self._content(delta.content)
        if text:
            draft.texts.append(text)
            draft.signs.append(TextSeen(text))
        if refused := text_of(delta.refusal):
            self._refusal.append(refused)
        for call in delta.tool_calls or ():
            self._call(call)
        if delta.function_call is not None:
            self._legacy_call(delta.function_call)
        if bytes(delta.reasoning_content).startswith(b'"'):
            self._reasoning.append(msgspec.json.decode(delta.reasoning_content, type=str))
        if bytes(delta.reasoning_details).startswith(b"["):
            for detail in cast("list[object]", msgspec.json.decode(delta.reasoning_details)):
                self._detail(detail)
        if present(delta.extra_content):
            self._extra = delta.extra_content.copy()

    def _content(self, content: Raw) -> str:
        raw = bytes(content)
        if raw.startswith(b'"'):
            return msgspec.json.decode(raw, type=str)
        if not raw.startswith(b"["):
            return ""
        parts = decode_parts(raw)
        written = cast("list[object]", msgspec.json.decode(raw))
        self._parts += [part for part in written if not _is_text(part)]
        self._refusal += [text_of(part.refusal) for part in parts if part.type == "refusal"]
        return "".join(text_of(part.text) for part in parts if part.type == "text")

    def _call(self, piece: WireCall) -> None:
        function = piece.function or WireFunction()
        name, label = text_of(function.name), text_of(piece.id)
        call = self._of(piece.index, label, name)
        call.id = call.id or label
        if name and not call.name:
            call.name = name
            self._draft.signs.append(CallSeen(call.number, name))
        call.kind = call.kind or piece.type
        if present(function.arguments):
            call.arguments.append(written_bytes(function.arguments).decode())
        if present(piece.extra_content):
            call.extra = piece.extra_content.copy()

    def _of(self, index: object, label: str, name: str) -> _Call:
        """The call that a piece belongs to, opened if need be."""
        if isinstance(index, int) and not isinstance(index, bool):
            call = self._by_index.get(index)
            other = call is not None and bool(label and call.id and label != call.id)
            renamed = call is not None and bool(name and call.name and name != call.name)
            if call is None or renamed or (other and name):
                call = self._by_index[index] = self._open()
            return call
        last = self._calls[-1] if self._calls else None
        goes_on = (
            last is not None and (not label or label == last.id) and not (name and last.name and not label)
        )
        return last if last is not None and goes_on else self._open()

    def _open(self) -> _Call:
        if len(self._calls) >= CALLS_MAX:
            raise Misread("too_many_calls", f"the answer holds over {CALLS_MAX} calls", model=True)
        call = _Call(len(self._calls))
        self._calls.append(call)
        return call

    def _legacy_call(self, piece: WireFunction) -> None:
        if self._legacy is None:
            self._legacy = _Call()
        self._legacy.name = self._legacy.name or text_of(piece.name)
        self._legacy.arguments.append(written_bytes(piece.arguments).decode())

    def _detail(self, piece: object) -> None:
        """Pieces of one reasoning block: its texts add up, everything else is said once."""
        if not isinstance(piece, dict):
            return
        found = cast("dict[str, Any]", piece)
        last = self._details[-1] if self._details else None
        same = (
            last is not None
            and last.get("index") == found.get("index")
            and last.get("type") == found.get("type")
            and "id" not in found
        )
        if last is None or not same:
            if len(self._details) >= DETAILS_MAX:
                raise Misread("too_many_parts", f"the answer holds over {DETAILS_MAX} blocks of reasoning")
            last = cast("dict[str, Any]", {})
            self._details.append(last)
        for name, value in found.items():
            if name in _ADDED and isinstance(value, str):
                pieces = last.get(name)
                if isinstance(pieces, list):
                    cast("list[object]", pieces).append(value)
                else:
                    last[name] = [value]
            elif value is not None:
                last[name] = value


_ADDED: Final = ("text", "summary", "data")


def _joined(detail: dict[str, Any]) -> dict[str, Any]:
    return {
        name: "".join(text_of(piece) for piece in cast("list[object]", value))
        if name in _ADDED and isinstance(value, list)
        else value
        for name, value in detail.items()
    }


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and cast("dict[str, Any]", part).get("type") in ("text", "refusal")


def _wire(call: _Call) -> WireCall:
    arguments = Raw(msgspec.json.encode("".join(call.arguments))) if call.arguments else MISSING
    return WireCall(call.id, call.kind, WireFunction(call.name, arguments), call.extra)
