"""Sending dead letters back: what each would do (dry run), and the sending itself, which stops when replays fail again.

A redrive sends in waves. Its speed doubles every second up to the rate asked for; and while it watches, it limits how
many messages are under way: at first to twice the number of failures that would stop it, then to one more for each
success. So a fix that does not work costs a handful of messages, and one that works soon runs at full speed. It watches
exactly the messages it sent: one that has left the queue is done, one that is back in a dead-letter queue has failed again.
A message of a stopped FIFO group goes back together with all dead letters of its group, in order (`groups.py`).
Never here: selecting (`dead_letters.py`), output. Invariant: each message sent back has its row in the ledger.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from onefold import errors, limits, redact
from onefold.admin import dead_letters, groups, reading
from onefold.admin.dead_letters import DeadLetterView, Select, letter, of_scheduler
from onefold.admin.reading import ExpectedOutcome, Forecast
from onefold.admin.session import AdminSession
from onefold.codec import digest, encode
from onefold.contracts.admin import Moved, Peeked, roles
from onefold.contracts.ledger import Row
from onefold.contracts.state import group_flag
from onefold.contracts.store import RecordKey
from onefold.observe.wording import counted

PER_SECOND_DEFAULT = 100
STOP_AFTER_DEFAULT = 5
_LOOK_MS = 250  # between two checks of the messages sent
_NO_WORKER_MS = 10_000  # if none of them was received for this long, no worker runs
_SETTLE_MS = 60_000  # if all were sent and nothing has changed for this long, retries continue without watching
_DIGEST_CHARS = 12
_START_FRACTION = 8  # the first second sends an eighth of the rate

End = Literal["", "done", "failing-again", "no-worker", "under-way", "interrupted"]


class Foreseen(Struct, frozen=True, kw_only=True):
    """One dead letter and what sending it back would do."""

    letter: DeadLetterView
    forecast: Forecast


class Tally(Struct, frozen=True, kw_only=True):
    """How far a redrive has come.

    Args:
        selected: messages it was asked to send back.
        sent: sent so far. gone: no longer there, or held by somebody, when their turn came.
        stopped: left alone because their FIFO group stopped after they were chosen: it goes back as a whole.
        done: sent and finished since. came_back: in a dead-letter queue again. held: parked for a person.
        under_way: received at least once, not finished. waiting: not received yet.
        per_second: the speed now.
        end: why it ended: `done`; `failing-again`: it stopped itself; `no-worker`: no worker receives; `under-way`: all
            are sent, some are still being retried; empty while it is running.
        examples: ids of messages that came back, at most five.
    """

    selected: int
    sent: int = 0
    gone: int = 0
    stopped: int = 0
    done: int = 0
    came_back: int = 0
    held: int = 0
    under_way: int = 0
    waiting: int = 0
    per_second: float = 0.0
    end: End = ""
    examples: tuple[str, ...] = ()


def foresee(
    session: AdminSession, messages: Sequence[Peeked], *, select: Select | None = None, idle: bool = False
) -> list[Foreseen]:
    """What sending each message back would do now; nothing is changed. Arguments as for `Redrive`.

    Raises:
        UsageError: what `Redrive` refuses.

    The forecast for the second message of one operation assumes that the first one is done by then.
    """
    _units(session, messages, select, idle=idle)
    found = []
    first: dict[tuple[RecordKey, str | None], str] = {}
    for message, alone in zip(messages, reading.forecast(session, messages), strict=True):
        known = reading.read(session, message)
        forecast = alone
        if alone.outcome in ("run", "unknown") and known.key is not None:
            earlier = first.setdefault((known.key, known.fingerprint), message.message_id)
            if earlier != message.message_id:
                forecast = Forecast(
                    outcome="answered",
                    why=f"The same operation as message {earlier}: answered once that one is done.",
                )
        found.append(Foreseen(letter=letter(session, message), forecast=forecast))
    return found


class RedrivePlan(Struct, frozen=True, kw_only=True):
    """What sending dead letters back would do. Nothing was changed.

    Args:
        select: which messages. foreseen: each of them, and what it would do. counts: how many of each outcome.
        digest: the digest of the messages, their bodies and what they would do; equal digests mean the same plan.
    """

    select: Select
    foreseen: tuple[Foreseen, ...]
    counts: dict[ExpectedOutcome, int]
    digest: str


def plan(session: AdminSession, select: Select, *, idle: bool = False) -> RedrivePlan:
    """What sending these back would do; nothing is changed. Arguments and errors as for `foresee`.

    Raises:
        NotFoundError: none fits.
    """
    return _planned(session, _named(session, select), select, idle=idle)


def _named(session: AdminSession, select: Select) -> list[Peeked]:
    messages = list(dead_letters.find(session, select))
    if not messages:
        raise errors.NotFoundError(
            "No dead letter matches.", meaning="Nothing was changed.", todo="See `onefold dlq list --all`."
        )
    return messages


def _planned(session: AdminSession, messages: Sequence[Peeked], select: Select, *, idle: bool) -> RedrivePlan:
    foreseen = tuple(foresee(session, messages, select=select, idle=idle))
    named = sorted(
        [message.message_id, digest(message.body.encode()), one.forecast.outcome]
        for message, one in zip(messages, foreseen, strict=True)
    )
    return RedrivePlan(
        select=select,
        foreseen=foreseen,
        counts=dict(Counter(one.forecast.outcome for one in foreseen)),
        digest=digest(encode(named))[:_DIGEST_CHARS],
    )


def carry_out(
    session: AdminSession,
    planned: RedrivePlan,
    *,
    reason_text: str,
    per_second: int = PER_SECOND_DEFAULT,
    watch: bool = False,
    stop_after: int = STOP_AFTER_DEFAULT,
    idle: bool = False,
) -> Tally:
    """Send back what a plan names, if sending would still do what it says. Arguments and errors as for `Redrive`.

    Raises:
        ConflictError: it would not; nothing was sent. UsageError: no reason.
    """
    if not reason_text.strip():
        raise errors.UsageError("A redrive by plan needs a reason.", todo="Say why, for the history.")
    messages = _named(session, planned.select)
    now = _planned(session, messages, planned.select, idle=idle)
    if now.digest != planned.digest:
        raise errors.ConflictError(
            f"The plan {planned.digest:.40} is out of date: the same selection would now be the plan {now.digest}.",
            meaning="Dead letters came, went, were edited, or would do something else by now. Nothing was sent.",
            todo="Plan it again.",
        )
    work = Redrive(
        session, messages, per_second=per_second, stop_after=stop_after, watch=watch, reason_text=reason_text,
        select=planned.select, idle=idle,
    )  # fmt: skip
    return work.run(lambda _: None)


class _Unit(Struct, frozen=True):
    """What goes back in one piece: one message, or a stopped group."""

    messages: tuple[Peeked, ...]
    queue: str | None = None
    group: str | None = None


class Redrive:
    """One redrive, step by step.

    Args:
        messages: dead letters from `dead_letters.find`.
        per_second: the highest speed, 1 to 500.
        stop_after: failures among the messages sent that stop it; 0 never stops it.
        watch: follow them to their outcome; False only sends.
        reason_text: why, for the ledger.
        select: how the messages were chosen: what has since joined a stopped group, and matches, goes back with it.
        idle: nobody sends to the queues of stopped groups and no worker receives from them (`groups.py`).

    Raises:
        UsageError: a number out of its range; a message of a stopped group without the rest of it; a group that is
            stopped by a held message, or on SQS without `idle`. Nothing was moved.
    """

    def __init__(
        self,
        session: AdminSession,
        messages: Sequence[Peeked],
        *,
        per_second: int = PER_SECOND_DEFAULT,
        stop_after: int = STOP_AFTER_DEFAULT,
        watch: bool = True,
        reason_text: str | None = None,
        select: Select | None = None,
        idle: bool = False,
    ) -> None:
        if not 1 <= per_second <= limits.MOVE_PER_SECOND_MAX:
            raise errors.UsageError(
                f"rate={per_second} a second is out of range.",
                todo=f"It is 1 to {limits.MOVE_PER_SECOND_MAX} a second.",
            )
        if stop_after < 0:
            raise errors.UsageError(f"stop_after={stop_after} is out of range.", todo="It is 0 (never) or more.")
        self._session = session
        self._per_second = per_second
        self._stop_after = stop_after
        self._watch = watch
        self._reason_text = reason_text
        self._roles = roles(session.settings())
        self._idle = idle
        self._units = deque(_units(session, messages, select, idle=idle))
        self._selected = len(messages)
        self._out: dict[str, Peeked | None] = {}  # sent and not settled yet, by new id, as last seen
        self._sent = self._gone = self._stopped = self._done = self._held = 0
        self._back: list[str] = []
        self._started_ms = self._changed_ms = self._refilled_ms = session.clock.monotonic_ms()
        self._room = 1.0
        self._end: End = ""

    @property
    def tally(self) -> Tally:
        """How far the redrive has come."""
        received = sum(1 for one in self._out.values() if one is not None and one.receive_count > 0)
        return Tally(
            selected=self._selected,
            sent=self._sent,
            gone=self._gone,
            stopped=self._stopped,
            done=self._done,
            came_back=len(self._back),
            held=self._held,
            under_way=received,
            waiting=len(self._out) - received,
            per_second=self._speed(),
            end=self._end,
            examples=tuple(self._back[:5]),
        )

    def run(self, report: Callable[[Tally], None]) -> Tally:
        """Carry it out, reporting after each step; returns the last tally. An interrupt does not undo what was sent."""
        while not self._end:
            wait_ms = self.step()
            report(self.tally)
            if not self._end:
                self._session.clock.wait(self._session.never, wait_ms)
        return self.tally

    def step(self) -> int:
        """Check, decide whether to continue, and send what may be sent now; returns milliseconds until the next step."""
        if self._watch:
            self._check_progress()
        self._end = self._ended()
        if not self._end and self._units:
            self._refill()
            self._send()
            self._end = self._ended()
        fast = self._units and self._window() > len(self._out)
        return max(10, min(_LOOK_MS, int(1000 / self._speed()))) if fast else _LOOK_MS

    # -- deciding --------------------------------------------------------------------------------------------------------

    def _ended(self) -> End:
        if self._watch and self._stop_after and self._failures() >= self._stop_after and (self._units or self._out):
            return "failing-again"
        if not self._units and not (self._watch and self._out):
            return "done"
        quiet_ms = self._session.clock.monotonic_ms() - self._changed_ms
        received = any(one is not None and one.receive_count > 0 for one in self._out.values())
        if self._watch and self._out and not received and quiet_ms >= _NO_WORKER_MS:
            return "no-worker"
        if not self._units and quiet_ms >= _SETTLE_MS:
            return "under-way"
        return ""

    def _failures(self) -> int:
        """How many messages have failed again so far."""
        return len(self._back) + self._held

    def _window(self) -> int:
        """How many messages may be under way at once."""
        if not self._watch:
            return self._selected
        return 2 * (self._stop_after or STOP_AFTER_DEFAULT) + self._done - self._failures() * bool(self._stop_after)

    def _speed(self) -> float:
        elapsed_s = (self._session.clock.monotonic_ms() - self._started_ms) / 1000
        first = max(1.0, self._per_second / _START_FRACTION)
        return min(float(self._per_second), float(first * 2 ** min(elapsed_s, 10)))

    def _refill(self) -> None:
        now_ms = self._session.clock.monotonic_ms()
        speed = self._speed()
        self._room = min(self._room + speed * (now_ms - self._refilled_ms) / 1000, max(speed, 1.0))
        self._refilled_ms = now_ms

    # -- doing -----------------------------------------------------------------------------------------------------------

    def _check_progress(self) -> None:
        """Update the outcomes of the messages that were sent."""
        ids = list(self._out)
        for message_id, found in zip(ids, self._session.engine.queues.find(ids), strict=True):
            before = self._out[message_id]
            if found is not None and found.queue not in self._roles.dead and found.queue not in self._roles.held:
                self._out[message_id] = found
                if before is None or (before.receive_count, before.state) != (
                    found.receive_count,
                    found.state,
                ):
                    self._changed()
                continue
            del self._out[message_id]
            self._changed()
            if found is None:
                self._done += 1
            elif found.queue in self._roles.dead:
                self._back.append(message_id)
            else:
                self._held += 1

    def _changed(self) -> None:
        self._changed_ms = self._session.clock.monotonic_ms()

    def _send(self) -> None:
        singles: list[Peeked] = []
        room = min(int(self._room), self._window() - len(self._out))
        while self._units and room > 0:
            unit = self._units.popleft()
            room -= len(unit.messages)
            self._room -= len(unit.messages)
            if unit.queue is None:
                singles.extend(unit.messages)
                continue
            assert unit.group is not None
            went = groups.start_again(
                self._session, unit.queue, unit.group, idle=self._idle, reason_text=self._reason_text
            )
            self._session.engine.notify()
            self._note([went.get(message.message_id) for message in unit.messages])
        if singles:
            targets = [target(self._session, message) for message in singles]
            keys = self._keys(singles)  # calls users' functions: not while the engine's file is locked

            def write() -> tuple[list[Moved | None], int]:
                free = self._not_stopped(singles)
                moves = [
                    (message.message_id, to, None)
                    for message, to, may in zip(singles, targets, free, strict=True)
                    if may
                ]
                sent = iter(self._session.engine.queues.move(moves))
                moved = [next(sent) if may else None for may in free]
                self._session.engine.ledger.append(self._rows(singles, keys, moved))
                return [went for went, may in zip(moved, free, strict=True) if may], free.count(False)

            moved, stopped = self._session.together(write)
            self._stopped += stopped
            self._note(moved)

    def _not_stopped(self, messages: Sequence[Peeked]) -> list[bool]:
        """Whether each message may go back alone: a group that has stopped since they were chosen goes as a whole."""
        flags = {
            one.message_id: group_flag(one.source, one.group)
            for one in messages
            if one.sequence is not None and one.source is not None and one.group is not None
        }
        values = self._session.engine.state.get(list(flags.values())) if flags else []
        stopped = {message_id for message_id, value in zip(flags, values, strict=True) if value is not None}
        return [one.message_id not in stopped for one in messages]

    def _keys(self, messages: Sequence[Peeked]) -> list[RecordKey | None]:
        return [reading.read(self._session, message).key for message in messages]

    def _rows(
        self, messages: Sequence[Peeked], keys: Sequence[RecordKey | None], moved: Sequence[Moved | None]
    ) -> list[Row]:
        return [
            self._session.row(
                "redrive",
                key=key,
                message=message,
                to=went.queue,
                new_message_id=went.new_message_id,
                reason_text=self._reason_text,
            )
            for message, key, went in zip(messages, keys, moved, strict=True)
            if went is not None
        ]

    def _note(self, moved: Sequence[Moved | None]) -> None:
        for went in moved:
            if went is None:
                self._gone += 1
                continue
            self._sent += 1
            if self._watch:
                self._out[went.new_message_id] = None
        self._changed()


def target(session: AdminSession, message: Peeked) -> str | None:
    """Where a redrive sends a dead letter: None for the queue that it came from.

    A tick that a scheduler itself put into the dead-letter queue came from no queue; it goes to the queue of its job, if
    that one has its dead letters here: anybody who may send to a dead-letter queue can name a job.
    """
    if message.source is not None or of_scheduler(message, "SCHEDULE_ARN") is None:
        return None
    job = session.job(reading.carried_job(message))
    queue = None if job is None else session.settings().get(job.policy.queue)
    return queue.name if queue is not None and queue.dead_letter == message.queue else None


def _units(session: AdminSession, messages: Sequence[Peeked], select: Select | None, *, idle: bool) -> list[_Unit]:
    """The units in which a redrive sends, in the order of the selection."""
    stopped = {(one.queue, one.group): one for one in groups.stopped(session)}
    members = groups.dead_letters(session, {queue for queue, _ in stopped})
    chosen = {message.message_id for message in messages}
    units: list[_Unit] = []
    seen: set[tuple[str, str]] = set()
    for message in messages:
        group_key = (message.source or "", message.group or "")
        if message.sequence is None or group_key not in stopped:
            units.append(_Unit((message,)))
        elif group_key not in seen:
            seen.add(group_key)
            groups.check_can_start(session, *group_key, idle=idle)
            left = [one for one in members[group_key] if one.message_id not in chosen]
            if select is not None:  # matching ones have come since the selection
                left = [one for one in left if not dead_letters.fits(session, one, select)]
            units.append(_whole_group(session, stopped[group_key], members[group_key], left))
    return units


def _whole_group(
    session: AdminSession, stopped: groups.Stopped, members: Sequence[Peeked], left: Sequence[Peeked]
) -> _Unit:
    queue, group = stopped.queue, stopped.group
    by = session.engine.queues.find([stopped.by])[0]
    if by is not None and by.queue == session.settings()[queue].held:
        raise errors.UsageError(
            f"Group {group!r} of {queue} is stopped by message {stopped.by}, which is held: its outcome is unknown.",
            meaning="What waits behind it must not overtake it. Nothing was moved.",
            todo="Settle it first (`onefold held list`); the group then continues by itself.",
        )
    if left:
        missing = [one.message_id for one in left]
        named = f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}"
        raise errors.UsageError(
            f"Group {group!r} of {queue} is stopped, and {len(missing)} of its {counted(len(members), 'dead letter')} "
            f"{'is' if len(missing) == 1 else 'are'} not selected: {named}.",
            meaning="The group goes back as a whole and in order, or its order would be lost. Nothing was moved.",
            todo=f"Select it with --group {redact.shell_word(group)}. First delete what should not run with"
            " `onefold dlq purge ID`.",
        )
    return _Unit(tuple(members), queue, group)
