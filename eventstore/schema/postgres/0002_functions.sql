-- What one call of the store does, in one statement, so in one round trip and one transaction, and without a lock that
-- outlives the client's process. p_now_ms is given by tests only; else it is the server's own time. Each function is
-- VOLATILE, so each statement in it sees what was committed before it, which the order of locks below relies on.

CREATE TYPE claim_item AS (
    tenant text,
    key bytea,
    tool text,
    call_id text,
    status text,
    intent_sha256 bytea,
    args_sha256 bytea,
    attempt bigint,
    valid_until_ms bigint,
    over_run text,
    over_call text
);

CREATE TYPE settlement_item AS (
    tenant text,
    key bytea,
    call_id text,
    goes_to text,
    result bytea,
    result_sha256 bytea,
    sent claim_item
);

CREATE TYPE blob_item AS (sha256 bytea, size_bytes bigint, part_count bigint, parts bytea[]);

CREATE TYPE new_run AS (tenant text, agent text, operation_id text, parent_id text, root_id text);

CREATE TYPE append_item AS (
    run_id text,
    expected_seq bigint,
    event_count bigint,
    epoch bigint,
    schema_version bigint,
    at_ms bigint,
    append_id bytea,
    causation text,
    body bytea,
    prev_hash bytea,
    hash bytea,
    status text,
    outcome text,
    reason text,
    waiting_for text,
    waiting_keys bytea[],
    wake_at_ms bigint,
    host_id text,
    created new_run,
    claim claim_item,
    settlements settlement_item[],
    settled_first bigint,
    earlier_max bigint,
    is_released boolean,
    is_ready boolean,
    wakes text[],
    blobs blob_item[]
);

-- A run that was marked, and since when it is.
CREATE TYPE woken_run AS (run_id text, ready_at_ms bigint);

-- A key's row, and what stands behind it, oldest first.
CREATE TYPE key_rows AS (held ledger, earlier ledger[]);

-- held and woken are JSON: a client needs to know no type of ours to read an answer.
CREATE TYPE append_answer AS (
    kind text,
    seq bigint,
    number bigint,
    was_woken boolean,
    tenant text,
    held text,
    woken text
);

CREATE FUNCTION server_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- A key's row, locked. A row whose result isn't what its digest says raises.
CREATE FUNCTION locked_key(p_tenant text, p_key bytea) RETURNS ledger LANGUAGE plpgsql AS $$
DECLARE
    held ledger;
BEGIN
    SELECT * INTO held FROM ledger WHERE tenant = p_tenant AND key = p_key FOR UPDATE;
    IF held.result_sha256 IS DISTINCT FROM sha256(held.result) THEN
        RAISE EXCEPTION 'the ledger''s row of key % was changed', encode(p_key, 'hex') USING ERRCODE = 'BL001';
    END IF;
    RETURN held;
END $$;

-- Mark runs as having something to do; those that there are and that haven't ended.
CREATE FUNCTION wake_runs(p_now_ms bigint, p_run_ids text[]) RETURNS woken_run[] LANGUAGE sql AS $$
    WITH marked AS (
        UPDATE runs SET ready_at_ms = coalesce(ready_at_ms, p_now_ms)
        WHERE run_id = ANY (p_run_ids) AND status <> 'terminated'
        RETURNING run_key, run_id, ready_at_ms
    )
    SELECT coalesce(array_agg(ROW (run_id, ready_at_ms)::woken_run ORDER BY run_key), '{}') FROM marked
$$;

-- What stands behind a row that is locked.
CREATE FUNCTION earlier_rows(p_tenant text, p_key bytea) RETURNS ledger[] LANGUAGE plpgsql AS $$
DECLARE
    found ledger[];
BEGIN
    SELECT coalesce(array_agg((
        tenant, key, tool, status, intent_sha256, args_sha256, run_id, call_id, attempt, epoch, valid_until_ms, at_ms,
        result, result_sha256
    )::ledger ORDER BY place), '{}') INTO found
    FROM ledger_earlier WHERE tenant = p_tenant AND key = p_key;
    IF EXISTS (SELECT FROM unnest(found) WHERE result_sha256 IS DISTINCT FROM sha256(result)) THEN
        RAISE EXCEPTION 'the ledger''s row of key % was changed', encode(p_key, 'hex') USING ERRCODE = 'BL001';
    END IF;
    RETURN found;
