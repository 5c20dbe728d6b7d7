"""The alarms, in one table: what is wrong, from which value, how urgent it is, what it means and what to do first.

`ALARMS` is the only place where an alarm is named. The evaluation on an embedded engine (`alarm_samples.py`,
`incidents.py`), the rules for Prometheus (`alarm_rules.py`), CloudWatch's alarms (`deploy/alarms.py`), the page of the
documentation and the tests all read it. Numbers come from the app itself: a queue's visibility and retention, a job's
timeout, a schedule's times, a reconciliation's `after`.
Never here: reading an engine, sending. Invariants: an alarm begins at one value and ends at another, or its condition
must hold for a time first, so that a noisy value does not make it come and go; a name that was released stays.

Sources of thresholds: CloudWatch user guide, "Recommended alarms"; SQS developer guide, "Available CloudWatch metrics" and
quotas. Our own are marked as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from msgspec import Struct

from onefold import limits

Severity = Literal["page", "ticket", "info"]
Side = Literal["embedded", "cloudwatch", "prometheus"]
Subject = Literal["queue", "job", "schedule", "runs", "function", "group", "map", "rule", "table", "worker"]

MINUTE_MS: Final = limits.MINUTE_MS
AGAIN_MS: Final = 30 * MINUTE_MS  # reports that one alarm begins or goes on are at least this far apart
AGAIN_EVERY_MS: Final[Mapping[Severity, int | None]] = {"page": AGAIN_MS, "ticket": limits.DAY_MS, "info": None}
CLEAR_MS: Final = 5 * MINUTE_MS  # our choice: how long a value must be good before the alarm ends
EVENT_MS: Final = 15 * MINUTE_MS  # our choice: how long an event counts
HOUR_MS: Final = limits.HOUR_MS
DRAIN_PARTS: Final = 2  # a backlog is too large if working it off takes longer than half the retention
STALLED_MS: Final = 30 * MINUTE_MS
IN_FLIGHT_RATIO: Final = 0.8  # of 120,000: 96,000
TICK_LATE_MS: Final = 15 * MINUTE_MS  # our choice: a tick that is this late counts as missing
LEASES_LOST_MAX: Final = 3  # in an hour; if there are more, somebody is paged
REFUSED_MIN: Final = 3  # ticks that their queue did not accept, in 15 minutes
RECEIVES: Final = 3  # receives of the 99th percentile of messages
ERRORS_PERCENT: Final = 1
UNREACHABLE_MS: Final = 2 * MINUTE_MS  # our choice: a failover is over by then
FAILING_RATIO: Final = 0.5  # share of the invocations
DURATION_PERCENT: Final = 80  # share of the timeout
CONCURRENCY_PERCENT: Final = 80  # share of the mapping's maximum concurrency
BAND: Final = 0.8  # a high value ends its alarm when it has fallen to this share of its threshold


class Alarm(Struct, frozen=True, kw_only=True):
    """One alarm.

    Args:
        name: stable; part of an incident's name. severity: `page` somebody, open a `ticket`, or `info`.
        of: the kind of subject; each subject has its own. On AWS, `group` is the group of the app's schedules.
        condition: what is measured, for people. threshold: the value from which it is bad.
        for_ms: how long the condition must hold before the alarm begins. clear: when it ends, after `clear_ms`.
        meaning: what is wrong. causes: the usual causes.
        first: the first command; {app} and {subject} are filled in. steps: what to do then.
        aws: what CloudWatch evaluates for it, or `not there` and why it cannot. In Markdown.
        sides: where it is evaluated.
    """

    name: str
    severity: Severity
    of: Subject
    condition: str
    threshold: str
    for_ms: int = 0
    clear: str
    clear_ms: int = CLEAR_MS
    meaning: str
    causes: str
    first: str
    steps: str
    aws: str
    sides: tuple[Side, ...]

    @property
    def runbook(self) -> str:
        """The documentation's page about what to do, relative to its root."""
        return f"alarms.html#{self.name}"

    @property
    def again_ms(self) -> int | None:
        """How often it is reported again while it is on, at least `AGAIN_MS`; None if it is not."""
        return AGAIN_EVERY_MS[self.severity]

    def command(self, app: str, subject: str) -> str:
        """The first command to run."""
        return self.first.format(app=app, subject=subject)


