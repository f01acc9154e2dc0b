"""What users declare: `@tool` on a function.

The decorator returns the function unchanged and keeps no registry; it leaves a `ToolSpec` on the function, which a
`Toolbox` picks up. Everything that can be wrong with a declaration is refused here, before any run exists.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin

import msgspec

from .call_signature import (
    BindRefused,
    CallSignature,
    inner_function,
    read_signature,
    resolve_annotations,
    schemas_of,
)
from .canonical import JSON, canonical_bytes
from .declared_shape import mapped, names_of
from .errors import DeclarationError, ToolError
from .observed import Observed
from .provenance import sources_from
from .schema import Schema, SchemaViolation, normalise_schema
from .schema_lint import close_root
from .secret_arguments import secrets_from
from .taint import AfterUntrusted, Trust
from .tool_definition import ApprovalRule, FarSide, Fence, KeyRule, Risk, ToolDefinition, is_tool_name
from .tool_rules import refuse_contradictions

__all__ = [
    "ApprovalRule",
    "BindRefused",
    "FarSide",
    "Fence",
    "Risk",
    "ToolDefinition",
    "ToolSpec",
    "is_tool_name",
    "tool",
    "tool_spec",
]

TIMEOUT_MS_DEFAULT: Final = 30_000
QUICK_TIMEOUT_MS_MAX: Final = 50

_CONTAINERS: Final = frozenset({dict, list, tuple})
_SETS: Final = frozenset({set, frozenset})
_ATTRIBUTE: Final = "__boundloop_tool__"
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})

Handler = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool with its code: the definition that is pinned, and the functions that the executor calls."""

    definition: ToolDefinition
    handler: Handler
    signature: CallSignature
    check: Handler | None = None
    preview: Handler | None = None
    query: Handler | None = None
    version_of: Handler | None = None
    price: Handler | None = None

    @property
    def name(self) -> str:
        """The name that a model calls it by."""
        return self.definition.name

    @property
    def definition_sha256(self) -> bytes:
        """The 32-byte hash of what a model or an approver relies on."""
        return self.definition.definition_sha256

    @property
    def is_async(self) -> bool:
        """True if calling the handler gives a coroutine."""
        return self.signature.is_async

    @property
    def takes_ctx(self) -> bool:
        """True if the handler takes the keyword `ctx`, which no schema shows."""
        return self.signature.takes_ctx

    def bind(self, arguments: dict[str, JSON]) -> dict[str, object]:
        """The handler's keywords from valid arguments, decoded from their canonical bytes; raises `BindRefused`."""
        return self.signature.bind(arguments)

    def encode_result(self, value: object) -> JSON:
        """A result as JSON values; raises `ToolError` (code `result_type`) for what JSON can't say.

        Only known data types are encoded, nothing is pickled. A set becomes a sorted list, so that equal results are equal
        bytes in every process; a set whose items have no order among them is refused. Numbers and sizes are checked by whoever writes the
        canonical bytes, the schema by `check_result`.
        """
        if type(value) is dict and all(
            type(name) is str and type(item) in _ATOMS
            for name, item in cast("dict[object, object]", value).items()
        ):
            return cast(JSON, value)
        try:
            return _lists(
                msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=_encode_model)
            )
        except Exception as error:
            raise ToolError("result_type", safe_message="the tool's result isn't JSON") from error

    def check_result(self, result: JSON) -> SchemaViolation | None:
        """The first place where an encoded result breaks the declared result type."""
        validator = self.definition.result_validator()
        return None if validator is None else validator(result)


