"""A ledger for runs under test whose every append goes to a real store: claim, settlements, index row and wake-ups."""

from __future__ import annotations

import copy

from tests.decider.spec import Ledger, Run

from boundloop.actors.journal import Journal
from boundloop.eventstore.chain import GENESIS
from boundloop.eventstore.port import Acquired, Appended, ClaimTaken, NewRun
from boundloop.runtime import events as e
from boundloop.runtime.decision import Decision
from boundloop.runtime.fold import evolve
from boundloop.runtime.ledger import LedgerRow

from .two_stores import Opened


class StoredLedger(Ledger):
    """``woken``: runs whose mark an append of their own took away, so that they look again by themselves."""

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.opened = opened
        self.journals: dict[str, Journal] = {}
        self.woken: set[str] = set()

    def row(self, tenant: str, key: bytes | None) -> LedgerRow | None:
        return None if key is None else self.opened.ask(self.opened.store.ledger_row(tenant, key))

    def append(self, run: Run, decision: Decision) -> LedgerRow | None:
        if not decision.events:
            return None
        run_id = run.state.run_id
        journal = self.journals.get(run_id)
        if journal is None:
            journal = self.journals[run_id] = self._begin(run)
        first = decision.events[0]
        if isinstance(first, e.RunResumed) and first.epoch > journal.epoch:
            self._acquire(run_id, journal, first.epoch)
        after = copy.deepcopy(run.state)
        for event in decision.events:
            evolve(after, event, run.now)
        journal.add(decision)
        request = journal.request(after, run.now, "", release=False)
        answer = self.opened.ask(self.opened.store.append(request))
        if isinstance(answer, ClaimTaken):
            journal.drop()
            return answer.row
        assert isinstance(answer, Appended), answer
        journal.committed(request)
        if answer.woken:
            self.woken.add(run_id)
        return None

    def _begin(self, run: Run) -> Journal:
        state = run.state
        create = NewRun(
            tenant=state.tenant, agent=state.agent, operation_id=state.operation_id, root_id=state.run_id
        )
        events = tuple(event for event, _ in run.log)
        journal = Journal(head=GENESIS, seq=0, epoch=1, create=create, events=events, blobs=())
        request = journal.request(state, run.now, "", release=False)
        assert isinstance(self.opened.ask(self.opened.store.append(request)), Appended)
        journal.committed(request)
        return journal

    def _acquire(self, run_id: str, journal: Journal, epoch: int) -> None:
        """A new host's epoch; the run is given up at once, so that the store's list shows who is marked ready."""
        store, host = self.opened.store, f"host{epoch}"
        answer = self.opened.ask(store.acquire(run_id, host))
        assert isinstance(answer, Acquired)
        assert answer.epoch == epoch
        if answer.woken:
            self.woken.add(run_id)
        self.opened.ask(store.release(run_id, host, epoch, ready=False))
        journal.epoch = epoch
