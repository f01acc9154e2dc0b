"""The state of a run: what the fold of its log makes, and all that decisions are made from.

A ``State`` belongs to one fold or one driver, which alone changes it, event by event (``fold.evolve``). It holds no
clock, no handle and nothing that isn't in the log. Two states folded from the same log are equal, field by field.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from .budget import UNLIMITED, Meter
from .events import Revisions, SideReserved, Source, UnknownBelow
from .limits import LimitValues
from .model import Item
from .pins import Pins
from .provenance import Seen
from .taint import Sources
from .tool_definition import ToolDefinition
from .transitions import CallPhase, RunPhase

ZERO_DIGEST = bytes(32)
EACH = "tool_calls_each."
"""Before a tool's name, what a lease calls the limit on calls of that tool."""

UNKNOWN_BELOW_MAX = 64
"""How many unknown effects of runs below one are named in its log for each of its children, and kept of all of them."""


def run_name(run_id: str) -> str:
    """How a run that acts on another one of its tree is named there."""
    return f"run:{run_id}"


class ApprovalState(msgspec.Struct, gc=False):
    """The approval that a call waits for or has. ``decision`` is empty while nobody decided."""

    approval_id: str
    round: int
    preview: bytes
    preview_sha256: bytes
    args_sha256: bytes
    definition_sha256: bytes
    policy_revision: str
    resource_version: str
    requested_at_ms: int
    expires_at_ms: int
    decision: str = ""
    approver: str = ""
    reason: str = ""


class QuestionState(msgspec.Struct, gc=False):
    """The question that a call puts to people."""

    question_id: str
    question: str
    choices: tuple[str, ...]
    asked_at_ms: int
    expires_at_ms: int


class ChildState(msgspec.Struct, gc=False):
    """The child run that a call waits for, and its lease."""

    run_id: str
    agent: str
    granted: dict[str, int]
    deadline_at_ms: int
    started: bool = False
    untrusted: Sources = ()
    """What the child's model had read of outsiders, as of its end."""


class FactState(msgspec.Struct, frozen=True, gc=False):
    """The latest value of one fact: canonical JSON of a scalar, the call that it is from (none: the host recorded it), when, and the
    seq of its event."""

    value: bytes
    call: str
    at_ms: int
    seq: int


class CallState(msgspec.Struct, gc=False):
    """One proposed call of the open turn, from proposal to its bound result."""

    call: str
    turn: int
    index: int
    tool: str
    provider_call_id: str
    raw: bytes
    phase: CallPhase
    stage: int = 0
    """That of the run when the call was proposed; 0 without stages."""
    # validated
    arguments: bytes | None = None
    args_sha256: bytes = b""
    key: bytes | None = None
    intent_sha256: bytes | None = None
    checked_seq: int = 0
    under: Revisions | None = None
    holds_key: bool = False
    # approval
    approval: ApprovalState | None = None
    approval_rounds: int = 0
    # waiting for a key
    holder_run: str = ""
    holder_call: str = ""
    holder_why: str = ""
    # execution
    attempt: int = 0
    attempt_epoch: int = 0
    started_at_ms: int = 0
    valid_until_ms: int = 0
    request_sha256: bytes = b""
    price_micros: int | None = None
    reserved_micros: int = 0
    outcome: str = ""
    code: str = ""
    safe_message: str = ""
    path: str = ""
    rung: str = ""
    retryable: bool = False
    terminal: bool = False
    retry_at_ms: int = 0
    result: bytes | None = None
    result_sha256: bytes | None = None
    artifact: bytes | None = None
    size: int = 0
    observed_at_ms: int = 0
    progress_sha256: bytes | None = None
    met: tuple[int, ...] | None = None
    values: bytes | None = None
    source: Source | None = None
    facts: dict[str, bytes] = {}
    resend_denied: bool = False
    queries: int = 0
    next_query_at_ms: int = 0
    # bound
    binding_sha256: bytes = b""
    status: str = ""
    replayed: bool = False
    content: bytes = b""
    # judged by a guardrail
    guarded: str = ""
    # a call of an agent
    child: ChildState | None = None
    # a call of the question tool
    question: QuestionState | None = None
    withheld: str = ""

    @property
    def open(self) -> bool:
        """Whether its result is still to be bound."""
        return self.phase != "bound"

    @property
    def rechecked(self) -> bool:
        """Whether every dispatch is checked again first: effects, and reads that a person was asked about."""
        return self.key is not None or self.approval is not None


