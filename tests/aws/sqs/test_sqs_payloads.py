"""Bodies over the limit lie in S3 as long as their message lives: S3 of both emulators, SQS of `onefold serve`.

PutObject, GetObject, DeleteObjects and NoSuchKey are true on ministack and on moto.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.response import StreamingBody

from onefold import errors, limits
from onefold.contracts.admin import Edit
from onefold.contracts.entries import Entry, Refused, Sent
from onefold.contracts.queue import Attribute, Delivery, MoveTo, RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.contracts.verbs import Queue
from onefold.engines.aws import messages
from onefold.engines.aws.payloads import Payloads
from onefold.engines.aws.sqs import Sqs
from onefold.engines.aws.sqs_admin import SqsQueues
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from onefold.testing.endpoint import Endpoint
from tests.aws.sqs import rig

pytestmark = pytest.mark.slow

BUCKET = "bodies"
BIG = "Größe " * 200_000  # 1.6 MB


@pytest.fixture
def session(endpoint: Endpoint, emulator_url: str) -> Iterator[rig.HookedSession]:
    """SQS here, S3 there, with an empty bucket."""
    endpoint.reset()
    found = rig.HookedSession("us-east-1", {"sqs": endpoint.url, "s3": emulator_url})
    client = found.client("s3")
    client.create_bucket(Bucket=BUCKET)
    for key in keys(found):
        client.delete_object(Bucket=BUCKET, Key=key)
    found.calls.clear()
    yield found
    found.close()


def keys(session: rig.HookedSession) -> list[str]:
    return [one["Key"] for one in session.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", ())]


@pytest.fixture
def payloads(session: rig.HookedSession) -> Payloads:
    return Payloads(session, BUCKET, "/shop/", entropy=SystemEntropy())


@pytest.fixture
def queues(session: rig.HookedSession, clock: ManualClock, payloads: Payloads) -> SqsQueues:
    found = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", payloads=payloads, wait_s=0).admin
    for suffix in ("", ".fifo"):
        fifo = bool(suffix)
        found.create(QueueSettings(name=f"dead{suffix}", fifo=fifo, retention_ms=rig.FOURTEEN_DAYS))
        found.create(
            QueueSettings(
                name=f"orders{suffix}", fifo=fifo, content_dedup=fifo, dead_letter=f"dead{suffix}", receives_max=5
            )
        )
    return found


@pytest.fixture
def queue(queues: SqsQueues) -> Queue:
    return queues.open("orders")


def send(queue: Queue, *bodies: str, **options: Any) -> None:
    assert all(isinstance(one, Sent) for one in queue.send([Entry(body=body, **options) for body in bodies]))


def one(queue: Queue) -> Delivery:
    (found,) = queue.receive(1)
    return found


def test_a_large_body_travels_by_s3_and_goes_with_its_message(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, BIG, attributes={"a": Attribute("v")}, key="k")
    (key,) = keys(session)
    assert key.startswith("shop/orders/")
    held = one(queue)
    assert (held.body, held.attributes, held.key) == (BIG, {"a": Attribute("v")}, "k")
    assert len(held.receipt) < 2_000
    assert queue.delete([held.receipt]) == [True]
    assert keys(session) == []


def test_a_body_that_fits_stays_in_its_message(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, "x" * limits.MESSAGE_BYTES_MAX)
    assert keys(session) == []
    send(queue, "x" * limits.MESSAGE_BYTES_MAX, key="k")  # with its key it does not
    assert len(keys(session)) == 1
    assert len(one(queue).body) == len(one(queue).body) == limits.MESSAGE_BYTES_MAX


def test_a_buried_body_stays_until_its_letter_is_done(
    session: rig.HookedSession, queues: SqsQueues, queue: Queue
) -> None:
    send(queue, BIG, "small")
    for held in queue.receive(10):
        assert queue.move_aside([(held.receipt, MoveTo("dead-letter", rig.WRONG))]) == [True]
    assert len(keys(session)) == 1
    found = {len(one.body): one for one in queues.peek("dead")}
    large = found[len(BIG)]
    assert (large.body, large.reason) == (BIG, rig.WRONG)
    (moved,) = queues.move([(large.message_id, None, None)])
    assert moved is not None
    assert len(keys(session)) == 1
    held = one(queue)
    assert held.body == BIG
    assert queue.delete([held.receipt]) == [True]
    assert keys(session) == []
    assert queues.remove([found[5].message_id]) == [True]


def test_a_removed_letter_takes_its_body_along(session: rig.HookedSession, queues: SqsQueues, queue: Queue) -> None:
    send(queue, BIG)
    assert queue.move_aside([(one(queue).receipt, MoveTo("dead-letter", rig.WRONG))]) == [True]
    (letter,) = queues.peek("dead")
    assert queues.remove([letter.message_id]) == [True]
    assert keys(session) == []


def test_an_edited_letter_replaces_its_body(session: rig.HookedSession, queues: SqsQueues, queue: Queue) -> None:
    send(queue, BIG)
    assert queue.move_aside([(one(queue).receipt, MoveTo("dead-letter", rig.WRONG))]) == [True]
    (letter,) = queues.peek("dead")
    assert queues.edit(letter.message_id, Edit(body=BIG + "!", attributes={}))
    (letter,) = queues.peek("dead")
    assert letter.body == BIG + "!"
    assert len(keys(session)) == 1
    (moved,) = queues.move([(letter.message_id, None, Edit(body="small", attributes={}))])
    assert moved is not None
    assert one(queue).body == "small"
    assert keys(session) == []


def test_a_fifo_queue_deduplicates_by_the_body_and_not_by_the_pointer(
    session: rig.HookedSession, queues: SqsQueues
) -> None:
    fifo = queues.open("orders.fifo")
    send(fifo, BIG, BIG, group="g")
    assert [held.body for held in fifo.receive(10)] == [BIG]
    assert len(keys(session)) == 2  # the second one's object is left to the bucket's lifecycle rule


def test_a_message_that_is_refused_leaves_nothing_in_s3(session: rig.HookedSession, queue: Queue) -> None:
    session.hooks["send_message_batch"] = rig.fail_entries(lambda _: True, wrong=True)
    (answer,) = queue.send([Entry(body=BIG)])
    assert isinstance(answer, Refused)
    attributes = {"a": Attribute("x" * limits.MESSAGE_BYTES_MAX)}
    (answer,) = queue.send([Entry(body="b", attributes=attributes)])
    assert isinstance(answer, Refused)
    assert "only a body can be stored in S3" in answer.message
    assert keys(session) == []


def test_a_body_that_is_gone_is_seen_as_its_pointer(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, BIG)
    (key,) = keys(session)
    session.client("s3").delete_object(Bucket=BUCKET, Key=key)
    held = one(queue)
    assert key in held.body
    assert queue.delete([held.receipt]) == [True]


def test_a_pointer_to_another_place_is_not_followed(
    session: rig.HookedSession, clock: ManualClock, queues: SqsQueues, queue: Queue
) -> None:
    session.client("s3").put_object(Bucket=BUCKET, Key="private/secret", Body=b"secret")
    other = Payloads(session, BUCKET, "private", entropy=SystemEntropy())
    attacker = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", payloads=other, wait_s=0).admin
    send(attacker.open("orders"), BIG)
    held = one(queue)
    assert "s3BucketName" in held.body
    assert queue.delete([held.receipt]) == [True]
    assert len(keys(session)) == 2
    assert queues.peek("dead") == []


@pytest.mark.parametrize("full", [False, True], ids=["in S3", "full to the last byte"])
def test_what_counted_unsigned_is_signed_when_it_is_buried(
    session: rig.HookedSession,
    clock: ManualClock,
    payloads: Payloads,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    full: bool,
) -> None:
    claims = {"onefold.key": Attribute("k")}
    body = "x" * (limits.MESSAGE_BYTES_MAX - len("onefold.keyStringk")) if full else BIG
    monkeypatch.setenv("ONEFOLD_SECRET", "s" * 32)

    def opened() -> Sqs:
        return Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", payloads=payloads, wait_s=0)

    send(queue, body, attributes=claims, trusted=False)
    monkeypatch.setenv("ONEFOLD_UNSIGNED_BEFORE", "2999-01-01T00:00:00+00:00")
    believing = opened().admin.open("orders")
    held = one(believing)
    assert held.trusted
    assert believing.move_aside([(held.receipt, MoveTo("dead-letter", rig.WRONG))]) == [True]
    monkeypatch.delenv("ONEFOLD_UNSIGNED_BEFORE")
    (letter,) = opened().admin.peek("dead")
    assert (letter.body == body, letter.trusted) == (True, not full), "a signature that has no room is left out"


@pytest.mark.parametrize("prefix", ["", "shop"])
def test_a_strangers_pointer_reads_and_deletes_no_other_object(
    session: rig.HookedSession, clock: ManualClock, queues: SqsQueues, prefix: str
) -> None:
    ours = Payloads(session, BUCKET, prefix, entropy=SystemEntropy())
    shop = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", payloads=ours, wait_s=0).admin
    shop.create(QueueSettings(name="payments"))
    queue, start = shop.open("orders"), f"{prefix}/" if prefix else ""
    (paid,) = shop.open("payments").send([Entry(body=BIG)])
    assert isinstance(paid, Sent)
    (payment,) = keys(session)
    named = [
        f"{start}salaries.json",
        f"{start}orders/salaries.json",
        f"{start}orders/{'0' * 31}g",
        f"{start}a/b/{'0' * 32}",
    ]
    for key in named:
        session.client("s3").put_object(Bucket=BUCKET, Key=key, Body=b'{"ada":1}')
    for key in (*named, payment):
        body = f'["{messages.POINTER_CLASS}",{{"s3BucketName":"{BUCKET}","s3Key":"{key}"}}]'
        attributes = {messages.STORED_BYTES: {"DataType": "Number", "StringValue": "9"}}
        url = session.client("sqs").get_queue_url(QueueName="app-orders")["QueueUrl"]
        session.client("sqs").send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
    seen = 0
    while received := queue.receive(10):
        for held in received:
            seen += 1
            assert "ada" not in held.body
            assert queue.delete([held.receipt]) == [True]
    assert seen == 5
    assert {*keys(session)} == {*named, payment}
    held = one(shop.open("payments"))
    assert held.body == BIG, "the message whose object it is still has it"
    assert shop.open("payments").delete([held.receipt]) == [True]
    assert {*keys(session)} == {*named}


def test_a_body_that_s3_does_not_give_now_comes_again(
    session: rig.HookedSession, queue: Queue, clock: ManualClock
) -> None:
    send(queue, BIG, "small")
    session.hooks["get_object"] = rig.refuse("SlowDown", status=503)
    assert [held.body for held in queue.receive(10)] == ["small"]
    session.hooks.clear()
    clock.advance(limits.VISIBILITY_MS_DEFAULT)
    both = queue.receive(10)
    assert sorted(len(held.body) for held in both) == [5, len(BIG)]
    assert queue.delete([held.receipt for held in both]) == [True, True]
    send(queue, BIG)
    session.hooks["get_object"] = rig.refuse("SlowDown", status=503)
    with pytest.raises(errors.TransientError, match="s3:GetObject"):
        queue.receive(1)


def test_a_body_that_breaks_off_in_the_middle_comes_again(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, BIG)
    session.hooks["get_object"] = lambda *_: {"Body": StreamingBody(io.BytesIO(b"half"), len(BIG))}
    with pytest.raises(errors.TransientError, match="s3:GetObject on bucket bodies got no answer"):
        queue.receive(1)


@pytest.mark.parametrize(
    ("method", "code", "said"),
    [
        ("put_object", "NoSuchBucket", "bucket bodies does not exist"),
        ("put_object", "AccessDenied", "Add the action s3:PutObject on bucket bodies"),
        ("get_object", "AccessDenied", "Add the action s3:GetObject on bucket bodies"),
        ("delete_objects", "AccessDenied", "Add the action s3:DeleteObject on bucket bodies"),
    ],
)
def test_a_bucket_that_is_not_ours_to_use(
    session: rig.HookedSession, queue: Queue, method: str, code: str, said: str
) -> None:
    send(queue, BIG)
    held = one(queue)
    session.hooks[method] = rig.refuse(code, status=403)
    queue.set_visible_in([(held.receipt, RetryIn(0))])
    calls = {
        "put_object": lambda: queue.send([Entry(body=BIG)]),
        "get_object": lambda: queue.receive(1),
        "delete_objects": lambda: queue.delete([held.receipt]),
    }
    with pytest.raises(errors.UsageError, match=said):
        calls[method]()


def test_objects_that_s3_keeps_are_told(session: rig.HookedSession, payloads: Payloads) -> None:
    session.hooks["delete_objects"] = lambda *_: {"Errors": [{"Key": "a", "Code": "InternalError"}]}
    with pytest.raises(errors.TransientError, match="S3 kept 1 of 2 payloads"):
        payloads.delete(["a", "b"])
    session.hooks["delete_objects"] = lambda *_: {"Errors": [{"Key": "a", "Code": "AccessDenied"}]}
    with pytest.raises(errors.UsageError, match="Add the action s3:DeleteObject on bodies/shop/"):
        payloads.delete(["a"])
