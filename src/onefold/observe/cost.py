"""What messages cost on AWS: calls, capacity units and dollars per thousand, worked out from declarations and assumptions.

A message takes one of three paths: its first delivery, a duplicate that is answered from the record, or a failure and
the retry that succeeds. Each path is a `Usage`: what one message uses of SQS, Lambda and DynamoDB. The figures are not
guessed: `tests/observe/test_cost.py` counts real calls of boto3 along the same paths and compares them with these
functions. Prices come in as a dated table (`prices.json`), in dollars, for one region.

Pure. Never here: AWS calls, tables, declarations of an app (they come in as a `Way`).
Invariant: nothing is left out silently; what is not counted is in `NOT_COUNTED`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from onefold import errors, limits
from onefold.contracts.ledger import History

Path = Literal["first", "duplicate", "retry"]
PATHS: Final[tuple[Path, ...]] = ("first", "duplicate", "retry")

SQS_CHUNK_BYTES: Final = 65_536  # Amazon SQS pricing: every 64 KB of a payload is one request
WRITE_UNIT_BYTES: Final = 1_024  # DynamoDB developer guide, "Read and write operations": one unit per started 1 KB
RECORD_BYTES: Final = 360  # a record in progress without key and result, with attribute names (measured by tests)
COMPLETED_BYTES: Final = 20  # what a completed record has more, without the result
ROW_BYTES: Final = 520  # a row of history without the key, with attribute names (measured by tests)
ITEMS_PER_ROW: Final = 2  # one by key and one by day (engines/aws/dynamodb/ledger.py)
COUNTED_RUNS: Final = 10  # completed runs for each write of the item that counts them (engines/aws/dynamodb/notes.py)
ITEM_OVERHEAD_BYTES: Final = 100  # DynamoDB developer guide, "Storage": added to every item for billing
ROWS_KEPT_DAYS: Final = 90  # engines/aws/dynamodb/ledger.py
LEDGER_ITEMS_MAX: Final = 25  # DynamoDB API, BatchWriteItem
BATCH_MAX: Final = limits.BATCH_ENTRIES_MAX  # messages of one SQS call, also of Lambda's pollers
PLATFORM_LOG_BYTES: Final = 400  # START, END and REPORT lines of one invocation
CALL_MS: Final = 5  # our assumption: the duration of one call to DynamoDB in the region
IDLE_POLLERS: Final = 5  # Lambda developer guide, "Scaling behaviour for SQS": long polls of an idle mapping
LONG_POLL_S: Final = 20  # SQS ReceiveMessage, WaitTimeSeconds: at most
MONTH_DAYS: Final = 30
_GB: Final = 1_073_741_824

NOT_COUNTED: Final = (
    "free tier and discounts",
    "calls that your handlers make themselves",
    "a read of the circuit breaker every few seconds of work, and at each failure that it counts",
    "log lines of your own",
    "data transfer out of the region",
    "requests to your own KMS key",
    "bodies kept in S3",
    "servers: workers, Redis, PostgreSQL",
)


class Traffic(Struct, frozen=True, kw_only=True):
    """Assumptions about the messages of a queue.

    Args:
        messages: per month, 1 or more.
        duplicates: the share that is delivered again after it was done, 0 to 1. retries: the share that fails once, 0
            to 1.
        batch: messages received together, 1 or more; fewer than the mapping's maximum if few come in.
        again_batch: the same for messages that come back after a failure.
        sent_together: messages in one send call, 1 to 10.
        body_bytes, key_bytes, result_bytes: sizes in bytes.
        run_ms: the duration of one handler.
    """

    messages: int = 1_000_000
    duplicates: float = 0.01
    retries: float = 0.01
    batch: float = 10.0
    again_batch: float = 1.0
    sent_together: int = 1
    body_bytes: int = 1_000
    key_bytes: int = 40
    result_bytes: int = 200
    run_ms: int = 100

    def check(self) -> None:
        """Refuse impossible values.

        Raises:
            UsageError: a value is out of its range.
        """
        for name, least, most in (
            ("messages", 1, 10**15), ("duplicates", 0, 1), ("retries", 0, 1), ("batch", 1, 10_000),
            ("again_batch", 1, 10_000), ("sent_together", 1, BATCH_MAX), ("body_bytes", 1, limits.MESSAGE_BYTES_MAX),
            ("key_bytes", 1, 1_024), ("result_bytes", 0, 400 * 1_024), ("run_ms", 0, limits.VISIBILITY_MS_MAX),
        ):  # fmt: skip
            value = getattr(self, name)
            if not least <= value <= most:
                raise errors.UsageError(
                    f"{name.replace('_', ' ')} of {value:,} is out of range.", todo=f"It may be {least:,} to {most:,}."
                )
        if self.duplicates + self.retries > 1:
            raise errors.UsageError(
                "More than all messages would be duplicates or retries.", todo="Together they are at most 100%."
            )


class Way(Struct, frozen=True, kw_only=True):
    """How the messages of a queue are processed, as declared.

    Args:
        queue: its name. fifo: FIFO requests cost more.
        memory_mb, architecture: its function's; None if workers process it.
        threads: handlers that run at the same time in an invocation.
        table: records are in DynamoDB.
        history: which rows are kept (`brief`: none of a clean first run).
        keep_ms: how long completed records are kept.
    """

    queue: str
    fifo: bool = False
    memory_mb: int | None = 512
    architecture: str = "x86_64"
    threads: int = 10
    table: bool = True
    history: History = "brief"
    keep_ms: int = 90 * limits.DAY_MS


class Usage(Struct, frozen=True, kw_only=True):
    """The usage of AWS by one message, or by many.

    Args:
        calls: the count of each API call, such as `sqs:SendMessage`, including those of Lambda's pollers.
        sqs_requests: as SQS bills them. write_units: DynamoDB's; its few reads are in `NOT_COUNTED`.
        invocations: Lambda's. gb_seconds: of its memory. log_bytes: written by Lambda itself.
        stored_byte_months: in the table.
    """

    calls: Mapping[str, float] = {}
    sqs_requests: float = 0.0
    write_units: float = 0.0
    invocations: float = 0.0
    gb_seconds: float = 0.0
    log_bytes: float = 0.0
    stored_byte_months: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        names = sorted({*self.calls, *other.calls})
        sums = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__ if name != "calls"}
        return Usage(calls={name: self.calls.get(name, 0) + other.calls.get(name, 0) for name in names}, **sums)

    def times(self, count: float) -> Usage:
        """This usage times `count`."""
        products = {name: getattr(self, name) * count for name in self.__struct_fields__ if name != "calls"}
        return Usage(calls={name: value * count for name, value in self.calls.items()}, **products)


class Price(Struct, frozen=True):
    """A price: `usd` dollars for `per` units. `page`: AWS's page with the price."""

    usd: float
    per: float
    unit: str
    page: str

    def of(self, count: float) -> float:
        """Dollars for `count` units."""
        return self.usd * count / self.per


