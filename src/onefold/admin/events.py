"""Events for an operator: put, rules, archives, replays, whether a pattern matches and why not, failed deliveries.

Buses are declared in an app; what was put and what archives keep is in its engine. An event that a rule's target refused is
in the rule's dead-letter queue in the form that EventBridge uses: the original event, with rule and target among the
attributes. Delivering it again builds the message again from the present rule, sends it to that one target and
removes the dead letter, in one transaction if the engine has them. Never here: matching, delivery, drawing.
Invariants: nothing but `put`, `replay`, `cancel` and `redeliver` changes anything; an event stays in the dead-letter queue
until its target has taken it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.admin.session import AdminSession
from onefold.app import App
from onefold.contracts.admin import Peeked
from onefold.contracts.archive import Archived
from onefold.contracts.entries import Refused
from onefold.events import replay as replays
from onefold.events.bus import Bus, PutAnswer
from onefold.events.patterns import Mismatch, compile_pattern, matches, mismatches, view_of
from onefold.events.replay import Replay
from onefold.events.rules import EventArchive, Rule
from onefold.record import envelopes
from onefold.record.envelopes import opened

_PAGE = 500
_EVER_MS = 2**62
_SPELT = {"Source": "source", "DetailType": "detail-type", "Detail": "detail", "Resources": "resources", "Time": "time"}


class Tested(Struct, frozen=True):
    """Whether a pattern matches an event, why it does not, and hints about misspelt fields."""

    matches: bool
    reasons: tuple[Mismatch, ...]
    hints: tuple[str, ...]


class RuleLine(Struct, frozen=True, kw_only=True):
    """One rule, to be shown to people.

    Args:
        bus, rule, enabled, targets, pattern, dead_letter: as declared. gets: what targets get, in one word.
        matches: whether it matches the event that was asked about; None if there was none.
    """

    bus: str
    rule: str
    enabled: bool
    targets: tuple[str, ...]
    pattern: str
    gets: str
    dead_letter: str
    matches: bool | None


class ArchiveLine(Struct, frozen=True, kw_only=True):
    """One archive, to be shown to people.

    Args:
        bus, archive, pattern, retention_ms: as declared.
        events, size: how many events and bytes it holds. first_ms, last_ms: times of the oldest and the newest.
    """

    bus: str
    archive: str
    pattern: str | None
    retention_ms: int | None
    events: int
    size: int
    first_ms: int | None
    last_ms: int | None


def tested(pattern: str, event: str) -> Tested:
    """Match a pattern with an event, both as JSON texts.

    Raises:
        UsageError: the pattern is invalid; the event is not a JSON object.
    """
    compiled, value = compile_pattern(pattern), _object(event, "The event")
    found = view_of(value)
    asked = [name for name, _ in compiled.root.fields]
    hints = [*_misspelt("The event", value), *_misspelt("The pattern", asked)]
    return Tested(matches(compiled, found), tuple(mismatches(compiled, found)), tuple(hints))


def _misspelt(what: str, names: Iterable[str]) -> Iterator[str]:
    """Hints about fields that are spelt as in an entry for PutEvents, which differs from how an event spells them."""
    for name in names:
        if name in _SPELT:
            yield f"{what} has {name}: an entry for PutEvents spells it that way; in the event itself it is {_SPELT[name]}."


def bus_of(app: App, name: str | None) -> Bus:
    """A declared bus by its name; without a name, the only one.

    Raises:
        NotFoundError: there is no bus, or none of that name; or there are several and no name was given.
    """
    if name is None and len(app.buses) == 1:
        return next(iter(app.buses.values()))
    if name is not None and name in app.buses:
        return app.buses[name]
    what = f"no bus {name!r:.80}" if name is not None else f"{len(app.buses)} buses"
    raise errors.NotFoundError(
        f"App {app.name} has {what}.",
        todo=f"Name one of {', '.join(app.buses)}." if app.buses else 'Declare one: app.bus("orders").',
    )


def buses(app: App, name: str | None) -> list[Bus]:
    """All declared buses, or the one of that name. Raises as `bus_of`."""
    return list(app.buses.values()) if name is None else [bus_of(app, name)]


def put(bus: Bus, text: str) -> list[PutAnswer]:
    """Put events from JSON: one entry in PutEvents' form, a list of them, or `{"Entries": [...]}`.

    Raises:
        UsageError: it is something else; nothing was put.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise errors.UsageError(
            f"The entries are not JSON: {error}.", todo='Write {"Source": ..., "DetailType": ..., "Detail": {...}}.'
        ) from None
    if isinstance(value, dict) and set(value) == {"Entries"}:
        value = value["Entries"]
    return bus.put(value if isinstance(value, list) else [value])


