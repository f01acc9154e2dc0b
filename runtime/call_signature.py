"""From a function's signature to the schema of its arguments, and from valid arguments to what the function takes."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import msgspec

from .canonical import JSON, CanonicalRefused, canonical_bytes
from .errors import CallerError, DeclarationError
from .schema import Schema

CONTEXT_PARAMETER: Final = "ctx"
_REF_TEMPLATE: Final = "#/$defs/{name}"
_AS_IS: Final = frozenset({str, int, bool, type(None), dict, list, object})

Decode: TypeAlias = "Callable[[JSON], object] | None"


class BindRefused(CallerError):
    """Arguments that fit the schema and still don't decode, such as text that is no date. Nothing was called."""

    def __init__(self, name: str) -> None:
        super().__init__("bind", "doesn't decode into the parameter's type", path=f"$.{name}")


@dataclass(frozen=True, slots=True)
class CallSignature:
    """How a handler is called. `decoders` has each parameter's decoder, `None` where JSON is taken as it is."""

    schema: Schema
    decoders: dict[str, Decode]
    takes_ctx: bool
    needs_self: bool
    is_async: bool

    def bind(self, arguments: dict[str, JSON]) -> dict[str, object]:
        """Keyword arguments for the handler; parameters left out keep the function's own default."""
        bound: dict[str, object] = {}
        decoders = self.decoders
        for name, value in arguments.items():
            decode = decoders.get(name)
            if decode is None:
                bound[name] = value
                continue
            try:
                bound[name] = decode(value)
            except (msgspec.ValidationError, ValueError, TypeError, OverflowError):
                # The cause is dropped: validators quote the value.
                raise BindRefused(name) from None
        return bound


def inner_function(handler: Callable[..., Any]) -> Any:
    """The function whose annotations, docstring and kind count: that of a partial, method or callable object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if isinstance(handler, types.MethodType):
        return handler.__func__
    return handler if inspect.isfunction(handler) else getattr(type(handler), "__call__", handler)  # noqa: B004  the method is wanted, not whether there is one


def read_signature(handler: Callable[..., Any], *, name: str, params: Schema | None) -> CallSignature:
    """The signature of a tool; raises `DeclarationError` for what can't be called with checked keywords.

    With `params` the schema is given and only the names are compared.
    """
    function = inner_function(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError("tool_generator", "a tool returns one result; it doesn't yield", path=name)
    parameters = list(inspect.signature(handler).parameters.values())
    needs_self = (
        handler is function
        and bool(parameters)
        and parameters[0].name in ("self", "cls")
        and parameters[0].annotation is inspect.Parameter.empty
    )
    if needs_self:
        parameters = parameters[1:]
    takes_ctx = any(parameter.name == CONTEXT_PARAMETER for parameter in parameters)
    parameters = [parameter for parameter in parameters if parameter.name != CONTEXT_PARAMETER]
    is_async = inspect.iscoroutinefunction(function)
    if params is not None:
        _match_given_schema(parameters, params, name)
        return CallSignature(params, {}, takes_ctx, needs_self, is_async)
    _refuse_kinds(parameters, name)
    hints = resolve_annotations(function, name)
    schema, decoders = _describe(parameters, hints, name)
    return CallSignature(schema, decoders, takes_ctx, needs_self, is_async)


def resolve_annotations(function: Any, name: str) -> dict[str, Any]:
    """The annotations as types."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise DeclarationError(
            "annotation_unresolved", "an annotation names nothing at module level", path=name
        ) from error


def schemas_of(annotations: dict[str, Any], name: str) -> tuple[dict[str, Schema], Schema, dict[str, Decode]]:
    """For each annotation its schema and its decoder, and the schemas that they share as `$defs`."""
    plain = {key: kind for key, kind in annotations.items() if not needs_pydantic(kind)}
    try:
        found, shared = msgspec.json.schema_components(list(plain.values()), ref_template=_REF_TEMPLATE)
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(
            "annotation_unsupported", "an annotation has no JSON Schema", path=name
        ) from error
    schemas = cast("dict[str, Schema]", dict(zip(plain, found, strict=True)))
    decoders = {key: plain_decoder(kind) for key, kind in plain.items()}
    defs = cast(Schema, shared)
    for key in annotations.keys() - plain.keys():
        from .pydantic_types import adapt  # only where a tool is declared with pydantic types

        schema, more, decoders[key] = adapt(annotations[key], f"{name}.{key}")
        schemas[key] = schema
        for def_name, definition in more.items():
            if defs.setdefault(def_name, definition) != definition:
                raise DeclarationError(
                    "schema_name_clash", "two types have one name", path=f"{name}.{def_name}"
                )
    return {key: schemas[key] for key in annotations}, defs, decoders