END $$;

-- The row of a claim.
CREATE FUNCTION claimed_row(p_now_ms bigint, p_run_id text, p_epoch bigint, p_claim claim_item)
RETURNS ledger LANGUAGE sql AS $$
    SELECT (
        p_claim.tenant, p_claim.key, p_claim.tool, p_claim.status, p_claim.intent_sha256, p_claim.args_sha256,
        p_run_id, p_claim.call_id, p_claim.attempt, p_epoch, p_claim.valid_until_ms, p_now_ms, NULL, NULL
    )::ledger
$$;

-- Write a key's row if there is none. False if there is one by now: two hosts may find a key without a row, and the second
-- to write one waits here for the first.
CREATE FUNCTION place_row(p_row ledger) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ledger SELECT (p_row).* ON CONFLICT (tenant, key) DO NOTHING;
    RETURN FOUND;
END $$;

-- Write what became of a key whose row, if it has one, is locked.
CREATE FUNCTION put_key(p_tenant text, p_key bytea, p_before key_rows, p_after key_rows)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (p_after.held).key IS NULL THEN
        DELETE FROM ledger WHERE tenant = p_tenant AND key = p_key;
    ELSE
        INSERT INTO ledger SELECT (p_after.held).* ON CONFLICT (tenant, key) DO UPDATE SET
            tool = excluded.tool, status = excluded.status, intent_sha256 = excluded.intent_sha256,
            args_sha256 = excluded.args_sha256, run_id = excluded.run_id, call_id = excluded.call_id,
            attempt = excluded.attempt, epoch = excluded.epoch, valid_until_ms = excluded.valid_until_ms,
            at_ms = excluded.at_ms, result = excluded.result, result_sha256 = excluded.result_sha256;
    END IF;
    IF p_before.earlier IS DISTINCT FROM p_after.earlier THEN
        DELETE FROM ledger_earlier WHERE tenant = p_tenant AND key = p_key;
        INSERT INTO ledger_earlier SELECT * FROM unnest(p_after.earlier) WITH ORDINALITY;
    END IF;
END $$;

-- The key after a settlement of this run's; NULL if that changes nothing. The rules are those of rules.py, line by line.
CREATE FUNCTION settled_key(
    p_now_ms bigint, p_run_id text, p_epoch bigint, p_item settlement_item, p_rows key_rows
) RETURNS key_rows LANGUAGE plpgsql AS $$
DECLARE
    held ledger := p_rows.held;
    earlier ledger[] := p_rows.earlier;
    done ledger;
    back integer;
    own integer;
    place integer;
BEGIN
    IF held.run_id = p_run_id AND held.call_id = p_item.call_id THEN
        IF p_item.goes_to = 'free' OR (p_item.goes_to = 'rejected' AND earlier <> '{}') THEN
            back := cardinality(earlier);
            IF back = 0 THEN
                RETURN (NULL::ledger, earlier)::key_rows;
            END IF;
            FOR place IN REVERSE back .. 1 LOOP
                IF earlier[place].status = 'succeeded' THEN
                    back := place;
                END IF;
            END LOOP;
            done := earlier[back];
            done.at_ms := p_now_ms;
            IF done.status = 'succeeded' THEN
                RETURN (done, '{}'::ledger[])::key_rows;
            END IF;
            RETURN (done, earlier[: back - 1])::key_rows;
        END IF;
        IF p_item.goes_to = 'succeeded' AND (p_item.sent).key IS NOT NULL AND held.status = 'waiting_approval' THEN
            held := claimed_row(p_now_ms, p_run_id, p_epoch, p_item.sent);
        END IF;
        held.status := p_item.goes_to;
        held.at_ms := p_now_ms;
        held.result := p_item.result;
        held.result_sha256 := p_item.result_sha256;
        RETURN (held, CASE WHEN held.status = 'succeeded' THEN '{}'::ledger[] ELSE earlier END)::key_rows;
    END IF;
    FOR place IN 1 .. cardinality(earlier) LOOP
        IF earlier[place].run_id = p_run_id AND earlier[place].call_id = p_item.call_id THEN
            own := place;
            EXIT;
        END IF;
    END LOOP;
    IF p_item.goes_to = 'free' AND own IS NOT NULL THEN
        RETURN (held, earlier[: own - 1] || earlier[own + 1 :])::key_rows;
    END IF;
    IF p_item.goes_to <> 'succeeded' OR (own IS NULL AND (p_item.sent).key IS NULL) THEN
        RETURN NULL;
    END IF;
    IF own IS NULL THEN
        done := claimed_row(p_now_ms, p_run_id, p_epoch, p_item.sent);
    ELSE
        done := earlier[own];
        earlier := earlier[: own - 1] || earlier[own + 1 :];
    END IF;
    done.status := 'succeeded';
    done.at_ms := p_now_ms;
    done.result := p_item.result;
    done.result_sha256 := p_item.result_sha256;
    IF held.key IS NULL OR held.status IN ('rejected', 'waiting_approval')
        OR (held.status = 'unknown' AND held.intent_sha256 = done.intent_sha256)
    THEN
        RETURN (done, '{}'::ledger[])::key_rows;
    ELSIF held.status IN ('in_flight', 'unknown') THEN
        RETURN (held, earlier || done)::key_rows;
    END IF;
    RETURN NULL;
