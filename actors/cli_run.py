"""``run``: start a run of an application, or go on with one, and follow it to its end or a wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, TypedDict, TypeVar, Unpack
from uuid import uuid4

import click
import msgspec

from ..eventstore.event_line import event_line
from ..runtime.canonical import JSON
from ..runtime.commands import CommandAnswer, Resume
from ..runtime.errors import BoundloopError, StoreError
from ..runtime.events import AnyEvent, ModelResponded, tag_of
from ..runtime.state import State
from ..runtime.strict_json import JsonRefused, parse_object
from .application import load_application, misfit
from .cli_output import FAILED, LIMIT, OK, WAITING, Output, Refused
from .cli_session import approver, error_of_answer, new_command_id, output_option, store_option_of
from .cli_text import cut, plain, quoted, safe_json, safe_lines, safe_text, shown_json, span, when
from .client import Runtime
from .result import Result
from .run_options import InputTrust
from .streaming import Committed

TEXT_CHARS_MAX: Final = 120
OUTAGES_MAX: Final = 10
"""So often one read is waited with until the store's server is back."""

_LIMIT_REASONS: Final = (
    "max_turns",
    "max_tool_calls",
    "budget_tokens",
    "budget_cost",
    "deadline",
    "context_exhausted",
)

F = TypeVar("F", bound=Callable[..., Any])


class OnRay(TypedDict):
    """What ``ray_options`` give, as ``Application.runtime`` takes it."""

    ray: str | None
    run_actors: int | None
    warm_actors: int | None
    dense_actors: int | None


def ray_options(function: F) -> F:
    """``--ray``, and how many actors; a count that isn't given is the application's."""
    for option, says in (
        ("--dense-actors", "Actors that take many runs each."),
        ("--warm-actors", "Run actors that stand ready."),
        ("--run-actors", "Runs that have an actor to themselves at once."),
    ):
        function = click.option(option, type=int, default=None, metavar="N", help=says)(function)
    return click.option(
        "--ray",
        default=None,
        metavar="WHERE",
        help='On Ray: "local" starts it here, "require" or an address joins a cluster.',
    )(function)


@click.command()
@click.argument("reference", metavar="MODULE:SPEC")
@click.argument("text", required=False, default=None, metavar="[INPUT]")
@click.option("--resume", "run_id", default=None, metavar="RUN", help="Go on with this run, start none.")
@click.option(
    "--operation-id", default=None, metavar="ID", help="The business task; runs of one share effects."
)
@click.option(
    "--as-of", default="", metavar="TEXT", help="The time or version that this run's reads are about."
)
@click.option("--trace", default="", metavar="TEXT", help="The trace context that is recorded with the run.")
@click.option(
    "--given",
    default=None,
    metavar="JSON",
    help="Typed inputs, an object; results aside, the values calls may use.",
)
@click.option(
    "--input-trust",
    type=click.Choice(["trusted", "untrusted"]),
    default=None,
    help="Who wrote the INPUT; over the SPEC's.",
)
@click.option(
    "--store", "store_url", envvar="BOUNDLOOP_STORE", default="", metavar="URL", help="Over the SPEC's."
)
@click.option("--take-over", is_flag=True, help="End another process that owns the store's file.")
@ray_options
@output_option
def run(
    reference: str,
    text: str | None,
    run_id: str | None,
    operation_id: str | None,
    as_of: str,
    trace: str,
    given: str | None,
    input_trust: InputTrust | None,
    store_url: str,
    take_over: bool,
    output: Any,
    **on_ray: Unpack[OnRay],
) -> int:
    """Start a run of an application, or go on with one, and follow it.

    MODULE is an import path or a FILE.py; SPEC is an Application in it, or a function that makes one. Ends when the run
    ends (0 or 1), stops at a limit (8), or waits for a person (7). Interrupted (130), the run stays where it is. If
    whoever reads the output hangs up, the run is followed to its rest all the same.
    """
    out = Output(output, at_once=True)
    try:
        application = load_application(reference)
        url = store_url or application.store
        if not url:
            raise click.UsageError("name a store: --store URL, BOUNDLOOP_STORE, or the SPEC's own")
        if run_id is not None and (
            any(one is not None for one in (text, operation_id, given, input_trust)) or as_of or trace
        ):
            raise click.UsageError("--resume goes on with a run that has its input and options")
        if run_id is None and text is None and not application.input:
            raise click.UsageError("say the INPUT: the SPEC has none of its own")
        options = application.start_options()
        if input_trust is not None:
            options["input_trust"] = input_trust
        typed = None if given is None else _typed(given)
        with application.runtime(url, take_over=take_over, reference=reference, **on_ray) as runtime:
            following = _Following(runtime, out, run_id or f"r_{uuid4().hex[:20]}")
            if run_id is None:
                following.runtime.start(
                    application.input if text is None else text,
                    run_id=following.run_id,
                    operation_id=operation_id,
                    as_of=as_of,
                    trace=trace,
                    given=typed,
                    **options,
                )
            else:
                _go_on(following)
            try:
                result = following.to_rest()
            except KeyboardInterrupt:
                out.note(f"\nInterrupted. Go on with: {_resume_command(reference, following.run_id, url)}")
                raise
            except StoreError:
                # The run stays where it is, and whatever it had sent is on record.
                out.note(
                    f"The store is lost to this process. Go on with: {_resume_command(reference, following.run_id, url)}"
                )
                raise
        print_result(out, result, reference, url)
        return exit_code_of_result(result)
    except BoundloopError as error:
        return out.error(error)


def _typed(given: str) -> dict[str, JSON]:
    try:
        return parse_object(given)
    except JsonRefused as refused:
        raise click.BadParameter(f"{refused}; give one JSON object", param_hint="--given") from None


