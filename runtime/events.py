"""What happened: the immutable, tagged events of a run's log.

Events are facts in the past tense. They are written once, as msgpack arrays tagged by an explicit string, and decoded
strictly. A new field goes to the end with a default and gets golden bytes; a changed meaning gets a new tag
(``call_proposed@2``) and an ADR. ``seq``, ``version`` and ``at`` of an event belong to the row that holds it.

Hashes are raw 32-byte sha256. Times are store milliseconds. Money is integer micro-units. ``call`` is the runtime's
own call id (``c<turn>.<index>``), never the provider's. ``command_id`` and ``command_sha256`` name the outside command that a
fact answers (``commands.command_sha256``); both are empty where there was none.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .model import SideAttempt, Usage
from .taint import TaintSource

Verdict = Literal["allow", "deny", "unknown", "ask"]
EndsBy = Literal["", "policy_denied", "approval_denied", "kill_switch"]
"""Why a run ends after a denial for good."""
Rung = Literal[
    "known",
    "json",
    "schema",
    "provenance",
    "check",
    "authorisation",
    "policy",
    "taint",
    "guardrail",
    "price",
    "switch",
    "limits",
    "ledger",
    "progress",
    "preview",
    "approval",
    "definition",
    "answer",
    "execute",
    "result",
]


class RungVerdict(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One check's answer. ``code`` says why it isn't ``allow``; ``revision`` is that of the policy or check."""

    rung: Rung
    verdict: Verdict
    code: str = ""
    revision: str = ""


class Revisions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a call was checked under, where that isn't what its run was started with."""

    policy_revision: str
    definition_sha256: bytes
    handler_revision: str


