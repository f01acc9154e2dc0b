"""``ask_user``: the built-in tool by which a model puts a question to people."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from .errors import BugError
from .tool_spec import ToolSpec, tool, tool_spec

QUESTION_CHARS_MAX: Final = 4_096
CHOICES_MAX: Final = 20
CHOICE_CHARS_MAX: Final = 200

_DESCRIPTION: Final = (
    "Ask the person whom this task is for. For what no other tool can tell, or for a choice that is theirs. The answer is "
    "what a person wrote. It may take long, and may not come. With choices, one of them is the answer."
)


@tool(
    risk="read",
    name="ask_user",
    description=_DESCRIPTION,
    max_attempts=1,
    handler_revision="1",
    params={
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1, "maxLength": QUESTION_CHARS_MAX},
            "choices": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": CHOICE_CHARS_MAX},
                "maxItems": CHOICES_MAX,
            },
        },
        "required": ["question"],
    },
)
def _never_run(question: str, choices: tuple[str, ...] = ()) -> None:
    raise BugError("question_executed", "a question is put to people")


def _as_question() -> ToolSpec:
    spec = tool_spec(_never_run)
    # What a person says taints nothing, as the run's input and messages don't.
    definition = msgspec.structs.replace(spec.definition, kind="question", trust="trusted")
    return replace(spec, definition=definition)


ask_user: Final = _as_question()
"""Put it in a ``Toolbox``, or say ``Runtime(questions=True)``. Its calls are never executed: see ``questions``."""