def tool(
    *,
    risk: Risk,
    name: str | None = None,
    version: str = "1",
    effect_version: str = "1",
    key: KeyRule = None,
    incidental: tuple[str, ...] = (),
    far_side: FarSide = "none",
    permissions: tuple[str, ...] = (),
    timeout_ms: int | None = None,
    quick: bool = False,
    inline: bool = False,
    group: str | None = None,
    cost_micros: int = 0,
    pool: str = "default",
    result_bytes_max: int = 16_384,
    volatile: tuple[str, ...] = (),
    max_attempts: int = 3,
    approval: ApprovalRule = "policy",
    trust: Trust = "undeclared",
    after_untrusted: AfterUntrusted = "policy",
    query_authoritative: bool = False,
    fence: Fence = "none",
    check: Handler | None = None,
    preview: Handler | None = None,
    query: Handler | None = None,
    version_of: Handler | None = None,
    price: Handler | None = None,
    rate: tuple[int, int] | None = None,
    check_inline: bool | None = None,
    snapshot: bool = False,
    same_version: str = "",
    same_version_in: Literal["turn", "run"] = "turn",
    secret_arguments: Mapping[str, str | Iterable[str]] | None = None,
    description: str | None = None,
    params: dict[str, Any] | None = None,
    returns: dict[str, Any] | None = None,
    handler_revision: str | None = None,
    facts: Mapping[str, str] | None = None,
    conditions: tuple[str, ...] = (),
    from_results: Iterable[str] | Mapping[str, str | Iterable[str]] = (),
) -> Callable[[F], F]:
    """Declare a function, method, partial or callable object as a tool; raises `DeclarationError`.

    `risk`: "read" changes nothing; "write" changes something that can be changed back; "irreversible" can't be.
    `key` (effects only): the argument fields that make two calls one business intent, "arguments" for all but the
    `incidental` ones, or "call" if each call is an intent of its own. `far_side`: what the far side offers when an
    outcome is unknown: "natural" (repeating is harmless), "keyed" (it takes `ctx.key`), "queryable" (see `query`).
    `timeout_ms`: of one attempt, 30,000 unless given, 50 for `quick` reads. `inline`: run in the host's own process
    (async, never blocking). `check_inline`: run `check`, `preview` and `version_of` there too, where they hold up every
    run of the host; by default they run on threads. `fence`: only "none"; "store" is refused until a store can do it.
    `check(arguments)`: True allows, False or a text denies, a `PolicyDecision` denies for good if it is `terminal`.
    `trust`: "untrusted" where outsiders write the results (pages, mails, search results), "trusted" where the host vouches
    for them. `after_untrusted`: what becomes of this tool's calls once the model has read untrusted words, instead of what
    the policy's rule says (docs/safety.md).
    `params` and `returns` replace the schemas that the annotations give. `handler_revision`:
    of the code; the `__version__` of its package unless given. `preview(arguments)` gives what a person is shown. It is
    made again right before the effect, and an approval of another preview is stale: it must depend on the arguments and
    the resource alone, never on the time, chance or the order of a set. `version_of(arguments)`: the resource's version.
    `cost_micros`: what one attempt costs; `price(arguments)` says it where it depends on them (an int of micro-units), with
    the checks. It is set aside for each attempt and settled by `ctx.spent(micros)`. `rate=(calls, window_ms)`: so many
    attempts may start within any such window of one run; further ones wait for their time.
    `snapshot`: it reads at the run's `as_of` (`ctx.as_of`); its calls are refused in a run without one. `same_version`: the
    name of a group of reads whose results within one turn (`same_version_in="run"`: in the whole run) come from one version
    of their source, which each returns as `Observed(value, source_version=...)`. `secret_arguments`:
    text arguments that a model writes as `secret://NAME` and never as itself, with the names that each may refer to
    (`{"token": ("billing",)}`); the function gets what the application's `secrets` give for the name, and nothing else ever
    does.

    `facts`: names of typed facts, and the fields of the result that set them (`{"order_state": "order.state"}`); scalars,
    recorded when the result is bound. `conditions`: fields that stay when an old result is compacted: units, validity, as-of,
    citations.
    `from_results`: parameters whose value must be one that an earlier successful result of the run holds, or that its caller
    gave (`given=`); a mapping names the sources of each: `{"order_id": "get_order.id"}` (`provenance`). Anything else is
    refused, `not_from_results`.

    A parameter named `ctx` is filled by the runtime and shown to no model: who acts, the idempotency key as hex (`ctx.key`,
    for the far side), the attempt, the time left, a cancel token and the host's dependencies (`actors.context`). The description is the docstring unless given. A function is
    declared once; a second tool over it is declared on a `functools.partial` of it.
    """

    draft = ToolDefinition(
        name=name or "",
        version=version,
        effect_version=effect_version,
        description=description or "",
        parameters={},
        risk=risk,
        key=key,
        incidental=names_of(incidental, "incidental"),
        far_side=far_side,
        permissions=tuple(sorted(names_of(permissions, "permissions"))),
        timeout_ms=_timeout_ms(timeout_ms, quick),
        quick=quick,
        inline=inline,
        group=group,
        cost_micros=cost_micros,
        pool=pool,
        result_bytes_max=result_bytes_max,
        volatile=names_of(volatile, "volatile"),
        max_attempts=max_attempts,
        approval=approval,
        trust=trust,
        after_untrusted=after_untrusted,
        query_authoritative=query_authoritative,
        fence=fence,
        has_check=check is not None,
        has_preview=preview is not None,
        has_query=query is not None,
        has_version_of=version_of is not None,
        check_inline=not (check or preview or version_of or price) if check_inline is None else check_inline,
        handler_revision=handler_revision or "",
        from_results=sources_from(from_results, "from_results"),
        snapshot=snapshot,
        same_version=same_version,
        same_version_in=same_version_in,
        facts=mapped({} if facts is None else facts, "facts"),
        conditions=names_of(conditions, "conditions"),
        secret_arguments=secrets_from(secret_arguments),
        has_price=price is not None,
        rate=rate,
    )

    def declare(function: F) -> F:
        definition, signature = _complete(
            draft, function, name=name, description=description, params=params, returns=returns
        )
        if handler_revision is None:
            definition = msgspec.structs.replace(definition, handler_revision=_revision(function))
        refuse_contradictions(definition, is_async=signature.is_async)
        spec = ToolSpec(
            definition=definition,
            handler=function,
            signature=signature,
            check=check,
            preview=preview,
            query=query,
            version_of=version_of,
            price=price,
        )
        return _attach(function, spec)

    return declare


