"""core: one run through the pure core alone, no store, no event loop, no encoding.

A step is what a driver asks of the core for one tool step: decide and fold every observation, the pure rungs over the
raw arguments (strict JSON, schema, canonical bytes, hash), the pending orders and the run's index row.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from bench.measure import Facts, Figures, repeated
from bench.workload import LIMITS, model_for, tool_for

from boundloop.runtime.commands import Admitted, Advance, ChecksDone, Executed, ModelReplied
from boundloop.runtime.decide import decide
from boundloop.runtime.decision import Decision
from boundloop.runtime.events import AnyEvent
from boundloop.runtime.fold import begin, evolve, fold
from boundloop.runtime.index import run_index
from boundloop.runtime.ladder import admit
from boundloop.runtime.model import ModelTurn, ProposedCall, Usage
from boundloop.runtime.orders import Execute, RequestModel, RunChecks, pending_orders
from boundloop.runtime.pins import Pins
from boundloop.runtime.prices import FREE
from boundloop.runtime.start import NewRunSpec, start_run
from boundloop.runtime.tool_spec import tool_spec

_ADVANCE: Final = Advance()
_USAGE: Final = Usage(100, 20)
Log = list[tuple[AnyEvent, int]]


class CoreRun:
    """One run's state, its log, and the observations that a host would make."""

    def __init__(self) -> None:
        spec = tool_spec(tool_for("read", "inline"))
        self.pins = Pins(
            producer="bench",
            model=model_for(0).model,
            api_family="scripted",
            adapter_revision="1",
            template_revision="1",
            system="",
            tools=(spec.definition,),
            permissions=(),
            policy_revision="default-1",
            separate_approver=False,
            limits=LIMITS.values,
            goal=None,
            price=FREE,
            price_revision="adapter",
        )
        started, self.pins_sha256, _ = start_run(
            NewRunSpec(run_id="r", input="go", operation_id="o"), self.pins
        )
        self.definition_sha256 = spec.definition_sha256
        self.now_ms = 1_000
        self.state = begin(started, self.pins, self.now_ms)
        self.log: Log = [(started, self.now_ms)]
        self.appends = 0

    def advance(self) -> None:
        """All that is due."""
        while True:
            decision = decide(self.state, _ADVANCE, self.now_ms)
            if not decision.events:
                return
            self._apply(decision)

    def step(self, number: int, admitted: Admitted | None = None) -> Admitted:
        """The model's proposal, its checks, its execution and the result bound. ``admitted`` given: the pure rungs
        are left out. Returns what the pure rungs gave."""
        self.now_ms += 1
        (request,) = pending_orders(self.state, self.now_ms)
        assert type(request) is RequestModel
        reply = ModelTurn(
            finish="calls",
            calls=(ProposedCall("add", b'{"a":%d,"b":1}' % number, f"call_{number}"),),
            usage=_USAGE,
            response_id=f"resp_{number}",
        )
        self._apply(
            decide(
                self.state,
                ModelReplied(turn=request.turn, attempt=request.attempt, reply=reply),
                self.now_ms,
            )
        )
        self.advance()
        (check,) = pending_orders(self.state, self.now_ms)
        assert type(check) is RunChecks
        if admitted is None:
            outcome = admit(self.state, self.state.calls[check.call])
            assert isinstance(outcome, tuple)
            admitted = outcome[0]
        done = ChecksDone(
            call=check.call,
            recheck=False,
            admitted=admitted,
            definition_sha256=self.definition_sha256,
            contract_kept=True,
            policy_revision="default-1",
        )
        self._apply(decide(self.state, done, self.now_ms))
        self.advance()
        run_index(self.state)
        (execute,) = pending_orders(self.state, self.now_ms)
        assert type(execute) is Execute
        self._apply(
            decide(
                self.state,
                Executed(
                    call=execute.call,
                    attempt=execute.attempt,
                    outcome="succeeded",
                    result=b"%d" % (number + 1),
                    duration_ms=1,
                ),
                self.now_ms,
            )
        )
        self.advance()
        run_index(self.state)
        return admitted

    def _apply(self, decision: Decision) -> None:
        for event in decision.events:
            evolve(self.state, event, self.now_ms)
            self.log.append((event, self.now_ms))


def core_figures(steps: int, repeat: int) -> Facts:
    """Microseconds a step with and without the pure rungs, and folded events a second."""
    _measured(3)
    return {"workload": "core", "steps": steps, **repeated(lambda _: _measured(steps), repeat)}


class Played(NamedTuple):
    """A run of so many steps, what a step cost in microseconds, and what its pure rungs gave."""

    run: CoreRun
    wall_us: float
    cpu_us: float
    admitted: list[Admitted]


def played(steps: int, given: list[Admitted] | None = None) -> Played:
    """Drive one run; with ``given`` (of an equal run) the pure rungs are left out."""
    run = CoreRun()
    run.advance()
    wall, cpu = time.perf_counter(), time.process_time()
    admitted = [run.step(number, None if given is None else given[number]) for number in range(steps)]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Played(run, wall / steps * 1e6, cpu / steps * 1e6, admitted)


def _measured(steps: int) -> Figures:
    whole = played(steps)
    without_rungs = played(steps, whole.admitted)
    log = whole.run.log
    start = time.perf_counter()
    fold(log, {whole.run.pins_sha256: whole.run.pins})
    fold_s = time.perf_counter() - start
    return {
        "us_per_step": whole.wall_us,
        "cpu_us_per_step": whole.cpu_us,
        "cpu_us_per_step_without_rungs": without_rungs.cpu_us,
        "steps_per_s": 1e6 / whole.wall_us,
        "events_per_step": len(log) / steps,
        "fold_events_per_s": len(log) / fold_s,
    }
