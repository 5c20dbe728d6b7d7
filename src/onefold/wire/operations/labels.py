"""What is written on a queue and changes nothing here: tags, and permissions, which are statements of its policy.

Never here: access control; there are no users. Invariant: what was stored is given back as it was.

Sources: SQS API reference, the operation of the function's name; developer guide, tag and policy quotas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import structs

from onefold.wire import errors
from onefold.wire.cards import Card
from onefold.wire.desk import Caller, Desk

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
        raise errors.invalid_parameter_value(f"Too many tags added for queue. Maximum number of tags is {TAGS_MAX}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_CHARS_MAX or key.lower().startswith("aws:"):
            raise errors.invalid_value(
                key, "TagKey", f"A tag key has 1 to {TAG_KEY_CHARS_MAX} characters, no aws: first."
            )
        if len(value) > TAG_VALUE_CHARS_MAX:
            raise errors.invalid_value(value, "TagValue", f"A tag value has at most {TAG_VALUE_CHARS_MAX} characters.")


async def tag_queue(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001 - every operation takes the same
    """TagQueue."""
    queue = desk.settings(ask.QueueUrl).name
    if not ask.Tags:
        raise errors.missing_parameter("Tags")
    card = desk.card(queue)
    tags = {**card.tags, **ask.Tags}
    check_tags(tags)
    await _write(desk, queue, structs.replace(card, tags=tags))


async def untag_queue(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001
    """UntagQueue."""
    queue = desk.settings(ask.QueueUrl).name
    if not ask.TagKeys:
        raise errors.invalid_parameter_value("Tag keys must be between 1 and 128 characters in length.")
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
        raise errors.invalid_value(ask.Label, "Label", "Already exists.")
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
        raise errors.invalid_value(ask.Label, "Label", reason)
    if not ask.AWSAccountIds:
        raise errors.missing_parameter("AWSAccountIds")
    if not ask.Actions:
        raise errors.missing_parameter("Actions")
    if len(ask.Actions) > ACTIONS_MAX:
        raise errors.over_limit(f"{len(ask.Actions)} Actions were found, maximum allowed is {ACTIONS_MAX}.")
    for account in ask.AWSAccountIds:
        if not _ACCOUNT.fullmatch(account):
            raise errors.invalid_value(account, "PrincipalId", "Unable to verify.")
    for action in ask.Actions:
        if action not in _ACTIONS:
            reason = "Only the queue owner is allowed to invoke this action."
            raise errors.invalid_value(f"SQS:{action}", "ActionName", reason)


async def remove_permission(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001
    """RemovePermission."""
    queue = desk.settings(ask.QueueUrl).name
    card = desk.card(queue)
    policy = _policy(card)
    statements = list(policy.get("Statement", []))
    left = [statement for statement in statements if statement.get("Sid") != ask.Label]
    if len(left) == len(statements):  # AWS has two texts for it (recorded)
        raise errors.invalid_value(ask.Label, "Label", f"can't find label{' on existing policy' if policy else ''}.")
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
