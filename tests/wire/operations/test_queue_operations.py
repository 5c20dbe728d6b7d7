"""CreateQueue to PurgeQueue: each row an answer that AWS documents or gave when it was recorded."""

from __future__ import annotations

import json

from tests.wire.operations.counter import Counter, row


@row("CreateQueue", "answers the queue's URL; again with equal attributes the same", "1.1, 1.19")
async def test_create(counter: Counter) -> None:
    url = await counter.queue(VisibilityTimeout="5")
    assert url == "http://localhost:9324/000000000000/orders"
    assert await counter.queue(VisibilityTimeout="5") == url


@row("CreateQueue", "omitted attributes do not conflict", "1.19 [O]")
async def test_create_again_with_less(counter: Counter) -> None:
    url = await counter.queue(VisibilityTimeout="5", DelaySeconds="7")
    assert await counter.queue(VisibilityTimeout="5") == url
    assert await counter.queue() == url


@row("CreateQueue", "another value: QueueAlreadyExists names the attribute", "1.3 [O]")
async def test_create_again_with_another_value(counter: Counter) -> None:
    await counter.queue(DelaySeconds="1")
    error = await counter.refused("CreateQueue", QueueName="orders", Attributes={"DelaySeconds": "2"})
    assert (error.shape, error.legacy, error.status) == ("QueueNameExists", "QueueAlreadyExists", 400)
    assert error.text == "A queue already exists with the same name and a different value for attribute DelaySeconds"


@row("CreateQueue", "a deleted queue's name waits 60 seconds: QueueDeletedRecently", "1.2, 1.19")
async def test_create_after_delete(counter: Counter) -> None:
    url = await counter.queue()
    await counter.ask("DeleteQueue", QueueUrl=url)
    counter.advance(59.9)
    error = await counter.refused("CreateQueue", QueueName="orders")
    assert (error.shape, error.legacy) == ("QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently")
    counter.advance(0.1)
    assert await counter.queue() == url


@row("CreateQueue", "names: 1 to 80 of letters, digits, hyphen, underscore", "1.5")
async def test_names(counter: Counter) -> None:
    await counter.queue("a" * 80)
    await counter.queue("a" * 75 + ".fifo")
    for name in ("", "a" * 81, "a b", "a.b", "ä", "a/b"):
        assert (await counter.refused("CreateQueue", QueueName=name)).legacy == "InvalidParameterValue"


@row("CreateQueue", "FifoQueue on a standard name, even false: Unknown Attribute FifoQueue.", "1.3 [O]")
async def test_fifo_attribute_on_a_standard_name(counter: Counter) -> None:
    error = await counter.refused("CreateQueue", QueueName="orders", Attributes={"FifoQueue": "false"})
    assert (error.shape, error.text) == ("InvalidAttributeName", "Unknown Attribute FifoQueue.")


@row("CreateQueue", "the type and the suffix .fifo belong together", "1.4, 1.5")
async def test_type_and_name(counter: Counter) -> None:
    wrong = {"QueueName": "orders", "Attributes": {"FifoQueue": "true"}}
    assert (await counter.refused("CreateQueue", **wrong)).legacy == "InvalidParameterValue"
    assert (await counter.refused("CreateQueue", QueueName="orders.fifo")).legacy == "InvalidParameterValue"


@row("CreateQueue", "values out of range are refused, and nothing is made", "1.4")
async def test_ranges(counter: Counter) -> None:
    for name, values in {
        "VisibilityTimeout": ("-1", "43201", "x", ""),
        "MessageRetentionPeriod": ("59", "1209601"),
        "DelaySeconds": ("-1", "901"),
        "MaximumMessageSize": ("1023", "1048577"),
        "ReceiveMessageWaitTimeSeconds": ("-1", "21"),
        "KmsDataKeyReusePeriodSeconds": ("59", "86401"),
        "SqsManagedSseEnabled": ("yes",),
        "Policy": ("no json", "[]", *(json.dumps({"Statement": one}) for one in (5, ["x"], None, [None]))),
    }.items():
        for value in values:
            error = await counter.refused("CreateQueue", QueueName="orders", Attributes={name: value})
            assert error.shape == "InvalidAttributeValue", (name, value)
    assert "QueueUrls" not in await counter.ask("ListQueues")