END $$;

-- Settle a key, and wake who waits for it. The waiters are looked for after the row is locked: whoever begins to wait locks
-- it too, so it is either seen here or sees the row as it is after this.
CREATE FUNCTION settle_key(p_now_ms bigint, p_run_id text, p_epoch bigint, p_item settlement_item)
RETURNS woken_run[] LANGUAGE plpgsql AS $$
DECLARE
    rows_before key_rows;
    rows_after key_rows;
    waiting text[];
BEGIN
    LOOP
        rows_before := (locked_key(p_item.tenant, p_item.key), '{}'::ledger[])::key_rows;
        IF (rows_before.held).key IS NOT NULL THEN
            rows_before.earlier := earlier_rows(p_item.tenant, p_item.key);
        END IF;
        rows_after := settled_key(p_now_ms, p_run_id, p_epoch, p_item, rows_before);
        IF rows_after.earlier IS NULL THEN
            RETURN '{}';
        ELSIF (rows_before.held).key IS NOT NULL THEN
            PERFORM put_key(p_item.tenant, p_item.key, rows_before, rows_after);
            EXIT;
        END IF;
        EXIT WHEN place_row(rows_after.held);
    END LOOP;
    SELECT array_agg(run_id) INTO waiting
    FROM key_waits JOIN runs USING (run_key) WHERE key_waits.key = p_item.key AND runs.tenant = p_item.tenant;
    IF waiting IS NULL THEN
        RETURN '{}';
    END IF;
    RETURN wake_runs(p_now_ms, waiting);
END $$;

-- Each append of a batch, which is a JSON array of append_item, in turn. A refused one changes nothing and is an answer, not an error. p_lock: the runs that are
-- locked first and in one order, so that two hosts' batches rarely wait for each other in a circle. The last row of the
-- result is about all: the time, how often switches were turned, and which runs were made ready.
CREATE FUNCTION append_batch(p_now_ms bigint, p_lock text[], p_items text)
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
            ELSIF item.at_ms < run.updated_at_ms OR (item.claim).tenant <> run.tenant
                OR EXISTS (
                    SELECT FROM unnest(item.settlements) AS other
                    WHERE other.tenant <> run.tenant OR (other.sent).tenant <> other.tenant
                        OR (other.sent).key <> other.key OR (other.sent).call_id <> other.call_id
                )
            THEN
                answer.kind := 'out_of_line';
                answer.tenant := run.tenant;
                answer.number := run.updated_at_ms;
            END IF;
            IF answer.kind IS NOT NULL THEN
                RETURN NEXT answer;
                CONTINUE;
            END IF;
        END IF;

        is_placed := false;
        key_before := (NULL::ledger, '{}'::ledger[])::key_rows;
        IF (item.claim).key IS NOT NULL THEN
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

