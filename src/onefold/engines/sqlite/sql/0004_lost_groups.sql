-- FIFO messages whose group has no row, or a row of another queue. Until now a message that was moved to the end of the group
-- whose only message it was lost the group's row, and the next group made took that row's number: the message was never
-- received, or was received from another queue. The group's name is not known any more: each gets a group of its own.
-- From here on a group takes the number of a message it was made for, which is never given out again.
UPDATE onefold_file SET last_id = max(
    last_id,
    coalesce((SELECT max(id) FROM onefold_group), 0),
    coalesce((SELECT max(grp) FROM onefold_message WHERE grp IS NOT NULL), 0)
);

INSERT INTO onefold_group (id, queue, name, ready_at_ms, rotation)
SELECT
    f.last_id + row_number() OVER (ORDER BY lost.earliest), lost.queue, 'onefold-repaired-' || f.token || '-' || lost.grp, 0, 0
FROM onefold_file f CROSS JOIN (
    SELECT m.queue, m.grp, min(m.position) AS earliest FROM onefold_message m
    WHERE m.grp IS NOT NULL AND NOT EXISTS (SELECT 1 FROM onefold_group g WHERE g.id = m.grp AND g.queue = m.queue)
    GROUP BY m.queue, m.grp
) lost;

UPDATE onefold_file SET last_id = max(last_id, coalesce((SELECT max(id) FROM onefold_group), 0));

UPDATE onefold_message SET grp = (
    SELECT g.id FROM onefold_group g CROSS JOIN onefold_file f
    WHERE g.queue = onefold_message.queue AND g.name = 'onefold-repaired-' || f.token || '-' || onefold_message.grp
)
WHERE grp IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM onefold_group g WHERE g.id = onefold_message.grp AND g.queue = onefold_message.queue
);

-- One that another queue received went into that queue's books, and stayed in its own queue's as well.
UPDATE onefold_received SET queue = (SELECT m.queue FROM onefold_message m WHERE m.id = onefold_received.id)
WHERE id IN (
    SELECT m.id FROM onefold_message m JOIN onefold_group g ON g.id = m.grp JOIN onefold_received r ON r.id = m.id
    WHERE r.queue <> m.queue
);

DELETE FROM onefold_waiting WHERE queue IN (SELECT id FROM onefold_queue WHERE name LIKE '%.fifo') AND (
    id NOT IN (SELECT id FROM onefold_message) OR id IN (SELECT id FROM onefold_received)
);

-- What `status` warns of: the first of them, as many as a value of onefold_state has room for.
INSERT INTO onefold_state (name, version, value)
SELECT 'repaired-groups', 1, CAST(json_object('at_ms', CAST(strftime('%s', 'now') AS INTEGER) * 1000, 'messages', json(ids)) AS BLOB)
FROM (
    SELECT json_group_array(message_id) AS ids, count(*) AS found FROM (
        SELECT f.token || '-' || m.id AS message_id
        FROM onefold_file f JOIN onefold_group g ON g.name LIKE 'onefold-repaired-' || f.token || '-%'
        JOIN onefold_message m ON m.grp = g.id ORDER BY m.id LIMIT 1000
    )
)
WHERE found > 0;
