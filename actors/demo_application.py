"""The demo's application: what the model may propose, the policy, the agent below it, and the script of the model.

Everything here is what an application has, but for the model's lines: those are written down, so that the demo is the
same everywhere.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from ..adapters.loopback_script import ServedScript, ServerScript
from ..adapters.openai_chat import OpenAIChat
from ..adapters.script import call, say
from ..runtime.agent_spec import agent
from ..runtime.canonical import JSON
from ..runtime.errors import ToolError
from ..runtime.far_side import Absent, Applied
from ..runtime.limits import Limits
from ..runtime.model import Usage
from ..runtime.policy import Policy, PolicyDecision, PolicyQuestion, default_rules
from ..runtime.prices import Price
from ..runtime.tool_spec import ToolSpec, tool
from .context import ToolContext
from .demo_shop import ShopClient, ShopError

AGENT: Final = "refund_desk"
CLERK: Final = "rules_clerk"
APPROVER: Final = "demo:approver"

TASK: Final = "Refund order A1042 if the rules allow it, and say what was done."
QUESTION: Final = "Order A1042 arrived broken: may it be refunded?"
ORDER: Final = {"order_id": "A1042"}
REFUND: Final = {"order_id": "A1042", "amount_cents": 1_250}

SHOP_S: Final = 2.0
"""How long the refund's answer is waited for. The shop applies it at once and stays silent; a query settles it."""

ACCOUNTS_ON_FILE: Final = frozenset({"C-2107"})
COST: Final = "0.50"
MODEL: Final = "demo-model"
PRICE: Final = Price(input=250_000, output=2_000_000)
USAGE: Final = Usage(640, 45)
LATENCY_MS: Final = 60

Cents = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


def demo_tools(shop: ShopClient) -> list[Callable[..., Any] | ToolSpec]:
    """All that the model may propose. Nothing else exists for it."""

    @tool(risk="read")
    def get_order(order_id: str, ctx: ToolContext) -> dict[str, Any]:
        """Look up one order."""
        return _asked(shop, "orders", ctx, order_id=order_id)

    @tool(risk="read")
    def get_refund_rules(ctx: ToolContext) -> dict[str, Any]:
        """Tell the shop's rules for refunds."""
        return _asked(shop, "rules", ctx)

    @tool(risk="write", key=("account",), far_side="keyed")
    def send_credit(account: str, amount_cents: Cents, ctx: ToolContext) -> dict[str, Any]:
        """Send a customer a credit."""
        return _asked(shop, "credits", ctx, key=ctx.key, account=account, amount_cents=amount_cents)

    @tool(risk="write", key=("order_id",), far_side="keyed")
    def draft_refund(order_id: str, amount_cents: Cents, ctx: ToolContext) -> dict[str, Any]:
        """Prepare a refund at the shop. No money moves."""
        return _asked(shop, "drafts", ctx, key=ctx.key, order_id=order_id, amount_cents=amount_cents)

    def became_of(key: str) -> Applied | Absent:
        answer = shop.ask("queries", key, key=key)
        return Applied(answer["result"]) if answer["applied"] else Absent()

    @tool(
        risk="irreversible",
        key=("order_id",),
        incidental=("reason",),
        far_side="queryable",
        query=became_of,
        query_authoritative=True,
        preview=preview_of_refund,
    )
    def submit_refund(
        order_id: str, amount_cents: Cents, ctx: ToolContext, reason: str = ""
    ) -> dict[str, Any]:
        """Pay a refund out, as drafted. A person is asked first."""
        return _asked(
            shop, "refunds", ctx, timeout_s=SHOP_S, key=ctx.key, order_id=order_id, amount_cents=amount_cents
        )

    clerk = agent(
        name=CLERK,
        description="Answers whether the shop's rules allow a refund.",
        system="You answer questions about the shop's rules.",
        tools=("get_refund_rules",),
        limits={"turns": 3, "tool_calls": 2, "cost": "0.05"},
    )
    return [get_order, get_refund_rules, send_credit, draft_refund, submit_refund, clerk]


def preview_of_refund(arguments: dict[str, JSON]) -> JSON:
    """What the approver is shown."""
    cents = arguments["amount_cents"]
    assert isinstance(cents, int)
    return {"pays": f"{cents // 100}.{cents % 100:02d}", "for_order": arguments["order_id"]}


def _asked(
    shop: ShopClient, kind: str, ctx: ToolContext, *, timeout_s: float = 10.0, **body: object
) -> dict[str, Any]:
    """One request to the shop. Only an answer that says so is proof that nothing happened."""
    try:
        return shop.ask(kind, ctx.operation_id, timeout_s=timeout_s, **body)
    except ShopError as error:
        raise ToolError(f"shop_{error.status}", no_effect=True) from error
    except (OSError, http.client.HTTPException) as error:
        raise ToolError("shop_no_answer", retryable=True) from error


def rules(question: PolicyQuestion) -> PolicyDecision:
    """Credits go to accounts on file only; refunds are asked about; the rest is allowed."""
    if question.tool == "send_credit" and question.arguments.get("account") not in ACCOUNTS_ON_FILE:
        return PolicyDecision(answer="deny", code="account_not_on_file")
    return default_rules(question)


POLICY: Final = Policy(rules, revision="demo-policy-1")


def demo_model(base_url: str) -> OpenAIChat:
    """The adapter, as for any server that speaks Chat Completions; the price is this demo's."""
    return OpenAIChat(model=MODEL, base_url=base_url, price=PRICE)


def demo_limits(deadline_s: int) -> Limits:
    """The bounds of the run."""
    return Limits(
        turns=12,
        tool_calls=12,
        children=2,
        cost=COST,
        deadline_s=deadline_s,
        approval_ms=deadline_s * 1_000,
        corrective_turns=0,
    )


def demo_script() -> ServerScript:
    """The model's lines. It believes what stands in the order's note, and it forgets that it refunded."""
    submitted = call("submit_refund", {**REFUND, "reason": "arrived broken"})
    again = call("submit_refund", {**REFUND, "reason": "teapot in pieces"})
    done = say(
        "Order A1042 arrived broken, so the rules allow it. It was approved, and 12.50 was paid back once."
    )
    return ServerScript(
        scripts=(
            ServedScript(
                user=QUESTION,
                turns=(
                    call("get_refund_rules", {}),
                    say("Yes, in full, after approval."),
                ),
                usage=USAGE,
            ),
            ServedScript(
                user=TASK,
                last="approval_rejected",
                turns=(say("Order A1042 was not refunded: the person who was asked said no."),) * 12,
                usage=USAGE,
            ),
            ServedScript(
                user=TASK,
                turns=(
                    call("get_order", ORDER),
                    call("send_credit", {"account": "X-77", "amount_cents": 90_000}),
                    call(CLERK, {"input": QUESTION}),
                    call("draft_refund", REFUND),
                    submitted,
                    again,
                    done,
                ),
                usage=USAGE,
            ),
        ),
        latency_ms=LATENCY_MS,
    )
