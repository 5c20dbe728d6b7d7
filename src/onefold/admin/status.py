"""`status`: how much waits, how fast it is done, and what needs a person. One look, without receiving anything.

Warnings are few and each says what to do: a stopped group, a paused job, dead letters about to expire, held outcomes, and
messages that wait while nothing is done (idle is not the same as dead).
Never here: single messages, output. Invariant: asking changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, json
from msgspec.structs import replace

from onefold import limits, redact
from onefold.admin import groups, jobs
from onefold.admin import queues as engine_queues
from onefold.admin.session import AdminSession, Roles, roles
from onefold.contracts.admin import Peeked
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import REPAIRED_GROUPS
from onefold.contracts.store import Record
from onefold.observe.operation_state import HANGS
from onefold.observe.wording import age, counted, pause
from onefold.runner import orphans

_EXPIRES_SOON_MS = limits.DAY_MS  # a dead letter with less left than that is a warning
_NOBODY_MS = limits.MINUTE_MS  # waiting for so long while nothing is done or in flight: is a worker running?
_REPAIR_SHOWN_MS = 14 * limits.DAY_MS
_REPAIRED_NAME = "onefold-repaired-"  # what the names of groups that a repair made begin with (engines/sqlite/sql/0004)
_GROUP_CHARS_MAX = 40  # of a group in a command: a longer one would go on at the start of a terminal's next line
_LOOKED_AT = 1_000  # the oldest dead letters of a queue that are looked at for what expires first


class QueueStatus(Struct, frozen=True, kw_only=True):
    """One queue with its companions.

    Args:
        queue, fifo: which.
        visible, in_flight, delayed: messages.
        oldest_age_ms: of the oldest message that is not delayed; None when there is none.
        dead, dead_expires_in_ms: dead letters, and until the first of them is gone.
        held: messages whose outcome is unknown.
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
    stopped_groups: int


class JobStatus(Struct, frozen=True, kw_only=True):
    """One job.

    Args:
        job: its name. queue: where its messages come from; None where its app is not known.
        done_last_minute, done_last_hour: runs that completed.
        paused_until_ms: when its circuit breaker tries again; None when it is not paused.
    """

    job: str
    queue: str | None
    done_last_minute: int
    done_last_hour: int
    paused_until_ms: int | None


class Warning(Struct, frozen=True, kw_only=True):  # noqa: A001 - read as status.Warning
    """Something that needs a person.

    Args:
        code: stable name, for machines. text: what. todo: the next command.
    """

    code: Literal[
        "group-stopped", "job-paused", "expires-soon", "held", "held-calls", "nobody-works", "own-dead-letters", "no-job",
        "settings-differ", "groups-repaired",
    ]  # fmt: skip
    text: str
    todo: str


class _Repaired(Struct, frozen=True):
    at_ms: int
    messages: list[str]


class Status(Struct, frozen=True, kw_only=True):
    """The state of an engine.

    Args:
        url, at_ms: which, and when.
        has_queues: False for a store for records, where there is never one.
        queues, jobs: each by name. warnings: what needs a person, most urgent first.
    """

    url: str
    at_ms: int
    queues: tuple[QueueStatus, ...]
    jobs: tuple[JobStatus, ...]
    warnings: tuple[Warning, ...]
    has_queues: bool = True


def status(session: AdminSession, queue: str | None = None) -> Status:
    """The state of the engine now.

    Args:
        queue: only this one; None for all.

    Raises:
        NotFoundError: no such queue.
    """
    settings = session.settings()
    kinds = roles(settings)
    if queue is not None:
        session.engine.queues.depth(queue)  # says which queues there are when this is none
    names = [name for name in sorted(kinds.sources) if queue in (None, name)]
    stopped = _stopped(session, kinds, groups.stopped(session))
    queues = tuple(_queue(session, kinds.sources[name], stopped) for name in names)
    found = _jobs(session, queue)
    held = queue is None or any(one.held for one in queues)
    parked = session.engine.records.scan(parked=True, limit=_LOOKED_AT) if held else []
    warnings = (
        *_held(session, queues, parked),
        *_held_calls(session, queue, parked),
        *_endless([kinds.sources[name] for name in names]),
        *(one.warning for one in stopped if one.flag.queue in names),
        *_paused(session, {one.job for one in found}),
        *_expiring(queues),
        *_nobody(queues, found),
        *no_job(session, names),
        *_repaired(session, queue),
        *_differing(session, queue),
    )
    return Status(
        url=session.url,
        at_ms=session.now_ms(),
        queues=queues,
        jobs=found,
        warnings=warnings,
        has_queues=session.has_queues,
    )