_ALL: Final[tuple[Side, ...]] = ("embedded", "cloudwatch", "prometheus")
_AWS: Final[tuple[Side, ...]] = ("cloudwatch",)
_NONE_15: Final = "none for 15 minutes"
_STATUS: Final = "onefold status {app}"
_LOG: Final = "aws logs tail /aws/lambda/{subject} --since 1h"


def _table(alarms: Iterable[Alarm]) -> Mapping[str, Alarm]:
    return {one.name: one for one in alarms}


ALARMS: Final[Mapping[str, Alarm]] = _table(
    (
        Alarm(
            name="completion-failed", severity="page", of="job",
            condition="events `completion-failed`", threshold="1", clear=_NONE_15, clear_ms=0,
            meaning="An effect happened and its record could not be written. Its message comes back, and may run again.",
            causes="The disk of the records is full, the file is locked, the table throttles, or the network to the "
            "store broke between the effect and its record.",
            first="onefold stuck {app}",
            steps="The log line at CRITICAL names job and key. Run `onefold why KEY`, ask the other system whether the "
            "effect is there, and settle the operation. Then find out why the store could not be written: disk, lock, "
            "throttling.",
            aws="lines `completion-failed` in the functions' logs",
            sides=_ALL,
        ),
        Alarm(
            name="dlq-not-empty", severity="page", of="queue",
            condition="messages in its dead-letter queue", threshold="1", clear="none", clear_ms=MINUTE_MS,
            meaning="Work was given up. It does not come back by itself.",
            causes="A payload that no retry fixes, a rule of the business, a deployment that broke the handler, an "
            "outage longer than all retries.",
            first="onefold dlq list {app}",
            steps="Read the reason of each group. Correct the cause, or the payload with `onefold dlq edit`, then `onefold "
            "dlq redrive`. A redrive runs no operation that its record says is done.",
            aws="`ApproximateNumberOfMessagesVisible` of the dead-letter queue",
            sides=_ALL,
        ),
        Alarm(
            name="dlq-expiring", severity="page", of="queue",
            condition="time until its oldest dead letter is deleted",
            threshold="2 days, or half of a shorter retention", clear="a tenth more than that",
            meaning="Dead letters are about to be deleted for good. On a standard queue of SQS their age counts from the "
            "first send, not from the move.",
            causes="dlq-not-empty was on for days, or was silenced, and nobody redrove.",
            first="onefold dlq list {app}",
            steps="Redrive them, or keep a copy: `onefold dlq list --json`. Then give the dead-letter queue a longer "
            "retention.",
            aws="`ApproximateAgeOfOldestMessage` of the dead-letter queue, which counts from the move: the "
            "threshold is lower by the queue's own retention, but not below half of the dead-letter queue's",
            sides=_ALL,
        ),
        Alarm(
            name="held-not-empty", severity="ticket", of="queue",
            condition="messages in its queue of unknown outcomes", threshold="1", clear="none", clear_ms=MINUTE_MS,
            meaning="Nobody knows whether an effect happened, and the job says that a person decides.",
            causes="A worker was killed, or lost the network, in the middle of a call whose effect cannot be looked "
            "up.",
            first="onefold held list {app}",
            steps="Ask the other system, then `onefold held settle KEY --done` or `--not-done`.",
            aws="`ApproximateNumberOfMessagesVisible` of the held queue",
            sides=_ALL,
        ),
        Alarm(
            name="held-old", severity="page", of="queue",
            condition="age of the oldest message in its queue of unknown outcomes", threshold="1 day", clear="below 1 day",
            meaning="An unknown outcome has waited for a day, and is deleted after 14.",
            causes="The ticket of held-not-empty went to nobody.",
            first="onefold held list {app}",
            steps="As for held-not-empty. Find out why nobody saw the ticket.",
            aws="`ApproximateAgeOfOldestMessage` of the held queue",
            sides=_ALL,
        ),
        Alarm(
            name="oldest", severity="ticket", of="queue",
            condition="age of its oldest message",
            threshold="15 minutes or 1.5 visibility timeouts, the longer; at most half the retention",
            for_ms=10 * MINUTE_MS, clear="80 % of that",
            meaning="Messages wait longer than one that failed once.",
            causes="More is sent than is done, a job became slower, a throttle or a pause is on, workers are "
            "missing.",
            first=_STATUS,
            steps="See whether the queue grows (too few workers), or one job is slow or paused. Start more workers, or "
            "raise --threads. A job with a throttle is as slow as its throttle.",
            aws="`ApproximateAgeOfOldestMessage`; SQS leaves out messages that were received three times or more",
            sides=_ALL,
        ),
        Alarm(
            name="stalled", severity="page", of="queue",
            condition="messages that wait while none in the queue was done",
            threshold="30 minutes, or the longest timeout of its jobs", clear="something was done, or nothing waits",
            clear_ms=MINUTE_MS,
            meaning="Messages wait and nobody works on them, although processes may be running.",
            causes="No worker runs or receives from this queue; its functions' mapping is disabled; every worker "
            "waits for something that does not answer.",
            first=_STATUS,
            steps="See whether a worker runs and receives from this queue. One that runs and does nothing: `onefold "
            "stuck`. Then restart it; what it had is taken over.",
            aws="`NumberOfMessagesDeleted` and `ApproximateNumberOfMessagesVisible`",
            sides=_ALL,
        ),
        Alarm(
            name="drain", severity="ticket", of="queue",
            condition="time to work off what waits, at the rate of the last 30 minutes",
            threshold="half the retention", for_ms=15 * MINUTE_MS, clear="80 % of that",
            meaning="At this rate messages expire before they are done.",
            causes="A flood of messages, too few workers, a slower dependency.",
            first=_STATUS,
            steps="Start more workers, or find what made the jobs slower. Lengthen the queue's retention meanwhile.",
            aws="`ApproximateNumberOfMessagesVisible` over `NumberOfMessagesDeleted`, in each of two quarters of an hour",
            sides=_ALL,
        ),
        Alarm(
            name="in-flight-cap", severity="page", of="queue",
            condition="messages in flight", threshold="80 % of the queue's cap (96,000 of 120,000)", for_ms=5 * MINUTE_MS,
            clear="72 %",
            meaning="At the cap nothing more is received. Somebody receives messages and does not settle them.",
            causes="A consumer that never deletes, a visibility timeout far longer than a run, handlers that hang.",
            first=_STATUS,
            steps="Find who receives: `onefold stuck`. Usually a consumer that never deletes, or a visibility timeout that "
            "is far longer than a run.",
            aws="`ApproximateNumberOfMessagesNotVisible`",
            sides=_ALL,
        ),
        Alarm(
            name="group-backlog", severity="ticket", of="queue",
            condition="age of the oldest message while at most one group of a FIFO queue is in flight",
            threshold="15 minutes", clear="below it",
            meaning="One group holds up a FIFO queue: its messages are done one after the other.",
            causes="One group has most of the messages, or its head fails again and again.",
            first=_STATUS,
            steps="See which group it is: `onefold queue peek`. Give the operations more groups, or the slow "
            "one a queue of its own.",
            aws="`ApproximateAgeOfOldestMessage` and `ApproximateNumberOfGroupsWithInflightMessages`; FIFO queues "
            "only",
            sides=_AWS,
        ),
        Alarm(
            name="noisy-tenant", severity="info", of="queue",
            condition="noisy groups of a fair queue", threshold="1 for 15 minutes", clear="none",
            meaning="One tenant has far more in flight than the others; SQS lets the others go first.",
            causes="An import or a retry loop of one customer.",
            first=_STATUS,
            steps="Nothing has to be done. If it is the same one again and again, give its job a throttle per tenant.",
            aws="`ApproximateNumberOfNoisyGroups`; standard queues with a job that has a group",
            sides=_AWS,
        ),
        Alarm(
            name="receives", severity="ticket", of="queue",
            condition="99th percentile of how often a message was received when it was settled", threshold="3",
            for_ms=15 * MINUTE_MS, clear="below 3",
            meaning="Messages are delivered again and again before they are done: crashes, timeouts, or a visibility "
            "that is shorter than a run.",
            causes="Timeouts, crashes, a visibility timeout shorter than a run, a message that fails for everybody.",
            first=_STATUS,
            steps="Take one key from the log and run `onefold why KEY`: it says what ended each of its runs.",
            aws="`ReceiveCount` (p99) of each job of the queue, in 3 periods of 5 minutes, where an `EmfSink` writes it: "
            "a sink of the app, or `ONEFOLD_EMF=on` in the function's environment. SQS itself has no such metric",
            sides=("cloudwatch", "prometheus"),
        ),
        Alarm(
            name="engine-unreachable", severity="page", of="worker",
            condition="time for which every call of the engine by a worker has failed", threshold="2 minutes",
            clear="a call succeeds",
            meaning="A worker runs and does nothing: its engine refuses it, or cannot be reached. It keeps trying.",
            causes="Credentials that expired and were not renewed, a role or password that was changed, a network rule, a "
            "server that is gone.",
            first="onefold status {app}",
            steps="Run it on the worker's own host, as its user: the error names what refuses. Renew the login, or give the "
            "role its rights back; the worker goes on by itself, and needs no restart unless its login is in its URL.",
            aws="not there: a worker without credentials cannot report to AWS. The worker's log says `engine-unreachable`, "
            "its `/readyz` answers 503, `EngineFailingAge` of `--emf` goes up; "
            "`stalled` of the queue begins after half an hour",
            sides=("prometheus",),
        ),
        Alarm(
            name="errors", severity="ticket", of="function",
            condition="invocations that failed as a whole", threshold="1 % in 2 of 3 minutes", clear="below it",
            meaning="The function itself fails: its import, its role, its memory. A message that fails is not counted here.",
            causes="An import that fails, a missing permission, too little memory, a broken deployment.",
            first=_LOG,
            steps="Read the function's log: the error is raised before a handler is called. Roll back if it came with a "
            "deployment.",
            aws="`Errors` and `Invocations`",
            sides=_AWS,
        ),
        Alarm(
            name="failing", severity="page", of="function",
            condition="invocations that failed as a whole", threshold="half of them in 5 minutes", clear="fewer",
            meaning="The function does nothing: what its queue gives it fails before a handler is called. Each message "
            "comes back after its visibility timeout, and reaches the dead-letter queue only after hours.",
            causes="A deployment whose import fails, a handler that is not there, a missing permission, too little memory.",
            first=_LOG,
            steps="Roll back the deployment. Then read the function's log: the error is at its start.",
            aws="the average of `Errors`; one invocation is enough where there is no other, as a quiet queue has few",
            sides=_AWS,
        ),
        Alarm(
            name="throttles", severity="page", of="function",
            condition="invocations that Lambda refused", threshold="1 in 2 of 3 minutes", clear="none",
            meaning="The account or the reservation has no concurrency left; each refusal uses one receive of its messages, "
            "and a queue that allows few of them moves them to the dead-letter queue.",
            causes="Another function of the account uses the concurrency, or the quota of a new account is small.",
            first="aws lambda get-account-settings",
            steps="Lower the mapping's maximum concurrency below the reservation, or raise the reservation or the quota.",
            aws="`Throttles`",
            sides=_AWS,
        ),
        Alarm(
            name="duration", severity="ticket", of="function",
            condition="99th percentile of an invocation's duration", threshold="80 % of its timeout in 3 of 5 periods",
            clear="below it",
            meaning="Batches barely end in time. One that does not is done again, whole.",
            causes="Larger batches, a slower dependency, too little memory and so too little CPU.",
            first=_LOG,
            steps="Smaller batches, more concurrency in the handler, or a longer timeout.",
            aws="`Duration`",
            sides=_AWS,
        ),
        Alarm(
            name="timeouts", severity="page", of="function",
            condition="log lines `Task timed out`", threshold="1", clear="none",
            meaning="An invocation was ended by Lambda. It returned no answer, so that its whole batch comes back, and what "
            "was under way has an unknown outcome.",
            causes="A call without a timeout of its own, a job that takes longer than it says.",
            first=_LOG,
            steps="Compare the job's timeout with the function's. `onefold why KEY` says what is taken over.",
            aws="lines `Task timed out` in the functions' logs",
            sides=_AWS,
        ),
        Alarm(
            name="concurrency", severity="info", of="function",
            condition="invocations at one time", threshold="80 % of its mapping's maximum for 10 minutes", clear="below it",
            meaning="The function takes as many batches at one time as its mapping lets it; more messages wait.",
            causes="A backlog is being worked off, or runs take longer than they did.",
            first="aws lambda get-account-settings",
            steps="Raise `Function(concurrency=...)`, if what the jobs call can take it, before the next peak.",
            aws="`ConcurrentExecutions`",
            sides=_AWS,
        ),
        Alarm(
            name="mapping-dropped", severity="ticket", of="function",
            condition="messages that the mapping polled and neither filtered nor gave to the function",
            threshold="1 in 3 of 5 periods of 5 minutes", clear="none",
            meaning="Messages are received and do not reach the function; each time uses one of their receives.",
            causes="Throttles, a role that may not invoke or read, a function that is being changed, a mapping that is "
            "disabled.",
            first="aws lambda list-event-source-mappings --function-name {subject}",
            steps="Read the mapping's state and its last result, and look at throttles. Correct the role or the "
            "concurrency.",
            aws="`PolledEventCount`, `FilteredOutEventCount` and `InvokedEventCount` of the mapping",
            sides=_AWS,
        ),
        Alarm(
            name="tick-dropped", severity="page", of="schedule",
            condition="ticks that were given up", threshold="1", clear=_NONE_15, clear_ms=0,
            meaning="A tick was given up: neither its queue nor a dead-letter queue took it. Its run did not happen.",
            causes="The queue was deleted or is full, and so is the dead-letter queue; the scheduler's role may not "
            "send.",
            first="onefold runs list {app}",
            steps="Find out why the queue refused it, then send the tick by hand: `onefold calendar` shows its key.",
            aws="`InvocationDroppedCount` of the group of the app's schedules",
            sides=_ALL,
        ),
        Alarm(
            name="tick-refused", severity="ticket", of="schedule",
            condition="ticks that their queue did not take at once", threshold="3 in 15 minutes", clear=_NONE_15, clear_ms=0,
            meaning="A schedule cannot send. It tries again until its retry is over; then the tick is dropped.",
            causes="The queue was deleted, is full, or the scheduler's role may not send to it.",
            first="onefold runs list {app}",
            steps="Look at the queue: is it there, is it full, may the scheduler send to it?",
            aws="`TargetErrorCount` and `TargetErrorThrottledCount` of the group of the app's schedules",
            sides=_ALL,
        ),
        Alarm(
            name="tick-dlq", severity="page", of="group",
            condition="ticks that went to a dead-letter queue, or could not even", threshold="1", clear="none",
            meaning="EventBridge Scheduler gave ticks up. On an embedded engine dlq-not-empty reports it.",
            causes="The queue was deleted, or the scheduler's role may not send to it.",
            first="aws scheduler list-schedules --group-name {subject}",
            steps="Correct the cause and redrive: a tick's key makes it one run, however late it comes.",
            aws="`InvocationsSentToDeadLetterCount` and `InvocationsFailedToBeSentToDeadLetterCount`",
            sides=_AWS,
        ),
        Alarm(
            name="no-tick", severity="page", of="schedule",
            condition="how late the next tick is", threshold="15 minutes", clear="it was sent", clear_ms=0,
            meaning="A schedule did not fire at its time. What it starts has not happened, and no error says so.",
            causes="No scheduler runs, the schedule was paused or removed, its time zone or its expression was "
            "changed.",
            first="onefold calendar {app}",
            steps="Is a scheduler running (`onefold scheduler`, or `onefold worker --schedules`)? It sends what it owes by "
            "the schedule's `missed` when it starts again.",
            aws="`InvocationAttemptCount` of the group of the app's schedules, which is missing for longer than "
            "the longest gap of the schedule that fires most often: Scheduler has no metric of one schedule. "
            "Gaps up to two days, schedules without a start and an end",
            sides=_ALL,
        ),
        Alarm(
            name="lease-lost", severity="ticket", of="job",
            condition="events `lease-lost`", threshold="1", clear=_NONE_15, clear_ms=0,
            meaning="A run lost its lease; somebody else may have run the same operation meanwhile. None of it was "
            "recorded.",
            causes="A machine that was frozen: full memory, a paused virtual machine, a handler that holds the "
            "interpreter; a store that did not answer for longer than a lease.",
            first="onefold stuck {app}",
            steps="Compare the job's timeout with its runs. Look for machines that freeze: full memory, a paused "
            "virtual machine, a handler that holds the interpreter.",
            aws="lines `lease-lost` in the functions' logs",
            sides=_ALL,
        ),
        Alarm(
            name="lease-lost-often", severity="page", of="job",
            condition="events `lease-lost` in an hour", threshold="more than 3", clear="3 or fewer in the last hour",
            clear_ms=0,
            meaning="Runs lose their leases again and again: their effects may happen twice where the other system cannot "
            "refuse the second one.",
            causes="As for lease-lost, on every machine or for every run: usually a lease that is shorter than a "
            "pause of the machine.",
            first="onefold stuck {app}",
            steps="As for lease-lost, now: longer leases (`onefold worker --lease`), or less work in one process.",
            aws="lines `lease-lost` in the functions' logs",
            sides=_ALL,
        ),
        Alarm(
            name="breaker-open", severity="page", of="job",
            condition="the job is paused by its circuit breaker", threshold="5 minutes", for_ms=5 * MINUTE_MS,
            clear="it goes on", clear_ms=MINUTE_MS,
            meaning="A dependency refuses everything, so that the job waits. No attempt is used.",
            causes="A rotated key, a closed account, an outage of the other system.",
            first=_STATUS,
            steps="Fix the dependency: a rotated key, a closed account, an outage. The job goes on by itself; `onefold "
            "resume JOB` lets it try at once.",
            aws="lines `paused` in the functions' logs; it begins at once and ends 15 minutes after the last one",
            sides=_ALL,
        ),
        Alarm(
            name="missing", severity="page", of="runs",
            condition="operations of its latest runs that a reconciliation found missing", threshold="1", clear="none",
            clear_ms=0,
            meaning="They were dispatched, are not done, and no message of them is left.",
            causes="A queue was purged, a message expired, somebody deleted it, or a dispatcher sends other items "
            "than before.",
            first="onefold runs list {app}",
            steps="Run `onefold reconcile RUN --repair`: it sends them again under their own keys. Ends when the run, or a "
            "later one, is reconciled without any.",
            aws="lines `reconcile-failed` in the functions' logs whose `missing` is not 0",
            sides=_ALL,
        ),
        Alarm(
            name="duplicate-effects", severity="page", of="runs",
            condition="operations of its latest runs that a reconciliation found done more than once", threshold="1",
            clear="none", clear_ms=0,
            meaning="An effect happened twice. That is what onefold is there to prevent.",
            causes="A handler whose effect has no key at the other system and was cut off in the middle; two apps "
            "with different keys for one thing.",
            first="onefold runs list {app}",
            steps="Run `onefold reconcile RUN` and `onefold why KEY`. Undo the second effect in the other system; see "
            "whether it can refuse a key that it knows.",
            aws="lines `reconcile-failed` in the functions' logs whose `twice` is not 0",
            sides=_ALL,
        ),
        Alarm(
            name="reconcile-failed", severity="ticket", of="runs",
            condition="its latest reconciliation", threshold="it does not agree", clear="it agrees", clear_ms=0,
            meaning="A run is not as it should be: missing, twice, not done in time, or other totals than yours.",
            causes="The same as for missing, duplicate-effects or dlq-not-empty; a job that is slower than `after`; "
            "totals of yours that count something else.",
            first="onefold runs list {app}",
            steps="Run `onefold reconcile RUN`: it names what differs, and what repairs it.",
            aws="lines `reconcile-failed` in the functions' logs",
            sides=_ALL,
        ),
        Alarm(
            name="reconcile-late", severity="page", of="runs",
            condition="time since the start of the oldest run that no check has found correct",
            threshold="twice the reconciliation's `after`", clear="it was checked and agrees", clear_ms=0,
            meaning="No check was made, or every check failed: whether the run is complete is not known.",
            causes="No worker receives the reconciliation's queue, or its check raises.",
            first="onefold runs list {app}",
            steps="Is a worker running that receives the reconciliation's queue? Run `onefold reconcile RUN` by hand.",
            aws="not there: without a check nothing is counted. `onefold watch` with the app's `aws://` URL "
            "evaluates it",
            sides=("embedded", "prometheus"),
        ),
        Alarm(
            name="map-failed", severity="page", of="runs",
            condition="runs that stopped before their end", threshold="1", for_ms=5 * MINUTE_MS,
            clear="they go on, or are ended", clear_ms=0,
            meaning="A map run passed the failures that it tolerates, or a run's dispatch stopped. The rest was not begun.",
            causes="A file that cannot be read, too many failed items, a dispatcher that raises.",
            first="onefold runs list {app}",
            steps="`onefold runs show RUN` says why. Correct it, then `onefold map resume`, or run the schedule again.",
            aws="`ExecutionsFailed` of the state machine",
            sides=_ALL,
        ),
        Alarm(
            name="map-throttled", severity="ticket", of="map",
            condition="state transitions that Step Functions throttled", threshold="1 in 2 of 3 minutes", clear="none",
            meaning="A map run is slower than it could be: the account's quota of transitions or of starts is used up.",
            causes="Other state machines of the account, children of one item each, a concurrency that is too high.",
            first="aws stepfunctions list-map-runs --execution-arn EXECUTION_ARN",
            steps="Give each child more items (`batch=`), lower the map's concurrency, or have the quota raised.",
            aws="`ExecutionThrottled` of the state machine",
            sides=_AWS,
        ),
        Alarm(
            name="rule-failed", severity="page", of="rule",
            condition="events that a rule gave up, or could not run for", threshold="1", clear="none",
            meaning="Events matched the rule and reached neither its queue nor its dead-letter queue, or are late.",
            causes="A queue that was deleted, a policy or a key that does not let EventBridge in, the account's quota of "
            "invocations.",
            first="aws events list-targets-by-rule --rule {subject}",
            steps="Look at the queue, its policy and its key. What was lost is in the bus's archive, if it has one: "
            "`onefold events replay`.",
            aws="`FailedInvocations`, `InvocationsFailedToBeSentToDlq` and `ThrottledRules` of the rule",
            sides=_AWS,
        ),
        Alarm(
            name="table-throttled", severity="ticket", of="table",
            condition="requests that DynamoDB throttled", threshold="1 in 3 of 5 minutes", clear="none",
            meaning="Records are written late; runs wait for it, and may pass their timeout.",
            causes="A table with provisioned capacity, a hot partition, a quota of the account.",
            first="aws dynamodb describe-table --table-name {subject}",
            steps="Move to on-demand capacity, or raise the provisioned one. A hot partition: `onefold records migrate`.",
            aws="`ReadThrottleEvents` and `WriteThrottleEvents`; CloudWatch keeps the state of an alarm on "
            "DynamoDB while there is no traffic",
            sides=_AWS,
        ),
    )
)  # fmt: skip


def on(side: Side) -> list[Alarm]:
    """The alarms that are evaluated on this side, in the order of the table."""
    return [one for one in ALARMS.values() if side in one.sides]
