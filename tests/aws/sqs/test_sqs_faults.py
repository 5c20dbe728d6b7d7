"""Bad input and faults of the SQS adapter: a clear error, nothing lost. Against `onefold serve`, hooks between."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import boto3
import pytest

from onefold import errors, limits
from onefold.contracts.entries import Entry, Refused, Sent
from onefold.contracts.queue import Attribute, Delivery, MoveTo, RetryIn
from onefold.contracts.settings import QueueSettings
from onefold.contracts.verbs import Queue
from onefold.engines.aws import batches
from onefold.engines.aws.messages import SqsReceipt
from onefold.engines.aws.session import Session
from onefold.engines.aws.sqs import Sqs, SqsQueue
from onefold.engines.aws.sqs_admin import SqsQueues
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from onefold.testing.endpoint import Endpoint
from tests.aws.sqs import rig

MOVE = MoveTo("dead-letter", rig.WRONG)


@pytest.fixture
def queue(queues: SqsQueues) -> Queue:
    """A queue with dead letters."""
    queues.create(QueueSettings(name="dead", retention_ms=rig.FOURTEEN_DAYS))
    queues.create(QueueSettings(name="orders", dead_letter="dead", receives_max=5))
    return queues.open("orders")


@pytest.fixture
def fifo(queues: SqsQueues) -> Queue:
    queues.create(QueueSettings(name="dead.fifo", fifo=True, retention_ms=rig.FOURTEEN_DAYS))
    queues.create(
        QueueSettings(name="orders.fifo", fifo=True, content_dedup=True, dead_letter="dead.fifo", receives_max=5)
    )
    return queues.open("orders.fifo")


def send(queue: Queue, *bodies: str, **options: Any) -> None:
    assert all(isinstance(one, Sent) for one in queue.send([Entry(body=body, **options) for body in bodies]))


def receive(queue: Queue) -> list[Delivery]:
    return sorted(queue.receive(100), key=lambda one: one.body)


def bodies(queue: Queue) -> list[str]:
    return [one.body for one in receive(queue)]


def body_is(*wanted: str) -> Any:
    return lambda entry: entry["MessageBody"] in wanted


# -- parts of batches --------------------------------------------------------------------------------------------------


def test_entries_that_fail_are_sent_again_alone(session: rig.HookedSession, queue: Queue) -> None:
    session.hooks["send_message_batch"] = rig.fail_entries(body_is("b", "d"), 2)
    answers = queue.send([Entry(body=body) for body in "abcde"])
    assert all(isinstance(one, Sent) for one in answers)
    assert bodies(queue) == list("abcde")


def test_sends_that_never_succeed_are_an_error_that_counts(session: rig.HookedSession, queue: Queue) -> None:
    session.hooks["send_message_batch"] = rig.fail_entries(body_is("b"), 99)
    with pytest.raises(errors.TransientError, match=r"1 messages .*3 tries.*2 of 3 messages were accepted for certain"):
        queue.send([Entry(body=body) for body in "abc"])
    assert bodies(queue) == ["a", "c"]


def test_the_order_of_a_group_survives_an_entry_that_fails(session: rig.HookedSession, fifo: Queue) -> None:
    session.hooks["send_message_batch"] = rig.fail_entries(body_is("b"), wrong=True)
    entries = [Entry(body="b", group="g")] + [Entry(body=f"other-{n}", group="h") for n in range(9)]
    later = [Entry(body="after b", group="g"), Entry(body="other-9", group="h")]
    answers = fifo.send(entries + later)
    assert answers[0] == Refused("Bad", "no")
    assert isinstance(answers[10], Refused)
    assert "the group keeps its order" in answers[10].message
    assert bodies(fifo) == [f"other-{n}" for n in range(10)]


def test_deletes_that_fail_are_tried_again_and_then_an_error(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, "a", "b")
    held = receive(queue)
    session.hooks["delete_message_batch"] = rig.fail_entries(lambda e: e["Id"] == "1", 1)
    assert queue.delete([one.receipt for one in held]) == [True, True]
    send(queue, "c", "d")
    held = receive(queue)
    session.hooks["delete_message_batch"] = rig.fail_entries(lambda e: e["Id"] == "1", 99)
    with pytest.raises(errors.TransientError, match="DeleteMessage for 1 of 2 messages"):
        queue.delete([one.receipt for one in held])
    session.hooks.clear()
    assert queue.delete([one.receipt for one in held]) == [True, True]
    assert queue.depth().in_flight == 0


def test_a_hundred_messages_cost_ten_calls_each_way(session: rig.HookedSession, queue: Queue) -> None:
    session.calls.clear()
    send(queue, *map(str, range(100)))
    held = queue.receive(100)
    queue.set_visible_in([(one.receipt, RetryIn(60_000)) for one in held])
    queue.delete([one.receipt for one in held])
    counted = {name: session.calls.count(name) for name in set(session.calls)}
    assert counted.pop("get_queue_attributes", 0) <= 1
    assert counted.pop("get_queue_url", 0) <= 1
    assert counted == {
        "send_message_batch": 10,
        "receive_message": 10,
        "change_message_visibility_batch": 10,
        "delete_message_batch": 10,
    }


def test_a_batch_stays_within_a_mebibyte(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, *["x" * 400_000] * 5)
    assert session.calls.count("send_message_batch") == 3
    assert len(queue.receive(10)) == 5


# -- calls that fail ---------------------------------------------------------------------------------------------------


def test_a_lost_answer_of_a_send_may_send_twice_and_says_so(session: rig.HookedSession, queue: Queue) -> None:
    session.hooks["send_message_batch"] = rig.lose_answer
    with pytest.raises(errors.TransientError, match=r"no answer.*0 of 1 messages were accepted for certain"):
        queue.send([Entry(body="a")])
    session.hooks.clear()
    send(queue, "a")
    assert bodies(queue) == ["a", "a"]


def test_a_lost_answer_of_a_fifo_send_is_no_second_message(session: rig.HookedSession, fifo: Queue) -> None:
    session.hooks["send_message_batch"] = rig.lose_answer
    with pytest.raises(errors.TransientError):
        fifo.send([Entry(body="a", group="g")])
    session.hooks.clear()
    send(fifo, "a", group="g")
    assert bodies(fifo) == ["a"]


def test_a_lost_answer_of_a_delete_is_deleted(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, "a")
    (held,) = receive(queue)
    session.hooks["delete_message_batch"] = rig.lose_answer
    with pytest.raises(errors.TransientError):
        queue.delete([held.receipt])
    session.hooks.clear()
    assert queue.delete([held.receipt]) == [True]


def test_a_later_receive_that_fails_loses_nothing(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, *map(str, range(12)))
    calls = []

    def once(_: Mapping[str, Any], answer: rig.Answer) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise rig.client_error("RequestThrottled", status=403)
        return answer()

    session.hooks["receive_message"] = once
    assert len(queue.receive(20)) == 10
    assert len(queue.receive(20)) == 2


def test_the_in_flight_cap_of_sqs(session: rig.HookedSession, queue: Queue) -> None:
    session.hooks["receive_message"] = rig.refuse("OverLimit", status=403)
    with pytest.raises(errors.OverLimitError):
        queue.receive(1)


# -- burying -----------------------------------------------------------------------------------------------------------


def test_a_burial_whose_delete_is_lost_is_recognised(
    session: rig.HookedSession, queues: SqsQueues, queue: Queue, clock: ManualClock
) -> None:
    send(queue, "a")
    (held,) = receive(queue)
    session.hooks["delete_message_batch"] = rig.refuse("InternalError", status=500)
    with pytest.raises(errors.TransientError):
        queue.move_aside([(held.receipt, MOVE)])
    assert (queues.depth("dead").visible, queue.depth().in_flight) == (1, 1)
    session.hooks.clear()
    clock.advance(30_000)  # another process has it now
    other = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", wait_s=0).admin.open("orders")
    (again,) = receive(other)
    assert other.move_aside([(again.receipt, MOVE)]) == [True]
    assert (queues.depth("dead").visible, queue.depth().in_flight) == (2, 0)
    (letter,) = queues.peek("dead")
    assert (letter.body, letter.reason) == ("a", rig.WRONG)
    assert queues.remove([letter.message_id]) == [True]
    assert queues.depth("dead").visible == 0


def test_the_same_burial_again_copies_once(session: rig.HookedSession, queues: SqsQueues, queue: Queue) -> None:
    send(queue, "a", "b")
    first, second = receive(queue)
    session.hooks["delete_message_batch"] = rig.refuse("InternalError", status=500)
    with pytest.raises(errors.TransientError):
        queue.move_aside([(first.receipt, MOVE), (second.receipt, MOVE)])
    session.hooks.clear()
    assert queue.move_aside([(first.receipt, MOVE), (second.receipt, MOVE)]) == [True, True]
    assert queues.depth("dead").visible == 2


def test_a_receipt_that_is_named_twice_is_buried_once(queues: SqsQueues, queue: Queue) -> None:
    send(queue, "a")
    (held,) = receive(queue)
    assert queue.move_aside([(held.receipt, MOVE), (held.receipt, MOVE)]) == [True, True]
    assert queues.depth("dead").visible == 1


def test_one_target_that_is_denied_does_not_hold_up_the_other(
    session: rig.HookedSession, queues: SqsQueues, queue: Queue
) -> None:
    queues.create(QueueSettings(name="held", retention_ms=rig.FOURTEEN_DAYS))
    queues.change(QueueSettings(name="orders", dead_letter="dead", receives_max=5, held="held"))
    send(queue, "a", "b")
    first, second = receive(queue)

    def deny_held(request: Mapping[str, Any], answer: rig.Answer) -> Any:
        if request["QueueUrl"].endswith("held"):
            raise rig.client_error("AccessDenied", status=403)
        return answer()

    session.hooks["send_message_batch"] = deny_held
    with pytest.raises(errors.UsageError, match="Add the action sqs:SendMessage on queue app-held"):
        queue.move_aside([(first.receipt, MoveTo("held", rig.WRONG)), (second.receipt, MOVE)])
    assert (queue.depth().in_flight, queues.depth("dead").visible) == (1, 1)


def test_a_copy_that_is_not_accepted_keeps_the_message(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, "a", "b")
    held = receive(queue)
    session.hooks["send_message_batch"] = rig.fail_entries(body_is("b"), 99)
    with pytest.raises(errors.TransientError):
        queue.move_aside([(one.receipt, MOVE) for one in held])
    assert queue.depth().in_flight == 1  # the one that was not copied
    session.hooks.clear()
    assert queue.move_aside([(one.receipt, MOVE) for one in held]) == [True, True]
    assert queue.depth().in_flight == 0


def test_a_message_that_fills_its_queue_is_buried_without_reason(queues: SqsQueues) -> None:
    queues.create(QueueSettings(name="small-dead", retention_ms=rig.FOURTEEN_DAYS, message_bytes_max=1_024))
    queues.create(QueueSettings(name="small", message_bytes_max=1_024, dead_letter="small-dead", receives_max=5))
    queue = queues.open("small")
    send(queue, "x" * 1_024)
    (held,) = receive(queue)
    assert queue.move_aside([(held.receipt, MOVE)]) == [True]
    (letter,) = queues.peek("small-dead")
    assert (letter.body, letter.reason) == ("x" * 1_024, None)


def test_a_message_with_ten_attributes_is_buried_with_all(queues: SqsQueues, queue: Queue) -> None:
    attributes = {f"a{number}": Attribute(f"v{number}") for number in range(10)}
    send(queue, "a", attributes=attributes)
    (held,) = receive(queue)
    assert queue.move_aside([(held.receipt, MOVE)]) == [True]
    (letter,) = queues.peek("dead")
    assert (letter.attributes, letter.reason, letter.source) == (attributes, rig.WRONG, "orders")


def test_what_another_process_received_is_not_buried_here(
    session: rig.HookedSession, clock: ManualClock, queue: Queue
) -> None:
    send(queue, "a")
    (held,) = receive(queue)
    other = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", wait_s=0).admin.open("orders")
    assert other.move_aside([(held.receipt, MOVE)]) == [False]
    assert queue.depth().in_flight == 1


def test_what_lambda_received_is_buried_here(queues: SqsQueues, queue: Queue, session: rig.HookedSession) -> None:
    send(queue, "a", key="k")
    url = queues._catalogue.url("orders")
    answer = session.client("sqs").receive_message(
        QueueUrl=url, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"]
    )
    (message,) = answer["Messages"]
    record = {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {
            name: {"dataType": one["DataType"], "stringValue": one["StringValue"]}
            for name, one in message["MessageAttributes"].items()
        },
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:app-orders",
    }
    adopting = queues.open("orders")
    assert isinstance(adopting, SqsQueue)
    (delivery,) = adopting.adopt([record], limits.VISIBILITY_MS_DEFAULT)
    assert (delivery.body, delivery.key, delivery.receive_count) == ("a", "k", 1)
    assert queue.move_aside([(delivery.receipt, MOVE)]) == [True]
    assert [one.key for one in queues.peek("dead")] == ["k"]


def test_held_messages_are_forgotten_long_after_their_visibility(queue: Queue, clock: ManualClock) -> None:
    send(queue, "a")
    (held,) = receive(queue)
    clock.advance(limits.VISIBILITY_MS_DEFAULT + 15 * limits.MINUTE_MS)
    (again,) = receive(queue)
    assert queue.move_aside([(held.receipt, MOVE)]) == [False]
    assert queue.move_aside([(again.receipt, MOVE)]) == [True]


def test_a_message_that_waits_for_hours_is_not_held_as_long(queue: Queue, clock: ManualClock) -> None:
    send(queue, "a")
    (held,) = receive(queue)
    for _ in range(3):  # heartbeats keep it
        clock.advance(limits.VISIBILITY_MS_DEFAULT - 1)
        assert queue.set_visible_in([(held.receipt, RetryIn(limits.VISIBILITY_MS_DEFAULT))]) == [True]
    clock.advance(limits.VISIBILITY_MS_DEFAULT - 1)
    assert queue.set_visible_in([(held.receipt, RetryIn(limits.VISIBILITY_MS_MAX // 2))]) == [True]
    clock.advance(limits.VISIBILITY_MS_DEFAULT + 15 * limits.MINUTE_MS)
    send(queue, "b")
    assert bodies(queue) == ["b"]
    assert queue.move_aside([(held.receipt, MOVE)]) == [False]


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_no_credentials(endpoint: Endpoint, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    session = Session(endpoint.region, {"*": endpoint.url}, session=boto3.session.Session())
    queues = Sqs(session, clock=clock, entropy=SystemEntropy(), wait_s=0).admin
    with pytest.raises(errors.UsageError, match=r"no AWS credentials for sqs:GetQueueUrl.*AWS_PROFILE"):
        queues.open("orders")
    session.close()


def test_wrong_region_or_queue_missing(queues: SqsQueues, queue: Queue) -> None:
    with pytest.raises(errors.NotFoundError, match=r"queue app-nobody in us-east-1 .*Check name, region and account"):
        queues.open("nobody")
    queues.drop("orders", referenced=True)
    for call in (
        lambda: queue.send([Entry(body="a")]),
        lambda: queue.receive(1),
        queue.depth,
        lambda: queue.delete([SqsReceipt("m", "h").text()]),
        lambda: queues.setting("orders"),
        lambda: queues.peek("orders"),
        lambda: queues.purge("orders"),
        lambda: queues.start_move("orders"),
        lambda: queues.drop("orders"),
        lambda: queues.change(QueueSettings(name="orders")),
    ):
        with pytest.raises(errors.NotFoundError, match="app-orders"):
            call()


@pytest.mark.parametrize(
    ("method", "action"),
    [
        ("send_message_batch", "sqs:SendMessage"),
        ("receive_message", "sqs:ReceiveMessage"),
        ("delete_message_batch", "sqs:DeleteMessage"),
        ("change_message_visibility_batch", "sqs:ChangeMessageVisibility"),
        ("get_queue_attributes", "sqs:GetQueueAttributes"),
    ],
)
def test_access_denied_names_the_action_and_the_queue(
    session: rig.HookedSession, queue: Queue, method: str, action: str
) -> None:
    send(queue, "a")
    (held,) = receive(queue)
    session.hooks[method] = rig.refuse("AccessDenied", "not authorized", 403)
    calls = {
        "send_message_batch": lambda: queue.send([Entry(body="a")]),
        "receive_message": lambda: queue.receive(1),
        "delete_message_batch": lambda: queue.delete([held.receipt]),
        "change_message_visibility_batch": lambda: queue.set_visible_in([(held.receipt, RetryIn(0))]),
        "get_queue_attributes": queue.depth,
    }
    with pytest.raises(errors.UsageError, match=f"Add the action {action} on queue app-orders in us-east-1"):
        calls[method]()


def test_tags_that_may_not_be_read_hide_only_the_held_queue(
    session: rig.HookedSession, queues: SqsQueues, queue: Queue
) -> None:
    session.hooks["list_queue_tags"] = rig.refuse("AccessDenied", status=403)
    assert queues.setting("orders").dead_letter == "dead"
    send(queue, "a")
    (held,) = receive(queue)
    with pytest.raises(errors.UsageError, match="sqs:ListQueueTags"):
        queue.move_aside([(held.receipt, MoveTo("held", rig.WRONG))])
    assert queue.depth().in_flight == 1


def test_fifo_without_group_refuses_that_entry_alone(fifo: Queue) -> None:
    answers = fifo.send([Entry(body="a", group="g"), Entry(body="b"), Entry(body="c", group="g")])
    assert answers[1] == Refused("MissingParameter", "The request must contain the parameter MessageGroupId.")
    assert bodies(fifo) == ["a", "c"]


def test_a_body_over_the_limit_without_a_bucket(queue: Queue) -> None:
    answers = queue.send([Entry(body="x" * limits.MESSAGE_BYTES_MAX), Entry(body="x" * (limits.MESSAGE_BYTES_MAX + 1))])
    assert isinstance(answers[0], Sent)
    assert isinstance(answers[1], Refused)
    assert "payloads=BUCKET/PREFIX" in answers[1].message


def test_a_key_counts_in_the_size(queue: Queue) -> None:
    (answer,) = queue.send([Entry(body="x" * limits.MESSAGE_BYTES_MAX, key="k")])
    assert isinstance(answer, Refused)


def test_an_attribute_named_like_ours(queue: Queue) -> None:
    (answer,) = queue.send([Entry(body="a", attributes={"onefold-reason": Attribute("{}")})])
    assert answer == Refused(
        "InvalidParameterValue", "The message attribute name 'onefold-reason' is reserved for onefold."
    )


def test_run_at_within_a_quarter_of_an_hour_is_a_delay(queue: Queue, fifo: Queue, clock: ManualClock) -> None:
    now_ms = clock.now_ms()
    send(queue, "due", run_at_ms=now_ms - 1)
    send(queue, "soon", run_at_ms=now_ms + 15 * limits.MINUTE_MS)
    (later,) = queue.send([Entry(body="later", run_at_ms=now_ms + 15 * limits.MINUTE_MS + 1)])
    assert isinstance(later, Refused)
    assert "one-time schedule" in later.message
    assert bodies(queue) == ["due"]
    clock.advance(15 * limits.MINUTE_MS)
    assert "soon" in bodies(queue)
    (refused,) = fifo.send([Entry(body="a", group="g", run_at_ms=now_ms + 20 * limits.MINUTE_MS)])
    assert isinstance(refused, Refused)
    assert "a FIFO queue cannot delay one message" in refused.message


def test_an_expired_receipt(fifo: Queue, clock: ManualClock) -> None:
    send(fifo, "a", group="g")
    (late,) = receive(fifo)
    clock.advance(limits.VISIBILITY_MS_DEFAULT)
    assert fifo.delete([late.receipt]) == [False]
    assert fifo.set_visible_in([(late.receipt, RetryIn(1_000))]) == [False]
    assert fifo.move_aside([(late.receipt, MOVE)]) == [False]
    (again,) = receive(fifo)
    assert fifo.delete([late.receipt]) == [False]
    assert fifo.delete([again.receipt]) == [True]


def test_a_receipt_of_another_queue(queues: SqsQueues, queue: Queue) -> None:
    queues.create(QueueSettings(name="other"))
    send(queue, "a")
    (held,) = receive(queue)
    assert queues.open("other").delete([held.receipt]) == [False]
    assert queue.depth().in_flight == 1


def test_many_bad_entries_ask_for_the_settings_once(session: rig.HookedSession, queue: Queue) -> None:
    send(queue, "a")
    session.calls.clear()
    assert all(isinstance(one, Refused) for one in queue.send([Entry(body="")] * 50))
    assert session.calls == ["get_queue_attributes"]


def test_a_size_limit_that_was_raised_elsewhere_is_seen(session: rig.HookedSession, queues: SqsQueues) -> None:
    queues.create(QueueSettings(name="small", message_bytes_max=1_024))
    queue = queues.open("small")
    assert isinstance(queue.send([Entry(body="x" * 1_025)])[0], Refused)
    url = queues._catalogue.url("small")
    session.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "2048"})
    assert isinstance(queue.send([Entry(body="x" * 1_025)])[0], Sent)


def test_long_polling_has_its_range(session: rig.HookedSession, clock: ManualClock, queue: Queue) -> None:
    for wait_s in (-1, 21):
        with pytest.raises(errors.UsageError, match="0 to 20 seconds"):
            Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", wait_s=wait_s)
    asked: list[Any] = []

    def note(request: Mapping[str, Any], _: rig.Answer) -> Any:
        asked.append(request["WaitTimeSeconds"])
        return {}

    session.hooks["receive_message"] = note
    waiting = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", wait_s=20).queue("orders")
    waiting.receive(1)
    waiting.receive_within(1, None, 2_999)
    assert asked == [20, 2]


def test_tries_are_few() -> None:
    assert batches.TRIES == 3
