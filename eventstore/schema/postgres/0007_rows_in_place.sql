-- An append of a run that goes on touches no index only if it changes no column that an index names, be it in its condition alone:
-- runs_wake named wake_at_ms, which each append changes, so each wrote into all indexes. Now it names due_at_ms: wake_at_ms while
-- nobody owns the run, else NULL.
--
-- due_at_ms, rest and rested_at_ms are set by a trigger for whoever names the owner or the keys that are waited for, in an older
-- function or process too; and by a plain append (below), which names neither. Columns that are generated would be so in each append:
-- the server makes their expressions anew for each statement, at 20 us each.
ALTER TABLE runs
ALTER COLUMN rest DROP EXPRESSION,
ALTER COLUMN rest SET DEFAULT '',
ALTER COLUMN rested_at_ms DROP EXPRESSION,
ADD COLUMN due_at_ms bigint;

UPDATE runs SET due_at_ms = wake_at_ms WHERE owner = '' AND wake_at_ms IS NOT NULL;

CREATE FUNCTION set_derived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.rest := CASE WHEN NEW.waiting_for <> '' OR NEW.status IN ('suspended', 'terminated') THEN NEW.status ELSE '' END;
    NEW.rested_at_ms := CASE WHEN NEW.rest <> '' THEN NEW.updated_at_ms END;
    NEW.due_at_ms := CASE WHEN NEW.owner = '' THEN NEW.wake_at_ms END;
    RETURN NEW;
END $$;

CREATE TRIGGER runs_derived BEFORE INSERT OR UPDATE OF owner, waiting_keys ON runs
FOR EACH ROW EXECUTE FUNCTION set_derived();

DROP INDEX runs_wake;
CREATE INDEX runs_wake ON runs (due_at_ms) WHERE due_at_ms IS NOT NULL;

-- Of an append that does nothing but go on: its run stays owned and isn't at rest after it, and no key, blob nor other run has to
-- do with it. A client that doesn't say so has all of them looked at.
ALTER TYPE append_item ADD ATTRIBUTE is_plain boolean;

-- As before, but for a plain append, which is done in one statement if it follows.
CREATE OR REPLACE FUNCTION append_batch(p_now_ms bigint, p_lock text[], p_items text)
RETURNS SETOF append_answer LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := coalesce(p_now_ms, server_ms());
    item append_item;
    answer append_answer;
    run runs;
    held ledger;
    key_before key_rows;
    key_after key_rows;
    settlement settlement_item;
    blob blob_item;
    is_new boolean;
    is_placed boolean;
    is_free boolean;
    is_missed boolean;
    is_ended boolean;
    ready_ms bigint;
    seq_count bigint;
    woken woken_run[] := '{}';
    place integer;
    waited bytea;
