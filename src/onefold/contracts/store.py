"""The values of the Store contract: idempotency records, and what its methods (`verbs.py`) take and return.

A record is one operation: scope (tenant) + job + business key. Stores take instants and read no clock; they hold no
policy. Every write names owner and fence; a result of False means that the lease was lost, and must be checked.

    absent/expired --claim--> in_progress --write--> completed | failed | unknown | released
    failed, released, unknown (not parked), in_progress (lease over, or owner dead) --claim--> in_progress, fence + 1

A lease that has ended is not taken from a stopped process, if the store can see that (`Running.stopped`), for up
to 12 hours from the claim or start.

A claim is not a start: `started_fence` names the fence under which the handler was last called. Taking over a run that
had started makes the record doubtful (`doubt`), and so does writing Unknown. Doubt outlives releases, failures and
further takeovers; only a later start, Complete, or a person's decision ends it. `transitions.py` has the rules as code.

`ident_of` encodes an operation as one value, for databases that find records by one column of bytes:

    key of at most 48 bytes   key, 00, N bytes for (scope, job)
    longer                    its first 16 bytes, 16 bytes that identify all of it, 01, N bytes for (scope, job)

The key comes first and unhashed, because indexes sort by it: ascending keys are on neighbouring pages (measured in SQLite at
a million records, batches of 100: a claim costs 9 us, with a plain digest 23), and all operations with one business key are
in one range, whatever their job and scope. N is chosen by each backend and must not change, because values are stored. Equal
values mean equal (scope, job, key), except for collisions of digests.

Never here: message ids as identity, policies, settings of a job. Invariant: row and fence survive a release.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal, Self

from msgspec import Struct

from onefold import errors

Status = Literal["in_progress", "completed", "failed", "unknown", "released"]


class RecordKey(Struct, frozen=True, gc=False):
    """Identifies one operation.

    Args:
        scope: the tenant; empty for none.
        job: the job's name, 1 to 128 characters.
        key: the business key, 1 to 512 characters.
    """

    scope: str
    job: str
    key: str


class Hold(Struct, frozen=True, gc=False):
    """Proof of a claim: every later write must present it.

    Args:
        key: the operation.
        owner: id of the process that claimed.
        fence: 1 or more; grows by one at every claim and never restarts.
    """

    key: RecordKey
    owner: str
    fence: int


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """One claim to be made.

    Args:
        key: the operation.
        fingerprint: digest of the payload, 32 hexadecimal characters.
        owner: id of the claiming process.
        lease_until_ms: instant until which the claim holds unless renewed.
        start: also mark the run as started when the claim is fresh (the handler is called at once).
        probes_now: the caller asks its probe at once if the claim is in doubt, so an earlier claim that was in doubt and
            ended with its process before its run started counts as a crash. False for deliveries, which may have waited
            behind the run that ended the process.
        amends: fingerprint of an earlier payload that an operator replaced with this one; allowed while not completed.
        message_id, sent_at_ms: the message of this claim; kept for people, without effect.
        expires_at_ms: when the record may be forgotten if nothing ever settles it.
    """

    key: RecordKey
    fingerprint: str
    owner: str
    lease_until_ms: int
    start: bool
    expires_at_ms: int
    probes_now: bool = False
    amends: str | None = None
    message_id: str | None = None
    sent_at_ms: int | None = None


class Failure(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What went wrong, without the payload.

    Args:
        kind: `transient`, `permanent`, `attempts`, `dependency-down`, `quarantine`, `unknown`, `released`...
        error: class name of the exception.
        summary: one line, at most 500 characters.
        took_effect: the run finished, and only its result could not be recorded (older records do not have this).
    """

    kind: str
    error: str
    summary: str
    took_effect: bool = False


