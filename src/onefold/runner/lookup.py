"""Looks up one operation of a job, or one guarded call: its state and result; also cancels it, or waits for its end.

For people, `onefold why` shows the whole history. Where messages cannot be read without receiving them (SQS), an
operation that no worker has claimed yet is `absent`.
Never here: output, other jobs' operations. Invariant: a lookup changes nothing; what has started is not cancelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from onefold import duration, errors
from onefold.contracts.ledger import Row
from onefold.contracts.queue import JOB_ATTRIBUTE
from onefold.contracts.store import Record, RecordKey
from onefold.record.aliases import chosen, other_names
from onefold.runtime.outgoing import known_of, transaction

if TYPE_CHECKING:
    from collections.abc import Collection

    from onefold.codec import PayloadCodec
    from onefold.contracts.admin import Peeked
    from onefold.contracts.verbs import Store
    from onefold.record.keys import KeyRule
    from onefold.runtime.runtime import Runtime

R = TypeVar("R")

_LOOKED_AT: Final = 1_000
_AGAIN_MS: Final = 50
_ENDS: Final = frozenset({"done", "dead", "held"})


class Known(Struct, Generic[R], frozen=True, kw_only=True):
    """What is known of an operation.

    Args:
        job, key: the operation.
        state: `absent` (never sent, or forgotten; or its message was cancelled, purged or has expired before it was done),
            `waiting` (to be run, or run again), `running`, `done`, `held` (a person decides), or `dead` (in a dead-letter
            queue, or its attempts are used up).
        result: what the handler returned; None unless it is done.
        attempts: runs so far in the present budget.
        changed_at_ms: when its record last changed, milliseconds since the epoch; None if there is no record.
        why: the last failure, on one line; None if there is none.
        expires_at_ms: when its record expires; None if it does not, or there is no record.
    """

    job: str
    key: str
    state: Literal["absent", "waiting", "running", "done", "held", "dead"]
    result: R | None = None
    attempts: int = 0
    changed_at_ms: int | None = None
    why: str | None = None
    expires_at_ms: int | None = None


class JobView(Generic[R]):
    """What a lookup needs to know of a job, or of a guarded function.

    Args:
        name: the job's name. aliases: its earlier names. queue: where its messages are; empty for calls.
        payload: reads its results. tenant: the rule that gives a payload's scope; None: there are no tenants.
    """

    def __init__(
        self, *, name: str, aliases: Collection[str], queue: str, payload: PayloadCodec[Any], tenant: KeyRule | None
    ) -> None:
        self.name, self.aliases, self.queue = name, aliases, queue
        self.names = (name, *aliases)
        self.payload, self.tenant = payload, tenant


def look(runtime: Runtime, job: JobView[R], key: str, tenant: str) -> Known[R]:
    """See `Job.look`."""
    named = RecordKey(tenant, job.name, key)
    return _look(runtime, job, _recorded(runtime.engine.store, job, named, runtime.steady.now_ms()))


def _recorded(store: Store, job: JobView[Any], key: RecordKey, now_ms: int) -> RecordKey:
    """The key of an operation's record, under whichever name of the job, or of the function, it is.

    Raises:
        UsageError: the key is not a text.
    """
    if not isinstance(key.key, str):
        raise errors.UsageError(
            f"{key.key!r:.80} is not a key: it is a {type(key.key).__name__}.",
            meaning=f"An operation of {job.name} is named by its key, a text, and not by its payload.",
            todo="Its key is in the receipt of its send: job.send(payload).key"
            if job.queue
            else "Pass the text that the key rule of the function makes of its arguments.",
        )
    if not job.aliases:
        return key
    return chosen(key, store.read([key, *other_names(key, job.names)], now_ms))


def _look(runtime: Runtime, job: JobView[R], key: RecordKey) -> Known[R]:
    (record,) = runtime.engine.store.read([key], runtime.steady.now_ms())
    if record is None:
        found = _messages(runtime, job, key)
        alive = any(one.queue == job.queue for one in found)
        return Known(job=job.name, key=key.key, state="waiting" if alive else "dead" if found else "absent")
    known = _known(job, record, key)
    if known.state not in ("waiting", "dead") or runtime.engine.commit is None:
        return known
    if known.state == "waiting" and record.message_id is not None:  # found by its id, without reading all messages
        (message,) = runtime.engine.queues.find([record.message_id])
        if message is not None and message.queue == job.queue:
            return known
    found = _messages(runtime, job, key)
    if any(one.queue == job.queue for one in found):
        return replace(known, state="waiting")  # a dead letter was sent back
    if found or known.state == "dead":
        return replace(known, state="dead")
    if runtime.engine.store.read([key], runtime.steady.now_ms()) != [record]:
        return _look(runtime, job, key)  # it ran meanwhile
    return replace(known, state="absent")


def look_at_call(store: Store, job: JobView[R], key: RecordKey, now_ms: int) -> Known[R]:
    """Like `look`, for a guarded function: `job` reads what its calls return."""
    (record,) = store.read([_recorded(store, job, key, now_ms)], now_ms)
    return Known(job=job.name, key=key.key, state="absent") if record is None else _known(job, record, key)


def _known(job: JobView[R], record: Record, key: RecordKey) -> Known[R]:
    state: Any = known_of(record)
    if state == "failed" or (state == "waiting" and record.budget_closed):
        state = "dead" if record.budget_closed else "waiting"
    done = state == "done" and record.result is not None
    return Known(
        job=job.name,
        key=key.key,
        state=state,
        result=job.payload.decode_result(record.result) if done and record.result is not None else None,
        attempts=record.attempts,
        changed_at_ms=record.updated_at_ms,
        why=None if state == "done" else _why(record),
        expires_at_ms=record.expires_at_ms,
    )


def _why(record: Record) -> str | None:
    failure = record.failure
    return None if failure is None else f"{failure.error}: {failure.summary}"


def _messages(runtime: Runtime, job: JobView[Any], key: RecordKey) -> list[Peeked]:
    """The operation's messages, wherever they are; none if the queues cannot be read."""
    if runtime.engine.commit is None:
        return []
    found = runtime.engine.queues.find_key(key.key, _LOOKED_AT)
    return [one for one in found if _is_of(job, one) and _scope_of(job, one) in (key.scope, None)]


