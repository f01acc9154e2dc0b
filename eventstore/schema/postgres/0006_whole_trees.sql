-- False, and nothing is changed, unless the run and all of its tree have ended and nobody needs its log any more. The row at the top of
-- the tree must be there to say so: one that is lost can be restored, and may be that of a run that goes on. Its epoch is raised: an
-- old writer is fenced.
CREATE OR REPLACE FUNCTION prune_run(p_now_ms bigint, p_run_id text, p_seq bigint, p_head bytea)
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
    IF NOT EXISTS (SELECT FROM runs WHERE run_id = root AND status = 'terminated') THEN
        RETURN false;
    END IF;
    IF EXISTS (
        SELECT FROM runs WHERE root_id = root AND root_id <> '' AND status <> 'terminated'
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
