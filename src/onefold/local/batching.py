"""The decisions of a queue's Lambda event source mapping: batches, concurrency, what a response means.

Pure: times, sizes and random numbers are passed in, so that a test can drive it. The rules are Lambda's where they are
documented; if only the direction is documented (how fast errors slow a mapping down), the number is our own choice.
Never here: receiving, invoking, deleting. Invariant: a message is deleted only if its function reported it as done, or if no
filter of its mapping matches it.

Sources: Lambda developer guide, "Using Lambda with Amazon SQS", "Scaling", "Handling errors". Filters: `events/patterns.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final, Literal

from msgspec import Struct

from onefold import limits

RECEIVE_MAX: Final = limits.BATCH_ENTRIES_MAX  # one receive of SQS gives at most 10
POLL_MS: Final = 20 * limits.SECOND_MS  # Lambda waits as long as SQS's long poll allows
START_CONCURRENCY: Final = 5  # "Scaling": five concurrent batches at first
IDLE_CONCURRENCY: Final = 2  # same: as few as two without traffic, unless a maximum concurrency is set
GROWTH_PER_MINUTE: Final = 300  # same: up to 300 more concurrent invocations a minute
CONCURRENCY_CAP: Final = 1_250  # same: the maximum for one mapping
IDLE_MS: Final = limits.MINUTE_MS  # our choice: after this long without a message, traffic has ended
ERROR_SHARE: Final = (
    0.9  # our choice: the share of the concurrency left by a second with function errors; Lambda says "gradually"
)
THROTTLE_FIRST_MS: Final = 100  # our choice: the first pause after a throttled invocation; it doubles
THROTTLE_MAX_MS: Final = 20 * limits.SECOND_MS  # our choice: the longest pause


# -- batches -----------------------------------------------------------------------------------------------------------


class BatchRule(Struct, frozen=True, kw_only=True):
    """When a batch is complete.

    Args:
        size: the most messages. window_ms: how long it is collected, from its first message.
        event_bytes_max: the most bytes of its event.
    """

    size: int
    window_ms: int
    event_bytes_max: int


def receive_next(
    rule: BatchRule, count: int, first_at_ms: int | None, now_ms: int, until_ms: int | None = None
) -> tuple[int, int] | None:
    """How many messages to receive next, and how many ms to wait for them; None if the batch is complete.

    A window longer than the visibility ends with it: a message that waited longer would be received again, would be in
    the batch twice, and could be dead-lettered without having been delivered. Lambda does not document this case.

    Args:
        count: messages in the batch. first_at_ms: when it got its first one; None while it has none.
        until_ms: when the first of its messages becomes visible again.
    """
    if first_at_ms is None or not count:
        return min(RECEIVE_MAX, rule.size), POLL_MS
    end_ms = first_at_ms + rule.window_ms
    left_ms = (end_ms if until_ms is None else min(end_ms, until_ms)) - now_ms
    if count >= rule.size or left_ms <= 0:
        return None
    return min(RECEIVE_MAX, rule.size - count), min(left_ms, POLL_MS)


# -- how many at one time ----------------------------------------------------------------------------------------------


class Scale(Struct, frozen=True, kw_only=True):
    """The most batches that a mapping has in progress.

    Args:
        concurrency: the present value; it grows by fractions.
        at_ms: when it was computed.
        quiet_since_ms: since when no message has come.
    """

    concurrency: float
    at_ms: int
    quiet_since_ms: int


class Seen(Struct, frozen=True, kw_only=True):
    """What a mapping has seen since the last check.

    Args:
        busy: all pollers had a batch. messages: received ones. errors: function errors. throttles: throttled
            invocations.
    """

    busy: bool
    messages: int
    errors: int
    throttles: int


def first_scale(now_ms: int, concurrency_max: int | None, *, fifo: bool = False) -> Scale:
    """The scale of a mapping that was just enabled.

    Args:
        fifo: a FIFO queue has no growth: it starts at the maximum, and the queue's locks allow one batch for each
            active group.
    """
    start = CONCURRENCY_CAP if fifo else START_CONCURRENCY
    return Scale(concurrency=min(start, concurrency_max or start), at_ms=now_ms, quiet_since_ms=now_ms)


def next_scale(
    scale: Scale,
    seen: Seen,
    now_ms: int,
    *,
    concurrency_max: int | None,
    reports_failures: bool,
    fifo: bool = False,
) -> Scale:
    """The concurrency after what was seen; call it once a second.

    It grows by 300 a minute while everything is busy, falls back if nothing comes, falls gradually on function errors
    unless the mapping reports batch item failures, and does not grow while invocations are throttled. On a FIFO queue
    it does not fall back, and grows back after errors while messages come.
    """
    elapsed_ms = max(0, now_ms - scale.at_ms)
    ceiling = min(CONCURRENCY_CAP, concurrency_max or CONCURRENCY_CAP)
    floor = min(IDLE_CONCURRENCY, ceiling)
    concurrency = scale.concurrency
    quiet_since_ms = now_ms if seen.messages else scale.quiet_since_ms
    if seen.errors and not reports_failures:
        concurrency = max(floor, concurrency * ERROR_SHARE ** max(1.0, elapsed_ms / limits.SECOND_MS))
    elif seen.throttles:
        pass
    elif seen.busy or (fifo and seen.messages):
        concurrency = min(ceiling, concurrency + GROWTH_PER_MINUTE * elapsed_ms / limits.MINUTE_MS)
    elif fifo:
        pass
    elif now_ms - quiet_since_ms >= IDLE_MS:
        concurrency = min(concurrency, ceiling, START_CONCURRENCY if concurrency_max is not None else IDLE_CONCURRENCY)
    elif not seen.messages:
        concurrency = min(concurrency, max(START_CONCURRENCY, floor))
    return Scale(concurrency=concurrency, at_ms=now_ms, quiet_since_ms=quiet_since_ms)


def throttle_pause_ms(tries: int, until_ms: int, now_ms: int, chance: float) -> int | None:
    """The ms to wait before a throttled batch is invoked again; None if its visibility has ended: Lambda drops it.

    Args:
        tries: how often it was throttled, 1 or more. until_ms: when the first of its messages becomes visible again.
        chance: drawn evenly from [0, 1).
    """
    left_ms = until_ms - now_ms
    if left_ms <= 0:
        return None
    pause_ms = min(THROTTLE_MAX_MS, THROTTLE_FIRST_MS << min(tries - 1, 16))
    return min(left_ms, int(pause_ms / 2 + pause_ms / 2 * chance))


# -- what an answer means --------------------------------------------------------------------------------------------------


class BatchVerdict(Struct, frozen=True):
    """The outcome of a batch.

    Args:
        kind: `done`: all are deleted; `some`: `failed` stay, the others are deleted; `none`: none is deleted.
        failed: message ids that stay until their visibility ends.
        why: one sentence for a person.
    """

    kind: Literal["done", "some", "none"]
    failed: frozenset[str] = frozenset()
    why: str = ""


_DONE: Final = BatchVerdict("done")


def read_answer(payload: bytes, message_ids: Collection[str], *, reports_failures: bool) -> BatchVerdict:
    """What a function's answer means for its batch: the table of Lambda's "partial batch responses", row by row.

    Args:
        payload: what the handler returned, as JSON. message_ids: those of the batch, as the function saw them.
        reports_failures: ReportBatchItemFailures is set; without it any answer is a success.
    """
    if not reports_failures:
        return _DONE
    try:
        answer = json.loads(payload, parse_constant=_refuse_constant) if payload else None
    except (ValueError, RecursionError):
        return BatchVerdict("none", why="the answer is not valid JSON, so the whole batch counts as failed")
    if not isinstance(answer, dict):
        if answer is None:
            return _DONE
        return BatchVerdict(
            "none", why=f"the answer is a {_kind(answer)}, not an object, so the whole batch counts as failed"
        )
    failures = answer.get("batchItemFailures")
    if failures is None or failures == []:
        return _DONE
    if not isinstance(failures, list):
        return BatchVerdict("none", why="batchItemFailures is not a list, so the whole batch counts as failed")
    failed: set[str] = set()
    for failure in failures:
        identifier = failure.get("itemIdentifier") if isinstance(failure, dict) else None
        if not isinstance(identifier, str) or not identifier:
            return BatchVerdict(
                "none", why="an itemIdentifier is missing, empty or not text, so the whole batch counts as failed"
            )
        if identifier not in message_ids:
            return BatchVerdict(
                "none",
                why="an itemIdentifier names a message that is not in the batch, so the whole batch counts as failed",
            )
        failed.add(identifier)
    return BatchVerdict("some", frozenset(failed), f"{len(failed)} of {len(message_ids)} were reported as failed")


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _kind(value: object) -> str:
    return {bool: "boolean", int: "number", float: "number", str: "text", list: "list"}.get(type(value), "value")