@row("CreateQueue", "the ends of each range are taken", "1.4")
async def test_ends_of_ranges(counter: Counter) -> None:
    for number, (name, value) in enumerate(
        [
            ("VisibilityTimeout", "0"), ("VisibilityTimeout", "43200"), ("MessageRetentionPeriod", "60"),
            ("MessageRetentionPeriod", "1209600"), ("DelaySeconds", "900"), ("MaximumMessageSize", "1024"),
            ("MaximumMessageSize", "1048576"), ("ReceiveMessageWaitTimeSeconds", "20"),
        ]
    ):  # fmt: skip
        url = await counter.queue(f"q-{number}", **{name: value})
        assert await counter.attribute(url, name) == value


@row("CreateQueue", "an unknown or read-only attribute: InvalidAttributeName", "1.2")
async def test_unknown_attributes(counter: Counter) -> None:
    for name in ("Colour", "QueueArn", "CreatedTimestamp", "All"):
        error = await counter.refused("CreateQueue", QueueName="orders", Attributes={name: "1"})
        assert (error.shape, error.text) == ("InvalidAttributeName", f"Unknown Attribute {name}.")


@row("CreateQueue", "tags come with it", "1.1")
async def test_create_with_tags(counter: Counter) -> None:
    answer = await counter.ask("CreateQueue", QueueName="orders", tags={"team": "shop"})
    assert (await counter.ask("ListQueueTags", QueueUrl=answer["QueueUrl"]))["Tags"] == {"team": "shop"}


@row(
    "CreateQueue",
    "redrive policy: both members required, target there and of the same type, count 1 to 1,000",
    "1.17 [O]",
)
async def test_redrive_policy(counter: Counter) -> None:
    await counter.queue("dead")
    await counter.queue("dead.fifo")
    arn = counter.arn("dead")
    for policy in (
        {"deadLetterTargetArn": arn},
        {"maxReceiveCount": 3},
        {"deadLetterTargetArn": arn, "maxReceiveCount": 0},
        {"deadLetterTargetArn": arn, "maxReceiveCount": 1001},
        {"deadLetterTargetArn": arn, "maxReceiveCount": "x"},
        {"deadLetterTargetArn": counter.arn("none"), "maxReceiveCount": 3},
        {"deadLetterTargetArn": counter.arn("\ud800"), "maxReceiveCount": 3},
        {"deadLetterTargetArn": "arn:aws:sqs:eu-west-1:000000000000:dead", "maxReceiveCount": 3},
        {"deadLetterTargetArn": counter.arn("dead.fifo"), "maxReceiveCount": 3},
        ["no map"],
    ):
        wanted = {"RedrivePolicy": json.dumps(policy)}
        error = await counter.refused("CreateQueue", QueueName="orders", Attributes=wanted)
        assert error.legacy == "InvalidParameterValue", policy
    assert "QueueUrls" not in await counter.ask("ListQueues", QueueNamePrefix="orders")


@row("CreateQueue", "maxReceiveCount as a number or a numeric text", "1.17 [O]")
async def test_receive_count_as_text(counter: Counter) -> None:
    await counter.queue("dead")
    for name, count in (("a", 3), ("b", "3")):
        policy = json.dumps({"deadLetterTargetArn": counter.arn("dead"), "maxReceiveCount": count})
        shown = await counter.attribute(await counter.queue(name, RedrivePolicy=policy), "RedrivePolicy")
        assert json.loads(shown or "") == {"deadLetterTargetArn": counter.arn("dead"), "maxReceiveCount": 3}


@row("CreateQueue", "a dead-letter queue with shorter retention is advised against, not refused", "1.17, 9.7")
async def test_short_dead_letter_retention(counter: Counter) -> None:
    await counter.queue("dead", MessageRetentionPeriod="60")
    policy = json.dumps({"deadLetterTargetArn": counter.arn("dead"), "maxReceiveCount": 3})
    await counter.queue(RedrivePolicy=policy)


