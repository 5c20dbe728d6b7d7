"""`why`: everything that is known about a key, as one history per operation.

Gathers record, history and messages, and hands them to `observe/timeline.py` and `observe/operation_state.py`. An unknown
key gets an answer too: what that can mean, and keys that look similar. Never here: wording of steps, output.
Invariant: reading changes nothing. On SQS, looking into a working queue is a receive, which counts towards its maximum
receive count: messages that wait there are searched only when a person asks for it (`receive`), and the answer says which
queues were not searched.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from onefold import limits, owner_process
from onefold.admin import groups, jobs, reading
from onefold.admin.session import AdminSession
from onefold.contracts.admin import Peeked, roles
from onefold.contracts.store import Record, RecordKey
from onefold.observe.operation_state import StateName, state_of
from onefold.observe.timeline import Evidence, Line, alone, left_out, lines
from onefold.observe.wording import instant
from onefold.runner import runs

_MESSAGES_MAX = 50  # how many messages of one key are shown
_DEPTHS_MAX = 8  # queues whose message counts are shown
_NEAR_RECORDS = 500  # recent keys that a misspelt key is compared with
_NEAR_MESSAGES = 200  # per queue
_MESSAGE_ID = r"[0-9a-f]{16}-[0-9]{1,19}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # of a file, of SQS
_LOOKED_BACK_MS = (limits.MINUTE_MS, 10 * limits.MINUTE_MS, limits.HOUR_MS, limits.DAY_MS, 14 * limits.DAY_MS)
"""How far back the history is searched for a message: the first rows of each stretch."""


class Explanation(Struct, frozen=True, kw_only=True):
    """One operation.

    Args:
        job, tenant, key: those of the operation.
        state: one word (see `observe/operation_state.py`). text: the same as a sentence. todo: what to do next.
        lines: what happened, oldest first.
        left_out: what is not recorded at this history level.
        result: the stored result, JSON; None if it is not done.
        messages: ids of its messages that are still in some queue.
    """

    job: str
    tenant: str
    key: str
    state: StateName = field(name="place")  # the name in JSON
    text: str
    todo: tuple[str, ...]
    lines: tuple[Line, ...]
    left_out: str
    result: str | None
    messages: tuple[str, ...]


class Instead(Struct, frozen=True, kw_only=True):
    """What else a name is that was given as a key.

    Args:
        kind: `schedule`, `run` or `map-run`. text: the same in words. todo: the commands that report on it.
    """

    kind: Literal["schedule", "run", "map-run"]
    text: str
    todo: tuple[str, ...]


class WhyAnswer(Struct, frozen=True, kw_only=True):
    """What is known of a key.

    Args:
        key: as asked for. url: the URL of the engine that was searched.
        stories: one per operation; none if the key is unknown.
        meanings: what it can mean that the key is unknown; empty otherwise.
        not_asked: why it is not known whether one of its messages waits; empty if known.
        near: keys that look similar.
        instead: what else has this name; None if nothing has.
        is_of_others: the key is known, but not for the job or tenant that was asked for.
    """

    key: str
    url: str
    stories: tuple[Explanation, ...]
    meanings: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    not_asked: str = ""
    instead: Instead | None = None
    is_of_others: bool = False


def explain(
    session: AdminSession,
    key: str,
    *,
    job: str | None = None,
    tenant: str | None = None,
    schedules: Collection[str] = (),
    say: Callable[[int], str] = instant,
    receive: bool = False,
) -> WhyAnswer:
    """The story of every operation with this key.

    Args:
        key: the business key, or a message id.
        job, tenant: only operations of that job, that tenant.
        schedules: names of the app's schedules.
        say: formats instants inside sentences.
        receive: search working queues of SQS too: each search receives up to 10,000 messages, which counts
            towards the queue's dead-letter queue, and hides them for up to a minute.
    """
    closed = session.closed_queues()
    found = _of_key(session, key, closed if receive else ())
    if not found:
        found = _of_message(session, key, closed if receive else ())
    chosen = [
        (one, messages) for one, messages in found.items() if job in (None, one.job) and tenant in (None, one.scope)
    ]
    if not chosen:
        meanings = _meanings(list(found), job, tenant, has_queues=session.has_queues, is_file=not closed)
        if not found and session.jobs is not None and session.jobs.outbox is not None:
            meanings += (
                "It was sent with `connection=` in a transaction that was rolled back, or that is not committed yet.",
            )
        if not found and re.fullmatch(_MESSAGE_ID, key):
            meanings += (
                "It is the id of a message that is gone, and not of one of the latest operations: ask by its key.",
            )
        return WhyAnswer(
            key=key,
            url=session.url,
            stories=(),
            meanings=meanings,
            near=_near(session, key, closed) if not found else (),
            is_of_others=bool(found),
            not_asked="" if found else _not_asked(session, () if receive else closed),
            instead=None if found else _instead(session, key, schedules),
        )
    keys = [one for one, _ in chosen]
    records = session.engine.store.read(keys, session.now_ms())
    is_one_of_many = sum(record.parked for record in session.engine.records.find(key)) > 1
    stories = [
        _story(
            replace(
                _evidence(session, one, record, messages, say, () if receive else closed), is_one_of_many=is_one_of_many
            )
        )
        for (one, messages), record in zip(chosen, records, strict=True)
    ]
    return WhyAnswer(key=key, url=session.url, stories=tuple(stories))


def history(session: AdminSession, key: RecordKey, say: Callable[[int], str] = instant) -> list[Line]:
    """What the ledger alone has about an operation, oldest first."""
    return lines(_evidence(session, key, None, (), say))


def _not_asked(session: AdminSession, closed: Sequence[str]) -> str:
    """Why it is not known whether a message waits; empty if known."""
    if not session.has_queues:
        return "Whether a message of it waits is not known here: this is a store for records. Name the app."
    if not closed:
        return ""
    depths = {name: session.engine.queues.depth(name) for name in closed[:_DEPTHS_MAX]}
    some = ", ".join(f"{name}: {one.visible + one.in_flight + one.delayed}" for name, one in depths.items())
    more = f" and {len(closed) - _DEPTHS_MAX} more queues" if len(closed) > _DEPTHS_MAX else ""
    return (
        "Whether a message of it waits cannot be known on SQS without receiving all that wait "
        f"(messages there now: {some}{more}); --receive does that."
    )


def _evidence(
    session: AdminSession,
    key: RecordKey,
    record: Record | None,
    messages: Sequence[Peeked],
    say: Callable[[int], str],
    closed: Sequence[str] = (),
) -> Evidence:
    kinds, declared = roles(session.settings()), session.job(key.job)
    paused = {one.job: one.until_ms for one in jobs.paused(session)}
    read_only = session.engine.commit is not None  # as a send of a unique job: whether a message with its key exists
    return Evidence(
        key=key,
        record=record,
        rows=session.engine.ledger.of_key(key),
        messages=messages,
        policy=declared.policy if declared is not None else None,
        history=session.jobs.history if session.jobs is not None else None,
        dead=frozenset(kinds.dead),
        held=frozenset(kinds.held),
        now_ms=session.now_ms(),
        paused_until_ms=paused.get(key.job),
        owner_dead=record is not None and record.owner in session.engine.dead([record.owner]),
        stopped_process=session.engine.stopped_process(record) if record is not None else None,
        owner_is_here=record is not None and owner_process.is_here(record.owner),
        say=say,
        not_asked=_not_asked(session, closed) if not messages else "",
        is_declared=session.jobs is None or declared is not None,
        is_received=declared is None
        or all(one.queue == declared.policy.queue for one in messages if one.queue in kinds.sources),
        is_blocked=False if read_only else declared.unique if declared is not None else None,
        way_back=groups.ways_back(session) if any(one.queue in kinds.dead for one in messages) else alone,
    )


def _story(evidence: Evidence) -> Explanation:
    state = state_of(evidence)
    record = evidence.record
    return Explanation(
        job=evidence.key.job,
        tenant=evidence.key.scope,
        key=evidence.key.key,
        state=state.state,
        text=state.text,
        todo=state.todo,
        lines=tuple(lines(evidence)),
        left_out=left_out(evidence),
        result=record.result.decode() if record is not None and record.result is not None else None,
        messages=tuple(message.message_id for message in evidence.messages),
    )


def _of_key(session: AdminSession, key: str, received: Sequence[str] = ()) -> dict[RecordKey, list[Peeked]]:
    """Operations with this key, each with its messages; the queues `received` are searched by receiving from them."""
    records = session.engine.records.find(key)
    found: dict[RecordKey, list[Peeked]] = {record.key: [] for record in records}
    found |= {one: [] for one in session.engine.ledger.find_keys(key) if one not in found}
    messages = {one.message_id: one for one in session.engine.queues.find_key(key, limit=_MESSAGES_MAX)}
    for queue in received:
        messages |= {one.message_id: one for one in session.every(queue) if key in (one.key, one.message_id)}
    served = [record.message_id for record in records if record.message_id and record.message_id not in messages]
    messages |= {one.message_id: one for one in session.engine.queues.find(served) if one is not None}
    for message in messages.values():
        known_as = reading.read(session, message)
        name = (
            known_as.key
            if known_as.key is not None
            else _by_record(records, message) or RecordKey("", known_as.job or "?", key)
        )
        found.setdefault(name, []).append(message)
    return found


def _by_record(records: Sequence[Record], message: Peeked) -> RecordKey | None:
    return next((record.key for record in records if record.message_id == message.message_id), None)


def _of_message(session: AdminSession, message_id: str, received: Sequence[str] = ()) -> dict[RecordKey, list[Peeked]]:
    """The operation of a message, if a message id was given instead of a key."""
    message = session.engine.queues.find([message_id])[0]
    if message is None:
        key = _key_of_message(session, message_id)
        own = _of_key(session, key.key, received) if key else {}
        return {one: messages for one, messages in own.items() if one == key}
    known_as = reading.read(session, message)
    if known_as.key is None:
        return {RecordKey("", known_as.job or "?", message.key or message_id): [message]}
    found = _of_key(session, known_as.key.key, received)
    return {one: messages for one, messages in found.items() if one == known_as.key} or {known_as.key: [message]}


def _key_of_message(session: AdminSession, message_id: str) -> RecordKey | None:
    """The operation of a message that is gone, if one of the latest records or history rows names it."""
    if re.fullmatch(_MESSAGE_ID, message_id) is None:
        return None
    records = session.engine.records.scan(limit=_NEAR_RECORDS)
    if key := next((record.key for record in records if record.message_id == message_id), None):
        return key
    now_ms = session.now_ms()
    for since_ms in _LOOKED_BACK_MS:
        for row in session.engine.ledger.between(now_ms - since_ms, now_ms + 1):
            if row.key is not None and (row.message_id == message_id or row.detail.get("message_id") == message_id):
                return row.key
    return None


def _instead(session: AdminSession, name: str, schedules: Collection[str]) -> Instead | None:
    """The schedule or run of this name."""
    state, shown = session.engine.state, shlex.quote(name)
    state_names = [f"schedule/{name}", runs.state_name(name), f"{runs.MAP_PREFIX}{name}"]
    of_schedule, run, of_map = state.get(state_names) if len(name) <= runs.NAME_CHARS_MAX else (None, None, None)
    if of_map is not None:
        return Instead(kind="map-run", text=f"{name!r} is a map run.", todo=(f"onefold map show {shown}",))
    if run is not None:
        return Instead(kind="run", text=f"{name!r} is a run.", todo=(f"onefold runs show {shown}",))
    if name in schedules or of_schedule is not None:
        date = instant(session.now_ms())[:10]
        todo = (f"onefold why {shown} {date}", "onefold runs list")
        return Instead(kind="schedule", text=f"{name!r} is a schedule: ask about it on a date.", todo=todo)
    return None


def _meanings(
    known: Sequence[RecordKey], job: str | None, tenant: str | None, *, has_queues: bool, is_file: bool
) -> tuple[str, ...]:
    if known:
        there = ", ".join(f"{one.job}" + (f" (tenant {one.scope})" if one.scope else "") for one in known)
        asked = " ".join(part for part in (f"job {job}" if job else "", f"tenant {tenant}" if tenant else "") if part)
        return (f"The key is known, but not for {asked}: it belongs to {there}.",)
    if not has_queues:
        return (
            "No function was called with it, or its calls are kept elsewhere: another prefix, schema, table or database.",
            "It is spelt differently: keys are compared letter by letter, and made by the function's key rule.",
            "It is long over: its record has expired and its history was cleared away.",
        )
    return (
        "It was never sent, or sent to another engine: "
        + (
            "a relative path starts at the folder that the sender ran in."
            if is_file
            else "another region, account, prefix or record store."
        ),
        "It is spelt differently: keys are compared letter by letter, and made by the job's key rule.",
        "It was sent inside a handler that has not completed: such messages are sent only with its record.",
        "It is long over: its record has expired and its history was cleared away.",
        "Its message could not be read, so it has no key: see `onefold dlq list --reason malformed`.",
    )


def _near(session: AdminSession, key: str, closed: Sequence[str]) -> tuple[str, ...]:
    """Recent keys that look like this one, including messages' keys, except where reading is a receive (`closed`)."""
    keys = dict.fromkeys(record.key.key for record in session.engine.records.scan(limit=_NEAR_RECORDS))
    for queue in session.settings():
        if queue in closed:
            continue
        keys |= dict.fromkeys(one.key for one in islice(session.every(queue), _NEAR_MESSAGES) if one.key is not None)
    alike: dict[str, list[str]] = {}
    keys.pop(key, None)
    for one in keys:
        alike.setdefault(one.casefold(), []).append(one)
    parts = [one for one in alike if one.endswith(f"/{key.casefold()}")]  # of a map run, or a day: 2026-11-28/o-17
    near = [*parts[:5], *difflib.get_close_matches(key.casefold(), alike, n=5, cutoff=0.6)]
    return tuple(dict.fromkeys(one for each in near for one in alike[each]))[:5]
