"""One map run, driven step by step: check what is finished, apply the limits, send more; at the end write the results.

    check     read the records of children that were sent: done, failed for good, or neither yet
    judge     if more has failed than is tolerated, nothing more is sent; what was sent can finish
    send      write ledger rows, messages and the checkpoint, in one transaction if the engine has one; otherwise in
              this order, so that a crash can send a child again (under the same key) but never leaves one out
    end       write the result files, the run's number of operations, and last the status; each step can be repeated

A driver can be killed at any point; another one reads State and continues. If two drive one run at once, the version of
its value stops one of them. In a redrive the records are read before anything is sent: a child that is done is not sent
again, and one that failed before the redrive counts as not finished.

`Turns` is the handler that drives runs: a turn of a few seconds, then the next one, in whichever worker takes it. A
turn without progress ends early, so that it occupies no thread while items wait for their retries; the longer there is
no progress, the later the next turn. A problem that only a person can fix halts the run with a message on how to fix
it; nothing is lost.
Never here: running workers, what an item's failure means. Invariants: a checkpoint counts only children whose messages
are in their queue, or whose records show that they are finished; a run that is not finished has a next turn, waits for
a person, or is driven by another process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from onefold import errors
from onefold.contracts.engine import Engine
from onefold.contracts.ledger import Row
from onefold.contracts.queue import RUN_ATTRIBUTE
from onefold.contracts.store import Record
from onefold.maps import state as map_state
from onefold.maps.checks import check_shape, check_source
from onefold.maps.children import (
    ItemSpan,
    MapChild,
    OpenChild,
    amended,
    amending,
    children,
    has_failed,
    is_over,
    status_of,
    taken,
)
from onefold.maps.jobs import MapJob, MapTurn, Still
from onefold.maps.results import write_results
from onefold.maps.rules import EXCEEDED, EXCEEDED_CAUSE, exceeded
from onefold.maps.sources import Malformed, Source, result_location, source_of
from onefold.maps.state import MapState, OtherDriverError, VersionedMapState
from onefold.runner import runs
from onefold.runner.completion import Closer
from onefold.runner.context import Context
from onefold.runtime.outgoing import Outgoing, transaction
from onefold.runtime.runtime import Runtime

if TYPE_CHECKING:
    from onefold.outside import Clock


BATCH: Final = 500  # children in one transaction, which locks an embedded engine's file for some milliseconds
SPAN_MAX: Final = 250_000  # children between the first that has not ended and the last that was sent: 10 MB
_LOOK: Final = 2_000  # records in one read
_WAIT_MS_MIN: Final = 10
_WAIT_MS_MAX: Final = 250
_NOTE_MS: Final = 1_000  # how often progress is written when nothing is sent
_LOST_MS: Final = 5_000  # if the queue is empty for this long while children are open, their messages are gone
_QUIET_MS: Final = 60_000  # how long an ending run without progress waits for its last children


class Mapper:
    """Drives one run. For use by one thread at a time.

    Args:
        runtime: the runtime of the app. mapping: the declared map. run: the run's name.
        still: since when earlier drivers have seen no progress.
        chain: names a chain of turns that follow one another, of which at most one has its lease; None for a new chain.

    Attributes:
        moved: whether a child ended or was sent in the last step.

    Raises:
        NotFoundError: the run does not exist, or its source is gone.
        UsageError: the source, or the declaration, is not what it was when the run was started.
    """

    def __init__(
        self,
        runtime: Runtime,
        mapping: MapJob,
        run: str,
        still: Still = Still(),  # noqa: B008 - frozen
        chain: str | None = None,
    ) -> None:
        self._runtime, self._mapping = runtime, mapping
        self._engine: Engine = runtime.engine
        self._clock = runtime.steady
        self._owner = runtime.owner
        token = runtime.entropy.token()
        self._chain = chain if chain is not None else token
        self._token = f"{self._chain}/{token}"
        self._stored = map_state.must_read(self._engine.state, run)
        self.moved: bool = False
        self._span = ItemSpan(self.state.settled_children)
        self._cursor = 0
        self._noted_ms = self._clock.monotonic_ms()
        self._note_progress(still)
        if self.state.over:
            return
        check_shape(mapping, self.state)
        self._source: Source = source_of(self.state.source, runtime.s3_client)
        self._stamp = check_source(self._source, self.state, self._mapping)
        self._stream: Iterator[MapChild] = iter(())
        self._begin()

    @property
    def state(self) -> MapState:
        """The run's state."""
        return self._stored.state

    @property
    def over(self) -> bool:
        """Whether there is nothing left to drive."""
        return self.state.over

    @property
    def still(self) -> Still:
        """Since when there has been no progress, for the next driver."""
        ahead_ms, empty_ms = self._clock.now_ms() - self._clock.monotonic_ms(), self._empty_since_ms
        return Still(self._moved_ms + ahead_ms, None if empty_ms is None else empty_ms + ahead_ms)

    def _note_progress(self, still: Still) -> None:
        self._wait_ms = _WAIT_MS_MIN
        moved_at_ms, empty_at_ms = still.moved_at_ms, still.empty_at_ms
        self._moved_ms = self._clock.monotonic_ms() if moved_at_ms is None else self._elapsed(moved_at_ms)
        self._empty_since_ms = None if empty_at_ms is None else self._elapsed(empty_at_ms)

    def _elapsed(self, at_ms: int) -> int:
        """A wall-clock time converted to the monotonic clock; not later than now."""
        return self._clock.monotonic_ms() - max(self._clock.now_ms() - at_ms, 0)

    def is_replaced(self) -> bool:
        """After an OtherDriverError: whether another process drives the run; False if a person changed it (stop).

        A driver of the same chain does not count: it wrote late, after its turn was taken over, and sends no next turn.
        """
        driver = map_state.must_read(self._engine.state, self.state.run).state.driver
        return driver != self.state.driver and driver.partition("/")[0] != self._chain

    # -- one step ----------------------------------------------------------------------------------------------------

    def advance(self) -> int:
        """Do what can be done now; returns after how many ms to call it again, 0 for at once.

        Raises:
            UsageError: the source has changed, or is incomplete. OtherDriverError: another process drives this run.
            StorageBusy: no part of this step was written. After an error a new Mapper must continue, not this one.
        """
        self.moved = False
        if self.over:
            return 0
        if self.state.clearing:
            self._clear()
        self.moved = self._check_progress()
        self._judge()
        if self.state.ending is None and self._send():
            self.moved = True
            self._judge()  # rows that were taken may be malformed
        now_ms = self._clock.monotonic_ms()
        if self.moved:
            self._moved_ms, self._wait_ms, self._empty_since_ms = now_ms, _WAIT_MS_MIN, None
        if self._is_finished(now_ms):
            self._end()
            return 0
        if now_ms - self._noted_ms >= _NOTE_MS:
            self._put(self._counted())
        if self.moved:
            return _WAIT_MS_MIN if self._span.open >= self._concurrency else 0
        self._send_lost(now_ms)
        self._wait_ms = min(self._wait_ms * 2, _WAIT_MS_MAX)
        return self._wait_ms

    @property
    def _concurrency(self) -> int:
        return self._mapping.spec.concurrency

    def _is_finished(self, now_ms: int) -> bool:
        if self._span.open == 0:
            return self.state.ending is not None or self.state.pending <= 0
        return self.state.ending is not None and now_ms - self._moved_ms >= _QUIET_MS

    # -- resuming ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Read again the children that were sent and may not have ended."""
        state = self.state
        self._stream = children(self._mapping, state.run, self._source, state.settled)
        self._take_sent(state.settled.index)

    def take_up(self, engine: Engine, still: Still) -> bool:
        """Continue from where other drivers have brought the run; reads only what they sent. Not after an error.

        Args:
            engine: the engine that is open now. still: as in the class.

        Returns:
            False: a new Mapper must continue, not this one. Raises what the class raises.
        """
        if engine is not self._engine:
            return False
        before, stored = self.state, map_state.must_read(engine.state, self.state.run)
        now = stored.state
        ahead = now.sent.index - before.sent.index
        if now.over or now.round != before.round or ahead not in range(SPAN_MAX + 1):
            return False
        self._stored, self._cursor, self.moved = stored, 0, False
        self._note_progress(still)
        if self._stamp is None or self._source.stamp() != self._stamp:
            self._stamp = check_source(self._source, now, self._mapping)
        if now.settled.index < before.sent.index:
            self._span.drop(now.settled_children)
        else:
            read = before.sent.index
            while read < now.settled.index and (some := taken(self._stream, BATCH, now.settled.index)):
                read = some[-1].end.index
            self._span = ItemSpan(now.settled_children)
        self._take_sent(max(before.sent.index, now.settled.index))
        return True

    def _take_sent(self, read: int) -> None:
        """Add the children that were sent after the item with index `read`, up to which the stream has been read."""
        while read < self.state.sent.index and (some := taken(self._stream, BATCH, self.state.sent.index)):
            self._take(some)
            read = some[-1].end.index

    def _take(self, some: Sequence[MapChild]) -> None:
        """Add children that an earlier driver sent, with the status that their records give them."""
        for child, record in self._records(some):
            self._add(child, record, self._sent_under(record))

    def _records(self, some: Sequence[MapChild]) -> list[tuple[MapChild, Record | None]]:
        """The children with their records."""
        keys = [child.record for child in some if child.outgoing is not None]
        found = iter(self._engine.store.read(keys, self._clock.now_ms()) if keys else ())
        return [(child, next(found) if child.outgoing is not None else None) for child in some]

    def _sent_under(self, record: Record | None) -> int:
        """The fence that a failed record had when this round sent its child, from the ledger; 0 if it did not."""
        if not self.state.round or record is None or not has_failed(record):
            return 0
        rows = self._engine.ledger.of_key(record.key)
        mine = [row for row in rows if row.event == "redrive" and row.detail.get("round") == self.state.round]
        return int(mine[-1].detail.get("fence") or 0) if mine else 0

    def _add(self, child: MapChild, record: Record | None, fence: int) -> None:
        """Add one child to the span. One with only malformed rows has ended, and is counted separately."""
        if child.outgoing is None:
            self._span.add(None, child.end)
            return
        amends = amended(child.outgoing, record) if self.state.round else None
        waiting = OpenChild(child.record, child.outgoing.fingerprint, amends, child.items, fence)
        status = status_of(record, waiting)
        if status is None:
            self._span.add(waiting, child.end)
        else:
            self._span.add(None, child.end, items=child.items, failed=status == "failed")

    # -- check and judge ---------------------------------------------------------------------------------------------

    def _check_progress(self) -> bool:
        """Find the children that have ended; returns whether there are any."""
        if self._cursor >= self._span.open:
            self._cursor = 0
        looked = self._span.waiting(_LOOK, self._cursor)
        if not looked:
            return False
        records = self._engine.store.read([waiting.record for _, waiting in looked], self._clock.now_ms())
        over = 0
        for (number, waiting), record in zip(looked, records, strict=True):
            status = status_of(record, waiting)
            if status is not None:
                self._span.settle(number, failed=status == "failed")
                over += 1
        self._cursor += len(looked) - over
        return over > 0

    def _judge(self) -> None:
        """Stop sending if more has failed than is tolerated. Malformed rows count as failed."""
        state = self.state
        if state.ending is not None:
            return
        failed = state.failed + self._span.failed + state.malformed
        bound = exceeded(self._mapping.spec.tolerated, failed, state.total)
        if bound is not None:
            tolerated = self._mapping.spec.tolerated
            most = f"{tolerated.percent:g} %" if bound == "percent" else f"{tolerated.count or 0}"
            said = f"{EXCEEDED}: {EXCEEDED_CAUSE}: {failed} of {state.total} items, {most} are tolerated."
            self._put(replace(self._counted(), ending="failed", failure=said))

    # -- send --------------------------------------------------------------------------------------------------------

    def _send(self) -> bool:
        """Send the next children if there is room for enough of them; returns whether any were sent."""
        room = min(self._concurrency - self._span.open, SPAN_MAX - len(self._span), BATCH)
        if self.state.pending <= 0 or room < min(self._concurrency, BATCH, self.state.pending) / 4:
            return False
        if self._stamp is not None and self._source.stamp() != self._stamp:
            self._stamp = check_source(self._source, self.state, self._mapping)
        some = taken(self._stream, room)
        if not some:
            raise errors.UsageError(
                f"{self._source.name} ends after {self.state.sent.index} of {self.state.total} items.",
                meaning="It is shorter than it was when the run was started.",
                todo=f"Put the file back and run `onefold map resume {self.state.run}`, or start another run.",
            )
        with_records = self._records(some) if self.state.round else [(child, None) for child in some]
        self._write(with_records)
        for child, record in with_records:
            self._add(child, record, record.fence if record is not None else 0)
        return True

    def _write(self, with_records: Sequence[tuple[MapChild, Record | None]]) -> None:
        """Write ledger rows, messages and the checkpoint."""
        now_ms, run = self._clock.now_ms(), self.state.run
        outgoing: list[Outgoing] = []
        rows: list[Row] = []
        for child, record in with_records:
            rows += [self._row_of(bad, now_ms) for bad in child.malformed]
            if child.outgoing is None or (record is not None and is_over(child, record)):
                continue
            one = amending(child.outgoing, record)
            outgoing.append(one)
            event, detail = "dispatched", {}
            if record is not None:
                event, detail = "redrive", {"round": self.state.round, "fence": record.fence}
            rows.append(
                Row(
                    at_ms=now_ms, event=event, key=one.record, queue=one.queue, run=run, actor=self._owner,
                    detail=detail,
                )
            )  # fmt: skip
        before = self._counted()
        met = sum(child.items for child, record in with_records if record is not None and record.status == "completed")
        after = replace(
            before,
            sent=with_records[-1][0].end,
            children=before.children + sum(child.outgoing is not None for child, _ in with_records),
            malformed=before.malformed + sum(len(child.malformed) for child, _ in with_records),
            passed=before.passed + met,
            seen_done=before.seen_done + met,
            driver=self._token,
        )

        def write() -> VersionedMapState:
            if rows:
                self._engine.ledger.append(rows)
            if outgoing:
                self._runtime.send(outgoing)
            return map_state.write(self._engine.state, after, self._stored.version)

        self._stored = transaction(self._engine, write)
        self._noted_ms = self._clock.monotonic_ms()

    def _row_of(self, bad: Malformed, now_ms: int) -> Row:
        detail: dict[str, str | int | bool | None] = {
            "line": bad.line,
            "reason": bad.reason[:500],
            "round": self.state.round,
        }
        return Row(at_ms=now_ms, event="malformed", run=self.state.run, actor=self._owner, detail=detail)

    def _send_lost(self, now_ms: int) -> None:
        """Send the open children again if the queue stays empty, as messages can be purged or expire."""
        if self._span.open == 0 or now_ms - self._moved_ms < _LOST_MS:
            return
        depth = self._engine.queues.depth(self._mapping.spec.queue)
        if depth.visible or depth.in_flight or depth.delayed:
            self._empty_since_ms = None
        elif self._empty_since_ms is None:
            self._empty_since_ms = now_ms
        elif now_ms - self._empty_since_ms >= _LOST_MS:
            self._empty_since_ms = None
            lost = {waiting.record for waiting in self._span.every()}
            state = self.state
            for child in children(self._mapping, state.run, self._source, state.settled):
                if child.end.index > state.sent.index:
                    break
                if child.outgoing is not None and child.record in lost:
                    ((_, record),) = self._records([child])
                    self._runtime.send([amending(child.outgoing, record if self.state.round else None)])

    # -- end ---------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Write the results, and last of all that the run has ended."""
        state = self._counted()
        status = "succeeded" if state.ending is None else state.ending
        now_ms = self._clock.now_ms()
        after = replace(state, status=status, ended_at_ms=now_ms)
        location = result_location(after.results, self._runtime.s3_client)
        try:
            repeats = write_results(self._mapping, after, self._source, self._engine.store, location)
        except OSError as error:
            self._put(state)
            raise errors.UsageError(
                f"The results of run {state.run} cannot be written: {error.strerror or error}.",
                meaning="All of its items have ended; only their files are missing.",
                todo=f"Make {after.results} writable, then `onefold map resume {state.run}`.",
            ) from error
        if status == "succeeded":
            expected = sum(self._engine.ledger.tally(state.run).values())
            runs.note(self._engine.state, state.run, expected=expected, dispatched=state.children, failure=None)
        else:
            runs.note(self._engine.state, state.run, dispatched=state.children, failure=state.failure)
        self._put(replace(after, repeats=repeats))
        if status == "succeeded":
            Closer(self._engine, self._runtime.registry.jobs, self._clock).close(state.run)

    def _clear(self) -> None:
        """Remove the dead letters of the last round, whose items are judged by their records and sent again."""
        dead = self._mapping.queue.dead_letter
        after: str | None = None
        while dead is not None and (page := self._engine.queues.peek(dead, limit=BATCH, after=after)):
            mine = [one.message_id for one in page if _is_of(one.attributes, self.state.run)]
            if mine:
                self._engine.queues.remove(mine)
            after = page[-1].message_id
        self._put(replace(self.state, clearing=False))

    # -- State -------------------------------------------------------------------------------------------------------

    def _counted(self) -> MapState:
        """The run's value with everything that has ended counted; this Mapper keeps it even if it is not written."""
        state, popped = self.state, self._span.pop()
        if popped is not None:
            state = replace(
                state,
                settled=popped.end,
                settled_children=state.settled_children + popped.children,
                done=state.done + popped.done,
                failed=state.failed + popped.failed,
            )
        seen_done, seen_failed = state.done + self._span.done, state.failed + self._span.failed
        state = replace(state, seen_done=seen_done, seen_failed=seen_failed)
        self._stored = VersionedMapState(state, self._stored.version)
        return state

    def _put(self, after: MapState) -> None:
        mine = replace(after, driver=self._token)
        version = self._stored.version
        self._stored = transaction(self._engine, lambda: map_state.write(self._engine.state, mine, version))
        self._noted_ms = self._clock.monotonic_ms()


