"""The operations on queues: create, delete, find, list, attributes, purge, tags, permissions, message move tasks.

Tags and permissions change nothing here: there are no users, and what was stored is given back as it was. Move tasks
are carried forward by the engine's maintenance; a task handle on the wire names the engine's task and its source.
What does not belong here: messages. Invariants: a queue and its metadata are written in one engine call, and nothing is
written when the request is refused; the handle of a move task is shown while the task runs, and only then.

Sources: SQS API reference, the operation of the function's name; developer guide, tag and policy quotas; texts as
recorded from AWS.
"""

from __future__ import annotations

import json
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from onefold import errors, limits
from onefold.contracts.admin import MoveTask
from onefold.contracts.settings import QueueSettings
from onefold.local import aws_errors, queue_attributes
from onefold.local.identifiers import name_of_url
from onefold.local.queue_attributes import Card, Wanted
from onefold.local.sqs_service import Caller, Desk

OWN_DEAD_LETTERS: Final = "It is its own dead-letter queue: messages that nobody deletes are given again without end."
RECREATE_MS: Final = 60 * limits.SECOND_MS  # SQS CreateQueue: wait 60 seconds after deleting a queue of that name
PAGE_MAX: Final = 1_000  # SQS ListQueues, MaxResults: 1 to 1,000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")


