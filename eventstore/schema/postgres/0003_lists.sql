-- What lists of runs are read by. rest: the status of a run that has ended, stopped or waits, else empty. rested_at_ms: its
-- last change then, else NULL. So a list by status or by time of change has its index, and an append of a run that goes on
-- changes no indexed column: its row's new version stays in the page, and no index is touched.
ALTER TABLE runs
ADD COLUMN rest text COLLATE "C" NOT NULL GENERATED ALWAYS AS (
    CASE WHEN waiting_for <> '' OR status IN ('suspended', 'terminated') THEN status ELSE '' END
) STORED,
ADD COLUMN rested_at_ms bigint GENERATED ALWAYS AS (
    CASE WHEN waiting_for <> '' OR status IN ('suspended', 'terminated') THEN updated_at_ms END
) STORED;

CREATE INDEX runs_rest ON runs (rest, run_key);
CREATE INDEX runs_rested ON runs (rested_at_ms, run_key) WHERE rested_at_ms IS NOT NULL;
CREATE INDEX runs_outcome ON runs (outcome, run_key) WHERE outcome <> '';
CREATE INDEX runs_tenant ON runs (tenant, run_key);
CREATE INDEX runs_agent ON runs (agent, run_key);
CREATE INDEX runs_created ON runs (created_at_ms, run_key);
DROP INDEX runs_waiting;
CREATE INDEX runs_waiting ON runs (waiting_for, run_key) WHERE waiting_for <> '';