class _Following:
    """Prints the events of one run as they are committed, by whichever process, and waits for its rest."""

    def __init__(self, runtime: Runtime, out: Output, run_id: str) -> None:
        self.runtime = runtime
        self.out = out
        self.run_id = run_id
        self.after_seq = 0
        self._began_ms: int | None = None
        self._judged: bool | None = None

    def began(self, at_ms: int, seq: int) -> None:
        """Show times since then, and events after that."""
        self._began_ms, self.after_seq = at_ms, seq

    def _show(self, item: Committed) -> None:
        self.after_seq = item.seq
        if self._began_ms is None:
            self._began_ms = item.at_ms
        if self.out.form == "table":
            call, text = event_line(self._shown(item.event), TEXT_CHARS_MAX)
            after = "+" + span(item.at_ms - self._began_ms)
            tag = tag_of(item.event)
            line = f"{item.seq:>5}  {after:>9}  {tag:<18}  {cut(safe_text(call), 8):<6}  {safe_text(text)}"
            self._print(line.rstrip())

    def _shown(self, event: AnyEvent) -> AnyEvent:
        """The event without a model's text where the run's answers are judged: the text is committed before, and whoever follows
        the run is a user, not a reader of its protected record."""
        if not isinstance(event, ModelResponded):
            return event
        if self._judged is None:
            self._judged = "answer" in self._state().pins.guarded
        return msgspec.structs.replace(event, text="") if self._judged else event

    def _state(self) -> State:
        """Through a server that is away, as what is shown."""
        for _ in range(OUTAGES_MAX):
            try:
                return self.runtime.state(self.run_id)
            except StoreError as error:
                if error.code != "store_unreachable":
                    raise
            with contextlib.closing(self.runtime.stream(self.run_id)) as reading:
                next(reading, None)  # it waits within its bounds
        return self.runtime.state(self.run_id)

    def _print(self, line: str) -> None:
        heard = self.out.heard
        self.out.line(line)
        if heard and not self.out.heard:
            run = quoted(self.run_id)
            self.out.to_stderr(
                f"nobody reads the output any more; run {run} is followed to its rest without it"
            )

    def to_rest(self) -> Result:
        """Block until the run ends, stops, or waits for a person. Other waits are waited through."""
        while True:
            for item in self.runtime.stream(self.run_id, after_seq=self.after_seq, until="rest"):
                self._show(item)
            result = self.runtime.result(self.run_id)
            if result.status != "waiting" or result.waiting_for.startswith(
                ("approval:", "answer:", "person:")
            ):
                return result
            self.out.note(f"       waits for {safe_text(result.waiting_for)}")
            going_on = self.runtime.stream(self.run_id, after_seq=self.after_seq, until="stop")
            with contextlib.closing(going_on):
                for item in going_on:
                    self._show(item)
                    break


def _go_on(following: _Following) -> None:
    runtime, run_id = following.runtime, following.run_id
    state = runtime.state(run_id)
    following.began(state.started_at_ms, state.seq)
    why_not = misfit(runtime, state)
    if why_not:
        raise Refused("other_application", why_not, path=run_id)
    if state.phase == "suspended":
        command = Resume(command_id=new_command_id(), by=approver())
        answer: CommandAnswer = runtime.submit(run_id, command)
        if not answer.accepted:
            raise error_of_answer(answer, run_id)


def exit_code_of_result(result: Result) -> int:
    """0 for success, 7 where a person is asked, 8 at a limit, else 1."""
    if result.completed:
        return OK
    if result.status == "waiting" or result.reason == "outcome_unknown":
        return WAITING
    return LIMIT if result.reason in _LIMIT_REASONS else FAILED


def print_result(out: Output, result: Result, reference: str, url: str) -> None:
    """How it ended, the answer, and what to do next."""
    if out.form != "table":
        out.thing(plain(result))
        return
    out.line()
    state = f"{result.outcome}, {result.reason}" if result.outcome else f"waits for {result.waiting_for}"
    detail = f" ({safe_text(result.detail)})" if result.detail else ""
    out.line(f"Run {safe_text(result.run_id)} {result.status}: {safe_text(state)}{detail}")
    if result.text:
        for line in safe_lines(result.text):
            out.line("  " + line)
    for name in result.unfinished if not result.completed else ():
        out.line(f"Unfinished: {safe_text(name)}")
    where = store_option_of(url)
    for approval in result.approvals:
        out.line(
            f"Approval {approval.approval_id} of {safe_text(approval.tool)}, until {when(approval.expires_at_ms)}:"
        )
        out.line(f"  {safe_json(shown_json(approval.preview.encode()))}")
        out.line(f"  boundloop approve {approval.approval_id}{where}")
    for question in result.questions:
        out.line(f"Question {question.question_id}, until {when(question.expires_at_ms)}:")
        for line in safe_lines(question.question):
            out.line("  " + line)
        for number, choice in enumerate(question.choices, start=1):
            out.line(f"  {number}. {safe_text(choice)}")
        answer = "--choice N" if question.choices else "TEXT"
        out.line(f"  boundloop answer {question.question_id} {answer}{where}")
    why = f"boundloop why {quoted(result.run_id)}{where}"
    resume = _resume_command(reference, result.run_id, url)
    if result.approvals or result.questions:
        out.line(f"Then go on with: {resume}")
    elif result.resumable:
        out.line(f"What has to change first: {why}")
        out.line(f"Then go on with: {resume}")
    if not result.completed and not result.resumable:
        out.line(f"More: {why}")


def _resume_command(reference: str, run_id: str, url: str) -> str:
    return f"boundloop run {quoted(reference)} --resume {quoted(run_id)}{store_option_of(url)}"
