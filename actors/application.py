"""An application as one object, so that a command line can run it: ``boundloop run MODULE:SPEC``.

``SPEC`` names an ``Application``, or a function without parameters that makes one. The text ``MODULE:SPEC`` is recorded
in each run that is started so, and says where the run's code is.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..adapters.port import ModelAdapter
from ..runtime.errors import BoundloopError, CallerError
from ..runtime.goal import Goal
from ..runtime.limits import Limits
from ..runtime.policy import Policy
from ..runtime.prices import PriceTable
from ..runtime.read_once import all_read_once
from ..runtime.redaction import Redaction
from ..runtime.stage_spec import Stage
from .pool_spec import Pool
from .run_options import ApplicationOptions, InputTrust, OnStop, Permissions, Tools
from .secret_source import SecretSource
from .shipping import BY_VALUE

if TYPE_CHECKING:
    from ..runtime.state import State
    from .client import Runtime


class ApplicationError(CallerError):
    """``MODULE:SPEC`` can't be loaded, or is no ``Application``."""


@dataclass(frozen=True, kw_only=True)
class Application:
    """Everything that a run needs beside its input: the keywords of ``Runtime`` and of ``Runtime.start``, each of the same
    meaning, but for three names. ``offered`` is what ``start`` calls ``tools``, the subset that runs are offered;
    ``reference`` is what ``Runtime`` calls ``application``; ``input`` and ``store`` are used where the command line gives none.

    No fields are ``take_over``, ``ray``, ``name``, ``clock`` and ``loop``, which say how one process hosts the application
    (the first three are given to ``runtime``), and what each run has of its own: ``run_id``, ``operation_id``, ``as_of``,
    ``trace`` and ``given``.
    """

    model: ModelAdapter | str
    limits: Limits
    tools: Tools = ()
    input: str = ""
    store: str = field(default="", repr=False)  # it may hold a password
    goal: Goal | str | None = None
    stages: Iterable[Stage] | None = None
    offered: Iterable[str] | None = None
    system: str = ""
    agent: str = "agent"
    on_stop: OnStop = "suspend"
    hosted: Iterable[str] = ()
    input_trust: InputTrust = "trusted"
    questions: bool = False
    policy: Policy | None = None
    prices: PriceTable | None = None
    tenant: str = "default"
    principal: str = "local"
    permissions: Permissions = frozenset()
    groups: Mapping[str, int] | None = None
    dependencies: Mapping[str, Any] | None = None
    redact: Redaction | None = None
    secrets: SecretSource | None = field(default=None, repr=False)
    pools: Mapping[str, Pool] | None = None
    run_actors: int = 8
    warm_actors: int = 1
    dense_actors: int = 0
    reference: str = field(default="")

    def __post_init__(self) -> None:
        all_read_once(self, "tools", "stages", "offered", "hosted", "permissions")

    def runtime(
        self,
        store: str,
        *,
        take_over: bool = False,
        reference: str = "",
        ray: str | None = None,
        name: str = "boundloop",
        run_actors: int | None = None,
        warm_actors: int | None = None,
        dense_actors: int | None = None,
    ) -> Runtime:
        """A ``Runtime`` of this application on ``store``; counts that are None are the application's. Raises as ``Runtime``."""
        from .client import Runtime

        return Runtime(
            store=store,
            model=self.model,
            tools=self.tools,
            policy=self.policy,
            prices=self.prices,
            tenant=self.tenant,
            principal=self.principal,
            permissions=self.permissions,
            groups=self.groups,
            dependencies=self.dependencies,
            redact=self.redact,
            secrets=self.secrets,
            application=reference or self.reference,
            take_over=take_over,
            ray=ray,
            name=name,
            run_actors=self.run_actors if run_actors is None else run_actors,
            warm_actors=self.warm_actors if warm_actors is None else warm_actors,
            dense_actors=self.dense_actors if dense_actors is None else dense_actors,
            pools=self.pools,
            questions=self.questions,
        )

    def start_options(self) -> ApplicationOptions:
        """The keywords of ``Runtime.start``, but for those that each run has of its own."""
        return {
            "limits": self.limits,
            "goal": self.goal,
            "stages": self.stages,
            "tools": self.offered,
            "system": self.system,
            "agent": self.agent,
            "on_stop": self.on_stop,
            "hosted": self.hosted,
            "input_trust": self.input_trust,
        }


def load_application(reference: str) -> Application:
    """The application that ``MODULE:SPEC`` names. MODULE is an import path, looked up from the current folder first, or
    a file that ends in ``.py``. Raises ``ApplicationError``, or the error of a wrong declaration in it."""
    module_name, _, attribute = reference.rpartition(":")
    if not module_name or not attribute:
        raise ApplicationError("application_reference", "write MODULE:SPEC or FILE.py:SPEC", path=reference)
    found: Any = _guarded(reference, lambda: _module(module_name))
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ApplicationError("application_missing", f"it holds no {name}", path=reference)
        found = getattr(found, name)
    if callable(found) and not isinstance(found, Application):
        found = _guarded(reference, found)
    if not isinstance(found, Application):
        kind = type(found).__name__
        raise ApplicationError(
            "application_kind", f"a {kind} is no boundloop.actors.application.Application", path=reference
        )
    return found


def _guarded(reference: str, load: Callable[[], Any]) -> Any:
    """Run the application's own code; what it raises is the application's."""
    try:
        return load()
    except BoundloopError:
        raise
    except Exception as error:
        raise ApplicationError(
            "application_code", f"{type(error).__name__}: {error}", path=reference
        ) from error


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return importlib.import_module(name)
    path = os.path.abspath(name)
    folder, file = os.path.split(path)
    spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), path)
    if not os.path.isfile(path) or spec is None or spec.loader is None:
        raise ApplicationError("application_file", "there is no such file", path=path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # annotations are resolved through it
    if folder != os.getcwd():
        BY_VALUE.add(spec.name)
    spec.loader.exec_module(module)
    return module


def misfit(runtime: Runtime, state: State) -> str:
    """Why this application's host leaves the run alone; empty if it takes it."""
    return runtime.fit.misfit(state.application, state.pins)