class Prices(Struct, frozen=True, kw_only=True):
    """The prices of one region, with their date and notes."""

    region: str
    as_of: str
    note: str
    items: Mapping[str, Price]


class _File(Struct, frozen=True):
    as_of: str
    currency: Literal["USD"]
    note: str
    regions: Mapping[str, Mapping[str, Price]]


# -- prices ----------------------------------------------------------------------------------------------------------


def read_prices(text: bytes, region: str) -> Prices:
    """The prices of a region.

    Args:
        text: the content of a file in the form of `prices.json`.

    Raises:
        NotFoundError: the region is missing. UsageError: the text has another form, or a price is missing.
    """
    try:
        found = msgspec.json.decode(text, type=_File)
    except msgspec.DecodeError as error:
        raise errors.UsageError(
            f"The price table cannot be read: {error}.", todo="Start from onefold's own: onefold/observe/prices.json."
        ) from None
    if region not in found.regions:
        raise errors.NotFoundError(
            f"The price table of {found.as_of} has no prices for {region}.",
            meaning=f"It has {', '.join(sorted(found.regions))}.",
            todo="Add them to a copy of onefold/observe/prices.json from the pages it names; give it with --prices FILE.",
        )
    items = found.regions[region]
    missing = sorted(set(_PRICED) - set(items))
    if missing:
        raise errors.UsageError(
            f"The price table lacks {', '.join(missing)} for {region}.",
            todo="Add them; onefold/observe/prices.json has all.",
        )
    return Prices(region=region, as_of=found.as_of, note=found.note, items=items)


