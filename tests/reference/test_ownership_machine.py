"""Hosts come, expire, die, take runs over and go on as ghosts; each answer of both stores is the reference's."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)
from tests.contract.log_writer import LogWriter, begin
from tests.random_examples import examples

from boundloop.eventstore.port import Acquired, Append, HostRow, Owned
from boundloop.eventstore.verify import verify_run

from .ownership import Accepted, Ownership, RunHeld
from .two_stores import Kind, Opened

HOSTS = ("h1", "h2", "h3")
RUNS = ("r1", "r2")
host_names = st.sampled_from(HOSTS)
run_names = st.sampled_from(RUNS)


class OwnershipMachine(RuleBasedStateMachine):
    """Each hold is what one host believes of a run since it acquired it; nothing tells it that it is a ghost."""

    kind: Kind = "memory"
    holds: Bundle[LogWriter] = Bundle("holds")
    sent: Bundle[tuple[LogWriter, Append]] = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.opened = Opened(self.kind)
        self.store = self.opened.store
        self.ask = self.opened.ask
        self.model = Ownership(self.opened.clock.at_ms)
        self.epochs: dict[str, list[int]] = {name: [1] for name in RUNS}

    def teardown(self) -> None:
        try:
            for name in self.model.runs:
                assert self.ask(verify_run(self.store, name)).ok
        finally:
            self.opened.close()

    @initialize()
    def runs_begin(self) -> None:
        for name in RUNS:
            log = LogWriter(self.store, name, root_id=name)
            self.ask(begin(log))
            self.model.runs[name] = RunHeld(log=[Accepted(1, 0, 1, log.head)])

    # --- hosts -------------------------------------------------------------------------------------------------------

    @rule(host=host_names)
    def register(self, host: str) -> None:
        self.ask(self.store.register_host(HostRow(host_id=host, node="n", pid=1, pid_start=1, boot_id="b")))
        self.model.renew(host, new=True)

    @rule(host=host_names)
    def renew(self, host: str) -> None:
        assert self.ask(self.store.renew_host(host)) is self.model.renew(host, new=False)

    @rule(host=host_names, died=st.booleans())
    def drop(self, host: str, died: bool) -> None:
        self.ask(self.store.drop_host(host, died=died))
        self.model.drop(host, died=died)

    @rule(passed=st.sampled_from([1, 9_999, 10_000, 10_000]))
    def time_passes(self, passed: int) -> None:
        self.opened.clock.advance(passed)
        self.model.now_ms += passed

    @rule(target=holds, name=run_names, host=host_names, proven=st.sets(host_names, max_size=2))
    def acquire(self, name: str, host: str, proven: set[str]) -> LogWriter | MultipleResults[LogWriter]:
        dead = tuple(sorted(proven))
        answer = self.ask(self.store.acquire(name, host, dead_hosts=dead))
        expected = self.model.acquire(name, host, dead)
        if isinstance(expected, str):
            assert isinstance(answer, Owned)
            assert answer.by.host_id == expected
            nobody: MultipleResults[LogWriter] = multiple()
            return nobody
        assert isinstance(answer, Acquired)
        assert (answer.epoch, answer.died) == expected
        run = self.model.runs[name]
        assert (answer.seq, answer.head) == (run.seq, run.head)
        at_ms = self.opened.clock.at_ms
        return LogWriter(self.store, name, host, "acme", answer.epoch, answer.seq, answer.head, at_ms)

    @rule(hold=holds, ready=st.booleans())
    def release(self, hold: LogWriter, ready: bool) -> None:
        self.ask(self.store.release(hold.run_id, hold.host_id, hold.epoch, ready=ready))
        self.model.release(hold.run_id, hold.host_id, hold.epoch)

    # --- appends -----------------------------------------------------------------------------------------------------

    def send(self, request: Append) -> str:
        """The store's answer in a word; the reference's is the same."""
        answer = self.ask(self.store.append(request))
        row = Accepted(request.epoch, request.expected_seq, request.event_count, request.hash)
        expected = self.model.append(request.run_id, row, request.prev_hash)
        assert answer.__struct_config__.tag == expected
        if expected == "appended":
            self.epochs[request.run_id].append(request.epoch)
        return expected

    @rule(target=sent, hold=holds, events=st.integers(1, 3), heard=st.booleans())
    def append(self, hold: LogWriter, events: int, heard: bool) -> tuple[LogWriter, Append]:
        """``heard``: whether the answer reaches the host; if not, it believes its old place."""
        hold.at_ms = self.opened.clock.at_ms
        request = hold.request(*(f"{number}" for number in range(events)))
        if self.send(request) in ("appended", "already_done") and heard:
            hold.follow(request)
        return hold, request

    @rule(late=sent)
    def the_same_again(self, late: tuple[LogWriter, Append]) -> None:
        """An append that was on its way comes once more, or for the first time to a run that moved on."""
        self.send(late[1])

    @rule(hold=holds)
    def look_again(self, hold: LogWriter) -> None:
        """A host that is in doubt reads where the log stands; its epoch stays what it is."""
        row = self.ask(self.store.run(hold.run_id))
        assert row is not None
        hold.seq, hold.head = row.seq, row.head

    @rule(hold=holds)
    def from_the_future(self, hold: LogWriter) -> None:
        ghost = hold.fork()
        ghost.epoch = self.model.runs[hold.run_id].epoch + 1
        ghost.at_ms = self.opened.clock.at_ms
        assert self.send(ghost.request("an epoch that nobody was given")) == "conflict"

    # --- laws --------------------------------------------------------------------------------------------------------

    @invariant()
    def the_log_is_what_was_accepted(self) -> None:
        for name, run in self.model.runs.items():
            rows = self.ask(self.store.read(name))
            assert [
                Accepted(row.epoch, row.first_seq - 1, row.event_count, row.hash) for row in rows
            ] == run.log
            row = self.ask(self.store.run(name))
            assert row is not None
            assert (row.epoch, row.seq, row.head, row.owner) == (run.epoch, run.seq, run.head, run.owner)

    @invariant()
    def accepted_epochs_never_fall(self) -> None:
        assert all(epochs == sorted(epochs) for epochs in self.epochs.values())

    @invariant()
    def no_run_of_a_live_host_is_handed_out(self) -> None:
        for name in self.ask(self.store.ready_runs()):
            assert not self.model.alive(self.model.runs[name].owner)


class OwnershipInSqlite(OwnershipMachine):
    kind: Kind = "sqlite"


HEALTH = [HealthCheck.too_slow, HealthCheck.filter_too_much]
TestOwnershipInMemory = OwnershipMachine.TestCase
TestOwnershipInMemory.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=HEALTH
)
TestOwnershipInSqlite = OwnershipInSqlite.TestCase
TestOwnershipInSqlite.settings = settings(
    max_examples=examples(8), stateful_step_count=40, deadline=None, suppress_health_check=HEALTH
)
