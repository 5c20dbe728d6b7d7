"""Every error that onefold raises on purpose, grouped by what the code that catches it does next.

    OnefoldError
    |-- UsageError          change your code, settings or input; nothing was changed
    |   |-- PayloadError    a payload, key or result does not have the form that was declared
    |   |-- ConflictError   the same key came with another payload, or something exists with other settings
    |   |-- NotFoundError   a queue, message, job or file that does not exist
    |   `-- StorageError    the database file cannot be used (corrupt, foreign, newer, read-only)
    |-- TransientError      try again later; may say how long to wait
    |   |-- OverLimitError  too many messages in flight (SQS: OverLimit)
    |   `-- StorageBusy     another process has locked the file for too long, or the disk is full
    |-- PermanentError      trying again cannot help: dead-letter the message with the reason
    |-- DependencyDown      the dependency refuses everything: pause the job, use up no attempt
    |-- OutcomeUnknown      the effect may or may not have happened: the job's policy decides
    |-- LeaseLost           someone else owns this run now: stop, settle nothing
    `-- InvariantBroken     a defect of onefold itself: crash, keep the evidence, report it

Handlers raise TransientError, PermanentError, DependencyDown and OutcomeUnknown to say what a failure means.
Every error has a stable `code` (documented under that anchor) and a message in three parts: what happened, with the
value; what it means; what to do next. Its fields are only str and int, and secrets in them are masked, so that an error
can be logged safely.
"""

from __future__ import annotations

from typing import Final

from onefold import redact

__all__ = [
    "ConflictError",
    "DependencyDown",
    "InvariantBroken",
    "LeaseLost",
    "NotFoundError",
    "OnefoldError",
    "OutcomeUnknown",
    "OverLimitError",
    "PayloadError",
    "PermanentError",
    "StorageBusy",
    "StorageError",
    "TransientError",
    "UsageError",
]

TEXT_CHARS_MAX: Final = 8_192  # of each part; quoted text may come from outside, and is cut before it is masked


class OnefoldError(Exception):
    """Root of all errors raised on purpose.

    Means: nothing; only the classes below it are raised.
    Next: catch it where one report is enough for all of them.

    Args:
        what: what happened, with the value that caused it.
        meaning: what that means for the caller; may be empty.
        todo: the next step; may be empty only for InvariantBroken.
    """

    code = "error"
    _keys: tuple[str, ...] = ()  # business keys that the texts quote, for log lines, which have hashes of them

    def __init__(self, what: str, *, meaning: str = "", todo: str = "") -> None:
        self.what: str = _shown(what)
        self.meaning: str = _shown(meaning)
        self.todo: str = _shown(todo)
        parts = [part for part in (self.what, self.meaning, self.todo) if part]
        ended = [one if one[-1] in ".:!?;," else f"{one}." for one in parts[:-1]]
        super().__init__(" ".join([*ended, *parts[-1:]]))


def _shown(text: str) -> str:
    return redact.masked(text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}...")


class UsageError(OnefoldError):
    """The call, setting or input is wrong; nothing was changed.

    Means: the same call fails again. In a handler it is a permanent failure: the message goes to the dead-letter queue.
    Next: change what the text quotes, as it says.
    """

    code = "usage"


class PayloadError(UsageError):
    """A payload, key, or handler result does not have the form that was declared.

    Means: on a send, nothing was sent. On a delivery, the message goes to the dead-letter queue as `malformed`. For a
        result, the handler ran and its effect happened, so the operation is held for a person.
    Next: send what the handler's annotation says, or correct the dead letter: `onefold dlq edit`, then `redrive`.
        Settle a held operation with `onefold held settle`.
    """

    code = "payload"


class ConflictError(UsageError):
    """The same name or key already exists with other contents.

    Means: for a key, the operation was begun with another payload; this one is not a duplicate of it, and was not run.
        A queue, bus or name is declared twice, or exists with other settings.
    Next: give the other operation a key of its own, or declare the name once; for a queue that exists, use
        `onefold queue apply`.
    """

    code = "conflict"


