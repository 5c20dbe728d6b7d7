"""Checks, some time after a run, that everything the run should have made exists exactly once.

`App.reconcile` declares such a check, and it runs as an ordinary job.

    @app.reconcile(monthly_billing, after="30m")
    def statements_exist(check: Reconciliation) -> dict[str, int]:
        month = f"{check.local:%Y-%m}"
        return dict(db.execute("SELECT customer, count(*) FROM statements WHERE month = ? GROUP BY 1", [month]))

There are two checks. onefold's own compares every dispatched key with its record (`survey.py`). The user's counts the
business rows themselves, because a record proves that a handler returned, not that the row it wrote exists exactly
once. The outcome is stored in State (`reconcile/<run>`) and in the ledger, and emitted as an event: `reconciled`, or
`reconcile-failed`, which raises an alarm.

The message that starts the check is sent when the run begins, with a delay of `after`, and its key is the run's name:
so the check happens once, on any worker, even if the run failed. If a queue cannot delay a message for that long (SQS:
15 minutes), the message is delivered earlier and sent on again. Work that is merely late is checked again, a few times.
Never here: repairs (`admin/reconcile.py`), which runs exist.
Invariant: a check changes nothing; it only stores its outcome.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from onefold import duration, errors, limits
from onefold.contracts.engine import Engine
from onefold.contracts.store import RecordKey
from onefold.duration import Duration
from onefold.options import Queue
from onefold.reconcile import findings
from onefold.reconcile.counts import Own, compare
from onefold.reconcile.findings import ReconcileOutcome
from onefold.reconcile.survey import Survey, SurveyedOperation, dispatched_pages
from onefold.record.keys import takes
from onefold.runner import runs
from onefold.runner.declaring import declare_job, queue_of
from onefold.runner.handlers import Job
from onefold.runtime.events import Sinks
from onefold.runtime.outgoing import Outgoing
from onefold.runtime.runtime import Runtime
from onefold.zones import zone_of

F = TypeVar("F", bound=Callable[..., Any])

QUEUE: Final = "onefold-reconcile"  # declared if a reconciliation names no queue
LOOKS_MAX: Final = 4  # our limit: a late run is checked again, `after` later each time
_TIMEOUT: Final = (
    "10m"  # for one check: some 10 million operations on an embedded engine; a Lambda function has 15 minutes
)
_AFTER_MS_MAX: Final = 14 * limits.DAY_MS  # our limit: a queue does not keep a message for longer either


class ReconcileMessage(Struct, frozen=True, kw_only=True):
    """The payload of a reconciliation's message.

    Args:
        run: the run's full name.
        look: the number of the check, 1 or more; 0 for a manual one.
        at_ms: when the check is due; 0: `after` the run's start. A first message has 0, so that a resend sends an equal
            one.
        hop: how often it was sent on because the queue cannot delay it for long enough.
    """

    run: str
    look: int = 1
    at_ms: int = 0
    hop: int = 0


class Reconciliation:
    """What a user's own check is called with.

    Attributes:
        run: the run's full name. schedule: the name of the run's schedule or map.
        local: its planned time in the schedule's zone, as `Tick.local`; None if no schedule started the run.
        dispatched: how many operations the run's ledger names; done: how many of them have a finished record.
        look: the number of this check, 1 or more; 0 for a manual one.
    """

    def __init__(
        self, engine: Engine, run: str, *, schedule: str, local: datetime | None, look: int, dispatched: int, done: int
    ) -> None:
        self.run = run
        self.schedule = schedule
        self.local = local
        self.dispatched = dispatched
        self.done = done
        self.look = look
        self._engine = engine

    def pages(self) -> Iterator[list[str]]:
        """The dispatched keys, at most 1,000 at a time and in the order of dispatch; `tenant/key` with a tenant.

        A key that was dispatched twice can be returned twice.
        """
        for rows in dispatched_pages(self._engine.ledger, self.run):
            yield [name_of(row.key) for row in rows if row.key is not None]


def name_of(key: RecordKey) -> str:
    """The name of an operation in a user's own check: its key, after its tenant if it has one."""
    return f"{key.scope}/{key.key}" if key.scope else key.key


# -- checking --------------------------------------------------------------------------------------------------------


