"""Rules LOS of application code: what deletes a message whose work was not done.

Sources: AWS Lambda developer guide, "Implementing partial batch responses": a handler that returns has done its batch;
Amazon SQS developer guide, message quotas: 1 MiB; amazon-sqs-extended-client-lib.
Never here: reading code. Invariant: what is unknown is not a finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from onefold.check.code_facts import Code, Threshold
from onefold.check.findings import Finding, Fix, Related
from onefold.check.joined import Joined
from onefold.limits import MESSAGE_BYTES_MAX


def body_over_limit(code: Code) -> Iterator[Finding]:
    """LOS015, compared with what SQS accepts."""
    for one in code.thresholds:
        if one.size > MESSAGE_BYTES_MAX:
            yield _threshold(one, f"SQS accepts {MESSAGE_BYTES_MAX:,}", MESSAGE_BYTES_MAX, ())


def body_over_queue_limit(joined: Joined) -> Iterator[Finding]:
    """LOS015, compared with what a queue of the template accepts."""
    for mapping, handler in joined.mapped():
        for call in handler.calls:
            queue = joined.queue_of(call, mapping)
            if not call.is_send or queue is None:
                continue
            size = queue.body_bytes_max.value
            for one in handler.thresholds:
                if size is not None and size < one.size <= MESSAGE_BYTES_MAX:
                    related = (Related(queue.body_bytes_max.source, queue.name, f"MaximumMessageSize: {size:,} bytes"),)
                    yield _threshold(one, f"{queue.name} accepts {size:,}", size, related)


def _threshold(one: Threshold, takes: str, size: int, related: tuple[Related, ...]) -> Finding:
    return Finding(
        rule="LOS015",
        severity="error",
        message=f"{one.name} stores bodies over {one.size:,} bytes in S3, but {takes}: a body between the two"
        " sizes is refused and not sent.",
        source=one.source,
        resource=one.name,
        property_path="message_size_threshold",
        arithmetic=(f"{one.size:,} > {size:,}",),
        related=related,
        fix=Fix(f"Set message_size_threshold to {size} or less; attributes count too.", "unsafe"),
    )


def lost_on_failure(code: Code) -> Iterator[Finding]:
    """LOS016."""
    for handler in code.handlers:
        for one in handler.swallowed:
            which = "every message of the batch" if one.is_batch else "the message"
            yield Finding(
                rule="LOS016",
                severity="error",
                message=f"{one.name} catches every exception and carries on: Lambda deletes {which}, which"
                " never reaches a dead-letter queue.",
                source=one.source,
                resource=one.name,
                property_path="except",
                arithmetic=("a batch whose handler returns counts as processed",),
                related=(Related(handler.source, handler.name, "returns normally"),),
                fix=Fix("Raise the exception again, or return the message's id in batchItemFailures.", "unsafe"),
            )
    for deletion in code.deletions:
        is_before = deletion.how == "before"
        related = () if deletion.work is None else (Related(deletion.work, deletion.name, "runs after the deletion"),)
        yield Finding(
            rule="LOS016",
            severity="warning" if is_before else "error",
            message=f"{deletion.name} deletes a message "
            + (
                f"before {deletion.work_text}: if that fails, the message is lost."
                if is_before
                else "in a finally block, whether or not its work was done."
            ),
            source=deletion.source,
            resource=deletion.name,
            property_path="delete_message",
            related=related,
            fix=Fix("Delete the message after its work has succeeded.", "unsafe"),
        )
