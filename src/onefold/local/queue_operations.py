"""The operations on queues: create, delete, find, list, attributes, purge, tags, permissions, message move tasks.

Tags and permissions have no effect here, because this server has no users; they are stored and returned unchanged.
The engine's maintenance carries move tasks forward; the handle of a task names the engine's task and its source.
Never here: messages. Invariants: a queue and its metadata are written in one engine call, and nothing is
written if the request is refused; the handle of a move task is shown while the task runs, and only then.

Sources: SQS API reference, the operation after which a function is named; developer guide, tag and policy quotas; texts
as recorded from AWS.
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
from onefold.local.queue_attributes import QueueMetadata, WantedQueue
from onefold.local.sqs_service import SqsCaller, SqsService

OWN_DEAD_LETTERS: Final = (
    "It is its own dead-letter queue: messages that nobody deletes are delivered again without end."
)
RECREATE_MS: Final = 60 * limits.SECOND_MS  # SQS CreateQueue: wait 60 seconds after deleting a queue of that name
PAGE_MAX: Final = 1_000  # SQS ListQueues, MaxResults: 1 to 1,000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
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
LIST_MAX: Final = 10  # SQS ListMessageMoveTasks, MaxResults: 1 to 10, default 1


# -- queues ------------------------------------------------------------------------------------------------------------


async def create_queue(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:
    """CreateQueue."""
    name: str = params.QueueName
    given: Mapping[str, str] = params.Attributes or {}
    fifo = _type_of(name, given)
    check_tags(params.tags or {})
    now_ms = sqs.queues.timers.now_ms()
    name = sqs.queue(name)
    blank = QueueMetadata(created_at_ms=now_ms, changed_at_ms=now_ms, tags=params.tags or {}, region=caller.region)
    wanted = queue_attributes.apply(
        WantedQueue(QueueSettings(name=name, fifo=fifo), blank), given, sqs.addresses, creates=True
    )

    def create() -> bool:
        admin = sqs.queues.engine.queues
        try:
            stored = admin.setting(name)
        except errors.NotFoundError:
            _check_recreation(sqs, name, now_ms)
            admin.create(wanted.settings, advised=False)
            sqs.metadata_store.write(name, wanted.metadata)
            return True
        _refuse_differences(sqs, stored, wanted, given)
        return False

    if await _as_redrive_errors(sqs, create, given):
        sqs.metadata_store.keep(name, wanted.metadata)
        sqs.forget_names()
    return {"QueueUrl": sqs.addresses.queue_url(name, caller.host)}


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


def _check_recreation(sqs: SqsService, name: str, now_ms: int) -> None:
    dropped_at_ms = sqs.metadata_store.dropped_at_ms(name) if sqs.recreate_wait else None
    if dropped_at_ms is not None and 0 <= now_ms - dropped_at_ms < RECREATE_MS:
        raise aws_errors.queue_deleted_recently()


def _refuse_differences(sqs: SqsService, stored: QueueSettings, wanted: WantedQueue, given: Mapping[str, str]) -> None:
    """Refuse to create an existing queue again if a given attribute differs from the queue's."""
    has = queue_attributes.shown(stored, sqs.metadata(stored.name), sqs.addresses, None)
    entries_given = queue_attributes.shown(wanted.settings, wanted.metadata, sqs.addresses, None)
    for attribute in given:
        if has.get(attribute) != entries_given.get(attribute):
            raise aws_errors.queue_name_exists(attribute)


async def _as_redrive_errors(sqs: SqsService, run: Any, given: Mapping[str, str]) -> Any:
    """Make an engine call; its errors about a dead-letter queue become errors of the redrive policy."""
    policy = given.get("RedrivePolicy", "")
    try:
        return await sqs.queues.call(run)
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


async def delete_queue(sqs: SqsService, params: Any, caller: SqsCaller) -> None:  # noqa: ARG001 - all operations have these
    """DeleteQueue."""
    name = sqs.queue(params.QueueUrl)
    now_ms = sqs.queues.timers.now_ms()

    def drop() -> None:
        sqs.queues.engine.queues.drop(name, referenced=True)
        sqs.metadata_store.drop(name, now_ms)

    await sqs.queues.call(drop)
    sqs.metadata_store.forget(name)
    sqs.forget_names()
    sqs.queues.dropped(name)


