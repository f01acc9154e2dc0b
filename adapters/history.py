"""What every family's history has in common: ids on the wire, texts, names, arguments, and schemas that strict modes take.

What a server would refuse outright (an empty call id, a tool name that no schema allows, arguments that are no object) is
written in its nearest allowed form; results are matched by our own ids, so nothing hangs on that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from ..runtime.canonical import JSON, decode_canonical
from ..runtime.errors import CallerError
from ..runtime.model import AssistantCall, AssistantItem
from ..runtime.strict_json import JsonRefused, parse_object

NOTE_PREFIX: Final = "[runtime] "
"""Notes go out as user messages: many servers take a system message only at the beginning."""

CALL_MARK: Final = "boundloop_call"
"""Stands in a kept item for the call's arguments: its number in the turn."""

DIGEST_CALL: Final = "recorded_turns"
"""What digests are shown as a result of: the protocol gives far sides' words no other place than the tool's."""

_is_wire_name = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_not_in_names = re.compile(r"[^A-Za-z0-9_-]")


def wire_ids(
    item: AssistantItem, carried: Sequence[JSON] = (), earlier: Collection[str] = ()
) -> dict[str, str]:
    """Each call's id on the wire: the provider's own, unchanged; where it gave none or one twice, one made from ours.
    ``carried``: the ids in the order of the calls, where the record's own may be cut. ``earlier``: ids that other turns of the
    request have; some servers count each answer's calls from the same number."""
    ids: dict[str, str] = {}
    labels = [call.provider_call_id for call in item.calls]
    if len(carried) == len(labels):
        labels = [
            whole if isinstance(whole, str) else cut for whole, cut in zip(carried, labels, strict=True)
        ]
    used = set(labels)
    taken: set[str] = set()
    for call, written in zip(item.calls, labels, strict=True):
        label = wire_text(written)
        if not label or label in taken or label in earlier:
            label = made_up_id(call.call_id)
            while (
                label in used or label in taken or label in earlier
            ):  # each round is longer, so at most one for each call
                label += "_"
        taken.add(label)
        ids[call.call_id] = label
    return ids


Kept = list[tuple[dict[str, JSON], AssistantCall | None]]


def carried_state(continuation: bytes | None, tag: str) -> dict[str, JSON]:
    """The opaque state of the family with this tag; nothing of another family's or where it can't be read."""
    if not continuation:
        return {}
    try:
        whole = decode_canonical(continuation)
    except CallerError:
        return {}
    return whole if isinstance(whole, dict) and whole.get(tag) == 1 else {}


def kept_members(items: JSON, calls: Sequence[AssistantCall]) -> Kept:
    """What an answer left to be sent back, in order, each beside its call where it is one; nothing at all unless each of the
    calls is there once. The mark of a call is taken off."""
    found: Kept = []
    numbers: list[JSON] = []
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            return []
        number = item.get(CALL_MARK)
        rest = {name: value for name, value in item.items() if name != CALL_MARK}
        if number is None:
            found.append((rest, None))
            continue
        if not isinstance(number, int) or not 0 <= number < len(calls):
            return []
        numbers.append(number)
        found.append((rest, calls[number]))
    return found if numbers == list(range(len(calls))) else []


def carried_ids(kept: Kept, name: str) -> list[JSON]:
    """The calls' ids as they came, in order: the record's own are bounded, and cut."""
    return [member.get(name) for member, call in kept if call is not None]


def made_up_id(call_id: str) -> str:
    """An id on the wire from ours."""
    return "call_" + _not_in_names.sub("_", call_id)


def wire_arguments(raw: bytes) -> str:
    """As they came, if they are an object. Servers parse the history: one call whose arguments the model garbled would
    make each later request of the run a 400. What was wrong the call's own result says, and the log keeps the bytes."""
    try:
        parse_object(raw)
    except JsonRefused:
        return "{}"
    return raw.decode()


def wire_name(name: str) -> str:
    """A tool's name as every server takes it."""
    return name if _is_wire_name(name) else _not_in_names.sub("_", name)[:64] or "unnamed"


def wire_text(text: str) -> str:
    """A text that UTF-8 can say."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


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
