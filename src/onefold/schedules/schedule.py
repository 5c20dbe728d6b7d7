"""A declared schedule: its times, its job, what happens to a tick that its queue refuses; and the class `Tick`.

`App.schedule` makes these; the embedded scheduler and `onefold synth` read them. A tick's message contains the schedule and
the planned time and nothing else, so that EventBridge Scheduler can send the same one (`<aws.scheduler.scheduled-time>`);
the job's handler makes the `Tick` from it. Never here: when a tick is due (`ticks.py`), sending (`scheduler.py`).
Invariant: a tick always has the key `<schedule>/<planned time>`, whichever process sends it, and however often.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from typing import Any, Final, get_args

from msgspec import Struct, json

from onefold import duration, errors, limits
from onefold.codec import digest, encode
from onefold.contracts.entries import Entry
from onefold.contracts.queue import APP_ATTRIBUTE, JOB_ATTRIBUTE, RUN_ATTRIBUTE, Attribute
from onefold.contracts.store import RecordKey
from onefold.duration import Duration
from onefold.options import Checked, Queue, Retry, check_option, check_whole, warn_of_attempts
from onefold.registry import Registry
from onefold.runner import runs
from onefold.runner.context import Context
from onefold.runner.declaring import check_parameters, declare_job, queue_of
from onefold.runner.dispatcher import as_handler
from onefold.runner.handlers import Job, positional, positional_names
from onefold.runtime.outgoing import Outgoing, derived_dedup_id
from onefold.runtime.runtime import Runtime
from onefold.schedules.expressions import CronExpression
from onefold.schedules.fire_times import Timing, next_after, parse, run_name, zone_of
from onefold.schedules.ticks import MISSED_MAX, Missed
from onefold.zones import zone_name

NAME_CHARS_MAX: Final = 64  # API CreateSchedule: [0-9a-zA-Z-_.]{1,64}
_NAME: Final = r"[0-9a-zA-Z\-_.]{1,64}"
_INSTANT_S_MAX: Final = 253_402_214_400  # a day before the last datetime, so that it fits in every zone
_KEY: Final = "{schedule}/{scheduled_at}"
WINDOW_MS_MAX: Final = 1_440 * limits.MINUTE_MS  # botocore model scheduler.FlexibleTimeWindow: 1 to 1,440 minutes
SCHEDULED_TIME: Final = "<aws.scheduler.scheduled-time>"  # EventBridge Scheduler writes the planned time in its place
RETRIES_MAX: Final = 185  # API RetryPolicy, MaximumRetryAttempts: 0 to 185
AGE_MS_MIN: Final = limits.MINUTE_MS  # same, MaximumEventAgeInSeconds: 60 to 86,400
AGE_MS_MAX: Final = limits.DAY_MS


class ScheduleRetry(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """How long a tick that its queue refuses is retried; the ranges are EventBridge Scheduler's.

    Args:
        retries: 0 to 185. age: how long after the first try, 60 s to 24 h.
    """

    retries: int = 185
    age: Duration = "24h"

    @property
    def attempts(self) -> int:
        """The old name of `retries`; it will be removed in version 1.0."""
        warn_of_attempts(type(self).__name__)
        return self.retries


class Tick(Struct, frozen=True, kw_only=True):
    """One firing of a schedule, as its function receives it.

    Args:
        schedule: its name.
        nominal_at_ms: the planned instant, ms UTC: take the business date from it, not from when the function runs.
        run: the tick's key, for example `monthly-billing/2026-06-01T02:00:00Z`, which also names the run it begins.
        local: the same instant in the schedule's zone.
    """

    schedule: str
    nominal_at_ms: int
    run: str
    local: datetime


class TickMessage(Struct, frozen=True, kw_only=True):
    """A tick on the wire.

    Args:
        schedule: its name. scheduled_at: the planned time, `2026-06-01T02:00:00Z`.
    """

    schedule: str
    scheduled_at: str


class DeliveryPolicy(Struct, frozen=True, kw_only=True):
    """What happens to a tick that its queue refuses.

    Args:
        retries_max: 0 to 185. age_ms: how long it is retried, counted from its first try.
        dead_letter: the standard queue it then goes to; if None, it is dropped, and that is reported.
    """

    retries_max: int
    age_ms: int
    dead_letter: str | None


class Schedule(Struct, frozen=True, kw_only=True):
    """A declared schedule. Made by `App.schedule`; call it with a `Tick` to run its function in a test.

    Attributes:
        name: unique in the app. expression: as written.
        timing: when it fires. job: the job that its ticks are sent to.
        missed, missed_max: what happens to ticks whose time passed while no scheduler ran.
        delete_after: it is forgotten after its last tick (EventBridge's ActionAfterCompletion DELETE).
        undelivered: what happens to ticks that the queue refuses. dispatches: its function is a generator of messages.
        function: the declared one. owner: the team that is responsible for fixes.
    """

    name: str
    expression: str
    timing: Timing
    job: Job[TickMessage, Any]
    missed: Missed
    missed_max: int
    delete_after: bool
    undelivered: DeliveryPolicy
    dispatches: bool
    function: Callable[..., Any]
    owner: str | None

    def __call__(self, tick: Tick, ctx: Context | None = None) -> Any:
        """Call the declared function now, without guard or queue; for unit tests."""
        return self.function(tick, ctx) if positional(self.function) >= 2 else self.function(tick)

    @property
    def digest(self) -> str:
        """A digest of its times only; if it differs, they were changed."""
        times = self.timing
        return _digest([self.expression, times.zone, times.start_ms, times.end_ms, times.window_ms, times.dst])

    def outgoing(self, nominal_ms: int) -> Outgoing:
        """The message for the tick planned at that instant."""
        return self.outgoing_at(run_name(self.name, nominal_ms).rpartition("/")[2])

    def outgoing_at(self, scheduled_at: str) -> Outgoing:
        """The message for a tick.

        Args:
            scheduled_at: the planned time as text; or `SCHEDULED_TIME`, for a template that EventBridge Scheduler fills.
        """
        run = f"{self.name}/{scheduled_at}"
        body = encode(TickMessage(schedule=self.name, scheduled_at=scheduled_at))
        fifo = self.job.policy.fifo
        attributes = {JOB_ATTRIBUTE: Attribute(self.job.name), APP_ATTRIBUTE: Attribute(self.job.app)}
        if not self.dispatches:  # a dispatcher's run is made of the messages it sends, not its tick (runner/runs.py)
            attributes[RUN_ATTRIBUTE] = Attribute(run)
        record, fingerprint = RecordKey("", self.job.name, run), self.job.rules.payload.fingerprint(body)
        return Outgoing(
            record=record,
            fingerprint=fingerprint,
            entry=Entry(
                body=body.decode(),
                attributes=attributes,
                group=self.name if fifo else None,
                dedup_id=derived_dedup_id(record, fingerprint, attributes) if fifo else None,
                key=run,
            ),
            queue=self.job.policy.queue,
            unique=False,
        )

    def own(self, message: TickMessage) -> TickMessage:
        """A received tick of this schedule, with its time in onefold's form, so that one instant has one key.

        Raises:
            PayloadError: it is another schedule's, or its time cannot be read.
        """
        if message.schedule != self.name:
            raise errors.PayloadError(
                f"A tick of schedule {message.schedule!r:.80} arrived at the job of schedule {self.name}.",
                meaning="Run here, it would count as that schedule's run, and that schedule's function would not be called.",
                todo=f"Send it to that schedule's queue, or set its field `schedule` to {self.name}.",
            )
        run = run_name(self.name, _instant_ms(message))
        return TickMessage(schedule=self.name, scheduled_at=run.rpartition("/")[2])

    def tick(self, message: TickMessage | Tick) -> Tick:
        """The tick that a message describes.

        Raises:
            PayloadError: as for `own`.
        """
        if isinstance(message, Tick):
            return message
        own = self.own(message)
        nominal_ms = _instant_ms(own)
        return Tick(
            schedule=self.name,
            nominal_at_ms=nominal_ms,
            run=f"{self.name}/{own.scheduled_at}",
            local=datetime.fromtimestamp(nominal_ms / limits.SECOND_MS, zone_of(self.timing.zone)),
        )


def _instant_ms(message: TickMessage) -> int:
    try:
        at = datetime.fromisoformat(message.scheduled_at)
    except ValueError:
        at = None
    if at is not None and at.tzinfo is not None and 0 <= (at_s := int(at.timestamp())) < _INSTANT_S_MAX:
        return at_s * limits.SECOND_MS
    raise errors.PayloadError(
        f"scheduled_at={message.scheduled_at!r:.80} of schedule {message.schedule!r:.80} is not an instant.",
        todo="Write it as EventBridge Scheduler does, for example 2026-06-01T02:00:00Z.",
    )


def declare(runtime: Runtime, expression: str, **options: Any) -> Callable[[Callable[..., Any]], Schedule]:
    """What `App.schedule` does; see there for arguments and errors."""
    if callable(expression):
        raise errors.UsageError(
            f"@app.schedule on {getattr(expression, '__name__', expression)!s:.80} has no expression.",
            todo='Write @app.schedule("cron(0 3 1 * ? *)") or @app.schedule("rate(5 minutes)").',
        )
    given, registry = _Options(**options), runtime.registry
    window_ms = duration.to_ms(given.window, "window", most_ms=WINDOW_MS_MAX)
    if window_ms % limits.MINUTE_MS:
        raise errors.UsageError(
            f"window={given.window!r} is not a whole number of minutes.", todo="It may be 1m to 24h, or 0s."
        )
    timing = Timing(
        expression=parse(expression),
        zone=zone_name(given.tz),
        start_ms=None if given.start is None else duration.instant_ms(given.start, "start"),
        end_ms=None if given.end is None else duration.instant_ms(given.end, "end"),
        window_ms=window_ms,
        dst=given.dst,
    )
    _check_fires(expression, timing)
    if given.missed not in get_args(Missed):
        raise errors.UsageError(f"missed={given.missed!r} is not known.", todo="Use skip, last or all.")
    check_whole(given.missed_max, "missed_max", 1, MISSED_MAX)
    delivery_policy(given.retry, None)

    def declared(function: Any) -> Schedule:
        if not callable(function) or not (positional_names(function) or inspect.signature(function).parameters):
            raise errors.UsageError(
                f"{getattr(function, '__name__', function)!r:.80} takes no tick.",
                todo="Give it the Tick as its first parameter; a second one, if any, gets the Context.",
            )
        check_parameters(function, None, "tick")
        name: Any = given.name if given.name is not None else function.__name__
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            raise errors.UsageError(
                f"{name!r:.80} is not a valid name for a schedule.",
                todo=f"Use 1 to {NAME_CHARS_MAX} of the characters 0-9 A-Z a-z - _ and ., as for EventBridge Scheduler.",
            )
        if name in registry.schedules:
            raise errors.ConflictError(f"Schedule {name} is declared twice.", todo="Give one of them another name=.")
        queue: Any = _own_queue(registry) if given.queue is None else given.queue  # a wrong one is refused below
        group = "{schedule}" if isinstance(queue, Queue) and queue.settings.fifo else None

        handler = _handler_of(function, runtime, name, given.owner)
        job: Job[TickMessage, Any] = declare_job(
            runtime, queue, key=_KEY, name=name, group=group, timeout=given.timeout, retry=given.job_retry,
            owner=given.owner,
        )(handler)  # fmt: skip
        job.dispatches = _dispatches(function)
        job.ticks = not job.dispatches
        dead_letter = (_own_queue(registry) if queue.settings.fifo else queue).settings.dead_letter
        made = registry.schedules[name] = Schedule(
            name=name,
            expression=expression,
            timing=timing,
            job=job,
            missed=given.missed,
            missed_max=given.missed_max,
            delete_after=given.delete_after,
            undelivered=delivery_policy(given.retry, dead_letter if given.dead_letter else None),
            dispatches=job.dispatches, function=function, owner=given.owner,
        )  # fmt: skip
        job.normal = made.own
        return made

    return declared


def _check_fires(expression: str, timing: Timing) -> None:
    """Refuse what can never fire. A time in the past is not a mistake: an app outlives the dates in it."""
    if isinstance(timing.expression, CronExpression) and next_after(timing, -limits.DAY_MS, anchor_ms=0) is None:
        bounds = " between its start and its end" if timing.start_ms is not None or timing.end_ms is not None else ""
        skips = timing.zone != "UTC" and timing.dst == "eventbridge"
        raise errors.UsageError(
            f"{expression} never fires.",
            meaning=f"No time from 1970 to 2199 matches it{bounds}"
            + (f", or the clocks of {timing.zone} skip it." if skips else "."),
            todo="Fix its day, month, weekday or year; `onefold calendar --expression ...` shows when an expression fires.",
        )


def _own_queue(registry: Registry) -> Queue:
    """The queue for ticks of schedules that name none, and for dead letters of schedules that use a FIFO queue."""
    name = f"{registry.name}-schedules"
    return registry.queues.get(name) or registry.add_queue(queue_of(name))


class _Options(Struct, frozen=True, kw_only=True):
    """The options of `App.schedule`, as written."""

    tz: str | tzinfo
    name: str | None
    queue: Queue | None
    missed: Missed
    missed_max: Any
    dst: Any
    window: Duration
    start: datetime | None
    end: datetime | None
    delete_after: bool
    retry: ScheduleRetry
    dead_letter: bool
    timeout: Duration
    job_retry: Retry | None
    owner: str | None


def delivery_policy(retry: ScheduleRetry, dead_letter: str | None) -> DeliveryPolicy:
    """The retry policy of a schedule, checked.

    Raises:
        UsageError: a number that EventBridge Scheduler would not accept.
    """
    check_option(retry, ScheduleRetry, "retry", "retries", RETRIES_MAX)
    retries: Any = retry.retries
    check_whole(retries, "retry.retries", 0, RETRIES_MAX)
    age_ms = duration.to_ms(retry.age, "retry.age", least_ms=AGE_MS_MIN, most_ms=AGE_MS_MAX)
    return DeliveryPolicy(retries_max=retries, age_ms=age_ms, dead_letter=dead_letter)


def _handler_of(function: Callable[..., Any], runtime: Runtime, name: str, owner: str | None) -> Callable[..., Any]:
    """The handler for a tick function's messages: a coroutine function if that is one; for a generator, a dispatcher."""
    inner = function
    if _dispatches(function):
        inner = as_handler(function, runtime, payload=Tick, owner=owner)
    takes_context = positional(inner) >= 2

    def arguments(message: TickMessage, ctx: Context) -> tuple[Any, ...]:
        schedule = runtime.registry.schedules[name]
        tick = schedule.tick(message)
        if not schedule.dispatches:  # EventBridge Scheduler's tick begins its run here; a dispatcher begins its own
            now_ms = runtime.now_ms()
            runs.begin_followed(
                runtime, runs.of_tick(tick.run, name, tick.nominal_at_ms, now_ms, dispatches=False, owner=owner)
            )
        return (tick, ctx) if takes_context else (tick,)

    if inspect.iscoroutinefunction(inner):

        async def arrive_in_task(message: TickMessage, ctx: Context) -> Any:
            from asyncio import to_thread  # 36 ms to import, paid only by coroutines

            return await inner(*await to_thread(arguments, message, ctx))

        return _named_as(function, arrive_in_task)

    def arrive(message: TickMessage, ctx: Context) -> Any:
        return inner(*arguments(message, ctx))

    return _named_as(function, arrive)


def _named_as(function: Callable[..., Any], handler: Callable[..., Any]) -> Callable[..., Any]:
    """Give a handler its function's name and docstring.

    `functools.wraps` would also copy the signature, but the handler's own counts, because it takes the message.
    """
    handler.__name__, handler.__qualname__ = function.__name__, function.__qualname__
    handler.__module__, handler.__doc__ = function.__module__, function.__doc__
    handler.__annotations__ = {
        "message": TickMessage,
        "ctx": Context,
    }  # types, not names to resolve: this halves the time to declare a schedule
    return handler


def _digest(parts: Sequence[object]) -> str:
    return digest(json.encode(parts))


def _dispatches(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
