r"""What is stored on a Redis server: the names of everything, and a record as the bytes of one string.

Every name begins with the prefix in braces. This is a hash tag: on a cluster all names of one prefix are in one slot,
and a script can touch a record and the lists that name it in one atomic step. So all data of one prefix is on one
primary; when one primary is no longer enough, give each app, or each group of tenants, its own prefix.

    {of:}record:tenant|job|key      "|" and "%" are escaped in scope and job; the key ends the name and is not escaped

A record is a stamp, JSON, and the result, unchanged:

    5f0c9a...e1{"status":"completed","fence":1,"owner":"...","attempts":1,...}\n{"invoice":4711}

Every write has a new random stamp. So two values are the same exactly when their first 16 bytes are, a script compares
stamps and never parses a record, and a process that does not know whether its write was applied can compare stamps.
Fields that have their usual value are left out; the JSON has no line break, so the first one ends it.

Never here: rules, calls. Invariant: two operations never share a name, nor do two prefixes; what is decoded equals what
was encoded, and fields of later versions are ignored.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.store import Failure, OutboxItem, Record, RecordKey, Status

PREFIX_DEFAULT: Final = "of:"
PREFIX_CHARS_MAX: Final = 64
SHELVES: Final = ("in_progress", "completed", "failed", "unknown", "released", "parked")
"""The lists in which operators find records: one per status, and one for parked records."""

_ESCAPES: Final = str.maketrans({"%": "%25", "|": "%7C"})


class Names:
    """All names under one prefix.

    Args:
        prefix: 1 to 64 printable characters without braces and blanks.

    Raises:
        UsageError: it has another form.
    """

    def __init__(self, prefix: str = PREFIX_DEFAULT) -> None:
        if not (1 <= len(prefix) <= PREFIX_CHARS_MAX and prefix.isprintable()) or set(prefix) & set("{} "):
            raise errors.UsageError(
                f"The prefix {prefix!r} cannot begin the names of records.",
                meaning=f"It has 1 to {PREFIX_CHARS_MAX} printable characters, no braces and no blanks.",
                todo="Write for example redis://localhost:6379/0?prefix=shop:",
            )
        self.tag = f"{{{prefix}}}"
        self.records = f"{self.tag}record:"
        self.jobs = f"{self.tag}jobs"
        self.shelves = [f"{self.tag}shelf:{shelf}" for shelf in SHELVES]
        self.state = f"{self.tag}state"
        self.state_floor = f"{self.tag}state-floor"
        self.ledger = f"{self.tag}ledger"
        self.ledger_sequence = f"{self.tag}ledger-sequence"
        self.ledger_jobs = f"{self.tag}ledger-jobs"

    def record(self, key: RecordKey) -> str:
        """Where a record is kept."""
        return f"{self.records}{text_of_key(key)}"

    def completed(self, minute: int) -> str:
        """Where the runs that completed in one minute (since the epoch) are counted."""
        return f"{self.tag}completed:{minute}"

    def history(self, key: RecordKey) -> str:
        """Where the rows of one operation are kept."""
        return f"{self.tag}ledger-of:{text_of_key(key)}"

    def run(self, run: str) -> str:
        """Where the rows of one run are kept."""
        return f"{self.tag}ledger-run:{run}"


def text_of_key(key: RecordKey) -> str:
    """An operation as one text."""
    return f"{text_of_job(key)}|{key.key}"


def text_of_job(key: RecordKey) -> str:
    """An operation's scope and job as one text."""
    return f"{key.scope.translate(_ESCAPES)}|{key.job.translate(_ESCAPES)}"


def key_at(text_of_key: str) -> RecordKey:
    """The operation that a text names; the inverse of `text_of_key`."""
    scope, job, key = text_of_key.split("|", 2)
    return RecordKey(_plain(scope), _plain(job), key)


def _plain(text: str) -> str:
    return text.replace("%7C", "|").replace("%25", "%")


def shelf(record: Record) -> int:
    """The index in `SHELVES` of the shelf that a record is on."""
    return SHELVES.index("parked" if record.parked else record.status)


STAMP_BYTES: Final = 16  # Entropy.token()


class _Stored(Struct, omit_defaults=True, kw_only=True, gc=False):
    """The fields of a record except its key, which is in its name, and its result, which follows the JSON."""

    status: Status
    fence: int
    owner: str
    lease_until_ms: int
    fingerprint: str
    created_at_ms: int
    updated_at_ms: int
    expires_at_ms: int | None = None
    parked: bool = False
    doubt: bool = False
    started_fence: int = 0
    started_at_ms: int | None = None
    attempts: int = 0
    attempts_total: int = 0
    crashes: int = 0
    crashes_total: int = 0
    budget_closed: bool = False
    failure: Failure | None = None
    outbox: list[OutboxItem] = []
    message_id: str | None = None
    sent_at_ms: int | None = None


class StoredRecord(Struct, frozen=True, gc=False):
    """What is stored under a name: the stamp (empty if there is nothing) and the record, or why it cannot be read."""

    stamp: bytes
    record: Record | None
    error: errors.StorageError | None = None


ABSENT: Final = StoredRecord(b"", None)
_FIELDS: Final = _Stored.__struct_fields__
_DECODER: Final = msgspec.json.Decoder(_Stored)


def encode(record: Record, stamp: bytes) -> bytes:
    """The value to store."""
    head = msgspec.json.encode(_Stored(**{name: getattr(record, name) for name in _FIELDS}))
    return stamp + head if record.result is None else b"%b%b\n%b" % (stamp, head, record.result)


PREFIX_ADVICE: Final = (
    "Let the other program write elsewhere, or give onefold a prefix of its own: redis://host:port/db?prefix=NAME:"
    " (it begins without records: what was done under the old prefix is not known under the new one)."
)


def foreign_value(what: str, name: str) -> errors.StorageError:
    """The error for a value that onefold cannot have written; `name`: the Redis key under which it is."""
    return errors.StorageError(
        what,
        meaning=f"Another program writes under the same prefix, or a newer onefold does. The Redis key is {name}",
        todo=PREFIX_ADVICE,
    )


def decode(key: RecordKey, value: bytes | None, name: str = "") -> StoredRecord:
    """Decode a stored value.

    Args:
        name: where it is stored, for the error.

    Returns:
        The stored record; if another program wrote under this name, an error instead of the record.
    """
    if value is None:
        return ABSENT
    head, line_break, result = value[STAMP_BYTES:].partition(b"\n")
    try:
        stored = _DECODER.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        foreign = foreign_value(f"The value under the record of {key.job} {key.key!r} is not a record ({error}).", name)
        return StoredRecord(value[:STAMP_BYTES], None, foreign)
    fields = {name: getattr(stored, name) for name in _FIELDS}
    return StoredRecord(value[:STAMP_BYTES], Record(key=key, result=result if line_break else None, **fields))
