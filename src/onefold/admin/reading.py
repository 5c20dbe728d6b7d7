"""A stored message, read as the guard will read it: which operation it belongs to, and what a delivery would do now.

The forecast runs the same functions that decide deliveries (`contracts/transitions.claim` and `record/guard.answer`) on a
copy of the record. So a dry run and the run agree, unless something changes between the two. Without an app the job's
policy is not known, and the answer to whatever depends on it is "unknown", with the reason.
Never here: changing anything. Invariant: reading a message twice gives the same answer while nothing else changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from onefold import errors, payload_defaults
from onefold.admin.session import AdminSession
from onefold.codec import Compared, PayloadCodec, says_fields
from onefold.contracts import store, transitions
from onefold.contracts.admin import Peeked
from onefold.contracts.queue import (
    AMENDS_ATTRIBUTE,
    JOB_ATTRIBUTE,
    KEY_ATTRIBUTE,
    Ack,
    Attribute,
    Delivery,
    MoveTo,
    RetryIn,
)
from onefold.contracts.store import RecordKey
from onefold.observe.wording import age, pause
from onefold.record import guard
from onefold.record.aliases import chosen, other_names
from onefold.record.delivery import Policy
from onefold.runner.versions import marked, version_of

ExpectedOutcome = Literal[
    "run", "answered", "waits", "unknown", "held", "conflict", "malformed", "comes-back", "no-job"
]

_KEEP_MS = 1  # how long a claim's result is kept; it is only computed here, and nothing is written


class Reading(Struct, frozen=True, kw_only=True):
    """What is known about a message.

    Args:
        job: the job's name, if known.
        key: the operation; None if not known.
        fingerprint: the fingerprint of its payload; None if not known.
        amends: fingerprint of the payload it replaces, after an edit.
        problem: why it cannot be read as a payload, or which app it is for; empty if it can be read.
        outcome: `malformed` or `no-job` when that settles it already.
        payload: decoded as its job's type; None if that is not known.
    """

    job: str | None
    key: RecordKey | None
    fingerprint: str | None
    amends: str | None = None
    problem: str = ""
    outcome: ExpectedOutcome | None = None
    payload: object = None
    compared: Compared | None = None

    def is_of(self, fingerprint: str) -> bool:
        """Whether its payload has that fingerprint, even if one of them leaves out fields that have their defaults."""
        if self.fingerprint == fingerprint:
            return True
        if self.payload is None or self.fingerprint is None:
            return False
        return payload_defaults.is_same(self.payload, self.fingerprint, fingerprint, self.compared)


class Forecast(Struct, frozen=True, kw_only=True):
    """What a delivery of a message would do now.

    Args:
        outcome: `run`; `answered` from the record and deleted; `waits` for a run elsewhere; `unknown`: an earlier run's
            outcome is in doubt and the job's policy decides; `held` again; `conflict`, `malformed`, `comes-back`: to the
            dead-letter queue again; `no-job`: hidden again until a worker has its job.
        why: the reason, in one sentence.
    """

    outcome: ExpectedOutcome = field(name="fate")  # the name in JSON
    why: str


def read(session: AdminSession, message: Peeked) -> Reading:
    """The operation that a message is for, by its app if that is known, else by what the message carries."""
    if session.jobs is None:
        return _read_alone(session, message)
    delivery = delivery_of(message)
    named = session.job(_carried(message, JOB_ATTRIBUTE))
    if named is not None and not any(job.policy.queue == delivery.queue for job in session.jobs.named.values()):
        delivery = replace(
            delivery, queue=named.policy.queue
        )  # it was sent to a dead-letter queue directly: nothing runs it there
    try:
        job = session.jobs.of(delivery)
    except errors.NotFoundError as error:
        return Reading(job=carried_job(message), key=None, fingerprint=None, problem=str(error), outcome="no-job")
    facts, payload = job.read(delivery)
    if facts.malformed is not None:
        return Reading(job=job.name, key=None, fingerprint=None, problem=facts.malformed, outcome="malformed")
    key = facts.key
    if job.aliases and key is not None:
        key = chosen(key, session.engine.store.read([key, *other_names(key, job.names)], session.now_ms()))
    return Reading(
        job=job.name,
        key=key,
        fingerprint=facts.fingerprint,
        amends=facts.amends,
        payload=payload,
        compared=job.rules.compared,
    )


def delivery_of(message: Peeked) -> Delivery:
    """A stored message as a worker of its source queue would receive it."""
    return Delivery(
        queue=message.source or message.queue,
        message_id=message.message_id,
        receipt="",
        body=message.body,
        attributes=message.attributes,
        receive_count=message.receive_count,
        sent_at_ms=message.sent_at_ms,
        first_received_at_ms=message.first_received_at_ms or message.sent_at_ms,
        received_at_ms=message.sent_at_ms,
        visible_ms=0,
        group=message.group,
        dedup_id=message.dedup_id,
        sequence=message.sequence,
        key=message.key,
        source=message.source,
        reason=message.reason,
        trusted=message.trusted,
    )


def _carried(message: Peeked, name: str) -> str | None:
    attribute = message.attributes.get(name)
    return str(attribute.value) if attribute is not None else None


def carried_job(message: Peeked) -> str | None:
    """The job that a message names."""
    return _carried(message, JOB_ATTRIBUTE) or (message.reason.job if message.reason is not None else None)


def _read_alone(session: AdminSession, message: Peeked) -> Reading:
    """The reading without an app: job and key as the message carries them, the tenant from the one record that fits."""
    job = carried_job(message)
    claimed = _carried(message, KEY_ATTRIBUTE) if message.trusted else None
    noted = message.reason.key if message.reason is not None else None  # noted by the worker that read the body
    key = claimed or noted or message.key
    if job is None or key is None:
        missing = "job" if job is None else "key"
        return Reading(
            job=job,
            key=None,
            fingerprint=None,
            problem=f"The message does not say its {missing}; name the app.",
        )
    fitting = [record.key for record in session.engine.records.find(key) if record.key.job == job]
    if len(fitting) > 1:
        scopes = ", ".join(sorted(one.scope or "(none)" for one in fitting))
        return Reading(
            job=job, key=None, fingerprint=None, problem=f"Tenants {scopes} all have this key; name the app."
        )
    fingerprint = None
    is_compared = any(
        says_fields(one.fingerprint) for one in session.engine.store.read(fitting, session.now_ms()) if one
    )
    if (
        JOB_ATTRIBUTE in message.attributes and not is_compared
    ):  # onefold sent it: its body is the payload, without an envelope
        try:
            fingerprint = marked(PayloadCodec.fingerprint(message.body), version_of(message.attributes))
        except errors.PayloadError as error:
            return Reading(job=job, key=None, fingerprint=None, problem=error.what, outcome="malformed")
    return Reading(
        job=job,
        key=fitting[0] if fitting else RecordKey("", job, key),
        fingerprint=fingerprint,
        amends=_carried(message, AMENDS_ATTRIBUTE) if message.trusted else None,
    )


def record_of(session: AdminSession, known: Reading) -> store.Record | None:
    """The current record of a message's operation; None if the operation is not known or has no record."""
    return session.engine.store.read([known.key], session.now_ms())[0] if known.key is not None else None


