"""What changes in a stack: between two templates, in a change set, and in the events of an operation.

Two templates, the last one deployed and the one that would be deployed now, are compared as values, by section,
resource and property; no change set is made. Only CloudFormation knows what a difference does to a running resource (an
update in place, a replacement), and says so in the change set of `onefold deploy`. Answers of DescribeChangeSet,
DescribeStackEvents and DescribeStacks become plain values, and sentences: what a change loses, which failure came
first, what to do.

Pure. Never here: calls (`apply.py`), tables (`cli/`). Invariant: a change that may delete a queue, table, archive or bucket
is never shown without saying what is lost with it; templates without a difference here are equal, apart from empty
sections.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from onefold import errors

HOLDS: Final[Mapping[str, str]] = {
    "AWS::SQS::Queue": "messages",
    "AWS::DynamoDB::Table": "records",
    "AWS::Events::Archive": "events",
    "AWS::S3::Bucket": "objects",
}
"""What a resource of each type contains, and loses when it is deleted."""

BUSY: Final = "_IN_PROGRESS"
_NEW: Final = "REVIEW_IN_PROGRESS"
_CANCELLED: Final = ("Resource creation cancelled", "Resource update cancelled", "Resource deletion cancelled")
STACK: Final = "AWS::CloudFormation::Stack"


class ResourceChange(Struct, frozen=True, kw_only=True):
    """One resource of a change set.

    Args:
        action: one of CloudFormation's: Add, Modify, Remove, Import, Dynamic, SyncWithActual.
        logical_id, type: those of the resource. physical_id: None if it does not exist yet.
        replacement: `yes`, `maybe` (decided during the execution), `no`.
        properties: those that change.
        lost: what would be lost, as a sentence; None if nothing is.
        kept_outside: whether it leaves the stack without being deleted.
    """

    action: str
    logical_id: str
    type: str
    physical_id: str | None
    replacement: Literal["yes", "maybe", "no"]
    properties: tuple[str, ...]
    lost: str | None
    kept_outside: bool


class StackEvent(Struct, frozen=True, kw_only=True):
    """One event of a stack; `at_ms` is by CloudFormation's clock."""

    event_id: str
    at_ms: int
    logical_id: str
    type: str
    physical_id: str
    status: str
    reason: str


class StackFailure(Struct, frozen=True, kw_only=True):
    """The resource that failed first, why, and what to do about it."""

    logical_id: str
    type: str
    status: str
    reason: str
    todo: str