class ReconcilePass:
    """One check of a run, in two steps, so that the user's own check can be awaited between them.

    Args:
        engine: an open engine. jobs: the declared jobs, for their policies.
        due: the run and the number of the check. name: the name of the reconciliation.
        now_ms: the time of the check. zones: returns the zone of a schedule, by its name.
    """

    def __init__(
        self, engine: Engine, jobs: Mapping[str, Job[Any, Any]], due: ReconcileMessage, *, name: str, now_ms: int,
        zones: Callable[[str], str] = lambda _: "UTC",
    ) -> None:  # fmt: skip
        self._engine = engine
        self._zones = zones
        self._due = due
        self._name = name
        self._now_ms = now_ms
        self._survey = Survey(engine, due.run, now_ms, {job.name: job.policy for job in jobs.values()})
        self._items: list[SurveyedOperation] = []
        self._concerned = 0

    def survey(self) -> Reconciliation:
        """Make onefold's own check; returns what the user's check is called with."""
        for item in self._survey.walk():
            self._concerned += 1
            if len(self._items) < findings.EXAMPLES_MAX:
                self._items.append(item)
        stored = runs.read(self._engine.state, self._due.run)
        title = stored.run.title if stored is not None else self._due.run.partition("/")[0]
        nominal_at_ms = stored.run.nominal_at_ms if stored is not None else None
        return Reconciliation(
            self._engine,
            self._due.run,
            schedule=title,
            local=_local(nominal_at_ms, self._zones(title)) if nominal_at_ms is not None else None,
            look=self._due.look,
            dispatched=self._survey.dispatched,
            done=self._survey.counts.get("done", 0),
        )

    def outcome(self, own: Own | None) -> ReconcileOutcome:
        """The outcome of both checks; `own` is None if the user has none."""
        stored = runs.read(self._engine.state, self._due.run)
        run = stored.run if stored is not None else None
        return findings.assemble(
            self._survey, self._items, run, own, concerned=self._concerned, name=self._name, look=self._due.look,
            now_ms=self._now_ms,
        )  # fmt: skip


def _local(at_ms: int, zone: str) -> datetime:
    return datetime.fromtimestamp(at_ms / limits.SECOND_MS, tz=UTC).astimezone(zone_of(zone))


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


# -- declaring -------------------------------------------------------------------------------------------------------