@row("CreateQueue", "redrive allow policy: byQueue needs sources, the others take none", "1.4")
async def test_redrive_allow_policy(counter: Counter) -> None:
    arn = counter.arn("orders")
    for policy in (
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "byQueue", "sourceQueueArns": [arn] * 11},
        {"redrivePermission": "byQueue", "sourceQueueArns": [counter.arn("\udfff")]},
        {"redrivePermission": "allowAll", "sourceQueueArns": [arn]},
        {"redrivePermission": "some"},
        "no map",
    ):
        wanted = {"RedriveAllowPolicy": json.dumps(policy)}
        error = await counter.refused("CreateQueue", QueueName="dead", Attributes=wanted)
        assert error.legacy == "InvalidParameterValue", policy
    url = await counter.queue("dead", RedriveAllowPolicy=json.dumps({"redrivePermission": "denyAll"}))
    assert json.loads(await counter.attribute(url, "RedriveAllowPolicy") or "") == {"redrivePermission": "denyAll"}
    policy = json.dumps({"deadLetterTargetArn": counter.arn("dead"), "maxReceiveCount": 3})
    error = await counter.refused("CreateQueue", QueueName="orders", Attributes={"RedrivePolicy": policy})
    assert error.legacy == "InvalidParameterValue"


@row("CreateQueue", "FifoThroughputLimit perMessageGroupId needs DeduplicationScope messageGroup", "1.4")
async def test_high_throughput(counter: Counter) -> None:
    wanted = {"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId"}
    error = await counter.refused("CreateQueue", QueueName="steps.fifo", Attributes=wanted)
    assert error.shape == "InvalidAttributeValue"
    url = await counter.queue("steps.fifo", FifoThroughputLimit="perMessageGroupId", DeduplicationScope="messageGroup")
    assert await counter.attribute(url, "FifoThroughputLimit") == "perMessageGroupId"
    for name in ("ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"):
        error = await counter.refused("CreateQueue", QueueName="orders", Attributes={name: "true"})
        assert error.shape == "InvalidAttributeName"


@row("GetQueueAttributes", "All: every value is text, times in epoch seconds, defaults as documented", "1.1, 1.4")
async def test_all_attributes(counter: Counter) -> None:
    url = await counter.queue()
    found = (await counter.ask("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"]))["Attributes"]
    now_s = str(counter.clock.now_ms() // 1000)
    assert found == {
        "VisibilityTimeout": "30", "MessageRetentionPeriod": "345600", "DelaySeconds": "0",
        "MaximumMessageSize": "1048576", "ReceiveMessageWaitTimeSeconds": "0", "CreatedTimestamp": now_s,
        "LastModifiedTimestamp": now_s, "QueueArn": "arn:aws:sqs:us-east-1:000000000000:orders",
        "SqsManagedSseEnabled": "true", "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0", "ApproximateNumberOfMessagesDelayed": "0",
    }  # fmt: skip


@row("GetQueueAttributes", "a FIFO queue has four more", "1.4")
async def test_all_fifo_attributes(counter: Counter) -> None:
    url = await counter.queue("steps.fifo")
    found = (await counter.ask("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"]))["Attributes"]
    assert found["FifoQueue"] == "true"
    assert found["ContentBasedDeduplication"] == "false"
    assert found["DeduplicationScope"] == "queue"
    assert found["FifoThroughputLimit"] == "perQueue"


@row("GetQueueAttributes", "counts: visible, in flight, delayed", "1.4")
async def test_counts(counter: Counter) -> None:
    url = await counter.queue()
    for delay in (0, 0, 0, 60):
        await counter.send(url, DelaySeconds=delay)
    await counter.receive(url, 1)
    names = [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    ]
    assert [await counter.attribute(url, name) for name in names] == ["2", "1", "1"]


@row("GetQueueAttributes", "none asked for: none answered; an unknown name is refused", "1.2")
async def test_no_attributes(counter: Counter) -> None:
    url = await counter.queue()
    assert "Attributes" not in await counter.ask("GetQueueAttributes", QueueUrl=url)
    error = await counter.refused("GetQueueAttributes", QueueUrl=url, AttributeNames=["Colour"])
    assert error.shape == "InvalidAttributeName"


