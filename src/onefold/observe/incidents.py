"""An alarm over time: when it begins, goes on and ends; which of that is reported; what people have silenced.

`step` is pure: it computes the new incident from the previous one, a sample and an instant. An incident is a document
of State, so that any process can continue where another one was killed. A report is written into its incident first
(`owed`), then queued, then removed: it has one name, `<incident>#<number>`, however often it is queued.
Never here: values and thresholds (`alarm_samples.py`), targets, clocks. Invariants: two reports that an alarm begins or
goes on are at least `AGAIN_MS` apart, however noisy its value; an end is reported only if the beginning was reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, limits
from onefold.contracts.documents import change, reader
from onefold.contracts.state import bounded_name
from onefold.observe.alarm_samples import AlarmSample
from onefold.observe.alarms import AGAIN_EVERY_MS, AGAIN_MS, ALARMS, Alarm, Severity

if TYPE_CHECKING:
    from onefold.contracts.verbs import State

Kind = Literal["began", "goes-on", "ended"]
Phase = Literal["waiting", "on", "over"]

PREFIX: Final = "alarms/at/"  # of the names of incidents in State
SILENCES: Final = "alarms/silences"
HISTORY: Final = "alarms/history"
LEADER: Final = "alarms/leader"
HISTORY_MAX: Final = 100
_HISTORY_BYTES_MAX: Final = 48 * 1024  # our limit; a value of State can have 64 KiB
SILENCES_MAX: Final = 100
SILENCE_MS_MAX: Final = 30 * limits.DAY_MS  # our limit; for longer, remove the alarm instead
REASON_CHARS_MAX: Final = 200
_TEXT_CHARS_MAX: Final = 200
EVERY: Final = "*"  # silences all alarms


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One report about an alarm.

    Args:
        incident: the incident's name. number: the report's number within it, from 1. kind: what happened.
        alarm, subject, severity: which alarm. at_ms: when it happened. since_ms: when the incident began.
        text: the value, for people. owner: the team that owns the fix.
        silenced: it is kept in the history, but not sent.
        drill: it comes from `onefold alarms test`.
    """

    incident: str
    number: int
    kind: Kind
    alarm: str
    subject: str
    severity: Severity
    at_ms: int
    since_ms: int
    text: str = ""
    owner: str | None = None
    silenced: bool = False
    drill: bool = False

    @property
    def id(self) -> str:
        """The report's name, the same however often it is queued or sent."""
        return f"{self.incident}#{self.number}"


