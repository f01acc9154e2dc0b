"""Where a simulated host's tools run: the real handlers, at the time and with the mishaps that the world has for them.

A dispatch arrives at its far side after a while, and its report arrives after another. What is on its way goes on when
its host dies; nobody hears of it then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from boundloop.actors import execution
from boundloop.actors.eager import Finished, first_step
from boundloop.actors.epochs import Epochs
from boundloop.actors.execution import Report
from boundloop.actors.executors import Dispatch, keywords_of
from boundloop.actors.guarding import GuardAsked, judged
from boundloop.actors.query import FarSideAnswer, Sent, ask_far_side, unknown
from boundloop.actors.rungs import Rungs, RungsAnswered
from boundloop.runtime.events import RungVerdict
from boundloop.runtime.limits import MARGIN_MS
from boundloop.runtime.policy import Policy
from boundloop.runtime.tool_spec import ToolSpec

from .clock import passed
from .plan import Strike
from .shop import ONE_A_KEY

if TYPE_CHECKING:
    from .hosts import SimHost
    from .world import World

SOON_MS_MAX: Final = 40
_MODES: Final = {
    "tool_raises": ("tool_raises_before", "tool_raises_after"),
    "tool_refuses": ("tool_refuses", "tool_refuses"),
    "output_invalid": ("output_invalid", "output_invalid"),
    "approved_moved_on": ("moved_on", "moved_on"),
}


class SimExecutors:
    """``ToolExecutors`` of one host; ``epochs`` may be shared with others."""

    dependencies: Mapping[str, Any] = {}

    def __init__(self, world: World, host: SimHost, epochs: Epochs) -> None:
        self._world = world
        self._host = host
        self._epochs = epochs

    def start(self, dispatch: Dispatch) -> Callable[[], None] | None:
        if not self._host.alive:
            return None
        if not self._epochs.admit(dispatch.run_id, dispatch.epoch):
            dispatch.refuse("old_epoch")
            return None
        if dispatch.valid_ms <= 0:
            dispatch.refuse("expired")
            return None
        try:
            dispatch.keywords = keywords_of(dispatch)
        except Exception:  # noqa: BLE001  as the product's executors do
            dispatch.refuse("arguments_unbound")
            return None
        return Attempt(self._world, self._host, dispatch).begin()

    async def checked(self, rungs: Rungs) -> RungsAnswered:
        await passed(self._world.latency_s())
        return rungs.run()

    async def guarded(self, asked: GuardAsked, policy: Policy, pool: str, patience_s: float) -> RungVerdict:
        await passed(self._world.latency_s())
        return judged(policy, asked)

    async def queried(
        self, spec: ToolSpec | None, key: bytes | None, sent: Sent | None = None
    ) -> FarSideAnswer:
        world = self._world
        strike = world.struck("query")
        if key is not None:
            world.judge.promises.query_sent(key.hex())
        await passed(world.latency_s())
        if strike is not None:
            world.triples.at_moment(strike.kind)
            if strike.kind == "crash_at_query":
                world.crash(self._host)
                await asyncio.get_running_loop().create_future()
            if strike.kind == "query_late":
                answer = await ask_far_side(spec, key)
                await passed(2 + strike.size / 120)
                return answer
            return unknown("timeout")
        return await ask_far_side(spec, key)

    def lingers(self, run_id: str) -> bool:
        return False

    async def close(self) -> None:
        """What is on its way goes on."""


class Attempt:
    """One dispatch from here to its far side and back."""

    def __init__(self, world: World, host: SimHost, dispatch: Dispatch) -> None:
        self._world = world
        self._host = host
        self._dispatch = dispatch
        self._chance = world.dice("dispatch", dispatch.run_id, dispatch.call, dispatch.context.attempt)
        self._strike: Strike | None = None
        self._arrived = False
        self._reported = False
        self._cancelled = False
        self._mode = ""
        self._void = False
        self._started_ms = world.loop_ms()

    def begin(self) -> Callable[[], None] | None:
        world = self._world
        strike = world.struck("dispatch")
        spec = self._dispatch.spec
        if strike is None and spec.version_of is not None:
            strike = world.struck("approved")
        if strike is None and spec.query is not None:
            strike = world.struck("queryable")
        self._strike = strike
        if strike is not None:
            world.triples.at_run(strike.kind, self._dispatch.run_id)
            return self._begin_struck(strike)
        if self._chance.random() < 0.55:
            self._deliver(self._outcome())
            return None
        self._later(self._chance.randint(1, SOON_MS_MAX), self._arrive_and_report)
        return self._cancel

    def _begin_struck(self, strike: Strike) -> Callable[[], None] | None:
        """``size``: whether it strikes before or after the effect, or by how much something is late."""
        valid_ms, late = self._dispatch.valid_ms, strike.size
        after = late % 2 == 1
        match strike.kind:
            case "crash_before_dispatch":
                self._world.crash(self._host)
                return None
            case "crash_after_dispatch":
                self._later(late % 50, self._arrive)
                self._world.crash(self._host)
                return None
            case "crash_at_report":
                self._later(late % 50, self._arrive_and_crash)
            case "report_lost":
                self._later(late % 50, self._arrive)
            case "report_late":
                self._later(late % 50, self._arrive)
                self._later(valid_ms + late * 8, self._report_success_late)
                self._later(valid_ms, self._report_timeout)
            case "report_twice":
                self._later(late % 50, self._arrive_and_report_twice)
            case "report_reordered":
                self._later(min(valid_ms - 1, 300 + late), self._arrive_and_report)
            case "executed_but_timed_out":
                self._later(late % 50, self._arrive)
                self._later(valid_ms, self._report_timeout)
            case "word_after_absent" if self._dispatch.spec.definition.name in ONE_A_KEY:
                self._world.far_side.hidden.add(self._dispatch.context.key)
                self._later(late % 50, self._arrive)
                self._later(valid_ms, self._report_timeout)
                place = (self._dispatch.run_id, self._dispatch.call)
                self._world.after_absent[place] = lambda: self._later(late % 40, self._report_success_late)
            case "queryable_unheard" | "word_after_absent":
                self._later(late % 50, self._arrive)
                self._later(valid_ms, self._report_timeout)
            case "arrives_late" | "queryable_late":
                self._later(valid_ms + late * (MARGIN_MS - 500) // 1_000, self._arrive)
                self._later(valid_ms, self._report_timeout)
            case "request_lost" | "queryable_lost":
                self._later(valid_ms, self._report_timeout)
            case "executor_lost":
                if after:
                    self._arrive()
                self._later(late % 100, self._report_lost)
            case kind:
                self._mode = _MODES[kind][after]
                self._later(late % 50, self._arrive_and_report)
        return self._cancel

    # --- steps -------------------------------------------------------------------------------------------------------

    def _later(self, ms: float, step: Callable[[], None]) -> None:
        self._world.in_flight += 1
        self._world.loop.call_later(ms / 1_000, self._step, step, context=self._world.context)

    def _step(self, step: Callable[[], None]) -> None:
        self._world.in_flight -= 1
        step()

    def _outcome(self) -> Report:
        """Let the tool's code run, at its far side too."""
        self._arrived = True
        dispatch, far_side = self._dispatch, self._world.far_side
        spec, attempt = dispatch.spec, dispatch.context.attempt
        duration = self._world.loop_ms() - self._started_ms
        far_side.mode = self._mode
        try:
            step = first_step(spec.handler(**dispatch.keywords))
        except Exception as error:  # noqa: BLE001  as the product's executors do
            # What the tool raised is for an operator's logger, who isn't here.
            return Report(execution.failed(spec, dispatch.call, attempt, error, duration_ms=duration))
        finally:
            far_side.mode = ""
        assert isinstance(step, Finished)
        return execution.succeeded(
            spec,
            dispatch.call,
            attempt,
            step.value,
            view_bytes_max=dispatch.view_bytes_max,
            duration_ms=duration,
        )

    def _arrive(self) -> None:
        if not self._arrived and not self._void:
            self._outcome()

    def _arrive_and_report(self) -> None:
        if not self._reported and not self._void:
            self._deliver(self._outcome())

    def _arrive_and_report_twice(self) -> None:
        if not self._reported:
            report = self._outcome()
            self._deliver(report)
            self._reported = False
            self._deliver(report)

    def _arrive_and_crash(self) -> None:
        report = self._outcome()
        if self._strike is not None and self._strike.size % 2 and self._host.alive:
            self._deliver(report)
        self._world.crash(self._host)

    def _report_timeout(self) -> None:
        dispatch = self._dispatch
        report = execution.timed_out(
            dispatch.spec, dispatch.call, dispatch.context.attempt, dispatch.valid_ms
        )
        self._deliver(Report(report))

    def _report_success_late(self) -> None:
        """A late report is handed in beside the one that counted."""
        dispatch = self._dispatch
        self._reported = False
        key = dispatch.context.key
        value = self._world.far_side.happened(key) if key else {"what": "late", "of": "read"}
        if value is not None:
            self._deliver(
                execution.succeeded(
                    dispatch.spec,
                    dispatch.call,
                    dispatch.context.attempt,
                    value,
                    view_bytes_max=dispatch.view_bytes_max,
                    duration_ms=dispatch.valid_ms,
                )
            )

    def _report_lost(self) -> None:
        dispatch = self._dispatch
        self._deliver(Report(execution.lost(dispatch.spec, dispatch.call, dispatch.context.attempt, 1)))

    def _deliver(self, report: Report) -> None:
        if self._reported or not self._host.alive:
            return
        self._reported = True
        self._host.group.context.run(self._dispatch.deliver, report)

    def _cancel(self) -> None:
        """Asked to stop: what has not been sent never is, what was is unknown."""
        if self._cancelled or self._reported:
            return
        self._cancelled = True
        dispatch = self._dispatch
        attempt = dispatch.context.attempt
        if self._arrived or self._strike is not None:
            report = execution.cancelled(dispatch.spec, dispatch.call, attempt, 1)
        else:
            self._void = True
            report = execution.not_dispatched(dispatch.call, attempt, "cancelled")
        self._later(1, lambda: self._deliver(Report(report)))