@row("GetQueueAttributes", "an unknown queue: the text differs between the protocols", "1.2, 1.3 [O]")
async def test_unknown_queue(counter: Counter) -> None:
    error = await counter.refused("GetQueueAttributes", QueueUrl="http://localhost:9324/000000000000/none")
    assert (error.shape, error.legacy) == ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
    more = " for this wsdl version" if counter.protocol == "query" else ""
    assert (error.status, error.text) == (400, f"The specified queue does not exist{more}.")


@row("SetQueueAttributes", "changes count at once; the queue's modification time moves", "1.4")
async def test_set(counter: Counter) -> None:
    url = await counter.queue()
    counter.advance(10)
    await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes={"VisibilityTimeout": "7", "DelaySeconds": "3"})
    assert await counter.attribute(url, "VisibilityTimeout") == "7"
    created, changed = [
        int(await counter.attribute(url, name) or 0) for name in ("CreatedTimestamp", "LastModifiedTimestamp")
    ]
    assert changed - created == 10


@row(
    "SetQueueAttributes", "an empty redrive policy removes it; the queue may be named by its bare name", "1.1, 1.4 [O]"
)
async def test_remove_redrive_policy(counter: Counter) -> None:
    url, _ = await counter.with_dead_letters()
    assert await counter.attribute(url, "RedrivePolicy") is not None
    await counter.ask("SetQueueAttributes", QueueUrl="orders", Attributes={"RedrivePolicy": ""})
    assert await counter.attribute(url, "RedrivePolicy") is None


@row("SetQueueAttributes", "the type never changes", "1.3 [O]")
async def test_type_never_changes(counter: Counter) -> None:
    url = await counter.queue("steps.fifo")
    await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes={"FifoQueue": "true"})
    error = await counter.refused("SetQueueAttributes", QueueUrl=url, Attributes={"FifoQueue": "false"})
    assert error.shape == "InvalidAttributeValue"
    assert error.text == "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."


@row("SetQueueAttributes", "one bad value changes nothing", "1.2")
async def test_set_is_whole(counter: Counter) -> None:
    url = await counter.queue()
    wanted = {"VisibilityTimeout": "7", "DelaySeconds": "901"}
    assert (
        await counter.refused("SetQueueAttributes", QueueUrl=url, Attributes=wanted)
    ).shape == "InvalidAttributeValue"
    assert await counter.attribute(url, "VisibilityTimeout") == "30"


@row("SetQueueAttributes", "a KMS key excludes SSE-SQS; policy and key are given back", "1.4")
async def test_encryption(counter: Counter) -> None:
    url = await counter.queue()
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes={"KmsMasterKeyId": "alias/shop", "Policy": policy})
    assert await counter.attribute(url, "SqsManagedSseEnabled") == "false"
    assert await counter.attribute(url, "KmsMasterKeyId") == "alias/shop"
    assert await counter.attribute(url, "KmsDataKeyReusePeriodSeconds") == "300"
    assert await counter.attribute(url, "Policy") == policy


@row(
    "SetQueueAttributes", "delay: waiting messages of a standard queue keep theirs, those of a FIFO queue follow", "1.4"
)
async def test_delay_change(counter: Counter) -> None:
    standard, fifo = await counter.queue(), await counter.queue("steps.fifo", ContentBasedDeduplication="true")
    await counter.send(standard)
    await counter.send(fifo, MessageGroupId="g")
    for url in (standard, fifo):
        await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "60"})
    assert await counter.bodies(standard) == ["o-1"]
    assert await counter.bodies(fifo) == []
    counter.advance(60)
    assert await counter.bodies(fifo) == ["o-1"]


@row("GetQueueUrl", "by name; of another account: QueueDoesNotExist", "1.1, 1.2")
async def test_get_queue_url(counter: Counter) -> None:
    url = await counter.queue()
    assert (await counter.ask("GetQueueUrl", QueueName="orders"))["QueueUrl"] == url
    assert (await counter.refused("GetQueueUrl", QueueName="none")).shape == "QueueDoesNotExist"
    other = await counter.refused("GetQueueUrl", QueueName="orders", QueueOwnerAWSAccountId="111111111111")
    assert other.shape == "QueueDoesNotExist"