def _is_of(attributes: Any, run: str) -> bool:
    named = attributes.get(RUN_ATTRIBUTE)
    return named is not None and named.value == run


TURN_MS: Final = 5_000
_STILL_MS: Final = 1_000  # a turn ends after this long without progress
_NEXT_MS: Final = 100  # after n turns without progress: 100 ms x 2^n, at most
_NEXT_MS_MAX: Final = 5_000
_KEPT_MS: Final = 60_000  # a kept run that is older is dropped at the map's next turn in this process
_KEPT_MAX: Final = 4  # runs of one map that a process keeps: at most 10 MB and an open file each


class _Pause:
    """A short wait of this thread only. A manual clock asks with a timeout of 0, and then the turn ends."""

    def __init__(self) -> None:
        self._never = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Wait; returns True at once, without waiting, for a timeout of 0 or less."""
        return timeout_s <= 0 or self._never.wait(timeout_s)


class Turns:
    """Takes the turns of one declared map in this process, from any thread.

    What a turn has read of its run is kept for the next one. Otherwise every turn would read the source again from the
    first child that has not ended, and a compressed source even from its beginning.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[Mapper, int]] = {}  # by run and chain, latest last; with the time

    def take(self, runtime: Runtime, mapping: MapJob, turn: MapTurn, ctx: Context) -> str:
        """Drive a run for a while and send the next turn; returns the run's progress as a text for people.

        Raises:
            TransientError: the engine could not be used; the turn is delivered again.
            PayloadError: the run belongs to another map, and was not changed.
        """
        chain = str(turn.begun_at_ms)
        _refuse_other(runtime.engine, mapping, turn.run)
        with self._lock:
            mapper, _ = self._kept.pop((turn.run, chain), (None, 0))
        try:
            if mapper is None or not mapper.take_up(runtime.engine, turn.still):
                mapper = Mapper(runtime, mapping, turn.run, turn.still, chain=chain)
            try:
                moved, whole = _drive(runtime.clock, mapper, ctx), True
            except OtherDriverError:
                if mapper.is_replaced():
                    return "another process drives it"
                moved, whole = True, False  # a step was cut short, so the next turn reads the source again
        except errors.UsageError as error:
            halt(runtime.engine, turn.run, error)
            return "halted"
        if mapper.over:
            return mapper.state.status
        idle = 0 if moved else turn.idle + 1
        wait_ms = min(_NEXT_MS << min(idle, 10), _NEXT_MS_MAX) if idle else 0
        following = replace(turn, number=turn.number + 1, idle=idle, still=mapper.still)
        if whole:
            self._keep((turn.run, chain), mapper, runtime.clock.monotonic_ms())
        mapping.turns.send(following, delay=f"{wait_ms}ms")
        return f"{mapper.state.sent.index} of {mapper.state.total}"

    def _keep(self, which: tuple[str, str], mapper: Mapper, now_ms: int) -> None:
        with self._lock:
            self._kept[which] = mapper, now_ms
            for old, (_, at_ms) in list(self._kept.items()):
                if len(self._kept) > _KEPT_MAX or now_ms - at_ms > _KEPT_MS:
                    del self._kept[old]


