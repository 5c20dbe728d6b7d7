"""Carries out settlements: in one transaction where the backend can, else part by part in the order that loses nothing.

The reasons for the order, when record store and queue are two systems (a crash may come after any line):

    1. record with its outbox    before: nothing is recorded; the redelivery is a takeover, and the policy decides.
    2. outbox sends              after 1: a redelivery finds `completed` and the outbox, and sends it (ids are the same).
    3. outbox cleared            after 2: a redelivery sends again; receivers drop it by its key.
    4. history                   after 3: history may miss rows, never invent them.
    5. changes of State          after 4: a group is stopped before the message that stops it lets the next one through.
    6. the message's outcome     after 5: a redelivery is a duplicate, answered from the record.

A refused write (lease lost) ends its settlement: the new holder owns the message. If there is no new holder, because
the record is gone from the store, the claim is put back (`put_back`) and the settlement is made. `JointTransaction` is
for the case between the two: the record backend's transaction writes handlers' rows, records and history; steps 2, 3
and 6 follow after it is durable.
Never here: decisions. Invariant: a message is never deleted before its record is durable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import errors
from onefold.clock import until_ms
from onefold.contracts import store as records
from onefold.contracts import transitions
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.entries import Entry, Refused, from_outbox
from onefold.contracts.queue import Ack, Leave, MoveTo, RetryIn
from onefold.contracts.state import Change, group_flag
from onefold.interrupts import ignored, let_through
from onefold.record.delivery import Decision, Unstorable

if TYPE_CHECKING:
    from onefold.contracts.engine import Engine
    from onefold.contracts.entries import Entry
    from onefold.contracts.queue import Delivery
    from onefold.contracts.verbs import Commit, EffectTransaction, Ledger, Queue, QueueReceiver, State, Store
    from onefold.outside import Clock, Waiter
    from onefold.runner.execution import Execution
    from onefold.runner.reports import Reports
    from onefold.runtime.events import Event

_WRITE_TRIES = 6  # a settlement that fails is tried again after 50 ms x 2^n: about 1.6 s in all
_WRITE_PAUSE_MS = 50
_WAITED_MS = 20  # time since the receive: longer than a busy worker of quick jobs keeps a delivery before it begins it
_PUT_BACK_MS = 30_000  # lease of a record that is put back in order to be settled: longer than all tries take


class Backend(Struct, frozen=True, kw_only=True):
    """The contracts of one wired engine.

    Args:
        commit: None if records and messages do not share a database.
        open_queue: opens a queue by name. open_receiver: the same for receiving and settling, if that is not on the
            queue itself.
        effects: opens a transaction for handlers' own rows, for at most the milliseconds it is called with; None: there
            are none.
    """

    store: Store
    ledger: Ledger
    state: State
    commit: Commit | None
    open_queue: Callable[[str], Queue]
    open_receiver: Callable[[str], QueueReceiver] | None = None
    effects: Callable[[int], EffectTransaction | None] | None = None

    @property
    def source(self) -> DeliverySource:
        """The engine's queues as a source of deliveries."""
        return Queues(self.open_receiver or self.open_queue)


class DeliverySource(Protocol):
    """A source of deliveries for a runner."""

    def receive(self, names: Sequence[str], room: int) -> list[Delivery]:
        """Deliveries to be processed now, at most `room` from each of the queues."""
        ...

    def extend(self, deliveries: Sequence[Delivery], hidden_ms: int) -> list[bool]:
        """Keep deliveries hidden from others for `hidden_ms` from now; False: another may have received it already."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Carry out what was decided about each delivery, once its record is durable; False: it will come again."""
        ...

    def close(self, deliveries: Sequence[Delivery], delay_ms: int) -> None:
        """Return deliveries that were not begun, last first, so that a FIFO group keeps its order."""
        ...


def gone_of(backend: Backend, deliveries: Sequence[Delivery], now_ms: int) -> set[str]:
    """The receipts whose messages are no longer in their queues, for queues that can report it.

    Messages that were just received are not checked: a purge that comes now finds them begun.

    Raises:
        TransientError: the backend could not answer.
    """
    waited: dict[str, list[str]] = defaultdict(list)
    for one in deliveries:
        if now_ms - one.received_at_ms >= _WAITED_MS:
            waited[one.queue].append(one.receipt)
    gone: set[str] = set()
    for name, receipts in waited.items():
        queue = backend.open_queue(name)
        if queue.capabilities.inspectable:
            found = zip(receipts, queue.receipt_states(receipts), strict=True)
            gone.update(receipt for receipt, standing in found if standing == "gone")
    return gone


