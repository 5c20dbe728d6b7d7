"""Deploying by change set: on ministack over real HTTP where it does as CloudFormation documents.

What it never does (a rollback that fails, throttled looks, pages) is answered by botocore's stubber, which checks every
request and answer against the model of CloudFormation.
Where ministack differs from AWS: it provisions in milliseconds; it creates a queue or table whose name is taken, a mapping
to a function that is not there, and a function whose package is not in S3, all of which AWS refuses.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from onefold import errors
from onefold.deploy import apply, changes
from onefold.deploy.apply import ChangeSet, Deployed, LiveStack
from onefold.deploy.changes import StackEvent
from onefold.engines.aws.session import Session, aws_errors
from tests.deploy.conftest import BUCKET

Make = Callable[[str], LiveStack]


def template(name: str = "orders", *, visibility: int = 30, **more: dict[str, Any]) -> str:
    resources = {
        "Orders": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": name, "VisibilityTimeout": visibility}},
        "Records": {
            "Type": "AWS::DynamoDB::Table",
            "Properties": {
                "TableName": f"{name}-records",
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
            },
        },
    }
    return json.dumps({"Resources": resources | more, "Outputs": {"OrdersUrl": {"Value": {"Ref": "Orders"}}}})


# What SQS refuses and ministack too: a visibility over 12 hours.
REFUSED = {"Type": "AWS::SQS::Queue", "DependsOn": "Orders", "Properties": {"VisibilityTimeout": 43_201}}


class Rounds:
    """Prepares and executes, with a token of its own each time, and keeps what was told."""

    def __init__(self, stack: LiveStack) -> None:
        self.stack = stack
        self.told: list[StackEvent] = []
        self._round = 0

    def prepare(self, text: str) -> ChangeSet | None:
        self._round += 1
        return self.stack.prepare(text, None, {}, f"round-{self._round}")

    def deploy(self, text: str) -> Deployed:
        change_set = self.prepare(text)
        assert change_set is not None
        self.told = []
        return self.stack.execute(change_set, f"go-{self._round}", self.told.append)


# -- a stack's life --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stack_is_created_shown_followed_and_then_unchanged(stack: Make) -> None:
    rounds = Rounds(stack("life"))
    assert rounds.stack.stack_state().status == "ABSENT"
    change_set = rounds.prepare(template("life"))
    assert change_set is not None
    assert change_set.creates
    assert [(one.action, one.logical_id, one.lost) for one in change_set.changes] == [
        ("Add", "Orders", None), ("Add", "Records", None),
    ]  # fmt: skip
    done = rounds.stack.execute(change_set, "go", rounds.told.append)
    assert done.ok
    assert done.outputs["OrdersUrl"].endswith("/life")
    statuses = [(one.logical_id, one.status) for one in rounds.told]
    assert statuses[0] == ("life", "CREATE_IN_PROGRESS")
    assert statuses[-1] == ("life", "CREATE_COMPLETE")
    assert ("Orders", "CREATE_COMPLETE") in statuses
    assert len({one.event_id for one in rounds.told}) == len(rounds.told)
    assert rounds.prepare(template("life")) is None, "nothing changed, yet there is something to deploy"
    assert rounds.stack.stack_state().is_deployed


@pytest.mark.slow
def test_an_update_in_place_loses_nothing_and_tells_its_own_events_only(stack: Make) -> None:
    rounds = Rounds(stack("update"))
    rounds.deploy(template("update"))
    change_set = rounds.prepare(template("update", visibility=60))
    assert change_set is not None
    (change,) = change_set.changes
    assert (change.action, change.replacement, change.properties) == ("Modify", "no", ("VisibilityTimeout",))
    assert change_set.losses == ()
    assert rounds.stack.execute(change_set, "go-up", rounds.told.append).status == "UPDATE_COMPLETE"
    assert not [one for one in rounds.told[-3:] if one.status.startswith("CREATE")]


@pytest.mark.slow
def test_a_replaced_queue_and_a_removed_table_are_said_to_lose_what_they_hold(stack: Make) -> None:
    rounds = Rounds(stack("loss"))
    rounds.deploy(template("loss"))
    body = json.loads(template("loss"))
    body["Resources"]["Orders"]["Properties"]["QueueName"] = "loss-renamed"
    del body["Resources"]["Records"]
    change_set = rounds.prepare(json.dumps(body))
    assert change_set is not None
    assert set(change_set.losses) == {
        "loss is replaced by a new one: all its messages are lost",
        "loss-records is deleted: all its records are lost",
    }


@pytest.mark.slow
def test_a_change_set_that_nobody_wants_leaves_nothing_behind(stack: Make) -> None:
    rounds = Rounds(stack("declined"))
    change_set = rounds.prepare(template("declined"))
    assert change_set is not None
    rounds.stack.discard(change_set)
    assert rounds.stack.stack_state().status in ("ABSENT", "DELETE_COMPLETE")


@pytest.mark.slow
def test_a_failed_creation_names_the_cause_and_the_way_out(stack: Make) -> None:
    rounds = Rounds(stack("broken"))
    done = rounds.deploy(template("broken", Bad=REFUSED))
    assert (done.ok, done.status) == (False, "ROLLBACK_COMPLETE")
    assert done.failure is not None
    assert (done.failure.logical_id, done.failure.status) == ("Bad", "CREATE_FAILED")
    assert "VisibilityTimeout" in done.failure.reason
    assert "aws cloudformation delete-stack --stack-name broken" in done.todo
    with pytest.raises(errors.UsageError, match="is ROLLBACK_COMPLETE") as refused:
        rounds.prepare(template("broken"))
    assert "delete-stack --stack-name broken" in refused.value.todo


@pytest.mark.slow
def test_a_failed_update_is_undone_and_can_be_deployed_again(stack: Make) -> None:
    rounds = Rounds(stack("undone"))
    rounds.deploy(template("undone"))
    done = rounds.deploy(template("undone", visibility=60, Bad=REFUSED))
    assert (done.ok, done.status) == (False, "UPDATE_ROLLBACK_COMPLETE")
    assert done.failure is not None
    assert done.failure.logical_id == "Bad"
    assert done.todo == ""
    assert rounds.deploy(template("undone", visibility=60)).ok


@pytest.mark.slow
def test_the_template_that_was_deployed_comes_back(stack: Make) -> None:
    rounds = Rounds(stack("text"))
    assert rounds.stack.template() is None
    rounds.deploy(template("text"))
    found = rounds.stack.template()
    assert (json.loads(found) if isinstance(found, str) else found) == json.loads(template("text"))


@pytest.mark.slow
def test_a_template_that_is_none_is_refused_as_cloudformation_says(stack: Make) -> None:
    with pytest.raises(errors.UsageError, match="CreateChangeSet"):
        stack("nonsense").prepare('{"Resources": {"A": {"Type": "AWS::No::Such"}}}', None, {}, "token")


# -- the archive -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_archive_is_uploaded_once_under_its_hash(session: Session) -> None:
    s3, told = session.client("s3"), list[str]()
    content = b"a package"
    digest = hashlib.sha256(content).hexdigest()
    first = apply.upload(s3, BUCKET, f"shop/{digest}.zip", content, digest, aws_errors, told.append)
    again = apply.upload(s3, BUCKET, f"shop/{digest}.zip", content, digest, aws_errors, told.append)
    assert (first.fresh, again.fresh) == (True, False)
    assert s3.get_object(Bucket=BUCKET, Key=first.key)["Body"].read() == content
    assert [text.split()[0] for text in told] == ["uploading", f"s3://{BUCKET}/shop/{digest}.zip"]


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_named(session: Session) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    with pytest.raises(errors.NotFoundError, match="arn:aws:s3:::no-such-bucket/k"):
        apply.upload(session.client("s3"), "no-such-bucket", "k", b"", digest, aws_errors, lambda _text: None)


def test_a_bucket_of_another_region_is_refused_before_anything_is_uploaded() -> None:
    s3 = boto3.client("s3", "eu-west-1", aws_access_key_id="any", aws_secret_access_key="any")
    stub = Stubber(s3)
    there = {"HTTPStatusCode": 200, "HTTPHeaders": {"x-amz-bucket-region": "us-east-1"}}
    stub.add_response("head_bucket", {"ResponseMetadata": there}, {"Bucket": BUCKET})
    stub.add_client_error("head_bucket", "403", "Forbidden", 403)
    stub.add_client_error("head_bucket", "404", "Not Found", 404)
    with stub:
        with pytest.raises(errors.UsageError, match="is in us-east-1, the stack in eu-west-1"):
            apply.check_bucket(s3, BUCKET, "eu-west-1", aws_errors)
        apply.check_bucket(s3, BUCKET, "eu-west-1", aws_errors)
        with pytest.raises(errors.NotFoundError, match=f"bucket {BUCKET} does not exist"):
            apply.check_bucket(s3, BUCKET, "eu-west-1", aws_errors)


# -- answers that no emulator gives ----------------------------------------------------------------------------------

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
ARN = "arn:aws:cloudformation:eu-west-1:111122223333:changeSet/onefold-t/1"
STACK_ID = "arn:aws:cloudformation:eu-west-1:111122223333:stack/shop/1"


class Stubbed:
    """A stack whose client is stubbed; every answer is checked against botocore's model of CloudFormation."""

    def __init__(self) -> None:
        client = boto3.client("cloudformation", "eu-west-1", aws_access_key_id="any", aws_secret_access_key="any")
        self.stub = Stubber(client)
        self.stub.activate()
        self.stack = LiveStack(client, "shop", aws_errors=aws_errors, pause=lambda _ms: None)

    def stands(self, status: str, reason: str = "") -> None:
        found = {"StackName": "shop", "CreationTime": NOW, "StackStatus": status, "StackStatusReason": reason}
        self.stub.add_response("describe_stacks", {"Stacks": [found]}, {"StackName": "shop"})

    def events(
        self, *newest_first: tuple[str, str, str, str], token: str | None = None, more: str | None = None
    ) -> None:
        answer: dict[str, Any] = {
            "StackEvents": [
                {
                    "StackId": STACK_ID, "EventId": event_id, "StackName": "shop", "LogicalResourceId": logical_id,
                    "ResourceType": changes.STACK if logical_id == "shop" else "AWS::SQS::Queue",
                    "Timestamp": NOW, "ResourceStatus": status, "ResourceStatusReason": reason,
                }
                for event_id, logical_id, status, reason in newest_first
            ]
        }  # fmt: skip
        if more:
            answer["NextToken"] = more
        self.stub.add_response(
            "describe_stack_events", answer, {"StackName": "shop"} | ({"NextToken": token} if token else {})
        )

    def execute(self) -> Deployed:
        change_set = ChangeSet(stack="shop", arn=ARN, creates=False, changes=())
        return self.stack.execute(change_set, "go", lambda _event: None)


