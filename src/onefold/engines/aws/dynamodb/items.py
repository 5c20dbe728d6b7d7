"""The layout of the table: keys of items, and converting a record to an item and back.

There are two layouts. In layout 1, which older tables have, records share the partition of their tenant:

    pk                         sk                          what
    scope                      job#key                     a record; `status`, `fence`, `owner`, ... as in `Record`
    ~key#KEY                   scope#job#instant#...       history of operations with this business key
    ~run#RUN, ~day#DATE        instant#...                 the same rows by run and by day (`ledger.py`)
    ~state                     name                        a shared value (`backend.py`)
    ~jobs, ~done#HOUR, ~held   ...                         notes by which people find records (`notes.py`)

An empty scope is `-`; a scope that begins with `-` or `~` gets another `-` in front. In a job's name `#` and `%` are
percent-escaped, so the first `#` of a sort key ends the job. A key that would make the sort key too long, or that
itself looks like a digest, is stored there as `sha256:HEX` and in full in the attribute `key`.

In layout 2 each record has its own partition, and the keys of everything that belongs to a job begin with the job, so
that a role can be limited to its jobs (`dynamodb:LeadingKeys`):

    pk                         sk                          what
    job#scope#key              record                      a record
    job#~scopes, job#~done#DATE, job#~held                 notes by which people find records (`notes.py`)
    ~names                     job                         which jobs there are
    ~day#DATE#SHARD            instant#...                 history by day; all other rows are as in layout 1

There, job and scope are percent-escaped: `#`, `~`, and whatever a policy would read as a pattern. A key that would be
too long is `job#~HEX`, a digest, with the attribute `operation`. `schema.py` decides which layout a table has.

Never here: calls, conditions. Invariant: `record_of(item_of(record, ...)) == record`, and no two operations share a
primary key.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

import msgspec

from onefold import errors, limits
from onefold.contracts.store import Failure, OutboxItem, Record, RecordKey

Value = dict[str, Any]
"""One attribute in DynamoDB's own form, for example {"S": "text"} or {"N": "5"}."""
Item = dict[str, Value]
Layout = Literal[1, 2]

MARKER_PARTITION: Final = "~layout"
MARKER: Final[Item] = {"pk": {"S": MARKER_PARTITION}, "sk": {"S": MARKER_PARTITION}}  # the item that records the layout
RECORD_SORT_KEY: Final = "record"  # in layout 2; in layout 1 each sort key of a record contains a `#`
ITEM_BYTES_MAX: Final = 400 * 1024  # DynamoDB developer guide, "Quotas and limits": 400 KB, including attribute names
PARTITION_KEY_BYTES_MAX: Final = 2_048  # the same
# Sort key: 1,024 bytes (the same). A job's name has at most 128 characters: escaped or not, 512 bytes at most.
SORT_KEY_BYTES_MAX: Final = 1_000
# For everything except result and outbox: key, owner, message id, a failure of 500 characters, some 20 numbers, all
# names.
RECORD_BYTES_RESERVED: Final = 8 * 1024
OUTCOME_BYTES_MAX: Final = ITEM_BYTES_MAX - RECORD_BYTES_RESERVED
# Time to live is in whole seconds and lags by days (developer guide, "Time to Live"); a record that has expired by a
# clock that is wrong by half a day still exists.
TTL_GRACE_MS: Final = limits.DAY_MS
TTL_ATTRIBUTE: Final = "ttl"

_DIGEST: Final = "sha256:"
_JOB_BYTES_MAX: Final = 1_000  # in layout 2; a longer name becomes a digest
# Characters that stay as they are in a part of a key: not `#`, `%`, patterns or variables of a policy (`*?${}`), or
# others that a policy cannot contain.
_SAFE: Final = " !&'()+,/:;<=>@[]^`|"
_FLAGS: Final = ("parked", "doubt", "budget_closed")
_NUMBERS: Final = {
    "fence": "fence",
    "lease_until": "lease_until_ms",
    "started_fence": "started_fence",
    "attempts": "attempts",
    "attempts_total": "attempts_total",
    "crashes": "crashes",
    "crashes_total": "crashes_total",
    "created_at": "created_at_ms",
    "started_at": "started_at_ms",
    "updated_at": "updated_at_ms",
    "expires_at": "expires_at_ms",
    "sent_at": "sent_at_ms",
}  # from attribute to field; instants are in milliseconds
_TEXTS: Final = ("status", "owner", "fingerprint", "message_id")
_OPTIONAL: Final = frozenset({"started_at", "expires_at", "sent_at", "message_id"})
# Left out if 0, as they nearly always are: an absent attribute costs nothing and need not be parsed.
_ZEROS: Final = frozenset({"crashes", "crashes_total"})


