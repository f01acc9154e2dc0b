"""From a ``ModelInput`` to the exact bytes of a generateContent request: pure, the same bytes for the same input.

An earlier answer goes back with every part as it came, each signature where it was. The results of a turn stand in the one content
right behind it, as many as its calls and in their order, because without ids order is what matches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, cast

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.model import (
    AssistantCall,
    AssistantItem,
    DigestItem,
    Item,
    ModelInput,
    NoteItem,
    ResultItem,
    UserItem,
)
from ..runtime.strict_json import JsonRefused, parse_object, parse_value
from ..runtime.tool_definition import ToolDefinition
from .gemini_decode import CONTINUATION_TAG
from .history import (
    DIGEST_CALL,
    NOTE_PREFIX,
    Kept,
    carried_state,
    wire_arguments,
    wire_ids,
    wire_name,
    wire_text,
)
from .request_body import EncodeOptions, begun, hosted_tools, with_field

OWNED_FIELDS: Final = frozenset({"contents", "systemInstruction", "tools", "continuationToken", "model"})
OWNED_CONFIG: Final = frozenset({"maxOutputTokens", "candidateCount"})
"""What an application can't set beside the adapter: the runtime's limits and pairing rest on them."""

FOREIGN_SIGNATURE: Final = "skip_thought_signature_validator"
"""What stands for the signature of a call that another model made, where one is asked for."""


class GeminiOptions(EncodeOptions, frozen=True, kw_only=True):
    """What of an adapter's settings changes the bytes of a request.

    ``call_ids``: ``given`` echoes the ids that came, ``always`` writes one for each call and its result, ``never`` none; newer models want
    them, older ones refuse them. ``signatures``: write the escape value on the first call of a step that has no signature.
    """

    call_ids: Literal["given", "always", "never"] = "given"
    signatures: bool = False
    hosted: bytes = b"{}"
    extra: bytes = b"{}"


def encode_request(options: GeminiOptions, request: ModelInput) -> bytes:
    """The request's body. Raises ``CanonicalRefused`` only for a tool schema that JSON can't say."""
    body = begun(options.extra)
    items = list(request.items)
    if items and isinstance(last := items[-1], AssistantItem):
        token = carried_state(last.continuation, CONTINUATION_TAG).get("token")
        if isinstance(token, str) and token:
            # The same request again, with the token, goes on with the answer.
            body["continuationToken"] = token
            items.pop()
    if request.system:
        body["systemInstruction"] = {"parts": [{"text": wire_text(request.system)}]}
    body["contents"] = _contents(options, items)
    limit = request.output_tokens_max
    body["generationConfig"] = with_field(body.get("generationConfig"), "maxOutputTokens", limit)
    tools: list[JSON] = []
    if request.tools:
        tools.append({"functionDeclarations": [_tool(tool) for tool in request.tools]})
    tools += hosted_tools(options.hosted, request)
    if tools:
        body["tools"] = tools
    return canonical_bytes(body)


def _contents(options: GeminiOptions, items: Sequence[Item]) -> list[JSON]:
    contents: list[tuple[str, list[JSON]]] = []
    ids: dict[str, str] = {}
    earlier: set[str] = set()
    for item in items:
        match item:
            case UserItem():
                contents.append(("user", [{"text": wire_text(item.text)}]))
            case NoteItem():
                contents.append(("user", [{"text": wire_text(NOTE_PREFIX + item.text)}]))
            case DigestItem():
                contents.append(
                    ("model", _signed(options, [{"functionCall": {"name": DIGEST_CALL, "args": {}}}]))
                )
                response: JSON = {"name": DIGEST_CALL, "response": {"output": wire_text(item.text)}}
                contents.append(("user", [{"functionResponse": response}]))
            case AssistantItem():
                kept = _kept(carried_state(item.continuation, CONTINUATION_TAG).get("parts"), item.calls)
                wire = wire_ids(item, _ids(kept), earlier)
                earlier.update(wire.values())
                parts, ids = _answer(options, item, kept, wire)
                if contents and contents[-1][0] == "model":
                    contents[-1][1].extend(parts)
                elif parts:
                    contents.append(("model", parts))
            case ResultItem():
                result: JSON = {"functionResponse": _result(item, ids.get(item.call_id, ""))}
                # All results of a turn are one content, and nothing else is in it.
                if contents and contents[-1][0] == "user" and _are_results(contents[-1][1]):
                    contents[-1][1].append(result)
                else:
                    contents.append(("user", [result]))
    return [{"role": role, "parts": parts} for role, parts in contents]


def _are_results(parts: Sequence[JSON]) -> bool:
    """Whether a content holds results, and not those of a digest, which are a turn of their own."""
    return all(
        isinstance(part, dict)
        and isinstance(response := part.get("functionResponse"), dict)
        and response.get("name") != DIGEST_CALL
        for part in parts
    )


def _answer(
    options: GeminiOptions, item: AssistantItem, kept: Kept, wire: dict[str, str]
) -> tuple[list[JSON], dict[str, str]]:
    """The parts of an earlier answer as they came, without them its text and calls; and the ids that its results carry."""
    ids: dict[str, str] = {}
    parts: list[JSON] = []
    for member, call in kept:
        if call is None:
            parts.append(member)
            continue
        known = cast("dict[str, JSON]", member["functionCall"])
        function = _function(call)
        if options.call_ids == "always" or (options.call_ids == "given" and known.get("id")):
            function["id"] = ids[call.call_id] = wire[call.call_id]
        rest: dict[str, JSON] = {name: value for name, value in known.items() if name != "id"}
        parts.append({**member, "functionCall": {**rest, **function}})
    if not kept:
        if item.text:
            parts.append({"text": wire_text(item.text)})
        for call in item.calls:
            function = _function(call)
            if options.call_ids == "always":
                function["id"] = ids[call.call_id] = wire[call.call_id]
            parts.append({"functionCall": function})
    return _signed(options, parts), ids


def _ids(kept: Kept) -> list[JSON]:
    """The calls' ids as they came; none where any is missing."""
    functions = [cast("dict[str, JSON]", member["functionCall"]) for member, call in kept if call is not None]
    ids = [function.get("id") for function in functions]
    return ids if all(isinstance(one, str) and one for one in ids) else []


