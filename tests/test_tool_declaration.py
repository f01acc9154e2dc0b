"""Declaring tools: what a signature becomes, what is refused, and what identity a call gets."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import pickle
import subprocess
import sys
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from boundloop.runtime import errors
from boundloop.runtime.canonical import canonical_bytes, sha256
from boundloop.runtime.errors import (
    BoundloopError,
    DeclarationError,
    DuplicateTool,
    IrreversibleNeedsKey,
    ToolError,
    UnknownTool,
)
from boundloop.runtime.tool_spec import BindRefused, ToolDefinition, tool, tool_spec
from boundloop.runtime.toolbox import Toolbox


class Line(msgspec.Struct):
    sku: str
    qty: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclasses.dataclass
class Address:
    street: str
    lines: list[Line] = dataclasses.field(default_factory=list[Line])


class Customer(TypedDict):
    name: str
    address: Address


class Currency(enum.Enum):
    EUR = "EUR"
    USD = "USD"


class Order(pydantic.BaseModel):
    order_id: str
    due: datetime.date
    parts: list[Order] = []


@tool(risk="read")
def get_order(order_id: str) -> dict[str, Any]:
    """Look up one order."""
    return {"order_id": order_id}


@tool(risk="irreversible", key=("order_id", "amount"), incidental=("reason",), far_side="keyed")
async def refund(order_id: str, amount: int, ctx: object, reason: str = "", currency: str = "EUR") -> str:
    """Pay an order back."""
    return f"{order_id} {amount} {currency} {reason}"


def refusal(decorator: Any, function: Any) -> tuple[str, str]:
    with pytest.raises(DeclarationError) as caught:
        decorator(function)
    assert not hasattr(function, "__boundloop_tool__")
    return caught.value.code, caught.value.path


def declared(function: Any, **options: Any) -> ToolDefinition:
    options.setdefault("risk", "read")
    options.setdefault("description", "d")
    return tool_spec(tool(**options)(functools.partial(function))).definition


def test_a_tool_stays_the_function_it_was() -> None:
    def plain(a: int) -> int:
        """Add one."""
        return a + 1

    assert tool(risk="read")(plain) is plain
    assert plain(1) == 2
    assert get_order("A1") == {"order_id": "A1"}
    assert get_order.__name__ == "get_order"


def test_there_is_no_registry_outside_a_toolbox() -> None:
    assert dict(Toolbox([])) == {}
    assert list(Toolbox([get_order])) == ["get_order"]


def test_the_signature_is_the_schema() -> None:
    definition = tool_spec(refund).definition
    assert definition.parameters == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string"},
            "amount": {"type": "integer"},
            "reason": {"type": "string", "default": ""},
            "currency": {"type": "string", "default": "EUR"},
        },
        "required": ["order_id", "amount"],
        "additionalProperties": False,
    }
    assert definition.result == {"type": "string"}
    assert definition.description == "Pay an order back."
    assert (tool_spec(refund).is_async, tool_spec(refund).takes_ctx) == (True, True)
    assert (tool_spec(get_order).is_async, tool_spec(get_order).takes_ctx) == (False, False)


def test_a_tool_without_parameters_takes_no_arguments() -> None:
    def now() -> str:
        return ""

    validate = declared(now).validator()
    assert validate({}) is None
    assert validate({"a": 1}) is not None


# hostile: 33, 34
def test_arguments_are_strict() -> None:
    validate = tool_spec(refund).definition.validator()
    assert validate({"order_id": "A1", "amount": 1}) is None
    cases: list[tuple[Any, str]] = [
        ({"order_id": "A1", "amount": 1, "admin": True}, "additional"),
        ({"order_id": "A1", "amount": "1_000"}, "type"),
        ({"order_id": "A1", "amount": 1.0}, "type"),
        ({"order_id": "A1", "amount": True}, "type"),
        ({"order_id": "A1"}, "missing"),
        ({"order_id": "A1", "amount": 1, "ctx": {}}, "additional"),
        ({"order_id": "A1", "amount": 1, "__class__": {}}, "additional"),
    ]
    for arguments, code in cases:
        violation = validate(arguments)
        assert violation is not None
        assert violation.code == code


def every_kind(
    customer: Customer,
    currency: Currency,
    mode: Literal["fast", "slow"],
    when: datetime.date,
    share: float,
    size: Annotated[int, msgspec.Meta(ge=1, description="pieces")],
    pair: tuple[int, str],
    either: int | None = None,
    labels: dict[str, int] | None = None,
    tags: set[str] | None = None,
) -> None:
    """All of them."""


ARGUMENTS: dict[str, Any] = {
    "customer": {"name": "n", "address": {"street": "s", "lines": [{"sku": "x"}]}},
    "currency": "USD",
    "mode": "slow",
    "when": "2026-02-03",
    "share": 1,
    "size": 2,
    "pair": [1, "b"],
    "labels": {"a": 1},
    "tags": ["b"],
}


def test_arguments_are_decoded_into_the_annotated_types() -> None:
    spec = tool_spec(tool(risk="read")(functools.partial(every_kind)))
    assert spec.definition.validator()(ARGUMENTS) is None
    bound = spec.bind(ARGUMENTS)
    assert bound == {
        "customer": {"name": "n", "address": Address("s", [Line("x")])},
        "currency": Currency.USD,
        "mode": "slow",
        "when": datetime.date(2026, 2, 3),
        "share": 1.0,
        "size": 2,
        "pair": (1, "b"),
        "labels": {"a": 1},
        "tags": {"b"},
    }
    assert type(bound["share"]) is float
    assert spec.definition.result == {"type": "null"}


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        ({"currency": "GBP"}, "enum", "$.currency"),
        ({"mode": "other"}, "enum", "$.mode"),
        ({"size": 0}, "range", "$.size"),
        ({"pair": [1, "b", 2]}, "items", "$.pair"),
        ({"labels": {"a": "1"}}, "type", "$.labels.a"),
        ({"customer": {"name": "n"}}, "missing", "$.customer.address"),
        (
            {"customer": {"name": "n", "address": {"street": "s", "zip": 1}}},
            "additional",
            "$.customer.address.zip",
        ),
    ],
)
def test_each_annotated_type_is_checked(change: dict[str, Any], code: str, path: str) -> None:
    violation = declared(every_kind).validator()({**ARGUMENTS, **change})
    assert violation is not None
    assert (violation.code, violation.path) == (code, path)


def test_what_fits_the_schema_and_doesn_t_decode_is_a_typed_refusal_without_the_value() -> None:
    with pytest.raises(BindRefused) as caught:
        tool_spec(tool(risk="read")(functools.partial(every_kind))).bind({**ARGUMENTS, "when": "hunter2"})
    assert (caught.value.code, caught.value.path, caught.value.actor) == ("bind", "$.when", "caller")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_pydantic_types_are_read_strictly() -> None:
    @tool(risk="read")
    def place(order: Order, size: Annotated[int, pydantic.Field(ge=1)] = 1) -> Order:
        """Place an order."""
        return order

    spec = tool_spec(place)
    good: dict[str, Any] = {
        "order": {"order_id": "a", "due": "2026-02-03", "parts": [{"order_id": "b", "due": "2026-02-04"}]}
    }
    assert spec.definition.validator()(good) is None
    bound = spec.bind(good)
    part = Order(order_id="b", due=datetime.date(2026, 2, 4))
    assert bound == {"order": Order(order_id="a", due=datetime.date(2026, 2, 3), parts=[part])}
    encoded = spec.encode_result(bound["order"])
    assert encoded == {
        "order_id": "a",
        "due": "2026-02-03",
        "parts": [{"order_id": "b", "due": "2026-02-04", "parts": []}],
    }
    assert spec.check_result(encoded) is None
    for bad in (
        {"order": {**good["order"], "admin": True}},
        {"order": {"order_id": 1, "due": "2026-02-03"}},
        {**good, "size": 0},
    ):
        assert spec.definition.validator()(bad) is not None
    with pytest.raises(BindRefused):
        spec.bind({"order": {"order_id": "a", "due": "hunter2"}})


PURE = """
import sys
from boundloop.runtime.tool_spec import tool
@tool(risk="read")
def f(a: int, b: "list[str] | None" = None) -> dict:
    "F."
