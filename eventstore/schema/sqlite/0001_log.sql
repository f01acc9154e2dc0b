-- One row an append. Rows are never changed: the triggers stop mistakes, the hash chain shows the rest.
-- run_key keeps a row's cost beyond body and hash near 80 bytes, and 1,000 interleaved runs fast.
CREATE TABLE appends (
    run_key INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    event_count INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    append_id BLOB NOT NULL,
    causation TEXT NOT NULL,
    body BLOB NOT NULL,
    hash BLOB NOT NULL,
    UNIQUE (run_key, first_seq)
) STRICT;

CREATE TRIGGER appends_stay BEFORE UPDATE ON appends
BEGIN SELECT RAISE(ABORT, 'a row of the log is never changed'); END;

CREATE TRIGGER appends_remain BEFORE DELETE ON appends
BEGIN SELECT RAISE(ABORT, 'a row of the log is never removed'); END;

-- The index row of a run. Derived from the log but for epoch, owner, ready_at_ms and damaged.
-- The indexes are partial, so that an append of a run that goes on touches none of them.
CREATE TABLE runs (
    run_key INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    seq INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    head BLOB NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    parent_id TEXT NOT NULL,
    root_id TEXT NOT NULL,
    status TEXT NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    waiting_for TEXT NOT NULL,
    wake_at_ms INTEGER,
    owner TEXT NOT NULL,
    ready_at_ms INTEGER,
    damaged TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX runs_ready ON runs (ready_at_ms) WHERE ready_at_ms IS NOT NULL;
CREATE INDEX runs_wake ON runs (wake_at_ms) WHERE wake_at_ms IS NOT NULL AND owner = '';
CREATE INDEX runs_owner ON runs (owner) WHERE owner <> '';
CREATE INDEX runs_waiting ON runs (waiting_for) WHERE waiting_for <> '';
CREATE INDEX runs_operation ON runs (operation_id) WHERE operation_id <> '';
CREATE INDEX runs_root ON runs (root_id) WHERE root_id <> '';

-- The ledger keys that runs wait for.
CREATE TABLE key_waits (
    run_key INTEGER NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (run_key, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX key_waits_key ON key_waits (key);

CREATE TABLE ledger (
    tenant TEXT NOT NULL,
    key BLOB NOT NULL,
    tool TEXT NOT NULL,
    status TEXT NOT NULL,
    intent_sha256 BLOB NOT NULL,
    args_sha256 BLOB NOT NULL,
    run_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    valid_until_ms INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    result BLOB,
    result_sha256 BLOB,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX ledger_unknown ON ledger (at_ms) WHERE status = 'unknown';

-- A blob is there when its row in blobs is, which is written with its last part.
CREATE TABLE blobs (
    sha256 BLOB PRIMARY KEY,
    size_bytes INTEGER NOT NULL,
    parts INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE blob_parts (
    sha256 BLOB NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (sha256, part)
) STRICT;

CREATE TABLE hosts (
    host_id TEXT PRIMARY KEY,
    node TEXT NOT NULL,
    pid INTEGER NOT NULL,
    pid_start INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE switches (
    scope TEXT NOT NULL,
    target TEXT NOT NULL,
    by TEXT NOT NULL,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (scope, target)
) STRICT, WITHOUT ROWID;
