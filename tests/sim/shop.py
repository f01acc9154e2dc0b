"""The application of the simulated world: tools of every risk over far sides of every kind, and agents that use them.

Toolboxes are made once a process; whose world their code acts in is ``STAGE.world``, one at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, Protocol

import msgspec

from boundloop.actors.context import ToolContext
from boundloop.runtime.agent_spec import agent, spawn
from boundloop.runtime.far_side import Absent, Applied
from boundloop.runtime.policy import Policy, PolicyDecision, PolicyQuestion
from boundloop.runtime.question_tool import ask_user
from boundloop.runtime.tool_spec import tool
from boundloop.runtime.toolbox import Toolbox

from .far_side import FarSide

Quantity = Annotated[int, msgspec.Meta(ge=1, le=9)]
TIMEOUT_MS: Final = 2_000
RATE: Final = (3, 12_000)
"""Of one read: longer than a host stays with a run that has nothing else to do."""
APPLICATION: Final = "sim:app"
VARIANTS: Final = ("base", "described", "contract", "guarded")
"""Toolboxes: as at the start; with another description; with another schema of one tool; with one that asks first."""


class Told(msgspec.Struct):
    """What every tool here returns."""

    what: str
    of: str


class Stamped(Told):
    """The same as of some moment."""

    at: int


class Onstage(Protocol):
    """What the application's code sees of the world that it runs in."""

    far_side: FarSide

    def loop_ms(self) -> int:
        """The time since the world began."""
        ...

    def checked(self, tool: str) -> bool | str | None:
        """The answer of a semantic check; may raise."""
        ...

    def version_of(self, arguments: dict[str, Any]) -> str:
        """Which version of what is about to be changed there is now."""
        ...

    def decided(self, question: PolicyQuestion) -> PolicyDecision:
        """The answer of the policy."""
        ...


class Stage:
    """Where the world of the running seed stands."""

    world: Onstage | None = None

    def here(self) -> Onstage:
        assert self.world is not None
        return self.world


STAGE: Final = Stage()


def _told(what: str, of: str) -> dict[str, Any]:
    return {"what": what, "of": of}


def _check(name: str) -> Any:
    def check(arguments: dict[str, Any]) -> bool | str | None:
        return STAGE.here().checked(name)

    return check


def _preview(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"shown": arguments}


def _version_of(arguments: dict[str, Any]) -> str:
    return STAGE.here().version_of(arguments)


async def _query(key: str) -> Applied | Absent:
    happened = STAGE.here().far_side.happened(key)
    return Absent() if happened is None else Applied(happened)


async def _query_lagging(key: str) -> Applied | Absent:
    """Not authoritative in truth; its far side takes the key, so no harm comes of that."""
    return Absent() if key in STAGE.here().far_side.hidden else await _query(key)


