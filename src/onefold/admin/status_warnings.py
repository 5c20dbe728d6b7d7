"""What `status` warns of beyond numbers: messages that no worker takes, what is held, and what else needs a person.

Each warning says what is wrong and what to do. Never here: counting (`status.py`), output. Invariant: reading changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, limits, redact
from onefold.admin import held as holds
from onefold.admin import jobs, stuck
from onefold.admin import queues as engine_queues
from onefold.admin.outbox import OutboxStatus
from onefold.admin.queues import QueueStatus
from onefold.admin.session import AdminSession
from onefold.contracts.admin import Peeked, roles
from onefold.contracts.documents import reader
from onefold.contracts.queue import APP_ATTRIBUTE, JOB_ATTRIBUTE
from onefold.contracts.settings import QueueSettings
from onefold.contracts.state import REPAIRED_GROUPS
from onefold.contracts.store import Record, RecordKey
from onefold.engines import urls
from onefold.observe.operation_state import QUEUE_RENAMED
from onefold.observe.readings import rows
from onefold.observe.wording import age, counted
from onefold.runner import orphans
from onefold.schedules.ticks import ScheduleState
from onefold.schedules.transactions import PREFIX as SCHEDULES

_HELD_EXPIRES_SOON_MS = 3 * limits.DAY_MS  # a person must decide before that, and there are weekends
_LATE_MS = 10 * limits.SECOND_MS  # a relay takes one second
_REPAIR_SHOWN_MS = 14 * limits.DAY_MS
_REPAIRED_NAME = "onefold-repaired-"  # names of groups that a repair made begin with this (engines/sqlite/sql/0004)
_UNREADABLE_MS = 10 * limits.MINUTE_MS  # a message whose record cannot be read is retried every five (record/guard.py)
_ROWS_MAX = 20_000  # rows of the history that are read to find such records
_READ_MAX = 100  # such records that are read, one by one
_LOOKED_AT = 1_000  # how many of a queue's oldest dead letters are read to find which expires first


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
        "outbox-refused", "outbox-late", "record-unreadable",
        "schedule-paused",
    ]  # fmt: skip
    text: str
    todo: str
    queue: str | None = None


class _Repaired(Struct, frozen=True):
    at_ms: int
    messages: list[str]


_schedule_of = reader(ScheduleState, None)
_repaired_of = reader(_Repaired, None)


def held(session: AdminSession, queues: tuple[QueueStatus, ...], parked: list[Record]) -> list[Warning]:
    """What is held of each queue: operations, and how many messages they have with their duplicates."""
    of_messages = [one for one in parked if one.message_id is not None]
    jobs = {one.key.job: session.job(one.key.job) for one in of_messages}
    several = sum(1 for one in queues if one.held) > 1
    result = []
    for queue in queues:
        own = [
            one
            for one in of_messages
            if (job.policy.queue == queue.queue if (job := jobs[one.key.job]) is not None else not several)
        ]
        if not queue.held:
            continue
        known, count = sum(map(_took_effect, own)), len(own)
        # Where the operations are another app's, or too many to read, only messages are counted.
        if not 0 < count <= queue.held or len(parked) == _LOOKED_AT:
            text = (
                f"{counted(queue.held, 'message')} of {queue.queue} held: {_doubt(queue.held, min(known, queue.held))}"
            )
        else:
            also = f" ({queue.held:,} messages)" if queue.held > count else ""
            text = f"{counted(count, 'operation')} of {queue.queue} held{also}: {_doubt(count, known)}"
        result.append(Warning(code="held", text=text, todo="onefold held list"))
    return result


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
    return f"the effect of {counted(known, 'operation')} happened, only the result is missing; for the others it is unknown."


def held_calls(session: AdminSession, queue: str | None, parked: list[Record]) -> list[Warning]:
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


def held_gone(session: AdminSession, queue: str | None, parked: list[Record]) -> list[Warning]:
    """Held operations whose message has expired or was deleted: settled as not done, nothing would run."""
    if queue is not None or session.engine.commit is None:  # elsewhere a message cannot be found without receiving it
        return []
    ids = [one.message_id for one in parked if one.message_id is not None]
    if not any(one is None for one in session.engine.queues.find(ids)):
        return []
    gone = [one for one in holds.listed(session) if one.message_gone]  # a duplicate may be left of the others
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


def held_expire(queues: tuple[QueueStatus, ...]) -> list[Warning]:
    """Held messages that expire soon: if they are settled as not done after that, no message is left to run."""
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


def endless(sources: list[QueueSettings]) -> list[Warning]:
    """Queues that are their own dead-letter queues."""
    return [
        Warning(
            code="own-dead-letters",
            text=f"{one.name} is its own dead-letter queue: a message that is never deleted is delivered again without end.",
            todo="give it another dead-letter queue (SetQueueAttributes, RedrivePolicy)",
        )
        for one in sources
        if one.dead_letter == one.name
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


def unreadable(session: AdminSession, queues: Sequence[QueueStatus]) -> list[Warning]:
    """Records that workers could not read lately, and that still cannot be read; their messages are hidden meanwhile."""
    if not any(one.in_flight for one in queues):
        return []
    names, now_ms = {one.queue for one in queues}, session.now_ms()
    recent = islice(rows(session.engine.ledger, now_ms - _UNREADABLE_MS, now_ms + 1), _ROWS_MAX)
    seen = {
        row.key for row in recent if row.event == "record-unreadable" and row.queue in names and row.key is not None
    }
    whys: dict[RecordKey, str] = {}
    for key in sorted(seen, key=lambda one: (one.job, one.key))[:_READ_MAX]:
        try:
            session.engine.store.read([key], now_ms)
        except errors.StorageError as error:
            whys[key] = error.what.removesuffix(".")
    if not whys:
        return []
    (first, why), count = next(iter(whys.items())), len(whys)
    known = f"{count}{' or more' if count == _READ_MAX else ''}"
    text = f"{'1 record' if count == 1 else f'{known} records'} cannot be read, so nothing runs under "
    text += f"{'its key' if count == 1 else 'their keys'} and the messages wait, five minutes at a time. "
    text += f"{'It is' if count == 1 else 'One is'} that of {first.job} {first.key}: {why}."
    return [Warning(code="record-unreadable", text=text, todo=redact.command("onefold why", first.key))]


def repaired(session: AdminSession, queue: str | None) -> list[Warning]:
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


def paused_schedules(session: AdminSession, queue: str | None) -> list[Warning]:
    """Schedules that a person has paused: they send nothing until somebody resumes them."""
    names = session.engine.state.names(SCHEDULES) if queue is None else []
    found = []
    for name, stored in zip(names, session.engine.state.get(names), strict=True):
        state = None if stored is None else _schedule_of(stored.value)
        if state is not None and state.paused_ms is not None and not state.deleted:
            short = name.removeprefix(SCHEDULES)
            text = f"Schedule {short} of the app {state.app} has been paused for {age(session.now_ms() - state.paused_ms)}."
            found.append(
                Warning(
                    code="schedule-paused", text=text, todo=f"onefold schedule resume {short}   (if it is to go on)"
                )
            )
    return found


def outbox(found: OutboxStatus | None) -> list[Warning]:
    """Messages that have waited long in the outbox, or were refused there."""
    result = []
    if found is not None and found.refused:
        text = f"{counted(found.refused, 'message')} in the outbox of {found.url} refused: column `refused` has the reason."
        todo = "Correct and set refused to NULL, or delete: SELECT id, queue, refused FROM onefold_outbox"
        result.append(Warning(code="outbox-refused", text=text, todo=todo))
    late_ms = 0 if found is None else found.oldest_age_ms or 0
    if found is not None and (found.trouble is not None or late_ms > _LATE_MS):
        text = f"{counted(found.waiting, 'message')} in the outbox of {found.url}, the oldest for {age(late_ms)}."
        todo = "Is a worker running? onefold worker <module>:<app>, or onefold relay <module>:<app>"
        if found.trouble is not None:
            text, todo = f"The outbox of the app cannot be read: {found.trouble}", found.todo or todo
        result.append(Warning(code="outbox-late", text=text, todo=todo))
    return result


def differing(session: AdminSession, queue: str | None) -> list[Warning]:
    """Queues whose settings differ from the app's declaration."""
    declared = session.jobs.queues if session.jobs is not None else ()
    return [
        Warning(code="settings-differ", text=one.text, todo="onefold queue apply")
        for one in engine_queues.drift(session, declared)
        if queue in (None, one.queue)
    ]


def stuck_runs(session: AdminSession, queue: str | None) -> list[Warning]:
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