def _complete(
    draft: ToolDefinition,
    function: Handler,
    *,
    name: str | None,
    description: str | None,
    params: dict[str, Any] | None,
    returns: dict[str, Any] | None,
) -> tuple[ToolDefinition, CallSignature]:
    """The definition with what the function itself says: its name, its docstring and its types."""
    tool_name = name if name is not None else str(getattr(inner_function(function), "__name__", ""))
    if not is_tool_name(tool_name):
        raise DeclarationError(
            "tool_name", "a name is [a-z][a-z0-9_]{0,63} in ASCII", path=ascii(tool_name)[:80]
        )
    given = None if params is None else close_root(normalise_schema(params))
    signature = read_signature(function, name=tool_name, params=given)
    definition = msgspec.structs.replace(
        draft,
        name=tool_name,
        description=_description(function, description, tool_name),
        parameters=close_root(normalise_schema(signature.schema)),
        result=_result_schema(function, returns, tool_name),
    )
    return definition, signature


def tool_spec(declared: object) -> ToolSpec:
    """The spec that `@tool` left on a function; of a method, bound to its object. Raises `DeclarationError`."""
    if isinstance(declared, ToolSpec):
        return declared
    spec = getattr(declared, _ATTRIBUTE, None)
    if not isinstance(spec, ToolSpec):
        label = str(getattr(declared, "__name__", type(declared).__name__))
        raise DeclarationError("not_a_tool", "declare it with @tool", path=label[:80])
    if not spec.signature.needs_self:
        return spec
    if not isinstance(declared, types.MethodType):
        raise DeclarationError(
            "tool_unbound", "pass the method of an object, not of the class", path=spec.name
        )
    return replace(spec, handler=declared, signature=replace(spec.signature, needs_self=False))