class Counters(msgspec.Struct):
    """What is counted beside the meters; see ``docs/counters.md`` for each definition."""

    denials: int = 0
    failures: int = 0
    invalid_streak: int = 0
    idle_turns: int = 0
    corrective_turns: int = 0
    host_deaths: int = 0
    calls_refused: int = 0
    calls_proposed: int = 0
    active_ms: int = 0
    history_bytes: int = 0
    hosted_calls: int = 0
    messages: int = 0
    side_attempts: int = 0
    side_overrun: int = 0


class Meters(msgspec.Struct):
    """One meter per reserved quantity; the law of ``budget`` holds for each at every event."""

    turns: Meter
    model_attempts: Meter
    tool_calls: Meter
    call_attempts: Meter
    input_tokens: Meter
    output_tokens: Meter
    total_tokens: Meter
    cost_micros: Meter
    children: Meter

    @staticmethod
    def of(limits: LimitValues) -> Meters:
        """Everything granted, nothing used."""
        return Meters(
            turns=Meter(limits.turns),
            model_attempts=Meter(limits.model_attempts),
            tool_calls=Meter(limits.tool_calls),
            call_attempts=Meter(limits.call_attempts),
            input_tokens=Meter(limits.input_tokens),
            output_tokens=Meter(limits.output_tokens),
            total_tokens=Meter(limits.total_tokens),
            cost_micros=Meter(UNLIMITED if limits.cost_micros is None else limits.cost_micros),
            children=Meter(limits.children),
        )


METERED = Meters.__struct_fields__
"""Names of the metered limits; equal to the names in ``LimitValues``."""


