"""The print of the tables of finish values, for ``docs/finish-reasons.md``."""

from __future__ import annotations

from typing import Final

from ..runtime.model import FINISH, FinishKind
from .finish_table import MESSAGES, NOT_SENT_AGAIN, TABLES, FinishRow

NAMES: Final = {
    "openai_responses": (
        "OpenAI Responses",
        "`status`, with the reason of `incomplete_details` behind a slash",
    ),
    "openai_chat": ("OpenAI Chat Completions and compatible servers", "`finish_reason`"),
    "anthropic": ("Anthropic Messages", "`stop_reason`"),
    "gemini": (
        "Gemini generateContent",
        "`finishReason`, also as a number; `promptFeedback` where the prompt itself was blocked",
    ),
    "gemini_interactions": ("Gemini Interactions", "`status`"),
}

_THEN: Final[dict[FinishKind, str]] = {
    "calls": "its calls are proposed, and each goes up the ladder",
    "final": "its text is judged as an answer",
    "truncated": "the run stops, `incomplete` with `truncated`",
    "refused": "the run stops, `refused` with `model_refusal`",
    "filtered": "the run stops, `refused` with `content_filtered`",
    "paused": "the turn goes back as it is, and the next one continues it",
    "context_exceeded": "old turns become digests and the request is made again, or the run stops with `context_exhausted`",
    "model_error": "sent again within the limits, then `failed` with `model_failed`",
    "provider_error": "the same, where the error may pass; at once where it won't",
    "transport_broken": "the same",
    "unknown_finish": "the same",
}

HEAD: Final = """\
# What finish values mean

Generated from `adapters/finish_table.py` by `docs/make_finish_reasons.py`; a test compares them. In each table the first row
that fits counts. The calls themselves say that there are calls, never the finish value; the value says whether they may
run, and whether a text is an answer. **Only `calls` runs anything, and only `final` can complete a run**; both only once the
API's own last event arrived. A value that stands in no row is `unknown_finish`, whatever came along. The native value stays
on record beside each.

| finish | may run calls | may be an answer | what the run does |
|---|---|---|---|
"""

STREAMS: Final = """\
## The end of a stream

| family | its own last event |
|---|---|
| OpenAI Responses | `response.completed`, `.incomplete`, `.failed` or `.cancelled` |
| OpenAI Chat Completions | a chunk with a finish value; null or empty ones are none in a stream |
| Anthropic Messages | `message_stop`, after a `message_delta` with a stop reason |
| Gemini generateContent | a chunk with a finish reason or a blocked prompt, and then the end of the bytes |
| Gemini Interactions | `interaction.completed` |

Bytes that end before it are `transport_broken` (`stream_broken`), as is a connection that breaks; nothing of them is run
and their usage is unknown. An error event, an error object in a good answer's place and a field `error` of a stream are
`provider_error`, or what the provider's code says ([model-adapters.md](model-adapters.md#errors)).
"""


def finish_document() -> str:
    """The whole page."""
    lines = [HEAD.rstrip("\n")]
    for kind, rule in FINISH.items():
        lines.append(f"| `{kind}` | {_yes(rule.executable)} | {_yes(rule.final)} | {_THEN[kind]} |")
    for family, rows in TABLES.items():
        name, native = NAMES[family]
        lines += ["", f"## {name}", "", f"The native value is {native}.", ""]
        lines += ["| value | with | is | code |", "|---|---|---|---|"]
        lines += [_row(row) for row in rows]
        lines.append("| any other | anything | `unknown_finish` | `unknown_finish` |")
    lines += ["", STREAMS.rstrip("\n"), "", "## Codes", "", "| code | says | sent again |", "|---|---|---|"]
    used = {row.code for rows in TABLES.values() for row in rows if row.code} | {"unknown_finish"}
    lines += [
        f"| `{code}` | {MESSAGES[code]} | {_yes(code not in NOT_SENT_AGAIN)} |" for code in sorted(used)
    ]
    return "\n".join(lines) + "\n"


def _row(row: FinishRow) -> str:
    values = (
        "any"
        if not row.values
        else ", ".join(f"`{value}`" if value else "null, missing or empty" for value in row.values)
    )
    code = f"`{row.code}`" if row.code else ""
    return f"| {values} | {row.having} | `{row.finish}` | {code} |".replace("|  |", "| |")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
