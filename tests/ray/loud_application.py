"""An application whose every part prints a secret, importable by the actors that it is sent to."""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

from boundloop.adapters.script import ScriptedTurn, call, say
from boundloop.runtime.model import ModelInput
from boundloop.runtime.tool_spec import tool

CANARY: Final = "canary-51c9-must-not-be-seen"
OURS: Final = "a-record-of-our-own"


def shout(who: str) -> None:
    """By each way out of a process that its own code has."""
    print(CANARY, who, flush=True)
    print(CANARY, who, file=sys.stderr, flush=True)
    os.write(1, CANARY.encode())
    os.write(2, CANARY.encode())
    logging.getLogger("an.application").error("%s %s", CANARY, who)


@tool(risk="read", inline=True)
async def glance(number: int) -> int:
    """A tool in the host's own loop."""
    shout("glance")
    logging.getLogger("boundloop.test").warning(OURS)
    return number


def permissions(tenant: str, principal: str) -> frozenset[str]:
    """What the host asks before each call."""
    shout("permissions")
    return frozenset()


def answer(request: ModelInput) -> ScriptedTurn:
    """The model's adapter."""
    shout("adapter")
    return call("glance", {"number": 1}) if request.turn == 1 else say("Done.")
