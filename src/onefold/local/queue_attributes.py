"""Queue attributes: AWS's names and text values on one side, the engine's settings and our metadata on the other.

`apply` reads the attributes of CreateQueue and SetQueueAttributes, `shown` writes those of GetQueueAttributes. Every
value is text on the wire. Attributes without effect here (policies, keys, encryption) are checked for their form,
stored and returned.

`QueueMetadata` is what AWS stores about a queue and the engine does not: creation time, tags, wait time, attributes
without effect. It is one JSON value in the engine's State, so it is as durable as the queue, and it is cached in this
process once it was read, because one server has a data file to itself. A queue that an app declared has no metadata
until it is first requested.

Never here: whether a queue exists. Invariants: `shown` returns what `apply` accepted, with the same meaning; metadata is
cached only after it was written.

Sources: SQS API reference, CreateQueue and SetQueueAttributes; texts as recorded from AWS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, structs

from onefold import limits
from onefold.contracts.queue import Depth
from onefold.contracts.settings import REDRIVE_SOURCES_MAX, QueueSettings
from onefold.contracts.state import Change
from onefold.local import aws_errors
from onefold.local.identifiers import QueueAddresses

if TYPE_CHECKING:
    from onefold.contracts.verbs import State


_METADATA = "wire/queue/"
_DROPPED = "wire/dropped/"
WAIT_S_MAX: Final = 20  # SQS ReceiveMessage, WaitTimeSeconds: 0 to 20
POLICY_BYTES_MAX: Final = 8_192  # SQS developer guide, policy quotas
FIFO_ONLY: Final = frozenset({"FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"})
READ_ONLY: Final = frozenset(
    {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesDelayed",
        "ApproximateNumberOfMessagesNotVisible",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "QueueArn",
    }
)
_YES_NO: Final = {"true": True, "false": False}
_COUNTS: Final = frozenset(name for name in READ_ONLY if name.startswith("Approximate"))


# -- metadata ----------------------------------------------------------------------------------------------------------


class QueueMetadata(Struct, frozen=True, kw_only=True):
    """What SQS stores about one queue besides the engine's settings.

    Args:
        created_at_ms, changed_at_ms: by the server's clock.
        wait_ms: ReceiveMessageWaitTimeSeconds.
        by_group: FifoThroughputLimit is `perMessageGroupId`.
        kept: attributes that are stored and returned, without effect: Policy, the KMS settings, SqsManagedSseEnabled.
        tags: by key.
        region: that of the client that created it; empty for a queue of every region, created by an app, a template, or
            an unsigned request.
    """

    created_at_ms: int
    changed_at_ms: int
    wait_ms: int = 0
    by_group: bool = False
    kept: Mapping[str, str] = {}
    tags: Mapping[str, str] = {}
    region: str = ""


class QueueMetadataStore:
    """The metadata of all queues of one engine.

    Args:
        state: the engine's State.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[str, QueueMetadata] = {}

    def known(self, queue: str) -> QueueMetadata | None:
        """The metadata of a queue, if it was read before."""
        return self._known.get(queue)

    def of(self, queue: str, now_ms: int) -> QueueMetadata:
        """The metadata of a queue that exists."""
        known = self._known.get(queue)
        if known is None:
            (found,) = self._state.get([_METADATA + queue])
            known = QueueMetadata(created_at_ms=now_ms, changed_at_ms=now_ms)
            if found is not None:
                known = msgspec.json.decode(found.value, type=QueueMetadata)
            self._known[queue] = known
        return known

    def write(self, queue: str, metadata: QueueMetadata) -> None:
        """Store metadata; inside an engine call. `keep` it once the call is done."""
        self._put(_METADATA + queue, msgspec.json.encode(metadata))
        self._put(_DROPPED + queue, None)

    def keep(self, queue: str, metadata: QueueMetadata) -> None:
        """Cache the metadata of a queue after it was written."""
        self._known[queue] = metadata

    def drop(self, queue: str, now_ms: int) -> None:
        """Remove the metadata of a deleted queue, and store when it was deleted; inside an engine call."""
        self._put(_METADATA + queue, None)
        self._put(_DROPPED + queue, msgspec.json.encode(now_ms))

    def erase(self, queue: str) -> None:
        """Remove all that is stored about a queue; inside an engine call. `forget` it once the call is done."""
        self._put(_METADATA + queue, None)
        self._put(_DROPPED + queue, None)

    def forget(self, queue: str) -> None:
        """Remove the cached metadata of a deleted queue, once the call that deleted it is done."""
        self._known.pop(queue, None)

    def dropped_at_ms(self, queue: str) -> int | None:
        """When a queue of this name was last deleted; None if it never was, or exists again."""
        (found,) = self._state.get([_DROPPED + queue])
        return None if found is None else msgspec.json.decode(found.value, type=int)

    def _put(self, name: str, value: bytes | None) -> None:
        (found,) = self._state.get([name])
        if found is not None or value is not None:
            self._state.put([Change(name, value, 0 if found is None else found.version)])


