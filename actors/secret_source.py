"""An application's secrets in one process: what is taken out of all that enters here, and what a reference stands for.

A reference, ``secret://NAME`` in an argument that its tool declared (``secret_arguments``), is all that a model, the log, a
preview and the idempotency key ever have. It becomes the value right before the tool's function is called, in the process
that calls it. What was resolved in a process is taken out of everything that this process hands on from then on, beside
what ``Redaction`` declares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, cast

import msgspec

from ..adapters.port import CallPreparing, Progress, TextDelta
from ..eventstore.port import Switch
from ..runtime.canonical import JSON, canonical_bytes, decode_canonical
from ..runtime.commands import Cancel, OutsideCommand, RecordFact, ResolveCall
from ..runtime.errors import CallerError, DeclarationError
from ..runtime.redaction import (
    NOTHING,
    VALUES_MAX,
    Redaction,
    Redactor,
)
from ..runtime.secret_arguments import is_secret_name, reference_name
from ..runtime.strict_json import parse_value
from ..runtime.tool_spec import ToolSpec
from ..runtime.toolbox import Toolbox


class SecretQuestion(msgspec.Struct, frozen=True, gc=False):
    """What a source of secrets is asked: the value of this name, for a call of this tool on behalf of this principal, as the
    server side knows them."""

    name: str
    tenant: str
    principal: str
    tool: str


SecretSource: TypeAlias = "Mapping[str, str] | Callable[[SecretQuestion], str]"
"""Name -> value for all tenants, or what gives it. A callable is asked at each call, where the tool runs, and may block unless
the tool is inline; whatever it raises means that the value can't be had now, and ``KeyError`` or None that there is none of
that name for whom it is asked."""

RESOLVED_MAX: Final = VALUES_MAX
"""Values that a process remembers to take out, of those that a callable gave; the oldest are forgotten first."""

UNKNOWN: Final = "secret_unknown"
UNAVAILABLE: Final = "secret_unavailable"
NOT_ALLOWED: Final = "secret_not_allowed"


class SecretRefused(Exception):
    """A reference without a value, with the code of the refusal. The tool's function was not called."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class SecretSettings:
    """What an application declared, on its way to the processes that need it. Its ``repr`` shows nothing."""

    __slots__ = ("ask", "redaction", "values")

    def __init__(self, redaction: Redaction | None, source: SecretSource | None) -> None:
        """Raises ``DeclarationError`` for what is neither."""
        if redaction is not None and not isinstance(cast(object, redaction), Redaction):
            raise DeclarationError("option_type", "must be a Redaction", path="redact")
        self.redaction = redaction
        self.values: dict[str, str] = {}
        self.ask: Callable[[SecretQuestion], str] | None = None
        if callable(source):
            self.ask = source
        elif isinstance(cast(object, source), Mapping):
            self.values = dict(source or {})
            if len(self.values) > VALUES_MAX or not all(is_secret_name(name) for name in self.values):
                raise DeclarationError(
                    "secrets", f"at most {VALUES_MAX} names: letters, digits and _.-", path="secrets"
                )
        elif source is not None:
            raise DeclarationError("option_type", "must map names to texts, or be callable", path="secrets")

    def __repr__(self) -> str:
        return f"SecretSettings({self.redaction!r})"

    @property
    def revision(self) -> str:
        """That of the redaction; empty without one."""
        return "" if self.redaction is None else self.redaction.revision


def settings_of(
    redaction: Redaction | None, source: SecretSource | None, toolbox: Toolbox
) -> SecretSettings | None:
    """None where nothing is declared. Raises ``DeclarationError``, also for a tool whose references nobody could resolve."""
    taking = [spec.name for spec in toolbox.values() if spec.definition.secret_arguments]
    if taking and source is None:
        raise DeclarationError(
            "secrets_missing", "it takes secret references: give Runtime(secrets=…)", path=taking[0]
        )
    if redaction is None and source is None:
        return None
    return SecretSettings(redaction, source)


