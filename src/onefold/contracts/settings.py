"""The settings of a queue, and which of them SQS accepts. Used by declarations, workers and operators.

`check_settings` refuses an invalid queue, `check_target` a queue that cannot be another's dead-letter queue. Ranges are
SQS's, from the AWS documentation. The rules for messages are in `entries.py`, the verbs in `admin.py`.
Never here: how a backend keeps settings. Invariant: equal settings make equal queues, and what is accepted, SQS accepts.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from onefold import duration, errors, limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

REDRIVE_SOURCES_MAX: Final = 10  # SQS CreateQueue, RedriveAllowPolicy.sourceQueueArns
_NAME_SIGNS: Final = frozenset(string.ascii_letters + string.digits + "-_")
_REGION_SIGNS: Final = frozenset(string.ascii_lowercase + string.digits + "-")


class QueueSettings(Struct, frozen=True, kw_only=True, gc=False):
    """The attributes of a queue, in SQS's ranges (see `onefold.limits`).

    Args:
        name: 1-80 of A-Z a-z 0-9 - _; a FIFO queue's name ends in `.fifo`.
        fifo: message groups in order, deduplication.
        visibility_ms: 0 to 12 h.
        retention_ms: 60 s to 14 days.
        delay_ms: 0 to 15 min.
        message_bytes_max: 1,024 to 1,048,576.
        dead_letter: name of the dead-letter queue; same type.
        receives_max: 1 to 1,000; the receive after that many moves the message. Required with dead_letter.
        held: name of the queue for unknown outcomes; same type.
        content_dedup: FIFO: derive the deduplication id from the SHA-256 of the body.
        dedup_scope: FIFO: `queue` or `messageGroup`.
        in_flight_max: SQS: 120,000.
        redrive_allow: `allowAll`, `denyAll`, or `byQueue` with `redrive_sources`.
    """

    name: str
    fifo: bool = False
    visibility_ms: int = limits.VISIBILITY_MS_DEFAULT
    retention_ms: int = limits.RETENTION_MS_DEFAULT
    delay_ms: int = 0
    message_bytes_max: int = limits.MESSAGE_BYTES_MAX
    dead_letter: str | None = None
    receives_max: int | None = None
    held: str | None = None
    content_dedup: bool = False
    dedup_scope: Literal["queue", "messageGroup"] = "queue"
    in_flight_max: int = limits.IN_FLIGHT_MAX
    redrive_allow: Literal["allowAll", "denyAll", "byQueue"] = "allowAll"
    redrive_sources: tuple[str, ...] = ()


def check_settings(settings: QueueSettings, *, advised: bool = True) -> None:
    """Refuse settings that SQS would refuse, checking this queue alone.

    Args:
        advised: False accepts what a local SQS needs: a queue that is its own dead-letter queue, which SQS accepts although
            it makes no sense, and a name with a region, `eu-west-1/orders`, which separates regions in one file.

    Raises:
        UsageError: names the setting, its value and its range.
    """
    region, _, name = ("", "", settings.name) if advised else settings.name.rpartition("/")
    stem = name.removesuffix(".fifo")
    if (
        not _REGION_SIGNS.issuperset(region)
        or not stem
        or len(name) > limits.QUEUE_NAME_CHARS_MAX
        or not _NAME_SIGNS.issuperset(stem)
    ):
        raise errors.UsageError(
            f"{name!r} cannot be the name of a queue.",
            meaning="A name has 1 to 80 of A-Z a-z 0-9 - _; a FIFO queue's name ends in .fifo, which counts too.",
            todo="Choose another name.",
        )
    if settings.fifo != name.endswith(".fifo"):
        raise errors.UsageError(
            f"Queue {name!r} is {'a FIFO queue' if settings.fifo else 'not declared as a FIFO queue (fifo=True)'}.",
            meaning="The names of FIFO queues end in .fifo, and no other queue's name does.",
            todo="Let the name end in .fifo." if settings.fifo else "Add fifo=True, or take another name.",
        )
    for setting, lowest, highest in (
        ("visibility_ms", 0, limits.VISIBILITY_MS_MAX),
        ("retention_ms", limits.RETENTION_MS_MIN, limits.RETENTION_MS_MAX),
        ("delay_ms", 0, limits.DELAY_MS_MAX),
        ("message_bytes_max", limits.MESSAGE_BYTES_MIN, limits.MESSAGE_BYTES_MAX),
        ("in_flight_max", 1, limits.IN_FLIGHT_MAX),
        ("receives_max", 1, limits.RECEIVES_MAX),
    ):
        value = getattr(settings, setting)
        if value is None and setting == "receives_max":
            continue
        if type(value) is not int or not lowest <= value <= highest:
            raise errors.UsageError(
                f"Queue {name!r} has {setting}={value!r}.",
                meaning=f"It is a whole number from {lowest:,} to {highest:,}.",
                todo="Choose a value in that range.",
            )
    _check_fifo_only(settings)
    _check_redrive(settings, advised)


def _check_fifo_only(settings: QueueSettings) -> None:
    if settings.dedup_scope not in ("queue", "messageGroup"):
        raise errors.UsageError(
            f"Queue {settings.name!r} has dedup_scope={settings.dedup_scope!r}.",
            todo="Use 'queue' or 'messageGroup'.",
        )
    if not settings.fifo and (settings.content_dedup or settings.dedup_scope != "queue"):
        raise errors.UsageError(
            f"Queue {settings.name!r} is a standard queue with content_dedup={settings.content_dedup} and "
            f"dedup_scope={settings.dedup_scope!r}.",
            meaning="Only FIFO queues deduplicate.",
            todo="Make it a FIFO queue or leave both settings out.",
        )


def _check_redrive(settings: QueueSettings, advised: bool) -> None:
    name = settings.name
    if (settings.dead_letter is None) != (settings.receives_max is None):
        raise errors.UsageError(
            f"Queue {name!r} has dead_letter={settings.dead_letter!r} and receives_max={settings.receives_max}.",
            meaning="A redrive policy needs both: where to, and after how many receives.",
            todo="Give both or neither.",
        )
    if name == settings.held or (name == settings.dead_letter and advised):
        raise errors.UsageError(
            f"Queue {name!r} names itself as its dead-letter or held queue.", todo="Name another queue."
        )
    if settings.redrive_allow not in ("allowAll", "denyAll", "byQueue"):
        raise errors.UsageError(
            f"Queue {name!r} has redrive_allow={settings.redrive_allow!r}.",
            todo="Use 'allowAll', 'denyAll' or 'byQueue'.",
        )
    by_queue = settings.redrive_allow == "byQueue"
    if by_queue != bool(settings.redrive_sources) or len(settings.redrive_sources) > REDRIVE_SOURCES_MAX:
        raise errors.UsageError(
            f"Queue {name!r} has redrive_allow={settings.redrive_allow!r} and "
            f"{len(settings.redrive_sources)} redrive_sources.",
            meaning=f"Sources, 1 to {REDRIVE_SOURCES_MAX} of them, go with byQueue and with nothing else.",
            todo="Name the sources with byQueue, or leave them out.",
        )


def check_target(source: QueueSettings, target: QueueSettings, *, advised: bool = True) -> None:
    """Refuse `target` as the dead-letter or held queue of `source`.

    A dead-letter queue must be of the same type, allow the source, and keep messages longer than the source does (at
    SQS's maximum of 14 days, as long): a standard queue's dead letter keeps the time it was sent, so with a shorter
    retention it may expire before anyone sees it. SQS only advises this; here it is an error.

    Args:
        advised: False does not check the retention, as SQS does not.

    Raises:
        UsageError: names the two settings that do not fit, with the arithmetic.
    """
    role = "dead-letter" if source.dead_letter == target.name else "held"
    if source.fifo != target.fifo:
        kinds = {True: "FIFO", False: "standard"}
        raise errors.UsageError(
            f"Queue {source.name!r} is {kinds[source.fifo]}, its {role} queue {target.name!r} is {kinds[target.fifo]}.",
            meaning="Both must be of one type.",
            todo=f"Name a {kinds[source.fifo]} queue.",
        )
    if role == "held":
        return
    if advised and target.retention_ms <= source.retention_ms and target.retention_ms < limits.RETENTION_MS_MAX:
        raise errors.UsageError(
            f"Dead-letter queue {target.name!r} keeps messages for {_days(target.retention_ms)}, its source "
            f"{source.name!r} for {_days(source.retention_ms)}.",
            meaning="A dead letter keeps the time it was sent: one that spent "
            f"{_days(source.retention_ms)} in the source has "
            f"{_days(max(0, target.retention_ms - source.retention_ms))} left to be looked at.",
            todo=f"Keep dead letters for longer than {_days(source.retention_ms)}, best for 14 days.",
        )
    if target.redrive_allow == "denyAll" or (
        target.redrive_allow == "byQueue" and source.name not in target.redrive_sources
    ):
        raise errors.UsageError(
            f"Queue {target.name!r} does not take dead letters of {source.name!r} "
            f"(redrive_allow={target.redrive_allow!r}, redrive_sources={list(target.redrive_sources)}).",
            todo=f"Add {source.name!r} to its redrive_sources, or name another dead-letter queue.",
        )


def differences(stored: QueueSettings, asked: QueueSettings) -> list[str]:
    """Each setting in which the two differ, as a declaration writes it: `visibility is 30s, declared 1m`."""
    return [
        f"{_DECLARED_AS.get(name, name)} is {_said(stored, name)}, declared {_said(asked, name)}"
        for name in QueueSettings.__struct_fields__
        if getattr(stored, name) != getattr(asked, name)
    ]


_DECLARED_AS: Final = {
    "visibility_ms": "visibility",
    "retention_ms": "retention",
    "delay_ms": "delay",
    "message_bytes_max": "max_bytes",
    "receives_max": "dead_letter's after",
}
_LIMITS: Final = frozenset(
    {"visibility_ms", "retention_ms", "delay_ms", "message_bytes_max", "receives_max", "in_flight_max"}
)


def _said(settings: QueueSettings, name: str) -> str:
    value = getattr(settings, name)
    if name.endswith("_ms"):
        return duration.to_text(value)
    return value if isinstance(value, str) else repr(value)


def is_workable(stored: QueueSettings, asked: QueueSettings) -> bool:
    """Whether an app that declares one can use the other: they differ only in times and limits.

    Type, deduplication, and the dead-letter and held queues must be as declared.
    """
    names = (name for name in QueueSettings.__struct_fields__ if name not in _LIMITS)
    return all(getattr(stored, name) == getattr(asked, name) for name in names)


def _days(duration_ms: int) -> str:
    days = duration_ms / limits.DAY_MS
    if days >= 1:
        return f"{days:g} days"
    return f"{duration_ms / limits.HOUR_MS:g} hours" if duration_ms >= limits.HOUR_MS else f"{duration_ms // 1000} s"


def check_targets(source: QueueSettings, settings_of: Callable[[str], QueueSettings], *, advised: bool = True) -> None:
    """`check_target` for a queue's dead-letter and held queue; raises what `settings_of` raises if one is missing."""
    for target in (source.dead_letter, source.held):
        if target is not None:
            check_target(source, settings_of(target), advised=advised)


def refuse_targets(queue: str, others: Iterable[QueueSettings]) -> None:
    """Refuse to drop a queue that is another's dead-letter or held queue.

    Raises:
        UsageError: names the other queues.
    """
    users = [other.name for other in others if queue in (other.dead_letter, other.held)]
    if users:
        raise errors.UsageError(
            f"Queue {queue!r} cannot be dropped: {', '.join(users)} would send messages there.",
            meaning="Nothing was changed.",
            todo="Change those queues first.",
        )


def refuse_differences(stored: QueueSettings, asked: QueueSettings) -> None:
    """Refuse a queue that exists with other settings.

    Raises:
        ConflictError: names each difference.
    """
    different = differences(stored, asked)
    if different:
        raise errors.ConflictError(
            f"Queue {stored.name!r} exists with other settings: {'; '.join(different)}.",
            meaning="It was left as it is.",
            todo="Declare it with the settings it has, or change it on purpose: `onefold queue apply MODULE:APP`.",
        )
