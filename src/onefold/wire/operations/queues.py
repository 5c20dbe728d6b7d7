"""Queues: create, delete, look up, list, attributes, purge.

Never here: messages. Invariant: a queue and its card are written in one engine call, and nothing is written when the request
is refused.

Sources: SQS API reference, the operation of the function's name; texts as recorded from AWS.
"""

from __future__ import annotations

import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import structs

from onefold import errors as ours
from onefold import limits
from onefold.contracts.settings import QueueSettings
from onefold.wire import attributes, errors
from onefold.wire.addresses import name_of_url
from onefold.wire.attributes import Wanted
from onefold.wire.cards import Card
from onefold.wire.desk import Caller, Desk

OWN_DEAD_LETTERS: Final = "It is its own dead-letter queue: messages that nobody deletes are given again without end."
RECREATE_MS: Final = 60 * limits.SECOND_MS  # SQS CreateQueue: wait 60 seconds after deleting a queue of that name
PAGE_MAX: Final = 1_000  # SQS ListQueues, MaxResults: 1 to 1,000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")


async def create_queue(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:
    """CreateQueue."""
    from onefold.wire.operations.labels import check_tags

    name: str = ask.QueueName
    given: Mapping[str, str] = ask.Attributes or {}
    fifo = _type_of(name, given)
    check_tags(ask.tags or {})
    now_ms = desk.queues.pace.now_ms()
    name = desk.queue(name)
    blank = Card(created_at_ms=now_ms, changed_at_ms=now_ms, tags=ask.tags or {}, region=caller.region)
    wanted = attributes.apply(Wanted(QueueSettings(name=name, fifo=fifo), blank), given, desk.addresses, creates=True)

    def create() -> bool:
        admin = desk.queues.engine.queues
        try:
            stored = admin.setting(name)
        except ours.NotFoundError:
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
    fifo = attributes.is_true(given.get("FifoQueue", ""))
    if not _NAME.fullmatch(name) or name.endswith(".fifo") is not fifo:
        if "FifoQueue" in given and not fifo and _NAME.fullmatch(name) and not name.endswith(".fifo"):
            raise errors.invalid_attribute_name("FifoQueue")
        if fifo:
            raise errors.invalid_parameter_value(
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end "
                "with .fifo suffix and be 1 to 80 in length."
            )
        raise errors.invalid_parameter_value(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )
    if "FifoQueue" in given and not fifo:
        raise errors.invalid_attribute_name("FifoQueue")
    return fifo


def _check_recreation(desk: Desk, name: str, now_ms: int) -> None:
    dropped_at_ms = desk.cards.dropped_at_ms(name) if desk.recreate_wait else None
    if dropped_at_ms is not None and 0 <= now_ms - dropped_at_ms < RECREATE_MS:
        raise errors.queue_deleted_recently()


def _refuse_differences(desk: Desk, stored: QueueSettings, wanted: Wanted, given: Mapping[str, str]) -> None:
    """The same name again: fine unless an attribute that was given differs from what the queue has."""
    has = attributes.shown(stored, desk.card(stored.name), desk.addresses, None)
    asks = attributes.shown(wanted.settings, wanted.card, desk.addresses, None)
    for attribute in given:
        if has.get(attribute) != asks.get(attribute):
            raise errors.queue_name_exists(attribute)


async def _told_as_redrive(desk: Desk, run: Any, given: Mapping[str, str]) -> Any:
    """Make an engine call; what it says of a dead-letter queue is an error of the redrive policy."""
    policy = given.get("RedrivePolicy", "")
    try:
        return await desk.queues.call(run)
    except ours.NotFoundError as error:
        if policy:
            raise errors.invalid_value(policy, "RedrivePolicy", "Dead letter target does not exist.") from error
        raise
    except ours.UsageError as error:
        if not policy or isinstance(error, ours.StorageError | ours.ConflictError):
            raise
        reason = "Dead-letter queue must be same type of queue as the source."
        if "redrive_allow" in error.what:
            reason = "Queue does not allow this source queue to use it as a dead-letter queue."
        raise errors.invalid_value(policy, "RedrivePolicy", reason) from error


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
        raise errors.queue_does_not_exist(query=caller.query)
    name = desk.settings(ask.QueueName).name
    return {"QueueUrl": desk.addresses.queue_url(name, caller.host)}


async def get_queue_attributes(desk: Desk, ask: Any, caller: Caller) -> dict[str, Any]:  # noqa: ARG001
    """GetQueueAttributes."""
    names: Sequence[str] = ask.AttributeNames or ()
    settings = desk.settings(ask.QueueUrl)
    depth = None
    if attributes.counts(names):
        depth = await desk.queues.call(lambda: desk.queues.engine.queues.depth(settings.name), synced=False)
    found = attributes.shown(settings, desk.card(settings.name), desk.addresses, depth, names)
    return {"Attributes": found} if found else {}


async def set_queue_attributes(desk: Desk, ask: Any, caller: Caller) -> None:  # noqa: ARG001
    """SetQueueAttributes."""
    given: Mapping[str, str] = ask.Attributes or {}
    stored = desk.settings(ask.QueueUrl)
    base = Wanted(stored, desk.card(stored.name))
    wanted = attributes.apply(base, given, desk.addresses, creates=False)
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
        raise errors.invalid_value(count_max, "MaxResults", f"Must be an integer from 1 to {PAGE_MAX}.")
    if token is not None:
        try:
            after = b64decode(token, validate=True).decode()
        except ValueError:
            after = ""
        if not after or count_max is None:
            raise errors.invalid_parameter_value("Invalid or expired next token.")
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
    except ours.NotFoundError:
        raise
    except ours.UsageError as error:
        raise errors.purge_queue_in_progress(name_of_url(name)) from error
    desk.queues.faults.forget(name)
    desk.queues.history.told(name, "", "purged", at_ms=desk.queues.pace.now_ms(), via="sqs")
