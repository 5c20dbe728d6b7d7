"""A run's dispatched operations compared with their records: the state of each, one page of keys at a time.

The ledger shows what was dispatched (rows `dispatched` that name the run), the records show what took effect, and the
queues show where the rest is. A run's own state is used only to see whether it is a plain tick, which is itself the
operation; a survey can contradict the numbers in that state.

    done      its record is complete, by this run's message or by another one with the same payload; `twice` when the
              run's rows show that it completed more than once, `doubtful` when a run of it ended without an outcome and
              the job's policy was to run again
    running   a worker holds a lease on it that has not ended
    waiting   its message is in its queue: not received yet, to be tried again, or in flight. That holds even if an
              earlier message of the same key has completed: this one can still be refused
    stuck     a run of it no longer renews its lease and was not taken over, either not yet or because its process is
              stopped (and keeps the run)
    dead      its message is in a dead-letter queue; even if it was refused because its key had been used with another
              payload and that operation's record is complete
    held      its outcome is unknown, and a person decides
    missing   nothing is left of it: neither a finished record nor a message

Never here: wording for screens, repairs, what the user counts. Invariant: however long the run, memory holds one page,
a table of fixed size, and the operations that completed twice or were refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal
from zlib import crc32

from msgspec import Struct

from onefold.contracts.admin import Peeked
from onefold.contracts.engine import Engine
from onefold.contracts.ledger import Row, replaces
from onefold.contracts.queue import JOB_ATTRIBUTE, RUN_ATTRIBUTE
from onefold.contracts.store import Record, RecordKey
from onefold.record.delivery import Policy
from onefold.runner import runs

if TYPE_CHECKING:
    from onefold.contracts.verbs import Ledger

OperationStateName = Literal["done", "running", "waiting", "stuck", "dead", "held", "missing"]

DISPATCHED: Final = "dispatched"
PAGE: Final = 1_000  # ledger rows, and so keys, that are in memory at one time
_KEY_MESSAGES_MAX: Final = 20  # messages of one key that are read if the dispatched one no longer exists
_TABLE_BITS: Final = 27  # 16 MiB: of 10 million operations, 4 % share a bit with another and are looked up needlessly
_KEY_ROWS_MAX: Final = 10_000  # rows of one key; read only for operations that needed more than one run


class SurveyedOperation(Struct, frozen=True, kw_only=True):
    """One dispatched operation that is not simply done.

    Args:
        key: the operation. state: one of the states listed at the top of this module.
        why: one sentence.
        message_id, queue: where its payload is; None if no message is left.
        owner: who can fix it, if known.
        twice: it completed more than once in this run.
        doubtful: it may have taken effect more than once: a run of it ended without a report, and it was run again.
        dispatched_at_ms: when it was dispatched.
    """

    key: RecordKey
    state: OperationStateName
    why: str
    dispatched_at_ms: int
    message_id: str | None = None
    queue: str | None = None
    owner: str | None = None
    twice: bool = False
    doubtful: bool = False


def dispatched_pages(ledger: Ledger, run: str) -> Iterator[list[Row]]:
    """The rows of a run's dispatched operations, oldest first, at most `PAGE` at a time."""
    for rows in ledger.walk_run(run, PAGE):
        if page := _dispatched(rows):
            yield page