def forecast(session: AdminSession, messages: Sequence[Peeked]) -> list[Forecast]:
    """What a delivery of each message would do now; two messages of one operation get the same answer."""
    readings = [read(session, message) for message in messages]
    keys = [reading.key for reading in readings if reading.key is not None]
    records = dict(zip(keys, session.engine.store.read(keys, session.now_ms()), strict=True)) if keys else {}
    return [foresee(session, reading, records.get(reading.key) if reading.key else None) for reading in readings]


def foresee(session: AdminSession, reading: Reading, record: store.Record | None) -> Forecast:
    """What a delivery with this reading would do if its record is the given one."""
    if reading.outcome is not None:
        return Forecast(outcome=reading.outcome, why=reading.problem)
    if reading.key is None:
        return Forecast(outcome="unknown", why=reading.problem)
    job, now_ms = session.job(reading.job), session.now_ms()
    fingerprint = reading.fingerprint or ""
    if record is not None and (
        not fingerprint
        or reading.is_of(record.fingerprint)
        or (job is not None and job.versions is not None and job.versions.is_other(fingerprint, record.fingerprint))
    ):
        fingerprint = record.fingerprint
    ask = store.Ask(
        key=reading.key,
        fingerprint=fingerprint,
        owner="",
        lease_until_ms=now_ms,
        start=True,
        expires_at_ms=now_ms + _KEEP_MS,
        amends=reading.amends,
    )
    found, _ = transitions.claim(record, ask, now_ms)
    if job is None:
        return _without_policy(found, now_ms)
    decided = guard.answer(found, job.policy, now_ms, reading.key.key, fingerprint)
    if isinstance(decided, guard.Go):
        return _goes(decided, found, job.policy)
    match decided.settle:
        case Ack():
            return _without_policy(found, now_ms)
        case RetryIn():
            return _without_policy(found, now_ms)
        case MoveTo(to="held") as move:
            if isinstance(found, store.Held):
                return _without_policy(found, now_ms)
            return Forecast(
                outcome="unknown", why=f"Would be held for a person (on_unknown=hold). {move.reason.summary}"
            )
        case MoveTo() as move:
            outcome: ExpectedOutcome = "conflict" if move.reason.kind == "conflict" else "comes-back"
            return Forecast(outcome=outcome, why=f"({move.reason.kind}) {move.reason.summary}")
        case _:
            raise errors.InvariantBroken(f"A claim was answered with {decided.settle!r}.")