class Secrets:
    """Of one process; may be used from any thread. ``redactor``: what it knows to take out now."""

    __slots__ = ("_base", "_lock", "_resolved", "redactor", "settings")

    def __init__(self, settings: SecretSettings) -> None:
        base = NOTHING if settings.redaction is None else settings.redaction.redactor()
        self.settings = settings
        if settings.values:
            base = base.with_values(settings.values.items())
        self._base = base
        self._resolved: dict[str, str] = {}
        self._lock = threading.Lock()
        self.redactor: Redactor = base

    @staticmethod
    def of(settings: SecretSettings | None) -> Secrets | None:
        """None where nothing is declared."""
        return None if settings is None else Secrets(settings)

    def __repr__(self) -> str:
        return "Secrets(…)"

    def resolved(
        self, spec: ToolSpec, arguments: dict[str, JSON], tenant: str, principal: str
    ) -> Mapping[str, str]:
        """Name -> value of what the arguments refer to; the values are taken out of what this process hands on from now on.
        Raises ``SecretRefused``. May block."""
        names = references(spec, arguments)
        for argument, name in names.items():
            if name not in spec.definition.secret_arguments[argument]:
                raise SecretRefused(NOT_ALLOWED)
        values = {
            name: self._value(SecretQuestion(name, tenant, principal, spec.name))
            for name in dict.fromkeys(names.values())
        }
        if self.settings.ask is not None:
            try:
                self._remember(values)
            except DeclarationError:
                raise SecretRefused(UNAVAILABLE) from None
        return values

    def taking_out(self, values: Mapping[str, str]) -> Redactor:
        """What takes these out, name -> value as ``resolved`` gave them, beside all that is known by now. Raises nothing."""
        if not values or self.settings.ask is None:
            return self.redactor
        try:
            return self._remember(values)
        except DeclarationError:  # they were forgotten meanwhile, and a newer name holds one of them
            return self._base.with_values(values.items())

    def _remember(self, values: Mapping[str, str]) -> Redactor:
        """From now on they are taken out of what other calls of this process say as well. Raises ``DeclarationError``."""
        with self._lock:
            fresh = {value: name for name, value in values.items() if value not in self._resolved}
            if fresh:
                kept = [*self._resolved.items(), *fresh.items()][-RESOLVED_MAX:]
                self.redactor = self._base.with_values((name, value) for value, name in kept)
                self._resolved = dict(kept)
            return self.redactor

    def may_be_shown(self, item: Progress) -> bool:
        """Whether a notice of a running attempt may be. A piece of its text may hold a piece of a secret: that is shown when
        it is whole, in its event."""
        if isinstance(item, TextDelta):
            return False
        return not isinstance(item, CallPreparing) or self.redactor.text(item.name) == item.name

    def command(self, command: OutsideCommand) -> OutsideCommand:
        """What a person said, without what is declared."""
        redactor = self.redactor
        changed: dict[str, str] = {}
        for name in _SAID:
            said = getattr(command, name, None)
            if isinstance(said, str) and not isinstance(command, Cancel):
                changed[name] = redactor.text(said)
        if isinstance(command, ResolveCall) and isinstance(cast(object, command.result), str):
            changed["result"] = self._json_text(command.result)
        if isinstance(command, RecordFact) and isinstance(cast(object, command.value), str):
            changed["value"] = self._json_text(command.value, command.name)
        return msgspec.structs.replace(command, **changed) if changed else command

    def switch(self, switch: Switch) -> Switch:
        """A kill switch whose reason is without what is declared. Its scope and target stay: they say what it stops."""
        return msgspec.structs.replace(switch, reason=self.redactor.text(switch.reason))

    def given(self, encoded: bytes) -> bytes:
        """The typed inputs of a run, canonical JSON, without what is declared; empty stays empty."""
        return canonical_bytes(self.redactor.json(decode_canonical(encoded))) if encoded else encoded

    def _json_text(self, text: str, member: str = "") -> str:
        """JSON as a text; ``member``: that of which it is the value, if it is one."""
        try:
            value = parse_value(text) if text else None
            # What a number is read as may hold less of it than what is written.
            without = self.redactor.numbers(text)
            shown = value if without == text else parse_value(without)
        except CallerError:
            return self.redactor.text(text)  # no JSON: it will be refused
        (kept,) = cast("dict[str, JSON]", self.redactor.json({member: shown})).values()
        return text if kept == value else canonical_bytes(kept).decode()

    def _value(self, asked: SecretQuestion) -> str:
        ask = self.settings.ask
        value: object = cast(object, self.settings.values.get(asked.name))
        if ask is not None:
            try:
                value = cast(object, ask(asked))
            except KeyError:
                raise SecretRefused(UNKNOWN) from None
            except BaseException:  # noqa: BLE001  whatever it raises is no value, and may hold one
                raise SecretRefused(UNAVAILABLE) from None
        if value is None:
            raise SecretRefused(UNKNOWN)
        if not isinstance(value, str):
            raise SecretRefused(UNAVAILABLE)
        return value


_SAID: Final = ("reason", "text", "answer")


def references(spec: ToolSpec, arguments: dict[str, JSON]) -> dict[str, str]:
    """Argument -> name of the secret that it refers to; empty if a call has nothing to resolve."""
    return {
        argument: name
        for argument in spec.definition.secret_arguments
        if (name := reference_name(arguments.get(argument)))
    }