OLD = ("0", "shop", "UPDATE_COMPLETE", "")


def test_a_rollback_that_fails_names_what_is_stuck() -> None:
    made = Stubbed()
    made.events(OLD)
    made.stub.add_response("execute_change_set", {}, {"ChangeSetName": ARN, "ClientRequestToken": "go"})
    made.events(("1", "shop", "UPDATE_IN_PROGRESS", ""), OLD)
    made.events(
        ("7", "shop", "UPDATE_ROLLBACK_FAILED", "The following resource(s) failed to update: [Orders]."),
        ("6", "Orders", "UPDATE_FAILED", "The specified queue does not exist."),
        ("5", "Mails", "UPDATE_FAILED", "Resource update cancelled"),
        ("4", "shop", "UPDATE_ROLLBACK_IN_PROGRESS", "The following resource(s) failed to update: [Function]."),
        ("3", "Mails", "UPDATE_FAILED", "Resource update cancelled"),
        ("2", "Function", "UPDATE_FAILED",
         "User: arn:aws:iam::1:user/ci is not authorized to perform: lambda:UpdateFunctionCode on resource: f"),
        ("1", "shop", "UPDATE_IN_PROGRESS", ""),
    )  # fmt: skip
    made.stands("UPDATE_ROLLBACK_FAILED")
    done = made.execute()
    assert not done.ok
    assert done.failure is not None
    assert done.failure.logical_id == "Function"
    assert done.failure.todo.startswith("Add the action lambda:UpdateFunctionCode ")
    assert "continue-update-rollback --stack-name shop" in done.todo
    assert "--resources-to-skip Mails Orders" in done.todo
    made.stub.assert_no_pending_responses()


