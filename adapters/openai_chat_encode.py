"""From a ``ModelInput`` to the exact bytes of a Chat Completions request: pure, the same bytes for the same input.

The history goes back as the protocol wants it: an assistant message with its calls as they came, then one tool message a
call right after it. Digests go out as the result of a call of ``DIGEST_CALL``. What a server would refuse outright (an empty call id, a tool name that no schema allows, arguments
that are no object) is written in its nearest allowed form; results are matched by our own ids, so nothing hangs on that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from ..runtime.canonical import JSON, canonical_bytes, decode_canonical
from ..runtime.errors import CallerError
from ..runtime.model import AssistantItem, DigestItem, Item, ModelInput, NoteItem, ResultItem, UserItem
from ..runtime.strict_json import JsonRefused, parse_object
from ..runtime.tool_definition import ToolDefinition
from .openai_chat_decode import CONTINUATION_TAG

ENCODING: Final = "3"
"""Raised whenever the same input would become other bytes."""

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

NOTE_PREFIX: Final = "[runtime] "
"""Notes go out as user messages: many servers take a system message only at the beginning."""

DIGEST_CALL: Final = "recorded_turns"
"""What digests are shown as a result of: the protocol gives far sides' words no other place than the tool's."""

_wire_name = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_not_in_names = re.compile(r"[^A-Za-z0-9_-]")


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of an adapter's settings changes the bytes of a request.

    ``output_limit_field``: OpenAI's reasoning models refuse ``max_tokens``, many compatible servers know only that.
    ``strict``: mark tools whose schema allows it. ``extra``: further fields of the request, canonical.
    """

    output_limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    strict: bool = True
    parallel_tool_calls: bool | None = None
    system_role: Literal["system", "developer", "user"] = "system"
    extra: bytes = b"{}"

    def revision(self) -> str:
        """Changes whenever the bytes for the same input would."""
        return f"{ENCODING}-{sha256(msgspec.json.encode(self)).hexdigest()[:12]}"


def encode_request(options: ChatOptions, request: ModelInput) -> bytes:
    """The request's body. Raises ``CanonicalRefused`` only for a tool schema that JSON can't say."""
    body: dict[str, JSON] = dict(cast("dict[str, JSON]", decode_canonical(options.extra)))
    body["model"] = request.model
    body["messages"] = cast("list[JSON]", _messages(options, request.system, request.items))
    body[options.output_limit_field] = request.output_tokens_max
    body["stream"] = False
    if request.tools:
        body["tools"] = [_tool(options, tool) for tool in request.tools]
        if options.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = options.parallel_tool_calls
    return canonical_bytes(body)


# --- the history ----------------------------------------------------------------------------------------------------


def _messages(options: ChatOptions, system: str, items: Sequence[Item]) -> list[dict[str, JSON]]:
    messages: list[dict[str, JSON]] = []
    if system:
        messages.append({"role": options.system_role, "content": _text(system)})
    ids: Mapping[str, str] = {}
    for item in items:
        match item:
            case UserItem():
                messages.append({"role": "user", "content": _text(item.text)})
            case NoteItem():
                messages.append({"role": "user", "content": _text(NOTE_PREFIX + item.text)})
            case DigestItem():
                messages += _digest(item, len(messages))
            case AssistantItem():
                carried = _carried(item.continuation)
                ids = wire_ids(item, carried.ids)
                messages.append(_assistant(item, ids, carried))
            case ResultItem():
                call_id = ids.get(item.call_id) or _made_up_id(item.call_id)
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
        {"role": "tool", "tool_call_id": call_id, "content": _text(item.text)},
    ]


