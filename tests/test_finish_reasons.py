"""The tables of finish values: published as they are, whole for every value that is known, and closed for all others."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundloop.adapters.finish_document import NAMES, finish_document
from boundloop.adapters.finish_table import HAVING, MESSAGES, TABLES, Facts, row_of
from boundloop.runtime.model import FINISH, FinishKind

DOC: Final = Path(__file__).resolve().parent.parent / "docs/finish-reasons.md"

EVERY: Final = [
    Facts(*given)
    for given in itertools.product((False, True), repeat=6)
    if given[0] or not (given[3] or given[4] or given[5])
]
"""All that can come along; what is said of calls only where there are some."""

WHOLE_CALL: Final = Facts(calls=True)
CUT_CALL: Final = Facts(calls=True, cut_call=True)
TEXT: Final = Facts()

KNOWN: Final[dict[str, dict[str, tuple[FinishKind, FinishKind]]]] = {
    # native value: (with whole calls, with a text alone)
    "openai_responses": {
        "completed": ("calls", "final"),
        "incomplete": ("truncated", "truncated"),
        "incomplete/max_output_tokens": ("truncated", "truncated"),
        "incomplete/max_messages": ("truncated", "truncated"),
        "incomplete/steered": ("truncated", "truncated"),
        "incomplete/content_filter": ("filtered", "filtered"),
        "incomplete/else": ("unknown_finish", "unknown_finish"),
        "failed": ("provider_error", "provider_error"),
        "cancelled": ("provider_error", "provider_error"),
        "in_progress": ("provider_error", "provider_error"),
        "queued": ("provider_error", "provider_error"),
    },
    "openai_chat": {
        "stop": ("calls", "final"),
        "tool_calls": ("calls", "model_error"),
        "function_call": ("calls", "model_error"),
        "length": ("truncated", "truncated"),
        "model_length": ("truncated", "truncated"),
        "content_filter": ("filtered", "filtered"),
        "error": ("provider_error", "provider_error"),
        "insufficient_system_resource": ("provider_error", "provider_error"),
        "": ("calls", "unknown_finish"),
        "eos": ("unknown_finish", "unknown_finish"),
    },
    "anthropic": {
        "end_turn": ("calls", "final"),
        "tool_use": ("calls", "model_error"),
        "stop_sequence": ("calls", "final"),
        "max_tokens": ("truncated", "truncated"),
        "model_context_window_exceeded": ("truncated", "truncated"),
        "pause_turn": ("model_error", "paused"),
        "refusal": ("refused", "refused"),
        "compaction": ("unknown_finish", "unknown_finish"),
    },
    "gemini": {
        "STOP": ("calls", "final"),
        "MAX_TOKENS": ("truncated", "truncated"),
        "promptFeedback": ("filtered", "filtered"),
        **dict.fromkeys(("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "MODEL_ARMOR", "ESCALATION", "PUP_LIMITED_DISABLED"), ("filtered", "filtered")),
        "MALFORMED_FUNCTION_CALL": ("model_error", "model_error"),
        "UNEXPECTED_TOOL_CALL": ("model_error", "model_error"),
        "TOO_MANY_TOOL_CALLS": ("model_error", "model_error"),
        "MALFORMED_RESPONSE": ("model_error", "model_error"),
        "MISSING_THOUGHT_SIGNATURE": ("provider_error", "provider_error"),
        "OTHER": ("provider_error", "provider_error"),
        "NO_IMAGE": ("provider_error", "provider_error"),
        "FINISH_REASON_UNSPECIFIED": ("provider_error", "provider_error"),
        "CONTINUATION": ("model_error", "paused"),
        "": ("unknown_finish", "unknown_finish"),
    },
    "gemini_interactions": {
        "completed": ("calls", "final"),
        "requires_action": ("calls", "model_error"),
        "incomplete": ("truncated", "truncated"),
        "budget_exceeded": ("truncated", "truncated"),
        "requires_continuation": ("model_error", "paused"),
        "failed": ("provider_error", "provider_error"),
        "cancelled": ("provider_error", "provider_error"),
        "in_progress": ("provider_error", "provider_error"),
        "queued": ("provider_error", "provider_error"),
        "idle": ("provider_error", "provider_error"),
    },
}  # fmt: skip


def test_the_page_is_the_tables() -> None:
    assert DOC.read_text("utf-8") == finish_document()


def test_every_family_has_a_table_and_every_row_has_words() -> None:
    assert set(TABLES) == set(NAMES) == set(KNOWN)
    for rows in TABLES.values():
        for row in rows:
            assert row.having in HAVING
            assert row.finish in FINISH
            assert bool(row.code) == (row.finish in ("model_error", "provider_error", "unknown_finish"))
            assert not row.code or MESSAGES[row.code]


@pytest.mark.parametrize("family", TABLES)
def test_each_value_means_what_the_facts_say(family: str) -> None:
    for native, (with_calls, with_text) in KNOWN[family].items():
        assert row_of(TABLES[family], native, WHOLE_CALL).finish == with_calls
        assert row_of(TABLES[family], native, TEXT).finish == with_text


@pytest.mark.parametrize("family", TABLES)
def test_every_value_of_a_table_is_known_here(family: str) -> None:
    written = {value for row in TABLES[family] for value in row.values}
    assert written - set(KNOWN[family]) <= {
        "max_tokens",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "IMAGE_OTHER",
    }


@pytest.mark.parametrize("family", TABLES)
def test_whatever_comes_along_no_cut_refused_or_unknown_answer_runs_or_ends(family: str) -> None:
    rows = TABLES[family]
    natives: list[object] = [*{value for row in rows for value in row.values}, None, "", "else", 7, True, []]
    for native, facts in itertools.product(natives, EVERY):
        row = row_of(rows, native, facts)
        rule = FINISH[row.finish]
        if rule.executable:
            assert facts.calls
            assert not (facts.cut_call and family != "openai_chat")
            assert KNOWN[family][str(native or "")][0] == "calls"
        if rule.final:
            assert not facts.calls
            assert KNOWN[family][str(native)][1] == "final"


@given(st.text(max_size=30))
def test_a_word_that_no_table_knows_is_unknown(native: str) -> None:
    for family, rows in TABLES.items():
        if native in KNOWN[family] or any(native in row.values for row in rows):
            continue
        for facts in (TEXT, WHOLE_CALL, CUT_CALL):
            assert row_of(rows, native, facts).finish == "unknown_finish"
