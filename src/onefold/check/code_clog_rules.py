"""Rules CLG of application code: sends and waits that make work stop.

Sources: Amazon SQS API, SendMessage: DelaySeconds up to 900; AWS Lambda developer guide, "Use Lambda recursive loop
detection" (16 invocations) and durable functions behind an event source mapping (15 minutes); Celery, visibility timeout.
Never here: reading code. Invariant: what is unknown is not a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onefold.check.clog_rules import LOOPS
from onefold.check.code_facts import Code
from onefold.check.findings import Finding, Fix, Related
from onefold.check.joined import Joined
from onefold.check.loss_rules import DURABLE_MAX_S
from onefold.limits import DELAY_MS_MAX, SECOND_MS

DELAY_MAX_S: Final = DELAY_MS_MAX // SECOND_MS
HOUR_S: Final = 3_600


def one_group_for_all(code: Code) -> Iterator[Finding]:
    """CLG001, the part of application code."""
    for call in code.calls:
        group = call.arguments.get("MessageGroupId")
        if call.operation != "send_message" or group is None or not isinstance(group.constant, str):
            continue
        yield Finding(
            rule="CLG001",
            severity="info",
            message=f"{call.name} sends every message in the message group {group.constant!r:.60}: a FIFO queue"
            " delivers one batch of a group at a time, and a message that fails blocks all others.",
            source=group.source,
            resource=call.name,
            property_path="MessageGroupId",
            fix=Fix("Take the group from what must stay in order, such as the customer's id.", "unsafe"),
            is_preview=True,
        )


def long_and_silent(code: Code) -> Iterator[Finding]:
    """CLG004, the part of application code."""
    if code.extends:
        return
    for call in code.calls:
        given = call.arguments.get("VisibilityTimeout")
        seconds = None if given is None else given.constant
        if call.operation != "receive_message" or given is None or not isinstance(seconds, int) or seconds < HOUR_S:
            continue
        yield Finding(
            rule="CLG004",
            severity="warning",
            message=f"{call.name} receives with a visibility timeout of {seconds:,} s and never extends it: if"
            " the process dies, the message stays hidden for that long.",
            source=given.source,
            resource=call.name,
            property_path="VisibilityTimeout",
            arithmetic=(f"crash right after the receive: {seconds:,} s until the next delivery",),
            fix=Fix(
                "Use a short visibility timeout, and extend it with change_message_visibility while the work runs.",
                "unsafe",
            ),
        )


def sends_to_own_queue(joined: Joined) -> Iterator[Finding]:
    """CLG008."""
    for mapping, handler in joined.mapped():
        if mapping.function is None or mapping.queue is None or mapping.function.facts.loops_allowed:
            continue
        for call in handler.calls:
            if not call.is_send or joined.queue_of(call, mapping) is not mapping.queue:
                continue
            yield Finding(
                rule="CLG008",
                severity="warning",
                message=f"{call.name} sends to {mapping.queue.name}, the queue that {mapping.function.name}"
                f" receives from: after about {LOOPS} rounds Lambda's loop detection stops it.",
                source=call.source,
                resource=call.name,
                property_path="QueueUrl",
                arithmetic=(f"about {LOOPS} rounds, then no further invocation",),
                related=(Related(mapping.source, mapping.name, f"receives from {mapping.queue.name}"),),
                fix=Fix(
                    "Let the message fail so that it is retried, or set RecursiveLoop: Allow if the loop ends by itself.",
                    "unsafe",
                ),
            )


def delay_over_the_limit(code: Code) -> Iterator[Finding]:
    """CLG009."""
    for call in code.calls:
        given = call.arguments.get("DelaySeconds")
        if call.operation != "send_message" or given is None:
            continue
        seconds = given.constant
        if isinstance(seconds, int) and seconds > DELAY_MAX_S:
            yield Finding(
                rule="CLG009",
                severity="error",
                message=f"{call.name} sends with a delay of {seconds:,} s, but SQS accepts at most"
                f" {DELAY_MAX_S} s and refuses the message.",
                source=given.source,
                resource=call.name,
                property_path="DelaySeconds",
                arithmetic=(f"{seconds:,} > {DELAY_MAX_S}",),
                fix=Fix("Use a one-time schedule of EventBridge Scheduler.", "unsafe"),
            )
    if len({one.seconds for one in code.timeouts}) != 1:
        return
    timeout = code.timeouts[0]
    for one in code.countdowns:
        if one.seconds > timeout.seconds:
            yield Finding(
                rule="CLG009",
                severity="error",
                message=f"{one.name} sends a task with a countdown of {one.seconds:,} s, but the broker"
                f" redelivers it after {timeout.seconds:,} s (visibility_timeout): the task runs once for each delivery.",
                source=one.source,
                resource=one.name,
                property_path="countdown",
                arithmetic=(f"countdown {one.seconds:,} s > visibility_timeout {timeout.seconds:,} s",),
                related=(
                    Related(timeout.source, "broker_transport_options", f"visibility_timeout: {timeout.seconds:,} s"),
                ),
                fix=Fix("Raise visibility_timeout above the longest countdown, or use a schedule.", "unsafe"),
            )


def durable_waits_behind_mapping(code: Code) -> Iterator[Finding]:
    """CLG010."""
    for handler in code.handlers:
        most = DURABLE_MAX_S["instances" if handler.on_instances else "functions"]
        for source, what, seconds in handler.durable.waits if handler.durable is not None else ():
            if seconds is not None and seconds <= most:
                continue
            how_long = "without a timeout" if seconds is None else f"{seconds:,} s"
            yield Finding(
                rule="CLG010",
                severity="error" if seconds is not None and what == "wait" else "warning",
                message=f"{handler.name} is a durable function behind a queue and waits {how_long}: the mapping waits at"
                f" most {most:,} s for the whole execution, and then the message is delivered again.",
                source=source,
                resource=handler.name,
                property_path=what,
                arithmetic=(f"{how_long} > {most:,} s",),
                fix=Fix(
                    "Receive with a small function that invokes the durable one asynchronously, with an execution name.",
                    "unsafe",
                ),
            )