class Incident(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An alarm of one subject that is on, may come on, or was on a moment ago.

    Args:
        alarm, subject: which alarm.
        phase: `waiting`: the condition holds, but not for long enough yet; `on`; `over`: kept to see whether it comes
            back.
        bad_since_ms: since when the condition holds. good_since_ms: since when it no longer holds; None while it holds.
        began_at_ms, ended_at_ms: when the alarm began and ended.
        text, owner: from the last sample.
        reports: how many there were. reported_ms: when its beginning or continuation was last reported. open: its
            beginning was reported, and its end not yet. kept: the beginning is in the history, although silenced.
        owed: reports that are not queued yet.
    """

    alarm: str
    subject: str
    phase: Phase
    bad_since_ms: int | None = None
    good_since_ms: int | None = None
    began_at_ms: int | None = None
    ended_at_ms: int | None = None
    text: str = ""
    owner: str = ""
    reports: int = 0
    reported_ms: int | None = None
    open: bool = False
    kept: bool = False
    owed: tuple[Report, ...] = ()

    @property
    def name(self) -> str:
        """A stable, unique name: `<alarm>/<subject>/<when it began>`."""
        return f"{self.alarm}/{self.subject}/{self.began_at_ms}"

    @property
    def state_name(self) -> str:
        """The name of its document in State."""
        return state_name_of(self.alarm, self.subject)


def state_name_of(alarm: str, subject: str) -> str:
    """The name in State of an alarm's incident."""
    return bounded_name(PREFIX, f"{alarm}/{subject}")


def step(
    incident: Incident | None, alarm: Alarm, sample: AlarmSample | None, now_ms: int, *, silenced: bool = False
) -> Incident | None:
    """Advance an alarm of one subject to an instant.

    Args:
        incident: the previous one; None if nothing was wrong.
        sample: the one of this instant; None if the subject is gone or has no value, which counts as good.
        silenced: do not send reports of its beginning or continuation.

    Returns:
        The new incident; the same object if nothing changed; None if nothing is wrong.
    """
    bad = sample is not None and sample.begins
    good = sample is None or sample.ends
    if incident is None or (incident.phase == "waiting" and not bad):
        if not bad or sample is None:
            return None
        incident = Incident(alarm=alarm.name, subject=sample.subject, phase="waiting", bad_since_ms=now_ms)
    if sample is not None and bad and incident.phase != "on":
        incident = replace(incident, text=sample.text[:_TEXT_CHARS_MAX], owner=(sample.owner or "")[:_TEXT_CHARS_MAX])
    if incident.phase == "over":
        incident = _after(incident, bad, now_ms)
    if incident is not None and incident.phase != "on" and incident.bad_since_ms is not None:
        incident = _begun(incident, alarm, now_ms)
    if incident is not None and incident.phase == "on":
        incident = _reported(_ended(incident, alarm, good, now_ms), alarm, now_ms, silenced)
    return incident


def _after(incident: Incident, bad: bool, now_ms: int) -> Incident | None:
    """An incident that is over: forgotten `AGAIN_MS` after its last report, unless its value is bad again."""
    since_ms = max(incident.ended_at_ms or 0, incident.reported_ms or 0)
    if not bad and not incident.owed and not 0 <= now_ms - since_ms < AGAIN_MS:
        return None
    if not bad:
        return incident if incident.bad_since_ms is None else replace(incident, bad_since_ms=None)
    return incident if incident.bad_since_ms is not None else replace(incident, bad_since_ms=now_ms)


def _begun(incident: Incident, alarm: Alarm, now_ms: int) -> Incident:
    """An incident whose condition holds: on, once it has held for long enough; the same incident if it comes back."""
    assert incident.bad_since_ms is not None
    if now_ms - incident.bad_since_ms < alarm.for_ms:
        return incident
    began_at_ms = now_ms if incident.began_at_ms is None else incident.began_at_ms
    return replace(incident, phase="on", began_at_ms=began_at_ms, good_since_ms=None, ended_at_ms=None, kept=False)


def _ended(incident: Incident, alarm: Alarm, good: bool, now_ms: int) -> Incident:
    if not good:
        return incident if incident.good_since_ms is None else replace(incident, good_since_ms=None)
    since_ms = incident.good_since_ms if incident.good_since_ms is not None else now_ms
    incident = incident if incident.good_since_ms is not None else replace(incident, good_since_ms=now_ms)
    if now_ms - since_ms < alarm.clear_ms:
        return incident
    return replace(incident, phase="over", ended_at_ms=now_ms, bad_since_ms=None)


def _reported(incident: Incident, alarm: Alarm, now_ms: int, silenced: bool) -> Incident:
    """The incident with the reports that it owes now."""
    if incident.phase == "over":
        if incident.open:
            return _owe(replace(incident, open=False, kept=False), alarm, "ended", now_ms)
        return _owe(replace(incident, kept=False), alarm, "ended", now_ms, silenced=True) if incident.kept else incident
    again_ms = AGAIN_EVERY_MS[alarm.severity]
    since_ms = None if incident.reported_ms is None else max(now_ms - incident.reported_ms, 0)
    if silenced:
        is_news = not incident.open and not incident.kept
        return _owe(replace(incident, kept=True), alarm, "began", now_ms, silenced=True) if is_news else incident
    if incident.open and again_ms is not None and since_ms is not None and since_ms >= again_ms:
        return _owe(replace(incident, reported_ms=now_ms), alarm, "goes-on", now_ms)
    if not incident.open and (since_ms is None or since_ms >= AGAIN_MS):
        return _owe(replace(incident, reported_ms=now_ms, open=True), alarm, "began", now_ms)
    return incident


def _owe(incident: Incident, alarm: Alarm, kind: Kind, now_ms: int, *, silenced: bool = False) -> Incident:
    number = incident.reports + 1
    report = Report(
        incident=incident.name,
        number=number,
        kind=kind,
        alarm=alarm.name,
        subject=incident.subject,
        severity=alarm.severity,
        at_ms=now_ms,
        since_ms=incident.began_at_ms or now_ms,
        text=incident.text,
        owner=incident.owner or None,
        silenced=silenced,
    )
    return replace(incident, reports=number, owed=(*incident.owed, report))


_incident = reader(Incident, None)


def read(state: State, names: Sequence[str]) -> dict[str, tuple[Incident | None, int]]:
    """Incidents and the versions of their documents, by name in State; None for a document that cannot be read."""
    found: dict[str, tuple[Incident | None, int]] = {}
    for name, stored in zip(names, state.get(names) if names else (), strict=True):
        if stored is not None:
            found[name] = _incident(stored.value), stored.version
    return found


def incidents(state: State) -> list[Incident]:
    """Every incident of an engine, by alarm and subject."""
    found = read(state, state.names(PREFIX)).values()
    return sorted((one for one, _ in found if one is not None), key=lambda one: (one.alarm, one.subject))


# -- history ---------------------------------------------------------------------------------------------------------

_reports = reader(list[Report], list[Report]())


def history(state: State) -> list[Report]:
    """The latest reports, oldest first; at most `HISTORY_MAX`."""
    found = state.get([HISTORY])[0]
    return [] if found is None else _reports(found.value)


def keep(state: State, reports: Iterable[Report]) -> None:
    """Put reports into the history, each once."""
    new = list(reports)

    def decide(kept: list[Report]) -> tuple[list[Report], None]:
        known = {one.id for one in kept}
        more = [one for one in new if one.id not in known]
        return (_fitting([*kept, *more]) if more else kept), None

    if new:
        change(state, HISTORY, _reports, list[Report](), decide)


def _fitting(reports: list[Report]) -> list[Report]:
    """The latest reports, as many as fit into the document."""
    left, fitting = _HISTORY_BYTES_MAX, list[Report]()
    for one in reversed(reports[-HISTORY_MAX:]):
        left -= len(msgspec.json.encode(one)) + 1
        if left < 0:
            break
        fitting.append(one)
    return fitting[::-1]


# -- silences --------------------------------------------------------------------------------------------------------


class Silence(Struct, frozen=True, kw_only=True):
    """An alarm that a person has silenced for a while.

    Args:
        name: an alarm, `<alarm>/<subject>`, or `*` for all.
        until_ms: when it ends. reason, by, at_ms: why, by whom and when it was silenced.
    """

    name: str
    until_ms: int
    reason: str
    by: str
    at_ms: int

    def covers(self, alarm: str, subject: str, now_ms: int) -> bool:
        """Whether it covers this alarm and has not ended."""
        return now_ms < self.until_ms and self.name in (EVERY, alarm, f"{alarm}/{subject}")


_silences = reader(dict[str, Silence], dict[str, Silence]())


def silences(state: State, now_ms: int) -> list[Silence]:
    """The silences that have not ended, by name."""
    found = state.get([SILENCES])[0]
    kept: Mapping[str, Silence] = {} if found is None else _silences(found.value)
    return [one for _, one in sorted(kept.items()) if now_ms < one.until_ms]


def silence(state: State, wanted: Silence) -> None:
    """Silence an alarm; an existing silence gets the new end and reason. An end that has passed lifts the silence.

    Raises:
        NotFoundError: no alarm has that name. UsageError: the silence is too long, or there are too many.
        TransientError: other processes kept changing the silences.
    """
    if wanted.name != EVERY and wanted.name.partition("/")[0] not in ALARMS:
        raise errors.NotFoundError(
            f"There is no alarm {wanted.name!r:.100}.", todo="`onefold alarms list` names them; * means all of them."
        )
    if wanted.until_ms - wanted.at_ms > SILENCE_MS_MAX:
        raise errors.UsageError(
            f"A silence of {(wanted.until_ms - wanted.at_ms) // limits.DAY_MS} days is too long.",
            meaning="Nothing was silenced.",
            todo="Silence it for at most 30 days.",
        )
    kept = replace(wanted, reason=wanted.reason[:REASON_CHARS_MAX])

    def decide(found: dict[str, Silence]) -> tuple[dict[str, Silence], bool]:
        alive = {name: one for name, one in found.items() if wanted.at_ms < one.until_ms and name != wanted.name}
        if wanted.until_ms > wanted.at_ms:
            alive[wanted.name] = kept
        return (found, False) if len(alive) > SILENCES_MAX else (alive, True)

    _, answer = change(state, SILENCES, _silences, dict[str, Silence](), decide)
    if answer is None:
        raise errors.TransientError("Other processes kept changing the silences.", todo="Try again.")
    if not answer:
        raise errors.UsageError(
            f"There are {SILENCES_MAX} silences already.", todo="Silence a whole alarm, or * for planned work."
        )


def encoded(incident: Incident) -> bytes:
    """The document of an incident."""
    return msgspec.json.encode(incident)


# -- who evaluates ----------------------------------------------------------------------------------------------------


class Leader(Struct, frozen=True):
    """The process that evaluates the alarms, and until when no other one does."""

    owner: str
    until_ms: int


_leader = reader(Leader, None)


def lead(
    state: State, owner: str, now_ms: int, lease_ms: int, has_ended: Callable[[str], bool] = lambda _: False
) -> bool:
    """Become the process that evaluates the alarms for `lease_ms`; False if another one is.

    Args:
        has_ended: whether a process is known to have ended; if so, its lease is not waited for.
    """

    def decide(found: Leader | None) -> tuple[Leader | None, bool]:
        # If the clock was set back, the lease may seem to end far ahead: nobody leads for longer than a lease.
        is_led = found is not None and found.owner != owner and 0 < found.until_ms - now_ms <= lease_ms
        if found is not None and is_led and not has_ended(found.owner):
            return found, False
        return Leader(owner, now_ms + lease_ms), True

    _, leads = change(state, LEADER, _leader, None, decide)
    return bool(leads)


def resign(state: State, owner: str) -> None:
    """Let another process lead at once, if this one does."""

    def decide(found: Leader | None) -> tuple[Leader | None, None]:
        return (None if found is not None and found.owner == owner else found), None

    change(state, LEADER, _leader, None, decide)


def is_watched(state: State, now_ms: int) -> bool:
    """Whether a process evaluates the alarms."""
    found = state.get([LEADER])[0]
    leader = _leader(found.value) if found is not None else None
    return leader is not None and now_ms < leader.until_ms