def _refuse_other(engine: Engine, mapping: MapJob, run: str) -> None:
    stored = map_state.read(engine.state, run)
    if stored is not None and stored.state.map != mapping.name:
        raise errors.PayloadError(
            f"The message is a turn of a run of map {stored.state.map}, and its queue's job drives {mapping.name}.",
            meaning="Driven by this job, the run would stop or do other work than its own.",
            todo="Let `onefold map resume` send a turn to the queue of its own map.",
        )


def _drive(clock: Clock, mapper: Mapper, ctx: Context) -> bool:
    """Take steps until the turn ends; returns False if it ended for lack of progress."""
    pause = _Pause()
    begin_ms = still_ms = clock.monotonic_ms()
    while not mapper.over:
        ctx.check()
        wait_ms = mapper.advance()
        now_ms = clock.monotonic_ms()
        if mapper.moved:
            still_ms = now_ms
        if now_ms - begin_ms >= TURN_MS:
            return True
        if now_ms - still_ms >= _STILL_MS or (wait_ms and clock.wait(pause, wait_ms)):
            return False
    return True


def halt(engine: Engine, run: str, error: errors.UsageError) -> None:
    """Note that a run is halted until a person acts, and what there is to do."""
    stored = map_state.read(engine.state, run)
    if stored is None or stored.state.over:
        return
    why = " ".join(str(error).split())[:1_000]
    try:
        map_state.write(engine.state, replace(stored.state, status="halted", failure=why), stored.version)
    except OtherDriverError:
        return
    runs.note(engine.state, run, failure=why[:500])
