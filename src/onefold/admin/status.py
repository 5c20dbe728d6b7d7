"""`status`: how many messages wait, how fast they are processed, and what needs a person. It receives nothing.

There are few warnings, and each says what to do: a stopped group, a paused job, dead letters about to expire, held outcomes,
and messages that wait while none is processed (an idle queue causes no warning).
Never here: single messages, output. Invariant: reading changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold import limits, redact
from onefold.admin import groups, held, jobs, stuck
from onefold.admin import outbox as outboxes
from onefold.admin import queues as engine_queues
from onefold.admin.outbox import OutboxStatus
from onefold.admin.session import AdminSession
from onefold.contracts.admin import Peeked, Roles, roles
from onefold.contracts.documents import reader
from onefold.contracts.queue import APP_ATTRIBUTE, JOB_ATTRIBUTE
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import REPAIRED_GROUPS
from onefold.contracts.store import Record
from onefold.engines import urls
from onefold.observe.operation_state import QUEUE_RENAMED
from onefold.observe.readings import QueueReading, read_queues
from onefold.observe.wording import age, counted
from onefold.runner import orphans

_EXPIRES_SOON_MS = limits.DAY_MS  # a dead letter that expires sooner is a warning
_HELD_EXPIRES_SOON_MS = 3 * limits.DAY_MS  # a person must decide before that, and there are weekends
_LATE_MS = 10 * limits.SECOND_MS  # a relay takes one second
_NOBODY_MS = limits.MINUTE_MS  # messages that wait longer while nothing is done or in flight are a warning
_REPAIR_SHOWN_MS = 14 * limits.DAY_MS
_REPAIRED_NAME = "onefold-repaired-"  # names of groups that a repair made begin with this (engines/sqlite/sql/0004)
_GROUP_CHARS_MAX = 40  # of a group in a command: a longer command would wrap in a terminal
_LOOKED_AT = 1_000  # how many of a queue's oldest dead letters are read to find which expires first


class QueueStatus(Struct, frozen=True, kw_only=True):
    """One queue with its companions.

    Args:
        queue, fifo: its name, and whether it is FIFO.
        visible, in_flight, delayed: messages.
        oldest_age_ms: of the oldest message that is not delayed; None if there is none.
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


class Warning(Struct, frozen=True, kw_only=True):  # noqa: A001 - read as status.Warning
    """Something that needs a person.

    Args:
        code: a stable name, for programs. text: what is wrong. todo: the next command.
        queue: the queue it is about; None if only the text names it.
    """

    code: Literal[
        "group-stopped", "job-paused", "expires-soon", "dead-letters", "held", "held-calls", "held-expires-soon",
        "held-message-gone", "nobody-works",
        "own-dead-letters", "no-job", "no-receiver", "stuck", "settings-differ", "groups-repaired",
        "outbox-refused", "outbox-late",
    ]  # fmt: skip
    text: str
    todo: str
    queue: str | None = None


class _Repaired(Struct, frozen=True):
    at_ms: int
    messages: list[str]


