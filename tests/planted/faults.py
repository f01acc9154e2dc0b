"""The planted faults, as data. ``docs/planted-faults.md`` shows them; ``run.py`` looks for them.

Those of ``chosen_by="reader"`` were chosen by somebody who had read the source and the design and not the tests.
"""

from __future__ import annotations

from typing import Final

from .fault import Fault

FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        name="absent-judged-by-time-of-answer",
        file="runtime/effects.py",
        old="command.asked_at_ms > settled_at",
        new="now_ms > settled_at",
        breaks=(
            "An authoritative `absent` permits a new attempt only if the lost attempt could not "
            "arrive any more when the query was sent; here it counts though the query was sent "
            "earlier, so one key can take effect twice."
        ),
        shows=(
            "A query sent before valid_until + margin whose answer comes after it (slow far side, slow host)."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="call-key-without-the-run",
        file="runtime/ladder.py",
        old='f"{state.run_id}/{call.call}", arguments',
        new="call.call, arguments",
        breaks=(
            'With key="call" each proposal is an intent of its own in the whole operation; here the '
            "key is that of any other run's call with the same number, so an effect is swallowed "
            "(replayed) or refused as a conflict."
        ),
        shows=(
            "Two runs of one operation (parent and child, siblings, two runs with one operation id) "
            'call a tool with key="call" at the same turn and index; one run alone shows nothing.'
        ),
        chosen_by="reader",
    ),
    Fault(
        name="claim-ahead-of-what-frees-its-key",
        file="actors/journal.py",
        old="self.settled_first = len(self.settlements)",
        new="self.settled_first = 0",
        breaks=(
            "A key is taken while an attempt is out; here the append that frees it and claims it again "
            "settles last, so the key is free while the attempt is on its way, and another call sends "
            "the same effect."
        ),
        shows=(
            "An authoritative `absent` frees a key and the checks that start the next attempt run inline, "
            "in the same step; then another call wants the same effect."
        ),
        chosen_by="authors",
    ),
    Fault(
        name="verdicts-survive-an-outage",
        file="actors/driver.py",
        old="isinstance(posted[0], ChecksDone)",
        new="isinstance(posted[0], ClaimLost)",
        breaks=(
            "The re-check comes right before every dispatch of an effect; here verdicts from before "
            "an outage of the store start the attempt after it, so a switch turned or a permission "
            "taken away meanwhile isn't seen."
        ),
        shows=(
            "The append with the intent fails (StoreError) in a step whose first command is a "
            "ChecksDone (wherever checks aren't inline; inline, the re-check before a retry that is "
            "due), and a kill switch, policy or permission changes before the store answers again."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="retry-under-a-stale-approval",
        file="runtime/recheck.py",
        old='moved = call.phase == "reconciling" and what in',
        new="moved = call.attempt > 0 and what in",
        breaks=(
            "A changed resource version or preview makes an approval stale for every further "
            "attempt, except for an effect whose outcome is unknown; here a retry after a proven "
            "failure is sent under the old approval."
        ),
        shows=(
            "An approved effect fails with ToolError(no_effect=True, retryable=True), and its "
            "version_of or preview answers otherwise at the re-check before the retry."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="approval-id-without-its-round",
        file="runtime/approvals.py",
        old='f"{run_id}/{call}/{round_}"',
        new='f"{run_id}/{call}"',
        breaks=(
            "An approval binds one preview and is single-use; here the new preview after a stale "
            "approval has the id of the old one, so a decision made about the first preview is "
            "taken for the second."
        ),
        shows=(
            "An approval became stale, the call asked again (round 2), and a person decides by the "
            "id shown in round 1."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="raise-leaves-overrun-standing",
        file="runtime/budget.py",
        old="covered = min(self.overrun, granted - self.granted)\n        self.granted = granted",
        new="self.granted = granted\n        covered = min(self.overrun, granted - self.granted)",
        breaks=(
            "Nothing is sent beyond the granted limit; here the overrun that a raise covers is "
            "counted as granted on top of it, so the run spends up to the old overrun more than the "
            "new limit. The equation of the law still holds, since `free` is made from it."
        ),
        shows=(
            "A provider reported more than was reserved, the run stopped with an overrun, the limit "
            "was raised above what was spent, and the run was resumed."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="top-up-past-what-the-agent-declares",
        file="runtime/top_ups.py",
        old="min(room, top_up(free, max(asked, child_shares(free, siblings)[0])))",
        new="top_up(free, max(asked, child_shares(free, siblings)[0]))",
        breaks=(
            "A child never has more than its agent declares; here an equal share that is larger "
            "than what was asked for goes past the declared limit."
        ),
        shows=(
            "The parent had less than the agent declares when the child started, has much more free "
            "at the top-up (raised, or a sibling settled), and the child is short of a little that "
            "is still within its declared limit."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="epoch-opened-twice",
        file="runtime/takeover.py",
        old="state.epoch >= command.epoch",
        new="state.epoch > command.epoch",
        breaks=(
            "An epoch is opened once; here a second run_resumed of the same epoch is written, and "
            "one death of a host counts twice, so the run stops as crash_loop after fewer than "
            "three."
        ),
        shows=(
            "The append of the take-over is committed but its answer is lost (StoreError), and the "
            "driver folds again and decides its TakeOver(host_died) anew."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="refold-under-another-hosts-epoch",
        file="actors/driver.py",
        old="row.epoch != self.epoch",
        new="row.epoch < self.epoch",
        breaks=(
            "Whoever lost its run stops and forgets it; here a driver that folds again after an "
            "error goes on from the new holder's state and dispatches the new holder's open "
            "intents, as of that epoch: one attempt goes out twice and no executor's fence refuses "
            "it."
        ),
        shows=(
            "A store call of the old host fails, another host has acquired the run and has an "
            "attempt out, and the old driver's next step has nothing to append."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="release-wipes-the-wake-mark",
        file="eventstore/sqlite_append.py",
        old="if request.release or request.ready else None",
        new="if request.ready else None",
        breaks=(
            "No wake-up is lost: the mark of whoever woke the run stays if its host lets go of it "
            "in that append; here it is wiped and the run waits for ever."
        ),
        shows=(
            "A child ends, a key is settled, or a host is told to look, after the driver decided "
            "and before its releasing append is committed (SQLite)."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="spilled-body-altered-at-equal-length",
        file="eventstore/codec.py",
        old="len(body) != marker.size_bytes or sha256",
        new="len(body) != marker.size_bytes and sha256",
        breaks=(
            "An altered log is found at its first bad append and never acted on; here a spilled "
            "body is believed if its length is right, whatever it says."
        ),
        shows=(
            "A body over 16 KiB (so in a blob) is changed without changing its length, e.g. an "
            "amount or a result in the log of a finished or parked run; verify_run, load_intact and "
            "replay believe it."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="renewal-counted-from-its-answer",
        file="actors/owner_row.py",
        old="self._renewed_at = asked_at",
        new="self._renewed_at = self._loop.time()",
        breaks=(
            "A host that couldn't renew for 8 s stops before its row (10 s) is over; here the 8 s "
            "count from the answer instead of from the question, so it dispatches when its row has "
            "expired and another host may have its runs."
        ),
        shows=(
            "The store renews the row and its answer comes more than 2 s later, and the next renewals fail."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="volatile-fields-count-as-news",
        file="runtime/fold.py",
        old="call.progress_sha256 or call.result_sha256",
        new="call.result_sha256 or call.progress_sha256",
        breaks=(
            "Volatile result fields are left out of what counts as news; here every new time stamp "
            "is progress, so neither equal results nor turns without progress ever stop the run, "
            "only its other limits do."
        ),
        shows=(
            "A tool that declares volatile fields is asked again and again and differs in those fields only."
        ),
        chosen_by="reader",
    ),
    Fault(
        name="lost-effect-frees-its-key",
        file="runtime/effects.py",
        old='return Decision((event,), settlements=settle(state, call, "unknown"))',
        new='return Decision((event,), settlements=settle(state, call, "free"))',
        breaks=(
            "A lost effect may have happened, so its key stays taken; here it is free, and another "
            "call of the same intent sends it again."
        ),
        shows=(
            "A host dies, or an attempt times out, with an effect out, and another call or run "
            "wants the same effect before it is settled."
        ),
        chosen_by="authors",
    ),
    Fault(
        name="retryable-failure-counts-as-proof",
        file="runtime/effects.py",
        old='if effect and outcome == "failed" and not command.no_effect:',
        new='if effect and outcome == "failed" and not (command.no_effect or command.retryable):',
        breaks=(
            "Without proof that nothing took effect a failed effect is unknown; here an error that "
            "is worth a retry counts as such proof."
        ),
        shows=("A far side applies the effect and then answers with an error that its tool calls retryable."),
        chosen_by="authors",
    ),
    Fault(
        name="approved-for-ever",
        file="runtime/approvals.py",
        old='approval.decision not in ("", "approve")',
        new='approval.decision != ""',
        breaks=(
            "An approval is in time only if its effect starts before it expires; here a yes never expires."
        ),
        shows=(
            "A call is approved in time and starts after its approval is over, because something held it up."
        ),
        chosen_by="authors",
    ),
    Fault(
        name="unknown-usage-is-free",
        file="runtime/turns.py",
        old="        return reserved_input, reserved_output, reserved_cost",
        new="        return 0, 0, 0",
        breaks=(
            "Where a provider reports no usage the reservation stays spent; here the turn cost "
            "nothing, and limits of tokens and cost never end the run."
        ),
        shows=("A model answers without usage."),
        chosen_by="authors",
    ),
    Fault(
        name="lost-request-costs-nothing",
        file="runtime/takeover.py",
        old="                state.reserved_input,\n                state.reserved_output,\n                state.reserved_cost,\n",
        new="                0,\n                0,\n                0,\n",
        breaks=(
            "A lost model request was sent, so its reservation is spent; here each crash makes "
            "tokens for nothing."
        ),
        shows=("A host dies with a model request out, and the run is near its limit of tokens or cost."),
        chosen_by="authors",
    ),
    Fault(
        name="calls-of-a-truncated-turn-run",
        file="runtime/model.py",
        old='"truncated": FinishRule(),',
        new='"truncated": FinishRule(executable=True),',
        breaks=(
            "Calls run only if the turn ended as a turn with calls; here those of a turn that was "
            "cut off run."
        ),
        shows=("The output limit cuts a turn with calls."),
        chosen_by="authors",
    ),
    Fault(
        name="other-arguments-are-replayed",
        file="runtime/key_rows.py",
        old='row.intent_sha256 != call.intent_sha256 and row.status != "rejected"',
        new='row.intent_sha256 != call.intent_sha256 and row.status not in ("rejected", "succeeded")',
        breaks=(
            "A key with other arguments is a conflict, whatever became of it; here the model is "
            "told that its new arguments took effect."
        ),
        shows=("The model asks for the same refund with another amount after the first one succeeded."),
        chosen_by="authors",
    ),
    Fault(
        name="read-overtakes-an-effect",
        file="runtime/order.py",
        old="if call.key is not None or other.key is not None or _may_be_effect(state, other):",
        new="if call.key is not None or _may_be_effect(state, other):",
        breaks=(
            "Nothing of a turn starts before an earlier effect of it is closed; here a read behind "
            "an effect sees the world before it."
        ),
        shows=("A turn with an effect and a read behind it, the effect admitted and not yet closed."),
        chosen_by="authors",
    ),
    Fault(
        name="child-outlives-its-parents-deadline",
        file="runtime/children.py",
        old="deadline = min(now_ms + asked_ms, state.deadline_at_ms)",
        new="deadline = now_ms + asked_ms",
        breaks=("Deadlines only shrink down a tree; here a child that starts late has all of its own."),
        shows=("An agent is called some time after its run's start, and works until the deadline."),
        chosen_by="authors",
    ),
    Fault(
        name="cancel-leaves-children-alone",
        file="runtime/orders.py",
        old="if ends_children(state) or overdue:",
        new="if overdue:",
        breaks=(
            "A cancel goes down the tree; here a child works on until it ends by itself or its "
            "parent's time is over."
        ),
        shows=("A run is cancelled while a child run waits for a person, or works."),
        chosen_by="authors",
    ),
    Fault(
        name="nobody-looks-at-an-unknown-key",
        file="eventstore/rules.py",
        old='held.status in ("succeeded", "rejected", "unknown")',
        new='held.status in ("succeeded", "rejected")',
        breaks=(
            "Whoever begins to wait for a key on which nobody works any more is ready at once; here "
            "it waits for a settlement that was made before it began to wait."
        ),
        shows=(
            "The key becomes unknown between the refused claim and the append with which the second "
            "call begins to wait."
        ),
        chosen_by="authors",
    ),
)
