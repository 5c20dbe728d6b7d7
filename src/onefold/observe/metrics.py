"""The metrics that onefold has, in one table, and `Meter`: the sink that counts them from events, in memory.

`METRICS` is the only place where a metric is named: exporters, the page of the documentation and the tests read it. Counters
and histograms are counted by a `Meter` from a worker's events; gauges are readings of the engine (`readings.py`), taken
on request. Names follow OpenTelemetry's semantic conventions where these have one (messaging, v1.44, development).
Never here: a format, a server, thresholds. Invariants: the only labels are `LABELS`, so that a key or a body can never
be one; a time that is negative because clocks differ counts as 0, and such times are counted.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from onefold import limits
from onefold.contracts.ledger import counts_of
from onefold.observe.log_fields import failure_class
from onefold.runtime.events import Event

if TYPE_CHECKING:
    from onefold.observe.readings import Readings

Layer = Literal["trigger", "transport", "business"]
Instrument = Literal["counter", "histogram", "gauge"]
Labels = tuple[tuple[str, str], ...]

LABELS: Final = ("job", "queue", "outcome", "failure_class", "state", "operation", "error")
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
"""Bounds of histograms of times: the conventions' own, up to 15 minutes because jobs last longer than calls."""
OUTCOMES_MAX: Final = 50  # our limit: counters of one job that get their own series
RECEIVES: Final = (1, 2, 3, 5, 10, 100)


class Metric(Struct, frozen=True, kw_only=True):
    """One metric.

    Args:
        name: its name in OpenTelemetry. prometheus: its name there. emf, emf_unit: name and unit in CloudWatch's
            embedded metric format, where outcome and state are not dimensions; they replace `*` in the name.
        instrument: how it is counted. unit: from UCUM, as OpenTelemetry writes it. labels: which of `LABELS` it has.
        layer: what it is about: what was triggered, what is being carried, or what really happened.
        text: one sentence for people.
        bounds: a histogram's.
    """

    name: str
    instrument: Instrument
    unit: str
    labels: tuple[str, ...]
    layer: Layer
    prometheus: str
    emf: str
    emf_unit: str
    text: str
    bounds: tuple[float, ...] = ()


def _metric(row: str, text: str, bounds: tuple[float, ...] = ()) -> Metric:
    name, instrument, unit, labels, layer, prometheus, emf, emf_unit = row.split()
    return Metric(
        name=name, instrument=instrument, unit=unit, labels=tuple(labels.split(",")) if labels != "-" else (),  # type: ignore[arg-type]
        layer=layer, prometheus=prometheus, emf=emf, emf_unit=emf_unit, text=text, bounds=bounds,  # type: ignore[arg-type]
    )  # fmt: skip