def test_the_status_of_before_is_not_taken_for_the_end() -> None:
    """CloudFormation may still show the old status, and no event, just after an execution was accepted."""
    made = Stubbed()
    made.events(OLD)
    made.stub.add_response("execute_change_set", {})
    made.events(OLD)
    made.events(("1", "shop", "UPDATE_IN_PROGRESS", ""), OLD)
    made.events(("2", "shop", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", ""), ("1", "shop", "UPDATE_IN_PROGRESS", ""))
    made.events(("3", "shop", "UPDATE_COMPLETE", ""), ("2", "shop", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", ""))
    made.stands("UPDATE_COMPLETE")
    assert made.execute().ok
    made.stub.assert_no_pending_responses()


def test_events_are_read_over_pages_up_to_the_last_one_seen() -> None:
    made = Stubbed()
    made.events(OLD)
    made.stub.add_response("execute_change_set", {})
    made.events(("3", "shop", "UPDATE_COMPLETE", ""), ("2", "Orders", "UPDATE_COMPLETE", ""), more="page-2")
    made.events(("1", "shop", "UPDATE_IN_PROGRESS", ""), OLD, token="page-2", more="page-3")
    made.stands("UPDATE_COMPLETE")
    told: list[str] = []
    made.stack.execute(
        ChangeSet(stack="shop", arn=ARN, creates=False, changes=()), "go", lambda event: told.append(event.event_id)
    )
    assert told == ["1", "2", "3"]
    made.stub.assert_no_pending_responses()


def test_a_throttled_look_is_looked_again_and_a_lost_one_says_who_goes_on() -> None:
    made = Stubbed()
    made.events(OLD)
    made.stub.add_response("execute_change_set", {})
    made.stub.add_client_error("describe_stack_events", "Throttling", "Rate exceeded", 400)
    made.events(("1", "shop", "UPDATE_COMPLETE", ""), OLD)
    made.stands("UPDATE_COMPLETE")
    assert made.execute().ok
    made.events(OLD)
    made.stub.add_response("execute_change_set", {})
    for _ in range(6):
        made.stub.add_client_error("describe_stack_events", "Throttling", "Rate exceeded", 400)
    with pytest.raises(errors.TransientError, match="CloudFormation continues by itself"):
        made.execute()
    made.stub.assert_no_pending_responses()


def test_changes_are_read_over_pages() -> None:
    made = Stubbed()
    made.stands("UPDATE_COMPLETE")
    made.stub.add_response("create_change_set", {"Id": ARN})
    made.stub.add_response("describe_change_set", {"Status": "CREATE_IN_PROGRESS"})
    made.stub.add_response("describe_change_set", {"Status": "CREATE_COMPLETE"})
    for token, name in ((None, "One"), ("more", "Two")):
        answer: dict[str, Any] = {
            "Changes": [
                {
                    "Type": "Resource",
                    "ResourceChange": {
                        "Action": "Remove", "PolicyAction": "Retain", "LogicalResourceId": name, "Scope": [],
                        "PhysicalResourceId": f"https://sqs/1/{name}", "ResourceType": "AWS::SQS::Queue", "Details": [],
                    },
                }
            ]
        }  # fmt: skip
        if token is None:
            answer["NextToken"] = "more"
        made.stub.add_response(
            "describe_change_set", answer, {"ChangeSetName": ARN} | ({"NextToken": token} if token else {})
        )
    change_set = made.stack.prepare("{}", None, {"Stage": "prod"}, "t")
    assert change_set is not None
    assert [(one.logical_id, one.lost, one.kept_outside) for one in change_set.changes] == [
        ("One", None, True), ("Two", None, True),
    ]  # fmt: skip
    made.stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    "reason",
    [
        "The submitted information didn't contain changes. Submit different information to create a change set.",
        "No updates are to be performed.",
    ],
)
def test_a_change_set_without_changes_is_removed_and_no_error(reason: str) -> None:
    made = Stubbed()
    made.stands("CREATE_COMPLETE")
    made.stub.add_response(
        "create_change_set",
        {"Id": ARN},
        {
            "StackName": "shop", "ChangeSetName": "onefold-t", "ChangeSetType": "UPDATE", "ClientToken": "t",
            "Capabilities": ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM"], "Parameters": [], "TemplateURL": "https://s3/t",
        },
    )  # fmt: skip
    made.stub.add_response("describe_change_set", {"Status": "FAILED", "StatusReason": reason}, {"ChangeSetName": ARN})
    made.stub.add_response("delete_change_set", {}, {"ChangeSetName": ARN})
    assert made.stack.prepare(None, "https://s3/t", {}, "t") is None
    made.stub.assert_no_pending_responses()


def test_a_change_set_that_failed_otherwise_says_why() -> None:
    made = Stubbed()
    made.stands("CREATE_COMPLETE")
    made.stub.add_response("create_change_set", {"Id": ARN})
    made.stub.add_response("describe_change_set", {"Status": "FAILED", "StatusReason": "Transform is not allowed."})
    made.stub.add_response("delete_change_set", {})
    with pytest.raises(errors.UsageError, match="Transform is not allowed"):
        made.stack.prepare("{}", None, {}, "t")


def test_a_change_set_that_never_gets_ready_is_given_up() -> None:
    made = Stubbed()
    made.stands("CREATE_COMPLETE")
    made.stub.add_response("create_change_set", {"Id": ARN})
    for _ in range(apply.CHANGE_SET_MS_MAX // apply.LOOK_MS):
        made.stub.add_response("describe_change_set", {"Status": "CREATE_PENDING"})
    with pytest.raises(errors.TransientError, match="not ready after 10 minutes"):
        made.stack.prepare("{}", None, {}, "t")


@pytest.mark.parametrize(
    ("status", "said", "todo"),
    [
        ("UPDATE_IN_PROGRESS", "somebody else is deploying it", "Wait"),
        ("ROLLBACK_COMPLETE", "ROLLBACK_COMPLETE", "delete-stack"),
        ("ROLLBACK_FAILED", "ROLLBACK_FAILED", "delete-stack"),
        ("CREATE_FAILED", "CREATE_FAILED", "delete-stack"),
        ("DELETE_FAILED", "DELETE_FAILED", "delete-stack"),
        ("UPDATE_ROLLBACK_FAILED", "UPDATE_ROLLBACK_FAILED", "continue-update-rollback"),
        ("UPDATE_FAILED", "UPDATE_FAILED", "rollback-stack"),
        ("IMPORT_ROLLBACK_FAILED", "IMPORT_ROLLBACK_FAILED", "describe-stack-events"),
    ],
)
def test_a_stack_that_cannot_be_deployed_to_is_refused_with_the_way_out(status: str, said: str, todo: str) -> None:
    made = Stubbed()
    made.stands(status, "because")
    with pytest.raises(errors.UsageError, match=said) as refused:
        made.stack.prepare("{}", None, {}, "t")
    assert todo in refused.value.todo
    made.stub.assert_no_pending_responses()


def test_every_status_of_cloudformation_is_either_deployable_busy_or_has_a_way_out() -> None:
    client = boto3.client("cloudformation", "eu-west-1", aws_access_key_id="any", aws_secret_access_key="any")
    for status in client.meta.service_model.shape_for("StackStatus").enum:
        if status == "DELETE_COMPLETE":  # such a stack is not found by its name
            continue
        ways = [
            changes.is_deployable(status),
            changes.StackState(status=status).is_busy,
            changes.way_out(status, "shop") != "",
        ]
        assert sum(ways) == 1, status


def test_a_denied_call_names_action_and_stack() -> None:
    made = Stubbed()
    made.stub.add_client_error("describe_stacks", "AccessDenied", "User is not authorized", 403)
    with pytest.raises(errors.UsageError, match="cloudformation:DescribeStacks on stack shop"):
        made.stack.stack_state()


# -- what changes mean -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "lost", "kept"),
    [
        ({"Action": "Add"}, None, False),
        ({"Action": "Modify", "Replacement": "False"}, None, False),
        ({"Action": "Modify", "Replacement": "True"}, "is replaced by a new one", False),
        ({"Action": "Modify", "Replacement": "Conditional"}, "may be replaced", False),
        ({"Action": "Modify", "Replacement": "True", "PolicyAction": "ReplaceAndDelete"}, "is replaced", False),
        ({"Action": "Modify", "Replacement": "True", "PolicyAction": "ReplaceAndRetain"}, None, True),
        ({"Action": "Remove"}, "is deleted", False),
        ({"Action": "Remove", "PolicyAction": "Delete"}, "is deleted", False),
        ({"Action": "Remove", "PolicyAction": "Retain"}, None, True),
    ],
)
@pytest.mark.parametrize(
    ("type_", "held"),
    [("AWS::SQS::Queue", "messages"), ("AWS::DynamoDB::Table", "records"), ("AWS::IAM::Role", None)],
)
def test_what_a_change_loses(given: dict[str, str], lost: str | None, kept: bool, type_: str, held: str | None) -> None:
    found = changes.change({"LogicalResourceId": "One", "ResourceType": type_, "PhysicalResourceId": "x/one", **given})
    assert found.kept_outside == kept
    if lost is None or held is None:
        assert found.lost is None
    else:
        assert found.lost is not None
        assert found.lost.startswith(f"one {lost}")
        assert held in found.lost


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("... is not authorized to perform: sqs:CreateQueue on resource ...", "Add the action sqs:CreateQueue "),
        ("Access Denied (Service: S3)", "lacks a permission"),
        ("Queue visibility timeout: 30 seconds is less than Function timeout: 60 seconds", "six times"),
        ("Resource of type 'AWS::SQS::Queue' with identifier 'orders' already exists.", "exists outside the stack"),
        ("You must wait 60 seconds after deleting a queue before you can create another", "wait a minute"),
        ("The role defined for the function cannot be assumed by Lambda.", "deploy again"),
        ("S3 Error Code: PermanentRedirect. S3 Error Message: The bucket is in this region", "of the stack's region"),
        ("Error occurred while GetObject. S3 Error Code: NoSuchKey.", "not where the template says"),
        ("decreases account's UnreservedConcurrentExecution below its minimum value", "higher quota"),
        ("LimitExceededException", "Service Quotas"),
        ("Rate exceeded", "few minutes"),
        ("A new kind of trouble", "Correct what the reason names"),
    ],
)
def test_the_advice_follows_the_reason(reason: str, said: str) -> None:
    assert said in changes.advice(reason)


def test_when_only_the_stack_failed_it_is_the_cause() -> None:
    found = changes.first_failure(
        [StackEvent(event_id="1", at_ms=0, logical_id="shop", type=changes.STACK, physical_id="", status="CREATE_FAILED",
               reason="Timed out")]
    )  # fmt: skip
    assert found is not None
    assert found.logical_id == "shop"
    assert changes.first_failure([]) is None
