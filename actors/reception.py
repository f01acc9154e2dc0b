"""What an executor does with what arrives. A call is admitted before any of the tool's code runs, or refused with proof;
a question is answered, with an unknown where it can't be.

Refused are: a tool that isn't here or has another definition than the sender's, a validity that is over, an epoch below
the highest seen of the run, and arguments that are no values of the declared types.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..runtime.built_in import BUILT_IN
from ..runtime.canonical import CanonicalRefused, decode_canonical
from ..runtime.events import RungVerdict
from ..runtime.policy import Policy
from ..runtime.tool_spec import ToolSpec
from ..runtime.toolbox import Toolbox
from . import execution, query
from .context import ToolContext
from .dispatch_wire import QueryAsked, WireCall, left_ms
from .epochs import Epochs
from .execution import Report
from .executors import Deliver, Dispatch, bind
from .guarding import GuardAsked, judged
from .query import FarSideAnswer
from .rungs import Permissions, Rungs, RungsAnswered, RungsAsked
from .secret_source import Secrets


class Reception:
    """Of one executor. Not for two threads at once."""

    def __init__(
        self, toolbox: Toolbox, dependencies: Mapping[str, Any], secrets: Secrets | None = None
    ) -> None:
        self._toolbox = toolbox
        self._secrets = secrets
        self._dependencies = dependencies
        self._epochs = Epochs()

    def receive(self, call: WireCall, deliver: Deliver, lay_ms: int = 0) -> Dispatch | Report:
        """The dispatch with its keywords bound and its validity counted from now, or the report of its refusal. Its references
        are left to whoever runs it: what they stand for is asked for once the call is known to be at work here, so that it can
        be stopped meanwhile, and may take longer than the call is valid."""
        spec = self._toolbox.get(call.tool)
        if spec is None:
            return refused(call, "tool_not_here")
        if spec.definition_sha256 != call.definition_sha256:
            return refused(call, "definition_differs")
        valid_ms = left_ms(call, lay_ms)
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
                as_of=call.as_of,
                same_version=call.same_version,
                resource_version=call.resource_version,
            ),
            arguments=arguments,
            epoch=call.epoch,
            valid_ms=valid_ms,
            view_bytes_max=call.view_bytes_max,
            deliver=deliver,
        )
        dispatch.started_s = time.monotonic()
        refusal = bind(dispatch)
        if refusal:
            return refused(call, refusal)
        dispatch.secrets = self._secrets
        return dispatch


class Inquiries:
    """What one executor is asked beside calls. For any thread; nothing raised goes further."""

    def __init__(
        self,
        toolbox: Toolbox,
        policy: Policy,
        permissions_of: Permissions,
        secrets: Secrets | None = None,
    ) -> None:
        self._toolbox = toolbox
        self._policy = policy
        self._permissions_of = permissions_of
        self._secrets = secrets

    def rungs(self, asked: RungsAsked) -> RungsAnswered:
        """Run the application's rungs in this thread, to their end."""
        spec = self._toolbox.get(asked.tool)
        if spec is None or spec.definition_sha256 != asked.definition_sha256:
            # The runtime's own, which it is also where the application has another tool of that name.
            built_in = BUILT_IN.get(asked.tool)
            if built_in is not None and built_in.definition_sha256 == asked.definition_sha256:
                spec = built_in
        if spec is None or spec.definition_sha256 != asked.definition_sha256:
            code = "tool_not_here" if spec is None else "definition_differs"
            return RungsAnswered(verdicts=(RungVerdict("check", "unknown", code, self._policy.revision),))
        rungs = Rungs(asked, spec, self._policy, self._permissions_of, self._secrets)
        try:
            return rungs.run()
        except BaseException:  # noqa: BLE001  not the application's: its own are verdicts
            return rungs.unanswered("check_failed")

    def guard(self, asked: GuardAsked) -> RungVerdict:
        """Ask the guardrail in this thread."""
        return judged(self._policy, asked, secrets=self._secrets)

    def query(self, asked: QueryAsked) -> FarSideAnswer:
        """Ask the far side in this thread."""
        spec = self._queried(asked)
        if isinstance(spec, FarSideAnswer):
            return spec
        try:
            return query.ask_in_this_thread(spec, asked.key, self._secrets, asked.sent)
        except BaseException:  # noqa: BLE001  what encodes a result is the application's types' code too
            return query.unknown("query_failed")

    async def query_on_loop(self, asked: QueryAsked) -> FarSideAnswer:
        """Ask the far side on this loop, by a coroutine."""
        spec = self._queried(asked)
        if isinstance(spec, FarSideAnswer):
            return spec
        return await query.ask_far_side(spec, asked.key, self._secrets, asked.sent)

    def _queried(self, asked: QueryAsked) -> ToolSpec | FarSideAnswer:
        spec = self._toolbox.get(asked.tool)
        if spec is None:
            return query.unknown("tool_not_here")
        return (
            spec if spec.definition_sha256 == asked.definition_sha256 else query.unknown("definition_differs")
        )


def refused(call: WireCall, code: str) -> Report:
    return Report(execution.not_dispatched(call.call, call.attempt, code))


def run_here(dispatch: Dispatch) -> Report:
    """Run a sync tool in this thread, to its end, unless its references can't be resolved within its validity and before it is
    stopped. Whatever it raises is its outcome."""
    spec, context = dispatch.spec, dispatch.context
    if dispatch.has_references:
        refusal = bind(dispatch) or _too_late(dispatch)
        if refusal:
            return Report(execution.not_dispatched(dispatch.call, context.attempt, refusal))
    try:
        value = spec.handler(**dispatch.keywords)
    except BaseException as error:  # noqa: BLE001  an exit or an interrupt of a tool's is its outcome too
        failure = execution.failure(
            spec,
            dispatch.call,
            context.attempt,
            error,
            duration_ms=_since(dispatch),
            redactor=dispatch.redactor,
        )
        return dispatch.with_cost(failure)
    return dispatch.with_cost(
        execution.succeeded(
            spec,
            dispatch.call,
            context.attempt,
            value,
            view_bytes_max=dispatch.view_bytes_max,
            duration_ms=_since(dispatch),
            redactor=dispatch.redactor,
        )
    )


def overdue(dispatch: Dispatch) -> Report:
    """It runs, and its time is over."""
    late = execution.timed_out(dispatch.spec, dispatch.call, dispatch.context.attempt, _since(dispatch))
    return dispatch.with_cost(Report(late))


def _too_late(dispatch: Dispatch) -> str:
    """The code of the refusal of a call whose time is over, or that was stopped, before its tool's code ran."""
    if dispatch.context.cancel.is_set:
        return "cancelled"
    return "expired" if _since(dispatch) >= dispatch.valid_ms else ""


def _since(dispatch: Dispatch) -> int:
    return int((time.monotonic() - dispatch.started_s) * 1_000)
