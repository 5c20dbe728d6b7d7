"""A message that is due later than SQS delays one: a one-time schedule of EventBridge Scheduler that sends it and is gone.

The schedule's target is SQS's SendMessage (universal target) with the message as this backend would send it. Its name is
made of queue, instant and message, so a send that is tried again makes no second one; two equal messages for one instant
are one. Scheduler is precise to a minute (user guide, "Schedule types"), tries for a day, and then puts the request into the
queue's dead-letter queue, where that is a standard queue.
Needs a group and a role that may send (`onefold synth --later` makes both and puts them into the engine's URL); without them
such a message is refused. Never here: what is sent at once. Invariant: the body arrives as it was given: nothing in it is
read as a context attribute.

Sources: EventBridge Scheduler API reference, CreateSchedule; user guide, "Using universal targets", "Deleting a schedule",
"Adding context attributes"; quotas: an input has up to 256 KB.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from onefold import limits
from onefold.backends.aws.entries import entry_of
from onefold.backends.aws.messages import Form
from onefold.backends.aws.session import Session, aws_errors
from onefold.contracts.entries import Refused, Sent

INPUT_BYTES_MAX: Final = 262_144
ATTEMPTS: Final = 185  # API reference, RetryPolicy: the most
AGE_S: Final = 86_400  # same
_CONTEXT: Final = "<aws.scheduler."  # begins what Scheduler fills in
_LAST_AT_MS: Final = 253_402_300_799_000  # the last second that has four digits of a year


class Later:
    """Makes one-time schedules.

    Args:
        session: clients.
        group: name of the schedule group. role: ARN of the role that they send with.
    """

    def __init__(self, session: Session, *, group: str, role: str) -> None:
        self._session = session
        self._group = group
        self._role = role

    def send(self, form: Form, *, url: str, arn: str, dead_letter: str | None, at_ms: int) -> Sent | Refused:
        """Send a message at an instant, rounded up to a second.

        Args:
            form: the message. url, arn: of the queue. dead_letter: name on AWS of a standard queue of the same account; None
                for none.

        Returns:
            `Sent` with the schedule's name for an id: the message has none yet.

        Raises:
            NotFoundError: no such group. UsageError: not allowed. TransientError: for now.
        """
        text = _input(form, url)
        if len(text.encode()) > INPUT_BYTES_MAX:
            return Refused(
                "InvalidParameterValue",
                f"A message for later may have {INPUT_BYTES_MAX} bytes as a request; this one has {len(text.encode())}. "
                "Larger bodies need a bucket: add payloads=BUCKET/PREFIX to the engine's URL.",
            )
        if not 0 <= at_ms <= _LAST_AT_MS:
            return Refused("InvalidParameterValue", f"run_at_ms={at_ms} is not an instant that a schedule can have.")
        at = datetime.fromtimestamp(-(-at_ms // limits.SECOND_MS), UTC).strftime("%Y-%m-%dT%H:%M:%S")
        name = f"later-{hashlib.sha256((at + text).encode()).hexdigest()[:40]}"
        partition, region, account = _parts(arn)
        target: dict[str, Any] = {
            "Arn": f"arn:{partition}:scheduler:::aws-sdk:sqs:sendMessage",
            "RoleArn": self._role,
            "Input": text,
            "RetryPolicy": {"MaximumRetryAttempts": ATTEMPTS, "MaximumEventAgeInSeconds": AGE_S},
        }
        if dead_letter is not None:
            target["DeadLetterConfig"] = {"Arn": f"arn:{partition}:sqs:{region}:{account}:{dead_letter}"}
        client = self._session.client("scheduler")
        made_before = client.exceptions.ConflictException  # by an earlier try
        with aws_errors("scheduler:CreateSchedule", f"schedule group {self._group}"), suppress(made_before):
            client.create_schedule(
                Name=name,
                GroupName=self._group,
                ScheduleExpression=f"at({at})",
                ScheduleExpressionTimezone="UTC",
                FlexibleTimeWindow={"Mode": "OFF"},
                ActionAfterCompletion="DELETE",
                Target=target,
            )
        return Sent(name, None)


def _input(form: Form, url: str) -> str:
    """SendMessage's parameters as Scheduler is told them."""
    request = entry_of(form, "")
    del request["Id"]
    text = json.dumps({"QueueUrl": url, **request}, separators=(",", ":"), ensure_ascii=False, default=_base64)
    return text.replace(_CONTEXT, "\\u003c" + _CONTEXT[1:])


def _base64(value: object) -> str:
    """A binary attribute as JSON has it."""
    assert isinstance(value, bytes)
    return b64encode(value).decode()


def _parts(arn: str) -> tuple[str, str, str]:
    """Partition, region and account."""
    _, partition, _, region, account, *_ = arn.split(":")
    return partition, region, account
