"""``python -m boundloop.eventstore.testkit MODULE:OPENING``: a line a case; exits 1 if any failed."""

from __future__ import annotations

import importlib
import sys

from .contract import CASES, run_contract

if __name__ == "__main__":
    module, _, name = (sys.argv[1:] or [""])[0].partition(":")
    if not module or not name:
        sys.exit("usage: python -m boundloop.eventstore.testkit MODULE:OPENING")
    sys.path.insert(0, "")
    outcomes = run_contract(getattr(importlib.import_module(module), name))
    for outcome in outcomes:
        print(f"{'FAILED' if outcome.failure else 'ok'}  {outcome.case}")
        if outcome.failure:
            print("    " + outcome.failure.rstrip().replace("\n", "\n    "))
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    print(f"{len(CASES)} cases, {failed} failed")
    sys.exit(1 if failed else 0)
