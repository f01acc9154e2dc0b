"""What a tool's declaration may not say at once."""

from __future__ import annotations

from typing import Final, cast, get_args

from .canonical import CanonicalRefused
from .declared_paths import CONDITIONS_EACH_MAX, FACTS_EACH_MAX, PATH_CHARS_MAX, is_fact_name
from .errors import DeclarationError, IrreversibleNeedsKey
from .output_paths import can_be_scalar, members_at
from .provenance import ANYWHERE
from .taint import refuse_words
from .tool_definition import ApprovalRule, FarSide, Fence, Risk, ToolDefinition

TIMEOUT_MS_MAX: Final = 86_400_000
QUICK_MS_MAX: Final = 50
RESULT_BYTES_MAX: Final = 1_048_576
ATTEMPTS_MAX: Final = 100
COST_MICROS_MAX: Final = 2**53
DESCRIPTION_CHARS_MAX: Final = 8_192
LABEL_CHARS_MAX: Final = 128
RATE_CALLS_MAX: Final = 1_000
RATE_WINDOW_MS_MAX: Final = 86_400_000


def refuse_contradictions(definition: ToolDefinition, *, is_async: bool) -> None:
    """Raise `DeclarationError` for the first contradiction; `path` is the tool's name and the field."""
    _refuse_name(definition)
    _refuse_unknown_words(definition)
    _refuse_trust(definition)
    _refuse_numbers(definition)
    _refuse_labels(definition)
    _refuse_group_scope(definition)
    _refuse_money(definition)
    if definition.is_effect:
        _refuse_effect(definition)
    else:
        _refuse_read(definition)
    _refuse_fields(definition)
    _refuse_paths(definition)
    if definition.fence != "none":
        raise _refusal(
            definition,
            "fence",
            "fence_unavailable",
            "no store can fence a dispatch yet: the far side's key must do",
        )
    if definition.quick and definition.timeout_ms > QUICK_MS_MAX:
        raise _refusal(
            definition, "timeout_ms", "quick_timeout", f"a quick read takes at most {QUICK_MS_MAX} ms"
        )
    if definition.inline and not is_async:
        raise _refusal(definition, "inline", "inline_sync", "inline tools are async and never block")
    if definition.query_authoritative and not definition.has_query:
        raise _refusal(definition, "query_authoritative", "query_missing", "needs a query handler")
    try:
        _ = definition.definition_sha256
    except CanonicalRefused as error:
        raise _refusal(definition, error.path, "not_canonical", error.message) from error


def _refuse_name(definition: ToolDefinition) -> None:
    if definition.name in ANYWHERE:
        # Its results would be taken for what that word says of where a value came from.
        raise _refusal(definition, "name", "tool_name", "as a source of values this word is no tool's")


def _refusal(definition: ToolDefinition, field: str, code: str, message: str) -> DeclarationError:
    return DeclarationError(code, message, path=f"{definition.name}.{field}")


def _refuse_unknown_words(definition: ToolDefinition) -> None:
    for field, kind in (("risk", Risk), ("far_side", FarSide), ("approval", ApprovalRule), ("fence", Fence)):
        words = get_args(kind)
        if getattr(definition, field) not in words:
            raise _refusal(definition, field, f"unknown_{field}", f"one of {', '.join(words)}")


def _refuse_money(definition: ToolDefinition) -> None:
    if definition.has_price and definition.cost_micros:
        raise _refusal(definition, "price", "price_and_cost", "a fixed cost or a price, not both")
    rate = cast(object, definition.rate)
    if rate is None:
        return
    numbers = cast("tuple[object, ...]", rate) if isinstance(rate, tuple) else ()
    if len(numbers) != 2 or any(type(number) is not int for number in numbers):
        raise _refusal(definition, "rate", "bad_rate", "(calls, window in ms)")
    calls, window_ms = cast("tuple[int, int]", numbers)
    if not 0 < calls <= RATE_CALLS_MAX or not 0 < window_ms <= RATE_WINDOW_MS_MAX:
        bound = f"1 to {RATE_CALLS_MAX} calls in 1 to {RATE_WINDOW_MS_MAX} ms"
        raise _refusal(definition, "rate", "bad_rate", bound)


def _refuse_group_scope(definition: ToolDefinition) -> None:
    scope = cast(object, definition.same_version_in)
    if scope not in ("turn", "run") or (scope == "run" and not definition.same_version):
        raise _refusal(definition, "same_version_in", "same_version_scope", 'of a group: "turn" or "run"')
    if type(cast(object, definition.snapshot)) is not bool:
        raise _refusal(definition, "snapshot", "not_a_bool", "True or False")


def _refuse_trust(definition: ToolDefinition) -> None:
    wrong = refuse_words(definition.trust, definition.after_untrusted)
    if wrong:
        raise _refusal(definition, wrong, f"unknown_{wrong}", "no such word")


def _refuse_numbers(definition: ToolDefinition) -> None:
    bounds = {
        "timeout_ms": (1, TIMEOUT_MS_MAX),
        "result_bytes_max": (1, RESULT_BYTES_MAX),
        "max_attempts": (1, ATTEMPTS_MAX),
        "cost_micros": (0, COST_MICROS_MAX),
    }
    for field, (low, high) in bounds.items():
        value = cast(object, getattr(definition, field))
        if type(value) is not int or not low <= value <= high:
            raise _refusal(definition, field, "out_of_bounds", f"an integer from {low} to {high}")