# -- attributes of a request -------------------------------------------------------------------------------------------


class WantedQueue(Struct, frozen=True):
    """A queue as the attributes describe it."""

    settings: QueueSettings
    metadata: QueueMetadata


AttributeChange = Callable[[WantedQueue, str, QueueAddresses], WantedQueue]


def apply(base: WantedQueue, attributes: Mapping[str, str], address: QueueAddresses, *, creates: bool) -> WantedQueue:
    """The queue with these attributes applied.

    Args:
        base: the existing queue; the defaults for a new one.
        creates: for CreateQueue, where the type is chosen.

    Raises:
        AwsError: InvalidAttributeName, InvalidAttributeValue, InvalidParameterValue; then nothing must be stored.
    """
    wanted = base
    fifo = base.settings.fifo
    for name, value in attributes.items():
        if name not in _CHANGES and name != "FifoQueue":
            raise aws_errors.invalid_attribute_name(name)
        if name in FIFO_ONLY and not fifo:
            raise aws_errors.fifo_only(name)
        if name == "FifoQueue":
            _check_type(value, creates)
        else:
            wanted = _CHANGES[name](wanted, value, address)
    wanted = _one_encryption(wanted, attributes)
    if wanted.metadata.by_group and wanted.settings.dedup_scope != "messageGroup":
        raise aws_errors.invalid_attribute_value(
            "FifoThroughputLimit", "perMessageGroupId is allowed only when DeduplicationScope is messageGroup."
        )
    return wanted


def _one_encryption(wanted: WantedQueue, attributes: Mapping[str, str]) -> WantedQueue:
    """Refuse a KMS key together with SQS's own encryption, and drop a key's reuse period if there is no key."""
    kept = wanted.metadata.kept
    if "KmsMasterKeyId" in kept:
        if is_true(attributes.get("SqsManagedSseEnabled", "")):
            raise aws_errors.one_encryption()
    elif "KmsDataKeyReusePeriodSeconds" in kept:
        return _keep(wanted, "KmsDataKeyReusePeriodSeconds", "")
    return wanted


def is_true(value: str) -> bool:
    """Whether a boolean attribute is true; its case does not matter, as on AWS."""
    return value.lower() == "true"


def _check_type(value: str, creates: bool) -> None:
    if value.lower() not in _YES_NO:
        raise aws_errors.invalid_attribute_value("FifoQueue")
    if not is_true(value):
        raise aws_errors.invalid_attribute_value(
            "FifoQueue", "" if creates else "Modifying queue type is not supported."
        )


# -- one attribute each ------------------------------------------------------------------------------------------------


def _whole(name: str, value: str, least: int, most: int) -> int:
    text = value.strip()
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise aws_errors.invalid_attribute_value(name)
    return int(text)