METRICS: Final[Mapping[str, Metric]] = {
    one.name: one
    for one in (
        _metric(
            "onefold.schedule.ticks counter {tick} job,outcome trigger onefold_schedule_ticks_total Ticks* Count",
            "Ticks of schedules, by what happened to them: sent, missed, refused, dropped. `job` is the schedule.",
        ),
        _metric(
            "onefold.schedule.lag histogram s job trigger onefold_schedule_lag_seconds TickLag Milliseconds",
            "The time from the instant for which a tick was planned until it was sent.",
            SECONDS,
        ),
        _metric(
            "onefold.queue.depth gauge {message} queue,state transport onefold_queue_messages Queue* Count",
            "Messages of a queue: visible, in_flight, delayed, and those in its dead-letter (dead) and held queues.",
        ),
        _metric(
            "onefold.queue.oldest.age gauge s queue transport onefold_queue_oldest_age_seconds OldestAge Seconds",
            "Age of the oldest message that is not delayed; 0 if there is none. For SQS, only CloudWatch has it.",
        ),
        _metric(
            "onefold.queue.companion.age gauge s queue,state transport onefold_queue_companion_age_seconds "
            "OldestAge* Seconds",
            "Age of the oldest message in the queue's dead-letter (dead) and held queues; 0 if there is none.",
        ),
        _metric(
            "onefold.queue.in_flight.ratio gauge 1 queue transport onefold_queue_in_flight_ratio InFlightRatio None",
            "The share of the queue's cap of messages in flight that is used.",
        ),
        _metric(
            "onefold.messages.settled counter {message} job,queue,outcome,failure_class transport "
            "onefold_messages_settled_total Messages* Count",
            "Deliveries that were settled, by outcome and, where they failed, by the kind of failure.",
        ),
        _metric(
            "onefold.message.receives histogram {receive} job,queue transport onefold_message_receives ReceiveCount Count",
            "How often a message had been received when it was settled.",
            RECEIVES,
        ),
        _metric(
            "onefold.queue.wait histogram s job,queue transport onefold_queue_wait_seconds Wait Milliseconds",
            "From the send of a message until its handler was first called; a requested delay is included.",
            SECONDS,
        ),
        _metric(
            "messaging.process.duration histogram s job,queue,outcome transport messaging_process_duration_seconds "
            "Duration Milliseconds",
            "How long the handler ran.",
            SECONDS,
        ),
        _metric(
            "messaging.client.operation.duration histogram s operation,queue,error transport "
            "messaging_client_operation_duration_seconds OperationDuration Seconds",
            "How long a send, a receive that brought messages, or a settlement took. Recorded only with OpenTelemetry.",
            SECONDS,
        ),
        _metric(
            "messaging.client.sent.messages counter {message} operation,queue,error transport "
            "messaging_client_sent_messages_total Sent Count",
            "Messages that were sent. Recorded only with OpenTelemetry.",
        ),
        _metric(
            "messaging.client.consumed.messages counter {message} operation,queue,error transport "
            "messaging_client_consumed_messages_total Received Count",
            "Messages that were received. Recorded only with OpenTelemetry.",
        ),
        _metric(
            "onefold.lease.lost counter {run} job,queue transport onefold_lease_lost_total LeaseLost Count",
            "Runs that lost their lease; nothing was recorded for them.",
        ),
        _metric(
            "onefold.completion.failed counter {run} job,queue transport onefold_completion_failed_total "
            "CompletionFailed Count",
            "Runs whose effect happened and whose record could not be written. Never ignore one.",
        ),
        _metric(
            "onefold.takeovers counter {run} job,queue transport onefold_takeovers_total Takeovers Count",
            "Runs that took over an operation whose earlier run ended without reporting an outcome.",
        ),
        _metric(
            "onefold.breaker.open gauge 1 job transport onefold_breaker_open Paused None",
            "1 while the job is paused by its circuit breaker, else 0.",
        ),
        _metric(
            "onefold.engine.failing.age gauge s - transport onefold_engine_failing_age_seconds EngineFailingAge Seconds",
            "For how long every call of the engine by this worker has failed: an outage, or a login that nobody renews. "
            "0 while it answers.",
        ),
        _metric(
            "onefold.worker.progress.age gauge s - transport onefold_worker_progress_age_seconds ProgressAge Seconds",
            "Since this worker last made progress, or had nothing to do.",
        ),
        _metric(
            "onefold.events.lost counter {event} - transport onefold_events_lost_total EventsLost Count",
            "Events for which a sink of this worker raised, or was too slow. The jobs went on.",
        ),
        _metric(
            "onefold.clock.negative counter {time} - transport onefold_clock_negative_total NegativeTimes Count",
            "Waits and lags that clocks of different machines made negative; they were counted as 0.",
        ),
        _metric(
            "onefold.run.items gauge {item} job,state business onefold_run_items * Count",
            "Operations of the latest run of a schedule or map (`job`): expected, completed, failed, dead, held, "
            "unfinished; and missing, duplicate, where it was reconciled.",
        ),
        _metric(
            "onefold.runs gauge {run} job,state business onefold_runs Runs* Count",
            "Runs of a schedule or map (`job`), the latest and open ones: stopped before their end, and disagrees, in "
            "which a reconciliation found differences.",
        ),
        _metric(
            "onefold.duplicates.answered counter {message} job,queue business onefold_duplicates_answered_total "
            "DuplicatesAnswered Count",
            "Deliveries that were answered from the record; the handler did not run.",
        ),
        _metric(
            "onefold.outcomes counter {outcome} job,queue,outcome business onefold_outcomes_total Counted.* Count",
            "What handlers counted with ctx.count; `outcome` is the counter. `onefold counts` has the exact sums.",
        ),
        _metric(
            "onefold.day.items gauge {item} job,state business onefold_day_items Day* Count",
            "What happened to a job's operations since midnight UTC: completed, duplicate, failed, dead, held; of a "
            "schedule or map (`job`) the operations of today's runs, with expected and, where reconciled, missing.",
        ),
        _metric(
            "onefold.reconcile.age gauge s job business onefold_reconcile_age_seconds ReconcileAge Seconds",
            "Since a reconciliation of the schedule or map (`job`) last found everything as it should be.",
        ),
    )
}

