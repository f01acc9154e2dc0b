"""From a ``ModelInput`` to the exact bytes of an Interactions request: pure, the same bytes for the same input.

Without ``store`` each request holds all steps, those of earlier answers as they came. With it the provider has them, and a request
names the last interaction and holds what came since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

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
from .gemini_interactions_decode import CALL, CONTINUATION_TAG
from .history import (
    DIGEST_CALL,
    NOTE_PREFIX,
    Kept,
    carried_ids,
    carried_state,
    kept_members,
    made_up_id,
    wire_arguments,
    wire_ids,
    wire_name,
    wire_text,
)
from .request_body import EncodeOptions, begun, hosted_tools, with_field

OWNED_FIELDS: Final = frozenset(
    {
        "model",
        "agent",
        "input",
        "system_instruction",
        "tools",
        "previous_interaction_id",
        "store",
        "stream",
        "background",
        "continuation_token",
    }
)
OWNED_CONFIG: Final = frozenset({"max_output_tokens"})
"""What an application can't set beside the adapter: the runtime's limits and pairing rest on them."""


class InteractionsOptions(EncodeOptions, frozen=True, kw_only=True):
    """What of an adapter's settings changes the bytes of a request. ``store``: let the provider keep the steps and refer to them."""

    store: bool = False
    hosted: bytes = b"{}"
    extra: bytes = b"{}"
    stream: bool = True


def encode_request(options: InteractionsOptions, request: ModelInput) -> bytes:
    """The request's body. Raises ``CanonicalRefused`` only for a tool schema that JSON can't say."""
    body = begun(options.extra)
    body["model"] = request.model
    body["store"] = options.store
    body["stream"] = options.stream
    if request.system:
        body["system_instruction"] = wire_text(request.system)
    limit = request.output_tokens_max
    body["generation_config"] = with_field(body.get("generation_config"), "max_output_tokens", limit)
    tools: list[JSON] = [_tool(tool) for tool in request.tools]
    tools += hosted_tools(options.hosted, request)
    if tools:
        body["tools"] = tools
    items = list(request.items)
    last = items[-1] if items else None
    state = carried_state(last.continuation, CONTINUATION_TAG) if isinstance(last, AssistantItem) else {}
    token = state.get("token")
    if isinstance(token, str) and token:
        body["continuation_token"] = token
        items.pop()  # with the token the same request goes on with the answer
        if options.store and state.get("id"):
            body["previous_interaction_id"] = state["id"]
            return canonical_bytes(body)
    before, since = _split(items) if options.store else ("", 0)
    if before:
        body["previous_interaction_id"] = before
    body["input"] = _steps(items, since, nested=bool(before))
    return canonical_bytes(body)


def _split(items: Sequence[Item]) -> tuple[str, int]:
    """The id of the last interaction that the provider has, and where what came since begins."""
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if isinstance(item, AssistantItem):
            known = carried_state(item.continuation, CONTINUATION_TAG).get("id")
            return (known, place + 1) if isinstance(known, str) and known else ("", 0)
    return "", 0


def _steps(items: Sequence[Item], since: int, *, nested: bool) -> list[JSON]:
    """The steps from ``since`` on. ``nested``: results stand in a user's input, as they do behind a stored interaction."""
    steps: list[JSON] = []
    results: list[JSON] = []
    ids: dict[str, str] = {}
    earlier: set[str] = set()
    kept: Kept = []

    def settle() -> None:
        if results:
            steps.extend([_input([*results])] if nested else results)
            results.clear()

    for place, item in enumerate(items):
        if isinstance(item, AssistantItem):
            kept = kept_members(carried_state(item.continuation, CONTINUATION_TAG).get("steps"), item.calls)
            ids = wire_ids(item, carried_ids(kept, "id"), earlier)
            earlier.update(ids.values())
        if place < since:
            continue
        if isinstance(item, ResultItem):
            results.append(_result(item, ids.get(item.call_id) or made_up_id(item.call_id)))
            continue
        settle()
        match item:
            case UserItem():
                steps.append(_input([{"type": "text", "text": wire_text(item.text)}]))
            case NoteItem():
                steps.append(_input([{"type": "text", "text": wire_text(NOTE_PREFIX + item.text)}]))
            case DigestItem():
                call_id = f"fc_digest{place}"
                steps.append({"type": CALL, "id": call_id, "name": DIGEST_CALL, "arguments": {}})
                steps.append(
                    {
                        "type": "function_result",
                        "call_id": call_id,
                        "name": DIGEST_CALL,
                        "result": wire_text(item.text),
                    }
                )
            case AssistantItem():
                steps += _answer(item, kept, ids)
    settle()
    return steps


def _input(content: list[JSON]) -> JSON:
    return {"type": "user_input", "content": content}


def _result(item: ResultItem, call_id: str) -> JSON:
    try:
        value = parse_value(item.content, bytes_max=max(1, len(item.content)))
    except JsonRefused:
        value = item.content.decode("utf-8", "backslashreplace")
    found: dict[str, JSON] = {
        "type": "function_result",
        "call_id": call_id,
        "name": wire_name(item.name),
        "result": value,
    }
    if item.is_error:
        found["is_error"] = True
    return found


def _answer(item: AssistantItem, kept: Kept, ids: Mapping[str, str]) -> list[JSON]:
    """The steps of an earlier answer as they came; without them its text and calls."""
    steps: list[JSON] = []
    for member, call in kept:
        if call is None:
            steps.append(member)
            continue
        written: dict[str, JSON] = {
            "id": ids[call.call_id],
            "name": wire_name(call.name),
            "arguments": parse_object(wire_arguments(call.arguments)),
        }
        steps.append({**member, **written})
    if kept:
        return steps
    if item.text:
        content: list[JSON] = [{"type": "text", "text": wire_text(item.text)}]
        steps.append({"type": "model_output", "content": content})
    calls: list[JSON] = [_call(one, ids[one.call_id]) for one in item.calls]
    return steps + calls


def _call(call: AssistantCall, wire_id: str) -> JSON:
    arguments: JSON = parse_object(wire_arguments(call.arguments))
    return {"type": CALL, "id": wire_id, "name": wire_name(call.name), "arguments": arguments}


def _tool(tool: ToolDefinition) -> JSON:
    return {
        "type": "function",
        "name": tool.name,
        "description": wire_text(tool.description),
        "parameters": cast(JSON, tool.parameters),
    }
