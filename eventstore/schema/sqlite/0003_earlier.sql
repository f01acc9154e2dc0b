-- What stands behind a key's row, oldest first: the rows of effects of unknown outcome that were taken over, and of those that
-- turned out to have happened while another had the key. The latest is back when the row in front of them is given up.
CREATE TABLE ledger_earlier (
    place INTEGER NOT NULL,
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
    PRIMARY KEY (tenant, key, place)
) STRICT, WITHOUT ROWID;
