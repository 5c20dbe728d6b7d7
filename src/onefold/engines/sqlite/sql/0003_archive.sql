-- Events kept for replay (contracts/archive.py). archive is the bus and the archive's name; body the envelope's JSON.
CREATE TABLE onefold_archive (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- positions do not come back when the newest event expires
    archive TEXT NOT NULL,
    event_id TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    expires_at_ms INTEGER,
    body TEXT NOT NULL,
    UNIQUE (archive, event_id)
);
CREATE INDEX onefold_archive_time ON onefold_archive (archive, time_ms, id);
CREATE INDEX onefold_archive_expiry ON onefold_archive (expires_at_ms) WHERE expires_at_ms IS NOT NULL;
