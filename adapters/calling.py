"""A function as a model: an engine in the same process, a remote handle, a test."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final, cast

from ..runtime.errors import DeclarationError
from ..runtime.model import ModelInput, ModelTurn
from ..runtime.prices import Price
from .port import ProgressSink

Answered = ModelTurn | str
Function = Callable[[ModelInput], Answered | Awaitable[Answered]]

NAME_CHARS_MAX: Final = 256


class CallableModel:
    """A model behind ``function(request)``, which answers with a ``ModelTurn`` or with a final text, at once or awaited.

    A plain function runs on a thread, so that it holds nobody up; it isn't stopped when its time is over. What it raises is
    ``provider_error`` with code ``callable_failed``, sent again within the limits. A text alone reports no usage, so what was reserved
    for it stays spent. ``revision`` must change with what the function does. Raises ``DeclarationError`` for settings that
    can't be meant.
    """

    family = "callable"

    def __init__(
        self, function: Function, *, model: str, price: Price | None = None, revision: str = "1"
    ) -> None:
        if not callable(function):
            raise DeclarationError("function", "must be callable", path="function")
        if not model or len(model) > NAME_CHARS_MAX or not model.isprintable():
            raise DeclarationError("model", "a name of at most 256 printable characters", path="model")
        self._function = function
        self._awaited = inspect.iscoroutinefunction(function)
        self.model = model
        self.price = price
        self.revision = revision

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        """Ask once, at most ``timeout_ms``."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                if self._awaited:
                    answer = await cast("Awaitable[Answered]", self._function(request))
                else:
                    made = await asyncio.to_thread(self._function, request)
                    answer = await made if isinstance(made, Awaitable) else made
        except TimeoutError:
            return ModelTurn(
                finish="transport_broken", error_code="timeout", safe_message="no answer in time"
            )
        except Exception as error:  # noqa: BLE001  the application's code raises what it likes
            return ModelTurn(
                finish="provider_error", error_code="callable_failed", safe_message=type(error).__name__
            )
        if isinstance(answer, str):
            return ModelTurn(finish="final", finish_raw="text", text=answer)
        return answer

    async def close(self) -> None:
        """Nothing to give back."""
