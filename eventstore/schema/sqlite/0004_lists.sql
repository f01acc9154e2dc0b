-- What lists of runs are read by. rest: the status of a run that has ended, stopped or waits, else empty. rested_at_ms: its
-- last change then, else NULL. So a list by status or by time of change has its index, and an append of a run that goes on
-- touches none.
ALTER TABLE runs ADD COLUMN rest TEXT NOT NULL DEFAULT '';

ALTER TABLE runs ADD COLUMN rested_at_ms INTEGER;

UPDATE runs SET rest = status, rested_at_ms = updated_at_ms
WHERE waiting_for <> '' OR status IN ('suspended', 'terminated');

CREATE INDEX runs_rest ON runs (rest);
CREATE INDEX runs_rested ON runs (rested_at_ms) WHERE rested_at_ms IS NOT NULL;
CREATE INDEX runs_outcome ON runs (outcome) WHERE outcome <> '';
CREATE INDEX runs_tenant ON runs (tenant);
CREATE INDEX runs_agent ON runs (agent);
CREATE INDEX runs_created ON runs (created_at_ms);