_PRICED: Final = (
    "sqs_standard_request", "sqs_fifo_request", "lambda_request", "lambda_gb_second_x86_64", "lambda_gb_second_arm64",
    "dynamodb_write_unit", "dynamodb_gb_month", "dynamodb_recovery_gb_month", "logs_gb",
    "alarm_month", "metric_month",
)  # fmt: skip


def dollars(used: Usage, way: Way, prices: Prices) -> dict[str, float]:
    """The cost of a usage in dollars, by service."""
    price = prices.items
    bill = {"SQS": price["sqs_fifo_request" if way.fifo else "sqs_standard_request"].of(used.sqs_requests)}
    if way.memory_mb is not None:
        bill["Lambda"] = price["lambda_request"].of(used.invocations)
        bill["Lambda"] += price[f"lambda_gb_second_{way.architecture}"].of(used.gb_seconds)
        bill["CloudWatch"] = price["logs_gb"].of(used.log_bytes / _GB)
    if way.table:
        gb_months = used.stored_byte_months / _GB
        bill["DynamoDB"] = price["dynamodb_write_unit"].of(used.write_units)
        bill["DynamoDB storage"] = price["dynamodb_gb_month"].of(gb_months)
        bill["DynamoDB storage"] += price["dynamodb_recovery_gb_month"].of(gb_months)
    return bill


def polls_dollars(way: Way, prices: Prices) -> float:
    """The monthly cost in dollars of the long polls of a quiet queue's mapping; 0 with workers, which can stop."""
    if way.memory_mb is None:
        return 0.0
    polls = IDLE_POLLERS * MONTH_DAYS * limits.DAY_MS / limits.SECOND_MS / LONG_POLL_S
    return prices.items["sqs_fifo_request" if way.fifo else "sqs_standard_request"].of(polls)


def watch_dollars(alarms: int, metrics: int, prices: Prices) -> float:
    """The monthly cost in dollars of alarms and custom metrics."""
    return prices.items["alarm_month"].of(alarms) + prices.items["metric_month"].of(metrics)


# -- what one message uses -------------------------------------------------------------------------------------------


def usage(path: Path, way: Way, traffic: Traffic) -> Usage:
    """What one message uses on a path, on average over a batch whose messages all take that path.

    A duplicate counts as a separate message, sent and delivered. Records settle together if their handlers end
    together; here that is the whole batch. A slow one settles alone, which costs one more call and the same units.
    """
    used = _sent(traffic) + _received(way, traffic, traffic.batch, traffic.run_ms if path != "duplicate" else 0)
    if path == "first":
        used += _records(way, traffic, "first", traffic.batch) + _stored(way, traffic, rows=0)
    elif path == "duplicate":
        used += _records(way, traffic, "duplicate", traffic.batch) + _rows(way, traffic, traffic.batch)
    else:
        used += _records(way, traffic, "failed", traffic.batch) + _rows(way, traffic, traffic.batch)
        used += _hidden(traffic.batch) + _received(way, traffic, traffic.again_batch, traffic.run_ms)
        used += _records(way, traffic, "again", traffic.again_batch) + _stored(way, traffic, rows=0)
        used = _deleted_once(used, traffic)
    if way.history == "full":
        used += _full_rows(path, way, traffic)
    return used


def mixed(way: Way, traffic: Traffic) -> Usage:
    """What an average message uses: the paths, weighted by their shares."""
    first = 1 - traffic.duplicates - traffic.retries
    used = usage("first", way, traffic).times(first)
    used += usage("duplicate", way, traffic).times(traffic.duplicates)
    return used + usage("retry", way, traffic).times(traffic.retries)


def _sent(traffic: Traffic) -> Usage:
    together = traffic.sent_together
    return Usage(
        calls={"sqs:SendMessageBatch": 1 / together}, sqs_requests=_chunks(traffic.body_bytes * together) / together
    )


def _received(way: Way, traffic: Traffic, batch: float, run_ms: int) -> Usage:
    """A receive and a delete, by Lambda's pollers or a worker, at most ten messages per call; and the invocation."""
    together = min(batch, BATCH_MAX)
    used = Usage(
        calls={"sqs:ReceiveMessage": 1 / together, "sqs:DeleteMessageBatch": 1 / together},
        sqs_requests=(_chunks(round(traffic.body_bytes * together)) + 1) / together,
    )
    if way.memory_mb is None:
        return used
    duration_ms = run_ms * math.ceil(batch / way.threads) + 2 * CALL_MS
    return used + Usage(
        invocations=1 / batch,
        gb_seconds=way.memory_mb / 1_024 * math.ceil(duration_ms) / 1_000 / batch,
        log_bytes=PLATFORM_LOG_BYTES / batch,
    )


