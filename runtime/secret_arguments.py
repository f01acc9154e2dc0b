"""References to secrets, and which arguments of a tool take them, to which secrets, as they are declared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, cast

from .canonical import JSON
from .errors import DeclarationError

SECRET_NAMES_MAX: Final = 100
"""Names that one argument may refer to."""

REFERENCE_PREFIX: Final = "secret://"
_name = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}").fullmatch


def is_secret_name(name: object) -> bool:
    """A letter or ``_``, then letters, digits and ``_.-``, at most 64 in all."""
    return isinstance(name, str) and _name(name) is not None


def is_reference(value: JSON) -> bool:
    """Whether an argument's value is ``secret://NAME``."""
    return reference_name(value) != ""


def reference_name(value: JSON) -> str:
    """The name that a value refers to; empty for what is no reference."""
    if not isinstance(value, str) or not value.startswith(REFERENCE_PREFIX):
        return ""
    name = value.removeprefix(REFERENCE_PREFIX)
    return name if is_secret_name(name) else ""


def secrets_from(given: object) -> dict[str, tuple[str, ...]]:
    """What is declared as data: a mapping from an argument to the name of its secret, or to several. Raises
    ``DeclarationError``; also for arguments without names, which would open every secret of the application to them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DeclarationError(
            "secret_names",
            'say which secrets each argument may refer to: {"token": ("billing",)}',
            path="secret_arguments",
        )
    members = cast("Mapping[object, object]", given)
    return {str(argument): _names(str(argument), named) for argument, named in members.items()}


def _names(argument: str, given: object) -> tuple[str, ...]:
    several = (given,) if isinstance(given, str) else given
    names: tuple[object, ...] = ()
    if isinstance(several, Iterable) and not isinstance(several, bytes):
        names = tuple(dict.fromkeys(cast("Iterable[object]", several)))
    if not 0 < len(names) <= SECRET_NAMES_MAX or not all(is_secret_name(name) for name in names):
        raise DeclarationError(
            "secret_names",
            f"1 to {SECRET_NAMES_MAX} names of letters, digits and _.-",
            path=f"secret_arguments.{argument}",
        )
    return tuple(sorted(cast("tuple[str, ...]", names)))
