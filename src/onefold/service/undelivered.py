"""Events that a rule's target refused: list them, and deliver them again once the cause is fixed.

They lie in the rules' dead-letter queues as EventBridge leaves them there: the event as it was, rule and target among the
attributes. Delivering again makes the message anew from today's rule, sends it to that one target and removes the dead
letter, with its row, in one transaction where the engine has one. Never here: rules, patterns.
Invariant: an event stays in the dead-letter queue until its target has taken it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from onefold import errors
from onefold.contracts.admin import Peeked
from onefold.contracts.entries import Refused
from onefold.decide.envelopes import opened
from onefold.events.bus import Bus
from onefold.events.rules import Rule
from onefold.service.desk import Desk


class Undelivered(Struct, frozen=True, kw_only=True):
    """One event for one target.

    Args:
        message_id, queue: of the dead letter.
        bus, rule, target: where it should have gone; target is a queue's name.
        code, message: why it was refused. event_id: of the event; None when the body is none.
        sent_at_ms: when it was put there, UTC.
    """

    message_id: str
    queue: str
    bus: str
    rule: str
    target: str
    code: str
    message: str
    event_id: str | None
    sent_at_ms: int


class Redelivered(Struct, frozen=True, kw_only=True):
    """What delivering again did.

    Args:
        sent: dead letters that their targets have taken.
        left: those that were refused again, with the reason.
    """

    sent: tuple[Undelivered, ...]
    left: tuple[tuple[Undelivered, str], ...]


def listed(desk: Desk, buses: Sequence[Bus], rule: str | None = None) -> list[Undelivered]:
    """The events that rules could not deliver, queue by queue, oldest first.

    Args:
        rule: only of rules of this name.
    """
    return [_line(bus, one, message) for bus, one, message in _letters(desk, buses, rule)]


def redeliver(
    desk: Desk,
    buses: Sequence[Bus],
    *,
    rule: str | None = None,
    ids: Sequence[str] = (),
    reason_text: str | None = None,
) -> Redelivered:
    """Deliver dead letters of rules again, each to the target it was meant for.

    Args:
        rule: only of rules of this name. ids: only these messages; unless given, all.
        reason_text: why, for the ledger.

    Raises:
        NotFoundError: one of `ids` is no such message; nothing was sent.
    """
    letters = [one for one in _letters(desk, buses, rule) if not ids or one[2].message_id in ids]
    missing = set(ids) - {message.message_id for _, _, message in letters}
    if missing:
        raise errors.NotFoundError(
            f"Message {min(missing)} is not an event that a rule could not deliver.",
            todo="See `onefold events undelivered`.",
        )
    sent: list[Undelivered] = []
    left: list[tuple[Undelivered, str]] = []
    for bus, one, message in letters:
        line = _line(bus, one, message)
        why = _again(desk, bus, one, message, reason_text)
        if why is not None:
            left.append((line, why))
            continue
        sent.append(line)
    return Redelivered(sent=tuple(sent), left=tuple(left))


def _again(desk: Desk, bus: Bus, rule: Rule, message: Peeked, reason_text: str | None) -> str | None:
    """Why the target refuses the event again; None when it has it."""
    target = _target(message)
    try:
        event = opened(message.body)
    except (ValueError, KeyError, TypeError):
        return "The message is not an event."
    if target not in rule.targets:
        return f"{target} is no longer a target of the rule."
    parcel = bus.parcel(rule, target, event, desk.now_ms())
    if parcel.queue != target:
        return str(parcel.entry.attributes["ERROR_MESSAGE"].value)

    def move() -> str | None:
        (answer,) = desk.engine.queues.open(target).send([parcel.entry])
        if isinstance(answer, Refused):
            return answer.message
        desk.engine.queues.remove([message.message_id])
        desk.record("redrive", message=message, to=target, rule=rule.name, reason_text=reason_text)
        return None

    try:
        return desk.together(move)
    except errors.NotFoundError as error:
        return error.what


def _letters(desk: Desk, buses: Sequence[Bus], rule: str | None) -> Iterator[tuple[Bus, Rule, Peeked]]:
    rules = {one.arn: (bus, one) for bus in buses for one in bus.rules.values() if rule in (None, one.name)}
    for queue in sorted({one.dead_letter for _, one in rules.values()}):
        for message in desk.every(queue):
            found = rules.get(_said(message, "RULE_ARN"))
            if found is not None:
                yield (*found, message)


def _line(bus: Bus, rule: Rule, message: Peeked) -> Undelivered:
    return Undelivered(
        message_id=message.message_id,
        queue=message.queue,
        bus=bus.name,
        rule=rule.name,
        target=_target(message),
        code=_said(message, "ERROR_CODE"),
        message=_said(message, "ERROR_MESSAGE"),
        event_id=message.key,
        sent_at_ms=message.sent_at_ms,
    )


def _target(message: Peeked) -> str:
    return _said(message, "TARGET_ARN").rpartition(":")[2]


def _said(message: Peeked, name: str) -> str:
    found = message.attributes.get(name)
    return "" if found is None else str(found.value)
