"""Ticks that their queue did not take: kept in State until they are sent, or until the schedule's retry policy ends.

A transient failure (a queue that is throttled) is retried after 1 s, 2 s, 4 s and so on up to 8 minutes, so that 185 retries
take 24 hours; these are the two maxima of EventBridge Scheduler's policy. A permanent one (a missing queue, a message that
it refuses) is not retried. In the end the tick goes to the schedule's dead-letter queue under EventBridge Scheduler's
attribute names, or is dropped; an event reports either. Ticks of a schedule that is no longer declared stay, in case it is
declared again; each scheduler reports once that they are there. Never here: when a tick is due. Invariant: a tick that was
due is in its queue, here, in the dead-letter queue, or in the ledger as dropped.

Sources: user guide, "Configuring a schedule's dead-letter queue" (names of the attributes); API RetryPolicy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import limits
from onefold.contracts.documents import decode
from onefold.contracts.entries import Entry, Refused
from onefold.contracts.queue import APP_ATTRIBUTE, Attribute
from onefold.contracts.state import Change
from onefold.errors import InvariantBroken, OnefoldError, StorageError, TransientError, UsageError
from onefold.record.error_text import summary_of
from onefold.runner import runs
from onefold.runtime.events import Event
from onefold.runtime.outgoing import Outgoing
from onefold.schedules import transactions as ticking
from onefold.schedules.schedule import Schedule
from onefold.schedules.ticks import ScheduleState
from onefold.schedules.transactions import Agenda, Detail, OtherSchedulerError, Writer, Written

PREFIX: Final = "undelivered-tick/"
_PAUSE_MS: Final = limits.SECOND_MS
_PAUSE_MS_MAX: Final = 8 * limits.MINUTE_MS
_READ: Final = 1_000  # values read together
# Region and account of an engine that has none, as used by `onefold serve`.
_NO_ACCOUNT: Final = "us-east-1:000000000000"
_state_of = msgspec.json.Decoder(ScheduleState).decode


class Unsent(Struct, frozen=True, kw_only=True):
    """A tick that is to be sent again: the JSON of its State value.

    Args:
        schedule: its name. scheduled_at: the planned time, as in the message.
        first_at_ms: when it was tried first. again_at_ms: when it is tried next.
        retries: how often it was tried again. code, message: those of the last error.
        lasting: the error is not temporary.
    """

    schedule: str
    scheduled_at: str
    first_at_ms: int
    again_at_ms: int
    retries: int = 0
    code: str
    message: str
    lasting: bool

    @property
    def run(self) -> str:
        """The name of the tick's run, which is also its key."""
        return f"{self.schedule}/{self.scheduled_at}"

    @property
    def state_name(self) -> str:
        """The name in State."""
        return PREFIX + self.run


_unsent_of = msgspec.json.Decoder(Unsent).decode


def _stored(state_name: str, value: bytes) -> Unsent:
    one = decode(state_name, value, _unsent_of)
    if one.state_name != state_name:
        raise StorageError(
            f"The document {state_name!r} in the engine's state describes the tick {one.run!r:.200}.",
            meaning="Somebody changed it. It was not touched.",
            todo="Restore it, or remove it if the tick need not be sent.",
        )
    return one


def first_failure(one: Outgoing, error: OnefoldError, now_ms: int) -> Unsent:
    """A tick whose first try failed now."""
    lasting = not isinstance(error, TransientError)
    schedule, _, scheduled_at = one.record.key.partition("/")
    return Unsent(
        schedule=schedule,
        scheduled_at=scheduled_at,
        first_at_ms=now_ms,
        again_at_ms=now_ms if lasting else now_ms + _PAUSE_MS,
        code=error.code,
        message=summary_of(error),
        lasting=lasting,
    )


def next_failure(before: Unsent, error: OnefoldError, now_ms: int) -> Unsent:
    """The same tick after another try that failed now."""
    retries = before.retries + 1
    return replace(
        before,
        retries=retries,
        again_at_ms=now_ms + min(_PAUSE_MS << min(retries, 16), _PAUSE_MS_MAX),
        code=error.code,
        message=summary_of(error),
        lasting=not isinstance(error, TransientError),
    )


def exhausted(one: Unsent, retries_max: int, age_ms: int, now_ms: int) -> str | None:
    """What ended a tick's retries: EventBridge's name of the limit, or `error` if it cannot succeed; None: nothing yet.

    Args:
        retries_max, age_ms: counted from the first try.
    """
    if one.lasting:
        return "error"
    if one.retries >= retries_max:
        return "MaximumRetryAttempts"
    if now_ms - one.first_at_ms >= age_ms:
        return "MaximumEventAgeInSeconds"
    return None