def settle(backend: Backend, settlements: Sequence[Settlement], now_ms: int, *, again: bool = False) -> list[Verdict]:
    """Carry out settlements; one verdict each, in order.

    Args:
        again: an earlier try failed, but may have written something: what is written already does not count as a lost
            lease.

    Raises:
        TransientError: the backend could not write; what was not written is unchanged.
    """
    if backend.commit is None:
        return _walk(backend, settlements, now_ms, again=again)
    verdicts = backend.commit.commit(settlements, now_ms)
    if again:
        for index, one in enumerate(settlements):
            if (
                one.write is not None
                and not verdicts[index].written
                and _was_written(backend.store, [one.write], now_ms)[0]
            ):
                verdicts[index] = Verdict(True, True)  # all its parts were written together
    return verdicts


def _walk(backend: Backend, settlements: Sequence[Settlement], now_ms: int, *, again: bool) -> list[Verdict]:
    writes = [one.write for one in settlements if one.write is not None]
    taken = backend.store.write(writes, now_ms) if writes else []
    if again and not all(taken):
        taken = [took or was for took, was in zip(taken, _was_written(backend.store, writes, now_ms), strict=True)]
    answers = iter(taken)
    written = [next(answers) if one.write is not None else True for one in settlements]
    settled = iter(settle_the_rest(backend, [one for one, ok in zip(settlements, written, strict=True) if ok], now_ms))
    return [Verdict(ok, next(settled) if ok else False) for ok in written]


def settle_the_rest(backend: Backend, settlements: Sequence[Settlement], now_ms: int) -> list[bool]:
    """Do steps 2 to 6 for settlements whose records are written; returns, in order, whether each message was settled.

    Raises:
        TransientError: something could not be done; the message's next delivery does it.
        UsageError: a message of an outbox was refused.
    """
    _send_outboxes(backend, settlements, now_ms)
    rows = [row for one in settlements for row in one.rows]
    if rows:
        backend.ledger.append(rows)
    changes = [change for one in settlements for change in one.changes]
    if changes:
        backend.state.put(changes)
    return backend.source.settle(settlements)


def _was_written(store: Store, writes: Sequence[tuple[records.Hold, records.Outcome]], now_ms: int) -> list[bool]:
    """Whether each outcome has been written before, under the same hold."""
    found = store.read([hold.key for hold, _ in writes], now_ms)
    return [
        record is not None
        and (record.owner, record.fence) == (hold.owner, hold.fence)
        and record.status == _STATUS[type(outcome)]
        for record, (hold, outcome) in zip(found, writes, strict=True)
    ]


_STATUS: dict[type[records.Outcome], records.Status] = {
    records.Complete: "completed",
    records.Fail: "failed",
    records.Unknown: "unknown",
    records.Release: "released",
}


def _send_outboxes(backend: Backend, settlements: Sequence[Settlement], now_ms: int) -> None:
    by_queue: dict[str, list[Entry]] = defaultdict(list)
    to_clear: list[records.Hold] = []
    for one in settlements:
        if one.write is not None and isinstance(one.write[1], records.Complete) and one.write[1].outbox:
            to_clear.append(one.write[0])
            outbox: Sequence[records.OutboxItem] = one.write[1].outbox
        elif one.clear is not None:
            to_clear.append(one.clear)
            outbox = one.outbox
        else:
            continue
        for item in outbox:
            by_queue[item.queue].append(from_outbox(item, now_ms))
    for name, entries in by_queue.items():
        _send(backend, name, entries)
    if to_clear:
        backend.store.clear_outbox(to_clear)


def _send(backend: Backend, name: str, entries: Sequence[Entry]) -> None:
    for entry, sent in zip(entries, backend.open_queue(name).send(entries), strict=True):
        if isinstance(sent, Refused):
            raise errors.UsageError(
                f"Queue {name} refused a message of an outbox (key {entry.key!r}): {sent.message}",
                meaning="The run is completed; its messages wait in its record.",
                todo="Fix the queue's settings; the next delivery sends them again.",
            )


