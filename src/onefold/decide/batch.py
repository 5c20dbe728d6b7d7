"""Decisions of a Lambda handler about its batch: what may begin now, what there is time for, and which ids the answer names.

Lambda deletes every message that the answer does not name (`batchItemFailures`), so whatever is not known to be done is
named. Order is a FIFO group's: behind a message that stays nothing of its group begins. A message that was moved to a
dead-letter or held queue is done with here; whether its group follows it is the job's `after_failure`.
What the mapping makes of an answer is `lambdas/batching.py`.
Never here: clocks, deliveries, settling. Invariant: a message is left out of the answer only when every receive of it in
the batch is done.

Sources: Lambda developer guide, "Using Lambda with Amazon SQS", "Handling errors" (partial batch responses; FIFO: return the
failed and all unprocessed messages).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Literal

    OnFailure = Literal["group", "batch"]
    """What a message that stays holds up: what is behind it in its FIFO group, or everything behind it in the batch."""

LONGEST_TIMES: Final = 3  # ours: a job that has no useful timeout is given so many times its longest run
LONGEST_KEPT: Final = 0.9  # ours: the longest run fades by so much with every run, so that one slow run is forgotten


def may_begin(group: str | None, stays: Collection[str | None], running: int, on_failure: OnFailure) -> bool:
    """Whether the next message of a batch may begin.

    Args:
        group: its FIFO group; None on a standard queue.
        stays: the groups of the messages that are to be named in the answer; None stands for those without one.
        running: how many messages of the batch have begun and are not settled. Those of one group, or key, wait for each
            other by themselves.
        on_failure: `batch`: one after the other in the order of the batch, and nothing after one that stays.
    """
    if on_failure == "batch":
        return not stays and running == 0
    return group is None or group not in stays


def has_time(timeout_ms: int, longest_ms: int | None, left_ms: int, whole_ms: int, *, fresh: bool) -> bool:
    """Whether there is time to start a run, so that the invocation's end does not cut it off.

    A timeout that fits into an invocation is a promise, and is kept: the run starts only with all of it left. One that is
    longer promises nothing; then what runs of the job have taken so far decides.

    Args:
        timeout_ms: of the job.
        longest_ms: what its runs took at most (`next_longest`); None: none has ended yet.
        left_ms: until the invocation must begin to end. whole_ms: the same, when it began.
        fresh: nothing has been started in this invocation: giving back would not bring more time.
    """
    if fresh:
        return True
    if timeout_ms <= whole_ms:
        return left_ms >= timeout_ms
    if longest_ms is None:
        return 2 * left_ms >= whole_ms
    return left_ms >= min(LONGEST_TIMES * longest_ms, whole_ms)


def next_longest(longest_ms: int | None, took_ms: int) -> int:
    """The longest run of a job, after one more."""
    return took_ms if longest_ms is None else max(took_ms, int(longest_ms * LONGEST_KEPT))


def failures(receives: Iterable[tuple[str, bool]]) -> list[str]:
    """The message ids that the answer names, each once, in the order of the batch.

    Args:
        receives: message id, and whether this receive of it is done: its effect is recorded, or it was moved to another
            queue. A standard queue may put one message into a batch twice.
    """
    done: dict[str, bool] = {}
    for message_id, is_done in receives:
        done[message_id] = done.get(message_id, True) and is_done
    return [message_id for message_id, is_done in done.items() if not is_done]


def answer(failed: Iterable[str]) -> dict[str, Any]:
    """The answer to Lambda that keeps these messages; every other message of the batch is deleted."""
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}
