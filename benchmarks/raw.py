"""The raw programs: bare sqlite3 making the durable writes that a job queue with idempotency records must make.

One figure per call, as one line of JSON: `python -m benchmarks.raw drain --file q.db --count 20000 --batch 100`. Standard
library only. The file is in WAL mode with synchronous=FULL, so a commit that returned survives a power cut.

A message costs: its insert; the lease (visibility, receive count, receipt); a record (16-byte digest of the key, owner,
fence, `started_at_ms`) that is durable before the handler is called; the record completed with its result; the delete.
A batch makes these in two synced commits (lease + claim | complete + delete): no handler runs before its claim is durable.

Never here: retries, policies, errors, or anything imported from onefold. Invariant: what is timed is only what a queue
must do; loading a backlog and opening files are not timed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

CHECKPOINT_PAGES = 10_000
CACHE_KIB = 64 * 1024
"""Both as onefold has them, so that no figure differs by a setting."""
LEASE_MS = 30_000
KEPT_MS = 90 * 86_400_000
OWNER = os.urandom(8).hex()
OWN_FENCE = 1
EMPTY_RESULT = "null"

SCHEMA = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, grp TEXT, visible_at_ms INTEGER NOT NULL,
    sent_at_ms INTEGER NOT NULL, first_received_at_ms INTEGER, receive_count INTEGER NOT NULL DEFAULT 0,
    receipt BLOB, key TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX messages_ready ON messages (queue, visible_at_ms) WHERE grp IS NULL;
CREATE INDEX messages_of_group ON messages (queue, grp, id) WHERE grp IS NOT NULL;
CREATE TABLE groups (
    queue INTEGER NOT NULL, grp TEXT NOT NULL, head INTEGER NOT NULL, open_at_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, grp)) WITHOUT ROWID;
CREATE INDEX groups_ready ON groups (queue, open_at_ms, head);
CREATE TABLE dedup (
    digest BLOB PRIMARY KEY, message INTEGER NOT NULL, until_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE records (
    digest BLOB NOT NULL UNIQUE, key TEXT NOT NULL, fingerprint BLOB NOT NULL, status INTEGER NOT NULL,
    owner TEXT NOT NULL, fence INTEGER NOT NULL, lease_until_ms INTEGER NOT NULL, started_at_ms INTEGER,
    result TEXT, created_at_ms INTEGER NOT NULL, updated_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL);
"""
SEND = "INSERT INTO messages (queue, grp, visible_at_ms, sent_at_ms, key, body) VALUES (1, ?, ?, ?, ?, ?)"
SEND_DEDUP = "INSERT INTO dedup (digest, message, until_ms) VALUES (?, ?, ?)"
SEND_GROUP = "INSERT OR IGNORE INTO groups (queue, grp, head, open_at_ms) VALUES (1, ?, ?, 0)"
LEASE = """
UPDATE messages SET visible_at_ms = :until_ms, receive_count = receive_count + 1, receipt = randomblob(16),
    first_received_at_ms = coalesce(first_received_at_ms, :now_ms)
WHERE id IN (SELECT id FROM messages WHERE queue = 1 AND grp IS NULL AND visible_at_ms <= :now_ms
             ORDER BY visible_at_ms LIMIT :count)
RETURNING id, receipt, key, body
"""
LOCK_GROUPS = """
UPDATE groups SET open_at_ms = :until_ms
WHERE queue = 1 AND grp IN (SELECT grp FROM groups WHERE queue = 1 AND open_at_ms <= :now_ms
                            ORDER BY open_at_ms, head LIMIT :count)
RETURNING head
"""
LEASE_HEAD = """
UPDATE messages SET visible_at_ms = ?, receive_count = receive_count + 1, receipt = randomblob(16),
    first_received_at_ms = coalesce(first_received_at_ms, ?) WHERE id = ? RETURNING id, receipt, key, body
"""
CLAIM = """
INSERT INTO records (digest, key, fingerprint, status, owner, fence, lease_until_ms, started_at_ms,
                     created_at_ms, updated_at_ms, expires_at_ms)
VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING
"""
COMPLETE = """
UPDATE records SET status = 2, result = ?, updated_at_ms = ?, expires_at_ms = ?
WHERE digest = ? AND owner = ? AND fence = ? AND status = 1
"""
DELETE = "DELETE FROM messages WHERE id = ? AND receipt = ?"
DELETE_HEAD = "DELETE FROM messages WHERE id = ? AND receipt = ? RETURNING grp"
ADVANCE = """
UPDATE groups SET open_at_ms = 0, head = (SELECT min(id) FROM messages WHERE queue = 1 AND grp = groups.grp)
WHERE queue = 1 AND grp = ? AND EXISTS (SELECT 1 FROM messages WHERE queue = 1 AND grp = groups.grp)
"""
FORGET_GROUP = "DELETE FROM groups WHERE queue = 1 AND grp = ?"