class Queues:
    """The queues of one engine as a source: for a worker, for inline runs, and (with `MappedQueue`) for Lambda."""

    def __init__(self, open_queue: Callable[[str], QueueReceiver]) -> None:
        self._open_queue = open_queue

    def receive(self, names: Sequence[str], room: int) -> list[Delivery]:
        """See `DeliverySource.receive`."""
        return [one for name in names for one in self._open_queue(name).receive(room)]

    def extend(self, deliveries: Sequence[Delivery], hidden_ms: int) -> list[bool]:
        """See `DeliverySource.extend`."""
        answers = [False] * len(deliveries)
        indexes: dict[str, list[int]] = defaultdict(list)
        for index, one in enumerate(deliveries):
            indexes[one.queue].append(index)
        for name, some in indexes.items():
            changes = [(deliveries[index].receipt, RetryIn(hidden_ms)) for index in some]
            for index, ok in zip(some, self._open_queue(name).set_visible_in(changes), strict=True):
                answers[index] = ok
        return answers

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """See `DeliverySource.settle`."""
        answers = [True] * len(settlements)
        by_queue: dict[str, list[int]] = defaultdict(list)
        for index, one in enumerate(settlements):
            if one.queue is not None and one.receipt is not None and not isinstance(one.settle, Leave):
                by_queue[one.queue].append(index)
        for name, indexes in by_queue.items():
            queue = self._open_queue(name)
            for kind in (Ack, RetryIn, MoveTo):
                chosen = [index for index in indexes if isinstance(settlements[index].settle, kind)]
                if chosen:
                    for index, ok in zip(chosen, _verb(queue, kind, [settlements[p] for p in chosen]), strict=True):
                        answers[index] = ok
        return answers

    def close(self, deliveries: Sequence[Delivery], delay_ms: int) -> None:
        """See `DeliverySource.close`."""
        changes: dict[str, list[str]] = {}
        for one in reversed(deliveries):
            changes.setdefault(one.queue, []).append(one.receipt)
        for name, receipts in changes.items():
            queue = self._open_queue(name)
            back = RetryIn(delay_ms, uncounted=queue.capabilities.uncounted)
            with ignored(errors.TransientError):  # then they become visible when their visibility timeout ends
                queue.set_visible_in([(receipt, back) for receipt in receipts])


def _verb(queue: QueueReceiver, kind: type[Ack | RetryIn | MoveTo], settlements: list[Settlement]) -> list[bool]:
    if kind is Ack:
        return queue.delete([one.receipt for one in settlements if one.receipt is not None])
    if kind is RetryIn:
        waits = [(one.receipt, _hiding(one)) for one in settlements]
        return queue.set_visible_in([(receipt, change) for receipt, change in waits if receipt and change])
    return queue.move_aside(
        [(one.receipt, one.settle) for one in settlements if one.receipt and isinstance(one.settle, MoveTo)]
    )


def _hiding(settlement: Settlement) -> RetryIn | None:
    """How a message is hidden: if nothing was run, it only waits, and if possible its receive is not counted."""
    if not isinstance(settlement.settle, RetryIn):
        return None
    waits = settlement.write is None or isinstance(settlement.write[1], records.Release)
    return RetryIn(settlement.settle.delay_ms, uncounted=True) if waits else settlement.settle


