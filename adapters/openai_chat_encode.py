"""From a ``ModelInput`` to the exact bytes of a Chat Completions request: pure, the same bytes for the same input.

The history goes back as the protocol wants it: an assistant message with its calls as they came, then one tool message a
call right after it. Digests go out as the result of a call of ``DIGEST_CALL``. What a server would refuse outright (an empty call id, a tool name that no schema allows, arguments
that are no object) is written in its nearest allowed form; results are matched by our own ids, so nothing hangs on that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final, Literal, NamedTuple, cast

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.model import AssistantItem, DigestItem, Item, ModelInput, NoteItem, ResultItem, UserItem
from ..runtime.tool_definition import ToolDefinition
from .history import (
    DIGEST_CALL,
    NOTE_PREFIX,
    carried_state,
    fits_strict,
    made_up_id,
    wire_arguments,
    wire_ids,
    wire_name,
    wire_text,
)
from .openai_chat_decode import CONTINUATION_TAG
from .request_body import EncodeOptions, begun

OWNED_FIELDS: Final = frozenset(
    {
        "model",
        "messages",
        "tools",
        "functions",
        "function_call",
        "tool_choice",
        "parallel_tool_calls",
        "max_tokens",
        "max_completion_tokens",
        "stream",
        "stream_options",
        "n",
    }
)
"""What an application can't set beside the adapter: the runtime's limits and pairing rest on them."""


class ChatOptions(EncodeOptions, frozen=True, kw_only=True):
    """What of an adapter's settings changes the bytes of a request.

    ``output_limit_field``: OpenAI's reasoning models refuse ``max_tokens``, many compatible servers know only that.
    ``strict``: mark tools whose schema allows it. ``extra``: further fields of the request, canonical.
    ``stream_usage``: the usage is said in a stream only where it is asked for.
    """

    encoding: ClassVar[str] = "4"

    output_limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    strict: bool = True
    parallel_tool_calls: bool | None = None
    system_role: Literal["system", "developer", "user"] = "system"
    extra: bytes = b"{}"
    stream: bool = False
    stream_usage: bool = False


def encode_request(options: ChatOptions, request: ModelInput) -> bytes:
    """The request's body. Raises ``CanonicalRefused`` only for a tool schema that JSON can't say."""
    body = begun(options.extra)
    body["model"] = request.model
    body["messages"] = cast("list[JSON]", _messages(options, request.system, request.items))
    body[options.output_limit_field] = request.output_tokens_max
    body["stream"] = options.stream
    if options.stream_usage:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(options, tool) for tool in request.tools]
        if options.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = options.parallel_tool_calls
    return canonical_bytes(body)


# --- the history ----------------------------------------------------------------------------------------------------


def _messages(options: ChatOptions, system: str, items: Sequence[Item]) -> list[dict[str, JSON]]:
    messages: list[dict[str, JSON]] = []
    if system:
        messages.append({"role": options.system_role, "content": wire_text(system)})
    ids: Mapping[str, str] = {}
    for item in items:
        match item:
            case UserItem():
                messages.append({"role": "user", "content": wire_text(item.text)})
            case NoteItem():
                messages.append({"role": "user", "content": wire_text(NOTE_PREFIX + item.text)})
            case DigestItem():
                messages += _digest(item, len(messages))
            case AssistantItem():
                carried = _carried(item.continuation)
                ids = wire_ids(item, carried.ids)
                messages.append(_assistant(item, ids, carried))
            case ResultItem():
                call_id = ids.get(item.call_id) or made_up_id(item.call_id)
                content = item.content.decode("utf-8", "backslashreplace")
                messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
    return messages


def _digest(item: DigestItem, place: int) -> list[dict[str, JSON]]:
    """A call that nobody made, and its result."""
    call_id = f"digest{place % 1_000:03d}"  # nine letters and digits: all that some servers take
    function: dict[str, JSON] = {"name": DIGEST_CALL, "arguments": "{}"}
    call: JSON = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": wire_text(item.text)},
    ]


def _assistant(item: AssistantItem, ids: Mapping[str, str], carried: _Carried) -> dict[str, JSON]:
    message: dict[str, JSON] = {"role": "assistant", "content": wire_text(item.text)}
    extras = carried.extras
    if item.calls:
        if not item.text:
            message["content"] = None
        calls: list[JSON] = []
        for index, call in enumerate(item.calls):
            function: dict[str, JSON] = {
                "name": wire_name(call.name),
                "arguments": wire_arguments(call.arguments),
            }
            one: dict[str, JSON] = {"id": ids[call.call_id], "type": "function", "function": function}
            if index < len(extras) and extras[index] is not None:
                one["extra_content"] = extras[index]
            calls.append(one)
        message["tool_calls"] = calls
    message.update(carried.message)
    return message


class _Carried(NamedTuple):
    """What an earlier answer left to be sent back: members of its message, one more of each call, the calls' whole ids."""

    message: Mapping[str, JSON] = MappingProxyType({})
    extras: Sequence[JSON] = ()
    ids: Sequence[JSON] = ()


def _carried(continuation: bytes | None) -> _Carried:
    """The opaque state of this family; another family's is left alone."""
    whole = carried_state(continuation, CONTINUATION_TAG)
    kept, extras, ids = whole.get("message"), whole.get("calls"), whole.get("ids")
    allowed = ("reasoning_content", "reasoning_details", "extra_content", "content")
    message = {name: kept[name] for name in allowed if name in kept} if isinstance(kept, dict) else {}
    return _Carried(message, extras if isinstance(extras, list) else (), ids if isinstance(ids, list) else ())


# --- the tools ------------------------------------------------------------------------------------------------------


def _tool(options: ChatOptions, tool: ToolDefinition) -> JSON:
    function: dict[str, JSON] = {
        "name": tool.name,
        "description": wire_text(tool.description),
        "parameters": cast(JSON, tool.parameters),
    }
    if options.strict and fits_strict(tool.parameters):
        function["strict"] = True
    return {"type": "function", "function": function}
