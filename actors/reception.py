"""What an executor does with a call that arrives, before any of the tool's code runs: admit it, or refuse it with proof.

Refused are: a tool that isn't here or has another definition than the sender's, a validity that is over, an epoch below
the highest seen of the run, and arguments that are no values of the declared types.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..runtime.canonical import CanonicalRefused, decode_canonical
from ..runtime.toolbox import Toolbox
from . import execution
from .context import ToolContext
from .dispatch_wire import WireCall, left_ms
from .epochs import Epochs
from .execution import Report
from .executors import Deliver, Dispatch, keywords_of


class Reception:
    """Of one executor. Not for two threads at once."""

    def __init__(self, toolbox: Toolbox, dependencies: Mapping[str, Any]) -> None:
        self._toolbox = toolbox
        self._dependencies = dependencies
        self._epochs = Epochs()

    def receive(self, call: WireCall, deliver: Deliver) -> Dispatch | Report:
        """The dispatch with its keywords bound and its validity counted from now, or the report of its refusal."""
        spec = self._toolbox.get(call.tool)
        if spec is None:
            return refused(call, "tool_not_here")
        if spec.definition_sha256 != call.definition_sha256:
            return refused(call, "definition_differs")
        valid_ms = left_ms(call)
        if valid_ms <= 0:
            return refused(call, "expired")
        if not self._epochs.admit(call.run_id, call.epoch):
            return refused(call, "old_epoch")
        try:
            arguments = decode_canonical(call.arguments)
        except CanonicalRefused:
            arguments = None
        if not isinstance(arguments, dict):
            return refused(call, "arguments_unbound")
        dispatch = Dispatch(
            spec=spec,
            context=ToolContext(
                run_id=call.run_id,
                call_id=call.call,
                attempt=call.attempt,
                operation_id=call.operation_id,
                tenant=call.tenant,
                principal=call.principal,
                key=call.key,
                valid_ms=valid_ms,
                dependencies=self._dependencies,
            ),
            arguments=arguments,
            epoch=call.epoch,
            valid_ms=valid_ms,
            view_bytes_max=call.view_bytes_max,
            deliver=deliver,
        )
        dispatch.started_s = time.monotonic()
        try:
            dispatch.keywords = keywords_of(dispatch)
        except BaseException:  # noqa: BLE001  a declared type's own code runs here
            return refused(call, "arguments_unbound")
        return dispatch


def refused(call: WireCall, code: str) -> Report:
    return Report(execution.not_dispatched(call.call, call.attempt, code))


def run_here(dispatch: Dispatch) -> Report:
    """Run a sync tool in this thread, to its end. Whatever it raises is its outcome."""
    spec, context = dispatch.spec, dispatch.context
    try:
        value = spec.handler(**dispatch.keywords)
    except BaseException as error:  # noqa: BLE001  an exit or an interrupt of a tool's is its outcome too
        return Report(
            execution.failed(spec, dispatch.call, context.attempt, error, duration_ms=_since(dispatch))
        )
    return execution.succeeded(
        spec,
        dispatch.call,
        context.attempt,
        value,
        view_bytes_max=dispatch.view_bytes_max,
        duration_ms=_since(dispatch),
    )


def overdue(dispatch: Dispatch) -> Report:
    """It runs, and its time is over."""
    return Report(
        execution.timed_out(dispatch.spec, dispatch.call, dispatch.context.attempt, _since(dispatch))
    )


def _since(dispatch: Dispatch) -> int:
    return int((time.monotonic() - dispatch.started_s) * 1_000)
