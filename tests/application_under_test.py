"""Applications that ``boundloop run`` is tried with."""

from __future__ import annotations

from typing import Any

import msgspec

from boundloop.actors.application import Application
from boundloop.adapters.script import call, refused, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.guardrails import GuardrailDecision, GuardrailQuestion, Guardrails
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.policy import Policy
from boundloop.runtime.tool_spec import tool

HOSTILE = "\x1b[2J\u202eowned\u200b"


@tool(risk="read")
def get_order(order_id: str) -> dict[str, Any]:
    "Look up one order."
    return {"order_id": order_id, "state": f"shipped{HOSTILE}"}


@tool(risk="irreversible", key=("order_id",))
def refund(order_id: str, cents: int) -> dict[str, Any]:
    "Pay one order back."
    return {"order_id": order_id, "paid": cents}


LOOK = call("get_order", {"order_id": "A1042"})
PAY = call("refund", {"order_id": "A1042", "cents": 500})


def application(*script: Any, **given: Any) -> Application:
    limits = given.pop("limits", None) or Limits(cost=WAIVED)
    return Application(model=ScriptedModel(list(script)), tools=[get_order, refund], limits=limits, **given)


def reads() -> Application:
    return application(LOOK, say(f"Shipped.{HOSTILE}\nBye."), input="Where is order A1042?")


def pays() -> Application:
    return application(LOOK, PAY, say("Paid back."), input="Refund order A1042.")


def loops() -> Application:
    return application(LOOK, LOOK, LOOK, limits=Limits(cost=WAIVED, turns=1), input="Look.")


def refuses() -> Application:
    return application(refused("No."), input="Do harm.")


def judged() -> Application:
    def no_secrets(asked: GuardrailQuestion) -> GuardrailDecision:
        return GuardrailDecision(answer="deny" if "SECRET" in asked.text else "allow", code="secret")

    guardrails = Guardrails(answer=no_secrets, revision="1")
    return application(
        say("The SECRET is 7."),
        say("I can't say."),
        input="Which one?",
        policy=Policy(guardrails=guardrails),
    )


def asks() -> Application:
    return application(
        call("ask_user", {"question": "Which order?"}), say("A1042."), input="Where is it?", questions=True
    )


def hangs() -> Application:
    return application(
        LOOK, msgspec.structs.replace(say("At last."), late_ms=3_600_000), input="Where is order A1042?"
    )


def breaks() -> Application:
    raise RuntimeError("the application's own fault")


no_application = 42
