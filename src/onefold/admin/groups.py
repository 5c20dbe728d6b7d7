"""Stopped message groups of FIFO queues: listing them, and starting them again in order.

A group stops when one of its messages is dead-lettered or held (after_failure=stop): a flag in State names that message.
While the flag is set, every other message of the group that a worker receives is moved to the dead-letter queue as well,
so that the order is kept there. The message that the flag names is run; its settlement removes the flag.

On an engine with transactions, a group is started again in one transaction, while no worker holds a message of the group.
All messages of the group move to the end of the queue (dead letters first, then messages that waited in the queue), the
flag names the first of them, and a history row records it. A worker that received before the transaction has settled
before it; one that receives after it sees the new flag and the new order; messages sent meanwhile come after the group.
SQS has no transactions, cannot list the messages of one group, and cannot block a group. So a group is started there only
when a person confirms that nobody sends to the queue and no worker receives from it (`idle`).

Never here: choosing which groups. Invariant: while a message of a group is in the dead-letter queue the group's flag stays
set, so nothing newer overtakes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from onefold import errors, redact
from onefold.admin import reading
from onefold.admin.session import AdminSession
from onefold.contracts.admin import Moved, Peeked
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import STOPPED_PREFIX, Change, group_flag
from onefold.contracts.store import RecordKey
from onefold.observe.timeline import alone
from onefold.runner import runs
from onefold.runner.handlers import run_of

_LOOKS = 2_000  # tries while a worker still holds the group: 10 s in all
_PAUSE_MS = 5
_WAIT_MS = _LOOKS * _PAUSE_MS  # the same limit if a single try takes long, because the group is large


class Stopped(Struct, frozen=True, kw_only=True):
    """A stopped group.

    Args:
        queue, group: of the group.
        by: id of the message that stopped it.
    """

    queue: str
    group: str
    by: str


def stopped(session: AdminSession, queue: str | None = None) -> list[Stopped]:
    """The stopped groups of one queue, or of all."""
    names = session.engine.state.names(group_flag(queue, "") if queue is not None else STOPPED_PREFIX)
    found = []
    for name, value in zip(names, session.engine.state.get(names), strict=True):
        _, source, group = (*name.split("/", 2), "")[:3]
        if value is not None and group:
            found.append(Stopped(queue=source, group=group, by=value.value.decode(errors="replace")))
    return found


def ways_back(session: AdminSession) -> Callable[[Peeked], str]:
    """Which command sends a dead letter back: alone, or with its map run or stopped group, which go back as a whole.

    Returns:
        A function from a dead letter to its command. Which groups are stopped is read once, now.
    """
    stopped_by = {(one.queue, one.group): one.by for one in stopped(session)}
    held = {one.held for one in session.settings().values() if stopped_by and one.held is not None}
    is_map: dict[str, bool] = {}

    def way_back(message: Peeked) -> str:
        run = run_of(message)
        if run is not None and run not in is_map:
            is_map[run] = session.engine.state.get([runs.MAP_PREFIX + run])[0] is not None
        if run is not None and is_map[run]:
            return f"onefold map redrive {redact.shell_word(run)}"
        by = stopped_by.get((message.source or "", message.group or ""))
        if by is None:
            return alone(message)
        named = session.engine.queues.find([by])[0]
        if named is not None and named.queue in held:
            return "onefold held list   (its group is stopped by a held message: settle that one first)"
        return f"onefold dlq redrive --group {redact.shell_word(message.group or '')}"

    return way_back


def check_can_start(session: AdminSession, queue: str, group: str, *, idle: bool) -> None:
    """Refuse to start a group whose order could not be kept.

    Raises:
        UsageError: the engine's queues have no transactions, and `idle` is not set.
        TransientError: `idle` is set, but a consumer holds messages.
    """
    if session.engine.commit is not None:
        return
    if not idle:
        raise errors.UsageError(
            f"Group {group!r} of {queue} is stopped, and its queue is not in this engine's file.",
            meaning="Messages that arrive or are received while the group is sent back could overtake it, and SQS cannot "
            "hold a group closed. Nothing was moved.",
            todo="Stop the workers of this queue and everything that sends to it, then run this again with --idle.",
        )
    if session.engine.queues.depth(queue).in_flight:
        raise errors.TransientError(
            f"A consumer holds messages of {queue}, so the queue is not idle.",
            meaning="The group's order could not be kept. Nothing was moved.",
            todo="Stop its workers, wait until their visibility timeout has passed, and run this again.",
        )


def start_again(
    session: AdminSession,
    queue: str,
    group: str,
    first: Sequence[str] = (),
    *,
    idle: bool = False,
    reason_text: str | None = None,
) -> dict[str, Moved]:
    """Send all dead letters of a stopped group back, in order and before the waiting messages, and restart the group.

    On a file the transaction keeps other writers waiting 0.1 s for each 1,000 messages: a group of 100,000 takes 10 s,
    after which other writers give up for now (StorageBusy).

    Args:
        queue: the FIFO queue the group belongs to.
        group: its name.
        first: ids of messages that are elsewhere (in the held queue) and go before all others.
        idle: nobody sends to the queue and no worker receives from it; required if the engine has no transactions.
        reason_text: why, for the ledger.

    Returns:
        Where each message went, by its old id, including messages that waited in the queue and had to go behind them.

    Raises:
        TransientError: workers kept receiving messages of the group; it is still stopped, and in order.
        UsageError: as `check_can_start`.
    """
    check_can_start(session, queue, group, idle=idle)
    one = _Group(session, queue, group, first, reason_text)
    if session.engine.commit is None:
        return one.carry_back()
    until_ms = session.clock.monotonic_ms() + _WAIT_MS
    for _ in range(_LOOKS):
        if one.is_free():
            one.read_keys()
            went = session.together(one.send_back)
            if went is not None:
                return went
        if session.clock.monotonic_ms() >= until_ms:
            break
        session.clock.wait(session.never, _PAUSE_MS)
    raise errors.TransientError(
        f"Workers kept receiving messages of group {group!r} of {queue} for {_WAIT_MS // 1000} s.",
        meaning="It could not be started again. It is still stopped, and its order is kept.",
        todo="Run it again in a moment.",
    )


class _Group:
    """One stopped group to be restarted. Arguments as `start_again`."""

    def __init__(
        self, session: AdminSession, queue: str, group: str, first: Sequence[str], reason_text: str | None
    ) -> None:
        self._session = session
        self._queues = session.engine.queues
        self._queue = queue
        self._group = group
        self._first = list(first)
        self._reason_text = reason_text
        self._dead_letter = session.settings()[queue].dead_letter
        self._keys: dict[str, RecordKey | None] = {}

    def is_free(self) -> bool:
        """Whether no worker holds the group: a worker that holds any of it holds its head."""
        head = self._queues.of_group(self._queue, self._group, limit=1)
        return not head or head[0].state != "in_flight"

    def read_keys(self) -> None:
        """Find the operation of each dead letter; calls users' functions, so it is done before the file is locked."""
        for one in (*self._elsewhere(), *self._dead()):
            if one.message_id not in self._keys:
                self._keys[one.message_id] = reading.read(self._session, one).key

    def _elsewhere(self) -> list[Peeked]:
        return [one for one in self._queues.find(self._first) if one is not None] if self._first else []

    def _dead(self) -> list[Peeked]:
        if self._dead_letter is None:
            return []
        return [one for one in self._queues.of_group(self._dead_letter, self._group) if one.source == self._queue]

    def send_back(self) -> dict[str, Moved] | None:
        """Move all at once, inside a transaction; None if a worker holds a message or has just dead-lettered one."""
        if not self.is_free():
            return None
        back, waiting = [*self._elsewhere(), *self._dead()], self._queues.of_group(self._queue, self._group)
        if any(one.state == "in_flight" for one in (*back, *waiting)):
            return None
        if any(one.message_id not in self._keys for one in back):
            return None
        moved = self._move([*back, *waiting])
        self._point_at(next(iter(moved.values()), None))
        self._note(back, moved)
        return moved

    def carry_back(self) -> dict[str, Moved]:
        """Move messages step by step, for a queue that nothing else uses; one read shows ten messages of a group."""
        self.read_keys()
        moved = self._carry(self._elsewhere())
        while dead := self._dead():
            self.read_keys()
            went = self._carry(dead)
            if not went:
                raise errors.TransientError(
                    f"{len(dead)} dead letters of group {self._group!r} of {self._queue} could not be taken.",
                    meaning=f"Somebody else holds them. {len(moved)} messages of it were moved; the group is still stopped.",
                    todo="Run it again in a minute.",
                )
            moved |= went
        here = {one.new_message_id for one in moved.values()}
        while waiting := self._queues.of_group(self._queue, self._group):
            behind = [one for one in waiting if one.message_id not in here]
            if not here or waiting[0].message_id in here or not (went := self._move(behind)):
                break
            moved |= went
            here |= {one.new_message_id for one in went.values()}
        self._point_at(next(iter(moved.values()), None))
        return moved

    def _carry(self, messages: Sequence[Peeked]) -> dict[str, Moved]:
        moved = self._move(messages)
        self._note(messages, moved)
        return moved

    def _move(self, messages: Sequence[Peeked]) -> dict[str, Moved]:
        """Send messages to the queue's end, in this order."""
        ids = [one.message_id for one in messages]
        answers = self._queues.move([(message_id, self._queue, None) for message_id in ids]) if ids else []
        return {message_id: moved for message_id, moved in zip(ids, answers, strict=True) if moved is not None}

    def _point_at(self, first: Moved | None) -> None:
        """Make the flag name the message that goes first; remove the flag if there is none."""
        name = group_flag(self._queue, self._group)
        flag = self._session.engine.state.get([name])[0]
        if flag is not None:
            named = first.new_message_id.encode() if first is not None else None
            self._session.engine.state.put([Change(name, named, flag.version)])

    def _note(self, messages: Sequence[Peeked], moved: Mapping[str, Moved]) -> None:
        rows = [
            self._session.row(
                "redrive",
                key=self._keys.get(one.message_id),
                message=one,
                to=went.queue,
                new_message_id=went.new_message_id,
                reason_text=self._reason_text,
            )
            for one in messages
            if (went := moved.get(one.message_id)) is not None
        ]
        self._session.engine.ledger.append(rows)


