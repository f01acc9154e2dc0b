-- How a blob's part is kept: 0 as it is, 1 by zlib. The blob's name and size are those of what it holds.
ALTER TABLE blob_parts ADD COLUMN coding INTEGER NOT NULL DEFAULT 0;
