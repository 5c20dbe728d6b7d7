-- The tables of onefold, first version. "onefold." stands for the schema that was chosen.
-- Instants are milliseconds since the epoch, UTC. Text that users chose has \0 for NUL and \\ for a backslash.

CREATE TABLE onefold.version (
    version integer NOT NULL
);

CREATE TABLE onefold.record (
    ident bytea NOT NULL PRIMARY KEY,     -- stands for (scope, job, key); see identity.py
    fence bigint NOT NULL,
    lease_until_ms bigint NOT NULL,
    started_fence bigint NOT NULL,
    created_at_ms bigint NOT NULL,
    started_at_ms bigint,
    updated_at_ms bigint NOT NULL,
    expires_at_ms bigint,
    sent_at_ms bigint,
    attempts integer NOT NULL,
    attempts_total integer NOT NULL,
    crashes integer NOT NULL,
    crashes_total integer NOT NULL,
    parked boolean NOT NULL,
    doubt boolean NOT NULL,
    budget_closed boolean NOT NULL,
    status text NOT NULL CHECK (status IN ('in_progress', 'completed', 'failed', 'unknown', 'released')),
    owner text NOT NULL,
    fingerprint text NOT NULL,
    scope text NOT NULL,
    job text NOT NULL,
    key text NOT NULL,
    message_id text,
    result bytea,                         -- JSON
    failure text,                         -- JSON
    outbox text                           -- JSON
);
CREATE INDEX record_expiry ON onefold.record (expires_at_ms) WHERE expires_at_ms IS NOT NULL;
CREATE INDEX record_trouble ON onefold.record (updated_at_ms) WHERE status IN ('failed', 'unknown');

-- Runs completed per second and job. Each connection counts in rows of its own: no two of them wait for one another.
CREATE TABLE onefold.completed (
    second bigint NOT NULL,
    job text NOT NULL,
    backend integer NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (second, job, backend)
);

CREATE TABLE onefold.ledger (
    at_ms bigint NOT NULL,
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    event text NOT NULL,
    ident bytea,
    scope text,
    job text,
    key text,
    queue text,
    message_id text,
    run text,
    actor text,
    detail text,                          -- JSON
    PRIMARY KEY (at_ms, id)
);
CREATE INDEX ledger_operation ON onefold.ledger (ident, at_ms, id) WHERE ident IS NOT NULL;
CREATE INDEX ledger_run ON onefold.ledger (run, at_ms, id) WHERE run IS NOT NULL;

CREATE TABLE onefold.state (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    value bytea,                          -- JSON; NULL: deleted, the version goes on
    deleted_at_ms bigint
);

-- A row in here breaks its own rule until it is deleted, and the rule is checked at the commit: while a handler has the
-- connection, a COMMIT of its own fails. Nothing is ever stored in it.
CREATE UNLOGGED TABLE onefold.lent (
    backend integer NOT NULL PRIMARY KEY,
    taken_back integer NOT NULL,
    CONSTRAINT only_onefold_may_commit FOREIGN KEY (taken_back) REFERENCES onefold.lent (backend)
        DEFERRABLE INITIALLY DEFERRED
);
