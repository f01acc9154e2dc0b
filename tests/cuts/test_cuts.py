"""Twenty cuts around commits and a killed server; a thousand with ``run.py``."""

from __future__ import annotations

import pytest
from tests.cuts.trial import FORBIDDEN, Trial
from tests.postgres_server import running


@pytest.mark.asyncio
async def test_cuts_around_commits_lose_duplicate_and_halve_nothing() -> None:
    with running() as server:
        trial = Trial(server, seed=1)
        await trial.run(cuts=20, kills=1)
    counts = trial.counts
    assert {name: counts[name] for name in FORBIDDEN} == dict.fromkeys(FORBIDDEN, 0)
    assert sum(count for name, count in counts.items() if name.startswith("cut ")) == 20
    assert counts["server killed"] == 1
    assert counts["found done"] > 0
    assert counts["appended after all"] > 0
    assert counts["acknowledged"] > 20