def dead_letter(schedule: Schedule, app: str, one: Unsent, why: str, execution: str) -> Entry:
    """The message for the dead-letter queue: what the tick's queue should have received, and why it did not.

    A message has at most ten attributes; on SQS its key is one of them. The tick's own attributes stay, so that a
    redrive finds the job. If there are too many, `IS_PAYLOAD_TRUNCATED`, which would be false, is left out, then the
    key, which the body gives too.

    Args:
        why: from `exhausted`. execution: a new id of this last try.
    """
    sent = schedule.outgoing_at(one.scheduled_at).entry
    said = {
        "ERROR_CODE": one.code,
        "ERROR_MESSAGE": one.message,
        "EXECUTION_ID": execution,
        "RETRY_ATTEMPTS": str(one.retries),
        "SCHEDULED_TIME": one.scheduled_at,
        "SCHEDULE_ARN": f"arn:aws:scheduler:{_NO_ACCOUNT}:schedule/{app}/{schedule.name}",
        "TARGET_ARN": f"arn:aws:sqs:{_NO_ACCOUNT}:{schedule.job.policy.queue}",
    }
    if why != "error":
        said["EXHAUSTED_RETRY_CONDITION"] = why
    own = {name: one for name, one in sent.attributes.items() if name != APP_ATTRIBUTE}  # only ten fit
    if len(own) + len(said) < limits.ATTRIBUTES_MAX - 1:
        said["IS_PAYLOAD_TRUNCATED"] = "false"
    attributes = {**own, **{name: Attribute(value) for name, value in said.items()}}
    return Entry(
        body=sent.body,
        attributes=attributes,
        key=sent.key if len(attributes) < limits.ATTRIBUTES_MAX else None,
        trusted=False,  # sent unsigned: the signature would be one more attribute, and the body has all that is needed
    )


def schedule_of(state_name: str) -> str:
    """The schedule of an unsent tick, from the tick's name in State."""
    return state_name.removeprefix(PREFIX).rpartition("/")[0]


def refusal(error: Exception) -> OnefoldError:
    """The error with which its queue refused a tick; one that is a defect of onefold is raised instead."""
    if not isinstance(error, OnefoldError) or isinstance(error, InvariantBroken):
        raise error
    return error