# -- keys --------------------------------------------------------------------------------------------------------------


def item_key_of(key: RecordKey, layout: Layout) -> Item:
    """The primary key of an operation's record.

    Raises:
        UsageError: in layout 1, the scope has more than 2,047 bytes in UTF-8.
    """
    if layout == 1:
        return {"pk": {"S": partition_of(key.scope)}, "sk": {"S": sort_key_of(key)}}
    text = _whole_partition(key)
    if len(text) * 4 > PARTITION_KEY_BYTES_MAX and len(text.encode()) > PARTITION_KEY_BYTES_MAX:
        text = f"{job_part(key.job)}#~{sha256(_operation(key)).hexdigest()}"
    return {"pk": {"S": text}, "sk": {"S": RECORD_SORT_KEY}}


def job_part(job: str) -> str:
    """The beginning of a job's partition keys in layout 2, before a `#`; no job's part begins another's."""
    text = part_of(job)
    return text if len(text.encode()) <= _JOB_BYTES_MAX else f"%{_DIGEST}{sha256(job.encode()).hexdigest()}"


def part_of(text: str) -> str:
    """A part of a composite key in layout 2: without `#` or a leading `~`, and unchanged as a pattern of IAM."""
    return quote(text, safe=_SAFE).replace("~", "%7E")


def job_partition(job: str, kind: str, text: str = "") -> str:
    """The partition key of a job's other items in layout 2, for example `job#~done#2026-11-21`."""
    full = f"{job_part(job)}#~{kind}#{text}" if text else f"{job_part(job)}#~{kind}"
    if len(full.encode()) <= PARTITION_KEY_BYTES_MAX and not text.startswith(_DIGEST):
        return full
    return f"{job_part(job)}#~{kind}#{_digest(text)}"


def _whole_partition(key: RecordKey) -> str:
    return f"{job_part(key.job)}#{part_of(key.scope)}#{key.key}"


def _operation(key: RecordKey) -> bytes:
    return msgspec.json.encode(key)


def partition_of(scope: str) -> str:
    """The partition key of a scope; errors as for `item_key_of`."""
    text = f"-{scope}" if scope == "" or scope[0] in "-~" else scope
    if len(text) * 4 > PARTITION_KEY_BYTES_MAX and len(text.encode()) > PARTITION_KEY_BYTES_MAX:
        raise errors.UsageError(
            f"A tenant of {len(text.encode())} bytes cannot be a partition key of DynamoDB: {scope[:40]!r}...",
            meaning=f"At most {PARTITION_KEY_BYTES_MAX} bytes are possible. Nothing was written.",
            todo="Use a shorter id for the tenant.",
        )
    return text


def sort_key_of(key: RecordKey) -> str:
    """The sort key of an operation within its scope."""
    job = escaped(key.job)
    return f"{job}#{_digest(key.key)}" if is_digested(key) else f"{job}#{key.key}"


def is_digested(key: RecordKey) -> bool:
    """Whether the sort key contains a digest of the business key instead of the key."""
    if key.key.startswith(_DIGEST):
        return True
    chars = len(key.job) * 3 + len(key.key) + 1
    return chars * 4 > SORT_KEY_BYTES_MAX and len(escaped(key.job).encode()) + 1 + len(key.key.encode()) > (
        SORT_KEY_BYTES_MAX
    )


def _digest(text: str) -> str:
    return _DIGEST + sha256(text.encode()).hexdigest()


def escaped(text: str) -> str:
    """A part of a composite key, without `#`."""
    return text.replace("%", "%25").replace("#", "%23")


def unescaped(text: str) -> str:
    """The decoded part."""
    return text.replace("%23", "#").replace("%25", "%")


