"""Deploys: uploads the archive to S3 under its hash, makes the template a change set, and executes and follows that.

The order loses nothing: first the archive (nothing refers to it yet), then a change set (which changes nothing), then,
after a person's approval, its execution, which CloudFormation finishes or undoes even if this process ends. The clients
that `admin/deploying.py` makes, the translation of AWS's errors and the pause between two polls are passed in.

Never here: what a change or failure means (`changes.py`), questions to people, credentials.
Invariant: only `execute` and `delete` change resources, and `execute` takes the change set that was shown.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from onefold import duration, errors, limits
from onefold.deploy import changes
from onefold.deploy.changes import ResourceChange, StackEvent, StackFailure, StackState

Report = Callable[[str], None]
Pause = Callable[[int], None]
Translating = Callable[[str, str], AbstractContextManager[None]]
"""`aws_errors(action, resource)` of the AWS backend: turns AWS's errors inside the block into onefold's."""

TEMPLATE_BODY_BYTES_MAX: Final = 51_200  # CloudFormation quotas: template body in a request; a larger one must be in S3
TEMPLATE_BYTES_MAX: Final = 1_048_576  # same: template body in an S3 object
STACK_NAME_CHARS_MAX: Final = 128  # CloudFormation CreateStack, StackName: [a-zA-Z][-a-zA-Z0-9]*
LOOK_MS: Final = 2_000  # between two polls; the API's rate is shared by the whole account
CHANGE_SET_MS_MAX: Final = 10 * limits.MINUTE_MS  # for making a change set, which usually takes seconds
FOLLOW_MS_MAX: Final = 2 * limits.HOUR_MS  # for executing it; after that it is no longer followed
_CAPABILITIES: Final = ("CAPABILITY_IAM", "CAPABILITY_NAMED_IAM")  # the template makes one role per function
# What DescribeChangeSet says about a change set that changes nothing (there is no error code for it).
_NOTHING: Final = ("didn't contain changes", "No updates are to be performed")
_LOOKS_FAILED_MAX: Final = 5  # after this many in a row, the stack is no longer followed


class Uploaded(Struct, frozen=True, kw_only=True):
    """Where the archive is in S3. `fresh`: it was not there before."""

    bucket: str
    key: str
    fresh: bool


class ChangeSet(Struct, frozen=True, kw_only=True):
    """A change set that has not been executed yet. `creates`: the stack does not exist yet."""

    stack: str
    arn: str
    creates: bool
    changes: tuple[ResourceChange, ...]

    @property
    def losses(self) -> tuple[str, ...]:
        """What would be lost, a sentence each."""
        return tuple(one.lost for one in self.changes if one.lost is not None)


class Deployed(Struct, frozen=True, kw_only=True):
    """How an execution ended.

    Args:
        status: the stack's. ok: whether everything was done.
        outputs: the stack's. failure: what failed first, if anything did.
        todo: what to do about the stack's present state; may be empty.
    """

    stack: str
    status: str
    ok: bool
    outputs: Mapping[str, str]
    failure: StackFailure | None = None
    todo: str = ""


_REPLACED: Final = ["AWS::SQS::Queue", "AWS::DynamoDB::Table", "AWS::Events::Archive"]
KEEPING_POLICY: Final = json.dumps(
    {
        "Statement": [
            {"Effect": "Allow", "Action": "Update:*", "Principal": "*", "Resource": "*"},
            {
                "Effect": "Deny",
                "Action": "Update:Replace",
                "Principal": "*",
                "Resource": "*",
                "Condition": {"StringEquals": {"ResourceType": _REPLACED}},
            },
        ]
    }
)
"""A stack policy by which no resource with contents is replaced. (Those that leave the template are kept anyway.)"""


class Rollout(Struct, frozen=True, kw_only=True):
    """How a stack is deployed, apart from its contents.

    Args:
        role_arn: the ARN of the role that CloudFormation uses; None: the credentials of the deploying user.
        notifications: ARNs of SNS topics that get the stack's events.
        protected: turn termination protection on or off; None leaves it unchanged.
        policy: the stack policy as JSON; None leaves it unchanged.
        tags: the tags of the stack, which CloudFormation passes on to each resource that can have tags.
        rollback_minutes: for how long after an update its alarms can undo it, 0 to 180; None leaves this unchanged.
        rollback_alarms: names of these alarms, at most 5; empty: the functions' `failing` alarms that the stack has;
            one empty name: none, also for later updates.
    """

    role_arn: str | None = None
    notifications: tuple[str, ...] = ()
    protected: bool | None = None
    policy: str | None = None
    tags: Mapping[str, str] = {}
    rollback_minutes: int | None = None
    rollback_alarms: tuple[str, ...] = ()

    @property
    def is_undone_by_alarms(self) -> bool:
        """Whether anything was said about alarms that undo an update."""
        return self.rollback_minutes is not None or bool(self.rollback_alarms)

    def arguments(self) -> dict[str, Any]:
        """The arguments of CreateChangeSet."""
        found: dict[str, Any] = {}
        if self.role_arn is not None:
            found["RoleARN"] = self.role_arn
        if self.notifications:
            found["NotificationARNs"] = list(self.notifications)
        if self.tags:
            found["Tags"] = [{"Key": name, "Value": value} for name, value in self.tags.items()]
        return found


class StackDrift(Struct, frozen=True, kw_only=True):
    """A resource that has changed since its stack made it.

    Args:
        status: `MODIFIED` or `DELETED`. properties: path, the template's value, the actual value.
    """

    logical_id: str
    type: str
    status: str
    properties: tuple[tuple[str, str, str], ...]


def check_bucket(s3: Any, bucket: str, region: str, aws_errors: Translating) -> None:
    """Refuse a bucket from which Lambda cannot load code.

    Raises:
        NotFoundError: the bucket does not exist. UsageError: it is in another region than the stack.
    """
    from botocore.exceptions import ClientError

    with aws_errors("s3:ListBucket", f"bucket {bucket}"):
        try:
            answer = s3.head_bucket(Bucket=bucket)
        except ClientError as error:
            answer = error.response
            if (
                answer["ResponseMetadata"].get("HTTPStatusCode") != 403
            ):  # permission to list is not needed, and uploading shows whether the bucket can be used
                raise
    # S3's answer names the region, even if the caller has no permission (S3 API, HeadBucket).
    found = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-bucket-region", region)
    if found != region:
        raise errors.UsageError(
            f"Bucket {bucket} is in {found}, the stack in {region}.",
            meaning="Lambda accepts code only from a bucket in its own region.",
            todo=f"Make one there: aws s3 mb s3://NAME --region {region}",
        )


def upload(
    s3: Any, bucket: str, key: str, content: bytes, sha256: str, aws_errors: Translating, report: Report
) -> Uploaded:
    """Upload an object unless it exists; S3 checks the content against its hash.

    Args:
        key: contains the hash, so that an object never changes once it is written.
        sha256: of the content, hexadecimal.

    Raises:
        UsageError: not allowed, or the bucket is in another account or region. NotFoundError: the bucket does not exist.
        TransientError: S3 could not be reached; uploading again is harmless.
    """
    from botocore.exceptions import ClientError

    where = f"arn:aws:s3:::{bucket}/{key}"
    with aws_errors("s3:GetObject", where):
        try:
            found = s3.head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            # Without permission to list the bucket, the answer for an absent object is 403 (S3 API, HeadObject); if
            # uploading is not allowed either, the upload fails.
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") not in (403, 404):
                raise
        else:
            if found["ContentLength"] == len(content):
                report(f"s3://{bucket}/{key} is there already")
                return Uploaded(bucket=bucket, key=key, fresh=False)
    report(f"uploading {len(content) / 1024:,.0f} KB to s3://{bucket}/{key}")
    checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
    with aws_errors("s3:PutObject", where):
        s3.put_object(Bucket=bucket, Key=key, Body=content, ChecksumSHA256=checksum)
    return Uploaded(bucket=bucket, key=key, fresh=True)


def upload_package(
    s3: Any, bucket: str, prefix: str, package: Path, sha256: str, aws_errors: Translating, report: Report
) -> Uploaded:
    """Upload an archive as `<prefix>/<sha256>.zip`; raises what `upload` raises."""
    return upload(s3, bucket, f"{prefix}/{sha256}.zip", package.read_bytes(), sha256, aws_errors, report)


class LiveStack:
    """One CloudFormation stack.

    Args:
        client: boto3's client for CloudFormation. name: the name of the stack.
        pause: waits for the given number of milliseconds.
    """

    def __init__(self, client: Any, name: str, *, aws_errors: Translating, pause: Pause) -> None:
        self.name = name
        self._reference = name  # its name in requests; its ARN while it is being deleted
        self._client = client
        self._errors = aws_errors
        self._pause = pause
        self._last_event: str | None = None

    def _asking(self, action: str) -> AbstractContextManager[None]:
        return self._errors(f"cloudformation:{action}", f"stack {self.name}")

    def stack_state(self) -> StackState:
        """The stack's state; `ABSENT` if the stack does not exist."""
        from botocore.exceptions import ClientError

        with self._asking("DescribeStacks"):
            try:
                return changes.stack_state_of(self._client.describe_stacks(StackName=self._reference)["Stacks"][0])
            except ClientError as error:
                if is_absent(error):
                    return StackState(status="ABSENT")
                raise

    def refuse(self, before: StackState) -> None:
        """Refuse a stack for which no change set can be made in its present state.

        Raises:
            UsageError: somebody is deploying it, or an earlier operation failed; the error says what to do.
        """
        if before.is_busy:
            raise errors.UsageError(
                f"Stack {self.name} is {before.status}: somebody else is deploying it.",
                todo=f"Wait (aws cloudformation describe-stacks --stack-name {self.name}), then deploy again.",
            )
        if not changes.is_deployable(before.status):
            raise errors.UsageError(
                f"Stack {self.name} is {before.status}" + (f": {before.reason}" if before.reason else "."),
                meaning="CloudFormation accepts no change set for it in this state; nothing was changed.",
                todo=changes.way_out(before.status, self.name),
            )

    def prepare(
        self,
        template: str | None,
        template_url: str | None,
        parameters: Mapping[str, str | None],
        token: str,
        rollout: Rollout = Rollout(),  # noqa: B008 - frozen
        *,
        imports: bool = False,
        rollback: Mapping[str, Any] | None = None,
    ) -> ChangeSet | None:
        """Make a change set; returns None if it would change nothing.

        Args:
            template: its text, or None if `template_url` says where it is in S3.
            parameters: the parameters of the template; None leaves a parameter unchanged. token: names the change set;
                new each time.
            rollout: how to deploy. imports: import resources of the template that exist outside any stack.
            rollback: the alarms that undo the update, as `rollback.configuration`; None leaves the stack's own unchanged.

        Raises:
            UsageError: the stack's state does not allow a deployment, or the template is refused.
            TransientError: CloudFormation did not finish in time or could not be reached.
        """
        before = self.stack_state()
        self.refuse(before)
        given: dict[str, Any] = {"TemplateBody": template} if template is not None else {"TemplateURL": template_url}
        given |= rollout.arguments()
        if imports:
            given["ImportExistingResources"] = True
        if rollback is not None:
            given["RollbackConfiguration"] = rollback
        with self._asking("CreateChangeSet"):
            arn = self._client.create_change_set(
                StackName=self.name,
                ChangeSetName=f"onefold-{token}",
                ChangeSetType="CREATE" if before.is_new else "UPDATE",
                ClientToken=token,
                Capabilities=list(_CAPABILITIES),
                Parameters=_parameters(parameters, before),
                **given,
            )["Id"]
        made = self._made(arn)
        if made["Status"] != "FAILED":
            return ChangeSet(stack=self.name, arn=arn, creates=before.is_new, changes=tuple(self._changes(arn)))
        self.discard(ChangeSet(stack=self.name, arn=arn, creates=before.is_new, changes=()))
        reason = str(made.get("StatusReason", ""))
        if any(text in reason for text in _NOTHING):
            return None
        raise errors.UsageError(
            f"CloudFormation refused the change set of stack {self.name}: {reason or 'it gave no reason'}",
            meaning="Nothing was changed.",
            todo=changes.advice(reason),
        )

    def discard(self, change_set: ChangeSet) -> None:
        """Delete an unwanted change set, together with the empty stack that was made for it."""
        with self._asking("DeleteChangeSet"):
            self._client.delete_change_set(ChangeSetName=change_set.arn)
        if change_set.creates and self.stack_state().status == "REVIEW_IN_PROGRESS":
            with self._asking("DeleteStack"):
                self._client.delete_stack(StackName=self.name)

    def execute(
        self, change_set: ChangeSet, token: str, on_event: Callable[[StackEvent], None], *, watched_ms: int = 0
    ) -> Deployed:
        """Execute a change set and follow it to its end, which may be a rollback.

        Args:
            on_event: called once with every event of the operation, oldest first.
            watched_ms: for how long CloudFormation waits for alarms after everything is deployed.

        Raises:
            UsageError: it can no longer be executed. TransientError: the stack could no longer be queried, or takes
                longer than it is followed; CloudFormation continues by itself.
        """
        self._last_event = next((one["EventId"] for one in self._events()), None)
        with self._asking("ExecuteChangeSet"):
            self._client.execute_change_set(ChangeSetName=change_set.arn, ClientRequestToken=token)
        seen: list[StackEvent] = []
        after = self._follow(seen, on_event, FOLLOW_MS_MAX + watched_ms)
        return Deployed(
            stack=self.name,
            status=after.status,
            ok=after.is_deployed,
            outputs=after.outputs,
            failure=None if after.is_deployed else changes.first_failure(seen),
            todo="" if after.is_deployed else changes.way_out(after.status, self.name, changes.stuck(seen)),
        )

    def protect(self, rollout: Rollout) -> None:
        """Set the settings of the stack as a whole that are not part of a change set."""
        if rollout.policy is not None:
            with self._asking("SetStackPolicy"):
                self._client.set_stack_policy(StackName=self.name, StackPolicyBody=rollout.policy)
        if rollout.protected is not None:
            with self._asking("UpdateTerminationProtection"):
                self._client.update_termination_protection(
                    StackName=self.name, EnableTerminationProtection=rollout.protected
                )

    def delete(self, role_arn: str | None, token: str, on_event: Callable[[StackEvent], None]) -> Deployed:
        """Delete the stack and follow it to its end.

        Raises:
            UsageError: not allowed. TransientError: as for `execute`.
        """
        before = self.stack_state()
        self._last_event = next((one["EventId"] for one in self._events()), None)
        role = {} if role_arn is None else {"RoleARN": role_arn}
        with self._asking("DeleteStack"):
            self._client.delete_stack(StackName=self.name, ClientRequestToken=token, **role)
        self._reference = before.arn or self.name
        seen: list[StackEvent] = []
        try:
            after = self._follow(seen, on_event, goes=True)
        finally:
            self._reference = self.name
        ok = after.status in ("ABSENT", "DELETE_COMPLETE")
        return Deployed(
            stack=self.name,
            status="DELETE_COMPLETE" if ok else after.status,
            ok=ok,
            outputs={},
            failure=None if ok else changes.first_failure(seen),
            todo="" if ok else changes.way_out(after.status, self.name, changes.stuck(seen)),
        )

    def drift(self) -> list[StackDrift]:
        """The resources that have changed since the stack made them; CloudFormation compares property by property.

        Raises:
            UsageError: not allowed. TransientError: CloudFormation did not finish in time, or could not be reached.
        """
        with self._asking("DetectStackDrift"):
            one = self._client.detect_stack_drift(StackName=self.name)["StackDriftDetectionId"]
        for _ in range(CHANGE_SET_MS_MAX // LOOK_MS):
            with self._asking("DescribeStackDriftDetectionStatus"):
                found = self._client.describe_stack_drift_detection_status(StackDriftDetectionId=one)
            if found["DetectionStatus"] != "DETECTION_IN_PROGRESS":
                break
            self._pause(LOOK_MS)
        else:
            raise errors.TransientError(
                f"The drift of stack {self.name} is not known after 10 minutes.", todo="Ask again later."
            )
        return list(self._drifts())

    def _drifts(self) -> Iterator[StackDrift]:
        token: dict[str, str] = {}
        while True:
            with self._asking("DescribeStackResourceDrifts"):
                page = self._client.describe_stack_resource_drifts(
                    StackName=self.name, StackResourceDriftStatusFilters=["MODIFIED", "DELETED"], **token
                )
            for one in page["StackResourceDrifts"]:
                yield StackDrift(
                    logical_id=one["LogicalResourceId"],
                    type=one["ResourceType"],
                    status=one["StackResourceDriftStatus"],
                    properties=tuple(
                        (part["PropertyPath"], part.get("ExpectedValue", ""), part.get("ActualValue", ""))
                        for part in one.get("PropertyDifferences", ())
                    ),
                )
            if not page.get("NextToken"):
                return
            token = {"NextToken": page["NextToken"]}

    def template(self) -> str | Mapping[str, Any] | None:
        """The last deployed template; JSON is already parsed, by boto3. None if the stack does not exist."""
        from botocore.exceptions import ClientError

        with self._asking("GetTemplate"):
            try:
                found: str | Mapping[str, Any] = self._client.get_template(
                    StackName=self.name, TemplateStage="Original"
                )["TemplateBody"]
            except ClientError as error:
                if is_absent(error):
                    return None
                raise
            return found

    # -- polling -----------------------------------------------------------------------------------------------------

    def _made(self, arn: str) -> Mapping[str, Any]:
        for _ in range(CHANGE_SET_MS_MAX // LOOK_MS):
            with self._asking("DescribeChangeSet"):
                found: Mapping[str, Any] = self._client.describe_change_set(ChangeSetName=arn)
            if found["Status"] in ("CREATE_COMPLETE", "FAILED"):
                return found
            self._pause(LOOK_MS)
        raise errors.TransientError(
            f"The change set of stack {self.name} is not ready after 10 minutes.", todo="Deploy again later."
        )

    def _changes(self, arn: str) -> Iterator[ResourceChange]:
        token: dict[str, str] = {}
        while True:
            with self._asking("DescribeChangeSet"):
                page = self._client.describe_change_set(ChangeSetName=arn, **token)
            for one in page.get("Changes", ()):
                if one.get("Type", "Resource") == "Resource":
                    yield changes.change(one["ResourceChange"])
            if not page.get("NextToken"):
                return
            token = {"NextToken": page["NextToken"]}

    def _follow(
        self,
        seen: list[StackEvent],
        on_event: Callable[[StackEvent], None],
        ms_max: int = FOLLOW_MS_MAX,
        *,
        goes: bool = False,
    ) -> StackState:
        """The final state; `goes`: the stack is being deleted, and can be gone before its last event is seen."""
        failed = 0
        for _ in range(ms_max // LOOK_MS):
            try:
                for one in self._new_events():
                    seen.append(one)
                    on_event(one)
                now = self.stack_state() if goes or self._ended(seen) else None
                if goes and now is not None and not now.status.startswith(("ABSENT", "DELETE_")):
                    now = None  # the operation has not begun
            except errors.TransientError as error:
                failed += 1
                if failed > _LOOKS_FAILED_MAX:
                    raise self._lost_sight(error.what) from error
            else:
                failed = 0
                if now is not None and not now.is_busy:
                    return now
            self._pause(LOOK_MS)
        raise self._lost_sight(f"It takes longer than {duration.to_text(ms_max)}.")

    def _ended(self, seen: Sequence[StackEvent]) -> bool:
        """Whether the stack itself has reported an end; its status alone could still be the previous one."""
        own = [one for one in seen if one.type == changes.STACK and one.logical_id == self.name]
        return bool(own) and not own[-1].status.endswith(changes.BUSY)

    def _lost_sight(self, why: str) -> errors.TransientError:
        return errors.TransientError(
            f"Stack {self.name} cannot be followed any more: {why}",
            meaning="CloudFormation continues by itself, and undoes everything if something fails.",
            todo=f"See how it ends: aws cloudformation describe-stack-events --stack-name {self.name}",
        )

    def _new_events(self) -> list[StackEvent]:
        """Events since the last poll, oldest first. CloudFormation lists the newest first."""
        new = []
        for one in self._events():
            if one["EventId"] == self._last_event:
                break
            new.append(changes.event(one))
        if new:
            self._last_event = new[0].event_id
        return new[::-1]

    def _events(self) -> Iterator[Mapping[str, Any]]:
        from botocore.exceptions import ClientError

        token: dict[str, str] = {}
        while True:
            with self._asking("DescribeStackEvents"):
                try:
                    page = self._client.describe_stack_events(StackName=self._reference, **token)
                except ClientError as error:
                    if is_absent(error) and self._reference != self.name:
                        return  # it was deleted, and CloudFormation no longer knows it
                    raise
            yield from page["StackEvents"]
            if not page.get("NextToken"):
                return
            token = {"NextToken": page["NextToken"]}


def configured_region() -> str | None:
    """The region in the user's AWS profile; None if it has none."""
    from botocore.session import get_session

    found: str | None = get_session().get_config_variable("region")
    return found


def _parameters(wanted: Mapping[str, str | None], before: StackState) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, value in sorted(wanted.items()):
        if value is not None:
            found.append({"ParameterKey": name, "ParameterValue": value})
        elif name in before.parameters:
            found.append({"ParameterKey": name, "UsePreviousValue": True})
    return found


def is_absent(error: Any) -> bool:
    """Whether an error of CloudFormation means that the stack does not exist; only its text shows it."""
    said = error.response.get("Error", {})
    return said.get("Code") == "ValidationError" and "does not exist" in said.get("Message", "")