def _deleted_once(used: Usage, traffic: Traffic) -> Usage:
    """The usage without the first delete: a message that failed is deleted only after it came again."""
    together = min(traffic.batch, BATCH_MAX)
    calls = dict(used.calls)
    calls["sqs:DeleteMessageBatch"] -= 1 / together
    return msgspec.structs.replace(used, calls=calls, sqs_requests=used.sqs_requests - 1 / together)


def _hidden(batch: float) -> Usage:
    """Changing the visibility of failed messages, at most ten per call."""
    share = 1 / min(batch, BATCH_MAX)
    return Usage(calls={"sqs:ChangeMessageVisibilityBatch": share}, sqs_requests=share)


def _records(way: Way, traffic: Traffic, what: Literal["first", "duplicate", "failed", "again"], batch: float) -> Usage:
    """Claiming and settling. A refused write costs units too, according to the size of the stored item."""
    if not way.table:
        return Usage()
    claimed = _units(RECORD_BYTES + traffic.key_bytes)
    completed = _units(RECORD_BYTES + COMPLETED_BYTES + traffic.key_bytes + traffic.result_bytes)
    many = batch > 1
    insert, update = ("dynamodb:BatchExecuteStatement",) * 2 if many else ("dynamodb:PutItem", "dynamodb:UpdateItem")
    steps: Sequence[tuple[str, int]] = {
        "first": ((insert, claimed), (update, completed)),
        "duplicate": ((insert, completed),),
        "failed": ((insert, claimed), (update, claimed)),
        "again": ((insert, claimed), (update, claimed), (update, completed)),  # refused, taken over, completed
    }[what]
    calls: dict[str, float] = {}
    for call, _ in steps:
        calls[call] = calls.get(call, 0) + 1 / batch
    counter = 1 / COUNTED_RUNS if what in ("first", "again") else 0.0
    return Usage(calls=calls, write_units=sum(units for _, units in steps) + counter)


def _rows(way: Way, traffic: Traffic, batch: float) -> Usage:
    """One row of history for each message, written together."""
    if not way.table or way.history == "off":
        return Usage()
    calls = math.ceil(batch * ITEMS_PER_ROW / LEDGER_ITEMS_MAX) / batch
    units = ITEMS_PER_ROW * _units(ROW_BYTES + traffic.key_bytes)
    return Usage(calls={"dynamodb:BatchWriteItem": calls}, write_units=units) + _stored(
        way, traffic, rows=1, record=False
    )


def _full_rows(path: Path, way: Way, traffic: Traffic) -> Usage:
    """What history `full` keeps besides `brief`: the rows sent, received, started and completed of every message."""
    if not way.table:
        return Usage()
    rows = {"first": 4, "duplicate": 2, "retry": 6}[path]
    units = rows * ITEMS_PER_ROW * _units(ROW_BYTES + traffic.key_bytes)
    calls = rows * ITEMS_PER_ROW / LEDGER_ITEMS_MAX
    return Usage(calls={"dynamodb:BatchWriteItem": calls}, write_units=units) + _stored(
        way, traffic, rows=rows, record=False
    )


def _stored(way: Way, traffic: Traffic, *, rows: int, record: bool = True) -> Usage:
    """Storing the record and the rows until they expire."""
    if not way.table:
        return Usage()
    months = way.keep_ms / limits.DAY_MS / MONTH_DAYS
    completed = RECORD_BYTES + COMPLETED_BYTES + traffic.key_bytes + traffic.result_bytes + ITEM_OVERHEAD_BYTES
    row_months = ROWS_KEPT_DAYS / MONTH_DAYS
    row = ITEMS_PER_ROW * (ROW_BYTES + traffic.key_bytes + ITEM_OVERHEAD_BYTES)
    return Usage(stored_byte_months=(completed * months if record else 0) + rows * row * row_months)


def _units(size_bytes: int) -> int:
    return max(1, math.ceil(size_bytes / WRITE_UNIT_BYTES))


def _chunks(size_bytes: int) -> int:
    return max(1, math.ceil(size_bytes / SQS_CHUNK_BYTES))
