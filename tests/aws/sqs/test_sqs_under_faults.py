"""Nothing is lost, whatever the wire does: sends, deletes, burials and moves under faults drawn from a seed.

Faults: an answer that never comes after the server has done it, a throttled call that does nothing, entries of a batch that
fail. Against `onefold serve` on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from onefold import errors, limits
from onefold.contracts.entries import Entry
from onefold.contracts.queue import MoveTo, RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.contracts.verbs import Queue
from onefold.engines.aws import inspecting
from onefold.engines.aws.sqs import Sqs
from onefold.engines.aws.sqs_admin import SqsQueues
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from tests.aws.sqs import rig

FAULTY = ("send_message_batch", "delete_message_batch", "change_message_visibility_batch", "receive_message")
MOVE = MoveTo("dead-letter", rig.WRONG)
RATE = 0.2


def draw_faults(session: rig.HookedSession, chance: SeededEntropy) -> None:
    """Put faults on every call of a worker."""
    partly = rig.fail_entries(lambda _: chance.fraction() < 0.5, times=1_000_000)

    def hook(request: Mapping[str, Any], answer: rig.Answer) -> Any:
        drawn = chance.fraction() / RATE
        if drawn < 1 / 3:
            return rig.lose_answer(request, answer)
        if drawn < 2 / 3:
            raise rig.client_error("RequestThrottled", status=403)
        if drawn < 1 and "Entries" in request:
            return partly(request, answer)
        return answer()

    session.hooks.update(dict.fromkeys(FAULTY, hook))


def send_for_certain(queue: Queue, entries: list[Entry]) -> None:
    """Send until the server says that it has them all."""
    while True:
        try:
            assert len(queue.send(entries)) == len(entries)
        except errors.TransientError:
            continue
        return


def work(queue: Queue, chance: SeededEntropy, done: set[str]) -> None:
    """One round of a worker that deletes, buries, hides or forgets each message it gets."""
    try:
        held = queue.receive(20)
    except errors.TransientError:
        return
    fates: list[list[str]] = [[], [], []]
    for one in held:
        fate = int(chance.fraction() * 4)
        if fate < 3:
            fates[fate].append(one.receipt)
        if fate == 0:
            done.add(one.body)
    for call in (
        lambda: queue.delete(fates[0]),
        lambda: queue.move_aside([(receipt, MOVE) for receipt in fates[1]]),
        lambda: queue.set_visible_in([(receipt, RetryIn(1_000)) for receipt in fates[2]]),
    ):
        try:
            call()
        except errors.TransientError:
            continue


def remaining(queues: SqsQueues, clock: ManualClock, name: str) -> list[str]:
    clock.advance(max(limits.VISIBILITY_MS_DEFAULT, inspecting.SHOWN_S * 1_000))
    return [one.body for one in queues.peek(name, limit=1_000)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_every_message_is_done_or_there(session: rig.HookedSession, clock: ManualClock, seed: int, suffix: str) -> None:
    chance = SeededEntropy(seed)
    queues = Sqs(session, clock=clock, entropy=chance, prefix=f"{chance.token()}-", wait_s=0).admin
    fifo = bool(suffix)
    queues.create(QueueSettings(name=f"dead{suffix}", fifo=fifo, retention_ms=rig.FOURTEEN_DAYS))
    queues.create(QueueSettings(name=f"orders{suffix}", fifo=fifo, dead_letter=f"dead{suffix}", receives_max=1_000))
    queue = queues.open(f"orders{suffix}")
    bodies = [f"m-{number:02}" for number in range(40)]
    entries = [Entry(body=one, group=one if fifo else None, dedup_id=one if fifo else None) for one in bodies]
    draw_faults(session, chance)
    send_for_certain(queue, entries)
    done: set[str] = set()
    for _ in range(30):
        work(queue, chance, done)
        clock.advance(limits.VISIBILITY_MS_DEFAULT)
    letters = queues
    for _ in range(5):
        try:
            for one in letters.peek(f"dead{suffix}"):
                letters.move([(one.message_id, None, None)])
        except errors.TransientError:
            clock.advance(inspecting.SHOWN_S * 1_000)
    session.hooks.clear()
    waiting = remaining(queues, clock, f"orders{suffix}")
    dead = remaining(queues, clock, f"dead{suffix}")
    assert set(bodies) == done | set(waiting) | set(dead)
    assert done
    assert dead or waiting