def wire_ids(item: AssistantItem, carried: Sequence[JSON] = ()) -> dict[str, str]:
    """Each call's id on the wire: the provider's own, unchanged; where it gave none or one twice, one made from ours.
    ``carried``: the ids in the order of the calls, where the record's own may be cut."""
    ids: dict[str, str] = {}
    labels = [call.provider_call_id for call in item.calls]
    if len(carried) == len(labels):
        labels = [
            whole if isinstance(whole, str) else cut for whole, cut in zip(carried, labels, strict=True)
        ]
    used = set(labels)
    taken: set[str] = set()
    for call, written in zip(item.calls, labels, strict=True):
        label = _text(written)
        if not label or label in taken:
            label = _made_up_id(call.call_id)
            while label in used or label in taken:  # each round is longer, so at most one for each call
                label += "_"
        taken.add(label)
        ids[call.call_id] = label
    return ids


def _made_up_id(call_id: str) -> str:
    return "call_" + _not_in_names.sub("_", call_id)


def _assistant(item: AssistantItem, ids: Mapping[str, str], carried: _Carried) -> dict[str, JSON]:
    message: dict[str, JSON] = {"role": "assistant", "content": _text(item.text)}
    extras = carried.extras
    if item.calls:
        if not item.text:
            message["content"] = None
        calls: list[JSON] = []
        for index, call in enumerate(item.calls):
            function: dict[str, JSON] = {"name": _name(call.name), "arguments": _arguments(call.arguments)}
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
    if not continuation:
        return _Carried()
    try:
        whole = decode_canonical(continuation)
    except CallerError:
        return _Carried()
    if not isinstance(whole, dict) or whole.get(CONTINUATION_TAG) != 1:
        return _Carried()
    kept, extras, ids = whole.get("message"), whole.get("calls"), whole.get("ids")
    allowed = ("reasoning_content", "reasoning_details", "extra_content", "content")
    message = {name: kept[name] for name in allowed if name in kept} if isinstance(kept, dict) else {}
    return _Carried(message, extras if isinstance(extras, list) else (), ids if isinstance(ids, list) else ())


def _arguments(raw: bytes) -> str:
    """As they came, if they are an object. Servers parse the history: one call whose arguments the model garbled would
    make each later request of the run a 400. What was wrong the call's own result says, and the log keeps the bytes."""
    try:
        parse_object(raw)
    except JsonRefused:
        return "{}"
    return raw.decode()


def _name(name: str) -> str:
    return name if _wire_name(name) else _not_in_names.sub("_", name)[:64] or "unnamed"


def _text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# --- the tools ------------------------------------------------------------------------------------------------------


def _tool(options: ChatOptions, tool: ToolDefinition) -> JSON:
    function: dict[str, JSON] = {
        "name": tool.name,
        "description": _text(tool.description),
        "parameters": cast(JSON, tool.parameters),
    }
    if options.strict and fits_strict(tool.parameters):
        function["strict"] = True
    return {"type": "function", "function": function}


_STRICT_KEYWORDS: Final = frozenset(
    {
        "type",
        "title",
        "description",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "$defs",
        "$ref",
    }
)


def fits_strict(schema: Mapping[str, Any]) -> bool:
    """Whether a schema is in the subset that strict mode takes: closed objects, every property required, keywords that
    are known to be taken. A tool outside of it is offered without ``strict`` and judged by the ladder alone."""
    return schema.get("type") == "object" and all(_strict_node(node) for node in _nodes(schema))


def _strict_node(node: Mapping[str, Any]) -> bool:
    if not _STRICT_KEYWORDS.issuperset(node):
        return False
    if node.get("type") != "object" and "properties" not in node:
        return True
    properties = set(node.get("properties", ()))
    return node.get("additionalProperties") is False and properties == set(node.get("required", ()))


def _nodes(schema: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Every schema within a schema."""
    stack: list[Any] = [schema]
    while stack:
        node = stack.pop()
        if not isinstance(node, dict):
            continue
        found = cast("dict[str, Any]", node)
        yield found
        stack += [*found.get("properties", {}).values(), *found.get("$defs", {}).values()]
        stack += [found.get("items"), *found.get("anyOf", ())]
