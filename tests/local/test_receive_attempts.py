"""What the local SQS keeps for a repeated ReceiveRequestAttemptId, and how much of it."""

from __future__ import annotations

from onefold.contracts.queue import Attribute, Delivery
from onefold.local.sqs_service import ATTEMPT_MS, ReceiveAttempts

NOW_MS = 1_700_000_000_000


def delivery(number: int, size: int = 1_000) -> Delivery:
    return Delivery(
        queue="q.fifo", message_id=f"m-{number}", receipt=f"r-{number}", body="x" * size, attributes={"a": Attribute("b")},
        receive_count=1, sent_at_ms=NOW_MS, first_received_at_ms=NOW_MS, received_at_ms=NOW_MS,
        visible_ms=30_000,
    )  # fmt: skip


def test_an_attempt_is_kept_for_five_minutes_and_its_visibility() -> None:
    attempts = ReceiveAttempts()
    attempts.keep("q.fifo", "a", [delivery(1)], ATTEMPT_MS * 2, NOW_MS)
    attempts.keep("q.fifo", "b", [delivery(2)], 30_000, NOW_MS)
    assert attempts.recall("q.fifo", "b", NOW_MS + 29_999) == [delivery(2)]
    assert attempts.recall("q.fifo", "b", NOW_MS + 30_000) is None
    assert attempts.recall("q.fifo", "a", NOW_MS + ATTEMPT_MS - 1) == [delivery(1)]
    assert attempts.recall("q.fifo", "a", NOW_MS + ATTEMPT_MS) is None


def test_the_oldest_attempts_make_room_for_a_new_one() -> None:
    attempts = ReceiveAttempts(bytes_max=10_000)
    for number in range(50):
        attempts.keep("q.fifo", f"a-{number}", [delivery(number)], 30_000, NOW_MS + number)
    kept = [number for number in range(50) if attempts.recall("q.fifo", f"a-{number}", NOW_MS + 50) is not None]
    assert kept == [46, 47, 48, 49]
    attempts.keep("q.fifo", "large", [delivery(60, 20_000)], 30_000, NOW_MS)
    assert attempts.recall("q.fifo", "large", NOW_MS) is None


def test_what_is_over_makes_room_without_a_new_request_for_it() -> None:
    attempts = ReceiveAttempts(bytes_max=10_000)
    for number in range(4):
        attempts.keep("q.fifo", f"a-{number}", [delivery(number)], 0, NOW_MS)
        assert attempts.recall("q.fifo", f"a-{number}", NOW_MS) is None
    for number in range(4):
        attempts.keep("q.fifo", f"a-{number}", [delivery(number)], 1_000, NOW_MS)
    attempts.keep("q.fifo", "new", [delivery(9)], 30_000, NOW_MS + 1_000)
    assert [attempts.recall("q.fifo", f"a-{number}", NOW_MS) for number in range(4)] == [None] * 4
    attempts.touched("q.fifo", "r-9")
    assert attempts.recall("q.fifo", "new", NOW_MS + 1_000) is None
    for _ in range(100):  # a repeat does not count twice
        attempts.keep("q.fifo", "same", [delivery(1)], 30_000, NOW_MS)
    attempts.keep("q.fifo", "other", [delivery(2)], 30_000, NOW_MS)
    assert attempts.recall("q.fifo", "same", NOW_MS) == [delivery(1)]
