-- Records and what stands beside them. Names begin with onefold_, because handlers may keep tables of their own in this
-- file (level 4). Times are integer milliseconds since the epoch, UTC. What is true of a record says contracts/store.py.

-- ident: the operation in one value, unique, and sorted like the business keys (see identity.py): keys that grow, such as
-- order numbers and dates, fall on neighbouring index pages, so that a claim costs the same at a million records.
-- status: 0 in_progress, 1 completed, 2 failed, 3 unknown, 4 released. failure and outbox are JSON, result is the run's.
-- The wide and rare columns come last: SQLite reads a row from the left.
CREATE TABLE onefold_record (
    id INTEGER PRIMARY KEY,
    ident BLOB NOT NULL UNIQUE,
    status INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    doubt INTEGER NOT NULL,
    started_fence INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    attempts_total INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    crashes_total INTEGER NOT NULL,
    budget_closed INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    started_at_ms INTEGER,
    updated_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER,
    fingerprint TEXT NOT NULL,
    scope TEXT NOT NULL,
    job TEXT NOT NULL,
    key TEXT NOT NULL,
    message_id TEXT,
    sent_at_ms INTEGER,
    result BLOB,
    failure TEXT,
    outbox TEXT
);

-- For people who look for what needs them; a clean run never enters it.
CREATE INDEX onefold_record_trouble ON onefold_record (updated_at_ms) WHERE status = 2 OR status = 3;

-- Processes of this host that are known to be dead (presence.py): their leases are over.
CREATE TABLE onefold_dead_owner (
    owner TEXT PRIMARY KEY,
    at_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- How many runs completed, by second and job.
CREATE TABLE onefold_completed (
    second INTEGER NOT NULL,
    job TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (second, job)
) WITHOUT ROWID;

-- How far the sweep has come; it walks the records by id, so that no index has to be kept for it.
CREATE TABLE onefold_sweep (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    record_id INTEGER NOT NULL
);
INSERT INTO onefold_sweep (only, record_id) VALUES (1, 0);

-- History: appended, never changed. detail is JSON.
CREATE TABLE onefold_ledger (
    id INTEGER PRIMARY KEY,
    at_ms INTEGER NOT NULL,
    event TEXT NOT NULL,
    ident BLOB,
    scope TEXT,
    job TEXT,
    key TEXT,
    queue TEXT,
    message_id TEXT,
    run TEXT,
    actor TEXT,
    detail TEXT
);
CREATE INDEX onefold_ledger_at ON onefold_ledger (at_ms);
CREATE INDEX onefold_ledger_ident ON onefold_ledger (ident) WHERE ident IS NOT NULL;
CREATE INDEX onefold_ledger_run ON onefold_ledger (run) WHERE run IS NOT NULL;

-- Named values with versions. value NULL: deleted at deleted_at_ms; kept for a while so that no old version fits again.
CREATE TABLE onefold_state (
    name TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    value BLOB,
    deleted_at_ms INTEGER
);
CREATE INDEX onefold_state_deleted ON onefold_state (deleted_at_ms) WHERE deleted_at_ms IS NOT NULL;
