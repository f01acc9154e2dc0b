"""The parts of a Chat Completions answer that are read, as loosely as servers write them.

``Raw`` keeps bytes as they came; ``object`` takes any JSON value where servers disagree. Other fields are skipped.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from .token_data import TokenPieces
from .wire_json import MISSING


class WireFunction(msgspec.Struct, gc=False):
    """``arguments`` should be a string that holds JSON; some servers send an object, null or nothing."""

    name: object = None
    arguments: Raw = MISSING


class WireCall(msgspec.Struct, gc=False):
    """``id`` may be missing, empty or repeated; ``index`` counts the pieces of a stream together."""

    id: object = None
    type: object = None
    function: WireFunction | None = None
    extra_content: Raw = MISSING
    index: object = None


class WireMessage(msgspec.Struct, gc=False):
    """``function_call`` is the legacy form of one call. Then what servers want to see again, and
    what engines say of tokens."""

    content: Raw = MISSING
    refusal: object = None
    tool_calls: list[WireCall] | None = None
    function_call: WireFunction | None = None
    reasoning_content: Raw = MISSING
    reasoning_details: Raw = MISSING
    extra_content: Raw = MISSING
    prompt_token_ids: Raw = MISSING
    generation_token_ids: Raw = MISSING
    generation_log_probs: Raw = MISSING


class WireChoice(msgspec.Struct, gc=False):
    """One answer, or in a stream a piece of it; Azure leaves the message out when it filtered it."""

    finish_reason: object = None
    message: WireMessage | None = None
    delta: WireMessage | None = None
    index: object = None
    logprobs: Raw = MISSING
    token_ids: Raw = MISSING
    prompt_token_ids: Raw = MISSING
    routed_experts: Raw = MISSING


class WireCompletion(msgspec.Struct, gc=False):
    """A whole answer, a piece of one, or an error in its place."""

    id: object = None
    model: object = None
    choices: list[WireChoice] | None = None
    usage: Raw = MISSING
    error: Raw = MISSING
    prompt_token_ids: Raw = MISSING
    prompt_logprobs: Raw = MISSING
    completion_probabilities: Raw = MISSING


class WirePart(msgspec.Struct, gc=False):
    """One part of a content list."""

    type: object = None
    text: object = None
    refusal: object = None


_TOKENS_OF_ANSWER: Final = ("prompt_token_ids", "prompt_logprobs", "completion_probabilities")
_TOKENS_OF_CHOICE: Final = ("logprobs", "token_ids", "prompt_token_ids", "routed_experts")
_TOKENS_OF_MESSAGE: Final = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def keep_tokens(tokens: TokenPieces, completion: WireCompletion) -> None:
    """What an answer, or a piece of one, says of tokens: OpenAI's log-probabilities, and what vLLM, SGLang, llama.cpp and servers
    in front of them add where they are asked to."""
    for name in _TOKENS_OF_ANSWER:
        tokens.keep(name, getattr(completion, name))
    for choice in completion.choices or ():
        for name in _TOKENS_OF_CHOICE:
            tokens.keep(f"choices.{name}", getattr(choice, name))
        for where, message in (("message", choice.message), ("delta", choice.delta)):
            if message is not None:
                for name in _TOKENS_OF_MESSAGE:
                    tokens.keep(f"choices.{where}.{name}", getattr(message, name))


decode_completion = msgspec.json.Decoder(WireCompletion).decode
decode_parts = msgspec.json.Decoder(list[WirePart]).decode
