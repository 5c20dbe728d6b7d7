"""`status`: how many messages wait, how fast they are processed, and what needs a person. It receives nothing.

There are few warnings, and each says what to do: a stopped group, a paused job, dead letters about to expire, held outcomes,
and messages that wait while none is processed (an idle queue causes no warning).
Never here: single messages, output. Invariant: reading changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from onefold import limits, redact
from onefold.admin import groups, jobs
from onefold.admin import outbox as outboxes
from onefold.admin import status_warnings as warned
from onefold.admin.outbox import OutboxStatus
from onefold.admin.queues import QueueStatus
from onefold.admin.session import AdminSession
from onefold.admin.status_warnings import Warning  # noqa: A004 - of an operator, not of Python
from onefold.contracts.admin import Roles, roles
from onefold.observe.readings import QueueReading, read_queues
from onefold.observe.wording import age, counted

_EXPIRES_SOON_MS = limits.DAY_MS  # a dead letter that expires sooner is a warning
_NOBODY_MS = limits.MINUTE_MS  # messages that wait longer while nothing is done or in flight are a warning
_GROUP_CHARS_MAX = 40  # of a group in a command: a longer command would wrap in a terminal
_LOOKED_AT = 1_000  # how many of a queue's oldest dead letters are read to find which expires first


class JobStatus(Struct, frozen=True, kw_only=True):
    """One job.

    Args:
        job: its name. queue: where its messages come from; None if its app is not known.
        done_last_minute, done_last_hour: runs that completed.
        paused_until_ms: when its circuit breaker tries again; None if it is not paused.
    """

    job: str
    queue: str | None
    done_last_minute: int
    done_last_hour: int
    paused_until_ms: int | None


class Status(Struct, frozen=True, kw_only=True):
    """The state of an engine.

    Args:
        url, at_ms: of the engine, and when it was read.
        has_queues: False for a store for records, which has none. has_records: False for such a store without records.
        outbox: what waits in the app's outbox table; None if it names none.
        queues, jobs: each by name. warnings: what needs a person, most urgent first.
    """

    url: str
    at_ms: int
    queues: tuple[QueueStatus, ...]
    jobs: tuple[JobStatus, ...]
    warnings: tuple[Warning, ...]
    has_queues: bool = True
    has_records: bool = True
    outbox: OutboxStatus | None = None


def status(session: AdminSession, queue: str | None = None) -> Status:
    """The state of the engine now.

    Args:
        queue: only this one; None for all.

    Raises:
        NotFoundError: the queue does not exist.
    """
    settings = session.settings()
    kinds = roles(settings)
    if queue is not None:
        session.engine.queues.depth(queue)  # the error lists the queues if this is not one
    names = [name for name in sorted(kinds.sources) if queue in (None, name)]
    stopped = _stopped(session, kinds, groups.stopped(session))
    queues = tuple(_queue(session, one, stopped) for one in read_queues(session.engine, names))
    found = _jobs(session, queue)
    left = warned.left_behind(session, names)
    left_in = {one.queue for one in left}  # these get no other warnings: no worker of this app receives from them
    held = queue is None or any(one.held for one in queues)
    parked = session.engine.records.scan(parked=True, limit=_LOOKED_AT) if held else []
    waits = outboxes.status_of(session) if queue is None else None
    warnings = (
        *warned.held(session, queues, parked),
        *warned.held_calls(session, queue, parked),
        *warned.held_gone(session, queue, parked),
        *warned.endless([kinds.sources[name] for name in names]),
        *(one.warning for one in stopped if one.flag.queue in names),
        *_paused(session, {one.job for one in found}),
        *warned.paused_schedules(session, queue),
        *_dead(queues),
        *warned.held_expire(queues),
        *left,
        *warned.stuck_runs(session, queue),
        *_nobody([one for one in queues if one.queue not in left_in], found),
        *warned.no_job(session, [name for name in names if name not in left_in]),
        *warned.unreadable(session, queues),
        *warned.repaired(session, queue),
        *warned.differing(session, queue),
        *warned.outbox(waits),
    )
    return Status(
        url=session.url,
        at_ms=session.now_ms(),
        queues=queues,
        jobs=found,
        warnings=warnings,
        has_queues=session.has_queues,
        has_records=session.has_queues or bool(found) or bool(session.engine.records.scan(limit=1)),
        outbox=waits,
    )


def _queue(session: AdminSession, reading: QueueReading, stopped: Sequence[_StoppedGroup]) -> QueueStatus:
    settings = reading.settings
    expires_in_ms = reading.dead_expires_in_ms
    if expires_in_ms is None and reading.dead:
        expires_in_ms = _first_expires_in_ms(session, settings.dead_letter)
    return QueueStatus(
        queue=settings.name,
        fifo=settings.fifo,
        visible=reading.visible,
        in_flight=reading.in_flight,
        delayed=reading.delayed,
        to_retry=reading.to_retry,
        oldest_age_ms=reading.oldest_age_ms,
        dead=reading.dead,
        dead_expires_in_ms=expires_in_ms,
        held=reading.held,
        held_expires_in_ms=_first_expires_in_ms(session, settings.held) if reading.held else None,
        stopped_groups=sum(1 for one in stopped if one.flag.queue == settings.name),
    )


def _first_expires_in_ms(session: AdminSession, queue: str | None) -> int | None:
    """Time until the first of a queue's oldest messages expires."""
    oldest = session.engine.queues.peek(queue, limit=_LOOKED_AT) if queue is not None else ()
    return min((one.expires_at_ms - session.now_ms() for one in oldest), default=None)