OUTCOMES: Final[Mapping[str, str]] = {
    "completed": "completed", "duplicate": "duplicate", "discarded": "completed",
    "retry": "failed", "dependency-down": "failed", "failed": "failed", "unsettled": "failed",
    "held": "held", "released": "released", "running-elsewhere": "released", "lease-lost": "lease_lost",
    "dead-letter": "dead", "quarantine": "dead", "conflict": "dead", "malformed": "dead", "untrusted": "dead",
    "no-job": "dead", "group-stopped": "dead", "completion-failed": "unknown",
}  # fmt: skip
"""Events that report how a delivery was settled, with the outcome of each."""
_TICKS: Final = {"ticked": "sent", "ticks-missed": "missed", "tick-refused": "refused", "tick-dropped": "dropped"}
_COUNTED: Final = {
    "lease-lost": "onefold.lease.lost",
    "completion-failed": "onefold.completion.failed",
    "takeover": "onefold.takeovers",
    "duplicate": "onefold.duplicates.answered",
}


class Histogram:
    """Counts of values: how many were at most each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Sample(Struct, frozen=True):
    """One value of one metric; a histogram's is a copy of it."""

    metric: Metric
    labels: Labels
    value: float | Histogram


class Meter:
    """A sink that counts `METRICS` from events. It keeps one number for each combination of labels, and never waits."""

    is_quick: Final = True  # it never waits

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], Histogram] = {}
        self._outcomes: dict[Labels, set[str]] = {}

    def emit(self, event: Event) -> None:
        """Count one event."""
        with self._lock:
            if (outcome := _TICKS.get(event.name)) is not None:
                self._tick(event, outcome)
            job = event.key.job if event.key is not None else ""  # a message without a key may name any job
            where: Labels = (("job", job), ("queue", event.queue or ""))
            if (name := _COUNTED.get(event.name)) is not None:
                self._count(name, where)
            if event.queue is not None and (outcome := OUTCOMES.get(event.name)) is not None:
                self._settled(event, where, outcome)

    def _tick(self, event: Event, outcome: str) -> None:
        schedule = str(event.detail.get("schedule") or "")
        count = event.detail.get("count", 1)
        self._count(
            "onefold.schedule.ticks",
            (("job", schedule), ("outcome", outcome)),
            count if isinstance(count, int) and outcome == "missed" else 1,
        )
        late_ms = event.detail.get("late_ms")
        if isinstance(late_ms, int):
            self._observe("onefold.schedule.lag", (("job", schedule),), late_ms)

    def _settled(self, event: Event, where: Labels, outcome: str) -> None:
        failure = failure_class(event) or ""
        self._count("onefold.messages.settled", (*where, ("outcome", outcome), ("failure_class", failure)))
        if event.receive_count is not None and outcome != "released":
            self._record("onefold.message.receives", where, event.receive_count)
        if event.name == "completed":
            for name, count in counts_of(event.detail).items():
                self._count_outcome(where, name, count)
        if event.took_ms is not None:
            self._observe("messaging.process.duration", (*where, ("outcome", outcome)), event.took_ms)
        if event.wait_ms is not None:
            self._observe("onefold.queue.wait", where, event.wait_ms)

    def _count(self, name: str, labels: Labels, by: float = 1) -> None:
        series = name, labels
        self._counters[series] = self._counters.get(series, 0) + by

    def _observe(self, name: str, labels: Labels, value_ms: int) -> None:
        if value_ms < 0:
            self._count("onefold.clock.negative", ())
        self._record(name, labels, max(value_ms, 0) / limits.SECOND_MS)

    def _record(self, name: str, labels: Labels, value: float) -> None:
        found = self._histograms.get((name, labels))
        if found is None:
            found = self._histograms[name, labels] = Histogram(METRICS[name].bounds)
        found.add(value)

    def _count_outcome(self, where: Labels, name: str, count: int) -> None:
        """A counter of the user's: the first `OUTCOMES_MAX` of a job by name, all others as one."""
        known = self._outcomes.setdefault(where, set())
        if name not in known:
            name = name if len(known) < OUTCOMES_MAX else "other"
            known.add(name)
        self._count("onefold.outcomes", (*where, ("outcome", name)), count)

    def samples(self) -> list[Sample]:
        """Everything counted so far. Can be called from any thread."""
        with self._lock:
            found = [Sample(METRICS[name], labels, value) for (name, labels), value in self._counters.items()]
            for (name, labels), counted in self._histograms.items():
                copy = Histogram(counted.bounds)
                copy.counts, copy.sum = list(counted.counts), counted.sum
                found.append(Sample(METRICS[name], labels, copy))
            return found