class Survey:
    """One walk through a run.

    Args:
        engine: an open engine.
        run: the run's full name.
        now_ms: the time of the survey.
        policies: those of the declared jobs, by name; operations of other jobs have no owner and no policy.

    Attributes:
        dispatched: operations seen so far, each counted once.
        counts: how many of these are in each state. twice, doubtful: how many are, as in `SurveyedOperation`.
    """

    def __init__(self, engine: Engine, run: str, now_ms: int, policies: Mapping[str, Policy]) -> None:
        self.run = run
        self.dispatched = self.twice = self.doubtful = 0
        self.counts: dict[OperationStateName, int] = {}
        self._engine = engine
        self._now_ms = now_ms
        self._policies = policies
        settings = engine.queues.settings()
        self._dead = {one.dead_letter for one in settings if one.dead_letter is not None}
        self._held = {one.held for one in settings if one.held is not None}
        self._depths: dict[str, int] = {}
        self._completed = bytearray(1 << _TABLE_BITS - 3)  # a bit for each key that was seen to complete
        self._twice: set[RecordKey] = set()
        self._refused: set[RecordKey] = set()  # because their key had been used with another payload
        self._not_by_it: set[RecordKey] = set()  # complete, but by another run's message
        self._instant_ms = 0
        self._of_instant: set[RecordKey] = set()  # those not simply done, first dispatched in that ms

    def walk(self) -> Iterator[SurveyedOperation]:
        """Every operation, except those done exactly once, in the order of the rows; then all counts are complete."""
        stored = runs.read(self._engine.state, self.run)
        if stored is not None and stored.run.kind == "tick":  # a tick was not dispatched: it is itself the operation
            run, key = stored.run, RecordKey("", stored.run.title, self.run)
            queue = self._policies[run.title].queue if run.title in self._policies else None
            row = Row(at_ms=run.started_at_ms, event=DISPATCHED, key=key, queue=queue, run=run.name)
            yield from self._page([row])
        for rows in self._engine.ledger.walk_run(self.run, PAGE):
            if dispatched := _dispatched(rows):
                yield from self._page(dispatched)
            yield from self._completed_twice(rows)
            self._refused.update(row.key for row in rows if row.event == "conflict" and row.key is not None)
        tally = self._engine.ledger.tally(self.run)
        self._count_once(tally)
        done = sum(count for event, count in tally.items() if runs.outcome_of(event) == "done")
        if self.counts.get("done", 0) > done:
            yield from self._done_before()

    def _done_before(self) -> Iterator[SurveyedOperation]:
        """Operations that an earlier message of the same key completed, while this run's message was refused or waits.

        A complete record shows that its key is done, but not with which payload: this run's own rows decide.
        """
        for rows in self._engine.ledger.walk_run(self.run, PAGE):
            first: dict[RecordKey, Row] = {}
            for row in _dispatched(rows):
                if row.key is not None and row.key not in self._not_by_it:
                    first.setdefault(row.key, row)
            records = self._engine.store.read(list(first), self._now_ms)
            for (key, row), record in zip(first.items(), records, strict=True):
                if record is None or not _is_plain(record):
                    continue
                if record.created_at_ms >= row.at_ms and key not in self._refused:
                    continue
                history = self._history(key)
                if self._is_not_by_it(row, record, history):
                    item = self._item(row, key, record, self._message_of_run(key), history)
                    if item.state != "done":
                        self._count("done", -1)
                        self._count(item.state, 1)
                        yield item

    def _is_not_by_it(self, row: Row, record: Record, history: Sequence[Row]) -> bool:
        """Whether another message completed the record: no row of this run reports the operation as done."""
        event = self._deciding_event(history)
        is_so = event == "conflict" or (record.created_at_ms < row.at_ms and runs.outcome_of(event) != "done")
        if is_so:
            self._not_by_it.add(record.key)
        return is_so

    def _deciding_event(self, history: Sequence[Row]) -> str:
        """The event of this run that decides an operation's state."""
        event: str | None = None
        for row in history:
            if row.run == self.run and replaces(row.event, event):
                event = row.event
        return event or DISPATCHED

    def _message_of_run(self, key: RecordKey) -> Peeked | None:
        """This run's message of a key, or None; of several, preferably one that can still run."""
        seen = [
            one
            for one in self._engine.queues.find_key(key.key, _KEY_MESSAGES_MAX)
            if _is_for(one, key) and (run := one.attributes.get(RUN_ATTRIBUTE)) is not None and run.value == self.run
        ]
        return min(seen, key=lambda one: one.queue in self._dead, default=None)

    def _completed_twice(self, rows: Sequence[Row]) -> Iterator[SurveyedOperation]:
        """Operations whose second completion in this run is among these rows."""
        for row in rows:
            key = row.key
            if row.event != "completed" or key is None or key in self._twice:
                continue
            bit_index = crc32(f"{key.scope}\0{key.job}\0{key.key}".encode()) & (1 << _TABLE_BITS) - 1
            byte, bit = bit_index >> 3, 1 << (bit_index & 7)
            if not self._completed[byte] & bit:
                self._completed[byte] |= bit
                continue
            times = [one.at_ms for one in self._history(key) if one.event == "completed" and one.run == self.run]
            if len(times) > 1:  # otherwise another key has the same bit
                self._twice.add(key)
                self.twice += 1
                why = f"completed {len(times)} times, {times[-1] - times[0]} ms apart"
                yield SurveyedOperation(
                    key=key, state="done", why=why, dispatched_at_ms=row.at_ms, owner=self._owner(key), twice=True
                )

    def _history(self, key: RecordKey) -> list[Row]:
        return self._engine.ledger.of_key(key, _KEY_ROWS_MAX)

    def _owner(self, key: RecordKey) -> str | None:
        policy = self._policies.get(key.job)
        return policy.owner if policy is not None else None

    def _count_once(self, tally: Mapping[str, int]) -> None:
        """Subtract finished operations that were counted twice because a later page dispatched them again."""
        operations = sum(tally.values())
        again = min(max(self.dispatched - operations, 0), self.counts.get("done", 0))
        if again:
            self._count("done", -again)

    def _page(self, rows: Sequence[Row]) -> Iterator[SurveyedOperation]:
        first: dict[RecordKey, Row] = {}
        for row in rows:
            assert row.key is not None
            first.setdefault(row.key, row)
        keys = list(first)
        records = dict(zip(keys, self._engine.store.read(keys, self._now_ms), strict=True))
        plain = [one for one in keys if _is_plain(records[one])]
        self._count("done", len(plain))
        odd = {one: first[one] for one in keys if not _is_plain(records[one])}
        for key, known in self._messages(odd, records).items():
            row = odd[key]
            history = self._history(key)
            if self._is_repeat(row, history):
                continue
            record = records[key]
            is_not_by_it = record is not None and _is_complete(record) and self._is_not_by_it(row, record, history)
            is_another = is_not_by_it or self._deciding_event(history) == "conflict"
            message = self._message_of_run(key) if is_another else known
            item = self._item(row, key, record, message, history)
            self._count(item.state, 1)
            self.doubtful += item.doubtful
            if item.state != "done" or item.doubtful:
                yield item

    def _count(self, state: OperationStateName, count: int) -> None:
        if count:
            self.counts[state] = self.counts.get(state, 0) + count
            self.dispatched += count

    def _is_repeat(self, row: Row, history: Sequence[Row]) -> bool:
        """Whether this operation was dispatched by an earlier row of the run, on an earlier page."""
        assert row.key is not None
        if row.at_ms != self._instant_ms:
            self._instant_ms, self._of_instant = row.at_ms, set()
        seen = row.key in self._of_instant
        self._of_instant.add(row.key)
        first = next((one for one in history if one.event == DISPATCHED and one.run == self.run), row)
        return seen or first.at_ms < row.at_ms

    # -- where its message is ------------------------------------------------------------------------------------------

    def _messages(
        self, odd: Mapping[RecordKey, Row], records: Mapping[RecordKey, Record | None]
    ) -> dict[RecordKey, Peeked | None]:
        """The message of each operation that is not complete, found by its known ids or else by its key."""
        open_keys = [one for one in odd if not _is_complete(records[one])]
        ids = {one: ids for one in open_keys if (ids := _ids(odd[one], records[one]))}
        wanted = [message_id for known in ids.values() for message_id in known]
        found = dict(zip(wanted, self._engine.queues.find(wanted), strict=True)) if wanted else {}
        messages: dict[RecordKey, Peeked | None] = dict.fromkeys(odd)
        for key in open_keys:
            seen = [message for message_id in ids.get(key, ()) if (message := found[message_id]) is not None]
            seen = seen or [
                one for one in self._engine.queues.find_key(key.key, _KEY_MESSAGES_MAX) if _is_for(one, key)
            ]
            messages[key] = min(seen, key=lambda one: one.queue in self._dead, default=None)
        return messages

    def _waits_unseen(self, queue: str | None) -> bool:
        """Whether a message may be in a queue whose messages can be counted but not searched (SQS)."""
        if queue is None:
            return False
        if queue not in self._depths:
            opened = self._engine.queues.open(queue)
            depth = None if opened.capabilities.inspectable else opened.depth()
            self._depths[queue] = 0 if depth is None else depth.visible + depth.in_flight + depth.delayed
        return self._depths[queue] > 0

    # -- its state -----------------------------------------------------------------------------------------------------

    def _item(
        self, row: Row, key: RecordKey, record: Record | None, message: Peeked | None, history: Sequence[Row]
    ) -> SurveyedOperation:
        state, why = self._state(row, key, record, message, history)
        reason = message.reason if message is not None else None
        return SurveyedOperation(
            key=key,
            state=state,
            why=why,
            dispatched_at_ms=row.at_ms,
            message_id=message.message_id if message is not None else None,
            queue=message.queue if message is not None else None,
            owner=self._owner(key) or (reason.owner if reason is not None else None),
            doubtful=state == "done" and record is not None and _is_doubtful(record, self._policies.get(key.job)),
        )

    def _state(
        self, row: Row, key: RecordKey, record: Record | None, message: Peeked | None, history: Sequence[Row]
    ) -> tuple[OperationStateName, str]:
        is_open = key in self._not_by_it and (message is not None or self._waits_unseen(row.queue))
        if is_open or self._deciding_event(history) == "conflict":
            record = None  # it belongs to another message, perhaps with another payload
        if record is not None and record.status == "completed":
            return "done", f"completed (runs: {record.attempts_total}, of which died: {record.crashes_total})"
        failure = record.failure if record is not None else None
        said = f"{failure.error}: {failure.summary}" if failure is not None else ""
        if record is not None and record.parked:
            return (
                "held",
                f"the outcome of its run is not known ({said})" if said else "the outcome of its run is not known",
            )
        if record is not None and record.status == "in_progress" and record.lease_until_ms > self._now_ms:
            return "running", f"run {record.attempts} is under way"
        dead_lettered = (
            message is not None and message.queue in self._dead
        )  # perhaps moved by the queue itself, which no record shows
        if record is not None and record.status == "in_progress" and not dead_lettered:
            return "stuck", f"a run of it went silent; {self._after_silence(record, row.queue, message)}"
        if message is None:
            if self._waits_unseen(row.queue):
                return "waiting", f"not done; {row.queue} still holds messages, and cannot be asked which"
            return "missing", _last_word(history, said)
        reason = message.reason
        if message.queue in self._dead:
            why = f"{reason.error + ': ' if reason.error else ''}{reason.summary}" if reason is not None else said
            return "dead", why or "received too often; no reason travels with it"
        if message.queue in self._held:
            return "held", reason.summary if reason is not None else "parked for a person"
        return "waiting", said or ("received, not settled yet" if message.state == "in_flight" else "not received yet")

    def _after_silence(self, record: Record, queue: str | None, message: Peeked | None) -> str:
        """What happens next to a run whose lease has ended."""
        if (process := self._engine.stopped_process(record)) is not None:
            return f"its process {process} is stopped, and nothing takes it over until the process continues or ends"
        if message is not None:
            return "its message comes back and takes it over"
        if self._waits_unseen(queue):
            return f"{queue} still holds messages, and cannot be asked which"
        return "no message is left to take it over"


