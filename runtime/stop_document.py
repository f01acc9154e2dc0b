"""The text of ``docs/stops.md``, generated from the tables that decide: why runs stop, what lifts a stop, what a model's
finish leads to, and what the ends of loops described elsewhere are called here.

Pure: ``stops_document()`` gives the whole text, ``docs/make_state_machine.py`` writes it. Tests play every row.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .model import FINISH, FinishKind
from .orders import ShownPhase
from .stops import REASONS


class Lift(msgspec.Struct, frozen=True):
    """What lifts a stop. ``raised``: limits of which one has to be higher before ``resume`` is accepted."""

    text: str
    raised: tuple[str, ...] = ()


_RAISED: Final = "`resume` after a higher limit; in a child run it asks the parent again"

LIFTED_BY: Final[dict[str, Lift]] = {
    "max_turns": Lift(_RAISED, ("turns", "model_attempts")),
    "max_tool_calls": Lift(_RAISED, ("tool_calls", "call_attempts", "hosted_calls")),
    "budget_tokens": Lift(_RAISED, ("input_tokens", "output_tokens", "total_tokens")),
    "budget_cost": Lift(_RAISED, ("cost_micros",)),
    "deadline": Lift("`resume` after a higher limit", ("deadline_ms", "active_ms")),
    "no_progress": Lift(
        "`resume`: streaks count anew; the same call again, with nothing new, stops it again"
    ),
    "context_exhausted": Lift(_RAISED, ("context_tokens", "history_bytes")),
    "evidence_missing": Lift("`resume`: another turn, with its corrective turns"),
    "truncated": Lift("`resume`: another turn from the same history"),
    "empty_response": Lift("`resume`: another turn from the same history"),
    "approval_expired": Lift("`resume`: the model may propose the call again, and a person is asked again"),
    "outcome_unknown": Lift("`call resolve` by a person, or the late report; the run goes on by itself"),
    "blocked": Lift(
        "`resume`: the model may ask again, where nobody could answer; it stops again as long as a tool that the goal requires is "
        "missing"
    ),
    "model_failed": Lift("`resume`: the same turn is asked for again, with new attempts"),
    "definition_changed": Lift("`resume` where the tool is as it was when the run started"),
    "crash_loop": Lift("`resume`: deaths of hosts count anew"),
}
"""One row a reason that someone can lift. ``close`` ends any of them as it stopped."""

FINISH_LEADS_TO: Final[dict[FinishKind, tuple[tuple[str, ...], str]]] = {
    "calls": ((), "its calls are proposed; the run goes on"),
    "final": (
        ("final", "empty_response", "evidence_missing"),
        "by what is on record, not by what the text says",
    ),
    "truncated": (("truncated",), ""),
    "refused": (("model_refusal",), ""),
    "filtered": (("content_filtered",), ""),
    "paused": ((), "another turn, within `turns`"),
    "context_exceeded": (("context_exhausted",), "after a compaction, if one makes the context smaller"),
    "model_error": (("model_failed",), "after bounded retries"),
    "provider_error": (("model_failed",), "after bounded retries"),
    "transport_broken": (("model_failed",), "after bounded retries"),
    "unknown_finish": (("model_failed",), "after bounded retries"),
}
"""The reasons for which a run may stop at such an answer, when no limit stands in the way."""

ENDS_ELSEWHERE: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    ("`COMPLETED`, `FINAL_TEXT`, `final`", ("final",), "only with the evidence that the goal asks for"),
    ("`REFUSED`, `REFUSAL`", ("model_refusal", "content_filtered"), "the model or its provider said no"),
    ("`INCOMPLETE`, `TRUNCATED`", ("truncated",), "a cut answer is never final"),
    ("`FAILED`, `API_FAILURE`, `model_failed`", ("model_failed",), "after bounded retries"),
    ("`NO_PROGRESS`", ("no_progress",), "after the repetition was bound as a `no_progress` result"),
    ("`max_steps`", ("max_turns", "max_tool_calls"), "turns and calls are counted apart"),
    ("`deadline`", ("deadline",), "wall time through every wait, or active time"),
    (
        "`budget`, `budget_exceeded`",
        ("budget_tokens", "budget_cost", "max_tool_calls"),
        "what ran out is named",
    ),
    ("`cancelled`", ("by_user", "by_parent", "kill_switch"), "everything open is bound first"),
    (
        "`policy_denied`",
        ("policy_denied",),
        "a terminal denial, more denials than `denials`, or a denied final answer after its corrective turn",
    ),
    (
        "`tool_failed`",
        ("tool_failed",),
        "a permanent error of a tool that the goal requires, or more failures than `failures`",
    ),
    ("context too small", ("context_exhausted",), "nothing that must stay is cut"),
    ("claimed done without a result", ("evidence_missing",), "after one corrective turn"),
    ("outcome not known", ("outcome_unknown",), "a person settles it; nothing is sent again"),
    (
        "needed data or permission missing",
        ("blocked",),
        "a tool that the goal requires is not offered, or nobody can answer",
    ),
    (
        "approval ran out",
        ("approval_expired",),
        "where the goal needs the call; else it is the call's result",
    ),
    ("turned over to a person", ("outcome_unknown", "no_progress"), "a stop that waits for somebody"),
    ("`RETRY`", (), "the run shows waiting_retry until the next attempt"),
    ("`unknown_tool`", (), "the result of that call, as the one of a forbidden tool; the turn goes on"),
    ("invalid arguments, denied", (), "the result of that call; counted in `denials`"),
    ("check without an answer", (), "the result of that call: a retryable denial, after bounded retries"),
    ("same key, other parameters", (), "the result of that call: `idempotency_conflict`; nothing runs"),
)
"""Names of ends elsewhere, the reasons here (none: it ends nothing), and a note."""

PHASES_ELSEWHERE: Final[tuple[tuple[str, ShownPhase], ...]] = (
    ("`MODEL_REQUESTED`", "requesting_model"),
    ("`RETRY`", "waiting_retry"),
    ("`TOOL_PROPOSALS`, `VALIDATING`", "validating"),
    ("`WAITING_APPROVAL`", "waiting_approval"),
    ("`EXECUTING`", "executing"),
    ("`RESULTS_READY`", "results_ready"),
)
"""The machine of a single loop, and what is shown here."""


def reasons_shown(reasons: tuple[str, ...]) -> str:
    """``outcome / reason, reason; outcome / reason``, in order."""
    by_outcome: dict[str, list[str]] = {}
    for reason in reasons:
        by_outcome.setdefault(REASONS[reason][0], []).append(reason)
    return "; ".join(f"{outcome} / {', '.join(names)}" for outcome, names in by_outcome.items())


def _stop_row(reason: str) -> str:
    outcome, liftable = REASONS[reason]
    if not liftable:
        return f"| {outcome} | {reason} | ends | |"
    lift = LIFTED_BY[reason]
    names = f": {', '.join(f'`{name}`' for name in lift.raised)}" if lift.raised else ""
    return f"| {outcome} | {reason} | liftable | {lift.text}{names} |"


def _finish_row(kind: FinishKind) -> str:
    rule, (reasons, note) = FINISH[kind], FINISH_LEADS_TO[kind]
    then = "; ".join(part for part in (reasons_shown(reasons), note) if part)
    return f"| {kind} | {_yes(rule.executable)} | {_yes(rule.final)} | {_yes(rule.retry)} | {then} |"


def stops_document() -> str:
    """The whole document."""
    return "\n".join(
        (
            "# How a run stops",
            "",
            "Generated by `python docs/make_state_machine.py` from `runtime/stops.py`, `runtime/model.py` and",
            "`runtime/stop_document.py`. Every row is played by a test.",
            "",
            "A stop that someone can lift suspends the run: `result` returns with the outcome, `resumable=True`, what is `unfinished`",
            'and what would resume it. `close` ends such a run as it stopped; so does `on_stop="end"` at once, with every open call bound',
            "first (an unknown effect alone waits for a person or the deadline, and stays in the inbox). Waiting for a person, a key, a",
            "child or a timer is no stop. After an end only `call_reconciled` follows.",
            "",
            "| outcome | reason | stop | what lifts it |",
            "|---|---|---|---|",
            *(_stop_row(reason) for reason in REASONS),
            "| failed | log_damaged | ends | written to the run's index row, never to a damaged log |",
            "",
            "## What a model's finish leads to",
            "",
            "Only `final` can complete a run, and only `calls` lets calls run. What isn't in this table is `unknown_finish`.",
            "",
            "| finish | its calls may run | its text may be final | sent again within limits | then |",
            "|---|---|---|---|---|",
            *(_finish_row(kind) for kind in FINISH),
            "",
            "## Names elsewhere",
            "",
            "What loops described elsewhere call an end, and where it is here.",
            "",
            "| elsewhere | here | note |",
            "|---|---|---|",
            *(
                f"| {names} | {reasons_shown(reasons) or 'no end'} | {note} |"
                for names, reasons, note in ENDS_ELSEWHERE
            ),
            "",
            "And their phases:",
            "",
            "| elsewhere | shown here |",
            "|---|---|",
            *(f"| {names} | {phase} |" for names, phase in PHASES_ELSEWHERE),
            "",
        )
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
