"""A tool as data: what is offered, pinned in the log, hashed and decided upon, without the tool's code."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from .agent_definition import AgentDefinition
from .canonical import JSON, canonical_bytes, sha256
from .taint import AfterUntrustedRule, Trust

if TYPE_CHECKING:
    from .schema import Validator

Risk: TypeAlias = Literal["read", "write", "irreversible"]
FarSide: TypeAlias = Literal["none", "natural", "keyed", "queryable"]
ApprovalRule: TypeAlias = Literal["policy", "always", "never"]
Fence: TypeAlias = Literal["none", "store"]
ToolKind: TypeAlias = Literal["tool", "agent", "question"]
KeyRule: TypeAlias = "tuple[str, ...] | Literal['arguments', 'call'] | None"

_tool_name = re.compile(r"[a-z][a-z0-9_]{0,63}").fullmatch

DEFINITION_HASH_FIELDS: Final = (
    "name",
    "version",
    "effect_version",
    "description",
    "parameters",
    "result",
    "risk",
    "key",
    "incidental",
    "far_side",
    "permissions",
    "cost_micros",
    "volatile",
    "approval",
    "query_authoritative",
    "fence",
    "has_check",
    "has_preview",
    "has_query",
    "has_version_of",
)
"""What a model or an approver relies on. Timeouts, pools, sizes and the handler's revision may change in flight."""

DEFINITION_HASH_FIELDS_IF_SET: Final = (
    "from_results",
    "snapshot",
    "same_version",
    "same_version_in",
    "trust",
    "after_untrusted",
    "secret_arguments",
    "has_price",
    "rate",
)
"""Hashed too where they aren't the default."""

_IF_USED: Final = frozenset({"stages", "hosted"})
"""Of an agent: hashed only where it isn't empty."""

_NEVER_SHOWN: Final = frozenset(
    {"kind", "agents", "offered", "facts", "conditions", *DEFINITION_HASH_FIELDS_IF_SET}
)