async def get_queue_url(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:
    """GetQueueUrl."""
    owner = params.QueueOwnerAWSAccountId
    if owner is not None and owner != sqs.addresses.account:
        raise aws_errors.queue_does_not_exist(query=caller.query)
    name = sqs.settings(params.QueueName).name
    return {"QueueUrl": sqs.addresses.queue_url(name, caller.host)}


async def get_queue_attributes(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:  # noqa: ARG001
    """GetQueueAttributes."""
    names: Sequence[str] = params.AttributeNames or ()
    settings = sqs.settings(params.QueueUrl)
    depth = None
    if queue_attributes.counts(names):
        depth = await sqs.queues.call(lambda: sqs.queues.engine.queues.depth(settings.name), synced=False)
    found = queue_attributes.shown(settings, sqs.metadata(settings.name), sqs.addresses, depth, names)
    return {"Attributes": found} if found else {}


async def set_queue_attributes(sqs: SqsService, params: Any, caller: SqsCaller) -> None:  # noqa: ARG001
    """SetQueueAttributes."""
    given: Mapping[str, str] = params.Attributes or {}
    stored = sqs.settings(params.QueueUrl)
    base = WantedQueue(stored, sqs.metadata(stored.name))
    wanted = queue_attributes.apply(base, given, sqs.addresses, creates=False)
    metadata = structs.replace(wanted.metadata, changed_at_ms=sqs.queues.timers.now_ms())

    def change() -> None:
        if wanted.settings != stored:
            sqs.queues.engine.queues.change(wanted.settings, advised=False)
        sqs.metadata_store.write(stored.name, metadata)

    await _as_redrive_errors(sqs, change, given)
    if wanted.settings.dead_letter == stored.name != stored.dead_letter:
        sys.stderr.write(f"onefold: queue {stored.name}: {OWN_DEAD_LETTERS}\n")
    sqs.metadata_store.keep(stored.name, metadata)
    sqs.queues.changed(stored.name)


async def list_queues(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:
    """ListQueues."""
    prefix = params.QueueNamePrefix or ""
    names = [name for name in _names(sqs) if name.startswith(prefix)]
    page, token = paged(names, params.MaxResults, params.NextToken)
    found: dict[str, Any] = {}
    if page:
        found["QueueUrls"] = [sqs.addresses.queue_url(sqs.queue(name), caller.host) for name in page]
    if token is not None:
        found["NextToken"] = token
    return found


def _names(sqs: SqsService) -> list[str]:
    """The names of a region's queues, sorted."""
    stored = [one.name for one in sqs.queues.engine.queues.settings()]
    plain = [name for name in stored if "/" not in name]
    if sqs.addresses.resolve is None:
        return plain
    start = f"{sqs.addresses.region}/"
    own = {name.removeprefix(start) for name in stored if name.startswith(start)}
    return sorted(own.union(name for name in plain if sqs.is_everywhere(name)))


async def list_dead_letter_source_queues(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:
    """ListDeadLetterSourceQueues."""
    target = sqs.settings(params.QueueUrl).name
    names = [one.name for one in sqs.queues.engine.queues.settings() if one.dead_letter == target]
    page, token = paged(names, params.MaxResults, params.NextToken)
    found: dict[str, Any] = {"queueUrls": [sqs.addresses.queue_url(name, caller.host) for name in page]}
    if token is not None:
        found["NextToken"] = token
    return found


def paged(names: Sequence[str], count_max: int | None, token: str | None) -> tuple[Sequence[str], str | None]:
    """A page of sorted names, and the token for the next; without `count_max` the first 1,000 and no token, as on AWS.

    Raises:
        AwsError: InvalidParameterValue: the count is out of range, or the token was not given out.
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


async def purge_queue(sqs: SqsService, params: Any, caller: SqsCaller) -> None:  # noqa: ARG001
    """PurgeQueue."""
    name = sqs.settings(params.QueueUrl).name
    try:
        await sqs.queues.call(lambda: sqs.queues.engine.queues.purge(name))
    except errors.NotFoundError:
        raise
    except errors.UsageError as error:
        raise aws_errors.purge_queue_in_progress(name_of_url(name)) from error
    sqs.queues.faults.forget(name)
    sqs.queues.history.record(name, "", "purged", at_ms=sqs.queues.timers.now_ms(), via="sqs")


async def _write(sqs: SqsService, queue: str, metadata: QueueMetadata) -> None:
    await sqs.queues.call(lambda: sqs.metadata_store.write(queue, metadata))
    sqs.metadata_store.keep(queue, metadata)


# -- tags --------------------------------------------------------------------------------------------------------------


def check_tags(tags: Mapping[str, str]) -> None:
    """Refuse tags that AWS would refuse.

    Raises:
        AwsError: InvalidParameterValue: there are too many, a key or value is too long, or a key is reserved for AWS.
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


async def tag_queue(sqs: SqsService, params: Any, caller: SqsCaller) -> None:  # noqa: ARG001 - all operations have these
    """TagQueue."""
    queue = sqs.settings(params.QueueUrl).name
    if not params.Tags:
        raise aws_errors.missing_parameter("Tags")
    metadata = sqs.metadata(queue)
    tags = {**metadata.tags, **params.Tags}
    check_tags(tags)
    await _write(sqs, queue, structs.replace(metadata, tags=tags))


async def untag_queue(sqs: SqsService, params: Any, caller: SqsCaller) -> None:  # noqa: ARG001
    """UntagQueue."""
    queue = sqs.settings(params.QueueUrl).name
    if not params.TagKeys:
        raise aws_errors.invalid_parameter_value("Tag keys must be between 1 and 128 characters in length.")
    metadata = sqs.metadata(queue)
    left = {key: value for key, value in metadata.tags.items() if key not in params.TagKeys}
    await _write(sqs, queue, structs.replace(metadata, tags=left))


async def list_queue_tags(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:  # noqa: ARG001
    """ListQueueTags."""
    tags = sqs.metadata(sqs.settings(params.QueueUrl).name).tags
    return {"Tags": dict(tags)} if tags else {}


# -- permissions -------------------------------------------------------------------------------------------------------


async def add_permission(sqs: SqsService, params: Any, caller: SqsCaller) -> None:  # noqa: ARG001
    """AddPermission."""
    queue = sqs.settings(params.QueueUrl).name
    _check_permission(params)
    metadata = sqs.metadata(queue)
    policy = _policy(metadata) or {"Version": "2008-10-17", "Id": f"{sqs.addresses.arn(queue)}/SQSDefaultPolicy"}
    statements = list(policy.get("Statement", ()))
    if any(statement.get("Sid") == params.Label for statement in statements):
        raise aws_errors.invalid_value(params.Label, "Label", "Already exists.")
    principals = [f"arn:aws:iam::{account}:root" for account in params.AWSAccountIds]
    actions = [f"SQS:{action}" for action in params.Actions]
    statements.append(
        {
            "Sid": params.Label,
            "Effect": "Allow",
            "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
            "Action": actions[0] if len(actions) == 1 else actions,
            "Resource": sqs.addresses.arn(queue),
        }
    )
    await _write(sqs, queue, _with_policy(metadata, {**policy, "Statement": statements}))


def _check_permission(params: Any) -> None:
    if not _LABEL.fullmatch(params.Label):
        reason = "Label can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."
        raise aws_errors.invalid_value(params.Label, "Label", reason)
    if not params.AWSAccountIds:
        raise aws_errors.missing_parameter("AWSAccountIds")
    if not params.Actions:
        raise aws_errors.missing_parameter("Actions")
    if len(params.Actions) > ACTIONS_MAX:
        raise aws_errors.over_limit(f"{len(params.Actions)} Actions were found, maximum allowed is {ACTIONS_MAX}.")
    for account in params.AWSAccountIds:
        if not _ACCOUNT.fullmatch(account):
            raise aws_errors.invalid_value(account, "PrincipalId", "Unable to verify.")
    for action in params.Actions:
        if action not in _ACTIONS:
            reason = "Only the queue owner is allowed to invoke this action."
            raise aws_errors.invalid_value(f"SQS:{action}", "ActionName", reason)


async def remove_permission(sqs: SqsService, params: Any, caller: SqsCaller) -> None:  # noqa: ARG001
    """RemovePermission."""
    queue = sqs.settings(params.QueueUrl).name
    metadata = sqs.metadata(queue)
    policy = _policy(metadata)
    statements = list(policy.get("Statement", ()))
    left = [statement for statement in statements if statement.get("Sid") != params.Label]
    if len(left) == len(statements):  # AWS has two texts for it (recorded)
        raise aws_errors.invalid_value(
            params.Label, "Label", f"can't find label{' on existing policy' if policy else ''}."
        )
    await _write(sqs, queue, _with_policy(metadata, {**policy, "Statement": left} if left else {}))


def _policy(metadata: QueueMetadata) -> dict[str, Any]:
    text = metadata.kept.get("Policy")
    found: dict[str, Any] = json.loads(text) if text else {}
    statement = found.get("Statement", [])
    statements = statement if isinstance(statement, list) else [statement]
    return found | {"Statement": [one for one in statements if isinstance(one, dict)]} if found else {}


def _with_policy(metadata: QueueMetadata, policy: Mapping[str, Any]) -> QueueMetadata:
    kept = {name: value for name, value in metadata.kept.items() if name != "Policy"}
    if policy:
        kept["Policy"] = json.dumps(policy, separators=(",", ":"))
    return structs.replace(metadata, kept=kept)


# -- move tasks --------------------------------------------------------------------------------------------------------


class _Handle(Struct, frozen=True, rename="camel"):
    """The content of a task handle, which is its JSON in base64: AWS's form, which clients read."""

    task_id: str
    source_arn: str


async def start_message_move_task(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:  # noqa: ARG001
    """StartMessageMoveTask."""
    source = _queue(sqs, params.SourceArn, "SourceArn")
    target = None if params.DestinationArn is None else _queue(sqs, params.DestinationArn, "DestinationArn")
    rate = params.MaxNumberOfMessagesPerSecond
    if rate is not None and not 1 <= rate <= limits.MOVE_PER_SECOND_MAX:
        reason = f"Must be between 1 and {limits.MOVE_PER_SECOND_MAX}, if provided."
        raise aws_errors.invalid_value(rate, "MaxNumberOfMessagesPerSecond", reason)
    admin = sqs.queues.engine.queues
    try:
        task = await sqs.queues.call(lambda: admin.start_move(source, target, rate))
    except errors.NotFoundError:
        raise
    except errors.UsageError as error:
        raise aws_errors.invalid_parameter_value(error.what) from error
    sqs.queues.maintain_now()
    return {"TaskHandle": _handle(sqs, task)}


def _queue(sqs: SqsService, arn: str, parameter: str) -> str:
    name = sqs.addresses.name_of_arn(arn)
    try:
        if name is not None:
            return sqs.queues.engine.queues.setting(name).name
    except errors.NotFoundError:
        pass
    if not arn.startswith("arn:"):
        raise aws_errors.invalid_parameter_value("You must use this format to specify the SourceArn: arn:aws:sqs:...")
    raise aws_errors.resource_not_found(f"The resource that you specified for the {parameter} parameter doesn't exist.")


def _handle(sqs: SqsService, task: MoveTask) -> str:
    handle = _Handle(_uuid(task.handle), sqs.addresses.arn(task.source))
    return b64encode(msgspec.json.encode(handle)).decode()


def _uuid(handle: str) -> str:
    """The engine's handle, 16 hexadecimal digits, in the form of AWS's task ids."""
    return f"{handle[:8]}-{handle[8:12]}-4000-8{handle[12:15]}-{handle[15:]:0<12}"


def _handle_of(uuid: str) -> str:
    parts = uuid.split("-")
    handle = parts[0] + parts[1] + parts[3][1:] + parts[4][:1] if len(parts) == 5 else ""
    return handle if _uuid(handle) == uuid else ""


async def list_message_move_tasks(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:  # noqa: ARG001
    """ListMessageMoveTasks."""
    source = _queue(sqs, params.SourceArn, "SourceArn")
    count_max = 1 if params.MaxResults is None else params.MaxResults
    if not 1 <= count_max <= LIST_MAX:
        raise aws_errors.invalid_value(count_max, "MaxResults", f"Must be between 1 and {LIST_MAX}, if provided.")
    admin = sqs.queues.engine.queues
    tasks = await sqs.queues.call(lambda: admin.moves(source), synced=False)
    return {"Results": [_shown(sqs, task) for task in tasks[:count_max]]} if tasks else {}


def _shown(sqs: SqsService, task: MoveTask) -> dict[str, Any]:
    found: dict[str, Any] = {
        "Status": task.status,
        "SourceArn": sqs.addresses.arn(task.source),
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_at_ms,
    }
    if task.status == "RUNNING":
        found["TaskHandle"] = _handle(sqs, task)
    if task.to is not None:
        found["DestinationArn"] = sqs.addresses.arn(task.to)
    if task.per_second_max is not None:
        found["MaxNumberOfMessagesPerSecond"] = task.per_second_max
    if task.failure is not None:
        found["FailureReason"] = task.failure
    return found


async def cancel_message_move_task(sqs: SqsService, params: Any, caller: SqsCaller) -> dict[str, Any]:  # noqa: ARG001
    """CancelMessageMoveTask."""
    try:
        given = msgspec.json.decode(b64decode(params.TaskHandle, validate=True), type=_Handle)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise aws_errors.invalid_parameter_value("Value for parameter TaskHandle is invalid.") from None
    _queue(sqs, given.source_arn, "SourceArn")
    handle = _handle_of(given.task_id)
    admin = sqs.queues.engine.queues
    try:
        task = await sqs.queues.call(lambda: admin.cancel_move(handle))
    except errors.NotFoundError as error:
        raise aws_errors.resource_not_found("Task does not exist.") from error
    except errors.UsageError as error:
        raise aws_errors.invalid_parameter_value("Only active tasks can be cancelled.") from error
    return {"ApproximateNumberOfMessagesMoved": task.moved}
