"""A stage as data: which tools a part of a run is offered, and the evidence that ends that part. Pinned with the run."""

from __future__ import annotations

import msgspec

from .goal import Evidence


class StageDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``tools``: names; of them the run is offered what its toolbox, its subset and its principal's permissions have.
    ``leave``: all of it, over bound, successful results of calls that were proposed in this stage, moves the run on to the
    next one. Empty for the last stage alone, whose end is the goal's."""

    name: str
    tools: tuple[str, ...]
    leave: tuple[Evidence, ...] = ()
