"""An application on its way to other processes: pickled once, unpickled once in each actor.

What is importable travels by name, what was written in a script or a notebook by value. Nothing of a run travels so:
calls, results and events are bytes of their own formats.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..adapters.port import ModelAdapter
from ..runtime.errors import DeclarationError
from ..runtime.policy import Policy
from ..runtime.toolbox import Toolbox
from .secret_source import SecretSettings

SHIPMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A shipment with data in it (a table, a model's weights) belongs in a file or a service that tools open."""

LOAD_FAILURE_CHARS_MAX: Final = 300


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """Everything of an application that a host or an executor needs."""

    toolbox: Toolbox
    policy: Policy
    adapter: ModelAdapter | None
    permissions_of: Callable[[str, str], frozenset[str]]
    dependencies: Mapping[str, Any]
    groups: Mapping[str, int]
    application: str
    secrets: SecretSettings | None = None


BY_VALUE: Final[set[str]] = set()
"""Names of modules that other processes can't find, such as a file's in a folder that is only named to the command line:
what they define travels by value, as what a script defines does."""

Dumps = Callable[[object], bytes]
"""A pickler that takes functions and classes of scripts by value."""


def pack(shipment: Shipment, dumps: Dumps) -> bytes:
    """The bytes. Raises ``DeclarationError`` that names the part which can't travel, or for more than
    ``SHIPMENT_BYTES_MAX``."""
    try:
        data = dumps(shipment)
    except Exception as error:
        part = _faulty_part(shipment, dumps)
        raise DeclarationError(
            "not_shippable", f"it can't be sent to another process ({type(error).__name__})", path=part
        ) from error
    if len(data) > SHIPMENT_BYTES_MAX:
        raise DeclarationError(
            "shipment_size", f"{len(data)} bytes, at most {SHIPMENT_BYTES_MAX}", path="dependencies"
        )
    return data


HOW_TO_BE_IMPORTABLE: Final = (
    "install the package where Ray's workers run, name its folder in the job's runtime_env (py_modules, env_vars PYTHONPATH), "
    "or define it in the script itself, which travels by value (docs/ray.md, What must be importable or picklable)"
)


def load_failure(error: BaseException) -> str:
    """What kept an application from being unpacked: the exception's class, and which module or name was missing."""
    missing = f" ({error.name})" if isinstance(error, ImportError) and error.name else ""
    return f"{type(error).__name__}{missing}"[:LOAD_FAILURE_CHARS_MAX]


def unpack(data: bytes) -> Shipment:
    """The application again. Raises whatever its modules raise on import."""
    shipment = pickle.loads(data)
    if not isinstance(shipment, Shipment):
        raise DeclarationError("not_a_shipment", "these bytes are no application", path="shipment")
    return shipment


def _faulty_part(shipment: Shipment, dumps: Dumps) -> str:
    named: dict[str, object] = {f"tools.{name}": spec for name, spec in shipment.toolbox.items()}
    named |= {f"dependencies.{name}": value for name, value in shipment.dependencies.items()}
    named |= {"policy": shipment.policy, "model": shipment.adapter, "permissions": shipment.permissions_of}
    named["secrets"] = shipment.secrets
    for name, part in named.items():
        try:
            dumps(part)
        except Exception:
            return name
    return "application"
