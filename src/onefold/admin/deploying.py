"""Deploying an app's plan: the clients, the stack, and the steps in an order that loses nothing; or only comparing it.

A `Deployment` is one plan, one stack, one region. It uploads, prepares and executes; in between, its caller shows the
changes and asks for confirmation.
Never here: the content of the template (`deploy/cloudformation.py`), questions, tables.
Invariant: nothing is sent to AWS before the template was written and the archive is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, extras, limits
from onefold.admin.session import SessionJobs
from onefold.admin.stranding import Stranding, stranding
from onefold.clock import Never
from onefold.deploy import apply, cloudformation, rollback
from onefold.deploy.apply import ChangeSet, Deployed, LiveStack, Rollout, StackDrift, Uploaded
from onefold.deploy.changes import Difference, StackEvent, StackState, differences, read_template
from onefold.deploy.existing import Holder, Looking
from onefold.deploy.plan import DeployPlan
from onefold.deploy.stack import stack_of
from onefold.engines.urls import url_parts

if TYPE_CHECKING:
    from onefold.engines.aws.session import Session
    from onefold.outside import Clock, Entropy

Report = Callable[[str], None]

_STACK_NAME = re.compile(rf"[A-Za-z][-A-Za-z0-9]{{0,{apply.STACK_NAME_CHARS_MAX - 1}}}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # S3 user guide, bucket naming rules
_TOPIC = re.compile(r"arn:[a-z-]+:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}")  # SNS API, Topic ARN
# Parameters of the template (deploy/cloudformation.py) that a deployment fills in.
_CODE_BUCKET, _CODE_KEY, _ALARM_TOPIC = "CodeBucket", "CodeKey", "AlarmTopic"


class DeployLocation(Struct, frozen=True, kw_only=True):
    """Where to deploy.

    Args:
        region: of AWS. stack: name of the CloudFormation stack. endpoint: URL of an emulator; None for AWS.
    """

    region: str
    stack: str
    endpoint: str | None = None


class Comparison(Struct, frozen=True, kw_only=True):
    """What differs between what is deployed and what would be deployed.

    Args:
        stack: its name. status: the status of the stack, `ABSENT` if it does not exist.
        differences: in the template.
        drift: what was changed since the stack made it; None if that was not asked for.
        stranding: what a deployment would strand; None if there is no stack, or that was not asked for.
    """

    stack: str
    status: str
    differences: tuple[Difference, ...]
    drift: tuple[StackDrift, ...] | None = None
    stranding: Stranding | None = None


def location_of(
    plan: DeployPlan, url: str, *, region: str | None, stack: str | None, endpoint: str | None
) -> DeployLocation:
    """Where a plan is deployed: from the options, the app's URL and the environment.

    Args:
        url: the app's engine; `aws://REGION` names the region.
        region, stack, endpoint: as given; None if not given.

    Raises:
        UsageError: no region is known, or CloudFormation does not accept the stack's name.
    """
    parts = url_parts(url, "aws://eu-west-1")
    named = parts.hostname if parts.scheme == "aws" else None
    found = (
        region or named or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _configured_region()
    )
    if not found:
        raise errors.UsageError(
            "No region is known.", todo="Give --region, set AWS_REGION, or choose one in your AWS profile."
        )
    name = stack or plan.name.replace("_", "-")
    if not _STACK_NAME.fullmatch(name):
        raise errors.UsageError(
            f"{name!r} cannot be the name of a stack.",
            meaning="It begins with a letter and has letters, digits and hyphens, 128 at most.",
            todo="Give --stack NAME.",
        )
    return DeployLocation(region=found, stack=name, endpoint=endpoint)


class Contents(Struct, frozen=True, kw_only=True):
    """What a stack holds.

    Args:
        stack: its name. status: the status of the stack. protected: whether it is protected from deletion.
        holders: its queues, tables and archives, with how much each holds.
    """

    stack: str
    status: str
    protected: bool
    holders: tuple[Holder, ...]

    @property
    def losses(self) -> tuple[str, ...]:
        """What would be lost with the stack, one sentence each."""
        return tuple(
            f"{one.name} is deleted: all its {one.holds} are lost" for one in self.holders if one.count and not one.kept
        )


class Deployment:
    """One plan on its way to one stack.

    Args:
        plan: what to deploy. location: where. rollout: how.
        clock, entropy: for pauses and tokens.

    Raises:
        UsageError: boto3 is not installed, or no client can be made for the region.
    """

    def __init__(
        self,
        plan: DeployPlan,
        location: DeployLocation,
        *,
        clock: Clock,
        entropy: Entropy,
        rollout: Rollout = Rollout(),  # noqa: B008 - frozen
    ) -> None:
        self.plan = plan
        self.rollout = replace(rollout, tags=plan.tags)
        self.location = location
        self._clock = clock
        self._entropy = entropy
        self._session, self._errors = _connected(location)
        self._looking = Looking(self._session, self._errors)
        never = Never()
        self._live = LiveStack(
            self._session.client("cloudformation"),
            location.stack,
            aws_errors=self._errors,
            pause=lambda ms: _wait(clock, never, ms),
        )

    def state(self) -> StackState:
        """The state of the stack; `ABSENT` if there is none."""
        return self._live.stack_state()

    def check(self, bucket: str | None, alarm_topic: str | None) -> None:
        """Refuse what could not be deployed, before anything is packed or uploaded.

        Args:
            bucket: for the functions' package. alarm_topic: ARN; empty for none; None to keep what the stack has.

        Raises:
            UsageError: no bucket, or one in another region; not a topic's ARN; the stack is in a state that allows no
                deployment, or the table's records have another layout.
            NotFoundError: the bucket does not exist.
        """
        if self.plan.functions and not bucket:
            raise errors.UsageError(
                "No bucket was given for the functions' package.",
                meaning="CloudFormation accepts code only from S3, from a bucket in the region of the stack.",
                todo="Make one once (aws s3 mb s3://NAME --region REGION), then give --bucket NAME or set ONEFOLD_BUCKET.",
            )
        if bucket and not _BUCKET.fullmatch(bucket):
            raise errors.UsageError(
                f"{bucket!r} cannot be the name of a bucket.", todo="Give --bucket NAME, not a URL or an ARN."
            )
        if alarm_topic and not _TOPIC.fullmatch(alarm_topic):
            raise errors.UsageError(
                f"{alarm_topic!r} is not the ARN of an SNS topic.",
                todo="Write for example arn:aws:sns:eu-west-1:111122223333:pages, or '' for none.",
            )
        if bucket:
            apply.check_bucket(self._session.client("s3"), bucket, self.location.region, self._errors)
        state = self._live.stack_state()
        self._live.refuse(state)
        self._check_layout()

    def layout(self) -> Literal[1, 2] | None:
        """The layout of the records that the plan's table has; None if there is none yet, or no such table.

        An empty table has the layout that the stack's functions were given.

        Raises:
            UsageError: not allowed. TransientError: AWS failed temporarily.
        """
        table = self.plan.table
        if table is None:
            return None
        url = self._live.stack_state().outputs.get("EngineUrl")
        deployed = None if url is None else stack_of(url)
        return self._looking.layout(table) or (deployed.layout if deployed and deployed.table == table else None)

    def _check_layout(self) -> None:
        """Refuse to give the functions of a stack a layout other than the one their table has."""
        has, wanted = self.layout(), self.plan.stack.layout
        if has == 2 != wanted:
            raise errors.UsageError(
                f"The records in table {self.plan.table} have layout 2, and layout 1 was asked for.",
                meaning="The stack's functions would refuse every message.",
                todo="Add --layout 2, or layout=2 to the app's URL.",
            )
        if has == 1 != wanted:
            raise errors.UsageError(
                f"The records in table {self.plan.table} have layout 1, and layout 2 was asked for.",
                meaning="The stack's functions would not find what is done, and would refuse every message.",
                todo=f"Move them first: onefold records migrate dynamodb://{self.location.region}/{self.plan.table}",
            )

    def upload(self, package: Path, sha256: str, bucket: str, report: Report) -> Uploaded:
        """Put the archive into the bucket, under its hash.

        Raises:
            UsageError: S3 refuses. NotFoundError: the bucket does not exist.
        """
        return apply.upload_package(
            self._session.client("s3"), bucket, self._prefix, package, sha256, self._errors, report
        )

    def prepare(
        self, code: Uploaded | None, bucket: str | None, alarm_topic: str | None, report: Report
    ) -> ChangeSet | None:
        """Make the change set; None if nothing would change.

        Args:
            code: where the archive is; None if the plan has no function.
            bucket: for a template that is too long to be sent.
            alarm_topic: ARN; None keeps what the stack has.

        Raises:
            UsageError: the template is too long for CloudFormation or its request and no bucket is given, or it was refused.
        """
        text = cloudformation.to_json(self.plan, indent=False)
        url = (
            None if len(text.encode()) <= apply.TEMPLATE_BODY_BYTES_MAX else self._upload_template(text, bucket, report)
        )
        parameters: dict[str, str | None] = {_ALARM_TOPIC: alarm_topic}
        if code is not None:
            parameters |= {_CODE_BUCKET: code.bucket, _CODE_KEY: code.key}
        known = self._existing()
        for one in known:
            report(f"{one.name} exists already, in no stack: it is imported, with the {one.holds} that it holds")
        report(f"asking CloudFormation what would change in stack {self.location.stack} ({self.location.region})")
        template = text if url is None else None
        return self._live.prepare(
            template, url, parameters, self._entropy.token(), self.rollout, imports=bool(known),
            rollback=self._rollback(report),
        )  # fmt: skip

    def _rollback(self, report: Report) -> dict[str, Any] | None:
        """The alarms that undo the update; None leaves those that the stack has."""

        def look(names: Sequence[str]) -> dict[str, rollback.Trigger]:
            return rollback.alarms_by_name(self._session.client("cloudwatch"), names, self._errors)

        deployed = self._deployed().get("Resources", {})
        used = rollback.triggers(self.rollout, self.plan.alarms, deployed, look, report)
        return None if used is None else rollback.configuration(used, self.rollout.rollback_minutes or 0)

    def _deployed(self) -> Mapping[str, Any]:
        """The deployed template; empty if there is none."""
        found = self._live.template()
        return {} if found is None else read_template(found, self.location.stack)

    def _existing(self) -> list[Holder]:
        """What the plan would make and what exists already outside any stack.

        Raises:
            UsageError: another stack has one of them.
        """
        found = self._looking.there(cloudformation.template(self.plan), self._deployed())
        for one in found:
            if one.stack not in (None, self.location.stack):
                raise errors.UsageError(
                    f"{one.name} belongs to stack {one.stack}.",
                    meaning="Two apps would work on one another's " + one.holds + "; nothing was changed.",
                    todo=f"Give this app a prefix of its own, as --prefix {self.plan.stack.prefix}{self.plan.app}-.",
                )
        return [one for one in found if one.stack is None]

    def notifies_nobody(self, alarm_topic: str | None) -> bool:
        """Whether there are alarms, but nobody is notified of them.

        Args:
            alarm_topic: as given; None to keep what the stack has.
        """
        if not self.plan.alarms or self.plan.topic is not None:
            return False
        return not (self.state().parameters.get(_ALARM_TOPIC) if alarm_topic is None else alarm_topic)

    def contents(self) -> Contents:
        """What the deployed stack holds.

        Raises:
            NotFoundError: there is no such stack. UsageError: AWS does not allow it.
        """
        deployed, state = self._live.template(), self.state()
        if deployed is None:
            raise errors.NotFoundError(
                f"There is no stack {self.location.stack} in {self.location.region}.",
                todo="Give its --stack, --region or --prefix.",
            )
        holders = self._looking.there(read_template(deployed, self.location.stack), {}, counted=True)
        return Contents(
            stack=self.location.stack, status=state.status, protected=state.protected, holders=tuple(holders)
        )

    def destroy(self, on_event: Callable[[StackEvent], None]) -> Deployed:
        """Delete the stack and follow it to its end; see `LiveStack.delete`."""
        return self._live.delete(self.rollout.role_arn, f"onefold-{self._entropy.token()}", on_event)

    def drift(self) -> list[StackDrift]:
        """What was changed since the stack made it; see `LiveStack.drift`."""
        return self._live.drift()

    def discard(self, change_set: ChangeSet) -> None:
        """Remove a change set that was not confirmed."""
        self._live.discard(change_set)

    def execute(self, change_set: ChangeSet, on_event: Callable[[StackEvent], None]) -> Deployed:
        """Execute a change set and follow it to its end; see `LiveStack.execute`.

        An existing stack is protected before that, a new one afterwards.
        """
        if not change_set.creates:
            self._live.protect(self.rollout)
        watched_ms = (self.rollout.rollback_minutes or 0) * limits.MINUTE_MS
        done = self._live.execute(change_set, f"onefold-{self._entropy.token()}", on_event, watched_ms=watched_ms)
        if change_set.creates and done.ok:
            self._live.protect(self.rollout)
        return done

    def compare(self, *, drift: bool = False) -> Comparison:
        """What differs between the deployed template and the plan's; with `drift`, also how the stack has drifted."""
        before = self._deployed()
        return Comparison(
            stack=self.location.stack,
            status=self._live.stack_state().status if before else "ABSENT",
            differences=tuple(differences(before, cloudformation.template(self.plan))),
            drift=tuple(self.drift()) if drift and before else None,
        )

    def stranding(self, jobs: SessionJobs) -> Stranding | None:
        """What deploying the plan would strand; None if no stack of onefold is deployed.

        Args:
            jobs: the jobs of the app.

        Raises:
            UsageError: not allowed. TransientError: an engine or store cannot be reached now.
        """
        url = self._live.stack_state().outputs.get("EngineUrl")
        if url is None:
            return None
        if self.location.endpoint is not None:
            url += f"{'&' if '?' in url else '?'}endpoint={self.location.endpoint}"
        after = cloudformation.template(self.plan)["Resources"]
        leaving = {
            name: one
            for name, one in self._deployed()["Resources"].items()
            if one["Type"] == "AWS::SQS::Queue" and _queue_name(one) != _queue_name(after.get(name, {}))
        }
        holders = self._looking.there({"Resources": leaving}, {}, counted=True)
        return stranding(url, jobs, holders, clock=self._clock, entropy=self._entropy)

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    @property
    def _prefix(self) -> str:
        return f"onefold/{self.location.stack}"

    def _upload_template(self, text: str, bucket: str | None, report: Report) -> str:
        content = text.encode()
        if not bucket:
            raise errors.UsageError(
                f"The template has {len(content):,} bytes; a request may have {apply.TEMPLATE_BODY_BYTES_MAX:,}.",
                todo="Give --bucket NAME: CloudFormation reads it from there.",
            )
        if len(content) > apply.TEMPLATE_BYTES_MAX:
            raise errors.UsageError(
                f"The template has {len(content):,} bytes; CloudFormation allows {apply.TEMPLATE_BYTES_MAX:,}.",
                todo="Split the app: several apps may share queues and a table.",
            )
        digest = hashlib.sha256(content).hexdigest()
        s3 = self._session.client("s3")
        key = f"{self._prefix}/{digest}.template.json"
        apply.upload(s3, bucket, key, content, digest, self._errors, report)
        return f"{s3.meta.endpoint_url}/{bucket}/{key}"


def _queue_name(resource: Mapping[str, Any]) -> object:
    return resource.get("Properties", {}).get("QueueName")


def _wait(clock: Clock, never: Never, ms: int) -> None:
    clock.wait(never, ms)


def _connected(location: DeployLocation) -> tuple[Session, apply.Translating]:
    with extras.needed("Deploying", "aws"):
        from onefold.engines.aws.session import Session, aws_errors
    return Session(location.region, {"*": location.endpoint} if location.endpoint else None), aws_errors


def _configured_region() -> str | None:
    with extras.needed("Deploying", "aws"):
        return apply.configured_region()
