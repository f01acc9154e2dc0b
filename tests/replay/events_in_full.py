"""One instance of every event with every field set, and its bytes.

``python -m tests.replay.events_in_full`` prints the lines of ``golden_events.txt``. A line that is there never changes: logs
that were written with it must still be read. A new field goes to the end with a default and gets a further line.
"""

from __future__ import annotations

import msgspec

from boundloop.runtime import events as e
from boundloop.runtime.model import SideAttempt, Usage
from boundloop.runtime.taint import TaintSource

A, B, C, D = (bytes([number]) * 32 for number in (1, 2, 3, 4))
UNDER = e.Revisions("p2", D, "1.2")
SOURCE = e.Source("etag-7", 6_000)
SIDE = e.SideSpent(3, 30, 6, 4, (SideAttempt("chooser", Usage(10, 2, 1), 3, "router"),))
TAINT = (TaintSource("read_mail", "c1.0", True, "r0"),)
VERDICTS = (e.RungVerdict("policy", "ask", "needs_approval", "p1"), e.RungVerdict("check", "allow"))

EVENTS: tuple[e.AnyEvent, ...] = (
    e.RunStarted(
        "r1",
        "t",
        "alice",
        "op1",
        "agent",
        "héllo",
        A,
        "m:app",
        "r0",
        "c1.0",
        2,
        "now",
        "trace",
        "end",
        True,
        9,
        {"turns": 3},
        TAINT,
        b'{"order_id":"A"}',
    ),
    e.RunResumed(3, "host_died", "h1", "u", "cmd1", D),
    e.MessageReceived("user", "more", "cmd2", D, "bob"),
    e.LimitsRaised({"turns": 60}, "u", "cmd3", D),
    e.CancelRequested("kill_switch", "u", "cmd4", D),
    e.CloseRequested("u", "cmd5", D),
    e.RunSuspended("incomplete", "outcome_unknown", ("c1.0 pay",), "c1.0"),
    e.RunTerminated("completed", "final", ("x",), "no evidence asked"),
    e.ModelRequested(1, 2, A, 3, 4_000, 100, 70, e.SideReserved(2, 800, 40, 9)),
    e.ModelResponded(
        1,
        2,
        "calls",
        "tool_use",
        "text",
        2,
        Usage(10, 20, 5, 6),
        10,
        20,
        30,
        "resp",
        "model-x",
        b"\x00\xff",
        7,
        8,
        (("web_search", 2),),
        SIDE,
        e.TokenData(A, 9),
    ),
    e.ModelFailed(1, 2, "overloaded", True, 5_000, 10, 20, 30, "error", "try later", "resp", SIDE),
    e.DefinitionAdopted("refund", A, B, b'{"name":"refund"}'),
    e.CallProposed("c1.0", "refund", b'{"order_id":"[redacted:argument]"}', "call_1", "$.order_id"),
    e.CallValidated("c1.0", b"{}", A, VERDICTS, B, C, UNDER, 7),
    e.CallRejected("c1.0", "policy", "too_much", "not permitted", "/amount", True, True, VERDICTS),
    e.CallsRejected(1, 64, "calls_per_turn", (("call_9", "refund"), ("", "x"))),
    e.ApprovalRequested("c1.0", "ap_1", 2, b'{"p":1}', A, B, C, "p1", "v1", 9_000),
    e.ApprovalDecided("c1.0", "ap_1", "reject", "boss", "no", "cmd6", D),
    e.ApprovalLapsed("c1.0", "ap_1", "stale", "definition"),
    e.QuestionAsked("c1.0", "q_1", "which one?", ("a", "b"), 9_000, A),
    e.QuestionAnswered("c1.0", "q_1", b'{"answer":"a"}', "bob", "why not", True, "cmd9", D),
    e.CallWaiting("c1.0", A, "r2", "c1.0", "in_flight"),
    e.CallStarted("c1.0", 2, 9_000, A, VERDICTS, UNDER, 7),
    e.CallExecuted(
        "c1.0",
        2,
        "succeeded",
        b"{}",
        A,
        "output_invalid",
        "text",
        True,
        1,
        2,
        B,
        3,
        C,
        (0, 2),
        SOURCE,
        {"state": b'"paid"'},
        A[:16],
        9,
    ),
    e.CallReconciled(
        "c1.0",
        "applied",
        "boss",
        b"{}",
        A,
        "seen",
        5,
        "cmd7",
        "output_invalid",
        D,
        (1,),
        SOURCE,
        A[:16],
        "policy_denied",
    ),
    e.ChildReserved("c1.0", "r9", "helper", {"turns": 4, "tool_calls_each.pay": 1}, 9_000),
    e.ChildStarted("c1.0", "r9"),
    e.ChildToppedUp("c1.0", {"turns": 2}, "run:r9", "cmd8", D),
    e.ChildSettled(
        "c1.0",
        "r9",
        {"turns": 5},
        "completed",
        "final",
        {"pay": 1},
        (e.UnknownBelow("r9", "c1.0", "ship"),),
        2,
        TAINT,
    ),
    e.LeaseDenied("run:r0", ("turns",)),
    e.ResultGuarded("c1.0", "deny", "leak", "g1", A),
    e.AnswerGuarded(3, "unknown", "timeout", "g1", A),
    e.StageEntered("draft", "enquire", ("c1.0", "c2.1")),
    e.ContextCompacted(2, 9, True, 4, 1_500, A, "1"),
    e.FactRecorded("order_state", b'"paid"', "c1.0", "boss", "cmd9", D),
    e.ResultBound("c1.0", "ok", "replayed", A, "text", b"{}", e.ReplayedFrom("r0", "c1.0", 4, True)),
)


def encoded(event: e.AnyEvent) -> bytes:
    """The stored bytes of one event."""
    return msgspec.msgpack.encode(event)


if __name__ == "__main__":
    for instance in EVENTS:
        print(e.tag_of(instance), encoded(instance).hex())