class UndeliveredTicks:
    """Ticks that are to be sent again, of one scheduler's schedules.

    Args:
        writer: makes the transactions. schedules: by name. agenda: when each is tried next.
    """

    def __init__(self, writer: Writer, schedules: Mapping[str, Schedule], agenda: Agenda) -> None:
        self._writer = writer
        self._state = writer.engine.state
        self._schedules = schedules
        self._agenda = agenda
        self._orphaned: set[str] = set()  # schedules already reported
        self._unreadable: set[str] = set()  # names in State already reported

    def look(self) -> None:
        """Add ticks that other processes left to the agenda. Those that it has already are read when they are due."""
        state_names = [state_name for state_name in self._state.names(PREFIX) if not self._agenda.has(state_name)]
        ours = [state_name for state_name in state_names if schedule_of(state_name) in self._schedules]
        for first in range(0, len(ours), _READ):
            some = ours[first : first + _READ]
            for state_name, value in zip(some, self._state.get(some), strict=True):
                if value is not None and (one := self._read(state_name, value.value)) is not None:
                    self._agenda.note(state_name, one.again_at_ms)
        self._say_orphans(
            Counter(schedule_of(state_name) for state_name in state_names) - Counter(map(schedule_of, ours))
        )

    def _read(self, state_name: str, value: bytes) -> Unsent | None:
        """An unsent tick; None if its value cannot be read: that is reported once, and it waits for a person to act."""
        try:
            one = _stored(state_name, value)
        except StorageError as error:
            if state_name not in self._unreadable:
                self._unreadable.add(state_name)
                detail: Detail = {"why": str(error)[:500]}
                run = state_name.removeprefix(PREFIX)
                self._writer.report(self._writer.event("tick-unreadable", schedule_of(state_name), detail, run=run))
            return None
        self._unreadable.discard(state_name)
        return one

    def _say_orphans(self, counts: Mapping[str, int]) -> None:
        """Report once how many ticks of this app wait for a schedule that is no longer declared; they are kept for it."""
        new = sorted(counts.keys() - self._orphaned)
        for name, value in zip(new, self._state.get([ticking.PREFIX + name for name in new]), strict=True):
            try:
                state = decode(ticking.PREFIX + name, value.value, _state_of) if value is not None else None
            except StorageError:
                continue  # it may be another app's, whose scheduler reports it
            if state is not None and state.app == self._writer.runtime.registry.name:
                self._writer.report(self._writer.event("ticks-orphaned", name, {"count": counts[name]}))
        self._orphaned.update(new)

    def send(self, state_name: str, now_ms: int) -> Written | None:
        """Send a tick again if it is due; returns what was written, or None if nothing was.

        Raises:
            TransientError: the engine cannot be written.
        """
        found = self._state.get([state_name])[0]
        if found is None:
            return None  # another scheduler was here
        read, version = self._read(state_name, found.value), found.version
        if read is None:
            return None
        one = read
        schedule = self._schedules[one.schedule]
        if one.again_at_ms > now_ms:
            self._agenda.note(state_name, one.again_at_ms)
            return None
        if not one.lasting:
            answer = self._writer.together(lambda: self._send(schedule, one, version))
            if isinstance(answer, Written):
                return answer
            if isinstance(answer, OtherSchedulerError):
                return None
            one = next_failure(one, refusal(answer), now_ms)
        answer = self._writer.together(lambda: self.keep(one, version, now_ms, Written()))
        if isinstance(answer, Written):
            return answer
        if isinstance(answer, OtherSchedulerError):
            return None
        raise answer

    def _send(self, schedule: Schedule, one: Unsent, version: int) -> Written:
        wrote = Written()
        outgoing = schedule.outgoing_at(one.scheduled_at)
        self._writer.runtime.send([outgoing])
        wrote.sent = 1
        if not self._writer.put([Change(one.state_name, None, version)]):
            raise OtherSchedulerError
        event = self._writer.event("ticked", one.schedule, {"retries": one.retries + 1}, run=one.run)
        wrote.events.append(replace(event, queue=outgoing.queue))
        return wrote

    def keep(self, one: Unsent, version: int, now_ms: int, wrote: Written) -> Written:
        """Keep a tick to be sent again, or give it up if its retries have ended. Call it inside a transaction.

        Args:
            version: the version of its value in State; 0: it has none yet.
            wrote: what the transaction has done so far; it is returned with this added.

        Raises:
            OtherSchedulerError: another scheduler has dealt with it.
        """
        policy = self._schedules[one.schedule].undelivered
        why = exhausted(one, policy.retries_max, policy.age_ms, now_ms)
        detail: Detail = {"error": one.code, "summary": one.message, "retries": one.retries}
        if why is None:
            taken = self._writer.put([Change(one.state_name, msgspec.json.encode(one), version)])
            wrote.due.append((one.state_name, one.again_at_ms))
            wrote.events.append(self._writer.event("tick-refused", one.schedule, detail, run=one.run))
        else:
            taken = self._writer.put([Change(one.state_name, None, version)])
            wrote.events.append(self._give_up(one, why, {**detail, "reason": why}))
        if version and not taken:
            raise OtherSchedulerError
        return wrote

    def _give_up(self, one: Unsent, why: str, detail: Detail) -> Event:
        """Put a tick into its dead-letter queue, or drop it; returns the event that reports it."""
        schedule = self._schedules[one.schedule]
        dead = schedule.undelivered.dead_letter
        key = None
        # Its tick is not an operation of the run, so the row names no key: the run's value has the reason.
        if schedule.dispatches:
            runs.note(self._state, one.run, failure=f"Its tick was given up: {one.message}"[:500])
        else:
            key = schedule.outgoing_at(one.scheduled_at).record
        if dead is not None:
            entry = dead_letter(schedule, self._writer.runtime.registry.name, one, why, self._writer.entropy.token())
            try:
                (answer,) = self._writer.engine.queues.open(dead).send([entry])
            except UsageError as error:
                detail = {**detail, "dead_letter": str(error)[:200]}
            else:
                if not isinstance(answer, Refused):
                    event = self._writer.event("dead-letter", one.schedule, detail, run=one.run)
                    return replace(event, key=key, queue=dead, message_id=answer.message_id)
                detail = {**detail, "dead_letter": answer.message[:200]}
        return replace(self._writer.event("tick-dropped", one.schedule, detail, run=one.run), key=key)