_repaired_of = reader(_Repaired, None)


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
    left = left_behind(session, names)
    left_in = {one.queue for one in left}  # these get no other warnings: no worker of this app receives from them
    held = queue is None or any(one.held for one in queues)
    parked = session.engine.records.scan(parked=True, limit=_LOOKED_AT) if held else []
    waits = outboxes.status_of(session) if queue is None else None
    warnings = (
        *_held(session, queues, parked),
        *_held_calls(session, queue, parked),
        *_held_gone(session, queue, parked),
        *_endless([kinds.sources[name] for name in names]),
        *(one.warning for one in stopped if one.flag.queue in names),
        *_paused(session, {one.job for one in found}),
        *_dead(queues),
        *_held_expire(queues),
        *left,
        *_stuck(session, queue),
        *_nobody([one for one in queues if one.queue not in left_in], found),
        *no_job(session, [name for name in names if name not in left_in]),
        *_repaired(session, queue),
        *_differing(session, queue),
        *_outbox(waits),
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


def _held(session: AdminSession, queues: tuple[QueueStatus, ...], parked: list[Record]) -> list[Warning]:
    jobs = {one.key.job: session.job(one.key.job) for one in parked}
    known = Counter(job.policy.queue for one in parked if (job := jobs[one.key.job]) is not None and _took_effect(one))
    return [
        Warning(
            code="held",
            text=f"{counted(one.held, 'message')} of {one.queue} held: {_doubt(one.held, known[one.queue])}",
            todo="onefold held list",
        )
        for one in queues
        if one.held
    ]


def _took_effect(record: Record) -> bool:
    return record.failure is not None and record.failure.took_effect


def _doubt(count: int, known: int) -> str:
    """Why messages or operations are held; `known`: how many of them are known to have taken effect."""
    if not known:
        return f"it is unknown whether {'its effect' if count == 1 else 'their effects'} happened."
    if count == 1:
        return "its effect happened, and its result could not be recorded."
    if known >= count:
        return "their effects happened, and their results could not be recorded."
    return f"the effect of {counted(known, 'operation')} happened, only the result is missing; of the others it is unknown."


def _held_calls(session: AdminSession, queue: str | None, parked: list[Record]) -> list[Warning]:
    """Held operations without a message (calls under @once); on an engine without queues, all that are held."""
    found = [one for one in parked if queue is None and (one.message_id is None or not session.has_queues)]
    if not found:
        return []
    what = "call" if session.has_queues else "operation"
    return [
        Warning(
            code="held-calls",
            text=f"{counted(len(found), what)} held: {_doubt(len(found), sum(map(_took_effect, found)))}",
            todo="onefold held list",
        )
    ]


def _held_gone(session: AdminSession, queue: str | None, parked: list[Record]) -> list[Warning]:
    """Held operations whose message has expired or was deleted: settled as not done, nothing would run."""
    if queue is not None or session.engine.commit is None:  # elsewhere a message cannot be found without receiving it
        return []
    ids = [one.message_id for one in parked if one.message_id is not None]
    if not any(one is None for one in session.engine.queues.find(ids)):
        return []
    gone = [one for one in held.listed(session) if one.message_gone]  # a duplicate may be left of the others
    if not gone:
        return []
    return [
        Warning(
            code="held-message-gone",
            text=f"{counted(len(gone), 'held operation')} without a message, which has expired or was deleted; the first is"
            f" {gone[0].job} {gone[0].key}. Settled as not done, an operation like that runs only if it is sent again.",
            todo="onefold held list",
        )
    ]


def _endless(sources: list[QueueSettings]) -> list[Warning]:
    return [
        Warning(
            code="own-dead-letters",
            text=f"{one.name} is its own dead-letter queue: a message that is never deleted is delivered again without end.",
            todo="give it another dead-letter queue (SetQueueAttributes, RedrivePolicy)",
        )
        for one in sources
        if one.dead_letter == one.name
    ]


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


def _held_expire(queues: tuple[QueueStatus, ...]) -> list[Warning]:
    """Held messages that expire soon: settled as not done after that, nothing of them is left to run."""
    return [
        Warning(
            code="held-expires-soon",
            text=f"{'The' if one.held == 1 else f'The first of {one.held:,}'} held message{'' if one.held == 1 else 's'} of"
            f" {one.queue} expires in {age(one.held_expires_in_ms)}; after that it runs only if it is sent again.",
            todo="onefold held list",
        )
        for one in queues
        if one.held_expires_in_ms is not None and one.held_expires_in_ms < _HELD_EXPIRES_SOON_MS
    ]


def waiting_in_vain(session: AdminSession) -> list[Warning]:
    """Messages of working queues that no worker takes: `left_behind` and `no_job`."""
    names = sorted(roles(session.settings()).sources)
    left = left_behind(session, names)
    left_in = {one.queue for one in left}
    return [*left, *no_job(session, [name for name in names if name not in left_in])]


def left_behind(session: AdminSession, names: Sequence[str] | None = None) -> list[Warning]:
    """Messages for this app in queues on which it declares no job, so that its workers never receive them.

    For example, the queue was renamed.

    Args:
        names: of working queues; None for all. Queues of SQS are not read, because that would receive the messages:
            instead, queues with the prefix of the engine's URL are named, and only if `names` is given, because listing
            them takes an operator's permissions.
    """
    if session.jobs is None:
        return []
    served = {job.policy.queue for job in session.jobs.named.values()}
    if session.engine.commit is None:
        return _undeclared(session, [name for name in names or () if name not in served])
    apps = {job.app for job in session.jobs.named.values()}
    result = []
    for name in sorted(roles(session.settings()).sources) if names is None else names:
        if name in served:
            continue
        mine = [one for one in session.engine.queues.peek(name, limit=_LOOKED_AT) if _sent_by(one) in apps]
        if not mine:
            continue
        first_ms = min(one.expires_at_ms for one in mine) - session.now_ms()
        is_one = len(mine) == 1
        known = sorted({redact.one_line(str(one.attributes[JOB_ATTRIBUTE].value)) for one in mine})
        text = (
            f"{counted(len(mine), 'message')} for {', '.join(known)} {'is' if is_one else 'are'} in queue {name}, on "
        )
        text += "which this app declares no job: its workers do not receive from it. "
        text += f"{'It' if is_one else 'The first'} is deleted in {age(max(first_ms, 0))}."
        result.append(Warning(code="no-receiver", text=text, todo=QUEUE_RENAMED, queue=name))
    return result


def _undeclared(session: AdminSession, names: Sequence[str]) -> list[Warning]:
    """Queues of SQS with messages on which the app declares no job; empty without a prefix: they may be anybody's."""
    url = session.engine.url
    if not names or not url.startswith("aws://") or not urls.read_aws(url).prefix:
        return []
    result = []
    for name, depth in zip(names, session.engine.queues.depths(names), strict=True):
        waiting = depth.visible + depth.delayed if depth is not None else 0
        if waiting:
            text = (
                f"About {counted(waiting, 'message')} {'is' if waiting == 1 else 'are'} in queue {name}, on which this"
            )
            text += (
                " app declares no job: its workers do not receive from it. Perhaps another app with this prefix does."
            )
            result.append(Warning(code="no-receiver", text=text, todo=QUEUE_RENAMED, queue=name))
    return result


def _sent_by(message: Peeked) -> str | None:
    """The app whose job a message names; None if it names none."""
    app = message.attributes.get(APP_ATTRIBUTE) if JOB_ATTRIBUTE in message.attributes else None
    return str(app.value) if app is not None else None


def no_job(session: AdminSession, names: Sequence[str]) -> list[Warning]:
    """Waiting messages that workers have seen recently and that none of their jobs takes."""
    state, now_ms = session.engine.state, session.now_ms()
    declared = session.jobs.named if session.jobs is not None else {}
    result = []
    for name, found in zip(names, state.get([orphans.PLACE + name for name in names]) if names else (), strict=True):
        noted = orphans.decoded(found.value) if found is not None else {}
        fresh = {job: one for job, one in noted.items() if now_ms - one.at_ms < orphans.FRESH_MS}
        for job, one in _still_waiting(session, name, fresh).items():
            seen = f"Messages of {name} wait for job {redact.one_line(job)}, "
            seen += f"the last one seen {age(now_ms - one.at_ms)} ago by a worker"
            given_up = f"It goes to the dead-letter queue in {age(max(one.ends_at_ms - now_ms, 0))}."
            own = next((each for each in declared.values() if job in (each.name, f"{each.name} of {each.app}")), None)
            if own is not None and (other := jobs.who_has_name(session, own)):
                text = (
                    f"{seen} that does not take it. This app declares the job, but its name belongs to {other} on this "
                )
                text += f"store: a worker of this app is refused. {given_up}"
                todo = "Give each app a file of its own (url=...). If the job moved: "
                todo += redact.command("onefold names give", own.name, f"--to {redact.shell_word(own.app)}")
            elif own is not None:
                text = f"{seen} that does not take it. {given_up}"
                todo = "This app declares the job. Start a worker: onefold worker <module>:<app>"
            else:
                text, todo = f"{seen} that does not take it: {one.why} {given_up}", f"onefold why {one.message_id}"
            result.append(Warning(code="no-job", text=text, todo=todo))
    return result


def _still_waiting(
    session: AdminSession, queue: str, noted: Mapping[str, orphans.WaitingForJob]
) -> Mapping[str, orphans.WaitingForJob]:
    """The notes about jobs whose messages are still in the queue, each with such a message.

    A queue of SQS cannot be read without receiving: there all notes count until the queue is empty.
    """
    depth = session.engine.queues.depth(queue) if noted else None
    if depth is None or not depth.visible + depth.in_flight + depth.delayed:
        return {}
    if session.engine.commit is None:
        return noted
    result = {}
    named = session.engine.queues.find([one.message_id for one in noted.values()])
    others: list[Peeked] | None = None
    for (job, one), message in zip(noted.items(), named, strict=True):
        if message is not None and message.queue == queue:
            result[job] = one
            continue
        others = session.engine.queues.peek(queue, limit=_LOOKED_AT) if others is None else others
        if alike := next((other for other in others if orphans.name_of(other.attributes) == job), None):
            why = one.why.replace(one.message_id, alike.message_id)
            ends_at_ms = alike.sent_at_ms + orphans.patience_ms(session.settings()[queue])
            result[job] = replace(one, message_id=alike.message_id, why=why, ends_at_ms=ends_at_ms)
    return result


def _repaired(session: AdminSession, queue: str | None) -> list[Warning]:
    """What the repair of a damaged file found: shown for two weeks, and as long as one of its messages exists."""
    (found,) = session.engine.state.get([REPAIRED_GROUPS]) if session.engine.commit is not None else (None,)
    noted = _repaired_of(found.value) if found is not None else None
    if noted is None:
        return []
    there = [
        one for one in session.engine.queues.find(noted.messages) if one is not None and queue in (None, one.queue)
    ]
    if not there and (queue is not None or session.now_ms() - noted.at_ms > _REPAIR_SHOWN_MS):
        return []
    text = (
        f"{counted(len(noted.messages), 'FIFO message')} had lost the group's row (a defect of earlier versions), so no "
        f"worker of the queue received them. They are in groups of their own now ({_REPAIRED_NAME}...) and may run after "
        f"later messages of the groups they were sent to. Still there: {len(there)}."
    )
    todo = f"onefold why {there[0].message_id}" if there else "Check whether their order mattered."
    return [Warning(code="groups-repaired", text=text, todo=todo)]


def _outbox(found: OutboxStatus | None) -> list[Warning]:
    """Messages that have waited long in the outbox, or were refused there."""
    result = []
    if found is not None and found.refused:
        text = f"{counted(found.refused, 'message')} in the outbox of {found.url} refused: column `refused` has the reason."
        todo = "Correct and set refused to NULL, or delete: SELECT id, queue, refused FROM onefold_outbox"
        result.append(Warning(code="outbox-refused", text=text, todo=todo))
    late_ms = 0 if found is None else found.oldest_age_ms or 0
    if found is not None and (found.trouble is not None or late_ms > _LATE_MS):
        text = f"{counted(found.waiting, 'message')} in the outbox of {found.url}, the oldest for {age(late_ms)}."
        if found.trouble is not None:
            text = f"The outbox of the app cannot be read: {found.trouble}"
        todo = "Is a worker running? onefold worker <module>:<app>, or onefold relay <module>:<app>"
        result.append(Warning(code="outbox-late", text=text, todo=todo))
    return result


def _differing(session: AdminSession, queue: str | None) -> list[Warning]:
    """Queues whose settings differ from the app's declaration."""
    declared = session.jobs.queues if session.jobs is not None else ()
    return [
        Warning(code="settings-differ", text=one.text, todo="onefold queue apply")
        for one in engine_queues.drift(session, declared)
        if queue in (None, one.queue)
    ]


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
        if one.visible and not one.in_flight and one.oldest_age_ms is not None and one.oldest_age_ms >= _NOBODY_MS
        if (one.queue if one.queue in known else None) not in active
    ]


def _stuck(session: AdminSession, queue: str | None) -> list[Warning]:
    """What `stuck` lists, as one warning: how many runs, and the most important of them."""
    found = [
        one
        for one in stuck.runs(session)
        if queue is None or ((job := session.job(one.job)) is not None and job.policy.queue == queue)
    ]
    if not found:
        return []
    first = min(
        found, key=lambda one: one.resolves
    )  # the first one that nothing but a person brings back, if there is one
    text = f"{counted(len(found), 'run')} {'is' if len(found) == 1 else 'are'} stuck"
    text += f": {first.job} {first.key}. " if len(found) == 1 else f", among them {first.job} {first.key}. "
    text += f"{first.explanation[0].upper()}{first.explanation[1:].removesuffix('.')}"
    return [Warning(code="stuck", text=text + ("" if text.endswith("?") else "."), todo="onefold stuck")]
