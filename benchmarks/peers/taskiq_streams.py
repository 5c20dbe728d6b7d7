"""Taskiq on Redis streams: one worker process, an `async def` task, acknowledged after it ran.

Not the defaults: `consumer_id="0"`, so that the worker sees jobs sent before it first started. An acknowledged entry
stays in the stream, as by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from taskiq_redis import RedisStreamBroker

from benchmarks import probe

broker = RedisStreamBroker(probe.redis_url(), consumer_id="0")
run = probe.handler()
loop = asyncio.new_event_loop()


def connect() -> None:
    """Connects the sending process; the worker's command connects its own."""
    loop.run_until_complete(broker.startup())


@broker.task
async def job(text: str) -> None:
    run(probe.note(text))


def send(text: str) -> None:
    loop.run_until_complete(job.kiq(text))


def send_many(texts: Sequence[str]) -> None:
    """Taskiq has no bulk call: a hundred sends are under way at once."""

    async def all_of_them() -> None:
        for start in range(0, len(texts), 100):
            await asyncio.gather(*(job.kiq(text) for text in texts[start : start + 100]))

    loop.run_until_complete(all_of_them())


def work() -> None:
    probe.become(
        "taskiq",
        "worker",
        "benchmarks.peers.taskiq_streams:broker",
        "--workers",
        "1",
        "--log-level",
        "WARNING",
    )
