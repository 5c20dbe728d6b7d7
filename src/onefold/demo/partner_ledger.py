"""The partner's ledger: every request it decided and every booking it made, in a SQLite file of its own.

Here: the schema, the writer that commits rows that arrive together as one group, and the reader that the judge uses.
Never here: an import of onefold, or a decision. Invariant: a row is committed with an fsync before its request is
answered, and a booking is always written in the same transaction as the request that made it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

from onefold.demo.partner_books import Booking, BookingOrder

SCHEMA = """
CREATE TABLE request (
    id INTEGER PRIMARY KEY,          -- the order of the partner's decisions
    received_at_ms INTEGER NOT NULL,
    decided_at_ms INTEGER NOT NULL,
    action TEXT NOT NULL,            -- book, look, fence
    reference TEXT NOT NULL,         -- invoice number; empty when the request was malformed
    key TEXT,                        -- Idempotency-Key header
    fence INTEGER,                   -- Onefold-Fence header
    outcome TEXT NOT NULL,           -- what was done; one of partner_books.PartnerDecision's outcomes
    status INTEGER NOT NULL,         -- of the answer; the caller of a 500 cannot know the outcome
    caller_gone INTEGER NOT NULL     -- 1: the connection was closed before the decision (a killed worker)
) STRICT;
CREATE TABLE booking (
    number INTEGER PRIMARY KEY,
    request_id INTEGER NOT NULL REFERENCES request (id),
    reference TEXT NOT NULL,
    kind TEXT NOT NULL,
    quantity INTEGER NOT NULL,
    unit_price TEXT NOT NULL
) STRICT;
"""

INSERT_REQUEST = "INSERT INTO request VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_BOOKING = "INSERT INTO booking VALUES (?, ?, ?, ?, ?, ?)"
SELECT_BOOKINGS = "SELECT request_id, number, reference, kind, quantity, unit_price FROM booking ORDER BY number"


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One decided request: the columns of the table `request` and the booking it made, if any."""

    received_at_ms: int
    decided_at_ms: int
    action: str
    reference: str
    key: str | None
    fence: int | None
    outcome: str
    status: int
    caller_gone: bool
    made: Booking | None


@dataclass(frozen=True, slots=True)
class PartnerLedger:
    """The contents of a ledger file, in the order of the partner's decisions."""

    requests: tuple[RequestRow, ...]
    bookings: tuple[Booking, ...]


class LedgerWriter:
    """Writes rows in groups. Any number of requests of one event loop can await `written`.

    Args:
        path: a file that does not exist yet. The partner's memory starts empty, so it would not know the
            bookings of an old ledger.

    Raises:
        FileExistsError: there is a file already.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise FileExistsError(
                f"ledger {path} exists already; a partner starts with an empty one, name another file"
            )
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.executescript(SCHEMA)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._one_at_a_time = asyncio.Lock()
        self._rows: list[RequestRow] = []
        self._group: asyncio.Task[None] | None = None
        self.requests_count = 0

    async def written(self, row: RequestRow) -> None:
        """Return when `row` is committed, together with all rows of its group.

        Raises:
            sqlite3.Error: the group could not be committed. From then on the partner's memory and its ledger
                differ, so the partner must stop.
        """
        self._rows.append(row)
        if self._group is None:
            self._group = asyncio.create_task(self._commit_group())
        await asyncio.shield(self._group)

    async def _commit_group(self) -> None:
        async with self._one_at_a_time:
            rows, self._rows, self._group = self._rows, [], None
            await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, rows)
            self.requests_count += len(rows)

    def _commit(self, rows: list[RequestRow]) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            for request_id, row in enumerate(rows, start=self.requests_count + 1):
                *columns, made = (getattr(row, name) for name in RequestRow.__slots__)
                database.execute(INSERT_REQUEST, (request_id, *columns))
                if made is not None:
                    database.execute(INSERT_BOOKING, (made.number, request_id, *astuple(made.order)))
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")

    def close(self) -> None:
        """Finish the group being written and close the file."""
        self._thread.shutdown(wait=True)
        self._database.close()


def read_ledger(path: Path) -> PartnerLedger:
    """Read a ledger file. If the partner is still writing to it, the result is what has been committed so far.

    Raises:
        FileNotFoundError: the file does not exist.
        sqlite3.DatabaseError: it is not a ledger.
    """
    if not path.exists():
        raise FileNotFoundError(f"no ledger at {path}; the partner that was to write it did not start")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN")  # one snapshot for both tables
        bookings = {
            request_id: Booking(number, BookingOrder(*order))
            for request_id, number, *order in database.execute(SELECT_BOOKINGS)
        }
        requests = tuple(
            RequestRow(*(*columns, bool(caller_gone), bookings.get(request_id)))
            for request_id, *columns, caller_gone in database.execute("SELECT * FROM request ORDER BY id")
        )
    return PartnerLedger(requests, tuple(bookings.values()))