def resume_expired(session: AdminSession, group: str, *, reason_text: str | None = None) -> list[str]:
    """Restart a stopped group whose dead letters are all gone, expired or otherwise; returns the queues it was in.

    Args:
        group: its exact name. reason_text: why, for the row `group-resumed`.
    """
    free = []
    for queue in sorted({one.queue for one in stopped(session) if one.group == group}):
        if queue in session.settings() and let_go_of_empty(session, queue, group):
            session.record("group-resumed", queue=queue, group=group, reason_text=reason_text)
            free.append(queue)
    return free


def let_go_of_empty(session: AdminSession, queue: str, group: str | None = None) -> list[str]:
    """Restart the stopped groups of a queue that have no messages in the dead-letter or held queue; returns their names.

    Args:
        group: only this one; None: all.
    """
    settings = session.settings()[queue]
    free = []
    for one in stopped(session, queue):
        if group is not None and one.group != group:
            continue
        gone = None
        for _ in range(_LOOKS):
            gone = session.together(lambda group=one.group: _let_go(session, settings, group))  # type: ignore[misc]
            if gone is not None:
                break
            session.clock.wait(session.never, _PAUSE_MS)
        if gone:
            free.append(one.group)
    return free


def _let_go(session: AdminSession, settings: QueueSettings, group: str) -> bool | None:
    """Remove a group's flag if none of its messages is left, in one transaction where possible; returns whether it did.

    Returns None if it cannot be done now, because a worker is about to send a message after the deleted ones.
    """
    name = group_flag(settings.name, group)
    flag = session.engine.state.get([name])[0]
    if flag is None:
        return False
    for queue in (settings.dead_letter, settings.held):
        if queue is not None and any(
            one.source == settings.name for one in session.engine.queues.of_group(queue, group)
        ):
            return False
    in_flight = [one for one in session.engine.queues.of_group(settings.name, group) if one.state == "in_flight"]
    if any(one.message_id == flag.value.decode(errors="replace") for one in in_flight):
        return False  # the flag names the message that is run; its settlement removes the flag
    if in_flight:
        return None
    return session.engine.state.put([Change(name, None, flag.version)]) == [True]


def dead_letters(session: AdminSession, queues: Iterable[str]) -> dict[tuple[str, str], list[Peeked]]:
    """The dead letters of FIFO queues by queue and group, in each group's order."""
    settings = session.settings()
    found: dict[tuple[str, str], list[Peeked]] = defaultdict(list)
    for queue in queues:
        dead_letter = settings[queue].dead_letter
        for message in session.every(dead_letter) if dead_letter is not None else ():
            if message.source == queue and message.group is not None:
                found[queue, message.group].append(message)
    for messages in found.values():
        messages.sort(key=lambda message: message.sequence or "")
    return found