@row("ListQueues", "prefix, pages, and a token only with MaxResults", "1.19")
async def test_list(counter: Counter) -> None:
    assert "QueueUrls" not in await counter.ask("ListQueues")
    urls = [await counter.queue(f"q-{number}") for number in range(5)]
    await counter.queue("other")
    assert (await counter.ask("ListQueues", QueueNamePrefix="q-"))["QueueUrls"] == urls
    first = await counter.ask("ListQueues", QueueNamePrefix="q-", MaxResults=3)
    assert first["QueueUrls"] == urls[:3]
    rest = await counter.ask("ListQueues", QueueNamePrefix="q-", MaxResults=3, NextToken=first["NextToken"])
    assert rest["QueueUrls"] == urls[3:]
    assert "NextToken" not in rest
    for bad in ({"MaxResults": 0}, {"MaxResults": 1001}, {"MaxResults": 3, "NextToken": "garbage"}):
        assert (await counter.refused("ListQueues", **bad)).legacy == "InvalidParameterValue"


@row("ListDeadLetterSourceQueues", "its sources, as lowercase queueUrls", "1.1, 1.17")
async def test_sources(counter: Counter) -> None:
    source, dead = await counter.with_dead_letters()
    answer = await counter.ask("ListDeadLetterSourceQueues", QueueUrl=dead)
    assert answer["queueUrls"] == [source]
    assert (await counter.ask("ListDeadLetterSourceQueues", QueueUrl=source)).get("queueUrls", []) == []


@row("DeleteQueue", "with everything in it, also when another queue dead-letters to it", "1.19")
async def test_delete_queue(counter: Counter) -> None:
    source, dead = await counter.with_dead_letters(VisibilityTimeout="1")
    await counter.send(source)
    await counter.ask("DeleteQueue", QueueUrl=dead)
    assert (await counter.refused("SendMessage", QueueUrl=dead, MessageBody="x")).shape == "QueueDoesNotExist"
    for _ in range(3):  # the policy leads nowhere: the message stays in the source
        assert await counter.bodies(source) == ["o-1"]
        counter.advance(1)
    assert (await counter.refused("DeleteQueue", QueueUrl=dead)).shape == "QueueDoesNotExist"


@row("PurgeQueue", "visible, in flight and delayed messages go; FIFO forgets its deduplication ids", "1.15, 1.19 [O]")
async def test_purge(counter: Counter) -> None:
    url = await counter.queue("steps.fifo")
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    await counter.send(url, **ids)
    (held,) = await counter.receive(url)
    await counter.ask("PurgeQueue", QueueUrl=url)
    counter.advance(31)
    assert await counter.bodies(url) == []
    again = await counter.send(url, "o-2", **ids)
    assert again != held["MessageId"]
    assert await counter.bodies(url) == ["o-2"]


@row("PurgeQueue", "once in 60 seconds: PurgeQueueInProgress, HTTP 403", "1.2 [O], 1.19")
async def test_purge_again(counter: Counter) -> None:
    url = await counter.queue()
    await counter.ask("PurgeQueue", QueueUrl=url)
    error = await counter.refused("PurgeQueue", QueueUrl=url)
    assert (error.shape, error.legacy) == ("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress")
    assert (error.status, error.text) == (403, "Only one PurgeQueue operation on orders is allowed every 60 seconds.")
    counter.advance(60)
    await counter.ask("PurgeQueue", QueueUrl=url)


# -- as recorded in 2024 to 2026 ---------------------------------------------------------------------------------------


@row("CreateQueue", "boolean attributes whatever their case", "1.4")
async def test_case_of_booleans(counter: Counter) -> None:
    for value in ("True", "TRUE", "true"):
        url = await counter.queue("steps.fifo", FifoQueue=value, ContentBasedDeduplication=value)
        assert await counter.attribute(url, "FifoQueue") == "true"
        assert await counter.attribute(url, "ContentBasedDeduplication") == "true"
    await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes={"ContentBasedDeduplication": "False"})
    assert await counter.attribute(url, "ContentBasedDeduplication") == "false"
    standard = await counter.queue(SqsManagedSseEnabled="FALSE")
    assert await counter.attribute(standard, "SqsManagedSseEnabled") == "false"
    assert await counter.queue(SqsManagedSseEnabled="false") == standard
    await counter.ask("SetQueueAttributes", QueueUrl=standard, Attributes={"SqsManagedSseEnabled": "True"})
    assert await counter.attribute(standard, "SqsManagedSseEnabled") == "true"
    error = await counter.refused("CreateQueue", QueueName="b", Attributes={"FifoQueue": "False"})
    assert error.text == "Unknown Attribute FifoQueue."


