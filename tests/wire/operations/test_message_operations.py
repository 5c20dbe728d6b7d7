"""SendMessage to DeleteMessageBatch: each row an answer that AWS documents or gave when it was recorded."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from typing import Any

from onefold.local.identifiers import handle_of, receipt_of
from tests.wire.operations.counter import Counter, row

FIFO: dict[str, Any] = {"MessageGroupId": "g", "MessageDeduplicationId": "d-1"}
INVALID = "InvalidParameterValue"


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


# -- sending -----------------------------------------------------------------------------------------------------------


@row("SendMessage", "id, MD5 of the body; a sequence number on FIFO only", "1.7, 1.8")
async def test_send(counter: Counter) -> None:
    answer = await counter.ask("SendMessage", QueueUrl=await counter.queue(), MessageBody="größer")
    assert answer.keys() == {"MessageId", "MD5OfMessageBody"}
    assert answer["MD5OfMessageBody"] == md5("größer")
    fifo = await counter.queue("steps.fifo")
    first, second = [
        await counter.ask("SendMessage", QueueUrl=fifo, MessageBody="x", MessageGroupId="g", MessageDeduplicationId=one)
        for one in ("a", "b")
    ]
    assert len(first["SequenceNumber"]) == 20
    assert int(first["SequenceNumber"]) < int(second["SequenceNumber"])


@row("SendMessage", "a bare queue name as QueueUrl", "1.1 [O]")
async def test_bare_name(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send("orders")
    assert await counter.bodies(url) == ["o-1"]


@row("SendMessage", "MD5 of message attributes: recorded digests", "1.7 [O]")
async def test_attribute_digests(counter: Counter) -> None:
    url = await counter.queue()
    number = {"DataType": "Number", "StringValue": "6"}
    for attributes, digest in (
        ({"Foo": text("Bar")}, "ae7155c6026991b6d54b11589678bf9c"),
        ({"Hello": text("There")}, "a311262e065454b75da111d535b8dacd"),
        (
            {"WeeksOn": number, "Author": text("John Grisham"), "Title": text("The Whistler")},
            "d25a6aea97eb8f585bfa92d314504a92",
        ),
    ):
        answer = await counter.ask("SendMessage", QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
        assert answer["MD5OfMessageAttributes"] == digest


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


@row("SendMessage", "system attribute AWSTraceHeader has a digest of its own", "1.6, 1.7")
async def test_trace(counter: Counter) -> None:
    url = await counter.queue()
    trace = {"AWSTraceHeader": text("Root=1-5759e988-bd862e3fe1be46a994272793")}
    answer = await counter.ask("SendMessage", QueueUrl=url, MessageBody="x", MessageSystemAttributes=trace)
    assert "MD5OfMessageSystemAttributes" in answer
    assert "MD5OfMessageAttributes" not in answer
    (got,) = await counter.receive(url, MessageSystemAttributeNames=["AWSTraceHeader"])
    assert got["Attributes"] == {"AWSTraceHeader": trace["AWSTraceHeader"]["StringValue"]}


@row("SendMessage", "an empty body: MissingParameter", "1.3 [O]")
async def test_empty_body(counter: Counter) -> None:
    error = await counter.refused("SendMessage", QueueUrl=await counter.queue(), MessageBody="")
    assert (error.shape, error.legacy) == ("MissingRequiredParameterException", "MissingParameter")
    assert error.text == "The request must contain the parameter MessageBody."


@row("SendMessage", "characters outside of the allowed set: InvalidMessageContents", "1.6")
async def test_characters(counter: Counter) -> None:
    url = await counter.queue()
    for body in ("a\0b", "a\x0bb", "\ufffe"):
        error = await counter.refused("SendMessage", QueueUrl=url, MessageBody=body)
        assert error.shape == "InvalidMessageContents"
    await counter.send(url, "tab\t line\n return\r 日本 🎉 <&>\"'")
    assert await counter.bodies(url) == ["tab\t line\n return\r 日本 🎉 <&>\"'"]


@row(
    "SendMessage", "above the queue's limit, attributes counted: InvalidParameterValue names the limit", "1.3 [O], 1.6"
)
async def test_size(counter: Counter) -> None:
    url = await counter.queue(MaximumMessageSize="1024")
    await counter.send(url, "x" * 1024)
    error = await counter.refused("SendMessage", QueueUrl=url, MessageBody="x" * 1025)
    assert error.text == "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."
    more = {"MessageAttributes": {"a": text("b")}}
    error = await counter.refused("SendMessage", QueueUrl=url, MessageBody="x" * 1017, **more)
    assert error.legacy == INVALID
    await counter.send(url, "x" * 1016, **more)


@row("SendMessage", "user attributes: at most 10, names, types and values checked", "1.3 [O], 1.6")
async def test_attributes(counter: Counter) -> None:
    url = await counter.queue()
    empty = await counter.refused(
        "SendMessage", QueueUrl=url, MessageBody="x", MessageAttributes={"X": {"DataType": "String", "StringValue": ""}}
    )
    assert empty.text == "Message (user) attribute 'X' must contain a non-empty value of type 'String'."
    for attributes in (
        {f"a{number}": text("x") for number in range(11)},
        {f"a{number}": {"DataType": ""} for number in range(1_000)},
        {"AWS.x": text("x")},
        {"a..b": text("x")},
        {".a": text("x")},
        {"a" * 257: text("x")},
        {"a": {"DataType": "Strange", "StringValue": "x"}},
        {"a": {"DataType": "Number", "StringValue": "six"}},
        {"a": {"DataType": "Number", "StringValue": "0" * 2_000 + "6"}},
        {"a": {"DataType": "String"}},
    ):
        error = await counter.refused("SendMessage", QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
        assert error.legacy == INVALID, attributes
        assert len(attributes) == 1 or "Number of message attributes" in error.text
    assert await counter.bodies(url) == []


@row("SendMessage", "a delay of 0 to 900 seconds overrides the queue's", "1.8")
async def test_delay(counter: Counter) -> None:
    url = await counter.queue(DelaySeconds="10")
    await counter.send(url, "now", DelaySeconds=0)
    await counter.send(url, "queue")
    await counter.send(url, "own", DelaySeconds=20)
    assert await counter.bodies(url) == ["now"]
    counter.advance(10)
    assert await counter.bodies(url) == ["queue"]
    counter.advance(10)
    assert await counter.bodies(url) == ["own"]
    for delay in (-1, 901):
        error = await counter.refused("SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=delay)
        assert error.legacy == INVALID


@row("SendMessage", "FIFO takes no delay but zero, and zero leaves the queue's", "1.3 [O], 1.8 [O]")
async def test_fifo_delay(counter: Counter) -> None:
    url = await counter.queue("steps.fifo", DelaySeconds="5")
    error = await counter.refused("SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=2, **FIFO)
    assert error.text == (
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for "
        "this queue type."
    )
    await counter.send(url, DelaySeconds=0, **FIFO)
    assert await counter.bodies(url) == []
    counter.advance(5)
    assert await counter.bodies(url) == ["o-1"]


@row("SendMessage", "FIFO needs a group, and a deduplication id unless it is content-based", "1.3 [O]")
async def test_fifo_ids(counter: Counter) -> None:
    url = await counter.queue("steps.fifo")
    error = await counter.refused("SendMessage", QueueUrl=url, MessageBody="x", MessageDeduplicationId="d")
    assert (error.legacy, error.text) == ("MissingParameter", "The request must contain the parameter MessageGroupId.")
    error = await counter.refused("SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="g")
    assert error.text == (
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
    )
    for bad in ("a b", "x" * 129, "ä"):
        error = await counter.refused(
            "SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId=bad, MessageDeduplicationId="d"
        )
        assert "can only include alphanumeric and punctuation characters. 1 to 128 in length." in error.text


@row("SendMessage", "a group on a standard queue is a tenant (fair queues): kept, no order, no lock", "1.16")
async def test_fair_queue(counter: Counter) -> None:
    url = await counter.queue()
    for body in ("a", "b"):
        await counter.send(url, body, MessageGroupId="tenant-1")
    assert len(await counter.receive(url, 1)) == 1
    (got,) = await counter.receive(url, MessageSystemAttributeNames=["MessageGroupId"])
    assert got["Attributes"] == {"MessageGroupId": "tenant-1"}
    error = await counter.refused("SendMessage", QueueUrl=url, MessageBody="x", MessageDeduplicationId="d")
    assert error.legacy == INVALID


@row("SendMessage", "deduplication: five minutes, whatever became of the message", "1.15 [O]")
async def test_deduplication(counter: Counter) -> None:
    url = await counter.queue("steps.fifo")
    first = await counter.send(url, **FIFO)
    assert await counter.send(url, "other body", **FIFO) == first
    (got,) = await counter.receive(url)
    await counter.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    counter.advance(299)
    await counter.send(url, **FIFO)
    assert await counter.bodies(url) == []
    counter.advance(1)
    assert await counter.send(url, "again", **FIFO) != first
    assert await counter.bodies(url) == ["again"]


@row("SendMessage", "deduplication scope: the queue, or each group", "1.15 [O]")
async def test_deduplication_scope(counter: Counter) -> None:
    for scope, delivered in (("queue", 1), ("messageGroup", 2)):
        url = await counter.queue(f"{scope}.fifo", DeduplicationScope=scope)
        for group in ("a", "b"):
            await counter.send(url, MessageGroupId=group, MessageDeduplicationId="same")
        assert len(await counter.receive(url)) == delivered


@row("SendMessage", "content-based deduplication looks at the body only; an explicit id overrides it", "1.15")
async def test_content_deduplication(counter: Counter) -> None:
    url = await counter.queue("steps.fifo", ContentBasedDeduplication="true")
    await counter.send(url, "same", MessageGroupId="g")
    await counter.send(url, "same", MessageGroupId="g", MessageAttributes={"a": text("b")})
    await counter.send(url, "same", **FIFO)
    assert await counter.bodies(url) == ["same", "same"]


@row("SendMessageBatch", "per entry: accepted ones with ids and digests, others with code and fault", "1.9 [O]")
async def test_send_batch(counter: Counter) -> None:
    url = await counter.queue(MaximumMessageSize="1024")
    entries = [{"Id": "good", "MessageBody": "x"}, {"Id": "large", "MessageBody": "x" * 1025}]
    answer = await counter.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    (good,), (large,) = answer["Successful"], answer["Failed"]
    assert (good["Id"], good["MD5OfMessageBody"]) == ("good", md5("x"))
    assert (large["Id"], large["SenderFault"], large["Code"]) == ("large", True, INVALID)
    assert await counter.bodies(url) == ["x"]


@row("SendMessageBatch", "refused as a whole: no entries, more than 10, bad or repeated ids", "1.2, 1.3 [O]")
async def test_bad_batches(counter: Counter) -> None:
    url = await counter.queue()

    async def refused(*ids: str) -> str:
        entries = [{"Id": one, "MessageBody": "x"} for one in ids]
        error = await counter.refused("SendMessageBatch", QueueUrl=url, Entries=entries)
        assert error.legacy == f"AWS.SimpleQueueService.{error.shape}"
        return f"{error.shape}: {error.text}"

    assert (await refused()).startswith("EmptyBatchRequest")
    assert (await refused(*map(str, range(11)))).startswith("TooManyEntriesInBatchRequest")
    assert (await refused("a", "a")) == "BatchEntryIdsNotDistinct: Id a repeated."
    for bad in ("a b", "x" * 81, "ä", ""):
        assert (await refused("ok", bad)).startswith("InvalidBatchEntryId: A batch entry id can only contain")
    assert await counter.bodies(url) == []


@row("SendMessageBatch", "more than 1 MiB together: BatchRequestTooLong with the size", "1.3 [O], 1.9")
async def test_long_batch(counter: Counter) -> None:
    url = await counter.queue()
    half = 524_288
    entries = [{"Id": "a", "MessageBody": "x" * half}, {"Id": "b", "MessageBody": "x" * (half + 1)}]
    error = await counter.refused("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert error.shape == "BatchRequestTooLong"
    assert error.text == "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    entries[1]["MessageBody"] = "x" * half
    assert len((await counter.ask("SendMessageBatch", QueueUrl=url, Entries=entries))["Successful"]) == 2


@row("SendMessageBatch", "FIFO without a group or id: the whole batch is refused", "1.3 [O], 1.9 [O]")
async def test_fifo_batch(counter: Counter) -> None:
    url = await counter.queue("steps.fifo")
    good = {"Id": "a", "MessageBody": "x", **FIFO}
    error = await counter.refused("SendMessageBatch", QueueUrl=url, Entries=[good, {"Id": "b", "MessageBody": "x"}])
    assert (error.legacy, error.text) == (INVALID, "The request must contain the parameter MessageGroupId.")
    lacks = {"Id": "b", "MessageBody": "x", "MessageGroupId": "g"}
    error = await counter.refused("SendMessageBatch", QueueUrl=url, Entries=[good, lacks])
    assert error.legacy == INVALID
    assert await counter.bodies(url) == []


@row("SendMessageBatch", "FIFO entries are enqueued in list order", "1.9")
async def test_batch_order(counter: Counter) -> None:
    url = await counter.queue("steps.fifo", ContentBasedDeduplication="true")
    entries = [{"Id": str(n), "MessageBody": f"m{n}", "MessageGroupId": "g"} for n in (3, 1, 2)]
    await counter.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert await counter.bodies(url) == ["m3", "m1", "m2"]


# -- receiving ---------------------------------------------------------------------------------------------------------


@row("ReceiveMessage", "nothing there: no Messages member, short and long poll alike", "1.1 [O]")
async def test_empty(counter: Counter) -> None:
    url = await counter.queue()
    assert "Messages" not in await counter.ask("ReceiveMessage", QueueUrl=url)
    waiting = asyncio.ensure_future(counter.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
    await counter.turn()
    counter.advance(20)
    assert "Messages" not in await waiting


@row("ReceiveMessage", "a long poll answers as soon as a message is there", "1.10")
async def test_long_poll(counter: Counter) -> None:
    url = await counter.queue()
    waiting = asyncio.ensure_future(counter.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
    await counter.turn()
    await counter.send(url)
    assert (await waiting)["Messages"][0]["Body"] == "o-1"


@row("ReceiveMessage", "the queue's own wait counts where the request has none", "1.4, 1.10")
async def test_queue_wait(counter: Counter) -> None:
    url = await counter.queue(ReceiveMessageWaitTimeSeconds="20")
    waiting = asyncio.ensure_future(counter.ask("ReceiveMessage", QueueUrl=url))
    await counter.turn()
    await counter.send(url)
    assert (await waiting)["Messages"][0]["Body"] == "o-1"
    assert "Messages" not in await counter.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=0)


@row("ReceiveMessage", "a queue deleted under a long poll: QueueDoesNotExist", "1.2")
async def test_deleted_under_a_poll(counter: Counter) -> None:
    url = await counter.queue()
    waiting = asyncio.ensure_future(counter.refused("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
    await counter.turn()
    await counter.ask("DeleteQueue", QueueUrl=url)
    assert (await waiting).shape == "QueueDoesNotExist"


@row("ReceiveMessage", "parameters out of range, with AWS's texts", "1.3 [O]")
async def test_receive_ranges(counter: Counter) -> None:
    url = await counter.queue()
    for count in (0, 11):
        error = await counter.refused("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=count)
        assert error.text == (
            f"Value {count} for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."
        )
    for seconds in (-1, 21):
        error = await counter.refused("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=seconds)
        assert error.text == (
            f"Value {seconds} for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."
        )
    for seconds in (-1, 43_201):
        error = await counter.refused("ReceiveMessage", QueueUrl=url, VisibilityTimeout=seconds)
        assert error.legacy == INVALID


@row(
    "ReceiveMessage", "one message unless more are asked for; a new handle for every receive, the same id", "1.5, 1.10"
)
async def test_handles(counter: Counter) -> None:
    url = await counter.queue()
    ids = {await counter.send(url), await counter.send(url)}
    (first,) = (await counter.ask("ReceiveMessage", QueueUrl=url))["Messages"]
    counter.advance(30)
    again = next(one for one in await counter.receive(url) if one["MessageId"] == first["MessageId"])
    assert again["ReceiptHandle"] != first["ReceiptHandle"]
    assert first["MessageId"] in ids
    assert first["MD5OfBody"] == md5("o-1")
    assert "Attributes" not in first


@row("ReceiveMessage", "system attributes: all are text, times in milliseconds; both parameters name them", "1.10")
async def test_system_attributes(counter: Counter) -> None:
    url = await counter.queue()
    sent_ms = str(counter.clock.now_ms())
    await counter.send(url)
    counter.advance(2)
    (got,) = await counter.receive(url, MessageSystemAttributeNames=["All"])
    found = got["Attributes"]
    assert found.keys() == {
        "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp",
    }  # fmt: skip
    assert (found["SentTimestamp"], found["ApproximateReceiveCount"]) == (sent_ms, "1")
    assert found["ApproximateFirstReceiveTimestamp"] == str(int(sent_ms) + 2_000)
    counter.advance(30)
    (got,) = await counter.receive(url, AttributeNames=["ApproximateReceiveCount", "SequenceNumber"])
    assert got["Attributes"] == {"ApproximateReceiveCount": "2"}


@row("ReceiveMessage", "FIFO adds group, deduplication id and sequence number", "1.10")
async def test_fifo_attributes(counter: Counter) -> None:
    url = await counter.queue("steps.fifo")
    answer = await counter.ask("SendMessage", QueueUrl=url, MessageBody="x", **FIFO)
    (got,) = await counter.receive(url, MessageSystemAttributeNames=["All"])
    found = got["Attributes"]
    assert (found["MessageGroupId"], found["MessageDeduplicationId"]) == ("g", "d-1")
    assert found["SequenceNumber"] == answer["SequenceNumber"]


@row(
    "ReceiveMessage",
    "message attributes by name, All, .*, prefix.*, *; the digest covers what is returned",
    "1.6 [O], 1.7 [O]",
)
async def test_attribute_filter(counter: Counter) -> None:
    url = await counter.queue(VisibilityTimeout="0")
    await counter.send(url, MessageAttributes={"bar.a": text("1"), "bar.b": text("2"), "Foo": text("Bar")})
    for names, wanted in (
        (["Foo"], {"Foo"}),
        (["All"], {"bar.a", "bar.b", "Foo"}),
        ([".*"], {"bar.a", "bar.b", "Foo"}),
        (["*"], {"bar.a", "bar.b", "Foo"}),
        (["bar.*"], {"bar.a", "bar.b"}),
        (["none", "../x"], set()),
        ([], set()),
    ):
        (got,) = await counter.receive(url, MessageAttributeNames=names)
        assert set(got.get("MessageAttributes", {})) == wanted, names
        assert ("MD5OfMessageAttributes" in got) is bool(wanted)
        if wanted == {"Foo"}:
            assert got["MD5OfMessageAttributes"] == "ae7155c6026991b6d54b11589678bf9c"


@row("ReceiveMessage", "very many attribute names are read once, not for each attribute of each message", "1.6")
async def test_a_million_names_are_read_once(counter: Counter) -> None:
    url = await counter.queue(VisibilityTimeout="0")
    attributes = {f"a{number}": text("x") for number in range(9)} | {"bar.a": text("y")}
    for _ in range(10):
        await counter.send(url, MessageAttributes=attributes)
    names = [f"z{number}.*" for number in range(100_000 if counter.protocol == "json" else 3_000)]
    began = time.thread_time()
    received = await counter.receive(url, MessageAttributeNames=[*names, "bar.*"])
    assert time.thread_time() - began < 1, "it was 6 s: each name was compared with each attribute of each message"
    assert [set(one["MessageAttributes"]) for one in received] == [{"bar.a"}] * 10


@row("ReceiveMessage", "binary attributes come back as bytes; numbers without their zeros", "1.6")
async def test_attribute_values(counter: Counter) -> None:
    url = await counter.queue()
    given = {
        "raw": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
        "many": {"DataType": "Number.int", "StringValue": "0012.500"},
    }
    await counter.send(url, MessageAttributes=given)
    (got,) = await counter.receive(url, MessageAttributeNames=["All"])
    found = got["MessageAttributes"]
    assert (found["raw"]["BinaryValue"], found["raw"]["DataType"]) == (b"\x00\xff", "Binary.png")
    assert (found["many"]["StringValue"], found["many"]["DataType"]) == ("12.5", "Number.int")


@row("ReceiveMessage", "a visibility of its own for the messages it returns; 0 leaves them visible", "1.10 [O]")
async def test_receive_visibility(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send(url)
    assert await counter.bodies(url, VisibilityTimeout=0) == ["o-1"]
    assert await counter.bodies(url, VisibilityTimeout=5) == ["o-1"]
    counter.advance(4.999)
    assert await counter.bodies(url) == []
    counter.advance(0.001)
    assert await counter.bodies(url) == ["o-1"]


@row("ReceiveMessage", "an expired message is gone, in flight or not", "1.19 [O]")
async def test_retention(counter: Counter) -> None:
    url = await counter.queue(MessageRetentionPeriod="60")
    await counter.send(url, "held")
    (held,) = await counter.receive(url, VisibilityTimeout=50)
    await counter.send(url, "later")
    counter.advance(60)
    assert await counter.bodies(url) == []
    await counter.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])


@row("ReceiveMessage", "the same ReceiveRequestAttemptId: the same messages and handles, hidden anew", "1.10")
async def test_attempt(counter: Counter) -> None:
    url = await counter.queue("steps.fifo", ContentBasedDeduplication="true")
    await counter.send(url, MessageGroupId="g")
    first = await counter.receive(url, ReceiveRequestAttemptId="try-1")
    counter.advance(20)
    assert await counter.receive(url, ReceiveRequestAttemptId="try-1") == first
    counter.advance(20)
    assert await counter.receive(url, ReceiveRequestAttemptId="try-2") == []
    await counter.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"])
    assert await counter.receive(url, ReceiveRequestAttemptId="try-1") == []


@row(
    "ReceiveMessage",
    "a ReceiveRequestAttemptId whose messages are gone (purge, new queue, mapping): a new receive",
    "1.10",
)
async def test_attempt_whose_messages_are_gone(counter: Counter) -> None:
    for how in ("purged", "recreated", "mapped"):
        name = f"{how}.fifo"
        url = await counter.queue(name, ContentBasedDeduplication="true", VisibilityTimeout="120")
        await counter.send(url, "a", MessageGroupId="g")
        await counter.send(url, "b", MessageGroupId="h")
        first = await counter.receive(url, ReceiveRequestAttemptId="try-1")
        assert len(first) == 2
        if how == "purged":
            await counter.ask("PurgeQueue", QueueUrl=url)
        elif how == "recreated":
            await counter.ask("DeleteQueue", QueueUrl=url)
            counter.advance(61)
            assert await counter.queue(name, ContentBasedDeduplication="true") == url
        else:  # a mapping deletes without an operation of a client
            await counter.queues.delete(name, [receipt_of(first[0]["ReceiptHandle"], name)], via="mapping 1")
        assert await counter.receive(url, ReceiveRequestAttemptId="try-1") == [], how
        await counter.send(url, "c", MessageGroupId="i")
        assert await counter.bodies(url, ReceiveRequestAttemptId="try-1") == ["c"], how


# -- FIFO groups -------------------------------------------------------------------------------------------------------


async def sent(counter: Counter, *bodies: str) -> str:
    url = await counter.queue("steps.fifo", ContentBasedDeduplication="true")
    for body in bodies:
        await counter.send(url, body, MessageGroupId=body.partition("-")[0])
    return url


@row("ReceiveMessage", "FIFO: as many of one group as possible in order, then other groups", "1.14 [O]")
async def test_fill_order(counter: Counter) -> None:
    url = await sent(counter, "g1-m1", "g2-m1", "g1-m2", "g1-m3")
    assert await counter.bodies(url) == ["g1-m1", "g1-m2", "g1-m3", "g2-m1"]


@row("ReceiveMessage", "FIFO: a group with a message in flight is locked; deleting all unlocks it at once", "1.14 [O]")
async def test_group_lock(counter: Counter) -> None:
    url = await sent(counter, "g1-m1", "g1-m2", "g2-m1")
    (first,) = await counter.receive(url, 1)
    assert await counter.bodies(url) == ["g2-m1"]
    await counter.send(url, "g1-m3", MessageGroupId="g1")
    assert await counter.bodies(url) == []
    await counter.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    assert await counter.bodies(url) == ["g1-m2", "g1-m3"]


@row("ReceiveMessage", "FIFO: releasing m1 gives m1 again though m2 is in flight; m2 is not given", "1.14 [O]")
async def test_partial_release(counter: Counter) -> None:
    url = await sent(counter, "g1-m1", "g1-m2")
    first, _ = await counter.receive(url)
    await counter.ask(
        "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0
    )
    assert await counter.bodies(url) == ["g1-m1"]


@row("ReceiveMessage", "FIFO: extend one of three: it and everything after stay hidden", "1.14 [O]")
async def test_extend_one(counter: Counter) -> None:
    for extended, wanted in ((0, []), (1, ["m0"]), (2, ["m0", "m1"])):
        url = await counter.queue(f"q{extended}.fifo", ContentBasedDeduplication="true")
        for number in range(3):
            await counter.send(url, f"m{number}", MessageGroupId="g")
        got = await counter.receive(url)
        handle = got[extended]["ReceiptHandle"]
        await counter.ask("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=100)
        counter.advance(30)
        assert await counter.bodies(url) == wanted


@row("ReceiveMessage", "FIFO: after expiry the remainder comes back in the original order", "1.14 [O]")
async def test_order_after_expiry(counter: Counter) -> None:
    url = await sent(counter, "g-1", "g-2", "g-3")
    await counter.receive(url)
    counter.advance(30)
    assert await counter.bodies(url) == ["g-1", "g-2", "g-3"]


# -- delete ------------------------------------------------------------------------------------------------------------


@row("DeleteMessage", "standard: in flight, late, twice, and by an older handle: success", "1.12 [O]")
async def test_delete_standard(counter: Counter) -> None:
    url = await counter.queue()
    for receives, late in ((1, 0), (1, 31), (2, 0)):
        await counter.send(url)
        handles = []
        for number in range(receives):
            (got,) = await counter.receive(url)
            handles.append(got["ReceiptHandle"])
            counter.advance(31 if number < receives - 1 else late)
        for _ in range(2):
            await counter.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=handles[-1])
        await counter.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=handles[0])
        counter.advance(31)
        assert await counter.bodies(url) == []


@row("DeleteMessage", "FIFO: late delete: InvalidParameterValue, the receipt handle has expired", "1.12 [O], 9.3")
async def test_delete_fifo_late(counter: Counter) -> None:
    url = await sent(counter, "g-1")
    (got,) = await counter.receive(url)
    counter.advance(30)
    error = await counter.refused("DeleteMessage", QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert error.legacy == INVALID
    assert error.text == (
        f"Value {got['ReceiptHandle']} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    )
    assert await counter.bodies(url) == ["g-1"]


@row("DeleteMessage", "FIFO: valid until an extended visibility ends; twice inside it succeeds", "1.12 [O]")
async def test_delete_fifo_extended(counter: Counter) -> None:
    url = await sent(counter, "g-1")
    (got,) = await counter.receive(url)
    handle = got["ReceiptHandle"]
    await counter.ask("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=60)
    counter.advance(45)
    for _ in range(2):
        await counter.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    counter.advance(60)
    assert await counter.bodies(url) == []


@row("DeleteMessage", "garbage, or another queue's handle: ReceiptHandleIsInvalid", "1.3 [O], 1.12")
async def test_delete_garbage(counter: Counter) -> None:
    url, other = await counter.queue(), await counter.queue("other")
    await counter.send(other)
    (got,) = await counter.receive(other)
    error = await counter.refused("DeleteMessage", QueueUrl=url, ReceiptHandle="garbage")
    assert error.shape == "ReceiptHandleIsInvalid"
    assert error.text == 'The input receipt handle "garbage" is not a valid receipt handle.'
    error = await counter.refused("DeleteMessage", QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert error.shape == "ReceiptHandleIsInvalid"
    gone = await counter.refused("DeleteMessage", QueueUrl=url + "x", ReceiptHandle="garbage")
    assert gone.shape == "QueueDoesNotExist"


@row("DeleteMessageBatch", "per entry: done, garbage, and expired on FIFO as ReceiptHandleIsInvalid", "1.9 [O]")
async def test_delete_batch(counter: Counter) -> None:
    url = await sent(counter, "a-1", "b-1")
    late, _ = await counter.receive(url, 1), None
    counter.advance(30)
    fresh = await counter.receive(url)
    kept = next(one for one in fresh if one["MessageId"] != late[0]["MessageId"])
    answer = await counter.ask(
        "DeleteMessageBatch",
        QueueUrl=url,
        Entries=[
            {"Id": "ok", "ReceiptHandle": kept["ReceiptHandle"]},
            {"Id": "late", "ReceiptHandle": late[0]["ReceiptHandle"]},
            {"Id": "bad", "ReceiptHandle": "garbage"},
        ],
    )
    assert [one["Id"] for one in answer["Successful"]] == ["ok"]
    failed = {one["Id"]: one for one in answer["Failed"]}
    assert {one["Code"] for one in failed.values()} == {"ReceiptHandleIsInvalid"}
    assert failed["late"]["Message"] == "The receipt handle has expired"
    assert failed["late"]["SenderFault"] is True


# -- visibility --------------------------------------------------------------------------------------------------------


async def change(counter: Counter, url: str, handle: str, seconds: int) -> None:
    await counter.ask("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)


@row("ChangeMessageVisibility", "counts from the call and replaces what was left; not remembered", "1.11")
async def test_change(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send(url)
    (got,) = await counter.receive(url)
    counter.advance(20)
    await change(counter, url, got["ReceiptHandle"], 20)
    counter.advance(19.999)
    assert await counter.bodies(url) == []
    counter.advance(0.001)
    assert await counter.bodies(url) == ["o-1"]
    counter.advance(29.999)
    assert await counter.bodies(url) == []


@row("ChangeMessageVisibility", "0 makes it visible at once; the receive counted", "1.11")
async def test_release(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send(url)
    (got,) = await counter.receive(url)
    await change(counter, url, got["ReceiptHandle"], 0)
    (again,) = await counter.receive(url, MessageSystemAttributeNames=["ApproximateReceiveCount"])
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}


@row("ChangeMessageVisibility", "12 hours from the receive, no clamping", "1.3 [O], 1.11 [O]")
async def test_ceiling(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send(url)
    (got,) = await counter.receive(url)
    counter.advance(0.001)
    error = await counter.refused(
        "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=43_200
    )
    assert error.text == (
        "Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is "
        "beyond the limit [43200 seconds]"
    )
    await change(counter, url, got["ReceiptHandle"], 43_199)


@row("ChangeMessageVisibility", "of a deleted message: InvalidParameterValue", "1.3 [O], 1.11 [O]")
async def test_change_deleted(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send(url)
    (got,) = await counter.receive(url)
    await counter.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    error = await counter.refused(
        "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=5
    )
    assert error.legacy == INVALID
    assert error.text.endswith("Reason: Message does not exist or is not available for visibility timeout change.")


@row("ChangeMessageVisibility", "standard, expired handle, not received again: HTTP 200", "1.11 [O]")
async def test_change_expired(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send(url)
    (got,) = await counter.receive(url)
    counter.advance(30)
    await change(counter, url, got["ReceiptHandle"], 60)


@row("ChangeMessageVisibility", "standard: an older handle set to 0 frees what a newer receive holds", "1.11 [O]")
async def test_zombie(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send(url)
    (old,) = await counter.receive(url)
    counter.advance(30)
    await counter.receive(url)
    await change(counter, url, old["ReceiptHandle"], 0)
    assert await counter.bodies(url) == ["o-1"]


@row("ChangeMessageVisibility", "garbage: ReceiptHandleIsInvalid; out of 0 to 43,200: InvalidParameterValue", "1.11")
async def test_change_bad(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send(url)
    (got,) = await counter.receive(url)
    error = await counter.refused("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle="x", VisibilityTimeout=1)
    assert error.shape == "ReceiptHandleIsInvalid"
    for seconds in (-1, 43_201):
        error = await counter.refused(
            "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=seconds
        )
        assert error.legacy == INVALID


@row("ChangeMessageVisibilityBatch", "per entry; a bad handle is ReceiptHandleIsInvalid", "1.9 [O]")
async def test_change_batch(counter: Counter) -> None:
    url = await counter.queue()
    await counter.send(url)
    (got,) = await counter.receive(url)
    answer = await counter.ask(
        "ChangeMessageVisibilityBatch",
        QueueUrl=url,
        Entries=[
            {"Id": "ok", "ReceiptHandle": got["ReceiptHandle"], "VisibilityTimeout": 0},
            {"Id": "bad", "ReceiptHandle": "garbage", "VisibilityTimeout": 0},
        ],
    )
    assert [one["Id"] for one in answer["Successful"]] == ["ok"]
    assert [(one["Id"], one["Code"]) for one in answer["Failed"]] == [("bad", "ReceiptHandleIsInvalid")]
    assert await counter.bodies(url) == ["o-1"]


# -- dead letters ------------------------------------------------------------------------------------------------------


@row("ReceiveMessage", "dead letter: moved by the receive after the maximum, not before and not by time", "1.17 [O]")
async def test_dead_letter_at_receive(counter: Counter) -> None:
    url, dead = await counter.with_dead_letters(receives_max=2)
    message = await counter.send(url, MessageAttributes={"a": text("b")})
    for _ in range(2):
        assert await counter.bodies(url) == ["o-1"]
        counter.advance(30)
    counter.advance(600)
    assert await counter.attribute(url, "ApproximateNumberOfMessages") == "1"
    assert await counter.bodies(dead) == []
    assert await counter.bodies(url) == []
    (got,) = await counter.receive(dead, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"])
    assert got["MessageId"] == message
    assert got["Attributes"]["ApproximateReceiveCount"] == "3"
    assert got["Attributes"]["DeadLetterQueueSourceArn"] == counter.arn("orders")
    assert got["MessageAttributes"] == {"a": text("b")}


@row("ReceiveMessage", "dead letter, standard: keeps its send time; FIFO: starts anew", "1.17, 9.7")
async def test_dead_letter_times(counter: Counter) -> None:
    for name in ("orders", "steps.fifo"):
        url, dead = await counter.with_dead_letters(name)
        sent_ms = counter.clock.now_ms()
        await counter.send(url, **(FIFO if name.endswith(".fifo") else {}))
        await counter.receive(url)
        counter.advance(30)
        await counter.receive(url)
        (got,) = await counter.receive(dead, MessageSystemAttributeNames=["SentTimestamp"])
        wanted = sent_ms + 30_000 if name.endswith(".fifo") else sent_ms
        assert got["Attributes"]["SentTimestamp"] == str(wanted)


@row(
    "ReceiveMessage",
    "dead letter, FIFO: the deduplication id becomes the message's own id; the group goes on",
    "1.14, 1.17",
)
async def test_dead_letter_fifo(counter: Counter) -> None:
    url, dead = await counter.with_dead_letters("steps.fifo", ContentBasedDeduplication="true")
    message = await counter.send(url, "g-1", MessageGroupId="g")
    await counter.send(url, "g-2", MessageGroupId="g")
    await counter.receive(url, 1)
    counter.advance(30)
    assert await counter.bodies(url) == ["g-2"]
    (got,) = await counter.receive(dead, MessageSystemAttributeNames=["MessageDeduplicationId", "MessageGroupId"])
    assert got["Attributes"] == {"MessageDeduplicationId": message, "MessageGroupId": "g"}


@row("ReceiveMessage", "no receipt handle of a queue begins with another one", "1.5")
async def test_handles_are_no_prefixes(counter: Counter) -> None:
    url = await counter.queue(VisibilityTimeout="0")
    for number in range(13):
        await counter.send(url, str(number))
    handles = []
    for _ in range(12):
        handles += [one["ReceiptHandle"] for one in await counter.receive(url)]
    for cut in range(1, len(handles[-1])):
        error = await counter.refused("DeleteMessage", QueueUrl=url, ReceiptHandle=handles[-1][:cut])
        assert error.shape == "ReceiptHandleIsInvalid"
    assert not [one for one in handles if any(other != one and other.startswith(one) for other in handles)]


@row("SendMessageBatch", "an entry above the queue's limit: the text of a batch differs", "1.9 [O]")
async def test_text_of_an_oversized_entry(counter: Counter) -> None:
    url = await counter.queue(MaximumMessageSize="1024")
    entries = [{"Id": "a", "MessageBody": "x" * 1025}, {"Id": "b", "MessageBody": "x"}]
    answer = await counter.ask("SendMessageBatch", QueueUrl=url, Entries=entries)
    (failed,) = answer["Failed"]
    assert failed == {
        "Id": "a", "SenderFault": True, "Code": "InvalidParameterValue",
        "Message": "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes.",
    }  # fmt: skip
    assert [one["Id"] for one in answer["Successful"]] == ["b"]


def test_a_handle_of_the_version_before() -> None:
    old = base64.b64encode(b"onefold orders 12:3").decode()
    assert receipt_of(old, "orders") == "12:3"
    assert receipt_of(handle_of("orders", "12:3"), "orders") == "12:3"
