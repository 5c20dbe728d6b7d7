"""Message move tasks, tags and permissions: each row an answer that AWS documents or gave when it was recorded."""

from __future__ import annotations

import base64
import json
import uuid

from onefold.contracts.state import Change, group_flag
from tests.wire.operations.counter import Counter, row

UPKEEP_S = 1


async def dead_letter(counter: Counter, count: int = 1) -> tuple[str, str]:
    """A queue and its dead-letter queue with so many dead letters."""
    url, dead = await counter.with_dead_letters()
    for number in range(count):
        await counter.send(url, f"o-{number}")
    await counter.receive(url)
    counter.advance(30)
    await counter.receive(url)
    return url, dead


async def moved(counter: Counter) -> None:
    """Let the upkeep carry the task to its end."""
    while counter.engine.queues.step_moves():
        pass


@row(
    "StartMessageMoveTask", "without a destination each message goes back to its own source, under a new id", "1.18 [O]"
)
async def test_move(counter: Counter) -> None:
    url, dead = await dead_letter(counter)
    old = (await counter.receive(dead, VisibilityTimeout=0))[0]["MessageId"]
    answer = await counter.ask("StartMessageMoveTask", SourceArn=counter.arn("orders-dead"))
    assert answer["TaskHandle"]
    await moved(counter)
    (got,) = await counter.receive(url, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    assert got["Body"] == "o-0"
    assert got["MessageId"] != old
    assert got["Attributes"] == {"ApproximateReceiveCount": "1"}
    assert await counter.bodies(dead) == []


@row("StartMessageMoveTask", "to another queue of the type", "1.18")
async def test_move_elsewhere(counter: Counter) -> None:
    _, dead = await dead_letter(counter)
    other = await counter.queue("other")
    await counter.ask("StartMessageMoveTask", SourceArn=counter.arn("orders-dead"), DestinationArn=counter.arn("other"))
    await moved(counter)
    assert await counter.bodies(other) == ["o-0"]
    assert await counter.bodies(dead) == []


@row("StartMessageMoveTask", "dead letters of a FIFO group that a onefold worker has stopped stay: FAILED", "onefold")
async def test_stopped_group(counter: Counter) -> None:
    """The server serves the workers' file: what is sent back one by one while messages arrive would run out of order."""
    url, dead = await counter.with_dead_letters("steps.fifo", ContentBasedDeduplication="true")
    for group in ("a", "b"):
        await counter.send(url, f"{group}-1", MessageGroupId=group)
    await counter.receive(url)
    counter.advance(30)
    await counter.receive(url)
    assert counter.engine.state.put([Change(group_flag("steps.fifo", "a"), b"the id of a-1", 0)]) == [True]
    source = dead.rpartition("/")[2]
    await counter.ask("StartMessageMoveTask", SourceArn=counter.arn(source))
    await moved(counter)
    assert await counter.bodies(url) == ["b-1"]
    (task,) = (await counter.ask("ListMessageMoveTasks", SourceArn=counter.arn(source)))["Results"]
    assert task["Status"] == "FAILED"
    assert "1 messages of stopped groups ('a' of 'steps.fifo')" in task["FailureReason"]
    assert await counter.bodies(dead) == ["a-1"]


@row("StartMessageMoveTask", "a source that is no dead-letter queue: InvalidParameterValue", "1.18 [O]")
async def test_no_dead_letter_queue(counter: Counter) -> None:
    await counter.queue()
    error = await counter.refused("StartMessageMoveTask", SourceArn=counter.arn("orders"))
    assert (error.legacy, error.text) == (
        "InvalidParameterValue",
        "Source queue must be configured as a Dead Letter Queue.",
    )


@row("StartMessageMoveTask", "unknown source or destination: ResourceNotFoundException, 404", "1.18 [O]")
async def test_unknown(counter: Counter) -> None:
    await dead_letter(counter)
    for asked in (
        {"SourceArn": counter.arn("none")},
        {"SourceArn": counter.arn("orders-dead"), "DestinationArn": counter.arn("none")},
    ):
        error = await counter.refused("StartMessageMoveTask", **asked)
        assert (error.shape, error.status) == ("ResourceNotFoundException", 404)


@row("StartMessageMoveTask", "one active task for a source; at most 500 messages a second", "1.18 [O]")
async def test_one_task(counter: Counter) -> None:
    await dead_letter(counter, 3)
    arn = counter.arn("orders-dead")
    for rate in (0, 501):
        error = await counter.refused("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=rate)
        assert error.legacy == "InvalidParameterValue"
    await counter.ask("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=1)
    error = await counter.refused("StartMessageMoveTask", SourceArn=arn)
    assert error.text == (
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
    )


@row("ListMessageMoveTasks", "newest first, one by default; a handle only while it runs", "1.18")
async def test_list(counter: Counter) -> None:
    await dead_letter(counter, 3)
    arn = counter.arn("orders-dead")
    assert await counter.ask("ListMessageMoveTasks", SourceArn=arn) in ({}, {"Results": []})
    handle = (await counter.ask("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=1))["TaskHandle"]
    (task,) = (await counter.ask("ListMessageMoveTasks", SourceArn=arn))["Results"]
    assert (task["Status"], task["TaskHandle"], task["SourceArn"]) == ("RUNNING", handle, arn)
    assert (task["ApproximateNumberOfMessagesToMove"], task["MaxNumberOfMessagesPerSecond"]) == (3, 1)
    assert "DestinationArn" not in task
    for _ in range(5):
        counter.advance(1)
        counter.engine.queues.step_moves()
    (task,) = (await counter.ask("ListMessageMoveTasks", SourceArn=arn, MaxResults=10))["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 3)
    assert "TaskHandle" not in task
    for count in (0, 11):
        error = await counter.refused("ListMessageMoveTasks", SourceArn=arn, MaxResults=count)
        assert error.legacy == "InvalidParameterValue"


@row("CancelMessageMoveTask", "what moved stays moved; bad and unknown handles", "1.18 [O]")
async def test_cancel(counter: Counter) -> None:
    url, dead = await dead_letter(counter, 3)
    arn = counter.arn("orders-dead")
    handle = (await counter.ask("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=1))["TaskHandle"]
    counter.advance(1)
    counter.engine.queues.step_moves()
    answer = await counter.ask("CancelMessageMoveTask", TaskHandle=handle)
    done = answer["ApproximateNumberOfMessagesMoved"]
    assert 1 <= done < 3
    counter.advance(10)
    counter.engine.queues.step_moves()
    assert len(await counter.receive(url)) == done
    assert len(await counter.receive(dead)) == 3 - done
    (task,) = (await counter.ask("ListMessageMoveTasks", SourceArn=arn))["Results"]
    assert task["Status"] == "CANCELLED"
    error = await counter.refused("CancelMessageMoveTask", TaskHandle="garbage")
    assert (error.legacy, error.text) == (
        "InvalidParameterValue",
        "Value for parameter TaskHandle is invalid.",
    )
    assert (await counter.refused("CancelMessageMoveTask", TaskHandle=handle)).legacy == "InvalidParameterValue"


@row("TagQueue", "tags are added and replaced, at most 50", "1.1")
async def test_tags(counter: Counter) -> None:
    url = await counter.queue()
    assert "Tags" not in await counter.ask("ListQueueTags", QueueUrl=url)
    await counter.ask("TagQueue", QueueUrl=url, Tags={"team": "shop", "stage": "dev"})
    await counter.ask("TagQueue", QueueUrl=url, Tags={"stage": "prod"})
    assert (await counter.ask("ListQueueTags", QueueUrl=url))["Tags"] == {"team": "shop", "stage": "prod"}
    many = {f"k{number}": "v" for number in range(49)}
    for tags in (many, {"k" * 129: "v"}, {"k": "v" * 257}, {"aws:x": "v"}):
        assert (await counter.refused("TagQueue", QueueUrl=url, Tags=tags)).legacy == "InvalidParameterValue"


@row("UntagQueue", "by key; unknown keys do not matter", "1.1")
async def test_untag(counter: Counter) -> None:
    url = await counter.queue()
    await counter.ask("TagQueue", QueueUrl=url, Tags={"team": "shop", "stage": "dev"})
    await counter.ask("UntagQueue", QueueUrl=url, TagKeys=["stage", "none"])
    assert (await counter.ask("ListQueueTags", QueueUrl=url))["Tags"] == {"team": "shop"}


@row("ListQueueTags", "of an unknown queue: QueueDoesNotExist", "1.2")
async def test_tags_of_nothing(counter: Counter) -> None:
    assert (await counter.refused("ListQueueTags", QueueUrl="none")).shape == "QueueDoesNotExist"


@row("AddPermission", "is a statement of the queue's policy", "1.2, 1.4")
async def test_add_permission(counter: Counter) -> None:
    url = await counter.queue()
    asked = {"Label": "send", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}
    await counter.ask("AddPermission", QueueUrl=url, **asked)
    (statement,) = json.loads(await counter.attribute(url, "Policy") or "")["Statement"]
    assert statement == {
        "Sid": "send", "Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
        "Action": "SQS:SendMessage", "Resource": counter.arn("orders"),
    }  # fmt: skip
    assert (await counter.refused("AddPermission", QueueUrl=url, **asked)).legacy == "InvalidParameterValue"
    for bad in (
        {"Label": "a b"},
        {"AWSAccountIds": ["me"]},
        {"Actions": ["Explode"]},
    ):
        error = await counter.refused("AddPermission", QueueUrl=url, **{**asked, "Label": "other", **bad})
        assert error.legacy == "InvalidParameterValue"
    many = {**asked, "Label": "many", "Actions": ["SendMessage"] * 8}
    assert (await counter.refused("AddPermission", QueueUrl=url, **many)).shape == "OverLimit"


@row("RemovePermission", "by label; an unknown one is refused", "1.2")
async def test_remove_permission(counter: Counter) -> None:
    url = await counter.queue()
    await counter.ask("AddPermission", QueueUrl=url, Label="a", AWSAccountIds=["111111111111"], Actions=["*"])
    assert (await counter.refused("RemovePermission", QueueUrl=url, Label="b")).legacy == "InvalidParameterValue"
    await counter.ask("RemovePermission", QueueUrl=url, Label="a")
    assert await counter.attribute(url, "Policy") is None


@row("CancelMessageMoveTask", "a task handle is the base64 of a JSON object with taskId and sourceArn", "1.18 [O]")
async def test_form_of_task_handles(counter: Counter) -> None:
    await dead_letter(counter, 3)
    arn = counter.arn("orders-dead")
    handle = (await counter.ask("StartMessageMoveTask", SourceArn=arn, MaxNumberOfMessagesPerSecond=1))["TaskHandle"]
    said = json.loads(base64.b64decode(handle, validate=True))
    assert said.keys() == {"taskId", "sourceArn"}
    assert str(uuid.UUID(said["taskId"])) == said["taskId"]
    assert said["sourceArn"] == arn
    for task, source, text in (
        ("10f57157-fc38-4da9-a113-4de7e12d05aa", arn, "Task does not exist."),
        ("no uuid", arn, "Task does not exist."),
        (
            said["taskId"],
            counter.arn("none"),
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
    ):
        other = base64.b64encode(json.dumps({"taskId": task, "sourceArn": source}).encode()).decode()
        error = await counter.refused("CancelMessageMoveTask", TaskHandle=other)
        assert (error.shape, error.status, error.text) == ("ResourceNotFoundException", 404, text)
    for garbage in ("garbage", base64.b64encode(b"garbage").decode(), base64.b64encode(b'{"taskId": 1}').decode()):
        error = await counter.refused("CancelMessageMoveTask", TaskHandle=garbage)
        assert (error.legacy, error.text) == ("InvalidParameterValue", "Value for parameter TaskHandle is invalid.")
    await counter.ask("CancelMessageMoveTask", TaskHandle=handle)


@row("RemovePermission", "an unknown label: with a policy and without one AWS has two texts", "1.2 [O]")
async def test_unknown_label(counter: Counter) -> None:
    url = await counter.queue()
    error = await counter.refused("RemovePermission", QueueUrl=url, Label="b")
    assert error.text == "Value b for parameter Label is invalid. Reason: can't find label."
    await counter.ask("AddPermission", QueueUrl=url, Label="a", AWSAccountIds=["111111111111"], Actions=["*"])
    error = await counter.refused("RemovePermission", QueueUrl=url, Label="b")
    assert error.text == "Value b for parameter Label is invalid. Reason: can't find label on existing policy."
