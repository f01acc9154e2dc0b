"""The contract of a store, for whoever writes another one: ``docs/stores.md``.

``CASES`` for a test framework, ``run_contract`` or ``python -m boundloop.eventstore.testkit MODULE:OPENING`` without one.
"""

from __future__ import annotations

from .contract import CASES, Case, Contract, Opening, Outcome, run_contract
from .log_writer import LogWriter
from .world import World

__all__ = ["CASES", "Case", "Contract", "LogWriter", "Opening", "Outcome", "World", "run_contract"]
