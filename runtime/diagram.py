"""The text of ``docs/state-machine.md``, generated from the two tables so that it can't tell another story.

Pure: ``state_machine_document()`` gives the whole text, ``docs/make_state_machine.py`` writes it, and a test compares the
two. ``SHOWN`` is checked against what the tests of the core walk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .model import FINISH
from .stops import REASONS
from .transitions import CALL, RUN, CallTable, RunTable

SHOWN: Final[tuple[tuple[str, str], ...]] = (
    ("created", "requesting_model"),
    ("created", "suspended"),
    ("created", "terminated"),
    ("executing", "reconciling"),
    ("executing", "results_ready"),
    ("executing", "suspended"),
    ("executing", "validating"),
    ("executing", "waiting_approval"),
    ("executing", "waiting_key"),
    ("reconciling", "executing"),
    ("reconciling", "results_ready"),
    ("reconciling", "suspended"),
    ("reconciling", "validating"),
    ("requesting_model", "validating"),
    ("requesting_model", "waiting_retry"),
    ("results_ready", "requesting_model"),
    ("results_ready", "suspended"),
    ("results_ready", "terminated"),
    ("suspended", "created"),
    ("suspended", "executing"),
    ("suspended", "results_ready"),
    ("suspended", "terminated"),
    ("suspended", "validating"),
    ("suspended", "waiting_approval"),
    ("suspended", "waiting_key"),
    ("suspended", "waiting_retry"),
    ("validating", "executing"),
    ("validating", "reconciling"),
    ("validating", "requesting_model"),
    ("validating", "results_ready"),
    ("validating", "suspended"),
    ("validating", "terminated"),
    ("validating", "waiting_approval"),
    ("validating", "waiting_child"),
    ("validating", "waiting_key"),
    ("waiting_approval", "executing"),
    ("waiting_approval", "results_ready"),
    ("waiting_approval", "suspended"),
    ("waiting_approval", "validating"),
    ("waiting_approval", "waiting_child"),
    ("waiting_approval", "waiting_key"),
    ("waiting_child", "executing"),
    ("waiting_child", "suspended"),
    ("waiting_child", "validating"),
    ("waiting_key", "executing"),
    ("waiting_key", "results_ready"),
    ("waiting_key", "suspended"),
    ("waiting_key", "waiting_approval"),
    ("waiting_retry", "requesting_model"),
    ("waiting_retry", "suspended"),
    ("waiting_retry", "terminated"),
)
"""How the phase that a person is shown may change between two appends (``orders.shown_phase``)."""

ELSEWHERE: Final[tuple[tuple[str, str, str], ...]] = (
    ("`COMPLETED`, `final`", "completed / final", "only with the evidence that the goal asks for"),
    ("`REFUSED`", "refused / model_refusal, content_filtered", "the model or its provider said no"),
    ("`INCOMPLETE`, `TRUNCATED`", "incomplete / truncated", "a cut answer is never final"),
    ("`FAILED`, `API_FAILURE`, `model_failed`", "failed / model_failed", "after bounded retries"),
    ("`RETRY`", "no end", "the run shows waiting_retry until the next attempt"),
    ("`WAITING_APPROVAL`", "no end", "a wait; approval_expired if nobody decides and the goal needs it"),
    ("`NO_PROGRESS`", "incomplete / no_progress", "after the repetition was bound as a `no_progress` result"),
    ("`max_steps`", "incomplete / max_turns, max_tool_calls", "turns and calls are counted apart"),
    ("`deadline`", "incomplete / deadline", "wall time through every wait, or active time"),
    (
        "`budget`, `budget_exceeded`",
        "incomplete / budget_tokens, budget_cost, max_tool_calls",
        "what ran out is named",
    ),
    ("`cancelled`", "cancelled / by_user, by_parent, kill_switch", "everything open is bound first"),
    ("`policy_denied`", "failed / policy_denied", "a terminal denial, or more denials than `denials`"),
    (
        "`tool_failed`",
        "failed / tool_failed",
        "a permanent error of a tool that the goal requires, or more than `failures`",
    ),
    ("`unknown_tool`", "no end", "bound as the result of that call; the turn goes on"),
    ("claimed done without a result", "incomplete / evidence_missing", "after one corrective turn"),
    ("outcome not known", "incomplete / outcome_unknown", "a person settles it; nothing is sent again"),
    ("needed data or permission missing", "incomplete / blocked", "a required tool is not offered"),
)


def _edges(table: RunTable | CallTable) -> list[str]:
    """Mermaid lines: one arrow a pair of phases, with all its events."""
    tags: dict[tuple[str, str], list[str]] = {}
    for (phase, tag), targets in table.items():
        for after in targets:
            tags.setdefault((phase, after), []).append(tag)
    return [
        f"    {before or '[*]'} --> {after}: {', '.join(sorted(found))}"
        for (before, after), found in sorted(tags.items())
    ]


def _mermaid(lines: Iterable[str]) -> str:
    return "\n".join(("```mermaid", "stateDiagram-v2", *lines, "```"))


def _rows(table: RunTable | CallTable) -> str:
    head = ["| phase | event | next phase |", "|---|---|---|"]
    return "\n".join(
        head
        + [
            f"| {phase or '(none)'} | {tag} | {', '.join(after)} |"
            for (phase, tag), after in sorted(table.items())
        ]
    )


def _ends(table: RunTable | CallTable, last: str) -> list[str]:
    return [*_edges(table), f"    {last} --> [*]"]


def state_machine_document() -> str:
    """The whole document."""
    shown = [f"    {before} --> {after}" for before, after in SHOWN]
    stops = [
        f"| {outcome} | {reason} | {'someone can lift it' if liftable else 'ends'} |"
        for reason, (outcome, liftable) in REASONS.items()
    ]
    finishes = [
        f"| {kind} | {_yes(rule.executable)} | {_yes(rule.final)} | {_yes(rule.retry)} |"
        for kind, rule in FINISH.items()
    ]
    others = [f"| {name} | {ours} | {note} |" for name, ours, note in ELSEWHERE]
    return "\n".join(
        (
            "# State machines",
            "",
            "Generated by `python docs/make_state_machine.py` from `runtime/transitions.py`. Every arrow is walked by a test;",
            "an event that its phase doesn't admit raises and changes nothing.",
            "",
            "## What is shown",
            "",
            "`show`, `why` and `runs list` show one phase. While calls are open it is a pure function of the calls: executing if one",
            "is out, else waiting_child if one is a child run's and none is new or waits for a person, else validating if one is being",
            "checked, else waiting_approval, waiting_key, reconciling.",
            "",
            _mermaid(["    [*] --> created", *shown, "    terminated --> [*]"]),
            "",
            "## A run",
            "",
            _mermaid(_ends(RUN, "terminated")),
            "",
            "A stopped run is `suspended`; `resume` leads back to where it stopped. Only `call_reconciled` follows the end.",
            "",
            _rows(RUN),
            "",
            "## A call",
            "",
            _mermaid(_ends(CALL, "bound")),
            "",
            _rows(CALL),
            "",
            "## What a model's finish permits",
            "",
            "| finish | its calls may run | its text may be final | sent again within limits |",
            "|---|---|---|---|",
            *finishes,
            "",
            "## How a run stops",
            "",
            'With `on_stop="end"` what someone could lift ends too, as it stopped, with every open call bound first; an unknown',
            "effect alone waits for a person or the deadline.",
            "",
            "| outcome | reason | then |",
            "|---|---|---|",
            *stops,
            "| failed | log_damaged | written to the run's index row, never to a damaged log |",
            "",
            "## Names elsewhere",
            "",
            "What loops described elsewhere call an end, and where it is here.",
            "",
            "| elsewhere | here | note |",
            "|---|---|---|",
            *others,
            "",
        )
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
