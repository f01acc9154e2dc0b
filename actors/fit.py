"""Whether an application can go on with a run: it has the run's model, its tools or at least their names, and takes out what
must not be stored where the run's beginner did."""

from __future__ import annotations

from ..adapters.port import ModelAdapter
from ..runtime.definitions import DefinitionChange, changes, contract_kept
from ..runtime.errors import ConflictError
from ..runtime.pins import Pins
from ..runtime.state import State
from ..runtime.tool_definition import ToolDefinition
from ..runtime.toolbox import Toolbox
from .secret_source import Secrets


class Fit:
    """One application, as runs are held against it. ``application`` is its reference, empty if it has none."""

    __slots__ = ("_adapter", "_application", "_redacts", "_toolbox")

    def __init__(
        self,
        application: str,
        toolbox: Toolbox,
        adapter: ModelAdapter | None,
        secrets: Secrets | None = None,
    ) -> None:
        self._application = application
        self._toolbox = toolbox
        self._redacts = secrets is not None and secrets.settings.redaction is not None
        self._adapter = adapter

    def misfit(self, application: str, pins: Pins) -> str:
        """Why a run that ``application`` started under ``pins`` is left alone; empty if it is taken up.

        A run of this very application is taken up whatever became of its tools, and so is one whose tools are all here
        by name: a call of a tool with another contract stops it, ``definition_changed``, which somebody can lift. A run that
        was started under a redaction is taken up only where there is one, of whatever revision: without it what it must not
        store would be in its log for good.
        """
        adapter = self._adapter
        if adapter is None or (adapter.family, adapter.model) != (pins.api_family, pins.model):
            return f"the run needs the model {pins.api_family}:{pins.model}"
        if pins.redaction and not self._redacts:
            return f"the run needs a redaction, it was started under {pins.redaction}: give Runtime(redact=…)"
        if application and application == self._application:
            return ""
        for tool in pins.tools:
            spec = self._toolbox.get(tool.name)
            if spec is None:
                return f"the run needs the tool {tool.name}"
            if application and self._application and not contract_kept(tool, spec.definition):
                return (
                    f"the tool {tool.name} has another contract than the run's, which {application} started"
                )
        return ""


def definition_changes(state: State, toolbox: Toolbox) -> tuple[DefinitionChange, ...]:
    """What the application of this toolbox changes of a run's tools when it takes the run up."""

    def present(name: str) -> ToolDefinition | None:
        spec = toolbox.get(name)
        return None if spec is None else spec.definition

    return changes(state.tools, present)


def other_application(run_id: str, why: str) -> ConflictError:
    """What whoever waits for such a run is told."""
    return ConflictError("other_application", why, path=run_id)