class Source(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a result's data came from: the version of the source, empty if none was said, and when the source was read in
    milliseconds, 0 for when the result arrived. The tool's word."""

    version: str
    observed_at_ms: int = 0


class Event(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of all events."""


# --- run ---------------------------------------------------------------------------------------------------------


class RunStarted(Event, frozen=True, tag="run_started"):
    """The run exists. ``pins_sha256`` names the blob with everything that is fixed for the run (``pins.Pins``).
    ``dense``: it may share its host with many others; a hint for placement that decides nothing. ``deadline_at_ms``: a
    child's deadline is never after this, whenever it is created; 0 for a run without a parent. ``limits``: a child's, where
    they differ from the pinned ones, by name and ``tool_calls_each.<tool>``; so children of one agent share their pins.
    ``tainted_by``: words of outsiders that this input was written under, or is.
    ``given``: the run's typed inputs, canonical JSON, which ``from_results`` may admit."""

    run_id: str
    tenant: str
    principal: str
    operation_id: str
    agent: str
    input: str
    pins_sha256: bytes
    application: str = ""
    parent_run: str = ""
    parent_call: str = ""
    depth: int = 0
    as_of: str = ""
    trace: str = ""
    on_stop: Literal["suspend", "end"] = "suspend"
    dense: bool = False
    deadline_at_ms: int = 0
    limits: dict[str, int] = {}
    tainted_by: tuple[TaintSource, ...] = ()
    given: bytes = b""


class RunResumed(Event, frozen=True, tag="run_resumed"):
    """A host took the run under ``epoch``. The fold closes nothing by itself: the same append carries the facts about
    intents of older epochs."""

    epoch: int
    cause: Literal["host_died", "woken", "command", "resume", "resolved"]
    host: str = ""
    by: str = ""
    command_id: str = ""
    command_sha256: bytes = b""


class DefinitionAdopted(Event, frozen=True, tag="definition_adopted"):
    """From here on the run goes by another definition of this tool: that of the application which took it up. ``was_sha256``
    and ``definition_sha256`` are definition hashes. ``definition`` is its JSON; empty, and so is its hash, where the
    application has no such tool any more: it isn't offered until it is adopted again."""

    tool: str
    was_sha256: bytes
    definition_sha256: bytes = b""
    definition: bytes = b""


class MessageReceived(Event, frozen=True, tag="message_received"):
    """Text for the history: by a person (``by``), or by the runtime (a corrective request). A person's text joins the
    history at the next place where it may stand (``fold.take_in``): never between a call and its result, nor while a
    request is out."""

    source: Literal["user", "runtime"]
    text: str
    command_id: str = ""
    command_sha256: bytes = b""
    by: str = ""


class LimitsRaised(Event, frozen=True, tag="limits_raised"):
    """New, higher values of named limits; a limit is never lowered."""

    raised: dict[str, int]
    by: str
    command_id: str = ""
    command_sha256: bytes = b""


class CancelRequested(Event, frozen=True, tag="cancel_requested"):
    """No new intent from here on; what is open is closed, then the run ends."""

    reason: Literal["by_user", "by_parent", "kill_switch"]
    by: str
    command_id: str = ""
    command_sha256: bytes = b""


class CloseRequested(Event, frozen=True, tag="close_requested"):
    """A stopped or waiting run is to end with the outcome it stopped with."""

    by: str
    command_id: str = ""
    command_sha256: bytes = b""


class RunSuspended(Event, frozen=True, tag="run_suspended"):
    """A stop that someone can lift. ``unfinished`` names open predicates and calls without success."""

    outcome: str
    reason: str
    unfinished: tuple[str, ...] = ()
    detail: str = ""


class RunTerminated(Event, frozen=True, tag="run_terminated"):
    """The end. Only ``call_reconciled`` may follow."""

    outcome: str
    reason: str
    unfinished: tuple[str, ...] = ()
    detail: str = ""


# --- model -------------------------------------------------------------------------------------------------------


class SideReserved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a request sets aside for all side attempts together, beside its own bounds."""

    attempts: int
    input_tokens: int
    output_tokens: int
    cost_micros: int


class SideSpent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the side attempts of one request came to, in all. ``made``: those that were reported, the first of them if there
    were many (``side_bounds.SIDE_ATTEMPTS_MAX``); none where nobody knows what was made of the reservation."""

    attempts: int
    input_tokens: int
    output_tokens: int
    cost_micros: int
    made: tuple[SideAttempt, ...] = ()


class TokenData(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Token-level data that came with an answer: the hash of its blob, and how many bytes it has. Without a hash it was too
    large, or withheld, and isn't kept."""

    sha256: bytes | None
    size: int


class ModelRequested(Event, frozen=True, tag="model_requested"):
    """Intent to send a request for the first ``items`` history items, with its reservations. ``side``: what is set aside for
    side attempts beside them; None where the adapter declares none."""

    turn: int
    attempt: int
    request_sha256: bytes
    items: int
    input_tokens_bound: int
    output_tokens_max: int
    cost_bound_micros: int
    side: SideReserved | None = None


class ModelResponded(Event, frozen=True, tag="model_responded"):
    """A turn arrived whole. ``spent_*`` settle the reservation: the reported usage, or the bounds if unknown.
    ``hosted``: how often which declared tool of the provider's own was at work for it. ``side``: the side attempts made for it,
    which ``spent_*`` include; None for none. ``tokens``: what the backend said of it token by token; None for nothing."""

    turn: int
    attempt: int
    finish: str
    finish_raw: str
    text: str
    calls: int
    usage: Usage | None
    spent_input_tokens: int
    spent_output_tokens: int
    spent_cost_micros: int
    response_id: str = ""
    served_model: str = ""
    continuation: bytes | None = None
    first_token_ms: int = 0
    total_ms: int = 0
    hosted: tuple[tuple[str, int], ...] = ()
    side: SideSpent | None = None
    tokens: TokenData | None = None


class ModelFailed(Event, frozen=True, tag="model_failed"):
    """No usable turn. ``retry_at_ms`` 0 means no further attempt. The reservation is spent as said,
    ``side`` as in ``model_responded``."""

    turn: int
    attempt: int
    code: str
    retryable: bool
    retry_at_ms: int
    spent_input_tokens: int
    spent_output_tokens: int
    spent_cost_micros: int
    finish_raw: str = ""
    safe_message: str = ""
    response_id: str = ""
    side: SideSpent | None = None


# --- call --------------------------------------------------------------------------------------------------------


class CallProposed(Event, frozen=True, tag="call_proposed"):
    """The model asked for this. ``arguments`` are its raw bytes; where they held a secret, what was left of them, with the
    path of the first in ``withheld``."""

    call: str
    tool: str
    arguments: bytes
    provider_call_id: str = ""
    withheld: str = ""


class CallValidated(Event, frozen=True, tag="call_validated"):
    """The ladder let it pass up to the approval. ``arguments`` are the canonical bytes, None if equal to the raw
    ones. ``key`` and ``intent_sha256`` are None for reads. ``under``: None for the pinned revisions. ``price_micros``: what the
    tool's price says of these arguments; None for a fixed cost."""

    call: str
    arguments: bytes | None
    args_sha256: bytes
    verdicts: tuple[RungVerdict, ...] = ()
    key: bytes | None = None
    intent_sha256: bytes | None = None
    under: Revisions | None = None
    price_micros: int | None = None


class CallRejected(Event, frozen=True, tag="call_rejected"):
    """The first rung that refused. Nothing was dispatched; the text goes to the model in the bound result."""

    call: str
    rung: Rung
    code: str
    safe_message: str
    path: str = ""
    retryable: bool = False
    terminal: bool = False
    verdicts: tuple[RungVerdict, ...] = ()


class CallsRejected(Event, frozen=True, tag="calls_rejected"):
    """Calls beyond ``calls_per_turn_max``, refused and bound as one. ``calls`` are (provider call id, name)."""

    turn: int
    first_index: int
    code: str
    calls: tuple[tuple[str, str], ...]


class ApprovalRequested(Event, frozen=True, tag="approval_requested"):
    """One decision is asked for. ``preview`` is canonical JSON made by the runtime from the real arguments."""

    call: str
    approval_id: str
    round: int
    preview: bytes
    preview_sha256: bytes
    args_sha256: bytes
    definition_sha256: bytes
    policy_revision: str
    resource_version: str
    expires_at_ms: int


class ApprovalDecided(Event, frozen=True, tag="approval_decided"):
    """A person's decision, single-use."""

    call: str
    approval_id: str
    decision: Literal["approve", "reject"]
    approver: str
    reason: str = ""
    command_id: str = ""
    command_sha256: bytes = b""


class ApprovalLapsed(Event, frozen=True, tag="approval_lapsed"):
    """The approval can't be used (any more). ``settled_elsewhere``: a lost attempt turned out to have taken effect."""

    call: str
    approval_id: str
    why: Literal["expired", "stale", "cancelled", "settled_elsewhere"]
    what: str = ""


class QuestionAsked(Event, frozen=True, tag="question_asked"):
    """A call of the question tool is put to people. Only one of ``choices`` answers it, if there are any.
    ``request_sha256`` as in ``call_started``: the answer is bound to it."""

    call: str
    question_id: str
    question: str
    choices: tuple[str, ...]
    expires_at_ms: int
    request_sha256: bytes


class QuestionAnswered(Event, frozen=True, tag="question_answered"):
    """A person's answer, single-use. ``result`` is canonical JSON; None: the person can't answer, and ``stop`` says that
    the run isn't to go on without."""

    call: str
    question_id: str
    result: bytes | None
    by: str
    reason: str = ""
    stop: bool = False
    command_id: str = ""
    command_sha256: bytes = b""


class CallWaiting(Event, frozen=True, tag="call_waiting"):
    """The key is held elsewhere: a durable wait, no process. ``succeeded``: what became of it is recorded, and is judged before
    the model sees it."""

    call: str
    key: bytes
    holder_run: str
    holder_call: str
    why: Literal["in_flight", "approval", "unknown", "succeeded"]


class CallStarted(Event, frozen=True, tag="call_started"):
    """Intent: the call is dispatched under ``attempt`` after this is durable. ``valid_until_ms`` bounds the dispatch; of
    a quick read, which has no effect, it bounds what its own code may take, and may be dispatched 1 s later.
    ``request_sha256`` is the hash of the protected request (``binding.request_sha256``), ``under`` what it was checked
    under last: None for the pinned revisions. ``price_micros`` is set aside for it; None: what the definition says."""

    call: str
    attempt: int
    valid_until_ms: int
    request_sha256: bytes
    verdicts: tuple[RungVerdict, ...] = ()
    under: Revisions | None = None
    price_micros: int | None = None


class CallExecuted(Event, frozen=True, tag="call_executed"):
    """What an attempt came to. ``unknown`` only for effects. ``result`` is canonical JSON; a result too large to
    show is a blob (``artifact``) with ``size`` bytes in all, and ``result`` is its bounded view. ``met`` then has the
    numbers of the run's predicates that the whole result meets (``goal.predicates_met``), and ``facts`` the declared facts
    that it holds (canonical JSON by name); None: ``result`` is whole.
    ``source``: None if the tool said nothing of it. ``values``: of a large result, the digests of what the run's declarations
    watch in the whole of it (``provenance.Watched``), one behind the other. ``spent_micros`` settles what was set aside; None:
    all of it was spent."""

    call: str
    attempt: int
    outcome: Literal["succeeded", "failed", "unknown"]
    result: bytes | None = None
    result_sha256: bytes | None = None
    code: str = ""
    safe_message: str = ""
    retryable: bool = False
    retry_at_ms: int = 0
    duration_ms: int = 0
    artifact: bytes | None = None
    size: int = 0
    progress_sha256: bytes | None = None
    met: tuple[int, ...] | None = None
    source: Source | None = None
    facts: dict[str, bytes] = {}
    values: bytes | None = None
    spent_micros: int | None = None


class CallReconciled(Event, frozen=True, tag="call_reconciled"):
    """What became known of an unknown effect. ``applied`` and ``absent`` settle it; ``unknown`` counts one query.

    ``code`` is empty or ``output_invalid``: it took effect, and what it returned can't be shown. ``result`` is then None.
    ``met``, ``source`` and ``values`` as in ``call_executed``. ``ends``: sending it again was denied for good, and so the run ends,
    for this reason; the effect stays unknown.
    """

    call: str
    outcome: Literal["applied", "absent", "unknown"]
    by: str
    result: bytes | None = None
    result_sha256: bytes | None = None
    reason: str = ""
    next_query_at_ms: int = 0
    command_id: str = ""
    code: str = ""
    command_sha256: bytes = b""
    met: tuple[int, ...] | None = None
    source: Source | None = None
    values: bytes | None = None
    ends: EndsBy = ""


class ResultGuarded(Event, frozen=True, tag="result_guarded"):
    """A guardrail judged what an execution, or a recorded effect, would show the model; only ``allow`` is shown.
    ``input_sha256`` is what was judged (``guardrails.result_sha256``)."""

    call: str
    verdict: Verdict
    code: str
    revision: str
    input_sha256: bytes


class AnswerGuarded(Event, frozen=True, tag="answer_guarded"):
    """A guardrail judged the final text of this turn; only ``allow`` completes. ``input_sha256``: ``guarded.answer_sha256``."""

    turn: int
    verdict: Verdict
    code: str
    revision: str
    input_sha256: bytes


class ReplayedFrom(msgspec.Struct, frozen=True, array_like=True):
    """Where a replayed result was made, and when."""

    run: str
    call: str
    at_ms: int
    arguments_differ: bool = False


class ResultBound(Event, frozen=True, tag="result_bound"):
    """The one result of a call. ``result`` is None when it is the executed or reconciled one."""

    call: str
    status: Literal["ok", "error"]
    code: str
    binding_sha256: bytes
    safe_message: str = ""
    result: bytes | None = None
    replayed: ReplayedFrom | None = None


# --- tree --------------------------------------------------------------------------------------------------------


class ChildReserved(Event, frozen=True, tag="child_reserved"):
    """Goes with the ``call_started`` of a call of an agent: the lease of the child run, set aside before that run exists.

    ``granted`` is by the names of the metered limits, and ``tool_calls_each.<tool>``; cost isn't named where it is waived.
    ``child_run`` is derived from the run and the call. The child's deadline is ``deadline_at_ms``, never after the parent's.
    """

    call: str
    child_run: str
    agent: str
    granted: dict[str, int]
    deadline_at_ms: int


class ChildStarted(Event, frozen=True, tag="child_started"):
    """The child run exists. Until it ends this run may wait without a host."""

    call: str
    child_run: str


class ChildToppedUp(Event, frozen=True, tag="child_topped_up"):
    """So much more is set aside for a child that ran out, before the child is told (``limits_raised`` in its own log)."""

    call: str
    granted: dict[str, int]
    by: str
    command_id: str = ""
    command_sha256: bytes = b""


class UnknownBelow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An effect of a run below that may or may not have happened. Without ``call`` and ``tool`` the run's whole log can't be
    read: nobody knows what it did."""

    run: str
    call: str
    tool: str


class ChildSettled(Event, frozen=True, tag="child_settled"):
    """The lease is closed by what the child's own log says that it spent; the rest is free again. Its outcome is that of
    the ended child; ``call_executed`` follows in the same append. ``effects`` counts, by tool, what took effect in the child
    and below it; ``unknown`` names the first ``UNKNOWN_BELOW_MAX`` of which nobody knew at its end, ``unknown_more`` counts
    the others. ``tainted_by``: words of outsiders that the child's model had read."""

    call: str
    child_run: str
    spent: dict[str, int]
    outcome: str
    reason: str
    effects: dict[str, int] = {}
    unknown: tuple[UnknownBelow, ...] = ()
    unknown_more: int = 0
    tainted_by: tuple[TaintSource, ...] = ()


class StageEntered(Event, frozen=True, tag="stage_entered"):
    """A staged run goes on to its next stage, in the append of the result that earned it. ``because``: the calls whose bound
    results are the evidence that ``left`` asked for."""

    stage: str
    left: str
    because: tuple[str, ...]


class LeaseDenied(Event, frozen=True, tag="lease_denied"):
    """In a child's log: no run above it has more of these limits for it, so they stand as they are. ``by`` is
    ``run:`` and its parent's id."""

    by: str
    limits: tuple[str, ...]


# --- context -----------------------------------------------------------------------------------------------------


class ContextCompacted(Event, frozen=True, tag="context_compacted"):
    """The turns among the first ``until`` items of the context became digests; ``terse``: and all digests lost their quotes.

    The fold makes them, by the rules of ``revision``. What must come out is counted and hashed: ``items``,
    ``history_bytes`` and ``context_sha256`` (the rolling hash) of the context after it. ``number`` counts from 1 in its run.
    """

    number: int
    until: int
    terse: bool
    items: int
    history_bytes: int
    context_sha256: bytes
    revision: str


class FactRecorded(Event, frozen=True, tag="fact_recorded"):
    """A typed fact, by a tool's declaration from the result of ``call``, or by the host (``by``) and then without a call.
    ``value`` is canonical JSON of a scalar."""

    name: str
    value: bytes
    call: str = ""
    by: str = ""
    command_id: str = ""
    command_sha256: bytes = b""


AnyEvent = (
    RunStarted
    | RunResumed
    | DefinitionAdopted
    | MessageReceived
    | LimitsRaised
    | CancelRequested
    | CloseRequested
    | RunSuspended
    | RunTerminated
    | ModelRequested
    | ModelResponded
    | ModelFailed
    | CallProposed
    | CallValidated
    | CallRejected
    | CallsRejected
    | ApprovalRequested
    | ApprovalDecided
    | ApprovalLapsed
    | QuestionAsked
    | QuestionAnswered
    | CallWaiting
    | CallStarted
    | CallExecuted
    | CallReconciled
    | ResultBound
    | ResultGuarded
    | AnswerGuarded
    | ChildReserved
    | ChildStarted
    | ChildToppedUp
    | ChildSettled
    | LeaseDenied
    | StageEntered
    | ContextCompacted
    | FactRecorded
)

Commanded = (
    RunResumed
    | MessageReceived
    | LimitsRaised
    | CancelRequested
    | CloseRequested
    | ApprovalDecided
    | QuestionAnswered
    | CallReconciled
    | ChildToppedUp
    | FactRecorded
)
"""Facts that may answer an outside command."""


def tag_of(event: Event) -> str:
    """The explicit tag that is stored for this event."""
    return str(type(event).__struct_config__.tag)


EVENT_TYPES: tuple[type[Event], ...] = AnyEvent.__args__
EVENTS_BY_TAG: dict[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in EVENT_TYPES}
EVENT_VERSION: dict[str, int] = {tag: int(tag.partition("@")[2] or 1) for tag in EVENTS_BY_TAG}
