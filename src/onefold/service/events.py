"""Events as an operator sees them: put, rules, archives, replays, and whether a pattern matches and why not.

Buses are declared in an app; what is put and kept stands in its engine. Never here: matching, delivery, drawing.
Invariant: nothing but `put`, `replay` and `cancel` changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts.archive import Archived
from onefold.decide import envelopes
from onefold.events import replay as replays
from onefold.events.bus import Bus, PutAnswer
from onefold.events.explaining import Reason, reasons
from onefold.events.patterns import compile_pattern, event_of, matches
from onefold.events.replay import Opened, Replay
from onefold.events.rules import EventArchive, Rule

_PAGE = 500
_EVER_MS = 2**62
_SPELT = {"Source": "source", "DetailType": "detail-type", "Detail": "detail", "Resources": "resources", "Time": "time"}


class WithBuses(Protocol):
    """What is asked about: an app with its buses."""

    @property
    def name(self) -> str:
        """Of the app."""
        ...

    @property
    def buses(self) -> Mapping[str, Bus]:
        """Declared buses by name."""
        ...

    def runtime(self) -> Opened:
        """The opened engine."""
        ...


class Tested(Struct, frozen=True):
    """Whether a pattern matches an event; why it does not, and what is spelt as no event has it."""

    matches: bool
    reasons: tuple[Reason, ...]
    hints: tuple[str, ...]


class RuleLine(Struct, frozen=True, kw_only=True):
    """One rule for people.

    Args:
        bus, rule, enabled, targets, pattern, dead_letter: as declared. gets: what targets get, in a word.
        matches: of an event that was asked about; None when none was.
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
    """One archive for people.

    Args:
        bus, archive, pattern, retention_ms: as declared.
        events, size: how many it holds, and bytes. first_ms, last_ms: times of the oldest and the newest.
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
        UsageError: the pattern is none; the event is no JSON object.
    """
    compiled, value = compile_pattern(pattern), _object(event, "The event")
    found = event_of(value)
    asked = [name for name, _ in compiled.root.fields]
    hints = [*_misspelt("The event", value), *_misspelt("The pattern", asked)]
    return Tested(matches(compiled, found), tuple(reasons(compiled, found)), tuple(hints))


def _misspelt(what: str, names: Iterable[str]) -> Iterator[str]:
    """What to say of fields that are spelt as in an entry for PutEvents; in an event they are not."""
    for name in names:
        if name in _SPELT:
            yield f"{what} has {name}: so an entry for PutEvents spells it; in an event that travels it is {_SPELT[name]}."


def bus_of(app: WithBuses, name: str | None) -> Bus:
    """A declared bus; the only one unless named.

    Raises:
        NotFoundError: none, not this one, or several and none named.
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


def buses(app: WithBuses, name: str | None) -> list[Bus]:
    """All declared buses, or the one of that name. Raises as `bus_of`."""
    return list(app.buses.values()) if name is None else [bus_of(app, name)]


def put(bus: Bus, text: str) -> list[PutAnswer]:
    """Put events from JSON: one entry as PutEvents has it, a list of them, or `{"Entries": [...]}`.

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


def rules(app: WithBuses, bus: str | None = None, event: str | None = None) -> list[RuleLine]:
    """The declared rules, bus by bus.

    Args:
        event: JSON of an event, whole as it travels; which rules match it is told then.
    """
    asked = None if event is None else event_of(_object(event, "The event"))
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


def archives(app: WithBuses, bus: str | None = None) -> list[ArchiveLine]:
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


def kept(app: WithBuses, bus: Bus, archive: str, from_ms: int | None, to_ms: int | None, limit: int) -> list[Archived]:
    """Events of an archive by time, at most `limit`.

    Raises:
        NotFoundError: the bus has no such archive.
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
    app: WithBuses,
    bus: Bus,
    archive: str,
    from_ms: int,
    to_ms: int,
    *,
    name: str,
    only: Sequence[str] | None = None,
) -> Replay:
    """Begin a replay, or go on with it, to its end; see `events/replay.py` for errors.

    Args:
        only: names of rules.
    """
    runtime = app.runtime()
    replays.begin(bus, runtime, archive, from_ms, to_ms, name=name, rules=only)
    return replays.run(bus, runtime, name)


def planned(app: WithBuses, bus: Bus, archive: str, from_ms: int, to_ms: int) -> int:
    """How many events a replay of this range would send through the rules."""
    return bus.archives_of(app.runtime()).holdings(_archive(bus, archive).place, from_ms, to_ms).count


def cancel(app: WithBuses, bus: Bus, name: str) -> tuple[Replay, bool]:
    """End a running replay; what it has delivered stays. The replay, and whether it was running until now.

    Raises:
        NotFoundError: no such replay.
    """
    running = {one.name for one in listed(app, bus.name) if one.state == "running"}
    ended = replays.cancel(bus, app.runtime(), name)
    return ended, name in running and ended.state == "cancelled"


def listed(app: WithBuses, bus: str | None = None) -> list[Replay]:
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
        raise errors.UsageError(f"{what} is not JSON: {error}.", todo="Give an event as it travels.") from None
    if not isinstance(value, dict):
        raise errors.UsageError(f"{what} is no JSON object.", todo="Give an event as it travels.")
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
