"""The protected record of a call: three hashes that tie a result to exactly one request.

Each preimage is a JSON array of strings, integers and nulls in the order written here, encoded without white space
(digests as lower-case hex). A call id copied onto a result proves nothing; these hashes are recomputed from the run's
own state before results go back to a model, so a result that was swapped, dropped, repeated or altered is refused.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from .commands import ChecksDone
from .errors import HistoryRefused
from .events import Revisions
from .state import CallState, State

PRODUCER = "boundloop/1"
"""Revision of the interpreter's own rules, bound into every call."""

_encode = msgspec.json.Encoder().encode


def pinned_revisions(state: State, tool: str) -> Revisions:
    """The revisions that a run was started with."""
    definition = state.tools[tool]
    return Revisions(state.pins.policy_revision, definition.definition_sha256, definition.handler_revision)


def revisions_now(state: State, call: CallState, command: ChecksDone) -> Revisions | None:
    """What a pass over a call was made under; None if it is what the run was started with."""
    now = Revisions(command.policy_revision, command.definition_sha256, command.handler_revision)
    return None if now == pinned_revisions(state, call.tool) else now


def request_sha256(state: State, call: CallState, attempt: int, under: Revisions | None = None) -> bytes:
    """Hash of the protected request: who asks for what, under which definitions, for which attempt. ``under`` has the
    revisions of the dispatch where they aren't the pinned ones."""
    pins = state.pins
    definition = state.tools[call.tool]
    under = under or pinned_revisions(state, call.tool)
    preimage = (
        PRODUCER,
        pins.api_family,
        pins.adapter_revision,
        state.response_id,
        call.provider_call_id,
        state.run_id,
        call.call,
        attempt,
        state.operation_id,
        None if call.key is None else call.key.hex(),
        state.tenant,
        state.principal,
        call.tool,
        under.definition_sha256.hex(),
        definition.effect_version,
        under.handler_revision,
        under.policy_revision,
        call.args_sha256.hex(),
    )
    return sha256(_encode(preimage)).digest()


def binding_sha256(
    request: bytes, response_id: str, call: str, status: str, code: str, result_sha256: bytes | None
) -> bytes:
    """Hash that binds one result to one request (empty if the call was never dispatched)."""
    result = None if result_sha256 is None else result_sha256.hex()
    return sha256(_encode((request.hex(), response_id, call, status, code, result))).digest()


def binding_of(state: State, call: CallState) -> bytes:
    """The binding of a closed call, recomputed from the trusted current state."""
    return binding_sha256(
        call.request_sha256, state.response_id, call.call, call.status, call.code, call.result_sha256
    )


def check_bindings(state: State) -> None:
    """Every call of the turn has exactly one result and that result is its own, else ``HistoryRefused``."""
    for call in state.calls.values():
        if call.phase != "bound":
            raise HistoryRefused("result_missing", f"call {call.call} has no bound result", path=call.call)
        if call.result is not None and sha256(call.result).digest() != call.result_sha256:
            raise HistoryRefused(
                "result_altered", f"result of {call.call} differs from its hash", path=call.call
            )
        if binding_of(state, call) != call.binding_sha256:
            raise HistoryRefused(
                "binding_mismatch", f"result of {call.call} isn't bound to its request", path=call.call
            )
