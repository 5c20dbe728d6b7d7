"""What is kept and put back, what a stack holds before it is destroyed, and how a stack is deployed beside its template.

ministack imports nothing and knows no termination protection, stack policy or drift: what CloudFormation is asked there is
seen at the client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import deploying
from onefold.admin.deploying import DeployLocation, Deployment
from onefold.cli.commands import destroy
from onefold.deploy import apply, cloudformation
from onefold.deploy.apply import KEEPING_POLICY, LiveStack, Rollout
from onefold.deploy.changes import StackEvent
from onefold.deploy.existing import Looking
from onefold.deploy.stack import Stack
from onefold.engines.aws.session import Session
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from tests.deploy.conftest import REGION, pause
from tests.deploy.declared import declared, planned

Make = Callable[[str], LiveStack]


def template(prefix: str, app: onefold.App | None = None, *, disposable: bool = False) -> str:
    """Of a small app without functions."""
    stack = Stack(prefix=prefix, disposable=disposable, alarms="none")
    return cloudformation.to_json(planned(app or declared(function=None), stack), indent=False)


def deployed(live: LiveStack, text: str) -> None:
    change_set = live.prepare(text, None, {}, f"t{abs(hash(text)) % 10**9}")
    assert change_set is not None
    assert live.execute(change_set, "go", lambda _: None).ok


@contextmanager
def plain(_action: str, _resource: str) -> Iterator[None]:
    yield


@pytest.mark.slow
def test_a_queue_that_was_kept_is_seen_and_another_stacks_queue_is_that_stacks(session: Session, stack: Make) -> None:
    looking, wanted = Looking(session, plain), json.loads(template("kept-"))
    assert looking.there(wanted, {}) == []
    session.client("sqs").create_queue(QueueName="kept-orders")
    (orders,) = looking.there(wanted, {})
    assert (orders.logical_id, orders.name, orders.holds, orders.kept) == (
        "OrdersQueue",
        "kept-orders",
        "messages",
        True,
    )
    assert looking.there(wanted, wanted) == [], "it is in the stack, as it was deployed"
    other = stack("other-stack")
    deployed(other, template("other-"))
    assert {one.name for one in looking.there(json.loads(template("other-")), {})} == {
        "other-orders", "other-orders-dead", "other-orders-held", "other-shop",
    }  # fmt: skip


class Cloud:
    """A client of CloudFormation that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.owner = "stack-of-another"
        self.drifts: list[dict[str, Any]] = []
        self.status = "UPDATE_COMPLETE"

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        def call(**arguments: Any) -> dict[str, Any]:
            self.asked.append((name, arguments))
            return self.answers(name)

        return call

    def answers(self, name: str) -> dict[str, Any]:
        stack = {"StackStatus": self.status, "StackId": "arn:stack", "EnableTerminationProtection": True}
        changed = {"Action": "Import", "LogicalResourceId": "A", "ResourceType": "AWS::SQS::Queue"}
        found: dict[str, dict[str, Any]] = {
            "describe_stacks": {"Stacks": [stack]},
            "create_change_set": {"Id": "arn:change-set"},
            "describe_change_set": {"Status": "CREATE_COMPLETE", "Changes": [{"ResourceChange": changed}]},
            "describe_stack_events": {"StackEvents": []},
            "detect_stack_drift": {"StackDriftDetectionId": "1"},
            "describe_stack_drift_detection_status": {"DetectionStatus": "DETECTION_COMPLETE"},
            "describe_stack_resource_drifts": {"StackResourceDrifts": self.drifts},
            "describe_stack_resources": {"StackResources": [{"StackName": self.owner}]},
            "get_template": {"TemplateBody": {"Resources": {}}},
        }
        return found.get(name, {})

    def arguments(self, name: str) -> dict[str, Any]:
        (found,) = [one for asked, one in self.asked if asked == name]
        return found


def live(cloud: Cloud) -> LiveStack:
    return LiveStack(cloud, "prod-shop", aws_errors=plain, pause=pause)


def test_a_change_set_gets_role_notifications_and_tags_and_imports_where_something_is_there() -> None:
    cloud, role, topic = Cloud(), "arn:aws:iam::111122223333:role/deployer", "arn:aws:sns:eu-west-1:111122223333:ops"
    rollout = Rollout(role_arn=role, notifications=(topic,), tags={"team": "shop"})
    change_set = live(cloud).prepare("{}", None, {}, "t", rollout, imports=True)
    assert change_set is not None
    assert [one.action for one in change_set.changes] == ["Import"]
    asked = cloud.arguments("create_change_set")
    assert (asked["RoleARN"], asked["NotificationARNs"]) == (role, [topic])
    assert asked["Tags"] == [{"Key": "team", "Value": "shop"}]
    assert asked["ImportExistingResources"] is True
    cloud = Cloud()
    live(cloud).prepare("{}", None, {}, "t")
    asked = cloud.arguments("create_change_set")
    assert not {"RoleARN", "NotificationARNs", "Tags", "ImportExistingResources"} & asked.keys()


