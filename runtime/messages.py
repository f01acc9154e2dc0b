"""Messages: what a person says to a run that hasn't ended.

A message is on record at once and joins the history where it may stand: after the results of the open calls, after the
turn that is being made, before the next request (``fold.take_in``). A final answer that was on its way meanwhile answers
without it, so it doesn't complete the run: one more turn does. To a stopped run it is recorded and lifts nothing.
"""

from __future__ import annotations

from . import events as e
from .commands import MESSAGE_BYTES_MAX, Send
from .decision import Decision, refuse
from .state import State


def send(state: State, command: Send, now_ms: int) -> Decision:
    """Refused, with nothing changed: in a run that has ended or is on its way there, without words, beyond
    ``MESSAGE_BYTES_MAX`` bytes, beyond the run's ``messages``."""
    if state.phase == "terminated":
        return refuse("run_ended", "the run has ended")
    if state.cancel_reason or state.close_requested:
        return refuse("run_ending", "the run is being cancelled or closed")
    if not command.text.strip():
        return refuse("message_empty", "a message has some text")
    size = len(command.text.encode())
    if size > MESSAGE_BYTES_MAX:
        return refuse("message_size", f"{size} bytes, at most {MESSAGE_BYTES_MAX}")
    if state.counters.messages >= state.limits.messages:
        return refuse("max_messages", f"the run has taken {state.counters.messages} messages: raise messages")
    return Decision(
        (e.MessageReceived("user", command.text, command.command_id, by=command.by),),
    )
