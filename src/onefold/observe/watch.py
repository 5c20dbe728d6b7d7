"""`Watch`: evaluates an engine's alarms periodically, keeps its incidents, and queues their reports.

Every worker that receives the alarm queue has one, and `onefold watch` runs nothing else. Only one of them evaluates at a
time: a State document names the leader. Results are written by compare-and-set, so that even if two evaluate at once, no
change is made twice. Reports are messages in onefold's own queue: see `alarm_targets.py`.
`EventNotes` is the sink that records the events that alarms count; the watch's thread writes them to State.
Never here: thresholds, how long a value has to last, targets. Invariants: an incident is written before its report is
queued; a report is queued before it is removed from its incident.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from onefold import errors, limits
from onefold.contracts.documents import change, reader
from onefold.contracts.state import Change
from onefold.interrupts import ignored
from onefold.observe import alarms, incidents
from onefold.observe.alarm_samples import EVENTS, AppNumbers, LateTick, Snapshot, numbers_of, samples
from onefold.observe.alarm_targets import outgoing
from onefold.observe.incidents import Incident, Report
from onefold.observe.readings import Reader
from onefold.options import AlarmTargets
from onefold.schedules.ticks import ScheduleState
from onefold.schedules.transactions import PREFIX as SCHEDULES
from onefold.threads import thread_beside

if TYPE_CHECKING:
    from onefold.contracts.verbs import State
    from onefold.runtime.events import Event
    from onefold.runtime.runtime import Runtime

LOOK_MS: Final = 15 * limits.SECOND_MS  # our choice: an alarm begins at most this long after its condition
_REST_MS: Final = limits.SECOND_MS  # between two checks, however many events come
LEADER_MS: Final = 3 * LOOK_MS  # after this long without its leader, another takes over; on one machine at once
EVENT_NOTES: Final = "alarms/events"
_INSTANTS_MAX: Final = 10  # of one event and job; more than any threshold
_NOTED_MAX: Final = 500  # pairs of event and job: 500 with 10 instants each take some 90 KB, so fewer if names are long
_BYTES_MAX: Final = 48 * 1024
_PENDING_MAX: Final = 1_000  # events kept in memory while the engine cannot be written to
_SUBJECT_CHARS_MAX: Final = 128


_notes = reader(dict[str, list[int]], dict[str, list[int]]())
_schedule = reader(ScheduleState, None)


class EventNotes:
    """A sink that remembers when the events that alarms count happened, and writes that to State when asked to.

    Attributes:
        came: set when there is something to write.
    """

    is_quick: Final = True  # called where an event happens, because it never waits

    def __init__(self) -> None:
        self.came = threading.Event()
        self._pending: deque[tuple[str, str, int]] = deque(maxlen=_PENDING_MAX)

    def takes(self, name: str) -> bool:
        """Whether an alarm counts events of this name."""
        return name in EVENTS

    def emit(self, event: Event) -> None:
        """Remember the event if an alarm counts it."""
        if self.takes(event.name):
            subject = event.key.job if event.key is not None else event.detail.get("schedule")
            name = str(subject or event.queue or "").partition("\0")[0][:_SUBJECT_CHARS_MAX]
            self._pending.append((event.name, name, event.at_ms))
            self.came.set()

    def write(self, state: State, now_ms: int) -> None:
        """Write the remembered events; events that cannot be written are kept for the next call.

        Raises:
            TransientError: the engine could not be written to.
        """
        self.came.clear()
        some = list(self._pending)
        if not some:
            return

        def decide(found: dict[str, list[int]]) -> tuple[dict[str, list[int]], bool]:
            merged = {name: list(instants) for name, instants in found.items()}
            for name, subject, at_ms in some:
                merged.setdefault(f"{name} {subject}", []).append(at_ms)
            kept = {
                name: sorted(instants)[-_INSTANTS_MAX:]
                for name, instants in merged.items()
                if max(instants) > now_ms - alarms.HOUR_MS
            }
            return _fitting(kept), True

        _, written = change(state, EVENT_NOTES, _notes, dict[str, list[int]](), decide)
        if written:
            for _ in some:
                self._pending.popleft()


def _fitting(notes: dict[str, list[int]]) -> dict[str, list[int]]:
    """As many notes as fit into one value of State, latest events first."""
    latest = sorted(notes.items(), key=lambda one: -one[1][-1])[:_NOTED_MAX]
    total, kept = 0, {}
    for name, instants in latest:
        total += len(name.encode()) * 2 + 16 * len(instants)
        if total > _BYTES_MAX:
            break
        kept[name] = instants
    return kept


def noted(state: State, now_ms: int) -> dict[tuple[str, str], Sequence[int]]:
    """The instants of the last hour's events, by event and subject."""
    found = state.get([EVENT_NOTES])[0]
    notes: Mapping[str, Sequence[int]] = {} if found is None else _notes(found.value)
    result: dict[tuple[str, str], Sequence[int]] = {}
    for name, instants in notes.items():
        event, _, subject = name.partition(" ")
        result[event, subject] = [at_ms for at_ms in instants if at_ms > now_ms - alarms.HOUR_MS]
    return result