class StackState(Struct, frozen=True, kw_only=True):
    """The state of a stack.

    Args:
        status: CloudFormation's, or `ABSENT`.
        reason: for that status; may be empty.
        outputs: name to value. parameters: name to value, `****` for hidden ones.
        arn: the ARN of the stack, by which it is found even when it is gone; empty if there is none.
        protected: whether its termination protection is on.
    """

    status: str
    arn: str = ""
    protected: bool = False
    reason: str = ""
    outputs: Mapping[str, str] = {}
    parameters: Mapping[str, str] = {}

    @property
    def is_new(self) -> bool:
        """Whether no resource of the stack exists yet."""
        return self.status in ("ABSENT", _NEW)

    @property
    def is_busy(self) -> bool:
        """Whether an operation is in progress."""
        return self.status.endswith(BUSY) and self.status != _NEW

    @property
    def is_deployed(self) -> bool:
        """Whether the last operation succeeded."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE")


def stack_state_of(answer: Mapping[str, Any]) -> StackState:
    """One stack of a DescribeStacks answer."""
    return StackState(
        status=answer["StackStatus"],
        arn=answer.get("StackId", ""),
        protected=bool(answer.get("EnableTerminationProtection", False)),
        reason=answer.get("StackStatusReason", ""),
        outputs={one["OutputKey"]: one.get("OutputValue", "") for one in answer.get("Outputs", ())},
        parameters={one["ParameterKey"]: one.get("ParameterValue", "") for one in answer.get("Parameters", ())},
    )


def change(answer: Mapping[str, Any]) -> ResourceChange:
    """One ResourceChange of a DescribeChangeSet answer."""
    replacement: Literal["yes", "maybe", "no"] = {"True": "yes", "Conditional": "maybe"}.get(  # type: ignore[assignment]
        answer.get("Replacement", ""), "no"
    )
    kept = str(answer.get("PolicyAction", "")).endswith("Retain")
    goes = answer["Action"] == "Remove" or replacement != "no"
    names = {
        name
        for detail in answer.get("Details", ())
        if (name := detail.get("Target", {}).get("Name") or detail.get("Target", {}).get("Attribute"))
    }
    return ResourceChange(
        action=answer["Action"],
        logical_id=answer["LogicalResourceId"],
        type=answer["ResourceType"],
        physical_id=answer.get("PhysicalResourceId") or None,
        replacement=replacement,
        properties=tuple(sorted(names)),
        lost=_lost(answer, replacement) if goes and not kept else None,
        kept_outside=goes and kept,
    )


def _lost(answer: Mapping[str, Any], replacement: str) -> str | None:
    held = HOLDS.get(answer["ResourceType"])
    if held is None:
        return None
    name = answer.get("PhysicalResourceId") or answer["LogicalResourceId"]
    short = str(name).rpartition("/")[2]
    if replacement == "maybe":
        return f"{short} may be replaced by a new one: all its {held} would be lost"
    if replacement == "yes":
        return f"{short} is replaced by a new one: all its {held} are lost"
    return f"{short} is deleted: all its {held} are lost"


def event(answer: Mapping[str, Any]) -> StackEvent:
    """One event of a DescribeStackEvents answer."""
    return StackEvent(
        event_id=answer["EventId"],
        at_ms=round(answer["Timestamp"].timestamp() * 1000),
        logical_id=answer.get("LogicalResourceId", ""),
        type=answer.get("ResourceType", ""),
        physical_id=answer.get("PhysicalResourceId", ""),
        status=answer.get("ResourceStatus", ""),
        reason=answer.get("ResourceStatusReason", ""),
    )


# -- what went wrong -------------------------------------------------------------------------------------------------


def first_failure(events: Iterable[StackEvent]) -> StackFailure | None:
    """The failure that caused the others; None if nothing failed.

    A resource that was cancelled because another failed is not a cause, and the stack's own event only repeats others.

    Args:
        events: the events of one operation, oldest first.
    """
    failed = [one for one in events if one.status.endswith("_FAILED") and not one.reason.startswith(_CANCELLED)]
    own = [one for one in failed if one.type != STACK]
    # an alarm that undoes an update fails no resource: the stack says why it goes back
    undone = [one for one in events if one.type == STACK and one.status.endswith("ROLLBACK_IN_PROGRESS") and one.reason]
    for one in own or failed or undone:
        return StackFailure(
            logical_id=one.logical_id, type=one.type, status=one.status, reason=one.reason, todo=advice(one.reason)
        )
    return None


def stuck(events: Iterable[StackEvent]) -> list[str]:
    """Logical ids of resources that a rollback could not restore, sorted.

    Args:
        events: the events of one operation, oldest first.
    """
    goes_back = False
    found = set()
    for one in events:
        if one.type == STACK and "ROLLBACK_IN_PROGRESS" in one.status:
            goes_back = True
        elif goes_back and one.status.endswith("_FAILED") and one.type != STACK:
            found.add(one.logical_id)
    return sorted(found)


# Reasons are the services' own texts, passed on by CloudFormation; the first pattern that matches counts.
_ADVICE: Final[Sequence[tuple[str, str]]] = (
    (
        r"not authorized to perform:? (?P<action>[\w:*-]+)",
        "Add the action {action} to the policy of the deploying user (or of the stack's role), then deploy again.",
    ),
    (r"AccessDenied|Access Denied", "The deploying user lacks a permission (see the reason). Add it and deploy again."),
    (
        r"visibility timeout: \d+ seconds is less than Function timeout",
        "Raise the queue's visibility to six times the function's timeout, or shorten the timeout.",
    ),
    (
        r"QueueDeletedRecently|wait (?:\d+|sixty) seconds",
        "SQS keeps the name of a deleted queue for 60 seconds: wait a minute, then deploy again.",
    ),
    (
        r"custom-named resource requires replacing",
        "CloudFormation cannot make a resource while an old one has its name: choose another name, or undo the change.",
    ),
    (
        r"already exists|AlreadyExists|ResourceExistence|QueueNameExists",
        "A resource of this name exists outside the stack: give this one another name (a prefix), or delete the other one.",
    ),
    (
        r"cloudwatch:[\w-]*:\d{12}:alarm:|[Rr]ollback trigger",
        "An alarm went off and the update was undone. See what the function reported meanwhile, correct that, deploy again.",
    ),
    (
        r"cannot be assumed by Lambda",
        "A new role takes some seconds to be known everywhere: deploy again.",
    ),
    (r"PermanentRedirect", "The bucket is in another region than the stack: give one of the stack's region."),
    (r"NoSuchKey|NoSuchBucket|S3 Error Code", "The package is not where the template says: run onefold deploy again."),
    (
        r"UnreservedConcurrentExecution",
        "The account's concurrency is used up by reservations: ask for a higher quota, or reserve less.",
    ),
    (r"LimitExceeded|limit exceeded|[Qq]uota", "A quota of the account is used up: ask for more in Service Quotas."),
    (
        r"Rate exceeded|Throttl|Internal ?Failure|InternalError|ServiceUnavailable",
        "The service failed for now: deploy again in a few minutes.",
    ),
)


def advice(reason: str) -> str:
    """What to do about a failure, by its reason; general advice if the reason is not known."""
    for pattern, text in _ADVICE:
        found = re.search(pattern, reason)
        if found is not None:
            return text.format(**found.groupdict())
    return "Correct what the reason names, then deploy again."


def way_out(status: str, stack: str, stuck: Sequence[str] = ()) -> str:
    """What to do with a stack in `status` before it can be deployed to; empty if nothing is needed.

    Args:
        stuck: logical ids that a rollback could not restore.

    Statuses: CloudFormation user guide, "Understand CloudFormation stack status codes".
    """
    delete = f"aws cloudformation delete-stack --stack-name {stack}"
    if status == "ROLLBACK_COMPLETE":
        return (
            f"Its creation failed and was undone; such a stack can only be deleted: {delete}, then deploy again."
            " Resources with DeletionPolicy Retain stay and must be deleted by name."
        )
    if status in ("CREATE_FAILED", "ROLLBACK_FAILED", "DELETE_FAILED"):
        return f"Delete it, and see its events for what stays behind: {delete}, then deploy again."
    if status == "UPDATE_ROLLBACK_FAILED":
        skip = f" If one cannot be brought back: --resources-to-skip {' '.join(stuck)}." if stuck else ""
        return (
            "Remove the cause, then let CloudFormation finish going back: aws cloudformation continue-update-rollback"
            f" --stack-name {stack}.{skip} After that deploy again."
        )
    if status == "UPDATE_FAILED":
        return f"Go back to the last state that worked: aws cloudformation rollback-stack --stack-name {stack}."
    if status == "IMPORT_ROLLBACK_FAILED":
        return f"See its events: aws cloudformation describe-stack-events --stack-name {stack}."
    return ""


def is_deployable(status: str) -> bool:
    """Whether a change set can be made for a stack in this status."""
    return status in (
        "ABSENT", _NEW, "CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE",
        "IMPORT_ROLLBACK_COMPLETE",
    )  # fmt: skip


_ABSENT: Final = object()
_SECTIONS: Final = ("Parameters", "Mappings", "Conditions", "Resources", "Outputs")  # sections whose members have names


class Difference(Struct, frozen=True, kw_only=True):
    """One difference between two templates.

    Args:
        section: the section of the template, for example `Resources`.
        name: the name of the member, for example a logical id; empty if the section is a single value.
        type: the type of the resource; empty in other sections.
        path: the path of the property, for example `Properties.VisibilityTimeout`; empty if the whole member was added or
            removed.
        kind: `added`, `removed` or `changed`.
        before, after: the values; None if there is none.
    """

    section: str
    name: str
    type: str
    path: str
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """All differences between two templates, in the order of their names."""
    found: list[Difference] = []
    for section in sorted({*before, *after}):
        old, new = before.get(section, _ABSENT), after.get(section, _ABSENT)
        if section not in _SECTIONS:
            found += [_difference(section, "", "", *one) for one in _values("", old, new)]
            continue
        members, wanted = _mapping(old), _mapping(new)
        for name in sorted({*members, *wanted}):
            was, now = members.get(name, _ABSENT), wanted.get(name, _ABSENT)
            type_ = _mapping(was if now is _ABSENT else now).get("Type", "") if section == "Resources" else ""
            if was is _ABSENT or now is _ABSENT:
                found += [_difference(section, name, type_, "", was, now)]
            else:
                found += [_difference(section, name, type_, *one) for one in _values("", was, now)]
    return found


def read_template(text: str | Mapping[str, Any], stack: str) -> Mapping[str, Any]:
    """A deployed template as a value.

    Raises:
        UsageError: it is not JSON, so `onefold deploy` did not write it.
    """
    if not isinstance(text, str):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise errors.UsageError(
            f"The template of stack {stack} is not JSON.",
            meaning="onefold deploy writes JSON: another tool deploys this stack, or it was given YAML.",
            todo="Give the app a stack of its own (--stack NAME), or compare it with onefold synth --format yaml.",
        )
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _values(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """The paths at which two values differ, as deep as both have them; lists of different lengths differ as a whole."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            deeper = f"{path}.{name}" if path else name
            yield from _values(deeper, before.get(name, _ABSENT), after.get(name, _ABSENT))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _values(f"{path}[{index}]", old, new)
    elif not _equal(before, after):
        yield path, before, after


def _equal(before: Any, after: Any) -> bool:
    """Whether two values are the same; 30 and "30" differ here, though CloudFormation treats them alike."""
    return type(before) is type(after) and before == after


def _difference(section: str, name: str, type_: str, path: str, before: Any, after: Any) -> Difference:
    return Difference(
        section=section,
        name=name,
        type=type_,
        path=path,
        kind="added" if before is _ABSENT else "removed" if after is _ABSENT else "changed",
        before=None if before is _ABSENT else before,
        after=None if after is _ABSENT else after,
    )