async def create_queue(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:
    """CreateQueue."""
    name: str = ask.QueueName
    given: Mapping[str, str] = ask.Attributes or {}
    fifo = _type_of(name, given)
    check_tags(ask.tags or {})
    now_ms = desk.queues.pace.now_ms()
    name = desk.queue(name)
    blank = Card(created_at_ms=now_ms, changed_at_ms=now_ms, tags=ask.tags or {}, region=caller.region)
    wanted = queue_attributes.apply(
        Wanted(QueueSettings(name=name, fifo=fifo), blank), given, desk.addresses, creates=True
    )

    def create() -> bool:
        admin = desk.queues.engine.queues
        try:
            stored = admin.setting(name)
        except errors.NotFoundError:
            _check_recreation(desk, name, now_ms)
            admin.create(wanted.settings, advised=False)
            desk.cards.write(name, wanted.card)
            return True
        _refuse_differences(desk, stored, wanted, given)
        return False

    if await _told_as_redrive(desk, create, given):
        desk.cards.keep(name, wanted.card)
        desk.forget_names()
    return {"QueueUrl": desk.addresses.queue_url(name, caller.host)}


def _type_of(name: str, given: Mapping[str, str]) -> bool:
    fifo = queue_attributes.is_true(given.get("FifoQueue", ""))
    if not _NAME.fullmatch(name) or name.endswith(".fifo") is not fifo:
        if "FifoQueue" in given and not fifo and _NAME.fullmatch(name) and not name.endswith(".fifo"):
            raise aws_errors.invalid_attribute_name("FifoQueue")
        if fifo:
            raise aws_errors.invalid_parameter_value(
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end "
                "with .fifo suffix and be 1 to 80 in length."
            )
        raise aws_errors.invalid_parameter_value(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )
    if "FifoQueue" in given and not fifo:
        raise aws_errors.invalid_attribute_name("FifoQueue")
    return fifo


def _check_recreation(desk: Desk, name: str, now_ms: int) -> None:
    dropped_at_ms = desk.cards.dropped_at_ms(name) if desk.recreate_wait else None
    if dropped_at_ms is not None and 0 <= now_ms - dropped_at_ms < RECREATE_MS:
        raise aws_errors.queue_deleted_recently()


def _refuse_differences(desk: Desk, stored: QueueSettings, wanted: Wanted, given: Mapping[str, str]) -> None:
    """The same name again: fine unless an attribute that was given differs from what the queue has."""
    has = queue_attributes.shown(stored, desk.card(stored.name), desk.addresses, None)
    asks = queue_attributes.shown(wanted.settings, wanted.card, desk.addresses, None)
    for attribute in given:
        if has.get(attribute) != asks.get(attribute):
            raise aws_errors.queue_name_exists(attribute)


async def _told_as_redrive(desk: Desk, run: Any, given: Mapping[str, str]) -> Any:
    """Make an engine call; what it says of a dead-letter queue is an error of the redrive policy."""
    policy = given.get("RedrivePolicy", "")
    try:
        return await desk.queues.call(run)
    except errors.NotFoundError as error:
        if policy:
            raise aws_errors.invalid_value(policy, "RedrivePolicy", "Dead letter target does not exist.") from error
        raise
    except errors.UsageError as error:
        if not policy or isinstance(error, errors.StorageError | errors.ConflictError):
            raise
        reason = "Dead-letter queue must be same type of queue as the source."
        if "redrive_allow" in error.what:
            reason = "Queue does not allow this source queue to use it as a dead-letter queue."
        raise aws_errors.invalid_value(policy, "RedrivePolicy", reason) from error


async def delete_queue(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001 - every operation takes the same
    """DeleteQueue."""
    name = desk.queue(ask.QueueUrl)
    now_ms = desk.queues.pace.now_ms()

    def drop() -> None:
        desk.queues.engine.queues.drop(name, referenced=True)
        desk.cards.drop(name, now_ms)

    await desk.queues.call(drop)
    desk.cards.forget(name)
    desk.forget_names()
    desk.queues.dropped(name)


async def get_queue_url(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:
    """GetQueueUrl."""
    owner = ask.QueueOwnerAWSAccountId
    if owner is not None and owner != desk.addresses.account:
        raise aws_errors.queue_does_not_exist(query=caller.query)
    name = desk.settings(ask.QueueName).name
    return {"QueueUrl": desk.addresses.queue_url(name, caller.host)}


async def get_queue_attributes(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """GetQueueAttributes."""
    names: Sequence[str] = ask.AttributeNames or ()
    settings = desk.settings(ask.QueueUrl)
    depth = None
    if queue_attributes.counts(names):
        depth = await desk.queues.call(lambda: desk.queues.engine.queues.depth(settings.name), synced=False)
    found = queue_attributes.shown(settings, desk.card(settings.name), desk.addresses, depth, names)
    return {"Attributes": found} if found else {}


async def set_queue_attributes(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001
    """SetQueueAttributes."""
    given: Mapping[str, str] = ask.Attributes or {}
    stored = desk.settings(ask.QueueUrl)
    base = Wanted(stored, desk.card(stored.name))
    wanted = queue_attributes.apply(base, given, desk.addresses, creates=False)
    card = structs.replace(wanted.card, changed_at_ms=desk.queues.pace.now_ms())

    def change() -> None:
        if wanted.settings != stored:
            desk.queues.engine.queues.change(wanted.settings, advised=False)
        desk.cards.write(stored.name, card)

    await _told_as_redrive(desk, change, given)
    if wanted.settings.dead_letter == stored.name != stored.dead_letter:
        sys.stderr.write(f"onefold: queue {stored.name}: {OWN_DEAD_LETTERS}\n")
    desk.cards.keep(stored.name, card)
    desk.queues.changed(stored.name)


async def list_queues(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:
    """ListQueues."""
    prefix = ask.QueueNamePrefix or ""
    names = [name for name in _names(desk) if name.startswith(prefix)]
    page, token = paged(names, ask.MaxResults, ask.NextToken)
    found: dict[str, Any] = {}
    if page:
        found["QueueUrls"] = [desk.addresses.queue_url(desk.queue(name), caller.host) for name in page]
    if token is not None:
        found["NextToken"] = token
    return found


def _names(desk: Desk) -> list[str]:
    """The names of a region's queues, sorted."""
    stored = [one.name for one in desk.queues.engine.queues.settings()]
    plain = [name for name in stored if "/" not in name]
    if desk.addresses.resolve is None:
        return plain
    start = f"{desk.addresses.region}/"
    own = {name.removeprefix(start) for name in stored if name.startswith(start)}
    return sorted(own.union(name for name in plain if desk.is_everywhere(name)))


async def list_dead_letter_source_queues(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:
    """ListDeadLetterSourceQueues."""
    target = desk.settings(ask.QueueUrl).name
    names = [one.name for one in desk.queues.engine.queues.settings() if one.dead_letter == target]
    page, token = paged(names, ask.MaxResults, ask.NextToken)
    found: dict[str, Any] = {"queueUrls": [desk.addresses.queue_url(name, caller.host) for name in page]}
    if token is not None:
        found["NextToken"] = token
    return found


def paged(names: Sequence[str], count_max: int | None, token: str | None) -> tuple[Sequence[str], str | None]:
    """One page of sorted names, and the token of the next; without `count_max` the first 1,000 and no token, as on AWS.

    Raises:
        AwsError: InvalidParameterValue: a count out of range, a token that was not given out.
    """
    if count_max is not None and not 1 <= count_max <= PAGE_MAX:
        raise aws_errors.invalid_value(count_max, "MaxResults", f"Must be an integer from 1 to {PAGE_MAX}.")
    if token is not None:
        try:
            after = b64decode(token, validate=True).decode()
        except ValueError:
            after = ""
        if not after or count_max is None:
            raise aws_errors.invalid_parameter_value("Invalid or expired next token.")
        names = [name for name in names if name > after]
    page = names[: count_max or PAGE_MAX]
    if count_max is None or len(page) == len(names):
        return page, None
    return page, b64encode(page[-1].encode()).decode()


async def purge_queue(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001
    """PurgeQueue."""
    name = desk.settings(ask.QueueUrl).name
    try:
        await desk.queues.call(lambda: desk.queues.engine.queues.purge(name))
    except errors.NotFoundError:
        raise
    except errors.UsageError as error:
        raise aws_errors.purge_queue_in_progress(name_of_url(name)) from error
    desk.queues.faults.forget(name)
    desk.queues.history.told(name, "", "purged", at_ms=desk.queues.pace.now_ms(), via="sqs")


TAGS_MAX: Final = 50  # SQS developer guide, cost allocation tags
TAG_KEY_CHARS_MAX: Final = 128  # same
TAG_VALUE_CHARS_MAX: Final = 256  # same
ACTIONS_MAX: Final = 7  # SQS AddPermission: OverLimit beyond
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile(r"[0-9]{12}")
_ACTIONS: Final = frozenset(
    {
        "*",
        "ChangeMessageVisibility",
        "DeleteMessage",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
        "ReceiveMessage",
        "SendMessage",
    }
)


async def _write(desk: Desk, queue: str, card: Card) -> None:
    await desk.queues.call(lambda: desk.cards.write(queue, card))
    desk.cards.keep(queue, card)


# -- tags --------------------------------------------------------------------------------------------------------------


def check_tags(tags: Mapping[str, str]) -> None:
    """Refuse tags that AWS does not take.

    Raises:
        AwsError: InvalidParameterValue: too many, a key or value too long, a key of AWS's own.
    """
    if len(tags) > TAGS_MAX:
        raise aws_errors.invalid_parameter_value(
            f"Too many tags added for queue. Maximum number of tags is {TAGS_MAX}."
        )
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_CHARS_MAX or key.lower().startswith("aws:"):
            raise aws_errors.invalid_value(
                key, "TagKey", f"A tag key has 1 to {TAG_KEY_CHARS_MAX} characters, no aws: first."
            )
        if len(value) > TAG_VALUE_CHARS_MAX:
            raise aws_errors.invalid_value(
                value, "TagValue", f"A tag value has at most {TAG_VALUE_CHARS_MAX} characters."
            )


async def tag_queue(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001 - every operation takes the same
    """TagQueue."""
    queue = desk.settings(ask.QueueUrl).name
    if not ask.Tags:
        raise aws_errors.missing_parameter("Tags")
    card = desk.card(queue)
    tags = {**card.tags, **ask.Tags}
    check_tags(tags)
    await _write(desk, queue, structs.replace(card, tags=tags))


async def untag_queue(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001
    """UntagQueue."""
    queue = desk.settings(ask.QueueUrl).name
    if not ask.TagKeys:
        raise aws_errors.invalid_parameter_value("Tag keys must be between 1 and 128 characters in length.")
    card = desk.card(queue)
    left = {key: value for key, value in card.tags.items() if key not in ask.TagKeys}
    await _write(desk, queue, structs.replace(card, tags=left))


async def list_queue_tags(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """ListQueueTags."""
    tags = desk.card(desk.settings(ask.QueueUrl).name).tags
    return {"Tags": dict(tags)} if tags else {}


# -- permissions -------------------------------------------------------------------------------------------------------


async def add_permission(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001
    """AddPermission."""
    queue = desk.settings(ask.QueueUrl).name
    _check_permission(ask)
    card = desk.card(queue)
    policy = _policy(card) or {"Version": "2008-10-17", "Id": f"{desk.addresses.arn(queue)}/SQSDefaultPolicy"}
    statements = list(policy.get("Statement", []))
    if any(statement.get("Sid") == ask.Label for statement in statements):
        raise aws_errors.invalid_value(ask.Label, "Label", "Already exists.")
    principals = [f"arn:aws:iam::{account}:root" for account in ask.AWSAccountIds]
    actions = [f"SQS:{action}" for action in ask.Actions]
    statements.append(
        {
            "Sid": ask.Label,
            "Effect": "Allow",
            "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
            "Action": actions[0] if len(actions) == 1 else actions,
            "Resource": desk.addresses.arn(queue),
        }
    )
    await _write(desk, queue, _with_policy(card, {**policy, "Statement": statements}))


def _check_permission(ask: Any) -> None:
    if not _LABEL.fullmatch(ask.Label):
        reason = "Label can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."
        raise aws_errors.invalid_value(ask.Label, "Label", reason)
    if not ask.AWSAccountIds:
        raise aws_errors.missing_parameter("AWSAccountIds")
    if not ask.Actions:
        raise aws_errors.missing_parameter("Actions")
    if len(ask.Actions) > ACTIONS_MAX:
        raise aws_errors.over_limit(f"{len(ask.Actions)} Actions were found, maximum allowed is {ACTIONS_MAX}.")
    for account in ask.AWSAccountIds:
        if not _ACCOUNT.fullmatch(account):
            raise aws_errors.invalid_value(account, "PrincipalId", "Unable to verify.")
    for action in ask.Actions:
        if action not in _ACTIONS:
            reason = "Only the queue owner is allowed to invoke this action."
            raise aws_errors.invalid_value(f"SQS:{action}", "ActionName", reason)


async def remove_permission(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001
    """RemovePermission."""
    queue = desk.settings(ask.QueueUrl).name
    card = desk.card(queue)
    policy = _policy(card)
    statements = list(policy.get("Statement", []))
    left = [statement for statement in statements if statement.get("Sid") != ask.Label]
    if len(left) == len(statements):  # AWS has two texts for it (recorded)
        raise aws_errors.invalid_value(
            ask.Label, "Label", f"can't find label{' on existing policy' if policy else ''}."
        )
    await _write(desk, queue, _with_policy(card, {**policy, "Statement": left} if left else {}))


def _policy(card: Card) -> dict[str, Any]:
    text = card.kept.get("Policy")
    found: dict[str, Any] = json.loads(text) if text else {}
    statement = found.get("Statement", [])
    return found | {"Statement": statement if isinstance(statement, list) else [statement]} if found else {}


def _with_policy(card: Card, policy: Mapping[str, Any]) -> Card:
    kept = {name: value for name, value in card.kept.items() if name != "Policy"}
    if policy:
        kept["Policy"] = json.dumps(policy, separators=(",", ":"))
    return structs.replace(card, kept=kept)


LIST_MAX: Final = 10  # SQS ListMessageMoveTasks, MaxResults: 1 to 10, default 1


class _Handle(Struct, frozen=True, rename="camel"):
    """What a task handle is the base64 of, as JSON. AWS's has this form, and clients read it."""

    task_id: str
    source_arn: str


async def start_message_move_task(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """StartMessageMoveTask."""
    source = _queue(desk, ask.SourceArn, "SourceArn")
    target = None if ask.DestinationArn is None else _queue(desk, ask.DestinationArn, "DestinationArn")
    rate = ask.MaxNumberOfMessagesPerSecond
    if rate is not None and not 1 <= rate <= limits.MOVE_PER_SECOND_MAX:
        reason = f"Must be between 1 and {limits.MOVE_PER_SECOND_MAX}, if provided."
        raise aws_errors.invalid_value(rate, "MaxNumberOfMessagesPerSecond", reason)
    admin = desk.queues.engine.queues
    try:
        task = await desk.queues.call(lambda: admin.start_move(source, target, rate))
    except errors.NotFoundError:
        raise
    except errors.UsageError as error:
        raise aws_errors.invalid_parameter_value(error.what) from error
    desk.queues.hurry()
    return {"TaskHandle": _handle(desk, task)}


def _queue(desk: Desk, arn: str, parameter: str) -> str:
    name = desk.addresses.name_of_arn(arn)
    try:
        if name is not None:
            return desk.queues.engine.queues.setting(name).name
    except errors.NotFoundError:
        pass
    if not arn.startswith("arn:"):
        raise aws_errors.invalid_parameter_value("You must use this format to specify the SourceArn: arn:aws:sqs:...")
    raise aws_errors.resource_not_found(f"The resource that you specified for the {parameter} parameter doesn't exist.")


def _handle(desk: Desk, task: MoveTask) -> str:
    handle = _Handle(_uuid(task.handle), desk.addresses.arn(task.source))
    return b64encode(msgspec.json.encode(handle)).decode()


def _uuid(handle: str) -> str:
    """The engine's handle, 16 hexadecimal digits, in the form of AWS's task ids."""
    return f"{handle[:8]}-{handle[8:12]}-4000-8{handle[12:15]}-{handle[15:]:0<12}"


def _handle_of(uuid: str) -> str:
    parts = uuid.split("-")
    handle = parts[0] + parts[1] + parts[3][1:] + parts[4][:1] if len(parts) == 5 else ""
    return handle if _uuid(handle) == uuid else ""


async def list_message_move_tasks(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """ListMessageMoveTasks."""
    source = _queue(desk, ask.SourceArn, "SourceArn")
    count_max = 1 if ask.MaxResults is None else ask.MaxResults
    if not 1 <= count_max <= LIST_MAX:
        raise aws_errors.invalid_value(count_max, "MaxResults", f"Must be between 1 and {LIST_MAX}, if provided.")
    admin = desk.queues.engine.queues
    tasks = await desk.queues.call(lambda: admin.moves(source), synced=False)
    return {"Results": [_shown(desk, task) for task in tasks[:count_max]]} if tasks else {}


def _shown(desk: Desk, task: MoveTask) -> dict[str, Any]:
    found: dict[str, Any] = {
        "Status": task.status,
        "SourceArn": desk.addresses.arn(task.source),
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_at_ms,
    }
    if task.status == "RUNNING":
        found["TaskHandle"] = _handle(desk, task)
    if task.to is not None:
        found["DestinationArn"] = desk.addresses.arn(task.to)
    if task.per_second_max is not None:
        found["MaxNumberOfMessagesPerSecond"] = task.per_second_max
    if task.failure is not None:
        found["FailureReason"] = task.failure
    return found


async def cancel_message_move_task(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """CancelMessageMoveTask."""
    try:
        given = msgspec.json.decode(b64decode(ask.TaskHandle, validate=True), type=_Handle)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise aws_errors.invalid_parameter_value("Value for parameter TaskHandle is invalid.") from None
    _queue(desk, given.source_arn, "SourceArn")
    handle = _handle_of(given.task_id)
    admin = desk.queues.engine.queues
    try:
        task = await desk.queues.call(lambda: admin.cancel_move(handle))
    except errors.NotFoundError as error:
        raise aws_errors.resource_not_found("Task does not exist.") from error
    except errors.UsageError as error:
        raise aws_errors.invalid_parameter_value("Only active tasks can be cancelled.") from error
    return {"ApproximateNumberOfMessagesMoved": task.moved}