print("pydantic" in sys.modules)
"""


def test_plain_annotations_never_import_pydantic() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PURE], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


# hostile: 27, 28, 30
@pytest.mark.parametrize(
    "name",
    [
        "\uff53end_email", "s\u0435nd_email", "\u017fend_email", "send_ema\u0131l", "send_email\n", "Send_email",
        "send-email", "send.email", "1send", "_send", "", "a" * 65, "send email", "send_email\u200b", "s\u00e9nd",
    ],
)  # fmt: skip
def test_names_that_look_or_fold_like_others_are_refused(name: str) -> None:
    code, path = refusal(tool(risk="read", name=name, description="d"), lambda: None)
    assert code == "tool_name"
    assert path.isascii()


def test_the_longest_name_is_64_characters() -> None:
    assert declared(get_order, name="a" * 64).name == "a" * 64


def test_a_function_s_own_name_is_checked_too() -> None:
    def Upper() -> None:
        """Do."""

    assert refusal(tool(risk="read"), Upper)[0] == "tool_name"


def test_a_second_declaration_never_replaces_the_first() -> None:
    with pytest.raises(DeclarationError) as caught:
        tool(risk="read", name="again")(get_order)
    assert caught.value.code == "declared_twice"
    again = tool(risk="read", name="again")(functools.partial(get_order))
    assert list(Toolbox([get_order, again])) == ["get_order", "again"]


def test_names_collide_whether_or_not_the_functions_do() -> None:
    other = tool(risk="read", name="get_order", description="d")(lambda: None)
    repeated: list[list[Any]] = [[get_order, get_order], [get_order, refund, other]]
    for tools in repeated:
        with pytest.raises(DuplicateTool) as caught:
            Toolbox(tools)
        assert (caught.value.code, caught.value.path) == ("duplicate_tool", "get_order")


def two(a: str, b: str = "") -> None:
    """Do."""


@pytest.mark.parametrize(
    ("options", "code", "path"),
    [
        ({"risk": "write"}, "effect_needs_key", "two.key"),
        ({"risk": "write", "key": ()}, "effect_needs_key", "two.key"),
        ({"risk": "write", "key": "all"}, "unknown_key", "two.key"),
        ({"risk": "write", "key": ["a"]}, "unknown_key", "two.key"),
        ({"risk": "write", "key": ("c",)}, "key_unknown", "two.key.c"),
        ({"risk": "write", "key": ("ctx",)}, "key_unknown", "two.key.ctx"),
        ({"risk": "write", "key": ("a",), "incidental": ("a",)}, "key_incidental", "two.key.a"),
        ({"risk": "write", "key": ("b",)}, "key_optional", "two.key.b"),
        ({"risk": "write", "key": ("a", "a")}, "key_repeated", "two.key"),
        ({"risk": "write", "key": ("a",), "incidental": ("c",)}, "incidental_unknown", "two.incidental.c"),
        ({"risk": "irreversible"}, "irreversible_needs_key", "two"),
        ({"risk": "irreversible", "key": "call"}, "irreversible_needs_key", "two"),
        ({"risk": "irreversible", "key": "arguments"}, "irreversible_needs_key", "two"),
        ({"risk": "danger"}, "unknown_risk", "two.risk"),
        ({"risk": "read", "key": ("a",)}, "read_has_key", "two.key"),
        ({"risk": "read", "far_side": "keyed"}, "read_has_far_side", "two.far_side"),
        ({"risk": "read", "query": two}, "read_has_query", "two.query"),
        ({"risk": "read", "fence": "store"}, "fence_unavailable", "two.fence"),
        ({"risk": "irreversible", "key": ("a",), "fence": "store"}, "fence_unavailable", "two.fence"),
        ({"risk": "write", "key": "call", "quick": True}, "quick_effect", "two.quick"),
        ({"risk": "read", "quick": True, "timeout_ms": 51}, "quick_timeout", "two.timeout_ms"),
        ({"risk": "write", "key": "call", "far_side": "queryable"}, "query_missing", "two.query"),
        ({"risk": "write", "key": "call", "query_authoritative": True}, "query_missing", "two.query_authoritative"),
        ({"risk": "write", "key": "call", "far_side": "maybe"}, "unknown_far_side", "two.far_side"),
        ({"risk": "read", "approval": "sometimes"}, "unknown_approval", "two.approval"),
        ({"risk": "read", "inline": True}, "inline_sync", "two.inline"),
        ({"risk": "read", "timeout_ms": 0}, "out_of_bounds", "two.timeout_ms"),
        ({"risk": "read", "timeout_ms": 1.5}, "out_of_bounds", "two.timeout_ms"),
        ({"risk": "read", "cost_micros": -1}, "out_of_bounds", "two.cost_micros"),
        ({"risk": "read", "max_attempts": True}, "out_of_bounds", "two.max_attempts"),
        ({"risk": "read", "result_bytes_max": 2**30}, "out_of_bounds", "two.result_bytes_max"),
        ({"risk": "read", "version": ""}, "bad_label", "two.version"),
        ({"risk": "read", "description": " \n"}, "description_missing", "two"),
        ({"risk": "read", "description": "x" * 9_000}, "too_long", "two.description"),
        ({"risk": "read", "description": "\ud800"}, "not_canonical", "two.$.description"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_when_declared(options: dict[str, Any], code: str, path: str) -> None:
    assert refusal(tool(**options), two) == (code, path)


def test_an_irreversible_tool_without_key_has_its_own_error() -> None:
    with pytest.raises(IrreversibleNeedsKey):
        tool(risk="irreversible")(two)


def variadic(*parts: str) -> None:
    """Do."""


def keywords(**parts: str) -> None:
    """Do."""


def positional(a: int, /) -> None:
    """Do."""


def bare(a) -> None:  # type: ignore[no-untyped-def]  # the missing annotation is what is refused
    """Do."""


def unresolved(a: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821  the unknown name is what is refused
    """Do."""


def unsupported(a: subprocess.Popen[bytes]) -> None:
    """Do."""


def complicated(a: Annotated[str, msgspec.Meta(pattern="^(a+)+$")]) -> None:
    """Do."""


def undescribed(a: int) -> None: ...


def yielding(a: int) -> Any:
    """Do."""
    yield a


async def async_yielding(a: int) -> Any:
    """Do."""
    yield a


def field_default(a: int = pydantic.Field(default=1)) -> None:
    """Do."""


UNCHECKABLE: list[tuple[Any, str]] = [
    (variadic, "parameter_variadic"),
    (keywords, "parameter_variadic"),
    (positional, "parameter_positional"),
    (bare, "parameter_unannotated"),
    (unresolved, "annotation_unresolved"),
    (unsupported, "annotation_unsupported"),
    (complicated, "pattern_ambiguous"),
    (undescribed, "description_missing"),
    (yielding, "tool_generator"),
    (async_yielding, "tool_generator"),
    (field_default, "default_unsupported"),
]


@pytest.mark.parametrize(("function", "code"), UNCHECKABLE)
def test_signatures_that_can_t_be_checked_are_refused(function: Any, code: str) -> None:
    assert refusal(tool(risk="read"), function)[0] == code


# hostile: 40, 41
@pytest.mark.parametrize("ref", ["http://169.254.169.254", "file:///etc/passwd"])
def test_a_given_schema_with_a_reference_elsewhere_is_refused(ref: str) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": ref}}}
    assert refusal(tool(risk="read", params=schema), two)[0] == "schema_ref"
    assert refusal(tool(risk="read", returns=schema), two)[0] == "schema_ref"


def test_a_given_schema_replaces_the_annotations() -> None:
    @tool(risk="read", params={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    def proxy(ctx: object, **arguments: Any) -> Any:
        """Pass on."""
        return arguments

    spec = tool_spec(proxy)
    assert spec.definition.parameters["additionalProperties"] is False
    assert spec.bind({"a": 1}) == {"a": 1}
    assert spec.takes_ctx
    schema: dict[str, Any] = {"type": "object", "properties": {"b": {}}}
    assert refusal(tool(risk="read", params=schema), two) == ("params_mismatch", "two.a")
    assert refusal(tool(risk="read", params={**schema, "properties": {"z": {}}}), two) == (
        "params_mismatch",
        "two.z",
    )


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool(risk="read")
    def stock(self, sku: str) -> str:
        """Count what is there."""
        return f"{self.name}:{sku}"

    def price(self, sku: str) -> str:
        """Look up a price."""
        return f"{self.name}/{sku}"


class Callable:
    def __call__(self, a: int) -> int:
        """Add one."""
        return a + 1


def test_a_method_is_bound_to_its_object() -> None:
    spec = Toolbox([Shop("north").stock])["stock"]
    assert spec.handler(**spec.bind({"sku": "x"})) == "north:x"
    assert list(spec.definition.parameters["properties"]) == ["sku"]
    with pytest.raises(DeclarationError) as caught:
        Toolbox([Shop.stock])
    assert caught.value.code == "tool_unbound"


def test_bound_methods_partials_and_callable_objects_can_be_declared() -> None:
    priced = tool(risk="read")(Shop("south").price)
    assert tool_spec(priced).handler(sku="x") == priced("x") == "south/x"
    part = tool(risk="read", name="part")(functools.partial(two, b="c"))
    assert list(tool_spec(part).definition.parameters["properties"]) == ["a", "b"]
    fixed = tool(risk="read", name="adds")(Callable())
    assert tool_spec(fixed).handler(**tool_spec(fixed).bind({"a": 1})) == 2


def test_what_isn_t_declared_is_no_tool() -> None:
    for thing in (two, Shop("x").price, 1, None):
        with pytest.raises(DeclarationError) as caught:
            tool_spec(thing)
        assert caught.value.code == "not_a_tool"


def test_a_definition_survives_json_with_its_hash() -> None:
    for spec in (tool_spec(refund), tool_spec(get_order)):
        data = msgspec.json.encode(spec.definition)
        back = msgspec.json.decode(data, type=ToolDefinition)
        assert back == spec.definition
        assert back.definition_sha256 == spec.definition_sha256
        assert msgspec.json.encode(back) == data


def test_a_definition_with_an_unknown_field_is_refused() -> None:
    fields = {**msgspec.to_builtins(tool_spec(refund).definition), "extra": 1}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(fields), type=ToolDefinition)


BASE: dict[str, Any] = {"risk": "write", "key": ("a",)}


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"timeout_ms": 1}, True),
        ({"pool": "other"}, True),
        ({"group": "g"}, True),
        ({"max_attempts": 9}, True),
        ({"result_bytes_max": 99}, True),
        ({"handler_revision": "9"}, True),
        ({"description": "other"}, False),
        ({"version": "2"}, False),
        ({"effect_version": "2"}, False),
        ({"name": "other"}, False),
        ({"key": "call"}, False),
        ({"risk": "irreversible"}, False),
        ({"incidental": ("b",)}, False),
        ({"far_side": "natural"}, False),
        ({"permissions": ("p",)}, False),
        ({"cost_micros": 1}, False),
        ({"approval": "always"}, False),
        ({"returns": {"type": "string"}}, False),
        ({"preview": two}, False),
    ],
)
def test_the_hash_covers_what_is_relied_on_and_no_more(options: dict[str, Any], same: bool) -> None:
    before = declared(two, **BASE).definition_sha256
    after = declared(two, **{**BASE, **options}).definition_sha256
    assert (before == after) is same
    assert len(after) == 32


def key_of(definition: ToolDefinition, arguments: dict[str, Any], *ids: str) -> bytes | None:
    tenant, operation, call = ids or ("t", "op", "c1")
    return definition.key_of(tenant, operation, call, arguments)


def test_the_key_is_the_documented_hash() -> None:
    definition = declared(two, **BASE)
    assert key_of(definition, {"a": "x"}) == sha256(canonical_bytes(["t", "op", "two", "1", {"a": "x"}]))
    by_call = declared(two, risk="write", key="call")
    assert key_of(by_call, {"a": "x"}) == sha256(canonical_bytes(["t", "op", "two", "1", "c1"]))


def test_a_read_has_no_key() -> None:
    assert key_of(tool_spec(get_order).definition, {"order_id": "a"}) is None


def test_key_fields_alone_make_a_business_intent() -> None:
    definition = tool_spec(refund).definition
    key = key_of(definition, {"order_id": "A", "amount": 1})
    assert key == key_of(definition, {"order_id": "A", "amount": 1, "reason": "late"}, "t", "op", "c2")
    assert key == key_of(definition, {"amount": 1, "currency": "USD", "order_id": "A"})
    assert key != key_of(definition, {"order_id": "A", "amount": 2})
    assert key != key_of(definition, {"order_id": "A", "amount": 1}, "t", "other", "c1")
    assert key != key_of(definition, {"order_id": "A", "amount": 1}, "other", "op", "c1")


def test_a_deploy_changes_no_key_unless_the_effect_changes() -> None:
    key = key_of(declared(two, **BASE), {"a": "x"})
    assert key == key_of(declared(two, **BASE, version="2", description="new", timeout_ms=5), {"a": "x"})
    assert key != key_of(declared(two, **BASE, effect_version="2"), {"a": "x"})


def test_the_arguments_key_leaves_out_what_is_incidental_and_fills_defaults() -> None:
    definition = declared(two, risk="write", key="arguments")
    assert key_of(definition, {"a": "x"}) == key_of(definition, {"a": "x", "b": ""})
    assert key_of(definition, {"a": "x"}) != key_of(definition, {"a": "x", "b": "y"})
    worded = declared(two, risk="write", key="arguments", incidental=("b",))
    assert key_of(worded, {"a": "x", "b": "y"}) == key_of(worded, {"a": "x"})


def test_two_proposals_of_a_call_keyed_tool_are_two_intents() -> None:
    definition = declared(two, risk="write", key="call")
    assert key_of(definition, {"a": "x"}, "t", "op", "c1") != key_of(definition, {"a": "x"}, "t", "op", "c2")


def test_the_intent_is_the_arguments_without_the_incidental_ones() -> None:
    intent = tool_spec(refund).definition.intent_sha256
    arguments: dict[str, Any] = {"order_id": "A", "amount": 1}
    assert (
        intent({**arguments})
        == intent({**arguments, "reason": "late"})
        == intent({**arguments, "currency": "EUR"})
    )
    assert intent({**arguments}) != intent({**arguments, "currency": "USD"})
    assert intent({**arguments}) == sha256(canonical_bytes({**arguments, "currency": "EUR"}))


def test_results_are_encoded_by_their_types() -> None:
    spec = tool_spec(get_order)
    value = {
        "line": Line("x"),
        "tuple": (1, (2,)),
        "when": datetime.date(2026, 2, 3),
        "set": {1},
        "c": Currency.EUR,
    }
    assert spec.encode_result(value) == {
        "line": {"sku": "x", "qty": 1},
        "tuple": [1, [2]],
        "when": "2026-02-03",
        "set": [1],
        "c": "EUR",
    }
    canonical_bytes(spec.encode_result(value))


def test_results_that_json_can_t_say_are_the_tool_s_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (object(), lambda: None, {"a": subprocess}, loop, {(1, 2): 3}):
        with pytest.raises(ToolError) as caught:
            tool_spec(get_order).encode_result(value)
        assert (caught.value.code, caught.value.no_effect) == ("result_type", False)


def test_a_declared_result_is_checked() -> None:
    spec = tool_spec(refund)
    assert spec.check_result("ok") is None
    violation = spec.check_result(1)
    assert violation is not None
    assert violation.code == "type"


def test_a_toolbox_offers_what_the_principal_may_use_and_the_task_asks_for() -> None:
    guarded = tool(risk="read", name="guarded", permissions=("b", "a"), description="d")(lambda: None)
    box = Toolbox([refund, guarded, get_order])

    def offered(permissions: set[str], names: set[str] | None = None) -> list[str]:
        subset = None if names is None else frozenset(names)
        return [definition.name for definition in box.offered(frozenset(permissions), subset)]

    assert offered(set()) == ["refund", "get_order"]
    assert offered({"a"}) == ["refund", "get_order"]
    assert offered({"a", "b", "c"}) == ["refund", "guarded", "get_order"]
    assert offered({"a", "b"}, {"guarded", "unknown"}) == ["guarded"]
    assert offered({"a"}, {"guarded"}) == []
    assert list(box.subset(["get_order", "refund"])) == ["refund", "get_order"]
    with pytest.raises(UnknownTool):
        box.subset(["get_order", "missing"])
    with pytest.raises(KeyError):
        box["missing"]


ERRORS = [
    errors.CallerError("c", "m", path="p"),
    ToolError("c", retryable=True, safe_message="s", no_effect=True),
    errors.OwnedError(7, "host", path="f"),
    errors.Overloaded(250),
    errors.NewerSchema(3, 2),
    errors.LogDamaged("r", 3, 5),
    errors.IrreversibleNeedsKey("t"),
    errors.BugError("law"),
    BindRefused("when"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_cross_a_process_border_by_their_fields(error: BoundloopError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert vars(back) == vars(error)
    assert (str(back), back.args, back.actor) == (str(error), error.args, error.actor)


def test_the_base_error_is_abstract_and_every_error_names_who_must_act() -> None:
    with pytest.raises(TypeError):
        BoundloopError("c")
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BoundloopError)
    ]
    assert {kind.actor for kind in kinds if kind is not BoundloopError} == {
        "caller",
        "provider",
        "tool",
        "store",
        "bug",
    }


# --- sets have no order --------------------------------------------------------------------------------------------


class Tagged(pydantic.BaseModel):
    tags: set[str]
    places: dict[str, frozenset[int]] = {}
    chain: list[Tagged] = []
    raw: Any = None


TAGS = [f"tag {number}" for number in range(50)]


def test_a_set_in_a_result_is_a_sorted_list_in_every_process() -> None:
    spec = tool_spec(get_order)
    inner = Tagged(tags=set(TAGS[:9]))
    value = {
        "plain": set(TAGS),
        "model": Tagged(tags=set(TAGS), places={"a": frozenset({30, 4})}, chain=[inner]),
    }
    encoded = spec.encode_result(value)
    assert encoded == {
        "plain": sorted(TAGS),
        "model": {
            "tags": sorted(TAGS),
            "places": {"a": [30, 4]},
            "chain": [{"tags": TAGS[:9], "places": {}, "chain": [], "raw": None}],
            "raw": None,
        },
    }


@pytest.mark.parametrize(
    "value",
    [{"a", 1}, {"mixed": {None, 1}}, Tagged(tags=set(), raw={frozenset({1}), frozenset({2})})],
    ids=["two kinds", "nested", "sets in a set"],
)
def test_a_set_without_an_order_is_no_result(value: object) -> None:
    with pytest.raises(ToolError) as caught:
        tool_spec(get_order).encode_result(value)
    assert caught.value.code == "result_type"


def test_a_model_whose_json_has_another_shape_is_left_as_it_is() -> None:
    class Odd(pydantic.BaseModel):
        numbers: list[int]

        @pydantic.field_serializer("numbers", when_used="json")
        def shorter(self, numbers: list[int]) -> list[int]:
            return numbers[:1]

    assert tool_spec(get_order).encode_result(Odd(numbers=[3, 1, 2])) == {"numbers": [3]}


# --- where checks run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", ["check", "preview", "version_of"])
def test_handlers_of_the_application_run_beside_the_loop_unless_said_otherwise(handler: str) -> None:
    def declared(**options: Any) -> bool:
        made = tool(risk="write", key="call", **options)(functools.partial(two, "a"))
        return tool_spec(made).definition.check_inline

    def asked(arguments: dict[str, Any]) -> bool:
        return True

    assert declared(name="none", description="d")
    assert not declared(name="one", description="d", **{handler: asked})
    assert declared(name="said", description="d", check_inline=True, **{handler: asked})
    assert not declared(name="never", description="d", check_inline=False)