def key_of(item: Mapping[str, Value]) -> RecordKey:
    """The operation whose record an item is."""
    scope, sort_key = item["pk"]["S"], item["sk"]["S"]
    if sort_key == RECORD_SORT_KEY:
        if "operation" in item:
            return msgspec.json.decode(item["operation"]["S"], type=RecordKey)
        job, scope, key = scope.split("#", 2)
        return RecordKey(unquote(scope), unquote(job), key)
    job, _, key = sort_key.partition("#")
    if scope[0] == "-":
        scope = scope[1:]
    return RecordKey(scope, unescaped(job), item["key"]["S"] if "key" in item else key)


def names_of(key: RecordKey, layout: Layout) -> Item:
    """The attributes that name an item's operation if the primary key only has a digest."""
    if layout == 1:
        return {"key": {"S": key.key}} if is_digested(key) else {}
    text = _whole_partition(key)
    short = len(text) * 4 <= PARTITION_KEY_BYTES_MAX or len(text.encode()) <= PARTITION_KEY_BYTES_MAX
    if short and not text.startswith(f"%{_DIGEST}"):
        return {}
    return {"operation": {"S": _operation(key).decode()}}


# -- records -----------------------------------------------------------------------------------------------------------


def ttl_of(expires_at_ms: int) -> Value:
    """The value of the time-to-live attribute: epoch seconds, rounded up, and a day of grace."""
    return number(-(-(expires_at_ms + TTL_GRACE_MS) // 1000))


def number(value: int) -> Value:
    """A number attribute."""
    return {"N": str(value)}


def json_text(value: object) -> Value:
    """A value as JSON in a text attribute."""
    return {"S": msgspec.json.encode(value).decode()}


def item_of(record: Record, stamp: str, layout: Layout) -> Item:
    """A record as an item.

    Args:
        record: the record to be stored.
        stamp: id of the write, different for every write, by which it is recognised after a lost answer.
        layout: the table's layout.
    """
    item = item_key_of(record.key, layout) | names_of(record.key, layout)
    item["stamp"] = {"S": stamp}
    for name in _TEXTS:
        if (text := getattr(record, name)) is not None:
            item[name] = {"S": text}
    for name, field in _NUMBERS.items():
        value = getattr(record, field)
        if value is not None and (value or name not in _ZEROS):
            item[name] = {"N": str(value)}
    for name in _FLAGS:
        if getattr(record, name):
            item[name] = {"BOOL": True}
    if record.result is not None:
        item["result"] = {"S": record.result.decode()}
    if record.failure is not None:
        item["failure"] = json_text(record.failure)
    if record.outbox:
        item["outbox"] = json_text(record.outbox)
    if record.expires_at_ms is not None:
        item[TTL_ATTRIBUTE] = ttl_of(max(record.expires_at_ms, record.lease_until_ms))
    return item


def record_of(item: Mapping[str, Value]) -> Record:
    """The record that an item represents.

    Raises:
        StorageError: the item was not written by onefold.
    """
    try:
        fields: dict[str, Any] = {name: _text(item, name) for name in _TEXTS}
        fields |= {field: _whole(item, name) for name, field in _NUMBERS.items()}
        fields |= {name: name in item and item[name]["BOOL"] for name in _FLAGS}
        return Record(
            key=key_of(item),
            **fields,
            result=item["result"]["S"].encode() if "result" in item else None,
            failure=msgspec.json.decode(item["failure"]["S"], type=Failure) if "failure" in item else None,
            outbox=msgspec.json.decode(item["outbox"]["S"], type=list[OutboxItem]) if "outbox" in item else [],
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        item_key = f"{item.get('pk')} {item.get('sk')}"
        raise errors.StorageError(
            f"The item {item_key[:200]} is not a record of onefold: {type(error).__name__} {error}.",
            meaning="Another program writes to this table, or changed the item by hand.",
            todo="Give onefold its own table; repair or delete the item.",
        ) from error


def _text(item: Mapping[str, Value], name: str) -> str | None:
    return None if name in _OPTIONAL and name not in item else str(item[name]["S"])


def _whole(item: Mapping[str, Value], name: str) -> int | None:
    if name in _ZEROS and name not in item:
        return 0
    return None if name in _OPTIONAL and name not in item else int(item[name]["N"])


def stamp_of(item: Mapping[str, Value]) -> str:
    """The id of the write that left the item as it is."""
    return str(item.get("stamp", {}).get("S", ""))
