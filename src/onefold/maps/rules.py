"""A declared map run (`MapSpec`), and its decisions that are pure arithmetic: when it has failed, what is retried.

One value describes a map run on both sides: `maps/mapper.py` performs it on the embedded engine, `deploy/` writes it as
a Distributed Map state. The rules are exactly those of Step Functions (developer guide, pages named at each function).
The consequence of an item's failure is decided here too (`ItemFailures`). Each retrier counts its own retries over the
item's whole life, so it needs the errors of earlier runs; the ledger has them, because it always keeps the outcomes of
a run's operations. A redrive begins a new count. A caught item counts as succeeded, with the result `{"Error",
"Cause"}`; the message to the operations queue is sent when its record is written (outbox).

Never here: files, queues, reading records, clocks; random numbers are passed in as fractions. Result formats are in
`results.py`.
Invariants: the same spec over the same items makes the same children, in the same order, with the same names. The same
errors in the same order have the same outcome as in Step Functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Final, Generic, Literal, Protocol, TypeVar, get_args

from msgspec import Raw, Struct, json
from msgspec.structs import replace

from onefold import errors, limits
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Delivery
from onefold.contracts.store import OutboxItem
from onefold.options import check_whole
from onefold.record.delivery import Failed, Outcome, Success

Format = Literal["csv", "json", "jsonl", "listing"]
Delimiter = Literal["comma", "pipe", "semicolon", "space", "tab"]
Ragged = Literal["quarantine", "pad"]
ItemJitter = Literal["full", "none"]

DELIMITERS: Final = {"comma": ",", "pipe": "|", "semicolon": ";", "space": " ", "tab": "\t"}  # CSVDelimiter
CONCURRENCY_DEFAULT: Final = 1_000
CONCURRENCY_MAX: Final = 10_000  # DG service-quotas: parallel child executions of a Map Run
CHILD_BYTES_MAX: Final = 262_144  # DG input-output-itembatcher: MaxInputBytesPerBatch, and any child's input
HEADER_BYTES_MAX: Final = 10_240  # DG input-output-itemreader: headers up to 10 KiB
ITEMS_MAX: Final = 100_000_000  # DG input-output-itemreader: MaxItems
REDRIVES_MAX: Final = 1_000  # DG redrive-map-run: redrives of one Map Run
_RETRIES_MAX: Final = 99_999_999  # DG concepts-error-handling: MaxAttempts and IntervalSeconds
_MAX_DELAY_MS_MAX: Final = 31_622_400_000  # same: MaxDelaySeconds
_NOT_IN_ALL: Final = ("States.DataLimitExceeded", "States.Runtime")  # same: States.ALL does not cover these

EXCEEDED: Final = "States.ExceedToleratedFailureThreshold"
EXCEEDED_CAUSE: Final = "The specified tolerated failure threshold was exceeded"  # AWS's text, observed
BUSY: Final = "ChildBusy"  # on Step Functions: the child runs in another invocation, or this one had no time left
TIMEOUT: Final = "HandlerTimeout"  # onefold's name for what Step Functions calls States.Timeout


class ItemReader(Struct, frozen=True, kw_only=True):
    """Where items come from and how they are read.

    Args:
        format: csv, json (one array), jsonl (one value per line), listing (a directory or an S3 prefix, one item per
            file).
        header: CSV: the names of the columns; None: the first row has them.
        delimiter: CSV: comma, pipe, semicolon, space or tab.
        quote: CSV: the character around a value that contains a delimiter or a line end.
        encoding: of text: utf-8 (a byte order mark is skipped), ascii, latin-1 or cp1252.
        ragged: CSV: what happens to a row with too few or too many cells: `quarantine`, or `pad` with "" and cut, as
            AWS does.
        items_max: read at most this many items, 1 to 100,000,000; None for all.
    """

    format: Format = "csv"
    header: tuple[str, ...] | None = None
    delimiter: Delimiter = "comma"
    quote: str = '"'
    encoding: str = "utf-8"
    ragged: Ragged = "quarantine"
    items_max: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("format", Format), ("delimiter", Delimiter), ("ragged", Ragged)):
            if getattr(self, name) not in get_args(allowed):
                raise errors.UsageError(
                    f"{name}={getattr(self, name)!r} is not known.", todo=f"It is {_listed(get_args(allowed))}."
                )
        encodings = ("utf-8", "ascii", "latin-1", "cp1252")
        if self.encoding not in encodings:
            raise errors.UsageError(
                f"encoding={self.encoding!r} is not known.",
                meaning="Lines are found in the bytes, so only encodings that keep ASCII as it is can be read.",
                todo=f"It is {_listed(encodings)}; convert anything else first, for example with iconv.",
            )
        if len(self.quote) != 1 or self.quote in (*DELIMITERS.values(), "\r", "\n"):
            raise errors.UsageError(
                f"quote={self.quote!r} is not a quote character.", todo="""Use one sign, such as '"'."""
            )
        if self.items_max is not None:
            check_whole(self.items_max, "items_max", 1, ITEMS_MAX)
        if self.header is not None:
            check_header(self.header)


def check_header(names: Sequence[str]) -> None:
    """Refuse a CSV header that cannot name columns.

    Raises:
        UsageError: it is empty, has a name twice ("CSV headers cannot contain duplicates."), or exceeds 10 KiB.
    """
    if not names or all(not name.strip() for name in names):
        raise errors.UsageError(
            "The CSV header names no column.", todo="Give header=[...], or a file with a first row."
        )
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise errors.UsageError(
                f"The CSV header has the column {name!r} twice.",
                meaning="CSV headers cannot contain duplicates.",
                todo="Rename one of them, or give header=[...].",
            )
        seen.add(name)
    size = sum(len(name.encode()) + 1 for name in names)
    if size > HEADER_BYTES_MAX:
        raise errors.UsageError(
            f"The CSV header has {size} bytes.", todo=f"It may have {HEADER_BYTES_MAX}; is the delimiter right?"
        )


class ItemBatch(Struct, frozen=True, kw_only=True):
    """How items are put together into one child (ItemBatcher).

    Args:
        items_max: most items of one child, 1 or more; None: as many as `bytes_max` allows.
        bytes_max: most bytes of one child's items as JSON, 1 to 262,144; None: 262,144.
    """

    items_max: int | None = None
    bytes_max: int | None = None

    def __post_init__(self) -> None:
        if self.items_max is None and self.bytes_max is None:
            raise errors.UsageError("This batch has no bound.", todo="Give items_max, bytes_max, or both.")
        if self.items_max is not None:
            check_whole(self.items_max, "batch.items_max", 1)
        if self.bytes_max is not None:
            check_whole(self.bytes_max, "batch.bytes_max", 1, CHILD_BYTES_MAX)


Batch = ItemBatch  # its name before December 2026


class Tolerated(Struct, frozen=True, kw_only=True):
    """How many items may fail: none, if neither bound is given. If both are given, exceeding either one ends the run.

    Args:
        count: number of items, 0 or more (ToleratedFailureCount).
        percent: percentage of all items, 0 to 100 (ToleratedFailurePercentage).
    """

    count: int | None = None
    percent: float | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            check_whole(self.count, "tolerated_count", 0)
        if self.percent is not None and (type(self.percent) not in (int, float) or not 0 <= self.percent <= 100):
            raise errors.UsageError(
                f"tolerated_percent={self.percent!r:.80} is not a percentage.",
                todo="It is a number from 0 to 100, without a percent sign: tolerated_percent=2.",
            )


class Retrier(Struct, frozen=True, kw_only=True):
    """What is tried again, and when (one entry of Retry; page concepts-error-handling).

    Args:
        errors: names of exception classes, with or without module; States.ALL, States.TaskFailed, States.Timeout.
        interval_ms: pause before the first retry, 1 ms or more. backoff: factor per retry, 1.0 or more.
        retries: how many at most, 0 for none.
        max_delay_ms: longest pause; None for no limit. jitter: `full` draws each pause from 0 to the computed one.
    """

    errors: tuple[str, ...]
    interval_ms: int = 1_000
    backoff: float = 2.0
    retries: int = 3
    max_delay_ms: int | None = None
    jitter: ItemJitter = "none"

    def __post_init__(self) -> None:
        check_names(self.errors, "retry.errors")
        for what, value, fits, rule in (
            ("interval", self.interval_ms, 1 <= self.interval_ms <= _RETRIES_MAX * 1_000, "1 ms to 99,999,999 s"),
            ("backoff", self.backoff, self.backoff >= 1, "1.0 or more"),
            ("retries", self.retries, 0 <= self.retries <= _RETRIES_MAX, "0 to 99,999,999"),
            ("jitter", self.jitter, self.jitter in get_args(ItemJitter), "full or none"),
        ):
            if not fits:
                raise errors.UsageError(f"retry.{what}={value!r} is out of range.", todo=f"It is {rule}.")
        if self.max_delay_ms is not None and not self.interval_ms < self.max_delay_ms <= _MAX_DELAY_MS_MAX:
            raise errors.UsageError(
                f"retry.max_delay={self.max_delay_ms} ms is out of range.",
                todo="It is longer than the interval, and at most 31,622,400 s.",
            )


class Catcher(Struct, frozen=True, kw_only=True):
    """The queue that is informed of an item that failed for good (one entry of Catch).

    The message is `{"Error", "Cause", "Input", "Name", "Map"}`. As in Step Functions, a caught item has *succeeded*:
    its output is `{"Error", "Cause"}`, and it does not count as a failure to be tolerated.

    Args:
        errors: as in `Retrier`.
        queue: name of the operations queue.
    """

    errors: tuple[str, ...]
    queue: str

    def __post_init__(self) -> None:
        check_names(self.errors, "catch.errors")


class MapSpec(Struct, frozen=True, kw_only=True):
    """A declared map run.

    Args:
        name: the name of the map and its job; runs are named `<name>/...`.
        queue: name of the queue for its children's messages.
        reader: how items are read. source: path, directory or s3:// URL; None: given when a run starts.
        batch: items per child; None for one item each, without a list around it.
        concurrency: most children that are sent and not finished, 1 to 10,000.
        tolerated: how many items may fail. retry, catch: in order; the first entry that names an error decides.
        timeout_ms: the timeout of one child.
        results: directory or s3:// URL of the result files; None: next to the engine.
    """

    name: str
    queue: str
    reader: ItemReader = ItemReader()
    source: str | None = None
    batch: ItemBatch | None = None
    concurrency: int = CONCURRENCY_DEFAULT
    tolerated: Tolerated = Tolerated()
    retry: tuple[Retrier, ...] = ()
    catch: tuple[Catcher, ...] = ()
    timeout_ms: int = 5 * limits.MINUTE_MS
    results: str | None = None

    def __post_init__(self) -> None:
        check_whole(self.concurrency, "concurrency", 1, CONCURRENCY_MAX)
        for what, clauses in (("retry", self.retry), ("catch", self.catch)):
            for clause in clauses[:-1]:
                if "States.ALL" in clause.errors:
                    raise errors.UsageError(
                        f"{what} of {self.name} has States.ALL before another entry.",
                        meaning="The entries after it would never be reached.",
                        todo="Put States.ALL last.",
                    )

    @property
    def retriers(self) -> tuple[Retrier, ...]:
        """The entries of `retry` in order, after one that never retries PermanentError unless an entry names it."""
        if not self.retry or any("PermanentError" in one.errors for one in self.retry):
            return self.retry
        return (Retrier(errors=("PermanentError",), retries=0), *self.retry)

    @property
    def runs_max(self) -> int:
        """The most runs that one child can have: the first, and every retry of every entry."""
        return 1 + sum(one.retries for one in self.retry)


def check_names(names: Sequence[str], what: str) -> None:
    """Refuse lists of error names that could never match as meant.

    Raises:
        UsageError: there is no name, an empty one, or States.ALL together with others.
    """
    if not names or not all(str(name).strip() for name in names):
        raise errors.UsageError(f"{what}={names!r} names no error.", todo='For example ["ConnectionError"].')
    if "States.ALL" in names and len(names) > 1:
        raise errors.UsageError(
            f"{what}={list(names)!r} has States.ALL together with others.", todo="States.ALL must stand alone."
        )


# ------------------------------------------------------------------------------------------------------- the threshold


def exceeded(tolerated: Tolerated, failed: int, total: int | None) -> Literal["count", "percent"] | None:
    """Which bound the failures have exceeded; None if they are tolerated.

    Exceeded means: strictly more than the count, or failed / total * 100 strictly more than the percentage (page
    state-map-distributed). So an equal number is tolerated, and 100 % never ends a run. Items count, not children: all
    items of a failed batch have failed.

    Args:
        failed: how many items failed or timed out.
        total: how many items there are; None while that is not known, and then the percentage is not checked.
    """
    count = 0 if tolerated.count is None and tolerated.percent is None else tolerated.count
    if count is not None and failed > count:
        return "count"
    if tolerated.percent is not None and total is not None and failed * 100 > Decimal(str(tolerated.percent)) * total:
        return "percent"
    return None


# ---------------------------------------------------------------------------------------------------- retry and catch


def matches(names: Sequence[str], error: str) -> bool:
    """Whether a list of names (ErrorEquals) names an error.

    Names are compared, not classes, so a subclass does not match. A name without a module matches in every module.

    Args:
        error: the class's name, after its module if it has one, for example `requests.exceptions.ConnectionError`.
    """
    timed_out = error in (TIMEOUT, "States.Timeout")
    for name in names:
        if name == "States.ALL":
            return error not in _NOT_IN_ALL
        if (name == "States.TaskFailed" and not timed_out) or (name == "States.Timeout" and timed_out):
            return True
        module, _, short = name.rpartition(".")
        if short == error.rpartition(".")[2] and (not module or error == name or error.startswith(f"{module}.")):
            return True
    return False


def retry_ms(retriers: Sequence[Retrier], error: str, earlier: Sequence[str], fraction: float) -> int | None:
    """How long to wait before the item is tried again; None if it has failed.

    The first entry that names the error decides. Each entry counts its own retries over the item's whole life, so
    errors that another entry names use up none of its retries. The pause is min(interval * backoff^(n-1), max_delay).

    Args:
        error: the error of the run that has just failed. earlier: errors of the runs that failed before it, in order.
        fraction: a random number from [0, 1).
    """
    for index, one in enumerate(retriers):
        if matches(one.errors, error):
            used = sum(_first(retriers, before) == index for before in earlier)
            if used >= one.retries:
                return None
            most_ms = min(one.max_delay_ms or _MAX_DELAY_MS_MAX, _MAX_DELAY_MS_MAX)
            # The exponent is bounded so that the float cannot overflow; the cap is reached long before.
            pause_ms = int(min(one.interval_ms * one.backoff ** min(used, 200), most_ms))
            return int(pause_ms * fraction) if one.jitter == "full" else pause_ms
    return None


def _first(retriers: Sequence[Retrier], error: str) -> int | None:
    return next((index for index, one in enumerate(retriers) if matches(one.errors, error)), None)


def catcher(catch: Sequence[Catcher], error: str) -> Catcher | None:
    """The first entry that names an error; None if nothing catches it."""
    return next((one for one in catch if matches(one.errors, error)), None)


# ------------------------------------------------------------------------------------------------------------ batches


class Sized(Protocol):
    """Something that has a size as JSON."""

    @property
    def size(self) -> int:
        """Bytes as JSON."""
        ...


S = TypeVar("S", bound=Sized)


class Batcher(Generic[S]):
    """Puts items together. An item that alone exceeds the bound becomes a batch of one, which the queue refuses."""

    def __init__(self, batch: ItemBatch) -> None:
        self._items_max = batch.items_max or ITEMS_MAX
        self._bytes_max = batch.bytes_max or CHILD_BYTES_MAX
        self._items: list[S] = []
        self._size = 1  # the first bracket

    def add(self, item: S) -> list[S] | None:
        """Add an item; returns the batch before it if that is full, else None."""
        full = bool(self._items) and (
            len(self._items) >= self._items_max or self._size + item.size + 1 > self._bytes_max
        )
        done = self.rest() if full else None
        self._size += item.size + 1  # including a comma or the last bracket
        self._items.append(item)
        return done

    def rest(self) -> list[S] | None:
        """Remove and return the items that are left, None if there are none: at the end, or to keep the order."""
        items, self._items, self._size = self._items, [], 1
        return items or None


def batched(items: Iterable[S], batch: ItemBatch) -> Iterator[list[S]]:
    """All items in batches, in order: 1,130 items by 100 are 12 batches."""
    batcher: Batcher[S] = Batcher(batch)
    for item in items:
        done = batcher.add(item)
        if done is not None:
            yield done
    last = batcher.rest()
    if last is not None:
        yield last


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


_PERMANENT = "PermanentError"


class ItemFailures(Struct, frozen=True):
    """Decides the outcome of an item's failure by a map's rules.

    Args:
        spec: the spec of the map.
    """

    spec: MapSpec

    def judge(
        self, failed: Failed, delivery: Delivery, earlier: Callable[[], Sequence[Row]], fraction: float
    ) -> Outcome:
        """The outcome of a run that failed.

        Args:
            failed: what the handler's exception means without the rules. delivery: the delivery of the item.
            earlier: returns the history of the operation, in order; called only if it is needed.
            fraction: a random number from [0, 1).

        Returns:
            The failure, either transient with the exact pause or permanent; a success if it was caught. A failure
            because a dependency is down is returned unchanged: it uses no attempt, and the job is paused.
        """
        if failed.kind == "dependency-down":
            return failed
        error, before = failed.error, _errors_of(earlier())
        if failed.kind == "permanent" and not self._is_named(error):
            error = _PERMANENT
            before = [_PERMANENT if self._was_permanent(one, failed.error) else one for one in before]
        wait_ms = retry_ms(self.spec.retriers, error, before, fraction)
        if wait_ms is not None:
            wait_ms = min(max(wait_ms, failed.retry_in_ms or 0), limits.VISIBILITY_MS_MAX)
            return replace(failed, kind="transient", retry_in_ms=wait_ms)
        caught = catcher(self.spec.catch, failed.error)
        if caught is None:
            return replace(failed, kind="permanent")
        output = {"Error": failed.error, "Cause": failed.summary}
        item = {"Input": Raw(delivery.body.encode()), "Name": delivery.key or "", "Map": self.spec.name}
        body = json.encode(output | item).decode()
        return Success(result=json.encode(output), outbox=[OutboxItem(queue=caught.queue, body=body, key=delivery.key)])

    def _is_named(self, error: str) -> bool:
        """Whether a retrier names this error itself, not only a name for all errors."""
        names = [name for one in self.spec.retry for name in one.errors if not name.startswith("States.")]
        return matches(names, error)

    def _was_permanent(self, error: str, now: str) -> bool:
        """Whether an earlier error that was retried was a permanent one; the ledger has only the class's name."""
        return error == now or not any(matches(one.errors, error) for one in self.spec.retriers)


def _errors_of(rows: Sequence[Row]) -> list[str]:
    """The errors of an operation's runs that were retried, in order, since its last redrive."""
    found: list[str] = []
    for row in rows:
        if row.event == "redrive":
            found = []
        elif row.event == "retry":
            found.append(str(row.detail.get("error")))
    return found
