"""How long a FIFO topic knows what was published to it, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import Any

from onefold.local.topics import DEDUP_MS, Publication, Topic, Topics


def test_a_duplicate_is_known_for_five_minutes_and_then_forgotten() -> None:
    now_ms = 0
    numbers = count(1)
    sqs: Any = SimpleNamespace(queues=SimpleNamespace(timers=SimpleNamespace(now_ms=lambda: now_ms)))
    topics = Topics(sqs, lambda: f"m-{next(numbers)}")
    topic = Topic(arn="arn:aws:sns:us-east-1:000000000000:o.fifo", fifo=True, content_dedup=True)

    def publish(text: str) -> str:
        return asyncio.run(topics.publish(topic, Publication(message=text, group="g"))).message_id

    assert [publish("a"), publish("b"), publish("a")] == ["m-1", "m-2", "m-1"]
    now_ms = DEDUP_MS - 1
    assert [publish("c"), publish("b")] == ["m-3", "m-2"]
    now_ms = DEDUP_MS
    assert [publish("c"), publish("b")] == ["m-3", "m-4"]
    assert len(topics._seen) == 2  # a is not kept for longer than it counts
    now_ms = 10 * DEDUP_MS
    assert publish("c") == "m-5"
    assert len(topics._seen) == 1
