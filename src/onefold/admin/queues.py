"""Queues for an operator: list, inspect, empty, move, bring their settings up to date.

Nothing here receives a message: inspecting a queue changes no count and hides nothing. What a person changes is written to
the ledger. Never here: dead letters (`dead_letters.py`, `redrive.py`), how busy queues are (`status.py`), output.
Invariant: a call changes only what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, redact
from onefold.admin import groups, reading
from onefold.admin.session import AdminSession
from onefold.contracts.admin import MoveTask, Peeked, roles
from onefold.contracts.ledger import Row
from onefold.contracts.settings import QueueSettings, differences
from onefold.contracts.store import RecordKey
from onefold.runtime.runtime import differing

_STEP_MS = 200  # between two steps of a move task that this process carries out
_NOTED_AT_ONCE = 1_000  # messages of a purge that one transaction deletes and records


class QueueView(Struct, frozen=True, kw_only=True):
    """A queue with what it is for.

    Args:
        settings: the engine's.
        role: `source`, `dead-letter` or `held`. serves: the queues whose messages come here.
        visible, in_flight, delayed: messages it holds.
    """

    settings: QueueSettings
    role: Literal["source", "dead-letter", "held"]
    serves: tuple[str, ...]
    visible: int
    in_flight: int
    delayed: int


class QueueStatus(Struct, frozen=True, kw_only=True):
    """One queue with its companions.

    Args:
        queue, fifo: its name, and whether it is FIFO.
        visible, in_flight, delayed: messages. to_retry: how many of those in flight were given back for a later try; None:
            not known, as on SQS.
        oldest_age_ms: the age of the oldest message that is not delayed; None if there is none.
        dead, dead_expires_in_ms: dead letters, and the time until the first of them expires.
        held, held_expires_in_ms: messages whose outcome is unknown, and the time until the first of them expires.
        stopped_groups: FIFO groups that wait for a person.
    """

    queue: str
    fifo: bool
    visible: int
    in_flight: int
    delayed: int
    oldest_age_ms: int | None
    dead: int
    dead_expires_in_ms: int | None
    held: int
    held_expires_in_ms: int | None
    stopped_groups: int
    to_retry: int | None = None


class MessageView(Struct, frozen=True, kw_only=True):
    """A message as `peek` shows it.

    Args:
        message_id, queue, state, group, receive_count: as in the queue.
        job, tenant, key: the operation, if known.
        sent_at_ms, visible_at_ms, expires_at_ms: by the queue's own clock.
        owner: the process that has it, while in flight.
        body: only if it was asked for.
    """

    message_id: str
    queue: str
    state: str
    group: str | None
    receive_count: int
    job: str | None
    tenant: str
    key: str | None
    sent_at_ms: int
    visible_at_ms: int
    expires_at_ms: int
    owner: str | None
    body: str | None


class Drift(Struct, frozen=True, kw_only=True):
    """A queue whose settings in the engine are not those declared; one line per difference, and a sentence with all."""

    queue: str
    differences: tuple[str, ...]
    text: str


def views(session: AdminSession, queue: str | None = None) -> list[QueueView]:
    """All queues, each followed by its dead-letter and held queue; with `queue`, only this one if it exists."""
    settings = session.settings()
    kinds = roles(settings)
    order: list[str] = []
    for name in sorted(kinds.sources):
        order += [one for one in (name, kinds.sources[name].dead_letter, kinds.sources[name].held) if one is not None]
    found = []
    for name in dict.fromkeys([*order, *sorted(settings)]):
        if queue not in (None, name):
            continue
        depth = session.engine.queues.depth(name)
        role: Literal["source", "dead-letter", "held"] = (
            "dead-letter" if name in kinds.dead else "held" if name in kinds.held else "source"
        )
        found.append(
            QueueView(
                settings=settings[name],
                role=role,
                serves=(*kinds.dead.get(name, ()), *kinds.held.get(name, ())),
                visible=depth.visible,
                in_flight=depth.in_flight,
                delayed=depth.delayed,
            )
        )
    return found


def look(
    session: AdminSession, queue: str, *, limit: int = 20, bodies: bool = False, receive: bool = False
) -> list[MessageView]:
    """The oldest messages of a queue, read without receiving them if the engine allows that.

    Args:
        limit: how many at most, 1 or more.
        bodies: include their payloads, because a person asked for them.
        receive: also read a working queue of SQS, where reading receives the messages.

    Raises:
        NotFoundError: the queue does not exist. UsageError: a working queue of SQS, without `receive`.
    """
    if not receive and queue in session.closed_queues():
        raise errors.UsageError(
            f"{queue} is a queue of SQS, where reading messages receives them.",
            meaning="Each look would count towards its dead-letter queue, and hide what it sees from workers for up to a "
            "minute. Nothing was received.",
            todo="`onefold queue list` counts them. To read it anyway, add --receive.",
        )
    return [_waiting(session, message, bodies=bodies) for message in islice(session.every(queue), limit)]


def _waiting(session: AdminSession, message: Peeked, *, bodies: bool) -> MessageView:
    known = reading.read(session, message)
    return MessageView(
        message_id=message.message_id,
        queue=message.queue,
        state=message.state,
        group=message.group,
        receive_count=message.receive_count,
        job=known.job,
        tenant=known.key.scope if known.key is not None else "",
        key=known.key.key if known.key is not None else message.key,
        sent_at_ms=message.sent_at_ms,
        visible_at_ms=message.visible_at_ms,
        expires_at_ms=message.expires_at_ms,
        owner=message.owner if message.state == "in_flight" else None,
        body=message.body if bodies else None,
    )


def count(session: AdminSession, queue: str) -> int:
    """How many messages a queue holds, in flight and delayed ones included.

    Raises:
        NotFoundError: the queue does not exist.
    """
    depth = session.engine.queues.depth(queue)
    return depth.visible + depth.in_flight + depth.delayed


def purge(session: AdminSession, queue: str, *, reason_text: str | None = None) -> int:
    """Delete every message of a queue, including those in flight; returns how many. Empty stopped groups are restarted.

    On an engine in one file each deletion is recorded in the message's history: messages are deleted in transactions of
    1,000 together with their rows, the oldest first. The last transaction also deletes what was sent meanwhile, and
    writes rows for the first 1,000 of that. If the purge is interrupted, what is left is still in the queue. The row of
    the purge counts all messages, and those without a row of their own (`not_noted`).

    Raises:
        NotFoundError: the queue does not exist. UsageError: purged less than 60 s ago.
    """
    # On SQS, reading takes messages away from consumers, so only the embedded engine records which messages they were.
    says_which = session.engine.commit is not None
    session.engine.queues.purge(queue, only_ask=True)
    began_ms, removed, noted = session.now_ms(), 0, 0

    def look() -> list[tuple[Peeked, RecordKey | None]]:
        some = islice(session.every(queue), _NOTED_AT_ONCE) if says_which else ()
        return [
            (replace(one, body=""), reading.read(session, one).key) for one in some
        ]  # calls users' functions, so no lock is held

    def still() -> tuple[list[str], list[Row]]:
        """The messages that were found and are still in the queue, and the rows of those whose key is known."""
        now = session.engine.queues.find([one.message_id for one, _ in found]) if found else []
        there = [pair for pair, one in zip(found, now, strict=True) if one is not None and one.queue == queue]
        rows = [
            session.row("removed", key=key, message=one, reason_text=reason_text)
            for one, key in there
            if key is not None
        ]
        return [one.message_id for one, _ in there], rows

    def remove() -> tuple[int, int]:
        message_ids, rows = still()
        gone = sum(session.engine.queues.remove(message_ids))
        session.engine.ledger.append(rows)
        return gone, len(rows)

    def finish() -> int:
        _, rows = still()
        total = session.engine.queues.purge(queue) + removed
        without = total - noted - len(rows) if says_which else 0
        row = session.row("purge", queue=queue, count=total, not_noted=without or None, reason_text=reason_text)
        session.engine.ledger.append([*rows, row])
        return total

    found = look()
    while len(found) == _NOTED_AT_ONCE and found[-1][0].sent_at_ms <= began_ms:  # does not chase a busy sender
        gone, written = session.together(remove)
        removed, noted = removed + gone, noted + written
        found = look()
    purged = session.together(finish)
    kinds = roles(session.settings())
    for source in (queue, *kinds.dead.get(queue, ()), *kinds.held.get(queue, ())):
        if source in kinds.sources:
            groups.let_go_of_empty(session, source)
    return purged


def kept_keys(session: AdminSession, queue: str) -> str | None:
    """A note that a purge leaves the keys of `unique` jobs, if a send cannot look for a message; None if it can."""
    if session.engine.commit is not None:
        return None
    whose = "jobs with unique=True"
    if session.jobs is not None:
        kinds = roles(session.settings())
        served = {queue, *kinds.dead.get(queue, ()), *kinds.held.get(queue, ())}
        names = [name for name, job in session.jobs.named.items() if job.unique and job.policy.queue in served]
        if not names:
            return None
        whose = ", ".join(names)
    return (
        f"On these queues a send cannot see that a message is gone: the keys of {whose} stay known. One that no worker "
        "claimed is free when its message would have expired. `onefold dlq purge` with the app frees those of the dead "
        "letters it deletes."
    )


# -- moves -----------------------------------------------------------------------------------------------------------


def start_move(
    session: AdminSession,
    source: str,
    *,
    to: str | None = None,
    per_second: int | None = None,
    reason_text: str | None = None,
) -> MoveTask:
    """Begin to move all messages of a dead-letter queue, as SQS's message move task does; the outcome is not watched.

    Args:
        to: the queue to move to; None sends each message back where it came from.
        per_second: 1 to 500; None: as fast as possible.

    Raises:
        UsageError: it is not a dead-letter queue; a task runs already; or it holds messages of a stopped group, whose
            order a task would lose. NotFoundError: the queue does not exist.
    """

    def write() -> MoveTask:
        for queue in roles(session.settings()).dead.get(source, ()) if to is None else (to,):
            for one in groups.stopped(session, queue):
                if session.engine.queues.of_group(source, one.group, limit=1):
                    raise errors.UsageError(
                        f"{source} holds messages of group {one.group!r} of {queue}, which is stopped.",
                        meaning="A task moves them while others arrive, so the group's order would be lost. "
                        "Nothing was moved.",
                        todo=f"Send the group back with `onefold dlq redrive --group {redact.shell_word(one.group)}` first.",
                    )
        task = session.engine.queues.start_move(source, to, per_second)
        where = to or "(where each came from)"
        session.record("redrive", queue=source, to=where, task=task.handle, count=task.to_move, reason_text=reason_text)
        return task

    return session.together(write)


def carry_move(session: AdminSession, task: MoveTask, report: Callable[[MoveTask], None]) -> MoveTask:
    """Carry out a task until it ends, reporting after each step. Workers do the same while they run."""
    while task.status == "RUNNING":
        if session.engine.queues.step_moves():
            session.engine.notify()
        task = next((one for one in session.engine.queues.moves(task.source) if one.handle == task.handle), task)
        report(task)
        if task.status == "RUNNING":
            session.clock.wait(session.never, _STEP_MS)
    return task


def move_tasks(session: AdminSession, source: str | None = None) -> list[MoveTask]:
    """The move tasks of one dead-letter queue, or of all, newest first.

    Raises:
        NotFoundError: the queue does not exist.
    """
    names = [source] if source is not None else sorted(roles(session.settings()).dead)
    tasks = [task for name in names for task in session.engine.queues.moves(name)]
    return sorted(tasks, key=lambda task: -task.started_at_ms)


def cancel_move(session: AdminSession, handle: str) -> MoveTask:
    """Stop a running task; what moved stays moved.

    Raises:
        NotFoundError: the task does not exist. UsageError: it has ended.
    """
    return session.engine.queues.cancel_move(handle)


# -- settings --------------------------------------------------------------------------------------------------------


def drift(session: AdminSession, declared: Sequence[QueueSettings]) -> list[Drift]:
    """Where the engine's queues differ from what an app declares; a queue that does not exist yet is not a difference."""
    existing = session.settings()
    found = []
    for one in declared:
        stored = existing.get(one.name)
        if stored is not None and stored != one:
            text = differing(stored, one)
            found.append(Drift(queue=one.name, differences=tuple(differences(stored, one)), text=text))
    return found


def apply(session: AdminSession, declared: Sequence[QueueSettings], *, reason_text: str | None = None) -> list[Drift]:
    """Give the engine's queues the settings that an app declares; returns what was different.

    In `declared`, dead-letter and held queues come before the queues that they serve.

    Raises:
        UsageError: a change that cannot be made (another type, a retention that no longer fits).
    """
    changed = drift(session, declared)
    names = {one.queue for one in changed}
    existing = session.settings()
    for one in declared:
        if one.name in names:
            session.engine.queues.change(one)
            text = "; ".join(next(each.differences for each in changed if each.queue == one.name))
            session.record("settings", queue=one.name, changed=text, reason_text=reason_text)
        elif one.name not in existing:
            session.engine.queues.create(one)
    return changed
