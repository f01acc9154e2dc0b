"""What ``Runtime.start`` is given: the options, their checks, and the pins that a new run begins with.

Everything that isn't what its type says is refused here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Required, TypedDict, cast
from uuid import uuid4

from ..adapters.port import ModelAdapter
from ..adapters.side_declaration import declared_side
from ..runtime.binding import PRODUCER
from ..runtime.errors import BoundloopError, DeclarationError, MissingLimits
from ..runtime.evidence_fields import refuse_misnamed
from ..runtime.goal import Goal
from ..runtime.goal_spec import checked_goal
from ..runtime.hosted import hosted_names
from ..runtime.limits import Limits
from ..runtime.pins import Pins
from ..runtime.policy import Policy
from ..runtime.prices import PriceTable
from ..runtime.provenance import given_bytes
from ..runtime.read_once import read_once
from ..runtime.stage_spec import Stage, names_in_stages, stages_from
from ..runtime.start import NewRunSpec
from ..runtime.tool_spec import ToolSpec
from ..runtime.toolbox import Toolbox
from .application_answers import permission_set

OnStop = Literal["suspend", "end"]
InputTrust = Literal["trusted", "untrusted"]
Tools = Toolbox | Iterable[Callable[..., Any] | ToolSpec]
Permissions = frozenset[str] | Iterable[str] | Callable[[str, str], frozenset[str]]
SYSTEM_BYTES_MAX: Final = 1_048_576
TEXT_BYTES_MAX: Final = 4_096


class ApplicationOptions(TypedDict, total=False):
    """The keywords that an application gives to all its runs.

    ``limits``: the bounds of the run. ``goal``: the evidence that success needs, or the name of a tool; a goal over a
    tool that the run isn't offered stops it, ``blocked``. ``stages``: the parts of the run, each with some of its tools and
    the evidence that ends it (``Stage``); an answer counts in the last one. ``tools``: names, the subset that this run is offered.
    ``system``: the system text, at most 1 MiB. ``agent``: a label. ``hosted``: tools that the
    provider runs itself and whose blocks are accepted; none unless named (docs/safety.md). ``on_stop``: whether a stop that somebody can lift
    suspends the run or ends it. ``input_trust``: "untrusted" if outsiders wrote the inputs; a run is tainted from its start then.
    """

    limits: Required[Limits]
    goal: Goal | str | None
    stages: Iterable[Stage] | None
    tools: Iterable[str] | None
    system: str
    agent: str
    on_stop: OnStop
    hosted: Iterable[str]
    input_trust: InputTrust


class StartOptions(ApplicationOptions, total=False):
    """The keywords of ``Runtime.start``, ``run_sync`` and their twins on ``rt.aio``: those of ``ApplicationOptions``, and

    ``operation_id``: the business task; runs with one operation id share their effects. ``run_id``: else one is made.
    ``principal``, ``tenant``: else the Runtime's. ``as_of``, ``trace``: recorded with the run, at most 4 KiB each.
    ``given``: typed inputs, at most 64 KiB of JSON, whose values ``from_results`` admits beside those of results; the model is
    shown the input's text alone.
    """

    operation_id: str | None
    run_id: str | None
    principal: str | None
    tenant: str | None
    as_of: str
    trace: str
    given: dict[str, Any] | None


def begun_again(options: Mapping[str, object]) -> StartOptions:
    """Options with which several runs may be begun, one after the other: what gives its items only once is read here."""
    return cast("StartOptions", {name: read_once(value) for name, value in options.items()})


class Asked:
    """A start whose options are what their types say."""

    __slots__ = ("_goal", "_hosted", "_limits", "_stages", "_system", "_tools", "given_run_id", "spec")

    def __init__(
        self,
        input: str,
        options: StartOptions,
        *,
        tenant: str,
        principal: str,
        application: str,
        dense: bool = False,
    ) -> None:
        unknown = sorted(set(options) - StartOptions.__annotations__.keys())
        if unknown:
            raise DeclarationError("unknown_option", "start has no such option", path=unknown[0][:80])
        self._hosted = hosted_names(options.get("hosted", ()))
        self._limits = _limits(options.get("limits"))
        self._goal = _goal(options.get("goal"))
        self._stages = stages_from(options.get("stages"))
        self._tools = None if options.get("tools") is None else _names(options.get("tools"), "tools")
        self._system = _text(options, "system", "", SYSTEM_BYTES_MAX)
        self.given_run_id = options.get("run_id") is not None
        run_id = _text(options, "run_id", f"r_{uuid4().hex[:20]}")
        on_stop = options.get("on_stop", "suspend")
        if on_stop not in ("suspend", "end"):
            raise DeclarationError("option_value", 'must be "suspend" or "end"', path="on_stop")
        if not isinstance(cast(object, input), str):
            raise DeclarationError("option_type", "must be a text", path="input")
        input_trust = options.get("input_trust", "trusted")
        if input_trust not in ("trusted", "untrusted"):
            raise DeclarationError("option_value", 'must be "trusted" or "untrusted"', path="input_trust")
        self.spec = NewRunSpec(
            run_id=run_id,
            input=input,
            operation_id=_text(options, "operation_id", run_id),
            tenant=_text(options, "tenant", tenant),
            principal=_text(options, "principal", principal),
            agent=_text(options, "agent", "agent"),
            application=application,
            as_of=_text(options, "as_of", ""),
            trace=_text(options, "trace", ""),
            on_stop=on_stop,
            dense=dense,
            input_trust=input_trust,
            given=given_bytes(options.get("given")),
        )

    def pins(
        self,
        toolbox: Toolbox,
        policy: Policy,
        adapter: ModelAdapter,
        prices: PriceTable,
        permissions_of: Callable[[str, str], frozenset[str]],
    ) -> Pins:
        """What is fixed for the run from now on. Raises ``UnknownTool``, or ``DeclarationError`` for permissions that
        the application can't tell, and for evidence that asks for a field its tool doesn't declare."""
        names = None if self._tools is None else frozenset(toolbox.subset(self._tools))
        toolbox.subset(names_in_stages(self._stages))
        refuse_misnamed(self._goal, self._stages, {name: spec.definition for name, spec in toolbox.items()})
        permissions = _granted(permissions_of, self.spec.tenant, self.spec.principal)
        price = adapter.price if adapter.price is not None else prices.price(adapter.model)
        return Pins(
            producer=PRODUCER,
            model=adapter.model,
            api_family=adapter.family,
            adapter_revision=adapter.revision,
            template_revision="1",
            system=self._system,
            tools=toolbox.offered(permissions, names),
            permissions=tuple(sorted(permissions)),
            policy_revision=policy.revision,
            separate_approver=policy.separate_approver,
            limits=self._limits.values,
            goal=self._goal,
            stages=self._stages,
            price=price,
            hosted=self._hosted,
            guarded=() if policy.guardrails is None else policy.guardrails.pinned,
            guardrail_revision="" if policy.guardrails is None else policy.guardrails.revision,
            price_revision="adapter" if adapter.price is not None else prices.revision,
            side=declared_side(adapter, prices),
        )


def permissions_from(given: Permissions) -> Callable[[str, str], frozenset[str]]:
    """The function that a Runtime asks. Raises ``DeclarationError`` for a text, or for names that are none."""
    if callable(given):
        return given
    constant = frozenset(_names(given, "permissions"))

    def permissions_of(tenant: str, principal: str) -> frozenset[str]:
        return constant

    return permissions_of


def checked_text(value: object, name: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """The text. Raises ``DeclarationError`` for another type, a lone surrogate, or one that is too long."""
    if not isinstance(value, str):
        raise DeclarationError("option_type", "must be a text", path=name)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise DeclarationError("option_encoding", "it holds a lone surrogate", path=name) from None
    if size > bytes_max:
        raise DeclarationError("option_size", f"{size} bytes, at most {bytes_max}", path=name)
    return value


def _text(options: StartOptions, name: str, otherwise: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    given = cast("dict[str, object]", options).get(name)
    return checked_text(otherwise if given is None else given, name, bytes_max)


def _names(given: object, name: str) -> tuple[str, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DeclarationError("option_type", "must be several names, not one text", path=name)
    return tuple(checked_text(item, name) for item in cast("Iterable[object]", given))


def _limits(given: object) -> Limits:
    if given is None:
        raise MissingLimits("missing_limits", "give limits=Limits(cost=…)", path="limits")
    if not isinstance(given, Limits):
        raise DeclarationError("option_type", "must be a Limits", path="limits")
    return given


def _goal(given: object) -> Goal | None:
    if given is None:
        return None
    if isinstance(given, Goal):
        return checked_goal(given)
    return Goal.of(checked_text(given, "goal"))


def _granted(
    permissions_of: Callable[[str, str], frozenset[str]], tenant: str, principal: str
) -> frozenset[str]:
    try:
        return permission_set(permissions_of(tenant, principal))
    except BoundloopError:
        raise
    except Exception as error:
        raise DeclarationError(
            "permissions", f"permissions gave no set of names ({type(error).__name__})", path="permissions"
        ) from error