def is_tool_name(name: object) -> bool:
    """ASCII lower case, digits and underscores, a letter first, at most 64: no two names that look or fold alike."""
    return isinstance(name, str) and _tool_name(name) is not None


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """One tool's declaration, JSON-encodable, the whole of what deciding about its calls needs.

    `parameters` and `result` are closed, linted JSON Schemas. `cost_micros` is the cost of one attempt in
    micro-units of the run's currency. `key` is `None` exactly for reads. A call of an `agent` starts a child run of one of
    `agents`, by its argument `agent` where there are several; one of a `question` is put to people. A tool that isn't `offered` to the run is there for its agents.
    `facts`: names of typed facts and the dotted paths of the result's fields that set them. `conditions`: paths of fields that
    stay when an old result is compacted (units, validity, as-of, citations). `secret_arguments`: parameters that take a
    reference, and the names of the secrets that each may refer to.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    risk: Risk
    result: dict[str, Any] | None = None
    version: str = "1"
    effect_version: str = "1"
    key: tuple[str, ...] | Literal["arguments", "call"] | None = None
    incidental: tuple[str, ...] = ()
    far_side: FarSide = "none"
    permissions: tuple[str, ...] = ()
    timeout_ms: int = 30_000
    quick: bool = False
    inline: bool = False
    group: str | None = None
    cost_micros: int = 0
    pool: str = "default"
    result_bytes_max: int = 16_384
    volatile: tuple[str, ...] = ()
    max_attempts: int = 3
    approval: ApprovalRule = "policy"
    query_authoritative: bool = False
    fence: Fence = "none"
    has_check: bool = False
    has_preview: bool = False
    has_query: bool = False
    has_version_of: bool = False
    check_inline: bool = True
    handler_revision: str = ""
    kind: ToolKind = "tool"
    agents: tuple[AgentDefinition, ...] = ()
    offered: bool = True
    from_results: dict[str, tuple[str, ...]] = {}
    snapshot: bool = False
    same_version: str = ""
    same_version_in: Literal["turn", "run"] = "turn"
    has_price: bool = False
    rate: tuple[int, int] | None = None
    trust: Trust = "undeclared"
    after_untrusted: AfterUntrustedRule = "policy"
    facts: dict[str, str] = {}
    conditions: tuple[str, ...] = ()
    secret_arguments: dict[str, tuple[str, ...]] = {}

    @property
    def is_effect(self) -> bool:
        """True if a call changes something at a far side."""
        return self.risk != "read"

    @cached_property
    def definition_sha256(self) -> bytes:
        """The 32-byte hash over `DEFINITION_HASH_FIELDS`, an object of those fields in canonical JSON; of an agent with
        `kind` and `agents` too, and with what of `DEFINITION_HASH_FIELDS_IF_SET` isn't the default, and
        with `facts` and `conditions` where there are some."""
        fields: dict[str, JSON] = {}
        for name in DEFINITION_HASH_FIELDS:
            value: Any = getattr(self, name)
            fields[name] = list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value
        for name in DEFINITION_HASH_FIELDS_IF_SET:
            value = getattr(self, name)
            if value and value != _DEFAULTS[name]:
                fields[name] = msgspec.json.decode(msgspec.json.encode(value))
        if self.kind != "tool":
            fields["kind"] = self.kind
            agents: list[dict[str, JSON]] = msgspec.json.decode(msgspec.json.encode(self.agents))
            # What an agent doesn't use isn't hashed: its definition stays what it was.
            fields["agents"] = [
                {key: value for key, value in agent.items() if value or key not in _IF_USED}
                for agent in agents
            ]
        if self.facts:
            fields["facts"] = dict(self.facts)
        if self.conditions:
            fields["conditions"] = list(self.conditions)
        return sha256(canonical_bytes(fields))

    @cached_property
    def size_bytes(self) -> int:
        """What the definition counts for in a request's input bound: its encoded bytes, without what no model is shown of
        an agent."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _NEVER_SHOWN}
        return len(msgspec.msgpack.encode(shown))

    @cached_property
    def _parameters_validator(self) -> Validator:
        from .schema import compile_schema  # who only reads a log compiles nothing

        return compile_schema(self.parameters)

    @cached_property
    def _result_validator(self) -> Validator | None:
        from .schema import compile_schema

        return None if self.result is None else compile_schema(self.result)

    @cached_property
    def _defaults(self) -> dict[str, JSON]:
        members = cast("dict[str, JSON]", self.parameters.get("properties", {}))
        return {
            name: member["default"]
            for name, member in members.items()
            if isinstance(member, dict) and "default" in member and name not in self.incidental
        }

    def validator(self) -> Validator:
        """The compiled `parameters`; compiled once a definition."""
        return self._parameters_validator

    def result_validator(self) -> Validator | None:
        """The compiled `result`, if the tool declares one; compiled once a definition."""
        return self._result_validator

    def key_of(
        self, tenant: str, operation_id: str, call_id: str, arguments: dict[str, JSON]
    ) -> bytes | None:
        """The 32-byte idempotency key of a call with an effect; `None` for a read.

        SHA-256 over the canonical JSON of [tenant, operation id, tool name, effect version, key fields]: an object of
        the declared fields; of all non-incidental arguments for `"arguments"`; the call id for `"call"`, which must
        then be unique in the whole operation, not only in its run. `arguments` are valid ones.
        """
        fields: JSON
        if self.key is None:
            return None
        if self.key == "call":
            fields = call_id
        elif self.key == "arguments":
            fields = self._intent(arguments)
        else:
            fields = {name: arguments[name] for name in self.key}
        return sha256(canonical_bytes([tenant, operation_id, self.name, self.effect_version, fields]))

    def intent_sha256(self, arguments: dict[str, JSON]) -> bytes:
        """The 32-byte hash of what a call is meant to do: its arguments without the incidental ones."""
        return sha256(canonical_bytes(self._intent(arguments)))

    def _intent(self, arguments: dict[str, JSON]) -> dict[str, JSON]:
        """Leaving a parameter out and writing its default are one intent."""
        if self._defaults:
            arguments = {**self._defaults, **arguments}
        if not self.incidental:
            return arguments
        return {name: value for name, value in arguments.items() if name not in self.incidental}


_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(ToolDefinition)}