def needs_pydantic(annotation: Any) -> bool:
    """True if pydantic must read an annotation. Told by its marks, so that pydantic isn't imported to find out."""
    if hasattr(annotation, "__pydantic_core_schema__") or hasattr(annotation, "__get_pydantic_core_schema__"):
        return True
    metadata = getattr(annotation, "__metadata__", ())
    if any(type(mark).__module__.partition(".")[0] in ("pydantic", "annotated_types") for mark in metadata):
        return True
    return any(
        needs_pydantic(argument) for argument in typing.get_args(annotation) if argument is not annotation
    )


def plain_decoder(annotation: Any) -> Decode:
    """The decoder of a type that msgspec knows."""
    kind = typing.get_origin(annotation) or annotation
    if annotation is Any or (isinstance(annotation, type) and annotation in _AS_IS):
        return None
    if kind is typing.Annotated and typing.get_args(annotation)[0] in _AS_IS:
        return None  # the schema has checked the bounds
    return functools.partial(msgspec.convert, type=annotation, strict=True)


def _refuse_kinds(parameters: list[inspect.Parameter], name: str) -> None:
    for parameter in parameters:
        path = f"{name}.{parameter.name}"
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise DeclarationError("parameter_variadic", "*args and **kwargs have no schema", path=path)
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise DeclarationError("parameter_positional", "arguments are passed by name", path=path)
        if parameter.annotation is inspect.Parameter.empty:
            raise DeclarationError("parameter_unannotated", "needs a type", path=path)


def _describe(
    parameters: list[inspect.Parameter], hints: dict[str, Any], name: str
) -> tuple[Schema, dict[str, Decode]]:
    annotations = {parameter.name: hints[parameter.name] for parameter in parameters}
    members, defs, decoders = schemas_of(annotations, name)
    required: list[JSON] = []
    for parameter in parameters:
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        else:
            members[parameter.name] = _with_default(
                members[parameter.name], parameter.default, f"{name}.{parameter.name}"
            )
    schema: Schema = {"type": "object", "properties": dict(members), "additionalProperties": False}
    if required:
        schema["required"] = required
    if defs:
        schema["$defs"] = defs
    return schema, decoders


def _with_default(schema: Schema, default: object, path: str) -> Schema:
    if type(default).__module__.partition(".")[0] == "pydantic":
        raise DeclarationError(
            "default_unsupported", "put Field into Annotated and give a plain default", path=path
        )
    try:
        value = cast(JSON, msgspec.json.decode(msgspec.json.encode(default)))
        canonical_bytes(value)
    except (TypeError, ValueError, msgspec.MsgspecError, CanonicalRefused):
        return schema  # a default that JSON can't say still makes the parameter optional
    return {**schema, "default": value}


def _match_given_schema(parameters: list[inspect.Parameter], params: Schema, name: str) -> None:
    """Every property of a given schema must be a keyword of the function, and every needed keyword required."""
    members = cast(Schema, params.get("properties", {}))
    required = cast("list[str]", params.get("required", []))
    keywords = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    for member in members:
        if member == CONTEXT_PARAMETER or (member not in keywords and not takes_any):
            raise DeclarationError(
                "params_mismatch", "the function takes no such keyword", path=f"{name}.{member}"
            )
    for keyword, parameter in keywords.items():
        if parameter.default is inspect.Parameter.empty and keyword not in required:
            raise DeclarationError(
                "params_mismatch", "needed by the function, not required", path=f"{name}.{keyword}"
            )
    if not takes_any and isinstance(params.get("additionalProperties"), dict):
        raise DeclarationError("params_mismatch", "an open map of arguments needs **kwargs", path=name)