class OutboxItem(Struct, frozen=True, kw_only=True, gc=False):
    """A message that is sent if, and only if, the run that made it completes.

    Args:
        queue: name of the queue it goes to.
        body, attributes (name -> text), group, dedup_id, delay_ms, run_at_ms, wait_ms, key: as in `contracts.entries.Entry`;
            but with `wait_ms`, `run_at_ms` is the steady instant at which the wait ends.
    """

    queue: str
    body: str
    attributes: dict[str, str] = {}
    group: str | None = None
    dedup_id: str | None = None
    delay_ms: int | None = None
    run_at_ms: int | None = None
    wait_ms: int | None = None
    key: str | None = None


class Claimed(Struct, frozen=True, kw_only=True, gc=False, tag="claimed"):
    """The claim succeeded.

    Args:
        hold: to be presented with every later write.
        found: `absent`, `released`, `failed` (fresh work), `unknown` or `in_progress` (taken over).
        doubt: an earlier started run's outcome is not known; the policy must decide before the handler runs.
        started: this claim also marked the run as started (asked for, and not in doubt).
        attempts, crashes: since the count was last reset, including this run if it has started. Crashes include claims
            that ended while their probe was asked (`Ask.probes_now`).
        crashed: the previous run had started and ended without an outcome; this claim is the one that counts it.
        previous_owner: the owner before, when `unknown` or `in_progress` was found.
        failure: how the last run failed, when one did.
        first_at_ms: when this operation was first claimed.
    """

    hold: Hold
    found: Literal["absent", "released", "failed", "unknown", "in_progress"]
    doubt: bool
    started: bool
    attempts: int
    crashes: int
    first_at_ms: int
    crashed: bool = False
    previous_owner: str | None = None
    failure: Failure | None = None


class Completed(Struct, frozen=True, kw_only=True, gc=False, tag="completed"):
    """The work was finished before: answer with this.

    Args:
        result: the stored JSON.
        completed_at_ms: when.
        hold: owner and fence of the run that completed, for clearing its outbox.
        outbox: messages of that run not yet known to be sent.
        message_id: the message of that run.
    """

    result: bytes
    completed_at_ms: int
    hold: Hold
    outbox: list[OutboxItem]
    message_id: str | None = None


class Running(Struct, frozen=True, kw_only=True, gc=False, tag="running"):
    """Another process runs this operation now.

    Args:
        until_ms: when that lease ends unless renewed.
        owner, fence: those of the holder.
        stopped: the id of the holder's process, if the lease has ended only because that process is stopped and cannot
            renew it; its run continues when the process does. None otherwise.
    """

    until_ms: int
    owner: str
    fence: int
    stopped: int | None = None


class Held(Struct, frozen=True, kw_only=True, gc=False, tag="held"):
    """The operation's outcome is unknown and parked for a person; nothing may run until it is settled."""

    since_ms: int


class Conflict(Struct, frozen=True, kw_only=True, gc=False, tag="conflict"):
    """The same key was used with another payload.

    Args:
        fingerprint: the fingerprint of the payload that came first.
        status: the status of the stored record.
        message_id: the message that came first.
    """

    fingerprint: str
    status: Status
    message_id: str | None = None


class Unreadable(Struct, frozen=True, kw_only=True, gc=False, tag="unreadable"):
    """What is stored under the key is not a record that this version can read; it was not changed.

    Args:
        what, meaning, todo: as in the `StorageError` that reading it raises.
    """

    what: str
    meaning: str
    todo: str

    @classmethod
    def of(cls, error: errors.StorageError) -> Self:
        """The answer to a claim whose record could not be read because of this error."""
        return cls(what=error.what, meaning=error.meaning, todo=error.todo)


def unreadable_row(job: object, key: object, problem: str, table: str) -> errors.StorageError:
    """The error for a row that is not a record which this version can read.

    Args:
        job, key: those of the operation, as they are stored. problem: what is wrong. table: where the row is.
    """
    return errors.StorageError(
        f"The record of {job} {key!r:.200} cannot be read ({problem}).",
        meaning="It was changed by hand, or a newer onefold has written it. It was not changed.",
        todo=f"Restore it from a backup, or delete its row from {table} if its work may be done again.",
    )


Answer = Claimed | Completed | Running | Held | Conflict | Unreadable