def _goes(decided: guard.Go, found: store.Answer, policy: Policy) -> Forecast:
    assert isinstance(found, store.Claimed)
    if decided.how == "probe":
        return Forecast(outcome="unknown", why="An earlier run's outcome is unknown; the job's probe is asked first.")
    if found.doubt and policy.effect != "transactional":
        return Forecast(
            outcome="unknown",
            why="An earlier run's outcome is unknown; it would run again (on_unknown=rerun).",
        )
    return _fresh(found)


def _fresh(found: store.Claimed) -> Forecast:
    if found.found == "absent":
        return Forecast(outcome="run", why="Nothing is recorded under its key.")
    word = "taken over" if found.found in ("in_progress", "unknown") else found.found
    return Forecast(outcome="run", why=f"Its record is {word}; this would be attempt {max(found.attempts, 1)}.")


def _without_policy(found: store.Answer, now_ms: int) -> Forecast:
    """What the record alone decides, whatever the job's policy."""
    match found:
        case store.Claimed(doubt=True):
            return Forecast(
                outcome="unknown",
                why="An earlier run's outcome is unknown; the job's on_unknown decides. Name the app.",
            )
        case store.Claimed():
            return _fresh(found)
        case store.Completed():
            ago = age(now_ms - found.completed_at_ms)
            whose = f" by message {found.message_id}" if found.message_id is not None else ""
            return Forecast(outcome="answered", why=f"Done {ago} ago{whose}; it would be deleted, not run.")
        case store.Running():
            left = pause(max(found.until_ms - now_ms, 0))
            return Forecast(
                outcome="waits", why=f"It is running elsewhere (owner {found.owner}, lease ends in {left})."
            )
        case store.Held():
            ago = age(now_ms - found.since_ms)
            return Forecast(outcome="held", why=f"Its key has been held for a person for {ago}; settle that first.")
        case store.Unreadable():
            return Forecast(outcome="waits", why=found.what)
        case store.Conflict():
            return Forecast(
                outcome="conflict",
                why=f"Its key was used with another payload (message {found.message_id}, now {found.status}).",
            )


def as_if(message: Peeked, body: str, attributes: Mapping[str, Attribute]) -> Peeked:
    """The message as it would be with another body and other attributes."""
    return replace(message, body=body, attributes=attributes)


def unchanged(session: AdminSession, messages: Sequence[Peeked]) -> list[bool]:
    """Whether each message is still in its queue with the same contents; call it in the transaction that changes them.

    Always True on SQS, where messages can only be read by receiving them: an edit or a move makes a message with another id.
    """
    if session.engine.commit is None:
        return [True] * len(messages)
    now = session.engine.queues.find([one.message_id for one in messages])
    return [
        one is not None and (one.queue, one.body, one.attributes) == (seen.queue, seen.body, seen.attributes)
        for seen, one in zip(messages, now, strict=True)
    ]


def remove_unchanged(session: AdminSession, messages: Sequence[Peeked]) -> list[bool]:
    """Delete messages, except those that were edited, moved or deleted since they were read; call it in a transaction."""
    same = unchanged(session, messages)
    ids = [one.message_id for one, is_same in zip(messages, same, strict=True) if is_same]
    removed = iter(session.engine.queues.remove(ids))
    return [is_same and next(removed) for is_same in same]
