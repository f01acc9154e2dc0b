"""Tools that the runtime itself brings. No application's code runs for them: a host does what they say."""

from __future__ import annotations

from typing import Final, NoReturn

from .call_signature import CallSignature
from .errors import BugError
from .read_result import READ_RESULT
from .tool_definition import ToolDefinition
from .tool_spec import ToolSpec


def _done_by_the_host(**arguments: object) -> NoReturn:
    raise BugError("built_in", "a built-in tool has no code to run")


def _spec(definition: ToolDefinition) -> ToolSpec:
    signature = CallSignature(
        schema=definition.parameters, decoders={}, takes_ctx=False, needs_self=False, is_async=True
    )
    return ToolSpec(definition=definition, handler=_done_by_the_host, signature=signature)


BUILT_IN: Final = {READ_RESULT.name: _spec(READ_RESULT)}
"""By name. Where the application's own tool of that name is pinned, a run has that one and never this."""