def _is_of(job: JobView[Any], message: Peeked) -> bool:
    named = message.attributes.get(JOB_ATTRIBUTE)
    return named is not None and named.value in job.names


def cancel(runtime: Runtime, job: JobView[Any], key: str, tenant: str) -> bool:
    """See `Job.cancel`."""
    named = RecordKey(tenant, job.name, key)
    record_key = _recorded(runtime.engine.store, job, named, runtime.steady.now_ms())
    if runtime.engine.commit is None:
        raise errors.UsageError(
            f"{job.name}.cancel({key!r}) cannot be done on this engine.",
            meaning="SQS cannot find a message by its key. Nothing was changed.",
            todo="Let the handler check whether its work is still wanted, and return if it is not.",
        )

    def remove() -> bool:
        if _look(runtime, job, record_key).state in ("running", "done", "held"):
            return False
        waiting = [
            one
            for one in _messages(runtime, job, record_key)
            if one.queue == job.queue and one.state != "in_flight" and _scope_of(job, one) is not None
        ]
        removed = runtime.engine.queues.remove([one.message_id for one in waiting])
        rows = [
            Row(
                at_ms=runtime.steady.now_ms(), event="removed", key=record_key, queue=one.queue, message_id=one.message_id,
                run=None, actor=runtime.owner, detail={"by": "cancel"},
            )
            for one, is_gone in zip(waiting, removed, strict=True)
            if is_gone
        ]  # fmt: skip
        if rows:
            runtime.engine.ledger.append(rows)
        return bool(rows)

    return transaction(runtime.engine, remove)


def _scope_of(job: JobView[Any], message: Peeked) -> str | None:
    """The tenant of a message; None if its body cannot be read."""
    if job.tenant is None:
        return ""
    try:
        return job.tenant.of(job.payload.decode(message.body))
    except errors.PayloadError:
        return None


def wait(runtime: Runtime, job: JobView[R], key: str, tenant: str, timeout: duration.Duration) -> Known[R]:
    """See `Job.wait`."""
    clock, never = runtime.steady, runtime.never()
    until_ms = clock.monotonic_ms() + duration.to_ms(timeout, "timeout")
    while True:
        known = look(runtime, job, key, tenant)
        left_ms = until_ms - clock.monotonic_ms()
        if _has_ended(known, left_ms, timeout):
            return known
        clock.wait(never, min(left_ms, _AGAIN_MS))


async def await_end(runtime: Runtime, job: JobView[R], key: str, tenant: str, within: duration.Duration) -> Known[R]:
    """See `Job.await_end`."""
    clock = runtime.steady
    until_ms = clock.monotonic_ms() + duration.to_ms(within, "timeout")
    while True:
        known = await runtime.in_thread(lambda: look(runtime, job, key, tenant))
        if _has_ended(known, until_ms - clock.monotonic_ms(), within):
            return known
        await runtime.pause(_AGAIN_MS)


def _has_ended(known: Known[Any], left_ms: int, timeout: duration.Duration) -> bool:
    if known.state in _ENDS:
        return True
    if left_ms > 0:
        return False
    if known.state == "absent":
        gone = known.changed_at_ms is not None
        raise errors.TransientError(
            f"{known.job} {known.key!r} is not done within {timeout}: "
            + ("no message of it is left." if gone else "nothing is known of it."),
            meaning="It was cancelled or purged, or its message has expired."
            if gone
            else "It was not sent, or it was sent to another engine.",
            todo="Send it, and check the key and the engine's URL.",
        )
    raise errors.TransientError(
        f"{known.job} {known.key!r} is not done within {timeout}: it is {known.state}.",
        meaning="Nothing was changed; it goes on.",
        todo=f"Is a worker running? `onefold why {known.key}` shows what happened so far.",
    )
