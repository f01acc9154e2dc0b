-- A pruned run: its row stays, its log is gone. 0 for all others.
ALTER TABLE runs ADD COLUMN pruned_at_ms INTEGER NOT NULL DEFAULT 0;

-- When a blob was last put, within an hour. One that was put lately may be named by an append that is still to come.
ALTER TABLE blobs ADD COLUMN put_at_ms INTEGER NOT NULL DEFAULT 0;

DROP TRIGGER appends_remain;

CREATE TRIGGER appends_remain BEFORE DELETE ON appends
WHEN NOT EXISTS (SELECT 1 FROM runs WHERE run_key = OLD.run_key AND pruned_at_ms > 0)
BEGIN SELECT RAISE(ABORT, 'a row of the log is never removed but with its whole run'); END;