def _attach(function: F, spec: ToolSpec) -> F:
    if isinstance(function, types.MethodType | types.BuiltinFunctionType):
        carrier = functools.partial(function)  # bound methods hold no attributes of their own
        return cast(F, _attach(cast(Handler, carrier), spec))
    if _ATTRIBUTE in getattr(function, "__dict__", {}):
        raise DeclarationError(
            "declared_twice", "wrap it in functools.partial to declare it anew", path=spec.name
        )
    setattr(function, _ATTRIBUTE, spec)
    return function


def _description(function: Handler, given: str | None, name: str) -> str:
    text: object = given if given is not None else getattr(inner_function(function), "__doc__", None)
    if text is not None and not isinstance(text, str):
        raise DeclarationError("option_type", "must be a text", path=f"{name}.description")
    text = inspect.cleandoc(text) if text else ""
    if not text.strip():
        raise DeclarationError("description_missing", "write a docstring, or give a description", path=name)
    return text


def _result_schema(function: Handler, given: dict[str, Any] | None, name: str) -> Schema | None:
    """The schema of the return annotation; none for an absent one or `Any`, which say nothing."""
    if given is not None:
        return normalise_schema(given)
    inner = inner_function(function)
    annotation = getattr(inner, "__annotations__", {}).get("return", Any)
    if annotation is Any:
        return None
    hint = resolve_annotations(inner, name)["return"]
    if hint is Observed or get_origin(hint) is Observed:
        hint = next(iter(get_args(hint)), Any)
        if hint is Any:
            return None
    schemas, defs, _ = schemas_of({"return": hint}, name)
    schema = schemas["return"]
    return normalise_schema({**schema, "$defs": defs} if defs else schema) if schema else None


def _timeout_ms(given: int | None, quick: bool) -> int:
    if given is not None:
        return given
    return QUICK_TIMEOUT_MS_MAX if quick else TIMEOUT_MS_DEFAULT


def _revision(function: Handler) -> str:
    package = str(getattr(inner_function(function), "__module__", "")).partition(".")[0]
    return str(getattr(sys.modules.get(package), "__version__", ""))


def _lists(value: object) -> JSON:
    """The value with its tuples as lists; JSON has but one sequence."""
    if type(value) is dict:
        members = cast("dict[str, Any]", value).items()
        return {name: _lists(item) if type(item) in _CONTAINERS else item for name, item in members}
    if type(value) is list or type(value) is tuple:
        return [_lists(item) if type(item) in _CONTAINERS else item for item in cast("list[Any]", value)]
    return cast(JSON, value)


def _encode_model(value: object) -> object:
    """A pydantic model by its own JSON form, without importing pydantic."""
    if hasattr(type(value), "__pydantic_core_schema__"):
        model = cast(Any, value)
        return _sets_sorted(model.model_dump(), model.model_dump(mode="json"))
    raise TypeError("not a type that JSON can say")


def _sets_sorted(plain: Any, dumped: Any) -> Any:
    """The JSON form of ``plain`` with what were sets in it sorted: pydantic writes them in no particular order. What a
    serializer of its own made something else of is left as it is."""
    kind = type(cast(object, plain))
    shape = type(cast(object, dumped))
    if kind in _SETS and shape is list:
        if any(isinstance(item, frozenset) for item in plain):
            raise TypeError("a set in a set has no order")
        return sorted(dumped, key=canonical_bytes)
    if kind not in _CONTAINERS or shape not in _CONTAINERS or len(plain) != len(dumped):
        return dumped
    if kind is dict and shape is dict:
        values = map(_sets_sorted, plain.values(), dumped.values())
        return dict(zip(dumped, values, strict=True))
    if kind is not dict and shape is list:
        return list(map(_sets_sorted, plain, dumped))
    return dumped