class State(msgspec.Struct):
    """Everything known of one run."""

    # identity and pins
    run_id: str
    pins: Pins
    pins_sha256: bytes
    limits: LimitValues
    tools: dict[str, ToolDefinition]
    request_head_sha256: bytes
    request_head_bytes: int
    meters: Meters
    tenant: str = ""
    principal: str = ""
    operation_id: str = ""
    agent: str = ""
    application: str = ""
    parent_run: str = ""
    parent_call: str = ""
    depth: int = 0
    on_stop: str = "suspend"
    as_of: str = ""
    trace: str = ""
    deadline_cap_ms: int = 0
    """The latest deadline that the parent's lease allows; 0 for a run without a parent."""
    lease_raises: int = 0
    """How often the parent gave more; with what is asked for it names the next question."""
    lease_denied: tuple[str, ...] = ()
    """Limits of which no run above has more for this one."""
    # where it is
    seq: int = 0
    at_ms: int = 0
    started_at_ms: int = 0
    deadline_at_ms: int = 0
    epoch: int = 0
    phase: RunPhase = ""
    resume_phase: RunPhase = ""
    outcome: str = ""
    reason: str = ""
    detail: str = ""
    unfinished: tuple[str, ...] = ()
    final_text: str = ""
    cancel_reason: str = ""
    cancel_by: str = ""
    close_requested: bool = False
    # the model turn
    turn: int = 0
    model_attempt: int = 0
    model_attempts_before: int = 0
    model_epoch: int = 0
    model_retry_at_ms: int = 0
    model_code: str = ""
    requested_at_ms: int = 0
    reserved_input: int = 0
    reserved_output: int = 0
    reserved_cost: int = 0
    reserved_side: SideReserved | None = None
    """What of these the open request has for side attempts, and how many; None for none."""
    request_sha256: bytes = b""
    response_id: str = ""
    finish: str = ""
    last_text: str = ""
    answer_verdict: str = ""
    answer_code: str = ""
    calls: dict[str, CallState] = {}
    surplus: tuple[tuple[str, str], ...] = ()
    turn_result_bytes: int = 0
    turn_progress: bool = False
    stop_after_turn: str = ""
    stop_detail: str = ""
    approval_expired_for: str = ""
    # history
    items: list[Item] = []
    """The context of the next request: the history, with digests in place of the turns that were compacted."""
    rolling_sha256: bytes = ZERO_DIGEST
    continuation: bytes | None = None
    # counters and evidence
    counters: Counters = msgspec.field(default_factory=Counters)
    calls_each: dict[str, int] = {}
    repeats: dict[bytes, int] = {}
    equal_results: dict[bytes, int] = {}
    result_pairs: dict[bytes, int] = {}
    results_seen: dict[bytes, int] = {}
    definitions: dict[str, bytes] = {}
    """Tools that go by an adopted definition, and its hash; empty for one that was withdrawn."""
    starts: dict[str, list[int]] = {}
    """When the last calls of tools with a rate were started, as many as the rate counts."""
    run_versions: dict[str, str] = {}
    """Groups of reads that have one source version in the whole run, and which one."""
    evidence: list[int] = []
    stage: int = 0
    """The number of the stage that the run is in; 0 without stages."""
    stage_evidence: list[int] = []
    stage_calls: list[str] = []
    """Calls whose results count for leaving this stage."""
    given: bytes = b""
    values_seen: dict[bytes, tuple[int, int]] = {}
    """Digest of a value that is watched -> the turn that first had it, and which of ``sources_seen`` had it last."""
    sources_seen: list[Seen] = []
    values_left_out: int = 0
    succeeded_tools: dict[str, int] = {}
    effects: dict[str, int] = {}
    """By tool, how often an effect of this run is known to have happened; replays are none."""
    effects_below: dict[str, int] = {}
    """The same of the ended runs below this one, as of their end."""
    unknown_calls: dict[str, CallState] = {}
    absent_calls: dict[str, CallState] = {}
    """Bound calls whose last attempt was lost and then found to have done nothing. Should it report success after all, that is
    on record."""
    unknown_below: tuple[UnknownBelow, ...] = ()
    """Unknown effects of those; at most ``UNKNOWN_BELOW_MAX``, and ``unknown_more`` beyond."""
    unknown_more: int = 0
    untrusted: Sources = ()
    """What of outsiders the model has read by now; see ``taint``."""
    commands: dict[str, int] = {}
    """Accepted outside commands: command id -> seq of its event."""
    command_digests: dict[str, bytes] = {}
    """Command id -> ``commands.command_sha256``: what was accepted under that id."""
    unread: list[str] = []
    """Messages of people that are on record and couldn't join the history yet."""
    # context
    requested_items: int = 0
    """How many of ``items`` the open request holds."""
    compactions: int = 0
    reading: bool = False
    """Whether ``read_result`` is offered: something was truncated or compacted."""
    approvals: dict[str, str] = {}
    """Call -> what was decided about its latest preview."""
    facts: dict[str, FactState] = {}
    facts_recorded: int = 0
    """How often the host recorded one."""
    waiting_facts: list[str] = []
    """Facts that the host recorded while a turn was under way: their latest values join ``items`` after it."""

    stopped_at_ms: int = 0
    """When it stopped or ended last."""

    @property
    def live(self) -> bool:
        """Neither stopped nor ended."""
        return self.phase not in ("suspended", "terminated")


def state_digest(state: State) -> bytes:
    """One hash over every field, for comparing a replay with a live state. Not stored anywhere.

    Pins and tools are covered by ``pins_sha256``: pins that were read back hold the same keys in another order.
    """
    covered = ("pins", "tools")
    fields = [getattr(state, name) for name in State.__struct_fields__ if name not in covered]
    return sha256(msgspec.msgpack.encode(fields)).digest()
