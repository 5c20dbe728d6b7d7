"""Messages that are due later than SQS delays them: one-time schedules, on the emulators; refused where none can be made.

ministack fires a one-time schedule and deletes it, moto keeps what it is given. Neither calls a universal target: that the
request in it is one that SQS takes is shown by sending it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from onefold import errors, limits
from onefold.clock import SteadyClock
from onefold.contracts.entries import Entry, Refused, Sent, from_outbox
from onefold.contracts.queue import Attribute
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import OutboxItem
from onefold.engines import urls
from onefold.engines.aws.payloads import Payloads
from onefold.engines.aws.sending import Later
from onefold.engines.aws.session import Session
from onefold.engines.aws.sqs import Sqs
from onefold.engines.aws.sqs_admin import SqsQueues
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from tests.aws.sqs import rig

REGION = "eu-west-1"
ROLE = "arn:aws:iam::111122223333:role/app-scheduler"
NOW_MS = 1_900_000_000_000
AT_MS = NOW_MS + 3 * limits.DAY_MS + 1
AT = "at(2030-03-20T17:46:41)"

pytestmark = pytest.mark.slow


@pytest.fixture
def session(emulator_url: str) -> Iterator[Session]:
    found = Session(REGION, {"*": emulator_url}, session=rig.keys())
    yield found
    found.close()


@pytest.fixture
def queues(session: Session, request: pytest.FixtureRequest) -> Iterator[SqsQueues]:
    """Queues with a prefix of their own, and a schedule group of that name."""
    group = f"{request.node.originalname[5:40]}-"
    session.client("scheduler").create_schedule_group(Name=group)
    later = Later(session, group=group, role=ROLE)
    made = Sqs(session, clock=ManualClock(NOW_MS), entropy=SystemEntropy(), prefix=group, wait_s=0, later=later).admin
    for settings in (
        QueueSettings(name="dead", retention_ms=limits.RETENTION_MS_MAX),
        QueueSettings(name="orders", dead_letter="dead", receives_max=3),
        QueueSettings(name="dead.fifo", fifo=True, retention_ms=limits.RETENTION_MS_MAX),
        QueueSettings(name="lines.fifo", fifo=True, dead_letter="dead.fifo", receives_max=3),
    ):
        made.create(settings)
    yield made
    session.client("scheduler").delete_schedule_group(Name=group)


def schedules(session: Session, group: str) -> list[dict[str, Any]]:
    """Those of a group, whole."""
    client = session.client("scheduler")
    found = client.list_schedules(GroupName=group)["Schedules"]
    return [client.get_schedule(Name=one["Name"], GroupName=group) for one in found]


def group_of(queues: SqsQueues) -> str:
    """Of the schedules of these queues."""
    return queues._catalogue.prefix


def test_a_late_message_is_a_schedule_that_sends_it_and_deletes_itself(session: Session, queues: SqsQueues) -> None:
    queue = queues.open("orders")
    assert queue.capabilities.run_at
    entry = Entry(
        body='{"say": "<aws.scheduler.execution-id> é"}',
        attributes={"colour": Attribute("red"), "raw": Attribute(b"\x00\xff", "Binary")},
        key="o-1",
        run_at_ms=AT_MS,
    )
    (sent,) = queue.send([entry])
    assert isinstance(sent, Sent)
    (made,) = schedules(session, group_of(queues))
    assert made["Name"] == sent.message_id
    assert (made["ScheduleExpression"], made["ScheduleExpressionTimezone"]) == (AT, "UTC")
    assert made["ActionAfterCompletion"] == "DELETE"
    assert made["FlexibleTimeWindow"] == {"Mode": "OFF"}
    target = made["Target"]
    assert target["Arn"] == "arn:aws:scheduler:::aws-sdk:sqs:sendMessage"
    assert target["RoleArn"] == ROLE
    assert target["RetryPolicy"] == {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86_400}
    assert target["DeadLetterConfig"]["Arn"].endswith(f":{group_of(queues)}dead")
    assert "<aws.scheduler" not in target["Input"]
    assert queue.depth().visible + queue.depth().delayed == 0

    session.client("sqs").send_message(**json.loads(target["Input"]))
    (got,) = queue.receive(10)
    assert (got.body, got.key, got.attributes["colour"]) == (entry.body, "o-1", Attribute("red"))


def test_sending_it_again_makes_no_second_schedule_and_another_instant_does(
    session: Session, queues: SqsQueues
) -> None:
    queue = queues.open("orders")
    first = queue.send([Entry(body="a", run_at_ms=AT_MS), Entry(body="a", run_at_ms=AT_MS)])
    assert queue.send([Entry(body="a", run_at_ms=AT_MS)])[0] == first[0] == first[1]
    assert len(schedules(session, group_of(queues))) == 1
    queue.send([Entry(body="a", run_at_ms=AT_MS + limits.MINUTE_MS), Entry(body="b", run_at_ms=AT_MS)])
    assert len(schedules(session, group_of(queues))) == 3


@pytest.mark.parametrize("name", ["orders", "lines.fifo"])
@pytest.mark.parametrize("bytes_", [10, 200_000])
def test_an_outbox_that_is_sent_again_makes_no_second_schedule(
    session: Session, queues: SqsQueues, name: str, bytes_: int
) -> None:
    """The rest of the wait is counted anew, and the clocks are read a moment later."""
    prefix, wall = group_of(queues), ManualClock(NOW_MS)
    s3 = session.client("s3")
    with suppress(s3.exceptions.BucketAlreadyOwnedByYou):
        s3.create_bucket(Bucket="later-bodies", CreateBucketConfiguration={"LocationConstraint": REGION})
    later, payloads = (
        Later(session, group=prefix, role=ROLE),
        Payloads(session, "later-bodies", entropy=SystemEntropy()),
    )
    sqs = Sqs(
        session, clock=wall, entropy=SystemEntropy(), prefix=prefix, wait_s=0, later=later, payloads=payloads
    )  # fmt: skip
    made = sqs.admin
    wait_ms = 20 * limits.MINUTE_MS
    group = "g" if name.endswith(".fifo") else None
    item = OutboxItem(
        queue=name, body="b" * bytes_, group=group, dedup_id=group, run_at_ms=NOW_MS + wait_ms, wait_ms=wait_ms
    )
    answers = set()
    for taken_ms in (0, 7, 1_500):
        steady_ms = wall.now_ms()
        wall.advance(taken_ms)
        answers.add(repr(made.open(name).send([from_outbox(item, steady_ms)])))
    assert len(answers) == 1
    assert len(schedules(session, prefix)) == 1
    other = structs.replace(item, run_at_ms=NOW_MS + wait_ms + 1)
    assert isinstance(made.open(name).send([from_outbox(other, wall.now_ms())])[0], Sent)
    assert len(schedules(session, prefix)) == 2, "what another run sends a millisecond later is another message"


def test_on_a_fifo_queue_every_wait_is_a_schedule_with_group_and_deduplication_id(
    session: Session, queues: SqsQueues
) -> None:
    queue = queues.open("lines.fifo")
    answers = queue.send(
        [
            Entry(body="now", group="g", dedup_id="1"),
            Entry(body="soon", group="g", dedup_id="2", run_at_ms=NOW_MS + limits.MINUTE_MS),
        ]
    )
    assert all(isinstance(one, Sent) for one in answers)
    (made,) = schedules(session, group_of(queues))
    assert made["ScheduleExpression"] == f"at({datetime.fromtimestamp(NOW_MS / 1000 + 60, UTC):%Y-%m-%dT%H:%M:%S})"
    request = json.loads(made["Target"]["Input"])
    assert (request["MessageGroupId"], request["MessageDeduplicationId"]) == ("g", "2")
    assert "DeadLetterConfig" not in made["Target"]  # Scheduler takes standard queues only, and none was named
    assert [one.body for one in queue.receive(10)] == ["now"]


def test_what_could_not_be_sent_to_a_fifo_queue_goes_to_a_standard_queue_of_the_stack(
    session: Session, queues: SqsQueues
) -> None:
    prefix = group_of(queues)
    later = Later(session, group=prefix, role=ROLE, dead=f"{prefix}late-dead")
    made = Sqs(session, clock=ManualClock(NOW_MS), entropy=SystemEntropy(), prefix=prefix, wait_s=0, later=later).admin
    made.open("lines.fifo").send([Entry(body="soon", group="g", dedup_id="2", run_at_ms=AT_MS)])
    made.open("orders").send([Entry(body="soon", run_at_ms=AT_MS)])
    dead = {one["Target"]["DeadLetterConfig"]["Arn"].rpartition(":")[2] for one in schedules(session, prefix)}
    assert dead == {f"{prefix}late-dead", f"{prefix}dead"}


def test_what_sqs_delays_by_itself_stays_a_delay(session: Session, queues: SqsQueues) -> None:
    queues.open("orders").send([Entry(body="a", run_at_ms=NOW_MS + 15 * limits.MINUTE_MS)])
    assert schedules(session, group_of(queues)) == []


def test_a_request_that_is_too_large_for_a_schedule_is_refused(session: Session, queues: SqsQueues) -> None:
    (answer,) = queues.open("orders").send([Entry(body='"' * 140_000, run_at_ms=AT_MS)])
    assert isinstance(answer, Refused)
    assert "payloads=BUCKET/PREFIX" in answer.message
    assert schedules(session, group_of(queues)) == []


def test_a_group_that_is_not_there_is_named(ministack_url: str) -> None:
    session = Session(REGION, {"*": ministack_url}, session=rig.keys())
    later = Later(session, group="nowhere", role=ROLE)
    made = Sqs(session, clock=ManualClock(NOW_MS), entropy=SystemEntropy(), later=later).admin
    made.create(QueueSettings(name="alone"))
    with pytest.raises(errors.NotFoundError, match="schedule group nowhere"):
        made.open("alone").send([Entry(body="a", run_at_ms=AT_MS)])
    session.close()


def test_the_url_names_both_group_and_role_or_neither() -> None:
    place = urls.read_aws(f"aws://{REGION}?later=shop&later_role={ROLE}")
    assert (place.later_group, place.later_role) == ("shop", ROLE)
    with pytest.raises(errors.UsageError, match="without the other"):
        urls.read_aws(f"aws://{REGION}?later=shop")


@pytest.mark.parametrize("by_ms", [-limits.HOUR_MS, limits.HOUR_MS])
def test_an_instant_means_the_wall_clock_and_a_wait_is_counted(session: Session, queues: SqsQueues, by_ms: int) -> None:
    prefix, wall = group_of(queues), ManualClock(NOW_MS)
    clock = SteadyClock(wall)
    later = Later(session, group=prefix, role=ROLE)
    made = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix=prefix, wait_s=0, later=later).admin
    wall.jump(by_ms)
    assert clock.now_ms() == NOW_MS, "its steady clock goes on"
    at_ms = NOW_MS + by_ms + 20 * limits.MINUTE_MS
    queue = made.open("orders")
    assert all(isinstance(one, Sent) for one in queue.send([Entry(body="a", run_at_ms=at_ms)]))
    assert all(isinstance(one, Sent) for one in queue.send([Entry(body="b", wait_ms=20 * limits.MINUTE_MS)]))
    expected = f"at({datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S})"
    assert [one["ScheduleExpression"] for one in schedules(session, prefix)] == [expected] * 2
