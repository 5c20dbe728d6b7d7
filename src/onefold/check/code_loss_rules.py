"""Rules LOS of application code: what deletes a message whose work was not done.

Sources: AWS Lambda developer guide, "Implementing partial batch responses": a handler that returns has done its batch; Amazon
SQS developer guide, message quotas: 1 MiB; amazon-sqs-extended-client-lib.
Never here: reading code. Invariant: what is not known is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from onefold.check.code_duplicate_rules import name_of
from onefold.check.code_facts import Code
from onefold.check.findings import Finding, Fix, Related


def lost_on_failure(code: Code) -> Iterator[Finding]:
    """LOS016."""
    for handler in code.handlers:
        for one in handler.swallowed:
            which = "every message of the batch" if one.is_batch else "the message"
            yield Finding(
                rule="LOS016",
                severity="error",
                message=f"{name_of(one.function)} goes on after a failure as if nothing had been: Lambda deletes {which}, and no"
                " dead-letter queue gets it.",
                source=one.source,
                resource=name_of(one.function),
                property_path="except",
                arithmetic=("a handler that returns has succeeded",),
                related=(Related(handler.source, handler.name, "returns as if all were done"),),
                fix=Fix("Raise again, or return the message's id in batchItemFailures.", "unsafe"),
            )
    for deletion in {one.source: one for one in code.deletions}.values():
        is_before = deletion.how == "before"
        related = () if deletion.work is None else (Related(deletion.work, name_of(deletion.function), "done after that"),)
        yield Finding(
            rule="LOS016",
            severity="warning" if is_before else "error",
            message=f"{name_of(deletion.function)} deletes a message "
            + (
                f"before {deletion.work_text}: what fails after that is not tried again."
                if is_before
                else "in a finally, whether or not its work was done."
            ),
            source=deletion.source,
            resource=name_of(deletion.function),
            property_path="delete_message",
            related=related,
            fix=Fix("Delete it after the work, where nothing has failed.", "unsafe"),
        )
