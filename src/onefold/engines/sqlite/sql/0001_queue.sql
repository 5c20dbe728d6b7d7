-- Queues and their messages. State is where the row stands:
--   onefold_waiting    never received; ordered by the instant it becomes visible
--   onefold_received   received at least once: in flight while visible_at_ms is ahead, else to be received again
--   onefold_scheduled  of a FIFO queue, not in its group yet: enters it when due (it stands in waiting too)
-- onefold_message holds what does not change while a message travels, so that a receive writes narrow rows only.

CREATE TABLE onefold_file (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    token TEXT NOT NULL,             -- the start of every message id made in this file
    last_id INTEGER NOT NULL,        -- the last id or position given out; never goes back
    settings_version TEXT NOT NULL   -- another token after every change of any queue's settings
);

CREATE TABLE onefold_queue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL,                     -- JSON of contracts.admin.QueueSettings
    receives_total INTEGER NOT NULL DEFAULT 0,  -- receives ever
    receives_base INTEGER NOT NULL DEFAULT 0,   -- receives_total - receives_base is never below the count in flight
    purged_at_ms INTEGER
);

CREATE TABLE onefold_message (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    sent_at_ms INTEGER NOT NULL,     -- retention counts from here; ahead of now for a scheduled message
    visible_at_ms INTEGER NOT NULL,  -- becomes visible for the first time; never before sent_at_ms
    grp INTEGER,                     -- FIFO: its row in onefold_group
    position INTEGER,                -- FIFO: order in the group, and the sequence number
    dedup_id TEXT,                   -- FIFO: NULL stands for the SHA-256 of the body
    key TEXT,
    meta TEXT,                       -- JSON of everything rare; NULL when there is nothing of it
    body TEXT NOT NULL
);
CREATE INDEX onefold_message_of_group ON onefold_message (grp, position) WHERE grp IS NOT NULL;

CREATE TABLE onefold_waiting (
    queue INTEGER NOT NULL,
    visible_at_ms INTEGER NOT NULL,
    id INTEGER NOT NULL,
    sent_at_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, visible_at_ms, id)
) WITHOUT ROWID;

CREATE TABLE onefold_received (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    visible_at_ms INTEGER NOT NULL,
    sent_at_ms INTEGER NOT NULL,
    receives INTEGER NOT NULL,       -- the receive count that people and dead-letter rules see
    delivery INTEGER NOT NULL,       -- grows with every receive and never goes back; part of the receipt
    first_received_at_ms INTEGER NOT NULL,
    received_at_ms INTEGER NOT NULL,
    owner TEXT                       -- the process that received it; NULL once settled
);
CREATE INDEX onefold_received_visible ON onefold_received (queue, visible_at_ms, sent_at_ms);

CREATE TABLE onefold_scheduled (
    queue INTEGER NOT NULL,
    due_at_ms INTEGER NOT NULL,
    id INTEGER NOT NULL,
    PRIMARY KEY (queue, due_at_ms, id)
) WITHOUT ROWID;

CREATE TABLE onefold_group (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    name TEXT NOT NULL,
    ready_at_ms INTEGER,             -- nothing of the group can be received before; NULL: empty, about to go
    rotation INTEGER NOT NULL,       -- among groups ready at one instant the one served longest ago comes first
    UNIQUE (queue, name)
);
CREATE INDEX onefold_group_ready ON onefold_group (queue, ready_at_ms, rotation);

CREATE TABLE onefold_dedup (
    position INTEGER PRIMARY KEY,    -- of the first message; also the order in time
    queue INTEGER NOT NULL,
    digest BLOB NOT NULL UNIQUE,     -- of queue, scope and deduplication id
    message INTEGER NOT NULL,
    accepted_at_ms INTEGER NOT NULL
);

CREATE TABLE onefold_move_task (
    id INTEGER PRIMARY KEY,
    handle TEXT NOT NULL UNIQUE,
    source TEXT NOT NULL,            -- queue names, so that the history outlives a queue
    target TEXT,
    per_second_max INTEGER,
    status TEXT NOT NULL,
    to_move INTEGER NOT NULL,
    moved INTEGER NOT NULL DEFAULT 0,
    last_id INTEGER NOT NULL,        -- messages made after the start are not moved
    started_at_ms INTEGER NOT NULL,
    failure TEXT
);
CREATE INDEX onefold_move_task_of_source ON onefold_move_task (source, id);
