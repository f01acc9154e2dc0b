"""The demo's shop with a fault: it forgets keys, so a draft that is asked for again is made again."""

from __future__ import annotations

import sys
from typing import Any

from boundloop.actors.cli_demo import perform
from boundloop.actors.cli_output import Output
from boundloop.actors.demo import Plan
from boundloop.actors.demo_far_side import Shop, serve


class ForgetfulShop(Shop):
    def effect(self, kind: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        if kind == "drafts":
            self.results.pop(body["key"], None)
        return super().effect(kind, operation, body)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve(ForgetfulShop())
    else:
        plan = Plan(store="sqlite:///forgetful.db", shop_command=(sys.executable, __file__, "serve"))
        sys.exit(perform(plan, Output("table", at_once=True)))
