"""Commands that decide: approve, reject, resolve, cancel, resume, close, limits and switches, as owner for one command."""

from __future__ import annotations

import pytest
from tests.command_line import CommandLine
from tests.written_runs import WrittenRun, approval_of, asking, finished, pins_for, unknown

from boundloop.actors.cli_session import approver
from boundloop.eventstore.history import load_run
from boundloop.eventstore.port import EventStore, HostRow
from boundloop.runtime.events import ApprovalDecided, CallReconciled, LimitsRaised
from boundloop.runtime.limits import LimitValues


async def one_asking(store: EventStore) -> str:
    return approval_of(await asking(store, "r1"))


async def one_unknown(store: EventStore) -> None:
    await unknown(store, "r1")


async def one_stopped(store: EventStore) -> None:
    run = await WrittenRun.start(store, "r1", pins=pins_for(LimitValues(cost_micros=0, turns=1)))
    await run.replies(calls=[("get_order", {"order_id": "A1"})])
    await run.checks()
    await run.executes({"state": "shipped"})
    assert run.state.reason == "max_turns"


def last_event(cli: CommandLine, kind: type) -> object:
    async def read(store: EventStore) -> object:
        _, records = await load_run(store, "r1")
        return [record.event for record in records if isinstance(record.event, kind)][-1]

    return cli.build(read)


def test_approving_by_id_is_on_record_under_the_systems_name(cli: CommandLine) -> None:
    approval = cli.build(one_asking)
    done = cli("approve", approval, "--reason", "fine")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Approved {approval} as {approver()}, seq ")
    assert '{"cents": 500, "order_id": "A1042", "reason": "late"}' in done.out
    decided = last_event(cli, ApprovalDecided)
    assert isinstance(decided, ApprovalDecided)
    assert (decided.decision, decided.approver, decided.reason) == ("approve", approver(), "fine")
    assert cli("runs", "list", "-o", "json").value[0]["ready"] is True


def test_the_name_of_the_approver_is_not_taken_from_the_environment(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = approver()
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "root_of_all")
    assert approver() == before
    assert before.startswith("os:")


def test_approving_says_what_goes_on_with_the_run(cli: CommandLine) -> None:
    cli.build(one_asking)
    done = cli("approve", "r1")
    assert "Nothing runs it now." in done.out
    assert "\n  boundloop run MODULE:SPEC --resume r1\n" in done.out


def test_a_second_approval_is_refused(cli: CommandLine) -> None:
    approval = cli.build(one_asking)
    assert cli("approve", approval).code == 0
    for arguments in (("approve", approval), ("approve", "r1"), ("reject", "r1"), ("reject", approval)):
        done = cli(*arguments)
        assert done.code == 4, done
        assert f"already approved by {approver()} at seq " in done.err


def test_the_same_command_id_is_the_same_answer(cli: CommandLine) -> None:
    cli.build(one_asking)
    first = cli("approve", "r1", "--command-id", "k1", "-o", "json")
    again = cli("approve", "r1", "--command-id", "k1", "-o", "json")
    assert (first.code, again.code) == (0, 0)
    assert first.value == again.value
    assert first.value["approval"].startswith("ap_")


def test_an_approval_id_answers_the_same_command_id_too(cli: CommandLine) -> None:
    approval = cli.build(one_asking)
    first = cli("approve", approval, "--command-id", "k1", "-o", "json")
    assert cli("approve", approval, "--command-id", "k1", "-o", "json").value == first.value


