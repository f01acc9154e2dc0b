"""What a tool raised, for whoever operates it: the exception's class and where it was raised, through the logger
``boundloop.tools``, at WARNING. Never its words, nor a value: those may be a customer's, and log and model get no text of it.

``BOUNDLOOP_TOOL_ERRORS=full`` in the environment of the process that runs a tool adds the exception's text and traceback.
That is for an operator who debugs, and goes to the logger too, never to the run's log nor to the model.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from ..runtime.errors import ToolError
from ..runtime.redaction import Redactor
from ..runtime.tool_spec import ToolSpec

LOGGER: Final = logging.getLogger("boundloop.tools")
FULL: Final = "BOUNDLOOP_TOOL_ERRORS"
NAME_CHARS_MAX: Final = 200
FULL_CHARS_MAX: Final = 8_192
TOLD_CHARS_MAX: Final = FULL_CHARS_MAX + 4 * NAME_CHARS_MAX
LINE_CHARS_MAX: Final = TOLD_CHARS_MAX + 4 * NAME_CHARS_MAX
FRAMES_MAX: Final = 2_000
"""Frames of a traceback that are looked through: Python's own recursion limit is half of that."""


def raised(spec: ToolSpec, error: BaseException, redactor: Redactor | None = None) -> str:
    """``KeyError at /srv/shop/orders.py:41 in get_order``: the innermost frame of the tool's own module, else of any. Empty
    for a ``ToolError``, whose code and message are in the run's log. Raises nothing."""
    if isinstance(error, ToolError) and os.environ.get(FULL) != "full":
        return ""
    try:
        text = f"{_class_of(error)}{_place(error, getattr(spec.handler, '__module__', ''))}"
        if os.environ.get(FULL) == "full":
            told = "".join(traceback.format_exception(error))
            text += "\n" + (told if redactor is None else redactor.text(told))[-FULL_CHARS_MAX:]
        if redactor is not None:
            text = redactor.text(text)
    except Exception:  # noqa: BLE001  an exception's class may be anything
        return "an exception that can't be described"
    return _printable(text)[:TOLD_CHARS_MAX]


def tell(tool: str, run_id: str, call: str, attempt: int, text: str) -> str:
    """Log it in this process; gives the line."""
    line = f"{_cut(tool)} raised {text[:TOLD_CHARS_MAX]} (run {_cut(run_id)}, call {_cut(call)}, attempt {attempt})"
    LOGGER.warning("%s", line)
    return line


class Forwarding(logging.Handler):
    """Hands each line on, to where an operator looks."""

    def __init__(self, send: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(record.getMessage())


def _class_of(error: BaseException) -> str:
    kind = type(error)
    module = str(kind.__module__)
    name = str(kind.__qualname__)
    return _cut(name if module == "builtins" else f"{module}.{name}")


def _place(error: BaseException, module: Any) -> str:
    last: TracebackType | None = None
    of_the_tool: TracebackType | None = None
    at = error.__traceback__
    for _ in range(FRAMES_MAX):
        if at is None:
            break
        last = at
        if at.tb_frame.f_globals.get("__name__") == module:
            of_the_tool = at
        at = at.tb_next
    found = of_the_tool or last
    if found is None:
        return ""
    code = found.tb_frame.f_code
    return f" at {code.co_filename[-NAME_CHARS_MAX:]}:{found.tb_lineno} in {_cut(code.co_name)}"


def _cut(text: str) -> str:
    return _printable(text)[:NAME_CHARS_MAX]


def _printable(text: str) -> str:
    """What a terminal takes as characters, and line ends."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
