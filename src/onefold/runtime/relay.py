"""The relay: passes messages from an app's outbox table to their queues, each once and in order, even if processes die.

Any number of relays may run. What was passed on is written to the engine's state, under the table's token, with a
version:

    1  read the state: the ids of the last batch
    2  remove those rows: they were passed on, and a relay that died may not have removed them
    3  read the rows that wait
    4  in one transaction of the engine: send them, and replace the state, if its version is still the one read in step 1
    5  remove them

If two relays read the same version, one of them replaces it and the other one's transaction is undone. A row that is
read in step 3 but was passed on before belongs to the batch in the state, because all earlier rows were removed before
that batch was written.
Where sends are not part of a transaction of the engine (SQS), the state says which process passes on which rows and
until when, and no other process takes any. If a relay dies between a send and the removal, its rows are sent again,
with the same key and the same deduplication id. A row is identified by its number and a token, because after a database
was restored new rows get the numbers of old ones. Never here: SQL. Invariants: a row is removed only when its message
is durable in its queue; rows of an app are sent in the order of their ids.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.documents import decode
from onefold.contracts.outbox import OutboxRow, RowId
from onefold.contracts.state import Change, Versioned, bounded_name
from onefold.runtime import outbox
from onefold.runtime.events import Event, Sinks, kept_text
from onefold.runtime.outage import Outage
from onefold.runtime.outgoing import send_all, transaction
from onefold.threads import thread_beside

if TYPE_CHECKING:
    from onefold.contracts.outbox import OutboxTable
    from onefold.runtime.runtime import Runtime

BATCH: Final = 500
_BATCH_APART: Final = 100  # ten calls to SQS, which end well within the turn
TURN_MS: Final = 30_000
REST_MS: Final = 1_000  # a row waits at most this long, even if no notification comes
_CALM_MS: Final = 1_000


class _Passed(Struct, frozen=True):
    """The state of a table.

    Args:
        ids: the rows of the last batch.
        owner, until_ms: the process that passes it on, and until when; only if that is not done in one transaction.
    """

    ids: list[RowId]
    owner: str | None = None
    until_ms: int = 0


_passed_of = msgspec.json.Decoder(_Passed).decode


class _AnotherRelay(Exception):
    """Another relay was faster; nothing more of this batch is sent here."""


class Relay:
    """Passes on the messages of one app; for one thread only.

    Args:
        runtime: the app's runtime.
        table: its outbox table.
        sinks: receive events about refused rows and about failures.
    """

    def __init__(self, runtime: Runtime, table: OutboxTable, sinks: Sinks) -> None:
        self._runtime = runtime
        self._table = table
        self._sinks = sinks
        self._app = runtime.registry.name
        self._queues = [one.name for one in runtime.registry.queue_settings()]
        self._one_by_one = 0  # how many rows to try one by one, because one of them is refused
        self._clean: int | None = None  # the version of the state whose rows this relay has removed
        self.passed = 0

    def check(self) -> int:
        """Pass on the messages that wait now; returns how many.

        Raises:
            TransientError: the database or the engine cannot be reached now.
            UsageError: they cannot be used; nothing is lost.
        """
        before = self.passed
        while self._step():
            pass
        return self.passed - before

    def run(self, ended: threading.Event) -> None:
        """Pass on committed messages until `ended` is set; failures are reported and tried again."""
        clock = self._runtime.steady
        outage = Outage(clock, self._report)
        while not ended.is_set():
            try:
                if not self.check():
                    self._table.wait(lambda ms: clock.wait(ended, ms), REST_MS)
                outage.answered()
            except errors.OnefoldError as error:
                outage.failed(error)
                clock.wait(ended, _CALM_MS)
            except Exception as error:  # noqa: BLE001 - the thread must not end without a word
                outage.failed(errors.InvariantBroken(f"The relay met {type(error).__name__}: {kept_text(error)}"))
                clock.wait(ended, _CALM_MS)
        self._table.close()

    def close(self) -> None:
        """Close the table."""
        self._table.close()

    def _step(self) -> bool:
        """Pass on one batch; returns whether there may be more."""
        engine, table = self._runtime.engine, self._table
        name = bounded_name("relay/", f"{table.token}/{self._app}")
        (found,) = engine.state.get([name])
        known = _Passed([]) if found is None else decode(name, found.value, _passed_of)
        is_whole = engine.commit is not None
        if is_whole and known.ids and (found is None or found.version != self._clean):
            table.remove(known.ids)
        if known.owner not in (None, self._runtime.owner) and self._runtime.steady.now_ms() < known.until_ms:
            return False
        limit = 1 if self._one_by_one else BATCH if is_whole else _BATCH_APART
        rows = table.waiting(self._app, self._queues, limit)
        if not rows:
            return False
        try:
            if is_whole:
                self._pass_whole(name, found, rows)
            else:
                self._pass_apart(name, found, rows)
        except _AnotherRelay:
            return True
        except (errors.PayloadError, errors.ConflictError, ArithmeticError, ValueError) as error:
            self._refused(rows, error)  # the last two: a value that the engine cannot hold
            return True
        self.passed += len(rows)
        self._one_by_one = max(self._one_by_one - 1, 0)
        return True

    def _pass_whole(self, name: str, found: Versioned | None, rows: Sequence[OutboxRow]) -> None:
        engine, ids = self._runtime.engine, [row.id for row in rows]
        change = Change(name, msgspec.json.encode(_Passed(ids)), 0 if found is None else found.version)

        def send() -> None:
            send_all(self._runtime, [outbox.read(row, self._runtime.now_ms()) for row in rows], self._runtime.history)
            if engine.state.put([change]) != [True]:
                raise _AnotherRelay

        transaction(engine, send)
        self._table.remove(ids)
        self._clean = change.expected + 1

    def _pass_apart(self, name: str, found: Versioned | None, rows: Sequence[OutboxRow]) -> None:
        runtime, ids = self._runtime, [row.id for row in rows]
        state, version = runtime.engine.state, 0 if found is None else found.version
        mine = _Passed(ids, runtime.owner, runtime.steady.now_ms() + TURN_MS)
        if state.put([Change(name, msgspec.json.encode(mine), version)]) != [True]:
            raise _AnotherRelay
        try:
            for queue_rows in _by_queue(rows):
                if runtime.steady.now_ms() >= mine.until_ms:  # this process was stopped, and another may pass them on
                    raise _AnotherRelay
                send_all(runtime, [outbox.read(row, runtime.now_ms()) for row in queue_rows], runtime.history)
                self._table.remove([row.id for row in queue_rows])
        finally:  # a turn that another process has taken meanwhile is left alone
            state.put([Change(name, msgspec.json.encode(_Passed([])), version + 1)])

    def _refused(self, rows: Sequence[OutboxRow], error: Exception) -> None:
        """One of these rows cannot be sent: all are tried one by one, and that row is marked as refused."""
        if len(rows) > 1:
            self._one_by_one = len(rows)
            return
        self._one_by_one = max(self._one_by_one - 1, 0)
        self._table.refuse(rows[0].id, kept_text(error))
        self._emit("outbox-refused", {"row": rows[0].id.number, "in": rows[0].queue, "summary": kept_text(error)})

    def _report(self, name: str, detail: dict[str, str | int | bool | None], _error: BaseException) -> None:
        self._emit("relay-failed" if name == "engine-busy" else name, detail)

    def _emit(self, name: str, detail: dict[str, str | int | bool | None]) -> None:
        runtime = self._runtime
        self._sinks.emit(Event(at_ms=runtime.clock.now_ms(), name=name, actor=runtime.owner, detail=detail))


def _by_queue(rows: Sequence[OutboxRow]) -> Iterator[list[OutboxRow]]:
    """Groups of consecutive rows for one queue, in order; a group is sent in one call, all of it or nothing."""
    batch: list[OutboxRow] = []
    for row in rows:
        if batch and batch[0].queue != row.queue:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


@contextmanager
def beside(relay: Relay) -> Iterator[None]:
    """Run a relay in a thread of its own while the block runs.

    Raises:
        Whatever ended the thread, when the block ends.
    """
    ended = threading.Event()
    with thread_beside("onefold-relay", lambda: relay.run(ended), ended.set):
        yield