def _tools(variant: str) -> list[Any]:
    described = " As of today." if variant == "described" else ""
    quantity_most = 5 if variant == "contract" else 9

    @tool(risk="read", timeout_ms=TIMEOUT_MS, inline=True, facts={"seen": "of"})
    async def look(order_id: str, ctx: ToolContext) -> Told:
        """Look an order up."""
        return STAGE.here().far_side.read("look", ctx, {"order_id": order_id}, _told("order", order_id))  # type: ignore[return-value]  # as JSON

    @tool(risk="read", timeout_ms=TIMEOUT_MS, max_attempts=2, check=_check("audit"))
    async def audit(year: int, ctx: ToolContext) -> Told:
        """Read a year's books."""
        return STAGE.here().far_side.read("audit", ctx, {"year": year}, _told("audit", str(year)))  # type: ignore[return-value]  # as JSON

    @tool(risk="read", timeout_ms=TIMEOUT_MS, trust="untrusted")
    async def mail(order_id: str, ctx: ToolContext) -> Told:
        """Read what a customer wrote."""
        return STAGE.here().far_side.read("mail", ctx, {"order_id": order_id}, _told("mail", order_id))  # type: ignore[return-value]  # as JSON

    @tool(
        risk="write",
        key=("sku",),
        far_side="keyed",
        timeout_ms=TIMEOUT_MS,
        params={
            "type": "object",
            "properties": {
                "sku": {"type": "string", "maxLength": 40},
                "qty": {"type": "integer", "minimum": 1, "maximum": quantity_most},
            },
            "required": ["sku", "qty"],
            "additionalProperties": False,
        },
    )
    async def book(sku: str, qty: int, ctx: ToolContext) -> Told:
        """Reserve something."""
        arguments = {"sku": sku, "qty": qty}
        return STAGE.here().far_side.act("book", "keyed", ctx, arguments, _told("booked", sku))  # type: ignore[return-value]  # as JSON

    @tool(risk="write", key="arguments", far_side="natural", timeout_ms=TIMEOUT_MS)
    async def tag(order_id: str, label: str, ctx: ToolContext) -> Told:
        """Put a label on an order."""
        arguments = {"order_id": order_id, "label": label}
        return STAGE.here().far_side.act("tag", "natural", ctx, arguments, _told("tagged", order_id))  # type: ignore[return-value]  # as JSON

    @tool(
        risk="irreversible",
        key=("order_id",),
        incidental=("reason",),
        far_side="queryable",
        query=_query,
        query_authoritative=True,
        timeout_ms=TIMEOUT_MS,
        check=_check("refund"),
        check_inline=True,
        preview=_preview,
        version_of=_version_of,
        description="Give money back." + described,
    )
    async def refund(order_id: str, cents: int, ctx: ToolContext, reason: str = "") -> Told:
        arguments = {"order_id": order_id, "cents": cents, "reason": reason}
        return STAGE.here().far_side.act("refund", "queryable", ctx, arguments, _told("refunded", order_id))  # type: ignore[return-value]  # as JSON

    @tool(
        risk="irreversible",
        key=("order_id",),
        far_side="keyed",
        timeout_ms=TIMEOUT_MS,
        approval="always" if variant == "guarded" else "never",
        check=_check("pay"),
    )
    async def pay(order_id: str, cents: Quantity, ctx: ToolContext) -> Told:
        """Pay an order."""
        arguments = {"order_id": order_id, "cents": cents}
        return STAGE.here().far_side.act("pay", "keyed", ctx, arguments, _told("paid", order_id))  # type: ignore[return-value]  # as JSON

    @tool(risk="write", key="arguments", far_side="none", timeout_ms=TIMEOUT_MS)
    async def letter(to: str, ctx: ToolContext) -> Told:
        """Post a letter. The post office answers no questions."""
        return STAGE.here().far_side.act("letter", "none", ctx, {"to": to}, _told("posted", to))  # type: ignore[return-value]  # as JSON

    @tool(risk="read", timeout_ms=TIMEOUT_MS, inline=True, volatile=("at",), rate=RATE)
    async def status(order_id: str, ctx: ToolContext) -> Stamped:
        """How an order stands, and when that was; not as often as one likes."""
        result = {**_told("status", order_id), "at": STAGE.here().loop_ms()}
        return STAGE.here().far_side.read("status", ctx, {"order_id": order_id}, result)  # type: ignore[return-value]  # as JSON

    @tool(
        risk="write",
        key=("order_id",),
        far_side="queryable",
        query=_query_lagging,
        query_authoritative=True,
        timeout_ms=TIMEOUT_MS,
        check=_check("wire"),
    )
    async def wire(order_id: str, ctx: ToolContext) -> Told:
        """Send money. The bank takes the key as well, and what it says of one may be behind."""
        return STAGE.here().far_side.act(
            "wire", "keyed", ctx, {"order_id": order_id}, _told("wired", order_id)
        )  # type: ignore[return-value]  # as JSON

    @tool(risk="write", key="call", far_side="keyed", timeout_ms=TIMEOUT_MS, check=_check("note"))
    async def note(text: str, ctx: ToolContext) -> Told:
        """Write something down: each time it is another line."""
        return STAGE.here().far_side.act("note", "keyed", ctx, {"text": text}, _told("noted", text))  # type: ignore[return-value]  # as JSON

    return [note, wire, status, look, audit, mail, book, tag, refund, pay, letter, ask_user]


def _agents() -> list[Any]:
    clerk = agent(
        name="clerk",
        description="Does one thing.",
        system="clerk",
        tools=("look", "book", "tag", "pay", "note", "wire", "status"),
        limits={"turns": 6, "tool_calls": 10},
    )
    helper = agent(
        name="helper",
        description="Does several things, with help.",
        system="helper",
        tools=("look", "mail", "book", "tag", "refund", "letter", "note", "wire", "clerk", "ask_user"),
    )
    patient = agent(
        name="patient",
        description="Waits when it is stopped.",
        system="patient",
        tools=("look", "book", "pay", "note"),
        on_stop="suspend",
        goal="book",
        limits={"turns": 6, "deadline_s": 40},
    )
    return [clerk, helper, spawn([clerk, patient], name="team")]


@cache
def toolbox(variant: str) -> Toolbox:
    """The tools of a variant, made once."""
    return Toolbox([*_tools(variant), *_agents()])


ONE_A_KEY: Final = frozenset({"wire"})
"""Tools whose far side takes the key although they don't say so."""

FAR_SIDES: Final = {name: spec.definition.far_side for name, spec in toolbox("base").items()}
KEYS: Final = {
    name: spec.definition.key for name, spec in toolbox("base").items() if spec.definition.key is not None
}
"""What an effect's key is made of: the names of arguments, all ``arguments``, or the ``call``."""

_INCIDENTAL: Final = {name: spec.definition.incidental for name, spec in toolbox("base").items()}
_DECLARED: Final = {
    one.name: one.limits for spec in toolbox("base").values() for one in spec.definition.agents
}


def without_incidental(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What an effect is meant to do."""
    return {name: value for name, value in arguments.items() if name not in _INCIDENTAL[tool]}


def declared_limits(agent: str) -> dict[str, int]:
    """What an agent's run has at most."""
    return _DECLARED[agent]


EFFECTS: Final = frozenset(name for name, spec in toolbox("base").items() if spec.definition.is_effect)


def _decide(question: PolicyQuestion) -> PolicyDecision:
    return STAGE.here().decided(question)


@cache
def policy(revision: str) -> Policy:
    """The policy under a revision: its rules are those of the world."""
    return Policy(_decide, revision=revision)