class Reconciler:
    """A declared reconciliation; as a decorator it registers the user's own check.

    Attributes:
        of: the name of the schedule or map, or the full name of the run, that it checks.
        name: the name of its job. after_ms: how long after a run's start it checks.
        function: the user's own check; None if there is only onefold's.
    """

    def __init__(self, runtime: Runtime, of: str, *, name: str, after_ms: int) -> None:
        self.of = of
        self.name = name
        self.after_ms = after_ms
        self.function: Callable[..., Any] | None = None
        self._runtime = runtime
        self._job: Job[ReconcileMessage, Any] | None = None

    def __repr__(self) -> str:
        return f"<onefold reconciliation {self.name} of {self.of}>"

    def __call__(self, function: F) -> F:
        """Register the user's own check, a function of one `Reconciliation`. Returns it unchanged.

        Raises:
            ConflictError: it has a check already. UsageError: the function is an async generator, or
                cannot be called with the Reconciliation alone.
        """
        if self.function is not None:
            raise errors.ConflictError(
                f"Reconciliation {self.name} has a check already.",
                todo="Declare another one with app.reconcile(..., name=...).",
            )
        if inspect.isasyncgenfunction(function):
            raise errors.UsageError(
                f"The check of {self.name} is an async generator.",
                todo="Let it return a mapping, or be a plain generator of Counted.",
            )
        if not takes(function, 1):
            raise errors.UsageError(
                f"The check of {self.name} cannot be called with one argument.",
                todo="Give it one parameter without a default, the onefold.reconcile.Reconciliation.",
            )
        self.function = function
        return function

    def is_for(self, run: str, title: str) -> bool:
        """Whether it checks this run, which is a run of the schedule or map with that title."""
        return self.of in (run, title)

    def follow_up(self, run: str, started_at_ms: int) -> Outgoing:
        """The message that is sent when a run begins."""
        assert self._job is not None
        return self._job.outgoing(ReconcileMessage(run=run), run_at=self._as_late(started_at_ms + self.after_ms))

    def _as_late(self, at_ms: int) -> datetime:
        """The given time, or the latest time before it that the queue's longest delay allows."""
        assert self._job is not None
        queue = self._runtime.engine.queues.open(self._job.policy.queue)
        if not queue.capabilities.run_at:
            at_ms = min(at_ms, self._runtime.now_ms() + limits.DELAY_MS_MAX)
        return datetime.fromtimestamp(at_ms / limits.SECOND_MS, tz=UTC)

    def reconcile(self, due: ReconcileMessage, *, actor: str | None = None) -> ReconcileOutcome:
        """Check a run and store the outcome.

        Args:
            due: the run and the number of the check.
            actor: who checks, as named in the ledger; by default this process.

        Raises:
            Exception: whatever the user's own check raised; in that case nothing is stored.
        """
        runtime, engine = self._runtime, self._runtime.engine
        jobs = runtime.registry.jobs
        look = ReconcilePass(engine, jobs, due, name=self.name, now_ms=runtime.now_ms(), zones=self._zone)
        check = look.survey()
        own = compare(self._answer(check), check.pages) if self.function is not None else None
        outcome = look.outcome(own)
        findings.record(engine, outcome, actor=actor or runtime.owner, sinks=runtime.sinks or Sinks(runtime.app_sinks))
        return outcome

    def _zone(self, title: str) -> str:
        schedule = self._runtime.registry.schedules.get(title)
        return schedule.timing.zone if schedule is not None else "UTC"

    def _answer(self, check: Reconciliation) -> Any:
        assert self.function is not None
        answer = self.function(check)
        if not inspect.isawaitable(answer):
            return answer
        import asyncio  # takes 36 ms to import, which only coroutines need

        return asyncio.run(_awaited(answer))

    # -- as a job ----------------------------------------------------------------------------------------------------

    def declare(self, queue: Queue, owner: str | None) -> None:
        """Declare its job."""
        if queue.settings.fifo:
            raise errors.UsageError(
                f"{self.name} is on the FIFO queue {queue.name}.",
                meaning="A check waits until it is due, and would hold up the messages behind it.",
                todo="Give it a standard queue, or none: then it gets its own.",
            )
        job = declare_job(
            self._runtime, queue, key=_key_of, name=self.name, owner=owner, effect="repeatable", timeout=_TIMEOUT
        )
        self._job = job(self._run)

    def _run(self, due: ReconcileMessage) -> dict[str, Any]:
        """The handler.

        Raises:
            PayloadError: this reconciliation does not check that run; nothing is stored.
        """
        stored = runs.read(self._runtime.engine.state, due.run)
        title = stored.run.title if stored is not None else due.run.partition("/")[0]
        known = stored is not None or title in self._runtime.registry.schedules  # a map's run may have any name
        if known and not self.is_for(due.run, title):
            raise errors.PayloadError(
                f"The message asks {self.name} to check {due.run!r:.100}, but it is for runs of {self.of}.",
                meaning="Its result would replace what that run's own reconciliation finds.",
                todo="Run `onefold reconcile` on that run to check it now.",
            )
        at_ms = self._due_ms(due)
        if self._runtime.now_ms() < at_ms:
            self._send(replace(due, at_ms=at_ms, hop=due.hop + 1), at_ms)
            return {"verdict": "not yet"}
        outcome = self.reconcile(due)
        self._check_again(outcome)
        return summary_of(outcome)

    def _due_ms(self, due: ReconcileMessage) -> int:
        if due.at_ms:
            return due.at_ms
        stored = runs.read(self._runtime.engine.state, due.run)
        return stored.run.started_at_ms + self.after_ms if stored is not None else 0

    def _send(self, due: ReconcileMessage, at_ms: int) -> None:
        """Send another message from the handler; it is sent when the record of this run is written."""
        assert self._job is not None
        self._job.send(due, run_at=self._as_late(at_ms))

    def _check_again(self, outcome: ReconcileOutcome) -> None:
        """Check work that is merely late once more later, at most `LOOKS_MAX` times in all."""
        if outcome.verdict == "late" and outcome.look < LOOKS_MAX:
            at_ms = outcome.at_ms + self.after_ms
            self._send(ReconcileMessage(run=outcome.run, look=outcome.look + 1, at_ms=at_ms), at_ms)


def declare(
    runtime: Runtime, of: object, *, after: Duration, name: str | None, queue: Queue | None, owner: str | None
) -> Reconciler:
    """See `App.reconcile`."""
    title = of if isinstance(of, str) else getattr(of, "name", None)
    if not isinstance(title, str) or not title:
        raise errors.UsageError(
            f"{of!r:.100} is neither a schedule nor a map run, nor the name of one.",
            todo="Pass what @app.schedule or @app.map returned, or its name.",
        )
    after_ms = duration.to_ms(after, "after", least_ms=limits.SECOND_MS, most_ms=_AFTER_MS_MAX)
    reconciler = Reconciler(runtime, title, name=name or f"reconcile-{title}", after_ms=after_ms)
    registry = runtime.registry
    if reconciler.name in registry.reconcilers:
        raise errors.ConflictError(
            f"Reconciliation {reconciler.name} is declared twice.", todo="Give one of them another name=."
        )
    reconciler.declare(queue or registry.queues.get(QUEUE) or registry.add_queue(queue_of(QUEUE)), owner)
    registry.reconcilers[reconciler.name] = reconciler
    return reconciler


def _key_of(due: ReconcileMessage) -> str:
    look = due.run if due.look == 1 else f"{due.run}#{due.look}"  # manual checks send no message
    return f"{look}+{due.hop}" if due.hop else look


def summary_of(outcome: ReconcileOutcome) -> dict[str, Any]:
    """The result that its record keeps."""
    return {"verdict": outcome.verdict, "dispatched": outcome.dispatched, "done": outcome.done}
