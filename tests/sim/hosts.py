"""Hosts of the simulated world: the real ``Host`` with its drivers, over a line, executors and a model of the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boundloop.actors.epochs import Epochs
from boundloop.actors.host import Host
from boundloop.runtime.events import AnyEvent
from boundloop.runtime.state import State

from .clock import Group
from .executors import SimExecutors
from .line import Line
from .model import SimModel
from .shop import APPLICATION, policy, toolbox

if TYPE_CHECKING:
    from .world import World


def no_permissions(tenant: str, principal: str) -> frozenset[str]:
    """Nobody has any, and no tool asks for one."""
    return frozenset()


class SimHost(Host):
    """``alive`` until it crashes; ``group`` has its tasks. Made in its own group's context."""

    def __init__(self, world: World, group: Group, variant: str, revision: str, epochs: Epochs) -> None:
        self.world = world
        self.group = group
        self.alive = True
        self.line = Line(world)
        model = SimModel(world)
        super().__init__(
            self.line,
            toolbox=toolbox(variant),
            policy=policy(revision),
            adapter=model,
            permissions_of=no_permissions,
            application=APPLICATION,
            executors=SimExecutors(world, self, epochs),
            host_id=group.name,
        )
        self.line.host = self
        model.host = self

    def publish(self, run_id: str, state: State, events: tuple[AnyEvent, ...], first_seq: int) -> None:
        self.world.judge.live(run_id, state)
        super().publish(run_id, state, events, first_seq)
