"""How many random histories the long laws are tried on: few in every run of the suite, as many as one likes by hand."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """``usual``, or what ``BOUNDLOOP_EXAMPLES`` says, such as 20000 for a night."""
    return int(os.environ.get("BOUNDLOOP_EXAMPLES", str(usual)))