def rules(app: App, bus: str | None = None, event: str | None = None) -> list[RuleLine]:
    """The declared rules, bus by bus.

    Args:
        event: JSON of a complete event, for which the answer lists the matching rules.
    """
    asked = None if event is None else view_of(_object(event, "The event"))
    return [
        RuleLine(
            bus=rule.bus,
            rule=rule.name,
            enabled=rule.enabled,
            targets=rule.targets,
            pattern=rule.pattern,
            gets=_gets(rule),
            dead_letter=rule.dead_letter,
            matches=None if asked is None else matches(rule.compiled, asked),
        )
        for one in buses(app, bus)
        for rule in one.rules.values()
    ]


def archives(app: App, bus: str | None = None) -> list[ArchiveLine]:
    """The declared archives with what they hold."""
    runtime = app.runtime()
    found = []
    for one in buses(app, bus):
        for archive in one.archives.values():
            held = one.archives_of(runtime).holdings(archive.place)
            found.append(
                ArchiveLine(
                    bus=one.name, archive=archive.name, pattern=archive.pattern, retention_ms=archive.retention_ms,
                    events=held.count, size=held.size, first_ms=held.first_ms, last_ms=held.last_ms,
                )
            )  # fmt: skip
    return found


def kept(app: App, bus: Bus, archive: str, from_ms: int | None, to_ms: int | None, limit: int) -> list[Archived]:
    """Events of an archive by time, at most `limit`.

    Raises:
        NotFoundError: the bus has no archive of that name.
    """
    place, runtime = _archive(bus, archive).place, app.runtime()
    start, end = from_ms if from_ms is not None else -_EVER_MS, to_ms if to_ms is not None else _EVER_MS
    found: list[Archived] = []
    after: tuple[int, int] | None = None
    while len(found) < limit:
        page = bus.archives_of(runtime).read(
            place, start, end, after=after, last=_EVER_MS, limit=min(_PAGE, limit - len(found))
        )
        found += page
        if not page:
            break
        after = (page[-1].time_ms, page[-1].position)
    return found


def replay(
    app: App,
    bus: Bus,
    archive: str,
    from_ms: int,
    to_ms: int,
    *,
    name: str,
    only: Sequence[str] | None = None,
) -> Replay:
    """Begin or resume a replay, and run it to its end; see `events/replay.py` for errors.

    Args:
        only: names of rules.
    """
    runtime = app.runtime()
    replays.begin(bus, runtime, archive, from_ms, to_ms, name=name, rules=only)
    return replays.run(bus, runtime, name)


def planned(app: App, bus: Bus, archive: str, from_ms: int, to_ms: int) -> int:
    """How many events a replay of this range would send through the rules."""
    return bus.archives_of(app.runtime()).holdings(_archive(bus, archive).place, from_ms, to_ms).count


def cancel(app: App, bus: Bus, name: str) -> tuple[Replay, bool]:
    """End a running replay; what it has delivered stays. Returns the replay, and whether it was running until now.

    Raises:
        NotFoundError: the replay does not exist.
    """
    running = {one.name for one in all_replays(app, bus.name) if one.state == "running"}
    ended = replays.cancel(bus, app.runtime(), name)
    return ended, name in running and ended.state == "cancelled"


def all_replays(app: App, bus: str | None = None) -> list[Replay]:
    """All replays, bus by bus, oldest first."""
    state = app.runtime().engine.state
    return [one for each in buses(app, bus) for one in replays.listed(state, each.name)]


def instant(text: str, what: str) -> int:
    """The instant of a text such as `2026-06-01T02:00:00Z`, UTC ms.

    Raises:
        UsageError: another form, or no zone.
    """
    try:
        return envelopes.instant(text)
    except ValueError as error:
        raise errors.UsageError(
            f"{what} {text!r:.80} cannot be read: {error}.", todo="Write 2026-06-01T02:00:00Z."
        ) from None


def _object(text: str, what: str) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise errors.UsageError(f"{what} is not JSON: {error}.", todo="Give a complete event, with envelope.") from None
    if not isinstance(value, dict):
        raise errors.UsageError(f"{what} is not a JSON object.", todo="Give a complete event, with envelope.")
    return value