BEGIN
    IF p_lock IS NOT NULL THEN
        PERFORM FROM runs WHERE run_id = ANY (p_lock) ORDER BY run_key FOR NO KEY UPDATE;
    END IF;
    FOR item IN SELECT * FROM json_populate_recordset(NULL::append_item, p_items::json) LOOP
        answer := NULL;
        IF item.is_plain THEN
            WITH moved AS (
                UPDATE runs SET
                    seq = item.expected_seq + item.event_count, head = item.hash, updated_at_ms = item.at_ms,
                    status = item.status, outcome = item.outcome, reason = item.reason, waiting_for = '', rest = '',
                    rested_at_ms = NULL, wake_at_ms = item.wake_at_ms
                WHERE run_id = item.run_id AND epoch = item.epoch AND seq = item.expected_seq AND head = item.prev_hash
                    AND updated_at_ms <= item.at_ms AND owner <> '' AND ready_at_ms IS NULL AND waiting_keys = '{}'
                RETURNING run_key
            )
            INSERT INTO appends
            SELECT
                run_key, item.expected_seq + 1, item.event_count, item.epoch, item.schema_version, item.at_ms,
                item.append_id, item.causation, item.body, item.hash
            FROM moved;
            IF FOUND THEN
                answer.kind := 'appended';
                answer.seq := item.expected_seq + item.event_count;
                answer.was_woken := false;
                RETURN NEXT answer;
                CONTINUE;
            END IF;
        END IF;
        is_new := false;
        is_ended := item.status = 'terminated';
        LOOP
            SELECT * INTO run FROM runs WHERE run_id = item.run_id FOR NO KEY UPDATE;
            EXIT WHEN FOUND OR (item.created).tenant IS NULL;
            INSERT INTO runs (
                run_id, seq, epoch, head, updated_at_ms, created_at_ms, tenant, agent, operation_id, parent_id,
                root_id, status, outcome, reason, waiting_for, waiting_keys, wake_at_ms, owner
            ) VALUES (
                item.run_id, item.event_count, item.epoch, item.hash, item.at_ms, item.at_ms,
                (item.created).tenant, (item.created).agent, (item.created).operation_id, (item.created).parent_id,
                (item.created).root_id, item.status, item.outcome, item.reason, item.waiting_for,
                item.waiting_keys, item.wake_at_ms, CASE WHEN item.is_released THEN '' ELSE item.host_id END
            ) ON CONFLICT (run_id) DO NOTHING RETURNING * INTO run;
            is_new := FOUND;
            EXIT WHEN is_new;
        END LOOP;
        IF run.run_key IS NULL THEN
            answer.kind := 'conflict';
            answer.seq := 0;
            RETURN NEXT answer;
            CONTINUE;
        END IF;
        IF NOT is_new THEN
            IF item.epoch < run.epoch THEN
                -- Before "already done": a ghost whose append was committed must not go on to act on it.
                answer.kind := 'fenced';
                answer.number := run.epoch;
            ELSIF item.epoch <> run.epoch OR item.expected_seq <> run.seq OR item.prev_hash <> run.head THEN
                SELECT event_count INTO seq_count FROM appends
                WHERE run_key = run.run_key AND first_seq = item.expected_seq + 1 AND hash = item.hash;
                IF FOUND THEN
                    answer.kind := 'already_done';
                    answer.seq := item.expected_seq + seq_count;
                ELSE
                    answer.kind := 'conflict';
                    answer.seq := run.seq;
                END IF;
            ELSIF item.at_ms < run.updated_at_ms OR (item.claim).tenant <> run.tenant THEN
                answer.kind := 'out_of_line';
            ELSIF cardinality(item.settlements) > 0 THEN
                IF EXISTS (
                    SELECT FROM unnest(item.settlements) AS other
                    WHERE other.tenant <> run.tenant OR (other.sent).tenant <> other.tenant
                        OR (other.sent).key <> other.key OR (other.sent).call_id <> other.call_id
                ) THEN
                    answer.kind := 'out_of_line';
                END IF;
            END IF;
            IF answer.kind = 'out_of_line' THEN
                answer.tenant := run.tenant;
                answer.number := run.updated_at_ms;
            END IF;
            IF answer.kind IS NOT NULL THEN
                RETURN NEXT answer;
                CONTINUE;
            END IF;
        END IF;

        is_placed := false;
        IF (item.claim).key IS NOT NULL THEN
            key_before := (NULL::ledger, '{}'::ledger[])::key_rows;
            LOOP
                held := locked_key((item.claim).tenant, (item.claim).key);
                EXIT WHEN held.key IS NOT NULL;
                is_placed := place_row(claimed_row(now_ms, item.run_id, item.epoch, item.claim));
                EXIT WHEN is_placed;
            END LOOP;
            IF NOT is_placed THEN
                key_before.held := held;
                IF item.settled_first > 0 OR (item.claim).over_run IS NOT NULL THEN
                    key_before.earlier := earlier_rows((item.claim).tenant, (item.claim).key);
                END IF;
            END IF;
            -- The claim finds the key as the settlements before it leave it.
            FOR place IN 1 .. item.settled_first LOOP
                settlement := item.settlements[place];
                IF settlement.key = (item.claim).key THEN
                    key_after := settled_key(now_ms, item.run_id, item.epoch, settlement, key_before);
                    IF key_after.earlier IS NOT NULL THEN
                        key_before := key_after;
                    END IF;
                END IF;
            END LOOP;
            held := key_before.held;
            key_after := (claimed_row(now_ms, item.run_id, item.epoch, item.claim), key_before.earlier)::key_rows;
            IF held.key IS NULL OR held.status = 'rejected' THEN
                is_free := true;
            ELSIF held.status = 'unknown' AND (item.claim).over_run = held.run_id
                AND (item.claim).over_call = held.call_id
            THEN
                is_free := held.intent_sha256 = (item.claim).intent_sha256
                    AND cardinality(key_before.earlier) < item.earlier_max;
                key_after.earlier := key_before.earlier || held;
            ELSE
                is_free := held.run_id = item.run_id AND held.call_id = (item.claim).call_id
                    AND held.status <> 'succeeded';
            END IF;
            IF NOT is_free THEN
                IF is_placed THEN
                    DELETE FROM ledger WHERE tenant = (item.claim).tenant AND key = (item.claim).key;
                END IF;
                IF is_new THEN
                    DELETE FROM runs WHERE run_key = run.run_key;
                END IF;
                answer.kind := 'claim_taken';
                answer.held := row_to_json(held)::text;
                RETURN NEXT answer;
                CONTINUE;
            END IF;
        END IF;

        INSERT INTO appends VALUES (
            run.run_key, item.expected_seq + 1, item.event_count, item.epoch, item.schema_version, item.at_ms,
            item.append_id, item.causation, item.body, item.hash
        );
        IF NOT is_new THEN
            -- An owner that goes on has seen what woke it; one that releases may have decided before the wake.
            UPDATE runs SET
                seq = item.expected_seq + item.event_count, head = item.hash, updated_at_ms = item.at_ms,
                status = item.status, outcome = item.outcome, reason = item.reason,
                waiting_for = item.waiting_for, waiting_keys = item.waiting_keys, wake_at_ms = item.wake_at_ms,
                owner = CASE WHEN item.is_released THEN '' ELSE owner END,
                ready_at_ms = CASE
                    WHEN NOT is_ended AND (item.is_released OR item.is_ready) THEN ready_at_ms
                END
            WHERE run_key = run.run_key;
        END IF;
        FOREACH blob IN ARRAY item.blobs LOOP
            INSERT INTO blobs VALUES (blob.sha256, blob.size_bytes, blob.part_count) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                INSERT INTO blob_parts
                SELECT blob.sha256, number - 1, data FROM unnest(blob.parts) WITH ORDINALITY AS part (data, number)
                ON CONFLICT DO NOTHING;
            END IF;
        END LOOP;

        IF item.waiting_keys <> '{}' OR run.waiting_keys <> '{}' THEN
            IF NOT is_new THEN
                DELETE FROM key_waits WHERE run_key = run.run_key AND key <> ALL (item.waiting_keys);
            END IF;
            INSERT INTO key_waits SELECT DISTINCT key, run.run_key FROM unnest(item.waiting_keys) AS key
            ON CONFLICT DO NOTHING;
        END IF;
        IF is_placed AND item.settled_first > 0 THEN
            -- What is settled before the claim finds the key as it was. Nobody else gets in between: their rows wait for us.
            DELETE FROM ledger WHERE tenant = (item.claim).tenant AND key = (item.claim).key;
            is_placed := false;
        END IF;
        FOR place IN 1 .. item.settled_first LOOP
            woken := woken || settle_key(now_ms, item.run_id, item.epoch, item.settlements[place]);
        END LOOP;
        IF (item.claim).key IS NOT NULL AND NOT is_placed THEN
            PERFORM put_key((item.claim).tenant, (item.claim).key, key_before, key_after);
        END IF;
        FOR place IN item.settled_first + 1 .. cardinality(item.settlements) LOOP
            woken := woken || settle_key(now_ms, item.run_id, item.epoch, item.settlements[place]);
        END LOOP;
        IF item.wakes <> '{}' THEN
            woken := woken || wake_runs(now_ms, item.wakes);
        END IF;

        -- Whoever begins to wait for a key on which nobody works by now is ready at once.
        is_missed := item.is_ready;
        IF NOT is_missed AND item.waiting_keys <> '{}' THEN
            FOREACH waited IN ARRAY item.waiting_keys LOOP
                IF is_new OR waited <> ALL (run.waiting_keys) THEN
                    held := locked_key(run.tenant, waited);
                    is_missed := is_missed OR held.key IS NULL
                        OR held.status IN ('succeeded', 'rejected', 'unknown');
                END IF;
            END LOOP;
        END IF;
        IF is_missed AND NOT is_ended THEN
            woken := woken || wake_runs(now_ms, ARRAY[item.run_id]);
        END IF;

        answer.kind := 'appended';
        answer.seq := item.expected_seq + item.event_count;
        answer.was_woken := false;
        IF NOT is_new AND run.ready_at_ms IS NOT NULL THEN
            SELECT ready_at_ms INTO ready_ms FROM runs WHERE run_key = run.run_key;
            answer.was_woken := ready_ms IS NULL;
        END IF;
        RETURN NEXT answer;
    END LOOP;

    answer := NULL;
    answer.kind := 'all';
    answer.seq := now_ms;
    SELECT switches_version INTO answer.number FROM identity;
    IF woken <> '{}' THEN
        answer.woken := to_json(woken)::text;
    END IF;
    RETURN NEXT answer;
END $$;