CREATE TYPE acquire_answer AS (
    kind text,
    epoch bigint,
    seq bigint,
    head bytea,
    died boolean,
    was_woken boolean,
    by text
);

CREATE FUNCTION acquire_run(p_now_ms bigint, p_valid_ms bigint, p_run_id text, p_host_id text, p_dead text[])
RETURNS acquire_answer LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := coalesce(p_now_ms, server_ms());
    run runs;
    holder hosts;
    answer acquire_answer;
BEGIN
    SELECT * INTO run FROM runs WHERE run_id = p_run_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        answer.kind := 'not_found';
        RETURN answer;
    END IF;
    SELECT * INTO holder FROM hosts WHERE host_id = run.owner AND expires_at_ms > now_ms;
    IF FOUND AND run.owner <> p_host_id AND run.owner <> ALL (p_dead) THEN
        answer.kind := 'owned';
        answer.by := row_to_json(holder)::text;
        RETURN answer;
    END IF;
    UPDATE hosts SET expires_at_ms = now_ms + p_valid_ms WHERE host_id = p_host_id AND expires_at_ms <= now_ms;
    UPDATE runs SET epoch = epoch + 1, owner = p_host_id, ready_at_ms = NULL WHERE run_key = run.run_key;
    answer.kind := 'acquired';
    answer.epoch := run.epoch + 1;
    answer.seq := run.seq;
    answer.head := run.head;
    answer.died := run.owner NOT IN ('', p_host_id);
    answer.was_woken := run.ready_at_ms IS NOT NULL;
    RETURN answer;
END $$;

CREATE FUNCTION release_run(p_now_ms bigint, p_run_id text, p_host_id text, p_epoch bigint, p_ready boolean)
RETURNS woken_run[] LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runs SET owner = ''
    WHERE run_id = p_run_id AND owner = p_host_id AND owner <> '' AND epoch = p_epoch;
    IF NOT FOUND OR NOT p_ready THEN
        RETURN '{}';
    END IF;
    RETURN wake_runs(coalesce(p_now_ms, server_ms()), ARRAY[p_run_id]);
END $$;

-- An owner without a row is how acquire knows of a death.
CREATE FUNCTION drop_host(p_now_ms bigint, p_host_id text, p_died boolean) RETURNS woken_run[] LANGUAGE plpgsql AS $$
DECLARE
    held text[];
BEGIN
    DELETE FROM hosts WHERE host_id = p_host_id;
    DELETE FROM commands WHERE host_id = p_host_id;
    WITH locked AS (
        SELECT run_id FROM runs WHERE owner = p_host_id AND owner <> '' ORDER BY run_key FOR NO KEY UPDATE
    )
    SELECT array_agg(run_id) INTO held FROM locked;
    IF held IS NULL THEN
        RETURN '{}';
    END IF;
    IF NOT p_died THEN
        UPDATE runs SET owner = '' WHERE run_id = ANY (held);
    END IF;
    RETURN wake_runs(coalesce(p_now_ms, server_ms()), held);
END $$;

-- NULL if there is no such run.
CREATE FUNCTION mark_damaged(p_now_ms bigint, p_run_id text, p_reason text) RETURNS woken_run[] LANGUAGE plpgsql AS $$
DECLARE
    parent text;
BEGIN
    UPDATE runs SET damaged = p_reason WHERE run_id = p_run_id RETURNING parent_id INTO parent;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF parent = '' THEN
        RETURN '{}';
    END IF;
    RETURN wake_runs(coalesce(p_now_ms, server_ms()), ARRAY[parent]);
END $$;

CREATE FUNCTION turn_switch(p_on boolean, p_scope text, p_target text, p_by text, p_reason text, p_at_ms bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    version bigint;
BEGIN
    UPDATE identity SET switches_version = switches_version + 1 RETURNING switches_version INTO version;
    IF p_on THEN
        INSERT INTO switches VALUES (p_scope, p_target, p_by, p_reason, p_at_ms)
        ON CONFLICT (scope, target)
        DO UPDATE SET by = excluded.by, reason = excluded.reason, at_ms = excluded.at_ms;
    ELSE
        DELETE FROM switches WHERE scope = p_scope AND target = p_target;
    END IF;
    RETURN version;
END $$;