Leased = tuple[int, bytes, str, str]
Figures = dict[str, float]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def bodies(count: int, first: int = 0) -> Iterator[tuple[str, str]]:
    """Yields (key, body): the body is JSON of exactly 200 bytes."""
    for number in range(first, first + count):
        key = f"order-{number:010d}"
        start = f'{{"order_id":"{key}","note":"'
        yield key, start + "x" * (198 - len(start)) + '"}'


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'messages'").fetchone():
        connection.executescript(SCHEMA)
    return connection


def handle(body: str) -> str:
    """The no-op handler: takes the body, answers the result that is stored."""
    return EMPTY_RESULT


class Standard:
    """The statements of a standard queue; each method runs inside the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def send(self, items: Sequence[tuple[str, str]]) -> None:
        now = now_ms()
        self.connection.executemany(SEND, ((None, now, now, key, body) for key, body in items))

    def lease(self, count: int) -> list[Leased]:
        now = now_ms()
        values = {"until_ms": now + LEASE_MS, "now_ms": now, "count": count}
        return self.connection.execute(LEASE, values).fetchall()

    def claim(self, leased: Sequence[Leased]) -> None:
        now = now_ms()
        self.connection.executemany(
            CLAIM,
            (
                (
                    digest(key),
                    key,
                    digest(body),
                    OWNER,
                    OWN_FENCE,
                    now + LEASE_MS,
                    now,
                    now,
                    now,
                    now + KEPT_MS,
                )
                for _, _, key, body in leased
            ),
        )

    def complete(self, leased: Sequence[Leased], results: Sequence[str]) -> None:
        now = now_ms()
        pairs = zip(leased, results, strict=True)
        rows = ((result, now, now + KEPT_MS, digest(item[2]), OWNER, OWN_FENCE) for item, result in pairs)
        if self.connection.executemany(COMPLETE, rows).rowcount != len(leased):
            raise SystemExit("a record was lost: another process wrote to this file")

    def delete(self, leased: Sequence[Leased]) -> None:
        self.connection.executemany(DELETE, ((number, receipt) for number, receipt, _, _ in leased))


class Fifo(Standard):
    """The same for a queue of `groups` message groups: one message of a group in flight, in order, deduplicated."""

    def __init__(self, connection: sqlite3.Connection, groups: int) -> None:
        super().__init__(connection)
        self.groups = groups
        self.sent = 0

    def send(self, items: Sequence[tuple[str, str]]) -> None:
        now = now_ms()
        execute = self.connection.execute
        for key, body in items:
            group = f"group-{self.sent % self.groups}"
            self.sent += 1
            number = execute(SEND, (group, now, now, key, body)).lastrowid
            execute(SEND_DEDUP, (digest(key), number, now + 300_000))
            execute(SEND_GROUP, (group, number))

    def lease(self, count: int) -> list[Leased]:
        now = now_ms()
        values = {"until_ms": now + LEASE_MS, "now_ms": now, "count": count}
        heads = self.connection.execute(LOCK_GROUPS, values).fetchall()
        lease = self.connection.execute
        return [lease(LEASE_HEAD, (now + LEASE_MS, now, head)).fetchone() for (head,) in heads]

    def delete(self, leased: Sequence[Leased]) -> None:
        execute = self.connection.execute
        for number, receipt, _, _ in leased:
            (group,) = execute(DELETE_HEAD, (number, receipt)).fetchone()
            if not execute(ADVANCE, (group,)).rowcount:
                execute(FORGET_GROUP, (group,))


def open_queue(options: argparse.Namespace) -> Standard:
    connection = connect(options.file)
    return Fifo(connection, options.groups) if options.groups else Standard(connection)


@contextmanager
def transaction(queue: Standard) -> Iterator[None]:
    queue.connection.execute("BEGIN IMMEDIATE")
    yield
    queue.connection.execute("COMMIT")


def take(queue: Standard, count: int) -> list[Leased]:
    leased = queue.lease(count)
    queue.claim(leased)
    return leased


def settle(queue: Standard, leased: Sequence[Leased], results: Sequence[str]) -> None:
    queue.complete(leased, results)
    queue.delete(leased)


def run_handlers(leased: Sequence[Leased]) -> list[str]:
    return [handle(body) for _, _, _, body in leased]


def drain_queue(queue: Standard, count: int, batch: int) -> int:
    """Runs up to `count` jobs, two commits a batch; returns how many there were."""
    done = 0
    while done < count:
        with transaction(queue):
            leased = take(queue, min(batch, count - done))
        if not leased:
            break
        results = run_handlers(leased)
        with transaction(queue):
            settle(queue, leased, results)
        done += len(leased)
    return done


def fill(queue: Standard, count: int, first: int = 0) -> None:
    """Sends `count` messages in transactions of 1,000; not timed."""
    items = bodies(count, first)
    while chunk := list(islice(items, 1_000)):
        with transaction(queue):
            queue.send(chunk)


def timed(work: Callable[[], int]) -> Figures:
    started = time.monotonic()
    done = work()
    ended = time.monotonic()
    if done == 0:
        raise SystemExit("nothing was there to be measured")
    per_s = done / (ended - started)
    return {"done": done, "per_s": per_s, "us": 1e6 / per_s, "started_at": started, "ended_at": ended}


def figure_enqueue(options: argparse.Namespace) -> Figures:
    """One insert, one commit, `--count` times."""
    queue = open_queue(options)
    items = [[item] for item in bodies(options.count)]

    def work() -> int:
        for item in items:
            with transaction(queue):
                queue.send(item)
        return len(items)

    return timed(work)


def figure_joined(options: argparse.Namespace) -> Figures:
    """A row of the program's own and a message, in one commit, `--count` times."""
    queue = open_queue(options)
    queue.connection.execute("CREATE TABLE shop_order (id INTEGER PRIMARY KEY, pence INTEGER NOT NULL)")
    items = [[item] for item in bodies(options.count)]

    def work() -> int:
        for number, item in enumerate(items):
            with transaction(queue):
                queue.connection.execute("INSERT INTO shop_order VALUES (?, ?)", (number, 995))
                queue.send(item)
        return len(items)

    return timed(work)


