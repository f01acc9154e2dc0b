-- Which store this is, whatever its path: a file of the same name on another machine is another ledger.
CREATE TABLE identity (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    store_id BLOB NOT NULL
) STRICT;

INSERT INTO identity VALUES (1, randomblob(16));

-- Limited groups whose calls may still be at their far side although the owner that knew of them has ended.
CREATE TABLE group_holds (
    name TEXT NOT NULL PRIMARY KEY,
    places INTEGER NOT NULL,
    until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