def test_a_command_for_the_next_prompt_names_the_store_it_was_given(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.build(one_asking)
    monkeypatch.delenv("BOUNDLOOP_STORE")
    for command in (("inbox",), ("why", "r1")):
        lines = cli(*command, "--store", cli.url).out.splitlines()
        named = [line for line in lines if "boundloop approve ap_" in line]
        assert named
        assert all(line.endswith(f" --store {cli.url}") for line in named)


@pytest.mark.parametrize("name", ["ap_0000000000000000", "ap_", "r9", "ap_%", ""])
def test_what_is_not_there_exits_3(cli: CommandLine, name: str) -> None:
    cli.build(one_asking)
    assert cli("approve", name).code == 3
    assert cli("reject", name).code == 3


def test_a_run_with_two_approvals_must_be_told_which(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        run = await WrittenRun.start(store, "r1")
        await run.replies(
            calls=[("refund", {"order_id": "A1", "cents": 1}), ("refund", {"order_id": "A2", "cents": 2})]
        )
        await run.checks(ask=True, preview={})

    cli.build(build)
    done = cli("approve", "r1")
    assert done.code == 2
    ids = [row["approval"] for row in cli("inbox", "-o", "json").value]
    assert all(approval in done.err for approval in ids)
    for approval in reversed(ids):
        assert cli("approve", approval).code == 0
    assert cli("inbox", "-o", "json").value == []


def test_who_asked_may_not_approve_where_the_policy_says_so(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        await asking(store, "r1", pins=pins_for(separate_approver=True), principal=approver())

    cli.build(build)
    done = cli("approve", "r1")
    assert done.code == 4
    assert "same_person" in done.err
    assert "who asked may not approve it" in cli("inbox").out


@pytest.mark.parametrize("options", [(), ("--stop",)])
def test_rejecting(cli: CommandLine, options: tuple[str, ...]) -> None:
    cli.build(one_asking)
    done = cli("reject", "r1", "--reason", "too much", *options, "-o", "json")
    assert done.code == 0
    assert done.value["decided"] == "rejected"
    assert cli("inbox", "-o", "json").value == []


def test_settling_an_unknown_effect_as_applied(cli: CommandLine) -> None:
    cli.build(one_unknown)
    done = cli("call", "resolve", "r1", "c1.0", "--applied", '{"refund": "R-1"}', "--reason", "seen")
    assert (done.code, done.err) == (0, "")
    settled = last_event(cli, CallReconciled)
    assert isinstance(settled, CallReconciled)
    assert (settled.outcome, settled.by, settled.result) == ("applied", approver(), b'{"refund":"R-1"}')
    assert cli("call", "resolve", "r1", "c1.0", "--absent").code == 4


def test_settling_a_call_that_is_not_there_exits_3(cli: CommandLine) -> None:
    cli.build(one_unknown)
    done = cli("call", "resolve", "r1", "c9.9", "--absent")
    assert done.code == 3
    assert "call_not_found" in done.err


def test_settling_an_unknown_effect_as_absent(cli: CommandLine) -> None:
    cli.build(one_unknown)
    assert cli("call", "resolve", "r1", "c1.0", "--absent").code == 0
    assert cli("inbox", "-o", "json").value == []


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--absent", "--applied", "null"),
        ("--applied", ""),
        ("--applied", "{not json"),
        ("--applied", '{"a": 1, "a": 2}'),
        ("--applied", "NaN"),
    ],
)
def test_a_settlement_that_says_nothing_clear_exits_2_and_changes_nothing(
    cli: CommandLine, options: tuple[str, ...]
) -> None:
    cli.build(one_unknown)
    assert cli("call", "resolve", "r1", "c1.0", *options).code == 2
    assert len(cli("inbox", "-o", "json").value) == 1


def test_a_stop_at_a_limit_is_lifted_by_raising_it(cli: CommandLine) -> None:
    cli.build(one_stopped)
    assert cli("resume", "r1").code == 8
    done = cli("limits", "raise", "r1", "turns=5", "deadline_s=7200")
    assert done.code == 0
    raised = last_event(cli, LimitsRaised)
    assert isinstance(raised, LimitsRaised)
    assert raised.raised == {"turns": 5, "deadline_ms": 7_200_000}
    assert cli("resume", "r1").code == 0
    assert cli("resume", "r1").code == 4


@pytest.mark.parametrize(
    "values",
    [
        ("turns",),
        ("turns=",),
        ("turns=-1",),
        ("turns=1.5",),
        ("turns=٣",),
        ("turns=" + "9" * 400),
        ("depth=9",),
        ("nonsense=1",),
        ("turns=9", "turns=10"),
        ("turns=1",),
        ("cost=1e400",),
        ("cost=0.0000001",),
        ("deadline_s=9999999999999999",),
    ],
    ids=str,
)
def test_a_limit_that_can_not_be_raised_so_exits_2(cli: CommandLine, values: tuple[str, ...] | str) -> None:
    cli.build(one_stopped)
    given = (values,) if isinstance(values, str) else values
    done = cli("limits", "raise", "r1", *given)
    assert done.code == 2, done
    assert not [line for line in cli("log", "r1", "-o", "json").value if line["tag"] == "limits_raised"]


def test_cancel_and_close(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        await one_stopped(store)
        await asking(store, "r2")
        await finished(store, "r3")

    cli.build(build)
    assert cli("close", "r2").code == 4
    assert cli("cancel", "r2").code == 0
    assert cli("cancel", "r2").code == 4
    assert cli("close", "r1").code == 0
    for command in ("cancel", "close", "resume"):
        assert cli(command, "r3").code == 4


def test_a_run_of_a_live_host_is_left_to_it(cli: CommandLine) -> None:
    async def build(store: EventStore) -> None:
        await one_asking(store)
        await store.register_host(HostRow(host_id="h1", node="far", pid=4711, pid_start=1, boot_id="b"))
        await store.acquire("r1", "h1")

    cli.build(build)
    done = cli("approve", "r1")
    assert done.code == 4
    assert "process 4711 on far" in done.err


def test_a_host_whose_death_is_proved_is_not_waited_for(cli: CommandLine) -> None:
    from boundloop.eventstore.process_identity import this_process

    async def build(store: EventStore) -> None:
        await one_asking(store)
        here = this_process()
        await store.register_host(
            HostRow(
                host_id="h1",
                node=here.host,
                pid=here.pid,
                pid_start=here.pid_start - 1,
                boot_id=here.boot_id,
            )
        )
        await store.acquire("r1", "h1")

    cli.build(build)
    done = cli("approve", "r1")
    assert done.code == 0
    assert "Nothing runs it now." in done.out


def test_switches(cli: CommandLine) -> None:
    cli.build(one_asking)
    assert cli("switch", "on", "tool", "refund", "--reason", "audit").code == 0
    assert cli("switch", "on", "global").code == 0
    listed = cli("switch", "list", "-o", "json").value
    assert [(row["scope"], row["target"], row["by"], row["reason"]) for row in listed] == [
        ("global", "", approver(), ""),
        ("tool", "refund", approver(), "audit"),
    ]
    assert cli("switch", "off", "tool", "refund").code == 0
    assert cli("switch", "off", "tool", "refund").code == 4
    assert cli("switch", "on", "tool").code == 2
    assert cli("switch", "on", "global", "x").code == 2
    assert cli("switch", "on", "planet", "x").code == 2
    assert "is it written right?" in cli("switch", "on", "tool", "refnud").out
    assert "is it written right?" not in cli("switch", "on", "tool", "refund").out


def test_a_command_id_that_stands_for_another_decision_is_refused(cli: CommandLine) -> None:
    approval = cli.build(one_asking)
    assert cli("approve", approval, "--command-id", "k1").code == 0
    for arguments in (("reject", "r1"), ("reject", approval), ("cancel", "r1")):
        done = cli(*arguments, "--command-id", "k1")
        assert done.code == 4, done
        assert "command_id_reused" in done.err
