-- A pruned run: its row stays, its log is gone. 0 for all others.
ALTER TABLE runs ADD COLUMN pruned_at_ms bigint NOT NULL DEFAULT 0;

-- When a blob was last put, within an hour. One that was put lately may be named by an append that is still to come.
ALTER TABLE blobs ADD COLUMN put_at_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE blobs ALTER COLUMN put_at_ms SET DEFAULT server_ms();

-- Whoever puts a blob that is there has its row locked from here to the commit: a sweep that wants to remove it waits, and then
-- sees that it was put.
CREATE FUNCTION note_put() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE blobs SET put_at_ms = NEW.put_at_ms
    WHERE sha256 = NEW.sha256 AND put_at_ms < NEW.put_at_ms - 3600000;
    RETURN NEW;
END $$;

CREATE TRIGGER blobs_put BEFORE INSERT ON blobs FOR EACH ROW EXECUTE FUNCTION note_put();

CREATE FUNCTION refuse_removal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM gone
        WHERE NOT EXISTS (SELECT FROM runs WHERE runs.run_key = gone.run_key AND pruned_at_ms > 0)
    ) THEN
        RAISE EXCEPTION 'a row of the log is never removed but with its whole run';
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER appends_stay ON appends;

CREATE TRIGGER appends_stay BEFORE UPDATE OR TRUNCATE ON appends
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER appends_remain AFTER DELETE ON appends REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION refuse_removal();

-- False, and nothing is changed, unless the run and all of its tree have ended and nobody needs its log any more. Its epoch is
-- raised: an old writer is fenced.
CREATE FUNCTION prune_run(p_now_ms bigint, p_run_id text, p_seq bigint, p_head bytea)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    run runs;
    root text;
BEGIN
    SELECT * INTO run FROM runs WHERE run_id = p_run_id FOR NO KEY UPDATE;
    IF NOT FOUND OR run.seq <> p_seq OR run.head <> p_head OR run.status <> 'terminated' OR run.damaged <> ''
        OR run.pruned_at_ms > 0
    THEN
        RETURN false;
    END IF;
    root := CASE WHEN run.root_id = '' THEN run.run_id ELSE run.root_id END;
    IF EXISTS (
        SELECT FROM runs WHERE root_id = root AND root_id <> '' AND status <> 'terminated'
        UNION ALL SELECT FROM runs WHERE run_id = root AND status <> 'terminated'
        UNION ALL SELECT FROM ledger WHERE status = 'unknown' AND run_id = p_run_id
        UNION ALL SELECT FROM ledger_earlier WHERE run_id = p_run_id
    ) THEN
        RETURN false;
    END IF;
    UPDATE runs SET pruned_at_ms = coalesce(p_now_ms, server_ms()), epoch = epoch + 1, owner = ''
    WHERE run_key = run.run_key;
    DELETE FROM appends WHERE run_key = run.run_key;
    RETURN true;
END $$;