def test_termination_protection_and_stack_policy_are_set_only_where_they_are_asked_for() -> None:
    cloud = Cloud()
    live(cloud).protect(Rollout())
    assert cloud.asked == []
    live(cloud).protect(Rollout(protected=True, policy=KEEPING_POLICY))
    assert cloud.arguments("update_termination_protection")["EnableTerminationProtection"] is True
    policy = json.loads(cloud.arguments("set_stack_policy")["StackPolicyBody"])
    (denied,) = [one for one in policy["Statement"] if one["Effect"] == "Deny"]
    assert denied["Action"] == "Update:Replace"
    assert "AWS::SQS::Queue" in denied["Condition"]["StringEquals"]["ResourceType"]


def test_what_was_changed_by_hand_is_named_property_by_property() -> None:
    cloud = Cloud()
    assert live(cloud).drift() == []
    part = {"PropertyPath": "/VisibilityTimeout", "ExpectedValue": "780", "ActualValue": "30"}
    kind = {"LogicalResourceId": "OrdersQueue", "ResourceType": "AWS::SQS::Queue"}
    cloud.drifts = [{**kind, "StackResourceDriftStatus": "MODIFIED", "PropertyDifferences": [part]}]
    (found,) = live(cloud).drift()
    assert (found.logical_id, found.status) == ("OrdersQueue", "MODIFIED")
    assert found.properties == (("/VisibilityTimeout", "780", "30"),)


@pytest.fixture
def deployment(session: Session, endpoint: str) -> Iterator[Callable[..., Deployment]]:
    made: list[Deployment] = []

    def make(prefix: str, *, disposable: bool = False) -> Deployment:
        plan = planned(declared(function=None), Stack(prefix=prefix, disposable=disposable, alarms="none"))
        location = DeployLocation(region=REGION, stack=plan.name, endpoint=endpoint)
        made.append(Deployment(plan, location, clock=ManualClock(), entropy=SeededEntropy(1)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.slow
def test_two_apps_with_one_prefix_never_get_each_others_queues(
    session: Session, deployment: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    session.client("sqs").create_queue(QueueName="twice-orders")
    said: list[str] = []
    wanted = deployment("twice-")
    monkeypatch.setattr(Looking, "_stack", lambda *_: "another-app")
    with pytest.raises(errors.UsageError, match=r"twice-orders belongs to stack another-app.*--prefix twice-shop-"):
        wanted.prepare(None, None, None, said.append)
    monkeypatch.setattr(Looking, "_stack", lambda *_: None)
    change_set = wanted.prepare(None, None, None, said.append)
    assert change_set is not None
    assert said[0] == "twice-orders exists already, in no stack: it is imported, with the messages that it holds"
    wanted.discard(change_set)


@pytest.mark.slow
def test_alarms_that_notify_nobody_are_noticed(session: Session, endpoint: str) -> None:
    def nobody(given: str | None, **stack: bool) -> bool:
        plan = planned(declared(function=None), Stack(prefix="quiet-", **stack))  # type: ignore[arg-type]
        location = DeployLocation(region=REGION, stack=plan.name, endpoint=endpoint)
        found = Deployment(plan, location, clock=ManualClock(), entropy=SeededEntropy(1))
        try:
            return found.notifies_nobody(given)
        finally:
            found.close()

    assert nobody(None)
    assert nobody("")
    assert not nobody("arn:aws:sns:eu-west-1:111122223333:pages")
    assert not nobody(None, topic=True)


@pytest.mark.slow
def test_a_stack_says_what_it_holds_and_is_destroyed_only_with_a_yes_to_the_loss(
    session: Session, stack: Make, deployment: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "LOOK_MS", 10)
    deployed(stack("gone-shop"), template("gone-", disposable=True))
    url = session.client("sqs").get_queue_url(QueueName="gone-orders")["QueueUrl"]
    for number in range(3):
        session.client("sqs").send_message(QueueUrl=url, MessageBody=str(number))
    here = deployment("gone-", disposable=True)
    found = here.contents()
    assert {one.name: (one.count, one.kept) for one in found.holders} == {
        "gone-orders": (3, False), "gone-orders-dead": (0, False), "gone-orders-held": (0, False), "gone-shop": (0, False),
    }  # fmt: skip
    assert found.losses == ("gone-orders is deleted: all its messages are lost",)
    with pytest.raises(errors.UsageError, match=r"would lose what is in 1 resource: gone-orders.*--accept-loss"):
        destroy._check(found, accept_loss=False)
    destroy._check(found, accept_loss=True)
    events: list[StackEvent] = []
    done = here.destroy(events.append)
    assert (done.ok, done.status) == (True, "DELETE_COMPLETE")
    assert here.state().status in ("ABSENT", "DELETE_COMPLETE")


def test_a_protected_stack_and_one_that_is_not_there_are_refused() -> None:
    held = deploying.Contents(stack="prod-shop", status="CREATE_COMPLETE", protected=True, holders=())
    with pytest.raises(errors.UsageError, match=r"termination protection.*--stack-name prod-shop"):
        destroy._check(held, accept_loss=True)