def _jobs(session: AdminSession, queue: str | None) -> tuple[JobStatus, ...]:
    now_ms = session.now_ms()
    minute = session.engine.records.count_completed(now_ms - limits.MINUTE_MS, now_ms)
    hour = session.engine.records.count_completed(now_ms - limits.HOUR_MS, now_ms)
    paused = {one.job: one.until_ms for one in jobs.paused(session)}
    declared = {name: job.policy.queue for name, job in session.jobs.named.items()} if session.jobs is not None else {}
    return tuple(
        JobStatus(
            job=name,
            queue=declared.get(name),
            done_last_minute=minute.get(name, 0),
            done_last_hour=hour.get(name, 0),
            paused_until_ms=paused.get(name),
        )
        for name in sorted({*minute, *hour, *paused, *declared})
        if queue is None or declared.get(name) == queue
    )


# -- warnings --------------------------------------------------------------------------------------------------------


class _StoppedGroup(Struct, frozen=True):
    """A stopped group and the warning about it."""

    flag: groups.Stopped
    warning: Warning


def _stopped(session: AdminSession, kinds: Roles, flags: Sequence[groups.Stopped]) -> list[_StoppedGroup]:
    """The groups that wait for a person; not those whose first message was sent back and waits for a worker."""
    result = []
    for flag, by in zip(flags, session.engine.queues.find([one.by for one in flags]), strict=True):
        if by is not None and by.queue == flag.queue:
            continue
        todo = f"onefold dlq list --all --group {redact.shell_word(flag.group)}"
        if len(flag.group) > _GROUP_CHARS_MAX:
            todo = f"onefold dlq list --all --queue {flag.queue} --json   (the group's name is long)"
        text = f"Group {flag.group} of {flag.queue} is stopped by message {flag.by}; "
        dead_letter = kinds.sources[flag.queue].dead_letter if flag.queue in kinds.sources else None
        later = 0
        if dead_letter is not None and session.engine.commit is not None:  # SQS shows ten of a group, by receiving
            dead = session.engine.queues.of_group(dead_letter, flag.group, limit=_LOOKED_AT)
            later = sum(1 for one in dead if one.message_id != flag.by)
        if later:
            text += (
                f"{counted(later, 'later message')} {'is' if later == 1 else 'are'} in the dead-letter queue with it."
            )
        elif by is None and session.engine.commit is not None:
            text += "no dead letter of it is left, and its next message still follows to the dead-letter queue."
            if len(flag.group) <= _GROUP_CHARS_MAX:
                todo = redact.command("onefold dlq redrive --group", flag.group)
        else:
            text += "its later messages follow it to the dead-letter queue."
        if by is not None and by.queue in kinds.held:
            todo = "onefold held list"
            text = text.removesuffix(" with it.") + "." if later else text.replace("follow it to", "go to")
        result.append(_StoppedGroup(flag, Warning(code="group-stopped", text=text, todo=todo)))
    return result


def _paused(session: AdminSession, known: set[str]) -> list[Warning]:
    return [
        Warning(
            code="job-paused",
            text=f"Job {one.job} is paused by its circuit breaker, next try in {age(one.until_ms - session.now_ms())}: "
            f"{one.summary or 'the dependency refuses everything'}",
            todo=f"Fix the dependency. To try at once: onefold resume {one.job}",
        )
        for one in jobs.paused(session)
        if one.job in known
    ]


def _dead(queues: tuple[QueueStatus, ...]) -> list[Warning]:
    """Dead letters, the ones that expire first at the top."""
    found = []
    for one in queues:
        if not one.dead:
            continue
        ends_ms, text = one.dead_expires_in_ms, counted(one.dead, "dead letter")
        soon = ends_ms is not None and ends_ms < _EXPIRES_SOON_MS
        if ends_ms is None:
            text = f"{text} of {one.queue}."
        elif one.dead == 1:
            text = f"{text} of {one.queue} expires in {age(ends_ms)}."
        else:
            text = f"The first of {text} of {one.queue} expires in {age(ends_ms)}."
        todo = f"onefold dlq list --queue {one.queue}"
        found.append(Warning(code="expires-soon" if soon else "dead-letters", text=text, todo=todo))
    return sorted(found, key=lambda one: one.code != "expires-soon")


def _nobody(queues: Sequence[QueueStatus], found: tuple[JobStatus, ...]) -> list[Warning]:
    """Queues whose messages wait while none is in flight; not one of whose jobs one has just run or is paused.

    A job whose queue is not known, because another app declares it, counts for the queues without a known job.
    """
    known = {one.queue for one in found}
    active = {one.queue for one in found if one.done_last_minute or one.paused_until_ms is not None}
    return [
        Warning(
            code="nobody-works",
            text=f"{counted(one.visible, 'message')} of {one.queue} wait, the oldest for {age(one.oldest_age_ms)}, and "
            "none of its jobs completed a run in the last minute.",
            todo="Is a worker running? onefold worker <module>:<app>",
        )
        for one in queues
        if one.visible
        and one.in_flight == (one.to_retry or 0)
        and one.oldest_age_ms is not None
        and one.oldest_age_ms >= _NOBODY_MS
        if (one.queue if one.queue in known else None) not in active
    ]