class Watch:
    """Evaluates the alarms of one engine. Use it from one thread at a time.

    Args:
        runtime: an open one; thresholds derive from its app's declarations.
        targets: where reports go; if None, incidents and history are kept, but nothing is sent.
        notes: the sink that remembers events, if one is already in use.
        drill: the reports are part of a test.
    """

    def __init__(
        self, runtime: Runtime, targets: AlarmTargets | None, *, notes: EventNotes | None = None, drill: bool = False
    ) -> None:
        self._runtime = runtime
        self.targets = targets
        self._drill = drill
        self._owner = runtime.owner
        self.clock = runtime.clock
        runtime.engine.appear()  # others see at once when this process has ended
        registry = runtime.registry
        self.numbers: AppNumbers = numbers_of(registry, targets.owner if targets is not None else None)
        self.notes = notes if notes is not None else EventNotes()
        self._windows = {name: one.timing.window_ms for name, one in registry.schedules.items()}
        self._reader = Reader(
            runtime.engine, runtime.steady, jobs=registry.jobs, reconciled=self.numbers.reconcile_after_ms
        )

    def look(self) -> list[Report]:
        """Evaluate every alarm, unless another process does; returns what was reported.

        Raises:
            TransientError, StorageError: the engine could not be read or written to; the next check continues from there.
        """
        state, now_ms = self._runtime.engine.state, self._runtime.steady.now_ms()
        self.notes.write(state, now_ms)
        if not incidents.lead(state, self._owner, now_ms, LEADER_MS, self._has_ended):
            return []
        before = incidents.read(state, state.names(incidents.PREFIX))
        changed = self._evaluate(state, before, self.see())
        return self._hand_over(state, changed)

    def see(self) -> Snapshot:
        """What the alarms are evaluated from."""
        state = self._runtime.engine.state
        readings = self._reader.read()
        events = noted(state, readings.at_ms)
        late = tuple(self._late(state, readings.at_ms))
        return Snapshot(readings=readings, events=events, late=late, numbers=self.numbers)

    def _has_ended(self, owner: str) -> bool:
        return bool(self._runtime.engine.dead([owner]))

    def resign(self) -> None:
        """Let another process take over at once."""
        incidents.resign(self._runtime.engine.state, self._owner)

    def _late(self, state: State, now_ms: int) -> Iterator[LateTick]:
        names = state.names(SCHEDULES)
        for name, stored in zip(names, state.get(names) if names else (), strict=True):
            schedule = name.removeprefix(SCHEDULES)
            found = _schedule(stored.value) if stored is not None else None
            if found is None or found.deleted or found.next_ms is None or found.paused_ms is not None:
                continue
            due_ms = found.next_ms + self._windows.get(schedule, 0)
            if due_ms <= now_ms:
                yield LateTick(schedule=schedule, planned_at_ms=found.next_ms, due_at_ms=due_ms)

    def _evaluate(
        self, state: State, before: Mapping[str, tuple[Incident | None, int]], snapshot: Snapshot
    ) -> dict[str, tuple[Incident, int]]:
        """Advance and write each incident; returns the incidents to report, with the written version."""
        now_ms = snapshot.readings.at_ms
        silences = incidents.silences(state, now_ms)
        known = {(one.alarm, one.subject) for one, _ in before.values() if one is not None}
        named = {
            incidents.state_name_of(one.alarm, one.subject): one
            for one in samples(snapshot)
            if one.begins or (one.alarm, one.subject) in known
        }
        after: dict[str, Incident | None] = {}
        for state_name in {**before, **named}:
            incident, _ = before.get(state_name, (None, 0))
            sample = named.get(state_name)
            name = sample.alarm if sample is not None else incident.alarm if incident is not None else ""
            alarm = alarms.ALARMS.get(name)
            if alarm is None:
                after[state_name] = None  # of another version, or unreadable
                continue
            subject = sample.subject if sample is not None else incident.subject if incident is not None else ""
            silenced = any(one.covers(name, subject, now_ms) for one in silences)
            after[state_name] = incidents.step(incident, alarm, sample, now_ms, silenced=silenced)
        changes = [
            Change(state_name, None if now is None else incidents.encoded(now), before.get(state_name, (None, 0))[1])
            for state_name, now in after.items()
            if now is not before.get(state_name, (None, 0))[0] or (now is None and state_name in before)
        ]
        written = dict(zip((one.name for one in changes), state.put(changes) if changes else (), strict=True))
        return {
            state_name: (now, before.get(state_name, (None, 0))[1] + int(state_name in written))
            for state_name, now in after.items()
            if now is not None and now.owed and written.get(state_name, True)
        }

    def _hand_over(self, state: State, owing: Mapping[str, tuple[Incident, int]]) -> list[Report]:
        """Queue the owed reports, then remove them from their incidents; a crash in between queues them again."""
        reports = [replace(one, drill=self._drill) for incident, _ in owing.values() for one in incident.owed]
        if not reports:
            return []
        incidents.keep(state, reports)
        if self.targets is not None:
            wanted = [one for one in reports if not one.silenced]
            self._runtime.send([one for report in wanted for one in outgoing(self._runtime, self.targets, report)])
        state.put(
            [
                Change(state_name, incidents.encoded(replace(incident, owed=())), version)
                for state_name, (incident, version) in owing.items()
            ]
        )
        return reports


@contextmanager
def beside(watch: Watch, reported: Callable[[Report], None] = lambda _: None) -> Iterator[None]:
    """Check every `LOOK_MS` in a separate thread while the block runs; a check that fails transiently is repeated later.

    Args:
        reported: called with each report, in that thread.

    Raises:
        Whatever ended the thread, when the block ends.
    """
    ended = threading.Event()

    def look() -> None:
        with ignored(errors.TransientError):
            for report in watch.look():
                reported(report)

    def run() -> None:
        while not ended.is_set():
            look()
            if not watch.clock.wait(ended, _REST_MS):
                watch.clock.wait(watch.notes.came, LOOK_MS - _REST_MS)

    def stop() -> None:
        ended.set()
        watch.notes.came.set()

    try:
        with thread_beside("onefold-watch", run, stop):
            yield
    finally:
        with ignored(errors.TransientError):
            watch.resign()
