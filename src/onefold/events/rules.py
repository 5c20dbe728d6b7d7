"""What is declared on an event bus: rules and archives, checked at the door and compiled once.

A `Rule` and an `EventArchive` are plain values: names of queues, texts of patterns and templates as EventBridge has them, so
that a deployment writes the same rule that the embedded bus follows. They hold what was compiled from these texts, too.
Never here: events, matching, sending. Invariant: a rule that was made can be followed, and EventBridge would take it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from onefold import duration, errors, limits
from onefold.duration import Duration
from onefold.events.patterns import Pattern, compile_pattern
from onefold.events.transform import InputTransformer, Path, Transformation, compile_path, compile_transformation
from onefold.options import Queue

PATTERN_CHARS_MAX: Final = 4_096  # EventBridge API, PutRule, EventPattern
TARGETS_MAX: Final = 5  # EventBridge quotas, targets per rule
_RULE_NAME: Final = r"[.\-_A-Za-z0-9]{1,64}"  # API reference, PutRule
_ARCHIVE_NAME: Final = r"[.\-_A-Za-z0-9]{1,48}"  # API reference, CreateArchive


class Rule(Struct, frozen=True, kw_only=True, eq=False):
    """A declared rule.

    Args:
        name, bus: which. arn: as EventBridge names it.
        pattern: its JSON. enabled: whether it takes part.
        targets: names of queues, 1 to 5. dead_letter: name of the queue for what they refuse.
        input_path, input_transformer, constant: what targets get; at most one is not None.
        group: of FIFO targets: a text, or a JSON path into the event.
    """

    name: str
    bus: str
    arn: str
    pattern: str
    enabled: bool
    targets: tuple[str, ...]
    dead_letter: str
    input_path: str | None
    input_transformer: InputTransformer | None
    constant: Any
    group: str | None
    compiled: Pattern
    transformation: Transformation
    group_path: Path | None


class EventArchive(Struct, frozen=True, kw_only=True, eq=False):
    """A declared archive.

    Args:
        name, bus: which. pattern: JSON of what it keeps; None: every event.
        retention_ms: how long; None: for ever.
    """

    name: str
    bus: str
    pattern: str | None
    retention_ms: int | None
    compiled: Pattern | None

    @property
    def place(self) -> str:
        """Its name in the engine: those of bus and archive."""
        return f"{self.bus}/{self.name}"


def make_rule(
    name: str,
    *,
    bus: str,
    arn: str,
    pattern: Mapping[str, Any] | str,
    targets: Sequence[Queue],
    known: Mapping[str, Queue],
    dead_letter: Callable[[], Queue],
    input_path: str | None,
    input_transformer: InputTransformer | None,
    constant: Any,
    group: str | None,
    enabled: bool,
) -> Rule:
    """A rule from what was declared; arguments and errors as `Bus.rule`.

    Args:
        known: the app's queues by name. dead_letter: gives its queue; asked once everything else is in order.
    """
    if not re.fullmatch(_RULE_NAME, str(name)):
        raise errors.UsageError(f"{name!r:.80} is not a name for a rule.", todo="Use 1 to 64 of A-Z a-z 0-9 . - and _.")
    text = pattern_text(pattern)
    compiled = compile_pattern(text)
    _check_targets(name, targets, known, group)
    transformation = compile_transformation(input_path, input_transformer, constant)
    group_path = compile_path(group) if group is not None and group.startswith("$") else None
    dead = dead_letter()
    _check_dead_letter(name, dead)
    return Rule(
        name=name,
        bus=bus,
        arn=arn,
        pattern=text,
        enabled=enabled,
        targets=tuple(one.name for one in targets),
        dead_letter=dead.name,
        input_path=input_path,
        input_transformer=input_transformer,
        constant=constant,
        group=group,
        compiled=compiled,
        transformation=transformation,
        group_path=group_path,
    )


def make_archive(
    name: str, *, bus: str, pattern: Mapping[str, Any] | str | None, retention: Duration | None
) -> EventArchive:
    """An archive from what was declared; arguments and errors as `Bus.archive`."""
    if not re.fullmatch(_ARCHIVE_NAME, str(name)):
        raise errors.UsageError(
            f"{name!r:.80} is not a name for an archive.", todo="Use 1 to 48 of A-Z a-z 0-9 . - and _."
        )
    text = None if pattern is None else pattern_text(pattern)
    return EventArchive(
        name=name,
        bus=bus,
        pattern=text,
        retention_ms=None if retention is None else duration.to_ms(retention, "retention", least_ms=1),
        compiled=None if text is None else compile_pattern(text),
    )


def _check_targets(rule: str, targets: Sequence[Queue], known: Mapping[str, Queue], group: str | None) -> None:
    for queue in targets:
        if known.get(getattr(queue, "name", "")) is not queue:
            raise errors.UsageError(
                f"{getattr(queue, 'name', queue)!r:.80} is not a queue of this bus's app.",
                todo="Pass what app.queue(...) returned.",
            )
    if not 1 <= len(targets) <= TARGETS_MAX or len({one.name for one in targets}) != len(targets):
        raise errors.UsageError(
            f"Rule {rule} has {len(targets)} targets.", todo=f"Give it 1 to {TARGETS_MAX} different queues."
        )
    for queue in targets:
        if queue.settings.fifo and group is None:
            raise errors.UsageError(
                f"Rule {rule} sends to the FIFO queue {queue.name} and has no group.",
                todo='Say what is kept in order, for example group="$.detail.customer".',
            )
        if queue.settings.fifo and not queue.settings.content_dedup:
            raise errors.UsageError(
                f"Rule {rule} sends to the FIFO queue {queue.name}, which has no content-based deduplication.",
                meaning="EventBridge gives messages no deduplication id.",
                todo="Declare the queue with content_dedup=True.",
            )


def pattern_text(pattern: Mapping[str, Any] | str) -> str:
    """The JSON of a pattern.

    Raises:
        UsageError: it is longer than 4,096 characters, or has no JSON form.
    """
    if isinstance(pattern, str):
        text = pattern
    else:
        try:
            text = msgspec.json.encode(pattern).decode()
        except (TypeError, ValueError) as error:
            raise errors.UsageError(
                f"The pattern has no JSON form: {error}.", todo="Use dicts, lists, texts, numbers."
            ) from None
    if len(text) > PATTERN_CHARS_MAX:
        raise errors.UsageError(
            f"A pattern of {len(text):,} characters is too long.", todo=f"It has at most {PATTERN_CHARS_MAX:,}."
        )
    return text


def _check_dead_letter(rule: str, queue: Queue) -> None:
    if queue.settings.fifo or queue.settings.message_bytes_max < limits.MESSAGE_BYTES_MAX:
        raise errors.UsageError(
            f"Queue {queue.name} cannot take what the targets of rule {rule} refuse.",
            meaning="It must be a standard queue, as EventBridge wants it, and take messages of the largest size.",
            todo="Declare another one: app.queue(name).",
        )
