-- One row an append. Rows are never changed: the triggers stop mistakes, the hash chain shows the rest.
CREATE TABLE appends (
    run_key bigint NOT NULL,
    first_seq bigint NOT NULL,
    event_count bigint NOT NULL,
    epoch bigint NOT NULL,
    schema_version bigint NOT NULL,
    at_ms bigint NOT NULL,
    append_id bytea NOT NULL,
    causation text NOT NULL,
    body bytea NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (run_key, first_seq)
);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a row of the log is never changed nor removed';
END $$;

CREATE TRIGGER appends_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON appends
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- The index row of a run. Derived from the log but for epoch, owner, ready_at_ms and damaged. Room is left in each page,
-- and the indexes are partial, so that an append of a run that goes on touches no index.
CREATE TABLE runs (
    run_key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL UNIQUE,
    seq bigint NOT NULL,
    epoch bigint NOT NULL,
    head bytea NOT NULL,
    updated_at_ms bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    agent text COLLATE "C" NOT NULL,
    operation_id text COLLATE "C" NOT NULL,
    parent_id text COLLATE "C" NOT NULL,
    root_id text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    outcome text NOT NULL,
    reason text NOT NULL,
    waiting_for text COLLATE "C" NOT NULL,
    waiting_keys bytea[] NOT NULL,
    wake_at_ms bigint,
    owner text COLLATE "C" NOT NULL,
    ready_at_ms bigint,
    damaged text NOT NULL DEFAULT ''
) WITH (fillfactor = 60);

CREATE INDEX runs_ready ON runs (ready_at_ms) WHERE ready_at_ms IS NOT NULL;
CREATE INDEX runs_wake ON runs (wake_at_ms) WHERE wake_at_ms IS NOT NULL AND owner = '';
CREATE INDEX runs_owner ON runs (owner) WHERE owner <> '';
CREATE INDEX runs_waiting ON runs (waiting_for) WHERE waiting_for <> '';
CREATE INDEX runs_operation ON runs (operation_id) WHERE operation_id <> '';
CREATE INDEX runs_root ON runs (root_id) WHERE root_id <> '';

-- Which runs wait for a ledger key: what runs.waiting_keys says, by key.
CREATE TABLE key_waits (
    key bytea NOT NULL,
    run_key bigint NOT NULL,
    PRIMARY KEY (key, run_key)
);
CREATE INDEX key_waits_run ON key_waits (run_key);

CREATE TABLE ledger (
    tenant text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    tool text NOT NULL,
    status text NOT NULL,
    intent_sha256 bytea NOT NULL,
    args_sha256 bytea NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    call_id text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    epoch bigint NOT NULL,
    valid_until_ms bigint NOT NULL,
    at_ms bigint NOT NULL,
    result bytea,
    result_sha256 bytea,
    PRIMARY KEY (tenant, key)
);

CREATE INDEX ledger_unknown ON ledger (at_ms) WHERE status = 'unknown';

-- What stands behind a key's row, oldest first: the rows of effects of unknown outcome that were taken over, and of those that
-- turned out to have happened while another had the key. Whoever touches them holds the lock of the row in front.
CREATE TABLE ledger_earlier (
    tenant text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    tool text NOT NULL,
    status text NOT NULL,
    intent_sha256 bytea NOT NULL,
    args_sha256 bytea NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    call_id text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    epoch bigint NOT NULL,
    valid_until_ms bigint NOT NULL,
    at_ms bigint NOT NULL,
    result bytea,
    result_sha256 bytea,
    place bigint NOT NULL,
    PRIMARY KEY (tenant, key, place)
);

-- A blob is there when its row in blobs is. Parts without one are an upload that didn't end.
CREATE TABLE blobs (
    sha256 bytea PRIMARY KEY,
    size_bytes bigint NOT NULL,
    parts bigint NOT NULL
);

CREATE TABLE blob_parts (
    sha256 bytea NOT NULL,
    part bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (sha256, part)
);
ALTER TABLE blob_parts ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE hosts (
    host_id text COLLATE "C" PRIMARY KEY,
    node text NOT NULL,
    pid bigint NOT NULL,
    pid_start bigint NOT NULL,
    boot_id text NOT NULL,
    expires_at_ms bigint NOT NULL
);

CREATE TABLE switches (
    scope text COLLATE "C" NOT NULL,
    target text COLLATE "C" NOT NULL,
    by text NOT NULL,
    reason text NOT NULL,
    at_ms bigint NOT NULL,
    PRIMARY KEY (scope, target)
);

-- Which store this is, whatever its address, and how often its switches were turned.
CREATE TABLE identity (
    only_one integer PRIMARY KEY CHECK (only_one = 1),
    store_id bytea NOT NULL,
    switches_version bigint NOT NULL
);

INSERT INTO identity VALUES (1, decode(replace(gen_random_uuid()::text, '-', ''), 'hex'), 0);

-- Limited groups whose calls may still be at their far side although the owner that knew of them has ended.
CREATE TABLE group_holds (
    name text PRIMARY KEY,
    places bigint NOT NULL,
    until_ms bigint NOT NULL
);

-- Outside commands on their way to the live host of their run, and its answers on their way back.
CREATE TABLE commands (
    host_id text COLLATE "C" NOT NULL,
    ask_id bytea NOT NULL,
    run_id text NOT NULL,
    command_id text NOT NULL,
    command bytea NOT NULL,
    asked_at_ms bigint NOT NULL,
    answer bytea,
    PRIMARY KEY (host_id, ask_id)
);