def figure_bulk(options: argparse.Namespace) -> Figures:
    """`--batch` inserts a commit."""
    queue = open_queue(options)

    def work() -> int:
        items = bodies(options.count)
        while chunk := list(islice(items, options.batch)):
            with transaction(queue):
                queue.send(chunk)
        return int(options.count)

    return timed(work)


def figure_load(options: argparse.Namespace) -> Figures:
    """Sends `--count` messages, quickly."""
    queue = open_queue(options)

    def work() -> int:
        fill(queue, options.count, options.first)
        return int(options.count)

    return timed(work)


def figure_drain(options: argparse.Namespace) -> Figures:
    """Lease, claim, run, complete, delete what `load` put into the file, in batches of `--batch`."""
    queue = open_queue(options)
    return timed(lambda: drain_queue(queue, options.count, options.batch))


def figure_stream(options: argparse.Namespace) -> Figures:
    """One process inserts, a commit each; another leases, claims, runs, completes and deletes up to `--batch` at a time.

    Timed from the first insert to the last delete. Both wait for the file as SQLite does; with nothing to do the one that
    runs looks again after 1 ms, without asking for the writer's turn.
    """
    open_queue(options).connection.close()
    producer = [sys.executable, "-m", "benchmarks.raw", "enqueue", *sys.argv[2:]]
    queue = open_queue(options)
    with subprocess.Popen(producer, stdout=subprocess.PIPE, text=True) as sending:
        done = 0
        ready = queue.connection.execute
        while done < options.count:
            if ready("SELECT 1 FROM messages WHERE queue = 1 AND visible_at_ms <= ? LIMIT 1", (now_ms(),)).fetchone():
                done += drain_queue(queue, options.batch, options.batch)
            elif sending.poll():
                raise SystemExit("the sending process failed")
            else:
                time.sleep(0.001)
        ended = time.monotonic()
        sent: Figures = json.loads(sending.communicate()[0])
    seconds = max(ended, sent["ended_at"]) - sent["started_at"]
    return {"done": done, "per_s": done / seconds, "us": seconds / done * 1e6, "sent_per_s": sent["per_s"]}


def figure_history(options: argparse.Namespace) -> Figures:
    """Makes a file with the records of `--count` finished jobs."""
    queue = open_queue(options)
    items = bodies(options.count)

    def work() -> int:
        while leased := [(0, b"", key, body) for key, body in islice(items, 1_000)]:
            with transaction(queue):
                queue.claim(leased)
                queue.complete(leased, run_handlers(leased))
        return int(options.count)

    return timed(work)


def figure_backlog(options: argparse.Namespace) -> Figures:
    """Sends a batch and drains a batch, `--count` messages in all, on a file where others wait."""
    queue = open_queue(options)
    items = bodies(options.count, options.first)

    def work() -> int:
        done = 0
        while chunk := list(islice(items, options.batch)):
            with transaction(queue):
                queue.send(chunk)
            done += drain_queue(queue, len(chunk), options.batch)
        return done

    return timed(work)


def figure_record(options: argparse.Namespace) -> Figures:
    """What guarding one call costs: the record claimed, the record completed, a commit each."""
    queue = open_queue(options)
    items: list[Leased] = [(0, b"", key, body) for key, body in bodies(options.count)]

    def work() -> int:
        for item in items:
            with transaction(queue):
                queue.claim([item])
            result = handle(item[3])
            with transaction(queue):
                queue.complete([item], [result])
        return len(items)

    return timed(work)


FIGURES: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "enqueue": figure_enqueue,
    "joined": figure_joined,
    "bulk": figure_bulk,
    "load": figure_load,
    "drain": figure_drain,
    "stream": figure_stream,
    "history": figure_history,
    "backlog": figure_backlog,
    "record": figure_record,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--file", type=Path, required=True, help="the database; made when it does not exist")
    parser.add_argument("--count", type=int, default=20_000, help="messages")
    parser.add_argument("--batch", type=int, default=100, help="messages a commit")
    parser.add_argument("--first", type=int, default=0, help="number of the first message; its key is made from it")
    parser.add_argument("--groups", type=int, default=0, help="message groups; 0: a standard queue")
    options = parser.parse_args()
    print(json.dumps(FIGURES[options.figure](options)))


if __name__ == "__main__":
    main()