def _refuse_labels(definition: ToolDefinition) -> None:
    if len(definition.description) > DESCRIPTION_CHARS_MAX:
        raise _refusal(definition, "description", "too_long", f"at most {DESCRIPTION_CHARS_MAX} characters")
    for field in ("version", "effect_version", "pool", "group", "handler_revision", "same_version"):
        value = cast(object, getattr(definition, field))
        if value is None and field == "group":
            continue
        may_be_empty = field in ("handler_revision", "same_version")
        if not isinstance(value, str) or not (may_be_empty or value) or len(value) > LABEL_CHARS_MAX:
            raise _refusal(definition, field, "bad_label", f"text of 1 to {LABEL_CHARS_MAX} characters")


def _refuse_effect(definition: ToolDefinition) -> None:
    key = cast(object, definition.key)
    if definition.risk == "irreversible" and (not isinstance(key, tuple) or not key):
        raise IrreversibleNeedsKey(definition.name)
    if key is None or key == ():
        raise _refusal(
            definition, "key", "effect_needs_key", 'name the fields that make two calls one intent, or "call"'
        )
    if isinstance(key, str) and key not in ("arguments", "call"):
        raise _refusal(definition, "key", "unknown_key", 'a tuple of fields, "arguments" or "call"')
    if not isinstance(key, str | tuple):
        raise _refusal(definition, "key", "unknown_key", 'a tuple of fields, "arguments" or "call"')
    if definition.same_version:
        raise _refusal(
            definition, "same_version", "same_version_effect", "an effect can't be undone for its version"
        )
    if definition.quick:
        raise _refusal(definition, "quick", "quick_effect", "only reads are quick; effects travel alone")
    if definition.far_side == "queryable" and not definition.has_query:
        raise _refusal(definition, "query", "query_missing", "a queryable far side needs a query handler")


def _refuse_read(definition: ToolDefinition) -> None:
    if definition.key is not None:
        raise _refusal(definition, "key", "read_has_key", "a read has no idempotency key")
    if definition.far_side != "none":
        raise _refusal(definition, "far_side", "read_has_far_side", "a read leaves nothing at a far side")
    if definition.has_query:
        raise _refusal(definition, "query", "read_has_query", "a read has no effect to query for")


def _refuse_paths(definition: ToolDefinition) -> None:
    """Facts and conditions name fields that the declared result can have; facts name scalars."""
    facts = cast("dict[object, object]", definition.facts)
    if len(facts) > FACTS_EACH_MAX:
        raise _refusal(definition, "facts", "out_of_bounds", f"at most {FACTS_EACH_MAX}")
    if len(definition.conditions) > CONDITIONS_EACH_MAX:
        raise _refusal(definition, "conditions", "out_of_bounds", f"at most {CONDITIONS_EACH_MAX}")
    for name in facts:
        if not isinstance(name, str) or is_fact_name(name) is None:
            raise _refusal(definition, "facts", "fact_name", "a name is [a-z][a-z0-9_.]{0,63} in ASCII")
    paths = [("facts", path) for path in facts.values()] + [
        ("conditions", path) for path in definition.conditions
    ]
    for field, path in paths:
        if not isinstance(path, str) or not 0 < len(path) <= PATH_CHARS_MAX or not all(path.split(".")):
            raise _refusal(definition, field, "result_path", "a dotted path of the result's members")
        nodes = members_at(definition.result or {}, path.split("."))
        if not nodes:
            raise _refusal(
                definition, f"{field}.{path}", "result_field", "the declared result has no such field"
            )
        if field == "facts" and not any(map(can_be_scalar, nodes)):
            raise _refusal(definition, f"{field}.{path}", "fact_type", "a fact is a scalar")


def _refuse_fields(definition: ToolDefinition) -> None:
    members = cast("dict[str, object]", definition.parameters.get("properties", {}))
    required = cast("list[str]", definition.parameters.get("required", []))
    for name in definition.incidental:
        if name not in members:
            raise _refusal(definition, f"incidental.{name}", "incidental_unknown", "no such parameter")
    for name in definition.from_results:
        if name not in members or "." in name:
            raise _refusal(definition, f"from_results.{name}", "from_results_unknown", "no such parameter")
    _refuse_secret_arguments(definition, members)
    if not isinstance(definition.key, tuple):
        return
    if len(set(definition.key)) < len(definition.key):
        raise _refusal(definition, "key", "key_repeated", "a field is named twice")
    for name in definition.key:
        if name not in members:
            raise _refusal(definition, f"key.{name}", "key_unknown", "no such parameter")
        if name in definition.incidental:
            raise _refusal(
                definition, f"key.{name}", "key_incidental", "an incidental field can't make an intent"
            )
        if name not in required:
            raise _refusal(
                definition, f"key.{name}", "key_optional", "left out, two intents would share a key"
            )


def _refuse_secret_arguments(definition: ToolDefinition, members: dict[str, object]) -> None:
    for name in definition.secret_arguments:
        if name not in members:
            raise _refusal(definition, f"secret_arguments.{name}", "secret_unknown", "no such parameter")
        if not _takes_text(members[name]):
            raise _refusal(definition, f"secret_arguments.{name}", "secret_type", "a secret is a text")


def _takes_text(schema: object) -> bool:
    if not isinstance(schema, dict):
        return schema is True
    node = cast("dict[str, object]", schema)
    kind, branches = node.get("type"), node.get("anyOf")
    if isinstance(branches, list):
        return any(_takes_text(branch) for branch in cast("list[object]", branches))
    return kind == "string" or (isinstance(kind, list) and "string" in kind)
