"""Alarms for an operator: which are on, which were on, and silencing one. What they mean is in `observe/alarms.py`.

Alarms are evaluated by a worker or by `onefold watch`; this module only reads the results.
Never here: output, targets. Invariant: reading changes nothing; a silence records who asked for it, why, and until when.
"""

from __future__ import annotations

import difflib

from msgspec import Struct

from onefold import errors
from onefold.admin.jobs import taken_names
from onefold.admin.session import AdminSession
from onefold.contracts.admin import roles
from onefold.observe import incidents
from onefold.observe.alarms import ALARMS, Severity
from onefold.observe.incidents import Phase, Silence


class AlarmStatus(Struct, frozen=True, kw_only=True):
    """An alarm about one subject that is on, waits, or was on a moment ago.

    Args:
        alarm, subject, severity: which one.
        phase: `waiting`: its condition holds, but not yet for long enough; `on`; `over`.
        since_ms: when it began; while it waits, when its condition began to hold.
        text: the value. meaning: what is wrong. first: the first command, without the app.
        owner: the team that is responsible for fixes.
        silenced_until_ms: None if it is not silenced.
    """

    alarm: str
    subject: str
    severity: Severity
    phase: Phase
    since_ms: int | None
    text: str
    meaning: str
    first: str
    owner: str | None
    silenced_until_ms: int | None


class AlarmsNow(Struct, frozen=True, kw_only=True):
    """The alarms of an engine.

    Args:
        at_ms: when they were read.
        watched: a worker or `onefold watch` evaluates them; if False, they are out of date.
        alarms: the active ones, most urgent first. silences: the current ones.
    """

    at_ms: int
    watched: bool
    alarms: tuple[AlarmStatus, ...]
    silences: tuple[Silence, ...]


_ORDER = {"page": 0, "ticket": 1, "info": 2}


def now(session: AdminSession) -> AlarmsNow:
    """The alarms that are on, wait, or were on a moment ago."""
    state, at_ms = session.engine.state, session.now_ms()
    silences = incidents.silences(state, at_ms)
    found = []
    for one in incidents.incidents(state):
        alarm = ALARMS.get(one.alarm)
        if alarm is None:
            continue
        until = [silence.until_ms for silence in silences if silence.covers(one.alarm, one.subject, at_ms)]
        found.append(
            AlarmStatus(
                alarm=one.alarm,
                subject=one.subject,
                severity=alarm.severity,
                phase=one.phase,
                since_ms=one.bad_since_ms if one.phase == "waiting" else one.began_at_ms,
                text=one.text,
                meaning=alarm.meaning,
                first=alarm.command("", one.subject).rstrip(),
                owner=one.owner or None,
                silenced_until_ms=max(until, default=None),
            )
        )
    found.sort(key=lambda one: (one.phase != "on", _ORDER[one.severity], one.alarm, one.subject))
    return AlarmsNow(
        at_ms=at_ms, watched=incidents.is_watched(state, at_ms), alarms=tuple(found), silences=tuple(silences)
    )


def silence(session: AdminSession, name: str, for_ms: int, reason: str) -> Silence:
    """Silence an alarm for a while; 0 ends the silence. Alarms that begin meanwhile are still kept in the history.

    Args:
        name: an alarm, `<alarm>/<subject>`, or `*`. reason: why; goes into the ledger.

    Raises:
        NotFoundError: the alarm, or the queue or job after the `/`, does not exist; or it is not silenced, and its silence
            was to be ended. UsageError: no reason, or too long.
    """
    if not reason.strip():
        raise errors.UsageError(
            "A silence needs a reason.",
            meaning="Nothing was silenced.",
            todo='Add --reason "why, and who knows about it".',
        )
    at_ms = session.now_ms()
    if for_ms:
        _check_subject(session, name)
    elif name not in (there := [one.name for one in incidents.silences(session.engine.state, at_ms)]):
        raise errors.NotFoundError(
            f"{name!r:.100} is not silenced.",
            meaning="Nothing was changed.",
            todo=f"Silenced now: {', '.join(there) or 'nothing'}.",
        )
    wanted = Silence(name=name, until_ms=at_ms + for_ms, reason=reason.strip(), by=session.actor, at_ms=at_ms)
    incidents.silence(session.engine.state, wanted)
    session.record("alarm-silenced", alarm=name, for_ms=for_ms, reason_text=wanted.reason)
    return wanted


def _check_subject(session: AdminSession, name: str) -> None:
    alarm, _, subject = name.partition("/")
    kind = ALARMS[alarm].of if subject and alarm in ALARMS else None
    known: set[str] = set()
    if kind == "queue":
        declared = {one.name: one for one in session.jobs.queues} if session.jobs is not None else {}
        known = set(roles({**declared, **session.settings()}).sources)
    elif kind == "job":
        known = {one.name for one in taken_names(session)} | set(session.jobs.named if session.jobs is not None else ())
    if known and subject not in known:
        near = difflib.get_close_matches(subject, known, n=1)
        raise errors.NotFoundError(
            f"There is no {kind} {subject!r:.100} here.",
            meaning="Nothing was silenced.",
            todo=f"Did you mean {alarm}/{near[0]}?" if near else f"There are: {', '.join(sorted(known)[:10])}.",
        )