def _queue(session: AdminSession, settings: QueueSettings, stopped: Sequence[_StoppedGroup]) -> QueueStatus:
    queues = session.engine.queues
    depth = queues.depth(settings.name)
    dead_letter = settings.dead_letter if settings.dead_letter != settings.name else None
    dead = _count(session, dead_letter)
    expires_ms = None
    if dead and dead_letter is not None:
        oldest = queues.peek(dead_letter, limit=_LOOKED_AT)
        expires_ms = min((one.expires_at_ms for one in oldest), default=None)
    return QueueStatus(
        queue=settings.name,
        fifo=settings.fifo,
        visible=depth.visible,
        in_flight=depth.in_flight,
        delayed=depth.delayed,
        oldest_age_ms=depth.oldest_age_ms,
        dead=dead,
        dead_expires_in_ms=expires_ms - session.now_ms() if expires_ms is not None else None,
        held=_count(session, settings.held),
        stopped_groups=sum(1 for one in stopped if one.flag.queue == settings.name),
    )


def _count(session: AdminSession, queue: str | None) -> int:
    if queue is None:
        return 0
    depth = session.engine.queues.depth(queue)
    return depth.visible + depth.in_flight + depth.delayed


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
    """Why something is held; `known`: operations whose effect is known to have happened."""
    if not known:
        return f"it is unknown whether {'its effect' if count == 1 else 'their effects'} happened."
    if count == 1:
        return "its effect happened, and its result could not be recorded."
    if known >= count:
        return "their effects happened, and their results could not be recorded."
    return f"the effect of {counted(known, 'operation')} happened, only the result is missing; of the others it is unknown."


def _held_calls(session: AdminSession, queue: str | None, parked: list[Record]) -> list[Warning]:
    """Operations without a message (calls under @once), or all that are held of an engine without queues."""
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
    """A stopped group, and what is said of it."""

    flag: groups.Stopped
    warning: Warning


def _stopped(session: AdminSession, kinds: Roles, flags: Sequence[groups.Stopped]) -> list[_StoppedGroup]:
    """The groups that wait for a person: not those whose first message was sent back and waits for a worker."""
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
        if dead_letter is not None and session.engine.commit is not None:  # SQS shows ten of a group, by receiving them
            dead = session.engine.queues.of_group(dead_letter, flag.group, limit=_LOOKED_AT)
            later = sum(1 for one in dead if one.message_id != flag.by)
        if later:
            text += (
                f"{counted(later, 'later message')} {'is' if later == 1 else 'are'} in the dead-letter queue with it."
            )
        elif by is None and session.engine.commit is not None:
            text += "no dead letter of it is left, and its next message follows to the dead-letter queue all the same."
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


def _expiring(queues: tuple[QueueStatus, ...]) -> list[Warning]:
    return [
        Warning(
            code="expires-soon",
            text=f"The first of {counted(one.dead, 'dead letter')} of {one.queue} expires in "
            f"{age(one.dead_expires_in_ms)}.",
            todo=f"onefold dlq list --queue {one.queue}",
        )
        for one in queues
        if one.dead_expires_in_ms is not None and one.dead_expires_in_ms < _EXPIRES_SOON_MS
    ]


