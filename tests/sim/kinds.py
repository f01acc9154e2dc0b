"""The kinds of faults, each with the point where it strikes.

A point is passed again and again during a seed (each append, each dispatch, …); a planned fault strikes when its point
is passed for the n-th time. Faults of the point ``time`` strike at a moment instead. What a fault's ``size`` (0 to 999)
means is said where it is carried out.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Point = Literal[
    "append",
    "store",
    "dispatch",
    "query",
    "intent",
    "queryable",
    "approved",
    "check",
    "model",
    "person",
    "time",
]


class Kind(NamedTuple):
    """``weight``: how often it is planned, against the others. ``passes``: how often its point is passed in a seed of
    ordinary length, so that a plan hits."""

    point: Point
    weight: int
    what: str


PASSES: Final[dict[Point, int]] = {
    "append": 36,
    "store": 90,
    "dispatch": 12,
    "intent": 4,
    "queryable": 2,
    "approved": 2,
    "query": 1,
    "check": 10,
    "model": 9,
    "person": 2,
    "time": 0,
}

KINDS: Final[dict[str, Kind]] = {
    # --- the store, as one host's connection to it ---
    "crash_before_append": Kind("append", 4, "the host dies and its append is never made"),
    "crash_after_append": Kind("append", 4, "the append is made and its host dies before it hears so"),
    "append_busy": Kind("append", 3, "the store is busy; nothing is written"),
    "append_full": Kind("append", 3, "no room is left for a while; nothing is written"),
    "append_answer_lost": Kind("append", 4, "the append is made, the answer is an error"),
    "append_timeout": Kind("append", 3, "the append is made, and the error comes seconds later"),
    "append_twice": Kind(
        "append", 3, "the request arrives twice; the second answer is the one that is heard"
    ),
    "append_stalled": Kind("append", 3, "the append is made seconds late"),
    "intent_fails": Kind("intent", 5, "the append with the intent of an effect isn't made, for a while"),
    "intent_unheard": Kind(
        "intent", 4, "the append with the intent of an effect is made, the answer is an error"
    ),
    "torn_batch": Kind("append", 3, "the blobs are written and the rows are not"),
    "store_busy": Kind("store", 3, "one read or change of ownership fails"),
    "store_answer_lost": Kind("store", 3, "it is done, the answer is an error"),
    "store_failing": Kind("store", 3, "every request of every host fails for seconds"),
    "store_slow": Kind("store", 3, "one request takes seconds"),
    # --- hosts and time ---
    "crash": Kind("time", 3, "a host dies at some moment"),
    "zombie": Kind("time", 5, "a host is taken for dead and goes on with an old epoch"),
    "frozen_host": Kind("time", 4, "a host stands still, is given up, and goes on"),
    "clock_forward": Kind("time", 3, "the store's clock is set forward"),
    "clock_back": Kind("time", 3, "the store's clock is set back"),
    "definition_changed": Kind("time", 3, "a host is replaced by one with other definitions"),
    "resource_changed": Kind("time", 4, "what was previewed has another version now"),
    "policy_changed": Kind("time", 2, "a host is replaced by one with another policy"),
    "kill_switch": Kind("time", 2, "a switch is turned on, and off again later"),
    "late_signal": Kind("time", 2, "what became ready is told seconds late from here on"),
    # --- executors and far sides ---
    "crash_before_dispatch": Kind("dispatch", 3, "the intent is durable and the host dies before it sends"),
    "crash_after_dispatch": Kind("dispatch", 4, "it is sent and the host dies at once"),
    "crash_at_report": Kind("dispatch", 4, "the host dies as the report arrives"),
    "report_lost": Kind("dispatch", 4, "it takes effect and nobody is ever told"),
    "report_late": Kind("dispatch", 4, "the report comes after the attempt was given up"),
    "report_twice": Kind("dispatch", 4, "the same report comes twice"),
    "report_reordered": Kind("dispatch", 3, "the report comes after those of later calls"),
    "executed_but_timed_out": Kind("dispatch", 5, "it takes effect and is reported as timed out"),
    "arrives_late": Kind("dispatch", 3, "it is reported as timed out and takes effect after that"),
    "request_lost": Kind("dispatch", 3, "it never arrives and is reported as timed out"),
    "executor_lost": Kind("dispatch", 3, "the executor dies, before or after the effect"),
    "tool_raises": Kind("dispatch", 3, "the tool raises, before or after the effect"),
    "tool_refuses": Kind("dispatch", 3, "the tool refuses, with proof that nothing took effect"),
    "output_invalid": Kind("dispatch", 3, "it takes effect and its result isn't what the tool declares"),
    "approved_moved_on": Kind(
        "approved", 5, "what was approved is refused, with proof, since its order has changed meanwhile"
    ),
    "queryable_lost": Kind(
        "queryable", 4, "what can be asked about never arrives and is reported as timed out"
    ),
    "queryable_late": Kind(
        "queryable", 4, "what can be asked about is reported as timed out and arrives after that"
    ),
    "queryable_unheard": Kind(
        "queryable", 4, "what can be asked about takes effect and is reported as timed out"
    ),
    "word_after_absent": Kind(
        "queryable", 8, "its far side is behind and says that there is nothing, and then its report comes"
    ),
    "query_fails": Kind("query", 11, "the far side can't say"),
    "query_late": Kind("query", 8, "the far side's answer comes seconds after it was true"),
    "crash_at_query": Kind("query", 10, "the host dies while it asks the far side"),
    # --- the application's checks ---
    "check_unknown": Kind("check", 4, "a check gives no answer"),
    "check_raises": Kind("check", 4, "a check raises"),
    "policy_denies": Kind("check", 2, "the policy denies, sometimes for good"),
    # --- models ---
    "truncated": Kind("model", 2, "the turn was cut"),
    "refused": Kind("model", 2, "the model refuses"),
    "filtered": Kind("model", 1, "the content was filtered"),
    "paused": Kind("model", 3, "the turn is paused and goes on with the next request"),
    "context_exceeded": Kind("model", 2, "the provider says that the context is too long"),
    "model_error": Kind("model", 3, "the model fails"),
    "provider_error": Kind("model", 3, "the provider fails and says when to come again"),
    "transport_broken": Kind("model", 3, "the answer breaks off"),
    "unknown_finish": Kind("model", 2, "a finish that nobody has heard of"),
    "model_raises": Kind("model", 2, "the adapter raises"),
    "model_silent": Kind("model", 2, "no answer ever comes"),
    "crash_at_reply": Kind("model", 4, "the host dies as the answer arrives"),
    "overrun": Kind("model", 3, "the provider reports more than was reserved"),
    "usage_unknown": Kind("model", 2, "the provider reports no usage, or an absurd one"),
    "hostile_calls": Kind("model", 4, "arguments, names and ids that no honest model writes"),
    "too_many_calls": Kind("model", 2, "more calls than a turn may have"),
    "same_effect_again": Kind("model", 3, "the same effect is asked for again in other words"),
    # --- people ---
    "approval_race": Kind("person", 4, "a yes and a no, or two answers, at the same time"),
    "approval_expiry": Kind("person", 4, "nobody decides in time"),
    "decided_twice": Kind("person", 4, "the same command comes twice, and another one after it"),
    "order_changed": Kind(
        "person", 6, "what somebody is asked about changes, and others decide by what they saw first"
    ),
    "cancel": Kind("time", 2, "somebody cancels a run"),
    "cancel_storm": Kind("time", 2, "every run is cancelled, several times over"),
    "message": Kind("time", 4, "somebody says something to a run, or puts a fact on record"),
    "limits_raised": Kind("time", 2, "limits are raised while the run goes on"),
}

APPEND_KINDS: Final = tuple(name for name, kind in KINDS.items() if kind.point == "append")