def _seconds(name: str, field: str, least_ms: int, most_ms: int) -> AttributeChange:
    def change(wanted: WantedQueue, value: str, _: QueueAddresses) -> WantedQueue:
        seconds = _whole(name, value, least_ms // limits.SECOND_MS, most_ms // limits.SECOND_MS)
        return _set(wanted, **{field: seconds * limits.SECOND_MS})

    return change


def _one_of(name: str, choices: Mapping[str, Any], set_: Callable[[WantedQueue, Any], WantedQueue]) -> AttributeChange:
    def change(wanted: WantedQueue, value: str, _: QueueAddresses) -> WantedQueue:
        if choices is _YES_NO:
            value = value.lower()
        if value not in choices:
            raise aws_errors.invalid_attribute_value(name)
        return set_(wanted, choices[value])

    return change


def _set(wanted: WantedQueue, **fields: Any) -> WantedQueue:
    return structs.replace(wanted, settings=structs.replace(wanted.settings, **fields))


def _note(wanted: WantedQueue, **fields: Any) -> WantedQueue:
    return structs.replace(wanted, metadata=structs.replace(wanted.metadata, **fields))


def _keep(wanted: WantedQueue, name: str, value: str) -> WantedQueue:
    """Keep an attribute that changes nothing here; empty text removes it."""
    kept = {other: text for other, text in wanted.metadata.kept.items() if other != name}
    return _note(wanted, kept=kept | {name: value} if value else kept)


def _wait(wanted: WantedQueue, value: str, _: QueueAddresses) -> WantedQueue:
    return _note(wanted, wait_ms=_whole("ReceiveMessageWaitTimeSeconds", value, 0, WAIT_S_MAX) * limits.SECOND_MS)


def _size(wanted: WantedQueue, value: str, _: QueueAddresses) -> WantedQueue:
    size = _whole("MaximumMessageSize", value, limits.MESSAGE_BYTES_MIN, limits.MESSAGE_BYTES_MAX)
    return _set(wanted, message_bytes_max=size)


def _policy(wanted: WantedQueue, value: str, _: QueueAddresses) -> WantedQueue:
    if value and (len(value.encode()) > POLICY_BYTES_MAX or not _is_policy(_json(value))):
        raise aws_errors.invalid_attribute_value("Policy")
    return _keep(wanted, "Policy", value)


def _is_policy(value: object) -> bool:
    """Whether a JSON value is an object whose statements, if it has any, are one object or a list of them."""
    statement = value.get("Statement", []) if isinstance(value, dict) else None
    statements = statement if isinstance(statement, list) else [statement]
    return all(isinstance(one, dict) for one in statements)


def _key(wanted: WantedQueue, value: str, _: QueueAddresses) -> WantedQueue:
    wanted = _keep(wanted, "KmsMasterKeyId", value)
    return _keep(wanted, "SqsManagedSseEnabled", "false") if value else wanted  # stays so without the key (recorded)


def _key_reuse(wanted: WantedQueue, value: str, _: QueueAddresses) -> WantedQueue:
    if value:
        _whole("KmsDataKeyReusePeriodSeconds", value, 60, 86_400)
    return _keep(wanted, "KmsDataKeyReusePeriodSeconds", value)


def _managed(wanted: WantedQueue, value: str, _: QueueAddresses) -> WantedQueue:
    if value.lower() not in _YES_NO:
        raise aws_errors.invalid_attribute_value("SqsManagedSseEnabled")
    return _keep(wanted, "SqsManagedSseEnabled", "" if is_true(value) else "false")


def _redrive(wanted: WantedQueue, value: str, address: QueueAddresses) -> WantedQueue:
    if not value:
        return _set(wanted, dead_letter=None, receives_max=None)
    policy = _map("RedrivePolicy", value, "Redrive policy")
    for member in ("deadLetterTargetArn", "maxReceiveCount"):
        if policy.get(member) in (None, ""):
            reason = f"Redrive policy does not contain mandatory attribute: {member}."
            raise aws_errors.invalid_value(value, "RedrivePolicy", reason)
    count = str(policy["maxReceiveCount"])
    if not (count.isascii() and count.isdigit() and len(count) < 8 and 1 <= int(count) <= limits.RECEIVES_MAX):
        bounds = f"from 1 to {limits.RECEIVES_MAX} both inclusive"
        reason = f"Invalid value for maxReceiveCount: {count}, valid values are {bounds}."
        raise aws_errors.invalid_value(value, "RedrivePolicy", reason)
    target = address.name_of_arn(str(policy["deadLetterTargetArn"]))
    if target is None:
        raise aws_errors.invalid_value(value, "RedrivePolicy", "Dead letter target does not exist.")
    return _set(wanted, dead_letter=target, receives_max=int(count))


def _redrive_allow(wanted: WantedQueue, value: str, address: QueueAddresses) -> WantedQueue:
    if not value:
        return _set(wanted, redrive_allow="allowAll", redrive_sources=())
    name = "RedriveAllowPolicy"
    policy = _map(name, value, "Redrive allow policy")
    permission, arns = policy.get("redrivePermission"), policy.get("sourceQueueArns")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise aws_errors.invalid_value(value, name, "Invalid value for redrivePermission.")
    if permission != "byQueue" and arns is not None:
        raise aws_errors.invalid_value(
            value, name, "sourceQueueArns is allowed only when redrivePermission is byQueue."
        )
    if permission != "byQueue":
        return _set(wanted, redrive_allow=permission, redrive_sources=())
    if not isinstance(arns, list) or not 1 <= len(arns) <= REDRIVE_SOURCES_MAX:
        raise aws_errors.invalid_value(value, name, f"sourceQueueArns must hold 1 to {REDRIVE_SOURCES_MAX} ARNs.")
    names = [address.name_of_arn(str(arn)) for arn in arns]
    if None in names:
        raise aws_errors.invalid_value(value, name, "sourceQueueArns has an entry that is not the ARN of a queue here.")
    return _set(wanted, redrive_allow=permission, redrive_sources=tuple(names))


def _map(name: str, value: str, words: str) -> dict[str, Any]:
    found = _json(value)
    if not isinstance(found, dict):
        raise aws_errors.invalid_value(value, name, f"{words} is not a valid JSON map.")
    return found


def _json(value: str) -> Any:
    try:
        found = json.loads(value)
        json.dumps(found, ensure_ascii=False).encode()  # ValueError: a lone surrogate, which no answer can contain
    except (ValueError, RecursionError):
        return None
    return found


_CHANGES: Final[Mapping[str, AttributeChange]] = {
    "ContentBasedDeduplication": _one_of(
        "ContentBasedDeduplication", _YES_NO, lambda wanted, on: _set(wanted, content_dedup=on)
    ),
    "DeduplicationScope": _one_of(
        "DeduplicationScope",
        {"queue": "queue", "messageGroup": "messageGroup"},
        lambda wanted, scope: _set(wanted, dedup_scope=scope),
    ),
    "DelaySeconds": _seconds("DelaySeconds", "delay_ms", 0, limits.DELAY_MS_MAX),
    "FifoThroughputLimit": _one_of(
        "FifoThroughputLimit",
        {"perQueue": False, "perMessageGroupId": True},
        lambda wanted, by_group: _note(wanted, by_group=by_group),
    ),
    "KmsDataKeyReusePeriodSeconds": _key_reuse,
    "KmsMasterKeyId": _key,
    "MaximumMessageSize": _size,
    "MessageRetentionPeriod": _seconds(
        "MessageRetentionPeriod", "retention_ms", limits.RETENTION_MS_MIN, limits.RETENTION_MS_MAX
    ),
    "Policy": _policy,
    "ReceiveMessageWaitTimeSeconds": _wait,
    "RedriveAllowPolicy": _redrive_allow,
    "RedrivePolicy": _redrive,
    "SqsManagedSseEnabled": _managed,
    "VisibilityTimeout": _seconds("VisibilityTimeout", "visibility_ms", 0, limits.VISIBILITY_MS_MAX),
}
NAMES: Final = frozenset({*_CHANGES, *FIFO_ONLY, *READ_ONLY})


# -- the other way ---------------------------------------------------------------------------------------------------


def counts(names: Collection[str]) -> bool:
    """Whether one of these attributes needs the queue's messages counted."""
    return "All" in names or any(name in _COUNTS for name in names)


def shown(
    settings: QueueSettings,
    metadata: QueueMetadata,
    address: QueueAddresses,
    depth: Depth | None,
    names: Collection[str] = ("All",),
) -> dict[str, str]:
    """Attributes as GetQueueAttributes returns them: the requested ones that this queue has.

    Args:
        depth: the counts of messages; None if no count was requested.

    Raises:
        AwsError: InvalidAttributeName for a name that no queue has.
    """
    for name in names:
        if name != "All" and name not in NAMES:
            raise aws_errors.invalid_attribute_name(name)
    everything = _everything(settings, metadata, address, depth)
    return everything if "All" in names else {name: everything[name] for name in names if name in everything}


def _everything(
    settings: QueueSettings, metadata: QueueMetadata, address: QueueAddresses, depth: Depth | None
) -> dict[str, str]:
    found = {
        "VisibilityTimeout": str(settings.visibility_ms // limits.SECOND_MS),
        "MessageRetentionPeriod": str(settings.retention_ms // limits.SECOND_MS),
        "DelaySeconds": str(settings.delay_ms // limits.SECOND_MS),
        "MaximumMessageSize": str(settings.message_bytes_max),
        "ReceiveMessageWaitTimeSeconds": str(metadata.wait_ms // limits.SECOND_MS),
        "CreatedTimestamp": str(metadata.created_at_ms // limits.SECOND_MS),
        "LastModifiedTimestamp": str(metadata.changed_at_ms // limits.SECOND_MS),
        "QueueArn": address.arn(settings.name),
        "SqsManagedSseEnabled": "true",
    }
    if depth is not None:
        found["ApproximateNumberOfMessages"] = str(depth.visible)
        found["ApproximateNumberOfMessagesNotVisible"] = str(depth.in_flight)
        found["ApproximateNumberOfMessagesDelayed"] = str(depth.delayed)
    if settings.fifo:
        found["FifoQueue"] = "true"
        found["ContentBasedDeduplication"] = "true" if settings.content_dedup else "false"
        found["DeduplicationScope"] = settings.dedup_scope
        found["FifoThroughputLimit"] = "perMessageGroupId" if metadata.by_group else "perQueue"
    if settings.dead_letter is not None:
        policy = {"deadLetterTargetArn": address.arn(settings.dead_letter), "maxReceiveCount": settings.receives_max}
        found["RedrivePolicy"] = json.dumps(policy, separators=(",", ":"))
    if settings.redrive_allow != "allowAll":
        allow: dict[str, object] = {"redrivePermission": settings.redrive_allow}
        if settings.redrive_sources:
            allow["sourceQueueArns"] = [address.arn(name) for name in settings.redrive_sources]
        found["RedriveAllowPolicy"] = json.dumps(allow, separators=(",", ":"))
    if "KmsMasterKeyId" in metadata.kept:
        found["KmsDataKeyReusePeriodSeconds"] = "300"
    return found | dict(metadata.kept)