def no_job(session: AdminSession, names: Sequence[str]) -> list[Warning]:
    """Messages that workers looked at lately, that no job of theirs takes, and that still wait."""
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
    """What was noted of jobs whose messages are still in the queue, with a message that is.

    Nobody can look into a queue of SQS without receiving: there all of it counts until the queue is empty.
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
    """What the repair of a damaged file found: for two weeks, and for as long as a message of it is there."""
    (found,) = session.engine.state.get([REPAIRED_GROUPS]) if session.engine.commit is not None else (None,)
    if found is None:
        return []
    noted = json.decode(found.value, type=_Repaired)
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


def _differing(session: AdminSession, queue: str | None) -> list[Warning]:
    """Queues whose settings are not those that the app declares."""
    declared = session.jobs.queues if session.jobs is not None else ()
    return [
        Warning(code="settings-differ", text=one.text, todo="onefold queue apply")
        for one in engine_queues.drift(session, declared)
        if queue in (None, one.queue)
    ]


def _nobody(queues: tuple[QueueStatus, ...], found: tuple[JobStatus, ...]) -> list[Warning]:
    """Messages wait, none is in flight, nothing was done: said per queue, for the jobs that are not paused anyway."""
    if any(one.done_last_minute for one in found) or any(one.paused_until_ms is not None for one in found):
        return []
    return [
        Warning(
            code="nobody-works",
            text=f"{counted(one.visible, 'message')} of {one.queue} wait, the oldest for {age(one.oldest_age_ms)}, and "
            "nothing was done in the last minute.",
            todo="Is a worker running? onefold worker <module>:<app>",
        )
        for one in queues
        if one.visible and not one.in_flight and one.oldest_age_ms is not None and one.oldest_age_ms >= _NOBODY_MS
    ]


# -- runs that went silent -------------------------------------------------------------------------------------------


class StuckRun(Struct, frozen=True, kw_only=True):
    """A run whose process has ended or whose lease is over, and that was not taken over yet; or one past its timeout.

    Args:
        job, tenant, key: the operation. owner: id of the process that had it.
        silent_ms: since its lease was over; 0 when it is not, but its process has ended or its handler is late.
        explanation: what happens next, and when.
        resolves: whether that happens by itself.
    """

    job: str
    tenant: str
    key: str
    owner: str
    silent_ms: int
    explanation: str
    resolves: bool


def stuck(session: AdminSession) -> list[StuckRun]:
    """Runs that may need somebody, each explained, longest silent first.

    Those whose process has ended or whose lease is over, and that nobody has taken over; and, where the app is known, those
    whose handler has passed its timeout and has not ended.
    """
    now_ms = session.now_ms()
    found = []
    records = session.engine.records.scan(status="in_progress", limit=1_000)
    asked = session.has_queues and not session.closed_queues()
    dead = session.engine.dead({record.owner for record in records})
    for record in records:
        if record.lease_until_ms > now_ms and record.owner not in dead:
            if (late := _late(session, record, now_ms)) is not None:
                found.append(late)
            continue
        message = session.engine.queues.find([record.message_id])[0] if record.message_id is not None else None
        text, resolves = _what_happens_next(
            message,
            now_ms,
            is_dead=record.owner in dead,
            left_ms=record.lease_until_ms - now_ms,
            may_wait=record.message_id is not None and not asked,
        )
        found.append(
            StuckRun(
                job=record.key.job,
                tenant=record.key.scope,
                key=record.key.key,
                owner=record.owner,
                silent_ms=max(now_ms - record.lease_until_ms, 0),
                explanation=text,
                resolves=resolves,
            )
        )
    return sorted(found, key=lambda one: -one.silent_ms)


def _late(session: AdminSession, record: Record, now_ms: int) -> StuckRun | None:
    """A run under way whose handler has passed its timeout; None where it has not, or its job is not known."""
    job = session.job(record.key.job)
    if job is None or record.started_at_ms is None or record.started_fence != record.fence:
        return None
    running_ms, timeout_ms = now_ms - record.started_at_ms, job.policy.timeout_ms
    if running_ms < timeout_ms:
        return None
    return StuckRun(
        job=record.key.job,
        tenant=record.key.scope,
        key=record.key.key,
        owner=record.owner,
        silent_ms=0,
        explanation=f"its handler has run for {age(running_ms)} by owner {record.owner}, past its timeout of "
        f"{pause(timeout_ms)}, and its lease is renewed: nothing else runs this key. {HANGS}",
        resolves=False,
    )


def _what_happens_next(
    message: Peeked | None, now_ms: int, *, is_dead: bool, left_ms: int, may_wait: bool = False
) -> tuple[str, bool]:
    if message is None and may_wait:
        ended = "its process has ended; " if is_dead else ""
        text = (
            f"{ended}its message (not looked for: that would receive it) is visible again when its visibility timeout is "
            "over, and a worker then takes the run over; is one running?"
        )
        return text, True
    if message is None:
        ended = "its process has ended, and " if is_dead else ""
        wait = f"; its lease ends in {pause(left_ms)}, and a call waits for that" if left_ms > 0 else ""
        return f"{ended}no message is left to take it over; call or send it again with the same key{wait}", False
    if is_dead and message.visible_at_ms > now_ms:
        return (
            "its process has ended: a worker on this machine frees its message and takes it over; is one running?",
            True,
        )
    if message.visible_at_ms > now_ms:
        wait = pause(message.visible_at_ms - now_ms)
        return f"its message is visible again in {wait}, and whoever receives it takes the run over", True
    since = age(now_ms - message.visible_at_ms)
    return (
        f"its message has been visible for {since}: a worker that receives it takes the run over; is one running?",
        True,
    )