@row("CreateQueue", "attributes of FIFO queues on a standard one: InvalidAttributeName with two texts", "1.3 [O]")
async def test_fifo_only_attributes(counter: Counter) -> None:
    for name, value, text in (
        ("ContentBasedDeduplication", "false", "Unknown Attribute ContentBasedDeduplication."),
        ("DeduplicationScope", "queue", "You can specify the DeduplicationScope only when FifoQueue is set to true."),
        (
            "FifoThroughputLimit",
            "perQueue",
            "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
        ),
    ):
        error = await counter.refused("CreateQueue", QueueName="orders", Attributes={name: value})
        assert (error.shape, error.status, error.text) == ("InvalidAttributeName", 400, text)


@row(
    "SetQueueAttributes",
    "a KMS key and SQS's encryption in one request, in either order: InvalidAttributeName",
    "1.4 [O]",
)
async def test_one_encryption(counter: Counter) -> None:
    url = await counter.queue()
    key, own = {"KmsMasterKeyId": "alias/shop"}, {"SqsManagedSseEnabled": "true"}
    for attributes in ({**key, **own}, {**own, **key}):
        error = await counter.refused("SetQueueAttributes", QueueUrl=url, Attributes=attributes)
        assert (error.shape, error.legacy) == ("InvalidAttributeName", "InvalidAttributeName")
        assert error.text == (
            "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."
        )
        assert await counter.attribute(url, "KmsMasterKeyId") is None
    for attributes in (key, {"KmsMasterKeyId": "", **own}, {**own, "KmsMasterKeyId": ""}):
        await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes=attributes)
    assert await counter.attribute(url, "SqsManagedSseEnabled") == "true"


@row("SetQueueAttributes", "the period of a KMS key disappears with it; SQS's encryption stays off", "1.4 [O]")
async def test_without_the_key(counter: Counter) -> None:
    url = await counter.queue()
    attributes = {"KmsMasterKeyId": "alias/shop", "KmsDataKeyReusePeriodSeconds": "6000"}
    await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes=attributes)
    assert await counter.attribute(url, "KmsDataKeyReusePeriodSeconds") == "6000"
    attributes = {"KmsMasterKeyId": "", "KmsDataKeyReusePeriodSeconds": "300"}
    await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes=attributes)
    assert await counter.attribute(url, "KmsMasterKeyId") is None
    assert await counter.attribute(url, "KmsDataKeyReusePeriodSeconds") is None
    assert await counter.attribute(url, "SqsManagedSseEnabled") == "false"
    await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes={"KmsMasterKeyId": "alias/other"})
    assert await counter.attribute(url, "KmsDataKeyReusePeriodSeconds") == "300"


@row("SetQueueAttributes", "a queue may be its own dead-letter queue: taken, with a warning; nothing is lost", "1.17")
async def test_own_dead_letters(counter: Counter) -> None:
    await check_own_dead_letters(counter, "orders")
    await check_own_dead_letters(counter, "steps.fifo")


async def check_own_dead_letters(counter: Counter, name: str) -> None:
    url = await counter.queue(name, VisibilityTimeout="1")
    policy = json.dumps({"deadLetterTargetArn": counter.arn(name), "maxReceiveCount": 1})
    await counter.ask("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": policy})
    assert json.loads(str(await counter.attribute(url, "RedrivePolicy")))["deadLetterTargetArn"] == counter.arn(name)
    more = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if name.endswith(".fifo") else {}
    for body in ("o-1", "o-2"):
        await counter.send(url, body, **{key: value + body for key, value in more.items()})
    for _ in range(4):
        assert sorted(await counter.bodies(url)) == ["o-1", "o-2"]
        counter.advance(1)