class Settler:
    """Builds the settlements of decided runs and carries them out; if that fails, it tries again for a while.

    If the effect has happened and its record cannot be written even then, the most severe event of all is emitted
    (`completion-failed`), and the message is left alone: its next delivery finds the unknown outcome.

    Attributes:
        last_try_ms: monotonic instant after which nothing is tried again; None: the process is not about to end.
    """

    def __init__(self, backend: Backend, reports: Reports, *, clock: Clock, never: Waiter) -> None:
        self._backend = backend
        self._reports = reports
        self._clock = clock
        self._never = never
        self.last_try_ms: int | None = None

    def built(self, run: Execution) -> tuple[Settlement, list[Event]]:
        """Everything that is to be done with a run's delivery, and the events to emit once that is written."""
        decision = run.decided()
        events, rows = self._reports.of_decision(run)
        hold = run.claimed.hold if run.claimed is not None else None
        built = Settlement(
            write=(hold, decision.write) if hold is not None and decision.write is not None else None,
            queue=run.delivery.queue or None,  # a call has none
            receipt=run.delivery.receipt or None,
            settle=decision.settle,
            rows=tuple(rows),
            clear=decision.clear,
            outbox=decision.outbox,
            changes=(*_group_changes(run, decision), *self._dispatch_changes(run, decision)),
        )
        return built, events

    def write(
        self, settling: list[Settlement], runs: list[Execution], *, puts_back: bool = True
    ) -> list[Verdict | None]:
        """Carry out settlements; returns a verdict for each, None if it could not be written.

        A transient failure is retried for a while; a settlement that can never be written is handled apart from the
        others.

        Args:
            puts_back: whether to put back a record that is gone from the store, and settle it then.
        """
        if not settling:
            return []
        verdicts: list[Verdict | None] = [None] * len(settling)
        failed: errors.OnefoldError | None = None
        for number in range(_WRITE_TRIES):
            try:
                verdicts = list(settle(self._backend, settling, self._clock.now_ms(), again=number > 0))
                refused = [
                    index for index, one in enumerate(verdicts) if puts_back and one is not None and not one.written
                ]
                back = [index for index in refused if self.put_back(runs[index], _PUT_BACK_MS)]
            except errors.TransientError as error:
                let_through(error)
                failed = error
                verdicts = [one if one is not None and one.written else None for one in verdicts]
                if not self._pause(number):
                    break
            except errors.UsageError as error:
                let_through(error)
                if len(settling) == 1:
                    return [self._write_as_unknown(settling[0], runs[0], error)]
                return [self.write([one], [run])[0] for one, run in zip(settling, runs, strict=True)]
            else:
                for index in back:
                    (verdict,) = self.write([settling[index]], [runs[index]], puts_back=False)
                    verdicts[index] = verdict if verdict is not None and verdict.written else None
                return verdicts
        for run, verdict in zip(runs, verdicts, strict=True):
            run.error = failed if verdict is None else run.error
        return verdicts

    def put_back(self, run: Execution, lease_ms: int) -> bool:
        """Restore the record of a run's claim if the store lost it (a flush, an eviction, a delete, a restored backup).

        In that case nobody has taken the operation over, and without its record the next delivery or call would run it
        again.

        Returns:
            Whether its record exists. False: another run has the operation; the lease remains lost even if that record
            goes.

        Raises:
            TransientError: the store could not be used.
        """
        if run.ask is None or run.claimed is None:
            return False
        now_ms = self._clock.now_ms()
        until = until_ms(self._clock, now_ms, lease_ms)
        is_started = run.claimed.started or run.started
        gone = transitions.claimed(run.claimed, run.ask, now_ms, started=is_started, lease_until_ms=until)
        if not self._backend.store.restore([gone])[0]:
            run.ask = None
            return False
        self._reports.record_gone(run)
        return True

    def _pause(self, number: int) -> bool:
        """Wait after a try that failed; returns False if there is no next try."""
        pause_ms = _WRITE_PAUSE_MS << number
        if number + 1 == _WRITE_TRIES:
            return False
        if self.last_try_ms is not None:
            pause_ms = min(pause_ms, self.last_try_ms - self._clock.monotonic_ms())
            if pause_ms <= 0:
                return False
        self._clock.wait(self._never, pause_ms)
        return True

    def _write_as_unknown(self, settlement: Settlement, run: Execution, error: errors.UsageError) -> Verdict | None:
        """Park a run whose effect happened but whose settlement can never be written (its outbox names no queue)."""
        run.error = error
        if not effect_happened(settlement) or run.claimed is None:
            return None
        run.decide_again(Unstorable(summary=str(error)[:500]), self._clock.now_ms(), 0.0)
        verdict = self.write([self.built(run)[0]], [run])[0]
        return verdict if verdict is not None and verdict.written else None

    def _dispatch_changes(self, run: Execution, decision: Decision) -> tuple[Change, ...]:
        """The changes that mark the run of a dispatcher as stopped, with the reason, if its tick is dead-lettered.

        If that run cannot be read, its tick is settled as decided all the same, and so is what is settled together with
        it.
        """
        key, settle = run.facts.key, decision.settle
        if not run.job.dispatches or key is None or not isinstance(settle, MoveTo) or settle.reason.kind == "conflict":
            return ()
        from onefold.runner.runs import stopped  # only dispatches that end like this need it; cold starts are measured

        reason = settle.reason
        why = ": ".join(filter(None, (reason.error, reason.summary)))
        for number in range(_WRITE_TRIES):
            try:
                return stopped(self._backend.state, key.key, why)
            except errors.TransientError as error:  # after the last try, the settlement meets the same backend
                let_through(error)
                if not self._pause(number):
                    break
            except (errors.UsageError, msgspec.DecodeError) as error:
                let_through(error)
                break  # no permission, or a newer version has written the run
        return ()


