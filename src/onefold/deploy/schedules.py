"""Schedules of an app on EventBridge Scheduler: a group, one role, and each schedule's target.

The target is SQS's SendMessage by the universal target, so that the message carries key, run and, on FIFO queues, group and
deduplication id. Key and run derive from `<aws.scheduler.scheduled-time>`, which is the same at each retry of an occurrence.
The deduplication id does not: who may send to the queue could foretell it and have the tick swallowed. It is
`<aws.scheduler.execution-id>`, and the record answers a second message of one occurrence. Apart from it the message is the
one that onefold's own scheduler sends (`schedules/scheduling.py`). Group and role also serve the one-time schedules that a
message with a late `run_at` becomes (`Stack.later`, `backends/aws/later.py`).

A schedule is never told to delete itself here: CloudFormation has no property for it, and what Terraform finds missing it
makes again, when an `at(...)` that is over would fire at once. One that is over costs nothing and fires no more.
Never here: what a tick does, template languages. Invariant: the role may send to exactly the queues that are targets, and to
the dead-letter queues of the schedules.

Sources: EventBridge Scheduler user guide, "Schedule types", "Using universal targets", "Adding context attributes",
"Configuring a dead-letter queue"; API reference, CreateSchedule, RetryPolicy, FlexibleTimeWindow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from onefold import errors, limits
from onefold.backends.aws import messages
from onefold.backends.aws.entries import entry_of
from onefold.contracts.settings import QueueSettings
from onefold.deploy import iam, names
from onefold.deploy.stack import Stack
from onefold.schedules.scheduling import SCHEDULED_TIME, Schedule

TARGET_ARN: Final = "arn:{partition}:scheduler:::aws-sdk:sqs:sendMessage"
NAME_CHARS_MAX: Final = 64  # API reference, CreateSchedule, Name and GroupName
EXECUTION_ID: Final = "<aws.scheduler.execution-id>"  # EventBridge Scheduler writes one for each attempt in its place
ROLE_ID: Final = "Scheduler"
GROUP_ID: Final = "ScheduleGroup"
_AT: Final = "%Y-%m-%dT%H:%M:%SZ"


class SchedulePlan(Struct, frozen=True, kw_only=True):
    """A schedule as both writers write it.

    Args:
        id: logical id. name, expression, zone: as Scheduler is told.
        start, end: RFC 3339, UTC; None for none. window_minutes: None for none.
        input: SendMessage's parameters as JSON, a pattern (see `names.py`).
        attempts, age_s: retry policy. dead_id: of the queue for what could not be delivered; None for none.
        text: what it does, for people.
    """

    id: str
    name: str
    expression: str
    zone: str
    start: str | None
    end: str | None
    window_minutes: int | None
    input: str
    attempts: int
    age_s: int
    dead_id: str | None
    text: str


class Scheduling(Struct, frozen=True, kw_only=True):
    """All of it.

    Args:
        group: name of the schedule group. role: that Scheduler takes on.
        schedules: sorted by id.
    """

    group: str
    role: iam.RolePlan
    schedules: tuple[SchedulePlan, ...]


def planned(
    app: str, declared: Sequence[Schedule], stack: Stack, queues: Mapping[str, QueueSettings]
) -> Scheduling | None:
    """What schedules need; None when there are none, and no messages for later either.

    Args:
        app: its name. declared: its schedules. queues: settings of all main queues, by declared name.

    Raises:
        UsageError: what Scheduler would refuse, or a clock-change policy that it does not have.
    """
    if not declared and not stack.later:
        return None
    group = group_name(app, stack)
    names.check_length(group, NAME_CHARS_MAX, "The group of the schedules")
    targets = {one.job.policy.queue for one in declared}
    targets |= {one.undelivered.dead_letter for one in declared if one.undelivered.dead_letter is not None}
    if stack.later:
        targets |= {*queues, *(dead for one in queues.values() if (dead := late_dead_letter(one)) is not None)}
    return Scheduling(
        group=group,
        role=_role(group, sorted(stack.prefix + name for name in targets), stack.kms_key),
        schedules=tuple(sorted((_schedule(one) for one in declared), key=lambda one: one.id)),
    )


def notes(declared: Sequence[Schedule]) -> list[str]:
    """What is declared and Scheduler will not do, a sentence each, by name."""
    return [
        f"Schedule {one.name}: delete_after=True deletes nothing on AWS. When it is over it fires no more, at no cost."
        for one in sorted(declared, key=lambda one: one.name)
        if one.delete_after
    ]


def group_name(app: str, stack: Stack) -> str:
    """Of an app's schedules, those for later included."""
    return f"{stack.prefix}{app}"


def late_dead_letter(queue: QueueSettings) -> str | None:
    """Where a late message goes that Scheduler could not deliver: it takes standard queues only."""
    return None if queue.fifo else queue.dead_letter


def _role(group: str, targets: Sequence[str], kms_key: str | None) -> iam.RolePlan:
    arns = tuple(names.queue_arn(name) for name in targets)
    statements = [iam.Statement(sid="SendTicks", actions=("sqs:SendMessage",), resources=arns)]
    if kms_key is not None:
        statements.append(
            iam.Statement(
                sid="UseKey",
                actions=("kms:Decrypt", "kms:GenerateDataKey"),
                resources=(kms_key,),
                services=("scheduler", "sqs"),
            )
        )
    return iam.RolePlan(
        id=ROLE_ID,
        service="scheduler",
        text=f"What the schedules of {group} send to, and no more.",
        statements=tuple(statements),
    )


def _schedule(one: Schedule) -> SchedulePlan:
    _check(one)
    entry = one.outgoing_at(SCHEDULED_TIME).entry
    form = messages.Form(
        body=entry.body,
        attributes=entry.attributes,
        key=entry.key,
        group=entry.group,
        dedup_id=EXECUTION_ID if entry.group else None,
    )
    request = entry_of(form, "")
    del request["Id"]
    text = msgspec.json.encode(request, order="deterministic").decode()
    queue = one.job.policy.queue
    timing, undelivered = one.timing, one.undelivered
    return SchedulePlan(
        id=f"{names.logical_id(one.name)}Schedule",
        name=one.name,
        expression=one.expression,
        zone=timing.zone,
        start=_instant(timing.start_ms),
        end=_instant(timing.end_ms),
        window_minutes=timing.window_ms // limits.MINUTE_MS or None,
        input=f'{{"QueueUrl":"{{queue_url.{names.logical_id(queue)}}}",' + text[1:],
        attempts=undelivered.attempts_max,
        age_s=undelivered.age_ms // limits.SECOND_MS,
        dead_id=None if undelivered.dead_letter is None else names.logical_id(undelivered.dead_letter),
        text=f"Ticks of {one.name} to {queue}." + (f" Owner: {one.owner}." if one.owner else ""),
    )


def _instant(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms // limits.SECOND_MS, UTC).strftime(_AT)


def _check(one: Schedule) -> None:
    if one.timing.dst != "eventbridge":
        raise errors.UsageError(
            f"Schedule {one.name} runs a skipped local time at the next valid instant.",
            meaning="EventBridge Scheduler skips a local time that does not exist that day, and has no setting for it.",
            todo='Leave dst= out on AWS, choose an hour that always exists, or run it with "onefold scheduler".',
        )