def gauge(name: str, value: float, **labels: str) -> Sample:
    """One value of a metric in the table."""
    return Sample(METRICS[name], tuple(labels.items()), float(value))


def gauges(readings: Readings) -> Iterator[Sample]:
    """The gauges of one reading of the engine."""
    for queue in readings.queues:
        for state in ("visible", "in_flight", "delayed", "dead", "held"):
            yield gauge("onefold.queue.depth", getattr(queue, state), queue=queue.queue, state=state)
        if queue.oldest_age_ms is not None or not queue.visible + queue.in_flight:
            age_s = (queue.oldest_age_ms or 0) / limits.SECOND_MS
            yield gauge("onefold.queue.oldest.age", age_s, queue=queue.queue)
        yield gauge("onefold.queue.in_flight.ratio", queue.in_flight_ratio, queue=queue.queue)
    for job in readings.jobs:
        yield gauge("onefold.breaker.open", job.paused_until_ms is not None, job=job.job)
    yield from _of_runs(readings)


def _of_runs(readings: Readings) -> Iterator[Sample]:
    latest = {run.title: run for run in sorted(readings.runs, key=lambda run: run.started_at_ms)}
    for title, run in latest.items():
        for state in ("expected", "completed", "failed", "dead", "held", "unfinished"):
            yield gauge("onefold.run.items", getattr(run, state), job=title, state=state)
        for state, count in (("missing", run.missing), ("duplicate", run.duplicates)):
            if count is not None:
                yield gauge("onefold.run.items", count, job=title, state=state)
    yield from _alarming(readings)
    for day in readings.days:
        for state, count in day.counts.items():
            yield gauge("onefold.day.items", count, job=day.job, state=state)
    for one in readings.reconciliations:
        if one.good_age_ms is not None:
            yield gauge("onefold.reconcile.age", one.good_age_ms / limits.SECOND_MS, job=one.title)


def _alarming(readings: Readings) -> Iterator[Sample]:
    """The gauges that only alarms use: ages in dead-letter and held queues, and runs that are not as they should be."""
    for queue in readings.queues:
        for state, oldest_ms, count in (
            ("dead", queue.dead_oldest_age_ms, queue.dead),
            ("held", queue.held_oldest_age_ms, queue.held),
        ):
            if oldest_ms is not None or not count:
                age_s = (oldest_ms or 0) / limits.SECOND_MS
                yield gauge("onefold.queue.companion.age", age_s, queue=queue.queue, state=state)
    wrong: dict[tuple[str, str], int] = {}
    for run in readings.runs:
        disagrees = run.reconciled_at_ms is not None and not run.agrees
        for state, found in (("stopped", run.failure is not None), ("disagrees", disagrees)):
            wrong[run.title, state] = wrong.get((run.title, state), 0) + found
    for (title, state), count in wrong.items():
        yield gauge("onefold.runs", count, job=title, state=state)