def _kept(parts: JSON, calls: Sequence[AssistantCall]) -> Kept:
    """The parts that came, each beside its call where it is one; nothing unless there are as many as calls."""
    found: Kept = []
    left = iter(calls)
    number = 0
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            return []
        is_call = isinstance(part.get("functionCall"), dict)
        number += is_call
        if number > len(calls):
            return []
        found.append((part, next(left) if is_call else None))
    return found if number == len(calls) else []


def _function(call: AssistantCall) -> dict[str, JSON]:
    return {"name": wire_name(call.name), "args": parse_object(wire_arguments(call.arguments))}


def _signed(options: GeminiOptions, parts: list[JSON]) -> list[JSON]:
    """With a signature on the first call, where the model asks for one and none came."""
    if not options.signatures:
        return parts
    for number, part in enumerate(parts):
        if isinstance(part, dict) and "functionCall" in part:
            if "thoughtSignature" not in part:
                parts[number] = {**part, "thoughtSignature": FOREIGN_SIGNATURE}
            break
    return parts


def _result(item: ResultItem, call_id: str) -> JSON:
    found: dict[str, JSON] = {
        "name": wire_name(item.name),
        "response": {"error" if item.is_error else "output": _value(item.content)},
    }
    if call_id:
        found["id"] = call_id
    return found


def _value(content: bytes) -> JSON:
    """The result as a value; what is no JSON as its text."""
    try:
        return parse_value(content, bytes_max=max(1, len(content)))
    except JsonRefused:
        return content.decode("utf-8", "backslashreplace")


def _tool(tool: ToolDefinition) -> JSON:
    return {
        "name": tool.name,
        "description": wire_text(tool.description),
        "parametersJsonSchema": cast(JSON, tool.parameters),
    }
