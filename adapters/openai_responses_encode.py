"""From a ``ModelInput`` to the exact bytes of a Responses request: pure, the same bytes for the same input.

Nothing rests on state that the provider keeps: each request holds the whole history, with every item of earlier answers as it
came, reasoning before what it produced, and then the results of all calls of a turn behind all its calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.model import AssistantItem, DigestItem, Item, ModelInput, NoteItem, ResultItem, UserItem
from ..runtime.tool_definition import ToolDefinition
from .history import (
    DIGEST_CALL,
    NOTE_PREFIX,
    Kept,
    carried_ids,
    carried_state,
    fits_strict,
    kept_members,
    made_up_id,
    wire_arguments,
    wire_ids,
    wire_name,
    wire_text,
)
from .openai_responses_decode import CONTINUATION_TAG, CUSTOM
from .request_body import EncodeOptions, begun, hosted_tools

OWNED_FIELDS: Final = frozenset(
    {
        "model",
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_output_tokens",
        "stream",
        "store",
        "previous_response_id",
        "conversation",
        "background",
        "truncation",
    }
)
"""What an application can't set beside the adapter: the runtime's limits, context and pairing rest on them."""


class ResponsesOptions(EncodeOptions, frozen=True, kw_only=True):
    """What of an adapter's settings changes the bytes of a request.

    ``store``: let the provider keep the answer; nothing here reads it. ``encrypted_reasoning``: ask for reasoning that can go back
    though nothing is kept, and leave out what can't. ``hosted``: definitions of the provider's own tools by the names that runs declare.
    """

    strict: bool = True
    parallel_tool_calls: bool | None = None
    store: bool = False
    encrypted_reasoning: bool = True
    hosted: bytes = b"{}"
    extra: bytes = b"{}"
    stream: bool = True


def encode_request(options: ResponsesOptions, request: ModelInput) -> bytes:
    """The request's body. Raises ``CanonicalRefused`` only for a tool schema that JSON can't say."""
    body = begun(options.extra)
    body["model"] = request.model
    if request.system:
        body["instructions"] = wire_text(request.system)
    body["input"] = cast("list[JSON]", _input(options, request.items))
    body["max_output_tokens"] = request.output_tokens_max
    body["store"] = options.store
    body["stream"] = options.stream
    if options.encrypted_reasoning and not options.store:
        include = body.get("include")
        wanted: list[JSON] = [*include] if isinstance(include, list) else []
        body["include"] = [*wanted, "reasoning.encrypted_content"]
    tools: list[JSON] = [_tool(options, tool) for tool in request.tools]
    tools += hosted_tools(options.hosted, request)
    if tools:
        body["tools"] = tools
        if options.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = options.parallel_tool_calls
    return canonical_bytes(body)


def _input(options: ResponsesOptions, items: Sequence[Item]) -> list[dict[str, JSON]]:
    found: list[dict[str, JSON]] = []
    ids: dict[str, str] = {}
    custom: set[str] = set()
    earlier: set[str] = set()
    for item in items:
        match item:
            case UserItem():
                found.append({"role": "user", "content": wire_text(item.text)})
            case NoteItem():
                found.append({"role": "user", "content": wire_text(NOTE_PREFIX + item.text)})
            case DigestItem():
                found += _digest(item, len(found))
            case AssistantItem():
                kept = kept_members(
                    carried_state(item.continuation, CONTINUATION_TAG).get("items"), item.calls
                )
                ids = wire_ids(item, carried_ids(kept, "call_id"), earlier)
                earlier.update(ids.values())
                answer = _answer(options, item, kept, ids)
                custom = {str(one["call_id"]) for one in answer if one.get("type") == CUSTOM}
                found += answer
            case ResultItem():
                call_id = ids.get(item.call_id) or made_up_id(item.call_id)
                kind = "custom_tool_call_output" if call_id in custom else "function_call_output"
                output = item.content.decode("utf-8", "backslashreplace")
                found.append({"type": kind, "call_id": call_id, "output": output})
    return found


def _digest(item: DigestItem, place: int) -> list[dict[str, JSON]]:
    """A call that nobody made, and its result."""
    call_id = f"call_digest{place}"
    return [
        {"type": "function_call", "call_id": call_id, "name": DIGEST_CALL, "arguments": "{}"},
        {"type": "function_call_output", "call_id": call_id, "output": wire_text(item.text)},
    ]


def _answer(
    options: ResponsesOptions, item: AssistantItem, kept: Kept, ids: Mapping[str, str]
) -> list[dict[str, JSON]]:
    """The items of an earlier answer as they came; without them its text and calls."""
    found: list[dict[str, JSON]] = []
    if not kept:
        if item.text:
            found.append({"role": "assistant", "content": wire_text(item.text)})
        calls: list[dict[str, JSON]] = [
            {
                "type": "function_call",
                "call_id": ids[one.call_id],
                "name": wire_name(one.name),
                "arguments": wire_arguments(one.arguments),
            }
            for one in item.calls
        ]
        return found + calls
    left_out = False
    for member, call in kept:
        if call is None:
            if options.encrypted_reasoning and not options.store and _cannot_go_back(member):
                left_out = True
                continue
            found.append(dict(member))
        elif member.get("type") == CUSTOM:
            text = call.arguments.decode("utf-8", "backslashreplace")
            found.append({**member, "call_id": ids[call.call_id], "input": text})
        else:
            arguments = wire_arguments(call.arguments)
            named: dict[str, JSON] = {
                "call_id": ids[call.call_id],
                "name": wire_name(call.name),
                "arguments": arguments,
            }
            found.append({**member, **named})
    if left_out:
        # An item that names the one it followed is looked up, and nothing is kept there.
        for member in found:
            member.pop("id", None)
    return found


def _cannot_go_back(member: Mapping[str, JSON]) -> bool:
    return member.get("type") == "reasoning" and not member.get("encrypted_content")


def _tool(options: ResponsesOptions, tool: ToolDefinition) -> JSON:
    return {
        "type": "function",
        "name": tool.name,
        "description": wire_text(tool.description),
        "parameters": cast(JSON, tool.parameters),
        "strict": options.strict and fits_strict(tool.parameters),
    }