def _archive(bus: Bus, name: str) -> EventArchive:
    found = bus.archives.get(name)
    if found is None:
        raise errors.NotFoundError(
            f"Bus {bus.name} has no archive {name!r:.80}.", todo=f"It has {', '.join(bus.archives) or 'none'}."
        )
    return found


def _gets(rule: Rule) -> str:
    if rule.input_path is not None:
        return rule.input_path
    if rule.input_transformer is not None:
        return "template"
    return "the event" if rule.constant is None else "constant"


# -- what targets refused --------------------------------------------------------------------------------------------


class UndeliveredEvent(Struct, frozen=True, kw_only=True):
    """One event for one target.

    Args:
        message_id, queue: those of the dead letter.
        bus, rule, target: where it should have gone; target is a queue's name.
        code, message: why it was refused. event_id: the event's id; None if the body is not an event.
        sent_at_ms: when it was put into the dead-letter queue, UTC.
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
        sent: dead letters that their targets have accepted.
        left: messages that were refused again, with the reason.
    """

    sent: tuple[UndeliveredEvent, ...]
    left: tuple[tuple[UndeliveredEvent, str], ...]


def undelivered(session: AdminSession, buses: Sequence[Bus], rule: str | None = None) -> list[UndeliveredEvent]:
    """The events that rules could not deliver, queue by queue, oldest first.

    Args:
        rule: only events of the rules with this name.
    """
    return [_line(bus, one, message) for bus, one, message in _letters(session, buses, rule)]


def redeliver(
    session: AdminSession,
    buses: Sequence[Bus],
    *,
    rule: str | None = None,
    ids: Sequence[str] = (),
    reason_text: str | None = None,
) -> Redelivered:
    """Deliver dead letters of rules again, each to the target it was meant for.

    Args:
        rule: only events of the rules with this name. ids: only these messages; if empty, all.
        reason_text: why, for the ledger.

    Raises:
        NotFoundError: one of `ids` is not such a message; nothing was sent.
    """
    letters = [one for one in _letters(session, buses, rule) if not ids or one[2].message_id in ids]
    missing = set(ids) - {message.message_id for _, _, message in letters}
    if missing:
        raise errors.NotFoundError(
            f"Message {min(missing)} is not an event that a rule could not deliver.",
            todo="See `onefold events undelivered`.",
        )
    sent: list[UndeliveredEvent] = []
    left: list[tuple[UndeliveredEvent, str]] = []
    for bus, one, message in letters:
        line = _line(bus, one, message)
        why = _again(session, bus, one, message, reason_text)
        if why is not None:
            left.append((line, why))
            continue
        sent.append(line)
    return Redelivered(sent=tuple(sent), left=tuple(left))


def _again(session: AdminSession, bus: Bus, rule: Rule, message: Peeked, reason_text: str | None) -> str | None:
    """Deliver a dead letter again; returns why the target refuses it, or None if it has accepted it."""
    target = _target(message)
    try:
        event = opened(message.body)
    except (ValueError, KeyError, TypeError):
        return "The message is not an event."
    if target not in rule.targets:
        return f"{target} is no longer a target of the rule."
    parcel = bus.parcel(rule, target, event, session.now_ms())
    if parcel.queue != target:
        return str(parcel.entry.attributes["ERROR_MESSAGE"].value)

    def move() -> str | None:
        (answer,) = session.engine.queues.open(target).send([parcel.entry])
        if isinstance(answer, Refused):
            return answer.message
        session.engine.queues.remove([message.message_id])
        session.record("redrive", message=message, to=target, rule=rule.name, reason_text=reason_text)
        return None

    try:
        return session.together(move)
    except errors.NotFoundError as error:
        return error.what


def _letters(session: AdminSession, buses: Sequence[Bus], rule: str | None) -> Iterator[tuple[Bus, Rule, Peeked]]:
    rules = {one.arn: (bus, one) for bus in buses for one in bus.rules.values() if rule in (None, one.name)}
    for queue in sorted({one.dead_letter for _, one in rules.values()}):
        for message in session.every(queue):
            found = rules.get(_said(message, "RULE_ARN"))
            if found is not None:
                yield (*found, message)


def _line(bus: Bus, rule: Rule, message: Peeked) -> UndeliveredEvent:
    return UndeliveredEvent(
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