class NotFoundError(UsageError):
    """Something that was named does not exist.

    Means: nothing was changed. For a message, its job is not declared on its queue in the app that received it.
    Next: check the name and the engine (`--url`, ONEFOLD_URL); deploy the app that declares the job, then redrive.
    """

    code = "not-found"


class StorageError(UsageError):
    """The database file cannot be used: corrupt, foreign, newer, read-only or missing.

    Means: nothing was written to it.
    Next: follow the text: use another path, change the file's mode, install a newer onefold, or restore a backup.
    """

    code = "storage"


class TransientError(OnefoldError):
    """The call failed now and may succeed later.

    Means: in a handler, the run failed and had no effect; the job's `retry` says when and how often it is tried again.
    Next: raise it for temporary failures (a timeout before anything was sent, a 503); if you caught it, try again
    later.

    Args:
        retry_in_ms: the least time to wait before the next try, in milliseconds; None lets the policy decide.
    """

    code = "transient"

    def __init__(self, what: str, *, meaning: str = "", todo: str = "", retry_in_ms: int | None = None) -> None:
        super().__init__(what, meaning=meaning, todo=todo)
        self.retry_in_ms = retry_in_ms


class OverLimitError(TransientError):
    """Too many messages of the queue are in flight (SQS error OverLimit).

    Means: 120,000 messages were received and are not settled; no more can be received.
    Next: find the consumer that does not delete: `onefold status` shows how much is in flight on each queue.
    """

    code = "over-limit"


class StorageBusy(TransientError):
    """Another process has locked the file for longer than a call may wait, or the disk is full.

    Means: nothing was written. Workers wait and continue by themselves.
    Next: free space, or end the program that locks the file (a backup, a shell with an open transaction), and try
    again.
    """

    code = "storage-busy"


class PermanentError(OnefoldError):
    """Trying again cannot help; the message goes to the dead-letter queue with this reason.

    Means: the run had no effect, and the remaining attempts are not used.
    Next: raise it if a person must change something; they find the message with `onefold dlq list`, correct it and
        redrive it.
    """

    code = "permanent"


class DependencyDown(OnefoldError):
    """The dependency refuses everything (a rotated key, a closed account): the job pauses, no attempt is used.

    Means: the message is not at fault: the job's circuit breaker opens for all of its messages, and `onefold status`
        says so.
    Next: raise it for failures of every call; after the repair the job resumes by itself or with `onefold resume`.

    Args:
        retry_in_ms: the least time to pause, in milliseconds; None lets the job's breaker decide.
    """

    code = "dependency-down"

    def __init__(self, what: str, *, meaning: str = "", todo: str = "", retry_in_ms: int | None = None) -> None:
        super().__init__(what, meaning=meaning, todo=todo)
        self.retry_in_ms = retry_in_ms


class OutcomeUnknown(OnefoldError):
    """The effect may have happened; the job's `on_unknown` policy decides what happens next.

    Means: neither running again nor giving up is known to be right. Under `onefold.once` with `hold`: a person must
        settle it.
    Next: raise it if an answer was lost after the request had been sent; settle held operations with `onefold held`.
    """

    code = "outcome-unknown"


class LeaseLost(OnefoldError):
    """The record of this run now belongs to another run; what this run did is not recorded.

    Means: the run paused for longer than its lease, or its process was considered dead, and another run took over.
    Next: stop without further effects. If it happens often, use longer leases or less work in one process.
    """

    code = "lease-lost"


class InvariantBroken(OnefoldError):
    """Something impossible has happened: a defect of onefold. The process should stop and keep the evidence.

    Means: continuing could do harm, so onefold stops.
    Next: keep the file and the log, and report it with the traceback (ONEFOLD_DEBUG=1).
    """

    code = "invariant"
