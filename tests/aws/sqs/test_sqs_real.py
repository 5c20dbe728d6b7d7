"""The SQS adapter against emulators on real time. Each test names those on which its semantics are true.

What the emulators do otherwise than AWS, and which tests therefore leave them out (ministack 1.5, moto 5.2):
ministack answers False to a second delete of a standard message, has no ListDeadLetterSourceQueues and no move tasks (then
we copy); moto answers 500 to move tasks and gives no sequence numbers on sending. Neither gives AWSTraceHeader back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from onefold import errors
from onefold.clock import SystemClock
from onefold.contracts.entries import Entry, Sent
from onefold.contracts.queue import Attribute, Delivery, MoveTo, RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.contracts.verbs import Queue
from onefold.engines.aws.session import Session
from onefold.engines.aws.sqs import Sqs, SqsQueue
from onefold.engines.aws.sqs_admin import SqsQueues
from onefold.entropy import SystemEntropy
from tests.aws.sqs import rig

pytestmark = pytest.mark.slow

MOVE = MoveTo("dead-letter", rig.WRONG)
VISIBLE_MS = 60_000


@pytest.fixture
def open_queues() -> Iterator[Callable[[str], SqsQueues]]:
    """Opens the queues of a server, under a prefix of their own."""
    sessions: list[Session] = []
    entropy = SystemEntropy()

    def run(url: str) -> SqsQueues:
        sessions.append(Session("eu-west-1", {"*": url}, session=rig.keys()))
        return Sqs(sessions[-1], clock=SystemClock(), entropy=entropy, prefix=f"{entropy.token()}-", wait_s=1).admin

    yield run
    for session in sessions:
        session.close()


@pytest.fixture
def queues(open_queues: Callable[[str], SqsQueues], emulator_url: str) -> SqsQueues:
    """Both emulators."""
    return open_queues(emulator_url)


@pytest.fixture
def on_ministack(open_queues: Callable[[str], SqsQueues], ministack_url: str) -> SqsQueues:
    """Ministack alone."""
    return open_queues(ministack_url)


@pytest.fixture
def on_moto(open_queues: Callable[[str], SqsQueues], moto_url: str) -> SqsQueues:
    """Moto alone."""
    return open_queues(moto_url)


def pair(queues: SqsQueues, suffix: str = "") -> Queue:
    fifo = bool(suffix)
    queues.create(QueueSettings(name=f"dead{suffix}", fifo=fifo, retention_ms=rig.FOURTEEN_DAYS))
    queues.create(
        QueueSettings(
            name=f"orders{suffix}",
            fifo=fifo,
            content_dedup=fifo,
            visibility_ms=VISIBLE_MS,
            dead_letter=f"dead{suffix}",
            receives_max=3,
        )
    )
    return queues.open(f"orders{suffix}")


def receive(queue: Queue, count: int) -> list[Delivery]:
    """So many messages, in as many receives as it takes."""
    found: list[Delivery] = []
    for _ in range(20):
        found += queue.receive(count - len(found))
        if len(found) == count:
            break
    return sorted(found, key=lambda one: one.body)


def test_what_is_sent_is_received_and_deleted(queues: SqsQueues) -> None:
    """On ministack and moto."""
    queue = pair(queues)
    attributes = {
        "Text": Attribute("Bär"),
        "Count": Attribute("-1.5", "Number.int"),
        "Bytes": Attribute(b"\x00\xff", "Binary.gif"),
    }
    sent = queue.send([Entry(body=f"Größe 😀 {number:02}", attributes=attributes, key="k") for number in range(25)])
    assert all(isinstance(one, Sent) for one in sent)
    held = receive(queue, 25)
    assert [one.body for one in held] == [f"Größe 😀 {number:02}" for number in range(25)]
    assert {(one.key, one.receive_count, one.visible_ms) for one in held} == {("k", 1, VISIBLE_MS)}
    assert all(one.attributes == attributes for one in held)
    assert queue.depth().in_flight == 25
    assert queue.delete([one.receipt for one in held]) == [True] * 25
    assert queue.depth().in_flight == 0


def test_settings_come_back(queues: SqsQueues) -> None:
    """On ministack and moto."""
    pair(queues)
    queues.create(QueueSettings(name="held", retention_ms=rig.FOURTEEN_DAYS))
    settings = QueueSettings(name="parcels", dead_letter="dead", receives_max=3, held="held", delay_ms=5_000)
    queues.create(settings)
    queues.create(settings)
    assert queues.setting("parcels") == settings
    changed = QueueSettings(name="parcels", visibility_ms=45_000)
    queues.change(changed)
    assert queues.setting("parcels") == changed
    assert [one.name for one in queues.settings()] == ["dead", "held", "orders", "parcels"]
    queues.drop("parcels")
    with pytest.raises(errors.NotFoundError):
        queues.open("parcels")


def test_released_messages_come_back_and_hidden_ones_do_not(queues: SqsQueues) -> None:
    """On ministack and moto."""
    queue = pair(queues)
    queue.send([Entry(body="a"), Entry(body="b")])
    first, second = receive(queue, 2)
    assert queue.set_visible_in([(first.receipt, RetryIn(0)), (second.receipt, RetryIn(VISIBLE_MS))]) == [True, True]
    (again,) = receive(queue, 1)
    assert (again.body, again.receive_count) == ("a", 2)
    assert queue.receive(1) == []


def test_a_burial_and_the_way_back(queues: SqsQueues) -> None:
    """On ministack and moto."""
    queue = pair(queues)
    queue.send([Entry(body="a", key="k")])
    (held,) = receive(queue, 1)
    assert queue.move_aside([(held.receipt, MOVE)]) == [True]
    assert (queue.depth().in_flight, queues.depth("dead").visible) == (0, 1)
    (letter,) = queues.peek("dead")
    assert (letter.reason, letter.source, letter.key) == (rig.WRONG, "orders", "k")
    assert [one and one.message_id for one in queues.find([held.message_id])] == [letter.message_id]
    (moved,) = queues.move([(letter.message_id, None, None)])
    assert moved is not None
    (back,) = receive(queue, 1)
    assert (back.message_id, back.body, back.key, back.reason) == (moved.new_message_id, "a", "k", None)


def test_fifo_groups_and_duplicates(queues: SqsQueues) -> None:
    """On ministack and moto."""
    queue = pair(queues, ".fifo")
    queue.send([Entry(body=body, group="g") for body in ("a1", "a2", "a1")])
    held = queue.receive(10)
    assert [one.body for one in held] == ["a1", "a2"]
    assert queue.receive(10) == []
    assert queue.move_aside([(held[0].receipt, MOVE)]) == [True]
    assert queue.delete([held[1].receipt]) == [True]
    assert [(one.body, one.group, one.source) for one in queues.peek("dead.fifo")] == [("a1", "g", "orders.fifo")]


def test_worn_out_messages_are_dead_lettered_by_the_server(queues: SqsQueues) -> None:
    """On ministack and moto."""
    queue = pair(queues)
    queue.send([Entry(body="a")])
    for count in (1, 2, 3):
        (held,) = queue.receive(1)
        assert held.receive_count == count
        queue.set_visible_in([(held.receipt, RetryIn(0))])
    assert queue.receive(1) == []
    (letter,) = queues.peek("dead")
    assert (letter.body, letter.reason, letter.message_id) == ("a", None, held.message_id)


def test_a_move_is_a_copy_where_the_server_has_no_tasks(on_ministack: SqsQueues) -> None:
    """On ministack: it has no move tasks, and no list of a dead-letter queue's sources."""
    queue = pair(on_ministack)
    queue.send([Entry(body="a")])
    (held,) = receive(queue, 1)
    queue.move_aside([(held.receipt, MOVE)])
    task = on_ministack.start_move("dead")
    assert on_ministack.moving()
    moved = 0
    for _ in range(20):
        moved += on_ministack.step_moves()
        if on_ministack.moves("dead")[0].status == "COMPLETED":
            break
    assert moved == 1
    assert on_ministack.moves("dead")[0].handle == task.handle
    assert [one.body for one in receive(queue, 1)] == ["a"]


def test_deleting_twice_is_true_twice(on_moto: SqsQueues) -> None:
    """On moto; ministack answers that the receipt is invalid."""
    queue = pair(on_moto)
    queue.send([Entry(body="a")])
    (held,) = receive(queue, 1)
    assert queue.delete([held.receipt]) == [True]
    assert queue.delete([held.receipt]) == [True]


def test_an_empty_long_poll_waits_and_answers_nothing(queues: SqsQueues) -> None:
    """On ministack and moto."""
    clock = SystemClock()
    pair(queues)
    queue = queues.open("orders")
    assert isinstance(queue, SqsQueue)
    before_ms = clock.monotonic_ms()
    assert queue.receive_within(1, None, 1_000) == []
    assert clock.monotonic_ms() - before_ms >= 900
    assert queue.receive_within(1, None, 0) == []


def test_nothing_listens(open_queues: Callable[[str], SqsQueues]) -> None:
    """No server at all."""
    from tests.emulators.servers import free_port

    queues = open_queues(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(errors.TransientError, match="Check the region and endpoint"):
        queues.open("orders")