class Complete(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Write: the run finished.

    Args:
        result: JSON.
        outbox: messages to be sent now; kept in the record until `clear_outbox`.
        expires_at_ms: when the record expires.
    """

    result: bytes
    expires_at_ms: int
    outbox: list[OutboxItem] = []


class Fail(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Write: the run failed; the key is claimable at once.

    Args:
        failure: class and summary.
        closes_budget: dead-lettered or quarantined: the next claim counts attempts and crashes from 0. Doubt remains.
    """

    failure: Failure
    expires_at_ms: int
    closes_budget: bool = False


class Unknown(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Write: it is not known whether the effect happened.

    Args:
        parked: it cannot be claimed until a person settles it; such a record does not expire.
        crashed: the run ended with its process (counts as a crash).
    """

    failure: Failure
    expires_at_ms: int
    parked: bool = False
    crashed: bool = False


class Release(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Write: not started, or not to be counted as an attempt; claimable at once.

    Args:
        refund: do not count the attempt of a started run (the dependency was down as a whole).
        failure: the reason, for people; None for a plain release, which keeps an earlier failure.
    """

    expires_at_ms: int
    refund: bool = False
    failure: Failure | None = None


Outcome = Complete | Fail | Unknown | Release


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """One record, for people and tools. Times in milliseconds since the epoch."""

    key: RecordKey
    status: Status
    fence: int
    owner: str
    lease_until_ms: int
    fingerprint: str
    parked: bool
    doubt: bool
    started_fence: int
    attempts: int
    attempts_total: int
    crashes: int
    crashes_total: int
    budget_closed: bool
    created_at_ms: int
    started_at_ms: int | None
    updated_at_ms: int
    expires_at_ms: int | None
    result: bytes | None
    failure: Failure | None
    outbox: list[OutboxItem]
    message_id: str | None
    sent_at_ms: int | None


class ManualDecision(Struct, frozen=True, kw_only=True, gc=False):
    """What a person decided about an operation; see `RecordAdmin.settle`.

    Args:
        done: whether its effect happened. result: its result; empty if it did not happen.
        expires_at_ms: when the record may be forgotten.
        corrects: the present result of a completed record, to be replaced by `result`; None: the record is a parked one.
        judged: fence and `updated_at_ms` of the parked record that the person judged; None: whichever record is parked.
            A later run has another fence; a record that was forgotten and created again has another instant.
    """

    done: bool
    result: bytes
    expires_at_ms: int
    corrects: bytes | None = None
    judged: tuple[int, int] | None = None


class StoreCapabilities(Struct, frozen=True, kw_only=True, gc=False):
    """What a store can do beyond the minimum.

    Args:
        durable: a write that returned survives a crash of the machine.
        proves_death: can tell that an owner on this host is dead before its lease ends.
        notes_claims: the rows passed to `claim` are written in the transaction of the claim.
    """

    durable: bool
    proves_death: bool
    notes_claims: bool = False


_CLEAR_BYTES_MAX: Final = 48


def ident_of(key: RecordKey, family_bytes: int) -> bytes:
    """The value that identifies the operation: 1 to 49 bytes from the key, then the digest of scope and job.

    Args:
        family_bytes: length of the digest of scope and job, 1 to 64.
    """
    return _key_part(key.key) + _family(key.scope, key.job, family_bytes)


def key_range(text: str) -> tuple[bytes, bytes]:
    """The range of values of all operations with the business key `text`: its start, and the first value after it."""
    start = _key_part(text)
    return start, start[:-1] + bytes([start[-1] + 1])


def _key_part(text: str) -> bytes:
    """The prefix of all operations with this business key."""
    key = text.encode()
    if len(key) <= _CLEAR_BYTES_MAX:
        return key + b"\x00"
    return key[:16] + blake2b(key, digest_size=16).digest() + b"\x01"


@lru_cache(maxsize=4096)
def _family(scope: str, job: str, size: int) -> bytes:
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    return blake2b(f"{len(scope)}:{scope}{job}".encode(), digest_size=size).digest()
