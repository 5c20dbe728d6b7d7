"""Every error onefold raises on purpose, sorted by what the one who catches it does next.

    OnefoldError
    |-- UsageError          change your code, settings or input; nothing was changed
    |   |-- PayloadError    a payload, key or result does not have the form that was declared
    |   |-- ConflictError   the same key came with another payload, or a thing exists with other settings
    |   |-- NotFoundError   a queue, message, job or file that does not exist
    |   `-- StorageError    the database file cannot be used as it is (corrupt, foreign, newer, read-only)
    |-- TransientError      try again later; may say how long to wait
    |   |-- OverLimitError  too many messages in flight (SQS: OverLimit)
    |   `-- StorageBusy     another process holds the file longer than we may wait, or the disk is full
    |-- PermanentError      trying again cannot help: dead-letter the message with the reason
    |-- DependencyDown      the dependency as a whole refuses: pause the job, use up no attempt
    |-- OutcomeUnknown      the effect may or may not have happened: the job's policy decides
    |-- LeaseLost           someone else owns this run now: stop, settle nothing
    `-- InvariantBroken     a defect of onefold itself: crash, keep the evidence, report it

Handlers raise TransientError, PermanentError, DependencyDown and OutcomeUnknown to say what a failure means.
Every error has a stable `code` (documented under that anchor) and a message in three parts: what happened, with
the value; what it means; what to do next. Fields are str and int only, and secrets in
them are masked, so that an error can be logged as it is.
"""

from __future__ import annotations

from typing import Final

from onefold import redact

TEXT_CHARS_MAX: Final = 8_192  # of each part: what it quotes may be a stranger's, and is cut before it is masked


class OnefoldError(Exception):
    """Root of all errors raised on purpose.

    Args:
        what: what happened, with the value that caused it.
        meaning: what that means for the caller; may be empty when `what` says it all.
        todo: the next step; may be empty only for InvariantBroken.
    """

    code = "error"

    def __init__(self, what: str, *, meaning: str = "", todo: str = "") -> None:
        self.what: str = _shown(what)
        self.meaning: str = _shown(meaning)
        self.todo: str = _shown(todo)
        super().__init__(" ".join(part for part in (self.what, self.meaning, self.todo) if part))


def _shown(text: str) -> str:
    return redact.masked(text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}...")


class UsageError(OnefoldError):
    """The call, setting or input is wrong; nothing was changed."""

    code = "usage"


class PayloadError(UsageError):
    """A payload, key, or handler result does not have the form that was declared."""

    code = "payload"


class ConflictError(UsageError):
    """The same name or key exists already with other contents."""

    code = "conflict"


class NotFoundError(UsageError):
    """The thing that was named does not exist."""

    code = "not-found"


class StorageError(UsageError):
    """The database file cannot be used as it is: corrupt, foreign, newer, read-only or missing."""

    code = "storage"


class TransientError(OnefoldError):
    """Failed now, may work later.

    Args:
        retry_in_ms: how long to wait at least before the next try, in milliseconds; None lets the policy decide.
    """

    code = "transient"

    def __init__(self, what: str, *, meaning: str = "", todo: str = "", retry_in_ms: int | None = None) -> None:
        super().__init__(what, meaning=meaning, todo=todo)
        self.retry_in_ms = retry_in_ms


class OverLimitError(TransientError):
    """Too many messages of the queue are in flight (SQS error OverLimit)."""

    code = "over-limit"


class StorageBusy(TransientError):
    """The file is locked by another process for longer than we may wait, or the disk is full."""

    code = "storage-busy"


class PermanentError(OnefoldError):
    """Trying again cannot help; the message goes to the dead-letter queue with this reason."""

    code = "permanent"


class DependencyDown(OnefoldError):
    """The dependency refuses everything (a rotated key, a closed account): the job pauses, no attempt is used.

    Args:
        retry_in_ms: how long to pause at least, in milliseconds; None lets the job's breaker decide.
    """

    code = "dependency-down"

    def __init__(self, what: str, *, meaning: str = "", todo: str = "", retry_in_ms: int | None = None) -> None:
        super().__init__(what, meaning=meaning, todo=todo)
        self.retry_in_ms = retry_in_ms


class OutcomeUnknown(OnefoldError):
    """The effect may have happened; the job's `on_unknown` policy decides what comes next."""

    code = "outcome-unknown"


class LeaseLost(OnefoldError):
    """The record of this run belongs to someone else now; what this run did is not recorded."""

    code = "lease-lost"


class InvariantBroken(OnefoldError):
    """Something that cannot be is: a defect of onefold. The process should stop and keep the evidence."""

    code = "invariant"