def _group_changes(run: Execution, decision: Decision) -> tuple[Change, ...]:
    """The change with which a dead-lettered message stops its group, or the message that it waits for resumes it."""
    delivery, policy = run.delivery, run.job.policy
    if not policy.fifo or delivery.group is None:
        return ()
    flag = group_flag(delivery.queue, delivery.group)
    stops = policy.after_failure == "stop"
    if stops and isinstance(decision.settle, MoveTo) and run.facts.stopped is None:
        return (_change(flag, delivery.message_id.encode(), 0),)
    if run.stopping is not None and isinstance(decision.settle, Ack if stops else (Ack, MoveTo)):
        return (_change(flag, None, run.stopping),)
    return ()


def _change(name: str, value: bytes | None, expected: int) -> Change:
    return Change(name, value, expected)


def effect_happened(settlement: Settlement) -> bool:
    """Whether a settlement records that the handler has completed."""
    return settlement.write is not None and isinstance(settlement.write[1], records.Complete)


class JointTransaction:
    """Writes handlers' rows and records in one transaction, and then carries out the rest of their settlements.

    Args:
        backend: carries out the rest. inner: the record backend's own transaction.
    """

    def __init__(self, backend: Backend, inner: EffectTransaction) -> None:
        self._backend = backend
        self._inner = inner
        self._kept: list[Settlement] = []
        self._now_ms = 0  # of the last one

    def open(self) -> object:
        """The connection that the record backend gives to handlers."""
        return self._inner.open()

    def finish(self, settlement: Settlement, now_ms: int) -> Verdict:
        """Write record and rows into the transaction; the message is settled on its own queue by `commit`."""
        self._now_ms = now_ms
        verdict = self._inner.finish(settlement, now_ms)
        if verdict.written:
            self._kept.append(replace(settlement, rows=(), changes=()))
        return verdict

    def undo(self) -> None:
        """Roll back the rows of the handler that is running now."""
        self._inner.undo()

    def commit(self) -> None:
        """Make kept work durable, then send its outboxes and settle its messages.

        Failures after the transaction is durable are not raised: records and outboxes are written, and the message's
        next delivery finds them and does the rest.
        """
        kept, self._kept = self._kept, []  # first, so that a later commit does not settle what could not be committed
        self._inner.commit()
        with ignored(errors.TransientError, errors.UsageError):
            settle_the_rest(self._backend, kept, self._now_ms)

    def rollback(self) -> None:
        """Roll back everything that was not committed."""
        self._kept.clear()
        self._inner.rollback()


def backend_of(engine: Engine) -> Backend:
    """The contracts of an engine, for a runner."""
    commit, opened = engine.commit, engine.effects

    def open_queue(name: str) -> Queue:
        return engine.queues.open(name)  # opened this late, as a function may never need `queues`

    backend = Backend(
        store=engine.store,
        ledger=engine.ledger,
        state=engine.state,
        commit=commit,
        open_queue=open_queue,
        effects=commit.effects if commit is not None else None,
    )
    if commit is not None or opened is None:
        return backend

    def effects(limit_ms: int) -> JointTransaction | None:
        inner = opened(limit_ms)
        return JointTransaction(backend, inner) if inner is not None else None

    return replace(backend, effects=effects)