def _dispatched(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.event == DISPATCHED and row.key is not None]


def _is_complete(record: Record | None) -> bool:
    return record is not None and record.status == "completed"


def _is_plain(record: Record | None) -> bool:
    """Whether it was done in one run, according to its record."""
    return (
        record is not None and record.status == "completed" and record.attempts_total <= 1 and not record.crashes_total
    )


def _is_doubtful(record: Record, policy: Policy | None) -> bool:
    """Whether an external effect may have happened in a run that ended without a report, before the completed one."""
    if not record.crashes_total:
        return False
    return policy is None or (policy.effect == "external" and policy.on_unknown == "rerun")


def _ids(row: Row, record: Record | None) -> tuple[str, ...]:
    """Ids that its message may have: when last claimed, and when dispatched (a redrive gives it a new one)."""
    known = (record.message_id if record is not None else None, row.message_id)
    return tuple(dict.fromkeys(one for one in known if one is not None))


def _is_for(message: Peeked, key: RecordKey) -> bool:
    named = message.attributes.get(JOB_ATTRIBUTE)
    return named is None or str(named.value) == key.job


def _last_word(history: Sequence[Row], said: str) -> str:
    gone = next((row for row in reversed(history) if row.event in ("removed", "purge", "discarded")), None)
    if gone is not None:
        return f"its message was {gone.event} by {(gone.actor or 'somebody').removeprefix('person:')}"
    if any(row.event == "conflict" for row in history):
        return "its key was used before with another payload; the message that was refused is gone"
    if any(row.event == "dead-letter" for row in history):
        gone_too = "it was a dead letter, and its message is gone, purged or expired perhaps"
        return f"{gone_too}; last heard: {said}" if said else gone_too
    return f"its message is gone; last heard: {said}" if said else "its message is gone, and nothing ever claimed it"
