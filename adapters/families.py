"""The API families by name, each with its reading of answers. A family's module loads when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final, cast

from ..runtime.errors import DeclarationError
from ..runtime.model import ModelTurn
from .answer_draft import Assembly, Exchange
from .decoding import ANSWER_BYTES_MAX, TurnDecoder, decode_whole
from .secret import Secret

FAMILIES: Final[Mapping[str, tuple[str, str]]] = {
    # name: (module, assembly)
    "openai_responses": (".openai_responses_decode", "ResponsesAssembly"),
    "openai_chat": (".openai_chat_decode", "ChatAssembly"),
    "anthropic": (".anthropic_decode", "AnthropicAssembly"),
    "gemini": (".gemini_decode", "GeminiAssembly"),
    "gemini_interactions": (".gemini_interactions_decode", "InteractionsAssembly"),
}

ALIASES: Final[Mapping[str, str]] = {"chat_compat": "openai_chat"}


def family_named(text: str) -> str:
    """The family that is meant: its name, with either kind of dash. Raises ``DeclarationError``."""
    name = text.replace("-", "_")
    name = ALIASES.get(name, name)
    if name not in FAMILIES:
        raise DeclarationError("family", "one of " + ", ".join(FAMILIES), path=text[:64])
    return name


def assembly_of(family: str) -> Assembly:
    """A new reading of one answer."""
    module, attribute = FAMILIES[family]
    return cast(Assembly, getattr(import_module(module, __package__), attribute)())


def decoder_of(family: str, exchange: Exchange, *, answer_bytes_max: int = ANSWER_BYTES_MAX) -> TurnDecoder:
    """A decoder for one answer of this family."""
    return TurnDecoder(assembly_of(family), exchange, answer_bytes_max=answer_bytes_max)


def decode_answer(
    family: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_ms: int,
    secrets: Sequence[Secret] = (),
) -> ModelTurn:
    """The turn of an answer whose bytes are all there, body or stream; never raises. The arguments are ``Exchange``'s."""
    return decode_whole(assembly_of(family), Exchange(status, headers, now_ms, secrets), body)
