"""Files as large as the goals say: a million messages and a million dead letters; a thousand queues.

One message is sent and one dead-lettered by onefold; the others are copies of their rows with keys and ids of their own,
because a million of each would take minutes to make otherwise. Never here: what is measured.
Invariant: the engine counts in a filled file what was asked for.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from msgspec import Struct

import onefold
from onefold.options import WorkerSettings
from onefold.runner.worker_setup import make_worker


class Parcel(Struct):
    """The payload."""

    order_id: str
    city: str = "London"


def shop(path: Path) -> tuple[onefold.App, onefold.Job[Parcel, None]]:
    """A shop whose parcels to Atlantis fail for good."""
    app = onefold.App("shop", url=f"sqlite:///{path}")
    orders = app.queue("orders")

    @app.job(orders, key="{order_id}", owner="fulfilment")
    def book(parcel: Parcel) -> None:
        if parcel.city == "Atlantis":
            raise onefold.PermanentError("there is no such city")

    return app, book


_NUMBERS = "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :count)"
_MESSAGES = f"""{_NUMBERS}
INSERT INTO onefold_message (id, queue, sent_at_ms, visible_at_ms, key, meta, body)
SELECT :first + n, queue, sent_at_ms, visible_at_ms, 'o-' || n, replace(meta, 'o-0', 'o-' || n),
       replace(body, 'o-0', 'o-' || n)
FROM number CROSS JOIN onefold_message WHERE id = :of"""
_WAITING = f"""{_NUMBERS}
INSERT INTO onefold_waiting (queue, visible_at_ms, id, sent_at_ms)
SELECT queue, visible_at_ms, :first + n, sent_at_ms FROM number CROSS JOIN onefold_waiting WHERE id = :of"""
_RECEIVED = f"""{_NUMBERS}
INSERT INTO onefold_received
SELECT :first + n, queue, visible_at_ms, sent_at_ms, receives, delivery, first_received_at_ms, received_at_ms, owner
FROM number CROSS JOIN onefold_received WHERE id = :of"""


def million(path: Path, count: int = 1_000_000) -> tuple[onefold.App, onefold.Job[Parcel, None]]:
    """A file with `count` messages that wait, and as many dead letters; and its app."""
    app, book = shop(path)
    runtime = app.runtime()
    book.send(Parcel("o-0", "Atlantis"))
    make_worker(runtime, app.jobs, app.registry.job_of, settings=WorkerSettings(until_empty=True)).run()
    book.send(Parcel("o-0"))
    with closing(sqlite3.connect(path)) as link:
        made = [number for (number,) in link.execute("SELECT id FROM onefold_message ORDER BY id")]
        assert len(made) == 2, made
        for number in made:
            (first,) = link.execute("SELECT last_id FROM onefold_file").fetchone()
            values = {"count": count - 1, "first": first, "of": number}
            for copy in (_MESSAGES, _WAITING, _RECEIVED):  # one that was received is not among those that wait
                link.execute(copy, values)
            link.execute("UPDATE onefold_file SET last_id = last_id + ?", (count,))
        link.commit()
    depths = [runtime.engine.queues.depth(name).visible for name in ("orders", "orders-dead")]
    assert depths == [count, count], depths
    return app, book


def thousand(path: Path, count: int = 1_000) -> onefold.App:
    """A file with so many queues, each with its dead-letter queue and a message that waits; and its app."""
    app = onefold.App("many", url=f"sqlite:///{path}")

    def run(parcel: Parcel) -> None:
        """Would book it."""

    jobs = [
        app.job(app.queue(f"orders-{number:04}"), key="{order_id}", name=f"book-{number:04}")(run)
        for number in range(count)
    ]
    for number, job in enumerate(jobs):
        job.send(Parcel(f"o-{number}"))
    return app
