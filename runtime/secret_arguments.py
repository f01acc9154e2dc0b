"""Which arguments of a tool take a reference to a secret, as they are declared, and to which secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from .errors import DeclarationError
from .redaction import is_secret_name

SECRET_NAMES_MAX: Final = 100
"""Names that one argument may refer to."""


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
